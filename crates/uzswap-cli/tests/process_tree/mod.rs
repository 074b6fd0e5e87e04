//! Memory of a program and of all that it starts, sampled from outside.

use std::fs;
use std::io::{self, Read};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

const EVERY: Duration = Duration::from_millis(10);

/// This process and all below it.
pub(crate) fn all_below(pid: u32) -> Vec<u32> {
    let mut found = vec![pid];
    let mut at = 0;
    while let Some(&pid) = found.get(at) {
        at += 1;
        let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else { continue };
        for thread in threads.flatten() {
            let children = fs::read_to_string(thread.path().join("children")).unwrap_or_default();
            found.extend(children.split_whitespace().filter_map(|pid| pid.parse::<u32>().ok()));
        }
    }
    found
}

/// The name of a process; none once it has ended.
pub(crate) fn name(pid: u32) -> String {
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    name.trim_end().to_owned()
}

/// Whether a process is managed: its helper maps what it shares with the supervisor.
pub(crate) fn is_managed(pid: u32) -> bool {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    maps.contains("/memfd:uzswap-control")
}

/// Whether a process is a helper, which has the memory of another one.
pub(crate) fn is_helper(pid: u32) -> bool {
    name(pid) == "uzswap-helper"
}

/// Anonymous memory of a process, its part of what it shares with others; 0 once it has ended.
fn anonymous_bytes(pid: u32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("Pss_Anon:"));
    let kib = line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}

/// Runs a command; what it printed, and the most anonymous memory that it and all below it took at
/// once, in bytes.
pub(crate) fn output_and_peak(command: &mut Command) -> io::Result<(Output, u64)> {
    let mut child =
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let (pid, is_over) = (child.id(), AtomicBool::new(false));
    let mut stderr = child.stderr.take().expect("it is piped");
    thread::scope(|scope| {
        let sampler = scope.spawn(|| {
            let mut peak = 0;
            while !is_over.load(Ordering::Relaxed) {
                let programs = all_below(pid).into_iter().filter(|pid| !is_helper(*pid));
                peak = peak.max(programs.map(anonymous_bytes).sum());
                thread::sleep(EVERY);
            }
            peak
        });
        let errors = scope.spawn(move || {
            let mut text = Vec::new();
            stderr.read_to_end(&mut text).map(|_| text)
        });
        let output = child.wait_with_output();
        is_over.store(true, Ordering::Relaxed);
        let stderr = errors.join().expect("it does not panic")?;
        let peak = sampler.join().expect("it does not panic");
        Ok((Output { stderr, ..output? }, peak))
    })
}
