//! Which pages of an address range are resident and anonymous.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use uzswap::page::PAGE_SIZE;
use uzswap_sys::pagemap::{self, Found};

/// Runs of pages asked for in one look.
const RUNS: usize = 1 << 10;

/// Entries of the pagemap file read at a time.
const ENTRIES: usize = 1 << 13; // 64 KiB of entries: 32 MiB of pages

/// Pages found at some addresses.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Look {
    /// Runs of resident anonymous pages, ascending. In bytes.
    pub(super) resident: Vec<Range<u64>>,
    /// Private pages that are in swap.
    pub(super) swapped: u64,
}

/// A process's page map.
#[derive(Debug)]
pub(super) struct PageMap {
    file: File,
    /// Whether the kernel has PAGEMAP_SCAN (6.7). Without it the shared zero page looks like any
    /// other.
    scans: bool,
}

impl PageMap {
    pub(super) fn open(pid: i32) -> io::Result<PageMap> {
        Ok(PageMap { file: File::open(format!("/proc/{pid}/pagemap"))?, scans: true })
    }

    /// The same without the ioctl.
    #[cfg(test)]
    fn without_scan(pid: i32) -> PageMap {
        PageMap { scans: false, ..PageMap::open(pid).unwrap() }
    }

    /// Whether pages that are the shared zero page were distinguished.
    pub(super) fn knows_zero_page(&self) -> bool {
        self.scans
    }

    /// Looks at `addresses`, whole pages of one private mapping.
    pub(super) fn look(&mut self, addresses: Range<u64>) -> io::Result<Look> {
        if self.scans {
            match self.scan(addresses.clone()) {
                // Before 6.7, and where a sandbox emulates /proc.
                Err(error)
                    if matches!(
                        error.raw_os_error(),
                        Some(libc::ENOTTY | libc::EINVAL | libc::ENOSYS | libc::EOPNOTSUPP)
                    ) =>
                {
                    self.scans = false;
                }
                look => return look,
            }
        }
        self.read(addresses)
    }

    fn scan(&self, addresses: Range<u64>) -> io::Result<Look> {
        let mut look = Look::default();
        let mut found = [Found::default(); RUNS];
        let mut at = addresses.start;
        while at < addresses.end {
            let (runs, next) = pagemap::scan(&self.file, at..addresses.end, &mut found, 0)?;
            for run in &found[..runs] {
                let run_addresses = run.start..run.end;
                if run.is_swapped() {
                    look.swapped += (run.end - run.start) / PAGE_SIZE as u64;
                } else {
                    add(&mut look.resident, run_addresses);
                }
            }
            if next <= at {
                break; // the process is gone
            }
            at = next;
        }
        Ok(look)
    }

    fn read(&self, addresses: Range<u64>) -> io::Result<Look> {
        const PRESENT: u64 = 1 << 63;
        const SWAPPED: u64 = 1 << 62;
        const FILE_OR_SHARED: u64 = 1 << 61;

        let mut look = Look::default();
        let mut bytes = vec![0; ENTRIES * 8];
        let mut at = addresses.start;
        while at < addresses.end {
            let pages = ((addresses.end - at) / PAGE_SIZE as u64).min(ENTRIES as u64) as usize;
            let wanted = &mut bytes[..pages * 8];
            let read = self.file.read_at(wanted, at / PAGE_SIZE as u64 * 8)?;
            let (entries, _) = wanted[..read].as_chunks::<8>();
            if entries.is_empty() {
                break; // the process is gone
            }
            for entry in entries {
                let entry = u64::from_ne_bytes(*entry);
                if entry & FILE_OR_SHARED == 0 && entry & PRESENT != 0 {
                    add(&mut look.resident, at..at + PAGE_SIZE as u64);
                } else if entry & SWAPPED != 0 {
                    look.swapped += 1;
                }
                at += PAGE_SIZE as u64;
            }
        }
        Ok(look)
    }
}

/// Adds a run after the others, as a part of the last one if it continues it.
fn add(runs: &mut Vec<Range<u64>>, run: Range<u64>) {
    match runs.last_mut() {
        Some(last) if last.end == run.start => last.end = run.end,
        _ => runs.push(run),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use uzswap_sys::pages::PageRun;

    #[test]
    fn written_pages_are_resident_and_only_they() {
        let mut run = PageRun::map(64).unwrap();
        for page in [3, 4, 5, 40] {
            run[page * PAGE_SIZE] = 1;
        }
        // Read, never written: the shared zero page.
        assert_eq!(std::hint::black_box(run[20 * PAGE_SIZE]), 0);
        let base = run.as_ptr().addr() as u64;
        let at = |page: u64| base + page * PAGE_SIZE as u64;
        let pid = std::process::id() as i32;

        let mut scanning = PageMap::open(pid).unwrap();
        let look = scanning.look(at(0)..at(64)).unwrap();
        if scanning.knows_zero_page() {
            assert_eq!(look.resident, [at(3)..at(6), at(40)..at(41)]);
            assert_eq!(look.swapped, 0);
        } else {
            println!("SKIP PAGEMAP_SCAN: this kernel has none (it came with 6.7)");
        }

        let look = PageMap::without_scan(pid).look(at(0)..at(64)).unwrap();
        let runs: Vec<_> = look.resident.iter().filter(|run| **run != (at(20)..at(21))).collect();
        assert_eq!(runs, [&(at(3)..at(6)), &(at(40)..at(41))]);
    }
}
