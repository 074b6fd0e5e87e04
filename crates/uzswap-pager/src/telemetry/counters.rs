//! What a run did: counts, and how long programs waited.
//!
//! Reports show waits to a hundredth, from an HDR histogram under a lock: a fault takes some
//! microseconds anyway. The store's own counts of latencies are coarser, and need no lock.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use crate::locks::{FAULT_TIMES, Lock};
use uzswap::zswap::{LatencyBucket, LatencyCounts};

/// Buckets for each power of two of nanoseconds in reports: times are reported to a
/// sixteenth. The histogram has more of them.
const PER_POWER_BITS: u32 = 4;

/// Counts while programs run.
#[derive(Debug)]
pub(crate) struct Counters {
    fresh: AtomicU64,
    restored: AtomicU64,
    staging_hits: AtomicU64,
    stored: AtomicU64,
    moved: AtomicU64,
    waited: AtomicU64,
    over_limit: AtomicU64,
    freed: AtomicU64,
    freeing_ns: AtomicU64,
    /// Programs that were ended for lack of memory.
    kills: AtomicU64,
    waits: Lock<Waits, FAULT_TIMES>,
}

/// Faults since the beginning.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Faults {
    pub(crate) all: u64,
    /// What they took together.
    pub(crate) sum_ns: u64,
    /// Of those, such that waited for room.
    pub(crate) waited: u64,
    /// Of those, the ones that were served over the limit, or late.
    pub(crate) over_limit: u64,
}

#[derive(Debug, Clone)]
struct Waits {
    histogram: Histogram<u64>,
    sum_ns: u64,
}

/// How long faults took, in nanoseconds: from when they were read to when the page was there.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct FaultTimes {
    /// Faults.
    pub count: u64,
    /// Half took at most this long.
    pub p50_ns: u64,
    /// 99 of 100 did.
    pub p99_ns: u64,
    /// The longest.
    pub max_ns: u64,
    /// All together: threads waited so long.
    pub sum_ns: u64,
}

/// What was done, in pages.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PagerCounts {
    /// Filled with zeros, at a first touch of registered memory.
    pub fresh_pages: u64,
    /// Brought back from the store.
    pub restored_pages: u64,
    /// Staged pages that a fault brought back: the field of JSON keeps its name.
    #[serde(rename = "rescued_pages")]
    pub staging_hits: u64,
    /// Put into the store.
    pub stored_pages: u64,
    /// Staged.
    pub moved_pages: u64,
}

/// Freeing pages that no program needs any more: it unmapped them, or has them back.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct FreeTimes {
    /// Pages that left the store so.
    pub pages: u64,
    /// Nanoseconds that it took.
    pub sum_ns: u64,
}

impl Counters {
    pub(crate) fn new() -> Counters {
        let histogram = Histogram::new_with_bounds(1, 1 << 36, 2).expect("2 digits up to 68 s");
        Counters {
            fresh: AtomicU64::new(0),
            restored: AtomicU64::new(0),
            staging_hits: AtomicU64::new(0),
            stored: AtomicU64::new(0),
            moved: AtomicU64::new(0),
            waited: AtomicU64::new(0),
            over_limit: AtomicU64::new(0),
            freed: AtomicU64::new(0),
            freeing_ns: AtomicU64::new(0),
            kills: AtomicU64::new(0),
            waits: Lock::new(Waits { histogram, sum_ns: 0 }),
        }
    }

    pub(crate) fn fault(&self, waited: Duration) {
        let ns = u64::try_from(waited.as_nanos()).unwrap_or(u64::MAX);
        let mut waits = self.waits.lock();
        waits.histogram.saturating_record(ns);
        waits.sum_ns = waits.sum_ns.saturating_add(ns);
    }

    /// A fault has waited for headroom and was served, maybe over the limit.
    pub(crate) fn waited_for_room(&self, is_over_limit: bool) {
        self.waited.fetch_add(1, Ordering::Relaxed);
        self.over_limit.fetch_add(u64::from(is_over_limit), Ordering::Relaxed);
    }

    pub(crate) fn faults(&self) -> Faults {
        let waits = self.waits.lock();
        let [waited, over_limit] =
            [&self.waited, &self.over_limit].map(|it| it.load(Ordering::Relaxed));
        Faults { all: waits.histogram.len(), sum_ns: waits.sum_ns, waited, over_limit }
    }

    pub(crate) fn fresh(&self, pages: usize) {
        self.fresh.fetch_add(pages as u64, Ordering::Relaxed);
    }

    pub(crate) fn restored(&self, restored: usize, staging_hits: usize) {
        self.restored.fetch_add(restored as u64, Ordering::Relaxed);
        self.staging_hits.fetch_add(staging_hits as u64, Ordering::Relaxed);
    }

    pub(crate) fn stored(&self, pages: usize) {
        self.stored.fetch_add(pages as u64, Ordering::Relaxed);
    }

    pub(crate) fn moved(&self, pages: usize) {
        self.moved.fetch_add(pages as u64, Ordering::Relaxed);
    }

    /// Pages that left the store, and the time it took.
    pub(crate) fn freed(&self, pages: u64, time: Duration) {
        self.freed.fetch_add(pages, Ordering::Relaxed);
        self.freeing_ns.fetch_add(time.as_nanos() as u64, Ordering::Relaxed);
    }

    /// A program was ended for lack of memory.
    pub(crate) fn killed(&self) {
        self.kills.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn kills(&self) -> u64 {
        self.kills.load(Ordering::Relaxed)
    }

    pub(crate) fn frees(&self) -> FreeTimes {
        let [pages, sum_ns] = [&self.freed, &self.freeing_ns].map(|it| it.load(Ordering::Relaxed));
        FreeTimes { pages, sum_ns }
    }

    pub(crate) fn counts(&self) -> PagerCounts {
        let get = |count: &AtomicU64| count.load(Ordering::Relaxed);
        PagerCounts {
            fresh_pages: get(&self.fresh),
            restored_pages: get(&self.restored),
            staging_hits: get(&self.staging_hits),
            stored_pages: get(&self.stored),
            moved_pages: get(&self.moved),
        }
    }

    /// How long faults took, and how many took how long.
    pub(crate) fn times_and_counts(&self) -> (FaultTimes, LatencyCounts) {
        // A copy: a fault waits for this lock.
        let waits = self.waits.lock().clone();
        (waits.times(), waits.counts())
    }
}

impl Waits {
    fn times(&self) -> FaultTimes {
        FaultTimes {
            count: self.histogram.len(),
            p50_ns: self.histogram.value_at_quantile(0.50),
            p99_ns: self.histogram.value_at_quantile(0.99),
            max_ns: self.histogram.max(),
            sum_ns: self.sum_ns,
        }
    }

    fn counts(&self) -> LatencyCounts {
        let mut buckets: Vec<LatencyBucket> = Vec::new();
        for step in self.histogram.iter_recorded() {
            let below_ns = end_of_bucket(step.value_iterated_to());
            let count = step.count_at_value();
            match buckets.last_mut() {
                Some(last) if last.below_ns == below_ns => last.count += count,
                _ => buckets.push(LatencyBucket { below_ns, count }),
            }
        }
        LatencyCounts { count: self.histogram.len(), sum_ns: self.sum_ns, buckets }
    }
}

/// The first time that is too long for the bucket of this one.
fn end_of_bucket(ns: u64) -> u64 {
    let part = ns.max(1).ilog2().saturating_sub(PER_POWER_BITS);
    ((ns >> part) + 1) << part
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_event_has_a_counter_of_its_own() {
        let meter = Counters::new();
        meter.fresh(1);
        meter.restored(20, 300);
        meter.stored(4_000);
        meter.moved(50_000);
        meter.freed(6, Duration::from_nanos(70));
        meter.freed(1, Duration::from_nanos(7));
        let expected = PagerCounts {
            fresh_pages: 1,
            restored_pages: 20,
            staging_hits: 300,
            stored_pages: 4_000,
            moved_pages: 50_000,
        };
        assert_eq!(meter.counts(), expected);
        assert_eq!(meter.frees(), FreeTimes { pages: 7, sum_ns: 77 });
        assert_eq!(meter.kills(), 0);
        meter.killed();
        assert_eq!(meter.kills(), 1);
        [true, false, false].into_iter().for_each(|is_over| meter.waited_for_room(is_over));
        meter.fault(Duration::from_nanos(500));
        let Faults { all, sum_ns, waited, over_limit } = meter.faults();
        assert_eq!((all, sum_ns, waited, over_limit), (1, 500, 3, 1));
    }

    #[test]
    fn of_a_hundred_faults_half_and_all_but_one_took_at_most_so_long() {
        let meter = Counters::new();
        for ns in 1..=100 {
            meter.fault(Duration::from_nanos(ns));
        }
        let (times, _) = meter.times_and_counts();
        let expected = FaultTimes { count: 100, p50_ns: 50, p99_ns: 99, max_ns: 100, sum_ns: 5050 };
        assert_eq!(times, expected);
    }

    #[test]
    fn every_fault_is_in_the_bucket_that_says_so() {
        let meter = Counters::new();
        let times: Vec<u64> = (0..36)
            .flat_map(|power| [0, 1, 37, 63].map(|part| (64 + part) << power >> 6))
            .collect();
        for &ns in &times {
            meter.fault(Duration::from_nanos(ns));
        }
        let (faults, counts) = meter.times_and_counts();
        assert_eq!((faults.count, counts.count), (times.len() as u64, times.len() as u64));
        assert_eq!(counts.sum_ns, times.iter().sum::<u64>());
        assert_eq!(faults.sum_ns, counts.sum_ns);
        let mut start = 0;
        for bucket in &counts.buckets {
            let LatencyBucket { below_ns, count } = *bucket;
            let inside = times.iter().filter(|&&ns| (start..below_ns).contains(&ns)).count();
            assert_eq!(inside as u64, count, "{start} to {below_ns}");
            start = below_ns;
        }
        for ns in times {
            let end = end_of_bucket(ns);
            assert!(ns < end && end <= ns + ns / 16 + 1, "{ns} is below {end}");
            // A bucket is in one power of two, as Prometheus' are.
            assert_eq!((end - 1).ilog2(), ns.ilog2());
        }
        meter.fault(Duration::MAX);
        let (faults, counts) = meter.times_and_counts();
        assert!(counts.buckets.last().unwrap().below_ns > faults.max_ns);
        assert_eq!(counts.sum_ns, u64::MAX);
    }
}
