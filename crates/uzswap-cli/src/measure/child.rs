//! Work done by a fresh process of this program, so its remains in an allocator, in caches of the C
//! library or in the resident size end with it.
//!
//! The parent starts itself again with a hidden subcommand, writes an order to the child's standard
//! input and reads a reply from its standard output, both as JSON.

use std::io::{self, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use uzswap_sys::interrupt;
use uzswap_sys::process::end_with_parent;

/// The exit code of a Rust process that panicked.
const PANICKED: i32 = 101;

/// How often the parent looks whether it was interrupted.
pub(super) const TICK: Duration = Duration::from_millis(50);

/// The task of a child.
#[derive(Debug, Serialize, Deserialize)]
struct Order<T> {
    /// The process that waits for the reply.
    parent_pid: u32,
    spec: T,
}

/// What a child has to say.
#[derive(Debug, Serialize, Deserialize)]
enum Reply<T> {
    Done(T),
    Refused(Refusal),
}

/// Why a child did not do its work.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Refusal {
    /// A check failed: a page came back wrong, or a structure is broken.
    Check(String),
    /// The input or the machine does not allow it.
    CannotRun(String),
}

/// Why there is no reply to use.
#[derive(Debug)]
pub(super) enum ChildError {
    /// A check failed.
    Check(String),
    /// The process could not be started, could not work, or ended early.
    Machine(String),
    /// Ctrl-C or a like signal.
    Interrupted,
}

/// A child that does not outlive its variable.
struct OwnedChild(Child);

impl Drop for OwnedChild {
    fn drop(&mut self) {
        // Both fail only where the child has been waited for already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts this program with `arguments`, which must lead to [`answer`]; its reply to `spec`.
///
/// # Errors
///
/// [`ChildError`]. The child has ended.
pub(super) fn ask<S: Serialize, R: DeserializeOwned>(
    arguments: &[&str],
    spec: &S,
) -> Result<R, ChildError> {
    let cannot = |what: &str, error: &dyn std::fmt::Display| {
        ChildError::Machine(format!("cannot {what} the process of a run: {error}"))
    };
    let order = Order { parent_pid: std::process::id(), spec };
    let order = serde_json::to_vec(&order).map_err(|error| cannot("instruct", &error))?;
    let exe = std::env::current_exe().map_err(|error| cannot("find", &error))?;
    let child = Command::new(exe)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| cannot("start", &error))?;
    let mut child = OwnedChild(child);
    let mut stdin = child.0.stdin.take().expect("it is piped");
    // A child that dies at once closes the pipe; how it died says more than that.
    let told = stdin.write_all(&order);
    drop(stdin);
    let mut stdout = child.0.stdout.take().expect("it is piped");
    let (sender, receiver) = channel();
    thread::spawn(move || {
        let mut reply = Vec::new();
        let read = stdout.read_to_end(&mut reply).map(|_| reply);
        // Nobody listens any more after an interrupt.
        let _ = sender.send(read);
    });
    let reply = loop {
        match receiver.recv_timeout(TICK) {
            Ok(reply) => break reply,
            Err(RecvTimeoutError::Timeout) if interrupt::noted() => {
                return Err(ChildError::Interrupted);
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => break Ok(Vec::new()),
        }
    };
    let status = child.0.wait().map_err(|error| cannot("wait for", &error))?;
    // Ctrl-C in a terminal reaches the child as well.
    if interrupt::noted() {
        return Err(ChildError::Interrupted);
    }
    if !status.success() {
        return Err(death(status));
    }
    told.map_err(|error| cannot("instruct", &error))?;
    let reply = reply.map_err(|error| cannot("hear", &error))?;
    match serde_json::from_slice(&reply).map_err(|error| cannot("understand", &error))? {
        Reply::Done(result) => Ok(result),
        Reply::Refused(Refusal::Check(message)) => Err(ChildError::Check(message)),
        Reply::Refused(Refusal::CannotRun(message)) => Err(ChildError::Machine(message)),
    }
}

/// An error and its causes on one line.
pub(super) fn with_causes(error: &dyn std::error::Error) -> String {
    match error.source() {
        Some(source) => format!("{error}: {}", with_causes(source)),
        None => error.to_string(),
    }
}

/// How a child died, and what that means.
fn death(status: ExitStatus) -> ChildError {
    match (status.signal(), status.code()) {
        (Some(libc::SIGKILL), _) => ChildError::Machine(
            "its process was killed (signal 9); most likely memory ran out: use fewer pages or keys"
                .to_owned(),
        ),
        (Some(libc::SIGABRT), _) => ChildError::Machine(
            "its process aborted (signal 6; see above); most likely memory ran out: use fewer \
             pages or keys"
                .to_owned(),
        ),
        (Some(signal), _) => {
            ChildError::Machine(format!("its process was ended by signal {signal}"))
        }
        (None, Some(PANICKED)) => ChildError::Check("its process panicked; see above".to_owned()),
        (None, _) => ChildError::Machine(format!("its process ended early: {status}")),
    }
}

/// The child's side of [`ask`]: reads what is asked for, does the work, writes the reply.
///
/// # Errors
///
/// Of the two streams, and of an order that is none.
pub(super) fn answer<S: DeserializeOwned, R: Serialize>(
    input: impl Read,
    mut output: impl Write,
    work: impl FnOnce(S) -> Result<R, Refusal>,
) -> io::Result<()> {
    let order: Order<S> = serde_json::from_reader(input)?;
    end_with_parent(order.parent_pid)?;
    let reply = match work(order.spec) {
        Ok(result) => Reply::Done(result),
        Err(refusal) => Reply::Refused(refusal),
    };
    serde_json::to_writer(&mut output, &reply)?;
    output.flush()
}
