//! Why a process has no helper, by what the kernel shows of it.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use uzswap_preload::protocol::{LIBRARY_NAME, SOCKET_VARIABLE};

const STATIC: &str = "it is a static program";
const OF_32_BITS: &str = "it is a 32-bit program";
const SETUID: &str = "it is a setuid program, or its file has capabilities";
const ENVIRONMENT: &str = "its LD_PRELOAD lacks the library of the run";
const OTHER_SOCKET: &str = "its UZSWAP_SOCKET is not that of this run";
const NOT_FOUND: &str = "its loader has not loaded the library of the run, as in another root \
                         folder";
const VALGRIND: &str = "it runs under valgrind";
const FORKED: &str = "it was forked and has no helper, as after a fork by system call";
const NO_HELPER: &str = "it has no helper";

/// Parts of a process that decide, as /proc has them.
#[derive(Debug, Default)]
pub(crate) struct Facts {
    maps: Vec<u8>,
    environment: Vec<u8>,
    auxiliary: Vec<u8>,
    /// The first bytes of its program.
    program: Vec<u8>,
}

impl Facts {
    /// Of what has ended, or is hidden, there are none.
    pub(crate) fn of(pid: u32) -> Facts {
        let read = |name| fs::read(format!("/proc/{pid}/{name}")).unwrap_or_default();
        let mut program = Vec::new();
        if let Ok(file) = File::open(format!("/proc/{pid}/exe")) {
            let _ = file.take(CLASS_AT as u64 + 1).read_to_end(&mut program);
        }
        Facts { maps: read("maps"), environment: read("environ"), auxiliary: read("auxv"), program }
    }

    /// Why no helper will come, in a run with this socket; `None` while one may.
    pub(crate) fn reason(&self, socket: &Path) -> Option<&'static str> {
        if self.maps.is_empty() {
            return None; // it has ended
        }
        if let Some(kind) = self.reason_of_kind() {
            return Some(kind);
        }
        let is_mapped = |name: &str| has(&self.maps, name.as_bytes());
        if is_mapped("/vgpreload_") {
            return Some(VALGRIND);
        }
        let is_other = |value: &[u8]| value != socket.as_os_str().as_bytes();
        if self.variable(SOCKET_VARIABLE).is_some_and(is_other) {
            return Some(OTHER_SOCKET);
        }
        if is_mapped(LIBRARY_NAME) {
            return None;
        }
        if !self.variable("LD_PRELOAD").is_some_and(|value| has(value, LIBRARY_NAME.as_bytes())) {
            return Some(ENVIRONMENT);
        }
        // A loader maps preloaded libraries before those that the program names.
        (is_mapped("/libc.so") || is_mapped("/libc-")).then_some(NOT_FOUND)
    }

    /// Why no program of its kind is managed, in any run.
    fn reason_of_kind(&self) -> Option<&'static str> {
        if self.program.get(CLASS_AT) == Some(&CLASS_32) {
            return Some(OF_32_BITS);
        }
        if !has(&self.maps, b"/ld-") && !has(&self.maps, b"/ld.so") {
            return Some(STATIC);
        }
        self.is_secure().then_some(SETUID)
    }

    /// Whether the kernel tells its loader not to trust the environment.
    fn is_secure(&self) -> bool {
        const AT_SECURE: u64 = 23;
        let (words, _) = self.auxiliary.as_chunks::<8>();
        let (pairs, _) = words.as_chunks::<2>();
        pairs.iter().any(|[kind, value]| {
            u64::from_ne_bytes(*kind) == AT_SECURE && u64::from_ne_bytes(*value) != 0
        })
    }

    fn variable(&self, name: &str) -> Option<&[u8]> {
        self.environment
            .split(|byte| *byte == 0)
            .find_map(|text| text.strip_prefix(name.as_bytes())?.strip_prefix(b"="))
    }
}

/// The reason for which `run` cannot manage the program of a process, in words; `None` where it
/// can, or the process is gone.
pub fn why_unmanageable(pid: u32) -> Option<&'static str> {
    let facts = Facts::of(pid);
    if facts.maps.is_empty() { None } else { facts.reason_of_kind() }
}

/// The reason of a process of which nothing else decides, after long.
pub(crate) fn without_sign(is_forked: bool) -> &'static str {
    if is_forked { FORKED } else { NO_HELPER }
}

/// Where an ELF file says for how many bits it is.
const CLASS_AT: usize = 4;
const CLASS_32: u8 = 1;

fn has(text: &[u8], part: &[u8]) -> bool {
    text.windows(part.len()).any(|window| window == part)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_can_be_managed_and_one_that_is_gone_is_not_judged() {
        assert_eq!(why_unmanageable(std::process::id()), None);
        assert_eq!(why_unmanageable(0), None);
    }

    #[test]
    fn a_program_that_is_being_loaded_is_not_unmanaged_yet() {
        let ours = format!("7f00-7f01 r-xp 0 fe:00 1 /tmp/uzswap-x/{LIBRARY_NAME}\n");
        let ours = ours.as_str();
        let program = "5500-5501 r-xp 0 fe:00 2 /bin/cat\n";
        let loader = "7f02-7f03 r-xp 0 fe:00 3 /lib64/ld-linux-x86-64.so.2\n";
        let c_library = "7f04-7f05 r-xp 0 fe:00 4 /lib/x86_64-linux-gnu/libc.so.6\n";
        let valgrind = "7f06-7f07 r-xp 0 fe:00 5 /usr/libexec/valgrind/vgpreload_core.so\n";
        let preload = format!("LD_PRELOAD=/tmp/uzswap-x/{LIBRARY_NAME}\0");
        let set = format!("{preload}UZSWAP_SOCKET=/tmp/uzswap-x/1\0HOME=/\0");
        let other = format!("{preload}UZSWAP_SOCKET=/tmp/uzswap-y/1\0HOME=/\0");
        let none = format!("{preload}UZSWAP_SOCKET=\0");
        for (maps, environment, expected) in [
            (vec![program, loader], &*set, None),
            (vec![program, loader, ours], &set, None),
            (vec![program, loader, ours, c_library], &set, None),
            (vec![program, loader, c_library], &set, Some(NOT_FOUND)),
            (vec![program, loader], "LD_PRELOAD=libjemalloc.so\0", Some(ENVIRONMENT)),
            (vec![program, loader], "", Some(ENVIRONMENT)),
            (vec![program, loader, ours], &other, Some(OTHER_SOCKET)),
            (vec![program, loader, ours], &none, Some(OTHER_SOCKET)),
            (vec![program, loader, valgrind, ours], &set, Some(VALGRIND)),
            (vec![program], &set, Some(STATIC)),
            (vec![], "", None),
        ] {
            let (maps, environment) = (maps.concat().into_bytes(), environment.into());
            let facts = Facts { maps, environment, ..Facts::default() };
            assert_eq!(facts.reason(Path::new("/tmp/uzswap-x/1")), expected, "{facts:?}");
        }
        let loaded = |ours: &str| Facts {
            maps: [program, loader, ours].concat().into_bytes(),
            environment: set.clone().into(),
            ..Facts::default()
        };
        let reason = |facts: Facts| facts.reason(Path::new("/tmp/uzswap-x/1"));
        assert_eq!(reason(loaded(ours)), None);
        let program = b"\x7fELF\x01".to_vec();
        assert_eq!(reason(Facts { program, ..loaded(ours) }), Some(OF_32_BITS));
        for (value, expected) in [(0, None), (1, Some(SETUID))] {
            let auxiliary = [6, 4096, 23, value, 0, 0].map(u64::to_ne_bytes).concat();
            assert_eq!(reason(Facts { auxiliary, ..loaded("") }), expected);
        }
    }
}
