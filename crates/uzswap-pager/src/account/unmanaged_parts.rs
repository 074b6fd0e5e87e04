//! Counts the anonymous memory of processes without a helper. Of a page that several processes
//! share since a fork, each counts its part (`Pss_Anon`).
//!
//! The kernel walks all mappings and pages of a process to report its part. So a scan asks for a
//! bounded time, first for processes whose part is unknown, then for the oldest parts.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// How long a scan may ask.
const TIME_MAX: Duration = Duration::from_millis(200);

/// How long a part is taken as unchanged: so many times as long as the kernel took to report it,
/// where the report took longer than this. The process may get COW copies meanwhile, so there is an
/// upper bound.
const REST_PART: u32 = 20;
const QUICK: Duration = Duration::from_millis(5);
const REST_MAX: Duration = Duration::from_secs(2);

/// How old a part may be while scans have no time to ask for it again.
const AGE_MAX: Duration = Duration::from_secs(4);

/// Pages that are not anonymous with which the part of a process is not asked for. All that it has
/// counts as its own.
const OTHERS_MAX: u64 = 1 << 20;

/// Looks at a forked process without time to ask for its part until all that it has counts as its
/// own. Before, it counts for nothing: mostly, its parent has the same pages.
const SCANS_UNQUERIED: u32 = 4;

/// A process at a scan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Seen {
    /// Its number, and when it started: numbers come again.
    pub(crate) process: (u32, u64),
    /// One of its threads that has its memory.
    pub(crate) thread: u32,
    /// Its anonymous memory, in bytes.
    pub(crate) anonymous_bytes: u64,
    /// Its resident pages of files and of shared memory.
    pub(crate) other_pages: u64,
    /// Whether it has not called exec(2) since it was forked.
    pub(crate) is_forked: bool,
    /// How many scans in a row have seen it.
    pub(crate) scans: u32,
}

/// The parts that are known.
#[derive(Debug, Default)]
pub(crate) struct Parts {
    known: BTreeMap<(u32, u64), Part>,
}

#[derive(Debug)]
struct Part {
    asked: Instant,
    took: Duration,
    /// Bytes of anonymous memory that are not in its part.
    of_others: u64,
}

impl Part {
    /// Whether it is taken as unchanged.
    fn is_new(&self, now: Instant) -> bool {
        self.took > QUICK && now < self.asked + (self.took * REST_PART).min(REST_MAX)
    }
}

impl Parts {
    /// Asks for parts of the processes of a scan by `ask`, which returns a process's part in bytes
    /// and how long that took.
    pub(crate) fn query(
        &mut self,
        now: Instant,
        seen: &[Seen],
        mut ask: impl FnMut(&Seen) -> (Option<u64>, Duration),
    ) {
        let all: BTreeSet<(u32, u64)> = seen.iter().map(|seen| seen.process).collect();
        self.known.retain(|process, _| all.contains(process));
        let is_due = |seen: &&Seen| {
            seen.other_pages <= OTHERS_MAX
                && !self.known.get(&seen.process).is_some_and(|part| part.is_new(now))
        };
        let mut due: Vec<&Seen> = seen.iter().filter(is_due).collect();
        due.sort_by_key(|seen| self.known.get(&seen.process).map(|part| part.asked));
        let mut time = Duration::ZERO;
        for seen in due {
            if time >= TIME_MAX {
                break;
            }
            let (part, took) = ask(seen);
            time += took;
            let of_others = part.map_or(0, |part| seen.anonymous_bytes.saturating_sub(part));
            self.known.insert(seen.process, Part { asked: now, took, of_others });
        }
    }

    /// Bytes of anonymous memory that count as a process's own.
    pub(crate) fn bytes_of(&self, now: Instant, seen: &Seen) -> u64 {
        match self.known.get(&seen.process) {
            Some(part) if now < part.asked + AGE_MAX => {
                seen.anonymous_bytes.saturating_sub(part.of_others)
            }
            None if seen.is_forked
                && seen.scans < SCANS_UNQUERIED
                && seen.other_pages <= OTHERS_MAX =>
            {
                0
            }
            _ => seen.anonymous_bytes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn seen(pid: u32, scans: u32) -> Seen {
        let process = (pid, 7);
        Seen { process, thread: pid, anonymous_bytes: 1000, other_pages: 0, is_forked: true, scans }
    }

    /// A scan of children that share all but 10 bytes: those that are asked, where each takes so
    /// long, and the bytes of all.
    fn scan(parts: &mut Parts, now: Instant, all: &[Seen], took: Duration) -> (Vec<u32>, u64) {
        let mut asked = Vec::new();
        parts.query(now, all, |seen| {
            asked.push(seen.thread);
            (Some(10), took)
        });
        (asked, all.iter().map(|seen| parts.bytes_of(now, seen)).sum())
    }

    #[test]
    fn forked_children_count_for_nothing_until_there_is_time_to_ask() {
        let start = Instant::now();
        let all = |scans: u32| -> Vec<Seen> { (0..90).map(|pid| seen(pid, scans)).collect() };
        let mut parts = Parts::default();
        // 50 in the first scan, the others in the second; those of the first are due again then.
        let (asked, bytes) = scan(&mut parts, start, &all(2), 4 * MS);
        assert_eq!((asked, bytes), ((0..50).collect(), 500));
        let (asked, bytes) = scan(&mut parts, start + 500 * MS, &all(3), 4 * MS);
        assert_eq!((asked, bytes), ((50..90).chain(0..10).collect(), 900));
        let (asked, bytes) = scan(&mut parts, start + 1000 * MS, &all(4), 4 * MS);
        assert_eq!((asked, bytes), ((10..50).chain(0..10).collect(), 900));
    }

    #[test]
    fn who_takes_long_is_not_uncounted_for_long() {
        let start = Instant::now();
        let all = |scans: u32| -> Vec<Seen> { (0..90).map(|pid| seen(pid, scans)).collect() };
        let mut parts = Parts::default();
        for (at, scans) in [(0, 2), (500, 3)] {
            let (asked, bytes) = scan(&mut parts, start + at * MS, &all(scans), 150 * MS);
            assert_eq!((asked.len(), bytes), (2, 20 * u64::from(scans - 1)));
        }
        let (_, bytes) = scan(&mut parts, start + 1000 * MS, &all(4), 150 * MS);
        assert_eq!(bytes, 6 * 10 + 84 * 1000);
        // An old part is none: two of the first were not asked again.
        let now = start + AGE_MAX;
        assert_eq!(parts.bytes_of(now - MS, &seen(0, 9)), 10);
        assert_eq!(parts.bytes_of(now, &seen(0, 9)), 1000);
    }

    #[test]
    fn a_part_that_took_long_rests() {
        let start = Instant::now();
        let mut parts = Parts::default();
        let mut asks = |after: u32, took| {
            !scan(&mut parts, start + after * MS, &[seen(1, 9)], took).0.is_empty()
        };
        let asked = [(0, 5 * MS), (1, 6 * MS), (120, MS), (121, MS), (122, MS)];
        assert_eq!(asked.map(|(after, took)| asks(after, took)), [true, true, false, true, true]);
        assert!(asks(123, 500 * MS) && !asks(2122, MS) && asks(2123, MS));
    }

    #[test]
    fn all_counts_of_what_was_not_forked_maps_much_or_cannot_be_asked() {
        let now = Instant::now();
        let mut parts = Parts::default();
        let another = Seen { is_forked: false, ..seen(1, 2) };
        let maps_much = Seen { other_pages: OTHERS_MAX + 1, ..seen(2, 2) };
        assert_eq!(parts.bytes_of(now, &another), 1000);
        assert_eq!(parts.bytes_of(now, &maps_much), 1000);
        parts.query(now, &[another, maps_much, seen(3, 2)], |seen| match seen.thread {
            2 => unreachable!(),
            _ => (None, MS),
        });
        assert_eq!([another, maps_much, seen(3, 2)].map(|it| parts.bytes_of(now, &it)), [1000; 3]);
        // Another process has its number.
        parts.query(now, &[seen(3, 2)], |_| (Some(10), MS));
        assert_eq!(parts.bytes_of(now, &seen(3, 2)), 10);
        let other = Seen { process: (3, 8), ..seen(3, 2) };
        assert_eq!(parts.bytes_of(now, &other), 0, "it was not asked");
        parts.query(now, &[], |_| unreachable!());
        assert!(parts.known.is_empty());
    }
}
