//! The state of a run for Prometheus: its text format over HTTP, at a loopback port or a unix
//! socket.
//!
//! Of HTTP/1.1 it knows GET and HEAD of `/metrics`, and closes each connection after its answer.
//! The size of a request and the number of its header lines are bounded.

use std::fmt;
use std::fs;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use crate::RunError;
use crate::telemetry::socket_server::{Answerer, More, Speaker, Verdict};
use crate::telemetry::status::{
    BACKLOG, ProcessStatus, Reporter, RunStatus, bind_private, connect, own_user,
};
use uzswap::zswap::PrometheusText;

/// Bytes that a request may have before its body: what web servers take.
const REQUEST_MAX: usize = 8 << 10;

/// Header lines that it may have: Prometheus sends seven.
const HEADERS_MAX: usize = 64;

/// Who may use a unix socket, as far as the umask allows: its user, and its group.
const SOCKET_MODE: u32 = 0o660;

/// Where metrics are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MetricsAddress {
    /// A unix socket.
    Unix(PathBuf),
    /// A port of a loopback address; port 0 is one that the kernel chooses.
    Tcp(SocketAddr),
}

impl FromStr for MetricsAddress {
    type Err = String;

    /// `unix:PATH`, `127.0.0.1:PORT` or `[::1]:PORT`.
    fn from_str(text: &str) -> Result<MetricsAddress, String> {
        if let Some(path) = text.strip_prefix("unix:").filter(|path| !path.is_empty()) {
            return Ok(MetricsAddress::Unix(path.into()));
        }
        let address: SocketAddr = text.parse().map_err(|_| {
            format!(
                "expected unix:PATH, 127.0.0.1:PORT or [::1]:PORT, got \
                                  '{text}'"
            )
        })?;
        match address.ip().is_loopback() {
            true => Ok(MetricsAddress::Tcp(address)),
            false => Err(format!(
                "'{}' is not a loopback address, and metrics have no password; use 127.0.0.1, \
                 [::1] or unix:PATH",
                address.ip()
            )),
        }
    }
}

impl fmt::Display for MetricsAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MetricsAddress::Unix(path) => write!(f, "unix:{}", path.display()),
            MetricsAddress::Tcp(address) => write!(f, "{address}"),
        }
    }
}

/// A socket that listens, and the file that it is. That goes when this is dropped.
#[derive(Debug)]
pub(crate) struct MetricsSocket {
    socket: OwnedFd,
    address: MetricsAddress,
    file: Option<SocketFile>,
}

#[derive(Debug)]
struct SocketFile {
    path: PathBuf,
    identity: (u64, u64),
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if identity(&self.path).is_ok_and(|identity| identity == self.identity) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    fs::symlink_metadata(path).map(|metadata| (metadata.dev(), metadata.ino()))
}

impl MetricsSocket {
    /// Listens there. A socket that nobody listens at any more is replaced.
    pub(crate) fn listen(address: &MetricsAddress) -> Result<MetricsSocket, RunError> {
        let listened = match address {
            MetricsAddress::Unix(path) => listen_at_path(path),
            MetricsAddress::Tcp(address) => listen_at_port(*address),
        };
        listened.map_err(|source| RunError::Metrics { address: address.clone(), source })
    }

    /// Where it is, with the port that the kernel has chosen.
    pub(crate) fn address(&self) -> &MetricsAddress {
        &self.address
    }
}

fn listen_at_port(address: SocketAddr) -> io::Result<MetricsSocket> {
    let listener = TcpListener::bind(address)?;
    listener.set_nonblocking(true)?;
    let address = MetricsAddress::Tcp(listener.local_addr()?);
    Ok(MetricsSocket { socket: listener.into(), address, file: None })
}

fn listen_at_path(path: &Path) -> io::Result<MetricsSocket> {
    match fs::symlink_metadata(path) {
        Ok(found) if !found.file_type().is_socket() => {
            let what = "the file exists and is not a socket; remove it or choose another path";
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, what));
        }
        Ok(found) => match connect(path) {
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                remove_stale(path, &found)?;
            }
            _ => return Err(io::ErrorKind::AddrInUse.into()),
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    let socket = bind_private(path, SOCKET_MODE)?;
    let file = SocketFile { path: path.to_owned(), identity: identity(path)? };
    rustix::net::listen(&socket, BACKLOG)?;
    let address = MetricsAddress::Unix(path.to_owned());
    Ok(MetricsSocket { socket, address, file: Some(file) })
}

/// Removes a socket that nobody listens at, if this user made it.
fn remove_stale(path: &Path, found: &fs::Metadata) -> io::Result<()> {
    if found.uid() != own_user() {
        let what =
            format!("the socket belongs to user {}; remove it or choose another path", found.uid());
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, what));
    }
    fs::remove_file(path)
}

/// Answers there, in a thread.
pub(crate) fn serve(reporter: Arc<Reporter>, socket: MetricsSocket) -> io::Result<Answerer> {
    let MetricsSocket { socket, file, .. } = socket;
    Answerer::start("uzswap-metrics", socket, Metrics { reporter, text: None, _file: file })
}

/// Answers scrapers.
struct Metrics {
    reporter: Arc<Reporter>,
    /// All that ask in one turn are answered this.
    text: Option<String>,
    _file: Option<SocketFile>,
}

impl Speaker for Metrics {
    fn begin_turn(&mut self) {
        self.text = None;
    }

    fn greet(&mut self, _peer: BorrowedFd<'_>) -> Verdict {
        Verdict::Listen
    }

    fn hear(&mut self, heard: &[u8], more: More) -> Verdict {
        let Metrics { reporter, text, .. } = self;
        answer(heard, more, || {
            text.get_or_insert_with(|| {
                prometheus(&reporter.status()) + &reporter.store().prometheus()
            })
        })
    }
}

/// The answer to what a peer has sent up to now.
fn answer<'a>(heard: &[u8], more: More, text: impl FnOnce() -> &'a mut String) -> Verdict {
    const TOO_LARGE: &str = "431 Request Header Fields Too Large";
    let head = head_of(heard);
    let lines = head.unwrap_or(heard).iter().filter(|byte| **byte == b'\n').count();
    Verdict::Reply(match (head, more) {
        _ if lines > HEADERS_MAX => refuse(TOO_LARGE, ""),
        (Some(head), _) => respond(head, text),
        (None, _) if heard.len() > REQUEST_MAX => refuse(TOO_LARGE, ""),
        (None, More::Maybe) => return Verdict::Listen,
        (None, _) if heard.is_empty() => return Verdict::Close,
        (None, More::Ended) => refuse("400 Bad Request", ""),
        (None, More::TooLate) => refuse("408 Request Timeout", ""),
    })
}

/// The request up to the empty line that ends its head, once that is there; empty lines before it
/// do not count.
fn head_of(request: &[u8]) -> Option<&[u8]> {
    let start = request.iter().position(|byte| !b"\r\n".contains(byte))?;
    let request = &request[start..];
    let ends = |end: &[u8]| request.windows(end.len()).position(|window| window == end);
    let end = [ends(b"\n\r\n"), ends(b"\n\n")].into_iter().flatten().min()?;
    Some(&request[..end])
}

/// The answer to a request.
fn respond<'a>(head: &[u8], text: impl FnOnce() -> &'a mut String) -> Vec<u8> {
    let line = head.split(|byte| *byte == b'\n').next().unwrap_or(head);
    let line = std::str::from_utf8(line).unwrap_or("").trim_ascii_end();
    let words: Vec<&str> = line.split(' ').collect();
    let [method, target, version] = words[..] else { return refuse("400 Bad Request", "") };
    match version.strip_prefix("HTTP/") {
        Some("1.0" | "1.1") => {}
        Some(_) => return refuse("505 HTTP Version Not Supported", ""),
        None => return refuse("400 Bad Request", ""),
    }
    // A proxy gets the whole address.
    let target =
        match target.strip_prefix("http://").map(|rest| rest.find('/').map(|at| &rest[at..])) {
            Some(path) => path.unwrap_or("/"),
            None => target,
        };
    let path = target.split('?').next().unwrap_or(target);
    match (path, method) {
        ("/metrics", "GET") => reply("200 OK", "", "text/plain; version=0.0.4", text(), true),
        ("/metrics", "HEAD") => reply("200 OK", "", "text/plain; version=0.0.4", text(), false),
        ("/metrics", _) => refuse("405 Method Not Allowed", "Allow: GET, HEAD\r\n"),
        _ => refuse("404 Not Found", ""),
    }
}

/// An answer that says what is wrong.
fn refuse(status: &str, headers: &str) -> Vec<u8> {
    reply(status, headers, "text/plain", &format!("{status}: use GET /metrics\n"), true)
}

fn reply(status: &str, headers: &str, kind: &str, body: &str, has_body: bool) -> Vec<u8> {
    let bytes = body.len();
    let mut reply = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {bytes}\r\n{headers}\
         Connection: close\r\n\r\n"
    );
    if has_body {
        reply += body;
    }
    reply.into_bytes()
}

/// A run's state in Prometheus' text format.
fn prometheus(status: &RunStatus) -> String {
    let mut text = PrometheusText::default();
    let (command, pid) = (status.command.join(" "), status.pid.to_string());
    text.family("run_info", "gauge", "Version, PID and command of the run.");
    let labels = [("version", &*status.version), ("pid", &*pid), ("command", &*command)];
    text.sample("run_info", &labels, 1);
    let mut gauge = |name: &str, help: &str, value: &dyn fmt::Display| {
        text.family(name, "gauge", help);
        text.sample(name, &[], value);
    };
    gauge("run_elapsed_seconds", "Time since the start of the run.", &status.elapsed_s);
    gauge("run_limit_bytes", "Limit of the run (--limit).", &status.limit_bytes);
    gauge(
        "run_used_bytes",
        "Memory that counts against the limit, at the last sample.",
        &status.used_bytes,
    );
    gauge("run_peak_bytes", "Highest usage so far.", &status.peak_bytes);
    let mut parts = |name: &str, help: &str, label: &str, parts: [(&str, u64); 4]| {
        text.family(name, "gauge", help);
        parts.iter().for_each(|(part, bytes)| text.sample(name, &[(label, *part)], bytes));
    };
    let used = [
        ("resident", status.resident_bytes),
        ("unmanaged", status.unmanaged_bytes),
        ("pool", status.pool_bytes),
        ("metadata", status.metadata_bytes),
    ];
    parts("run_memory_bytes", "Memory of the run by use.", "part", used);
    let held_back = [
        ("margin", status.held_back.margin_bytes),
        ("growth", status.held_back.growth_bytes),
        ("staging", status.held_back.staging_bytes),
        ("tables", status.held_back.tables_bytes),
    ];
    let help = "Memory held back from programs, by kind.";
    parts("run_held_back_bytes", help, "kind", held_back);
    let counts = &status.counts;
    for (name, help, pages) in [
        ("run_fresh_pages_total", "Pages zero-filled at a first touch.", counts.fresh_pages),
        ("run_restored_pages_total", "Pages restored from the store.", counts.restored_pages),
        (
            "run_rescued_pages_total",
            "Staged pages touched before they were stored.",
            counts.staging_hits,
        ),
        ("run_stored_pages_total", "Pages stored.", counts.stored_pages),
        ("run_moved_pages_total", "Pages moved to staging.", counts.moved_pages),
    ] {
        text.family(name, "counter", help);
        text.sample(name, &[], pages);
    }
    text.histogram(
        "run_fault",
        "Time from a page fault until the page is present.",
        &status.fault_times,
    );
    add_processes(&mut text, &status.processes);
    text.0
}

/// Adds the families with a sample of each process.
fn add_processes(text: &mut PrometheusText, processes: &[ProcessStatus]) {
    let mut family = |name: &str, kind: &str, help: &str, value: &dyn Fn(usize) -> u64| {
        text.family(name, kind, help);
        for (at, process) in processes.iter().enumerate() {
            let pid = process.pid.to_string();
            text.sample(name, &[("pid", &*pid), ("name", &*process.name)], value(at));
        }
    };
    let of = |at: usize| &processes[at];
    let help = "Resident anonymous memory of the process.";
    family("process_resident_bytes", "gauge", help, &|at| of(at).resident_bytes);
    let help = "Pages of the process in the store; forked processes may share them.";
    family("process_stored_pages", "gauge", help, &|at| of(at).stored_pages);
    let help = "Staged pages of the process.";
    family("process_aside_pages", "gauge", help, &|at| of(at).staged_pages);
    let help = "Page faults of the process that were served.";
    family("process_faults_total", "counter", help, &|at| of(at).faults);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_of_this_machine_alone() {
        for text in ["127.0.0.1:9100", "[::1]:0", "unix:/run/x", "unix:x", "127.1.2.3:1"] {
            assert_eq!(text.parse::<MetricsAddress>().unwrap().to_string(), text);
        }
        for (text, word) in [
            ("0.0.0.0:9100", "not a loopback address"),
            ("[::]:9100", "not a loopback address"),
            ("192.168.0.1:9100", "not a loopback address"),
            ("[::ffff:10.0.0.1]:80", "not a loopback address"),
            ("localhost:9100", "expected unix:PATH"),
            ("127.0.0.1", "expected unix:PATH"),
            ("127.0.0.1:70000", "expected unix:PATH"),
            ("::1:80", "expected unix:PATH"),
            ("unix:", "expected unix:PATH"),
            ("", "expected unix:PATH"),
        ] {
            let error = text.parse::<MetricsAddress>().unwrap_err();
            assert!(error.contains(word), "{text}: {error}");
        }
    }

    #[test]
    fn requests_have_the_answers_of_http() {
        let status = |request: &str| {
            let mut text = "x 1\n".to_owned();
            let reply = match answer(request.as_bytes(), More::Maybe, || &mut text) {
                Verdict::Reply(reply) => reply,
                Verdict::Listen => return None,
                Verdict::Close => panic!("{request:?} has no answer"),
            };
            let text = String::from_utf8(reply).unwrap();
            let (head, body) = text.split_once("\r\n\r\n").unwrap();
            let bytes = head.lines().find_map(|line| line.strip_prefix("Content-Length: "));
            let bytes: usize = bytes.unwrap().parse().unwrap();
            assert!(bytes == body.len() || (body.is_empty() && request.starts_with("HEAD")));
            assert!(head.ends_with("Connection: close"));
            Some(head.split(' ').nth(1).unwrap().parse::<u32>().unwrap())
        };
        let with_headers =
            |count| format!("GET /metrics HTTP/1.1\r\n{}\r\n", "a:b\r\n".repeat(count));
        let (some, many) = (with_headers(HEADERS_MAX), with_headers(HEADERS_MAX + 1));
        let endless = "x".repeat(REQUEST_MAX + 1);
        for (request, expected) in [
            (&*some, Some(200)),
            (&*many, Some(431)),
            (&many[..many.len() - 2], Some(431)),
            (&*endless, Some(431)),
            (&endless[1..], None),
            ("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n", Some(200)),
            ("GET /metrics HTTP/1.0\n\n", Some(200)),
            ("\r\n\r\nGET /metrics?a=b HTTP/1.1\r\n\r\n", Some(200)),
            ("GET http://127.0.0.1:9/metrics HTTP/1.1\r\n\r\n", Some(200)),
            ("HEAD /metrics HTTP/1.1\r\n\r\n", Some(200)),
            ("GET / HTTP/1.1\r\n\r\n", Some(404)),
            ("GET http://x HTTP/1.1\r\n\r\n", Some(404)),
            ("GET /metrics/ HTTP/1.1\r\n\r\n", Some(404)),
            ("POST /metrics HTTP/1.1\r\n\r\n", Some(405)),
            ("GET /metrics HTTP/2.0\r\n\r\n", Some(505)),
            ("GET /metrics\r\n\r\n", Some(400)),
            ("GET  /metrics HTTP/1.1\r\n\r\n", Some(400)),
            ("\u{1}\u{2} x\u{e9}\n\n", Some(400)),
            ("GET /metrics HTTP/1.1\r\nHost: x\r\n", None),
            ("\r\n\r\n", None),
            ("", None),
        ] {
            assert_eq!(status(request), expected, "{request:?}");
        }
        let nothing = |heard: &[u8], more| answer(heard, more, || unreachable!("it is not asked"));
        assert_eq!(nothing(b"", More::Ended), Verdict::Close);
        assert_eq!(nothing(b"", More::TooLate), Verdict::Close);
        assert_eq!(nothing(b"G", More::Ended), Verdict::Reply(refuse("400 Bad Request", "")));
        assert_eq!(nothing(b"G", More::TooLate), Verdict::Reply(refuse("408 Request Timeout", "")));
    }
}
