//! Whether `run` can manage a program, from a process that runs it without `run`.

use std::fs::{self, File};
use std::io::Read;

/// The identification of an ELF file, and its byte that tells 32 from 64 bits: `EI_CLASS` of the
/// System V ABI.
const ELF_IDENTITY_BYTES: usize = 16;
const EI_CLASS: usize = 4;
const ELF_CLASS_64: u8 = 2;

/// A pair of the auxiliary vector: `AT_SECURE` of the kernel's include/uapi/linux/auxvec.h. Its
/// value is not zero if the program has more rights than its user.
const AT_SECURE: u64 = 23;

/// The reason for which the programs of this kind run unmanaged, in words; `None` where `run` can
/// manage them, or the process is gone. Their loader has to load the preload library.
pub fn why_unmanageable(pid: u32) -> Option<&'static str> {
    let file = |name: &str| fs::read(format!("/proc/{pid}/{name}")).unwrap_or_default();
    let mut identity = [0; ELF_IDENTITY_BYTES];
    File::open(format!("/proc/{pid}/exe"))
        .and_then(|mut exe| exe.read_exact(&mut identity))
        .ok()?;
    if identity[EI_CLASS] != ELF_CLASS_64 {
        return Some("a 32-bit program");
    }
    if is_secure(&file("auxv")) {
        return Some("setuid, setgid, or a file with capabilities");
    }
    let maps = file("maps");
    (!maps.is_empty() && !has_loader(&maps)).then_some("static")
}

/// Whether the kernel has told the program that it has more rights than its user.
fn is_secure(auxiliary: &[u8]) -> bool {
    auxiliary.as_chunks::<8>().0.as_chunks::<2>().0.iter().any(|&[kind, value]| {
        u64::from_ne_bytes(kind) == AT_SECURE && u64::from_ne_bytes(value) != 0
    })
}

/// Whether mappings have a dynamic loader, by its name. The kernel maps it before the program runs.
pub(super) fn has_loader(maps: &[u8]) -> bool {
    [&b"/ld-"[..], b"/ld."].iter().any(|name| maps.windows(name.len()).any(|it| it == *name))
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
    fn a_program_with_more_rights_is_told_by_its_vector() {
        let vector = |pairs: &[(u64, u64)]| {
            let words = pairs.iter().flat_map(|&(kind, value)| [kind, value]);
            words.flat_map(u64::to_ne_bytes).collect::<Vec<u8>>()
        };
        assert!(is_secure(&vector(&[(6, 4096), (AT_SECURE, 1), (0, 0)])));
        assert!(!is_secure(&vector(&[(AT_SECURE, 0), (6, AT_SECURE), (7, 1)])));
        assert!(!is_secure(&[]));
    }

    #[test]
    fn loaders_of_both_libraries_are_known() {
        assert!(has_loader(b"7f00-7f01 r-xp 0 fe:01 4 /usr/lib/x86_64/ld-linux-x86-64.so.2\n"));
        assert!(has_loader(b"7f00-7f01 r-xp 0 fe:01 4 /lib/ld-musl-x86_64.so.1\n"));
        assert!(!has_loader(b"4000-5000 r-xp 0 fe:01 4 /usr/bin/old-world\n7f00 rw-p [heap]\n"));
    }
}
