//! The probe: how long swap takes, seen by a process in the cgroup. The probe moves its own pages
//! out by MADV_PAGEOUT, touches them, and times both.

use std::collections::BTreeMap;
use std::fs::File;
use std::hint::black_box;
use std::io::{self, Read};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use uzswap_sys::pagemap::{ENTRY_BYTES, entries};
use uzswap_sys::pages::{HOST_PAGE_SIZE, PageRun};

/// Pages of the probe.
pub const PAGES: usize = 256;

/// One page is moved out, and one is touched, so often.
const PERIOD: Duration = Duration::from_millis(5);

/// Of so many pages one does not compress.
const INCOMPRESSIBLE: usize = 8;

/// Parts of the text pages. With numbers between them, lzo makes about a third of a page.
const WORDS: [&str; 24] = [
    "the page is in memory",
    "swap entry",
    "return error;",
    "static struct node",
    "list of objects",
    "the lock is held",
    "length of the buffer",
    "offset",
    "number of pages",
    "device address",
    "table entry",
    "handle",
    "write to the file",
    "read from it",
    "first",
    "last value",
    "next state",
    "result of the call",
    "name",
    "if (count > index)",
    "kernel",
    "unsigned long flags;",
    "value",
    "while the list is not empty",
];

/// What a probe saw.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProbeReport {
    /// Times of MADV_PAGEOUT of one page that was resident, changed since it came in, and out
    /// afterwards. Each is `[ns, count]`, the end of a bucket of an eighth of a power of two.
    pub pageout_ns: Vec<[u64; 2]>,
    /// Times of a touch of one page that was out, in swap and not in its cache; in the same form.
    pub touch_ns: Vec<[u64; 2]>,
    /// Pages that the kernel did not move out when it was asked to.
    pub stayed: u64,
    /// Pages that were to be touched and were in memory or in the cache of swap.
    pub not_out: u64,
    /// Pages that had been moved out and came back with other contents: swap is broken.
    pub wrong: u64,
    /// Processor time, in ns.
    pub cpu_ns: u64,
}

/// Measures until `input` ends.
///
/// # Errors
///
/// The kernel's: `ENOMEM`, or of /proc/self/pagemap.
pub fn probe(mut input: impl Read + Send + 'static) -> io::Result<ProbeReport> {
    let (stop, stopped) = channel::<()>();
    thread::Builder::new().spawn(move || {
        let _stop = stop;
        let mut ignored = [0; 64];
        while input.read(&mut ignored).is_ok_and(|bytes| bytes > 0) {}
    })?;
    let mut probe = Probe::new()?;
    // Half of the pages are out.
    for page in 0..PAGES / 2 {
        probe.change(page);
        probe.run.page_out(page)?;
        probe.is_out[page] = true;
    }
    while stopped.recv_timeout(PERIOD) == Err(RecvTimeoutError::Timeout) {
        probe.page_out()?;
        probe.touch()?;
    }
    let mut report = probe.report;
    report.pageout_ns = listed(&probe.pageouts);
    report.touch_ns = listed(&probe.touches);
    let time = clock_gettime(ClockId::ProcessCPUTime);
    report.cpu_ns = time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64;
    Ok(report)
}

struct Probe {
    run: PageRun,
    pagemap: File,
    /// How often each was changed: its first word.
    generations: Vec<u64>,
    /// Moved out by this probe, and not touched since.
    is_out: Vec<bool>,
    random: u64,
    pageouts: BTreeMap<u64, u64>,
    touches: BTreeMap<u64, u64>,
    report: ProbeReport,
}

impl Probe {
    fn new() -> io::Result<Probe> {
        let mut run = PageRun::map(PAGES)?;
        for (number, page) in run.chunks_exact_mut(HOST_PAGE_SIZE).enumerate() {
            fill(page, number);
        }
        Ok(Probe {
            run,
            pagemap: File::open("/proc/self/pagemap")?,
            generations: vec![0; PAGES],
            is_out: vec![false; PAGES],
            random: 1,
            pageouts: BTreeMap::new(),
            touches: BTreeMap::new(),
            report: ProbeReport::default(),
        })
    }

    /// One of the pages that are out, or that are not.
    fn pick(&mut self, out: bool) -> Option<usize> {
        let all: Vec<usize> = (0..PAGES).filter(|&page| self.is_out[page] == out).collect();
        let at = (next(&mut self.random) % all.len().max(1) as u64) as usize;
        all.get(at).copied()
    }

    /// Changes a page, so that what is in swap is not what it has.
    fn change(&mut self, page: usize) {
        self.generations[page] += 1;
        let word = self.generations[page].to_ne_bytes();
        self.run[page * HOST_PAGE_SIZE..][..word.len()].copy_from_slice(&word);
    }

    /// In swap, and not in its cache.
    fn is_really_out(&self, page: usize) -> io::Result<bool> {
        let address = self.run[page * HOST_PAGE_SIZE..].as_ptr().addr() as u64;
        let mut room = [[0; ENTRY_BYTES]];
        let mut found = entries(&self.pagemap, address, &mut room)?;
        let is_swapped = found.next().is_some_and(|entry| entry.is_swapped());
        Ok(is_swapped && !self.run.is_page_resident(page))
    }

    fn page_out(&mut self) -> io::Result<()> {
        let Some(page) = self.pick(false) else { return Ok(()) };
        self.change(page);
        let start = Instant::now();
        self.run.page_out(page)?;
        let time = start.elapsed();
        if self.is_really_out(page)? {
            record(&mut self.pageouts, time);
            self.is_out[page] = true;
        } else {
            self.report.stayed += 1;
        }
        Ok(())
    }

    fn touch(&mut self) -> io::Result<()> {
        let Some(page) = self.pick(true) else { return Ok(()) };
        let was_out = self.is_really_out(page)?;
        let start = Instant::now();
        black_box(self.run[page * HOST_PAGE_SIZE]);
        let time = start.elapsed();
        self.is_out[page] = false;
        match was_out {
            true => record(&mut self.touches, time),
            false => self.report.not_out += 1,
        }
        let mut expected = [0; HOST_PAGE_SIZE];
        fill(&mut expected, page);
        expected[..8].copy_from_slice(&self.generations[page].to_ne_bytes());
        let is_right = self.run[page * HOST_PAGE_SIZE..][..HOST_PAGE_SIZE] == expected;
        self.report.wrong += u64::from(!is_right);
        Ok(())
    }
}

/// The contents of a page, with 0 as its first word.
fn fill(page: &mut [u8], number: usize) {
    let mut random = number as u64 + 1;
    if number % INCOMPRESSIBLE == INCOMPRESSIBLE - 1 {
        for word in page.chunks_exact_mut(8) {
            word.copy_from_slice(&next(&mut random).to_ne_bytes());
        }
    } else {
        let mut at = 0;
        while at < page.len() {
            let drawn = next(&mut random);
            let word = WORDS[(drawn % WORDS.len() as u64) as usize];
            let text = match drawn >> 32 & 7 {
                0 => format!("{word} {}\n", drawn >> 48),
                _ => format!("{word} "),
            };
            let size = text.len().min(page.len() - at);
            page[at..at + size].copy_from_slice(&text.as_bytes()[..size]);
            at += size;
        }
    }
    page[..8].fill(0);
}

/// The next of a series of random words: xorshift64 (Marsaglia, 2003), multiplied.
fn next(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    state.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

fn record(times: &mut BTreeMap<u64, u64>, time: Duration) {
    let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    *times.entry(bucket_end(ns)).or_default() += 1;
}

/// The last value of the bucket of a time, in ns: 8 of them in each power of two. The probe counts
/// in the cgroup that is measured: it has a map of the times that came, and no larger histogram.
fn bucket_end(ns: u64) -> u64 {
    let bits = u64::BITS - ns.leading_zeros();
    let low = bits.saturating_sub(4); // below the three bits after the first
    ns | ((1 << low) - 1)
}

fn listed(times: &BTreeMap<u64, u64>) -> Vec<[u64; 2]> {
    times.iter().map(|(&ns, &count)| [ns, count]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_an_eighth_of_a_power_of_two() {
        for (ns, end) in [(0, 0), (7, 7), (15, 15), (16, 17), (17, 17), (18, 19), (1000, 1023)] {
            assert_eq!(bucket_end(ns), end, "{ns}");
        }
        assert_eq!(bucket_end(u64::MAX), u64::MAX);
        let mut ends: Vec<u64> = (1024..2048).map(bucket_end).collect();
        ends.dedup();
        assert_eq!(ends.len(), 8);
    }

    #[test]
    fn pages_are_made_again_as_they_were() {
        let (mut first, mut again) = ([0; HOST_PAGE_SIZE], [1; HOST_PAGE_SIZE]);
        for number in 0..PAGES {
            fill(&mut first, number);
            fill(&mut again, number);
            assert_eq!(first, again);
        }
    }

    #[test]
    fn a_probe_ends_with_its_input() {
        let report = probe(io::empty()).unwrap();
        assert_eq!(report.wrong, 0);
    }
}
