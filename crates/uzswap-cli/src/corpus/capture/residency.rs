//! Finds the resident anonymous pages of an address range.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::ops::Range;

use uzswap::page::PAGE_SIZE;
use uzswap_sys::pagemap::{self, ENTRY_BYTES, Entry, Found, Wanted};

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

/// Pages that several processes share, since a fork or by KSM, and that were met. One bit for each:
/// a 32,768th of their memory.
#[derive(Debug, Default)]
pub(super) struct SharedPages(BTreeMap<u64, Box<[u64; WORDS]>>);

/// Words of bits that are together.
const WORDS: usize = 64;

impl SharedPages {
    /// Whether this number was not met before.
    fn meets(&mut self, number: u64) -> bool {
        let bits = u64::from(u64::BITS);
        let (word, bit) = (number / bits, 1 << (number % bits));
        let words = self.0.entry(word / WORDS as u64).or_insert_with(|| Box::new([0; WORDS]));
        let word = &mut words[(word % WORDS as u64) as usize];
        let is_new = *word & bit == 0;
        *word |= bit;
        is_new
    }
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

    /// The pages of these runs without those that a process before shares. A shared page is known
    /// by its frame. The kernel shows frames only to CAP_SYS_ADMIN; without it, the page is known
    /// by its address, which is the same after a fork.
    pub(super) fn once(
        &self,
        runs: Vec<Range<u64>>,
        shared: &mut SharedPages,
    ) -> io::Result<Vec<Range<u64>>> {
        let mut kept = Vec::new();
        for run in runs {
            self.each_entry(run, |at, entry| {
                let number = match entry.frame() {
                    0 => at / PAGE_SIZE as u64,
                    frame => frame,
                };
                if entry.is_alone() || shared.meets(number) {
                    add(&mut kept, at..at + PAGE_SIZE as u64);
                }
            })?;
        }
        Ok(kept)
    }

    fn scan(&self, addresses: Range<u64>) -> io::Result<Look> {
        let mut look = Look::default();
        let mut found = [Found::default(); RUNS];
        let mut at = addresses.start;
        while at < addresses.end {
            let range = at..addresses.end;
            let (runs, next) = pagemap::scan(&self.file, range, Wanted::Anonymous, &mut found, 0)?;
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
        let mut look = Look::default();
        self.each_entry(addresses, |at, entry| {
            if entry.is_present() && !entry.is_of_file() {
                add(&mut look.resident, at..at + PAGE_SIZE as u64);
            } else if entry.is_swapped() {
                look.swapped += 1;
            }
        })?;
        Ok(look)
    }

    /// Calls with the address of each page and its entry, as long as there is the process.
    fn each_entry(
        &self,
        addresses: Range<u64>,
        mut call: impl FnMut(u64, Entry),
    ) -> io::Result<()> {
        let all = (addresses.end - addresses.start) / PAGE_SIZE as u64;
        let mut room = vec![[0; ENTRY_BYTES]; all.min(ENTRIES as u64) as usize];
        let mut at = addresses.start;
        while at < addresses.end {
            let pages = room.len().min(((addresses.end - at) / PAGE_SIZE as u64) as usize);
            match pagemap::entries(&self.file, at, &mut room[..pages]) {
                Ok(entries) => {
                    (at..).step_by(PAGE_SIZE).zip(entries).for_each(|(at, it)| call(at, it))
                }
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => break, // it is gone
                Err(error) => return Err(error),
            }
            at += (pages * PAGE_SIZE) as u64;
        }
        Ok(())
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
    fn numbers_are_met_once() {
        let mut shared = SharedPages::default();
        for number in [0, 1, 63, 64, 4095, 4096, FAR] {
            assert!(shared.meets(number) && !shared.meets(number), "{number}");
        }
        assert_eq!(shared.0.len(), 3);
        const FAR: u64 = (1 << 55) - 1;
    }

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
