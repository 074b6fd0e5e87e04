//! Latencies of the store's operations: counts by time, kept by many threads at once.
//!
//! A time costs two atomic additions. The HDR histograms of `run` and of the command are finer, but
//! need a lock or a thread of their own.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

#[cfg(feature = "serde")]
use serde::{Deserialize, Serialize};

/// Buckets for each power of two of nanoseconds: the resolution is a quarter of a power of two, or
/// better.
const PER_POWER_BITS: u32 = 2;
const PER_POWER: u64 = 1 << PER_POWER_BITS; // 4

/// 2^40 ns are 18 minutes; what takes longer counts as that.
const POWERS: u32 = 40;
const BUCKETS: usize = ((POWERS - PER_POWER_BITS + 1) << PER_POWER_BITS) as usize;

/// Threads that count into one place share its cache lines: a few places for them.
const STRIPES: usize = 4;

/// Stores and loads of a thread of which one is timed: two looks at the clock take a load 4 % more.
const TIMED_EVERY: u32 = 16;

/// The time now, for one in so many calls of a thread.
#[inline]
pub(super) fn sample() -> Option<Instant> {
    thread_local! {
        static UNTIL_TIMED: Cell<u32> = const { Cell::new(0) };
    }
    let left = UNTIL_TIMED.get();
    UNTIL_TIMED.set(left.checked_sub(1).unwrap_or(TIMED_EVERY - 1));
    (left == 0).then(Instant::now)
}

/// The times of one verb.
#[derive(Debug)]
pub(super) struct Latency(Box<[Stripe; STRIPES]>);

#[derive(Debug)]
#[repr(align(128))]
struct Stripe {
    counts: [AtomicU64; BUCKETS],
    sum_ns: AtomicU64,
}

/// The times of a store's verbs.
#[derive(Debug, Default)]
pub(super) struct Latencies {
    pub(super) store: Latency,
    pub(super) load: Latency,
    pub(super) backing_load: Latency,
    pub(super) writeback: Latency,
}

/// How often one verb took how long, of those that were timed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
pub struct LatencyCounts {
    /// How many times were taken.
    pub count: u64,
    /// Their sum in nanoseconds.
    pub sum_ns: u64,
    /// How often it took less than so many nanoseconds and no less than those of the one before;
    /// only where it ever did.
    pub buckets: Vec<LatencyBucket>,
}

/// One of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
pub struct LatencyBucket {
    /// All of these times are below so many nanoseconds.
    pub below_ns: u64,
    /// How many there are.
    pub count: u64,
}

/// The times of all verbs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
#[cfg_attr(feature = "serde", serde(default))]
pub struct LatencyStats {
    /// Stores that were not refused, one in 16.
    pub store: LatencyCounts,
    /// Loads from memory, one in 16.
    pub load: LatencyCounts,
    /// Loads from the backing, one in 16.
    pub backing_load: LatencyCounts,
    /// Batches of up to 64 pages that were written back.
    pub writeback: LatencyCounts,
}

fn bucket_of(ns: u64) -> usize {
    if ns < PER_POWER {
        return ns as usize;
    }
    let power = ns.ilog2();
    if power >= POWERS {
        return BUCKETS - 1;
    }
    let part = (ns >> (power - PER_POWER_BITS)) & (PER_POWER - 1);
    ((u64::from(power - PER_POWER_BITS + 1) << PER_POWER_BITS) | part) as usize
}

/// The first time that is too long for a bucket.
fn end_of(bucket: usize) -> u64 {
    let next = bucket as u64 + 1;
    if next <= PER_POWER {
        return next;
    }
    let (power, part) = ((next >> PER_POWER_BITS) - 1, next & (PER_POWER - 1));
    (PER_POWER | part) << power
}

impl Default for Latency {
    fn default() -> Self {
        let stripe = |_| Stripe {
            counts: [const { AtomicU64::new(0) }; BUCKETS],
            sum_ns: AtomicU64::new(0),
        };
        Latency(Box::new(std::array::from_fn(stripe)))
    }
}

impl Latency {
    pub(super) fn record(&self, time: Duration) {
        let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let stripe = &self.0[own_stripe()];
        stripe.counts[bucket_of(ns)].fetch_add(1, Ordering::Relaxed);
        stripe.sum_ns.fetch_add(ns, Ordering::Relaxed);
    }

    /// Adds the times that another store counted.
    pub(super) fn add(&self, counts: &LatencyCounts) {
        let stripe = &self.0[own_stripe()];
        for bucket in &counts.buckets {
            let place = &stripe.counts[bucket_of(bucket.below_ns.saturating_sub(1))];
            place.fetch_add(bucket.count, Ordering::Relaxed);
        }
        stripe.sum_ns.fetch_add(counts.sum_ns, Ordering::Relaxed);
    }

    pub(super) fn counts(&self) -> LatencyCounts {
        let sum = |part: &dyn Fn(&Stripe) -> u64| self.0.iter().map(part).sum::<u64>();
        let buckets: Vec<LatencyBucket> = (0..BUCKETS)
            .map(|bucket| LatencyBucket {
                below_ns: end_of(bucket),
                count: sum(&|stripe| stripe.counts[bucket].load(Ordering::Relaxed)),
            })
            .filter(|bucket| bucket.count > 0)
            .collect();
        LatencyCounts {
            count: buckets.iter().map(|bucket| bucket.count).sum(),
            sum_ns: sum(&|stripe| stripe.sum_ns.load(Ordering::Relaxed)),
            buckets,
        }
    }

    pub(super) fn bytes() -> usize {
        size_of::<[Stripe; STRIPES]>()
    }
}

impl Latencies {
    pub(super) fn stats(&self) -> LatencyStats {
        LatencyStats {
            store: self.store.counts(),
            load: self.load.counts(),
            backing_load: self.backing_load.counts(),
            writeback: self.writeback.counts(),
        }
    }

    /// Adds what another store counted.
    pub(super) fn add(&self, stats: &LatencyStats) {
        self.store.add(&stats.store);
        self.load.add(&stats.load);
        self.backing_load.add(&stats.backing_load);
        self.writeback.add(&stats.writeback);
    }

    pub(super) fn bytes() -> usize {
        4 * Latency::bytes()
    }
}

impl LatencyStats {
    /// The verbs by name.
    pub fn verbs(&self) -> [(&'static str, &LatencyCounts); 4] {
        [
            ("store", &self.store),
            ("load", &self.load),
            ("backing_load", &self.backing_load),
            ("writeback", &self.writeback),
        ]
    }
}

impl LatencyCounts {
    /// A time that so many percent did not take longer than, in nanoseconds: the end of the bucket
    /// that has it. 0 where nothing was counted.
    pub fn percentile_ns(&self, percent: f64) -> u64 {
        let wanted = (self.count as f64 * percent / 100.0).ceil().max(1.0) as u64;
        let mut seen = 0;
        let reaches = |bucket: &&LatencyBucket| {
            seen += bucket.count;
            seen >= wanted
        };
        self.buckets.iter().find(reaches).map_or(0, |bucket| bucket.below_ns)
    }

    /// Counts since an earlier snapshot of the same counts; never below 0, whatever the earlier
    /// ones are.
    #[must_use]
    pub fn since(&self, earlier: &LatencyCounts) -> LatencyCounts {
        let before = |bucket: &LatencyBucket| {
            let at = earlier.buckets.binary_search_by_key(&bucket.below_ns, |b| b.below_ns);
            at.map_or(0, |at| earlier.buckets[at].count)
        };
        let buckets: Vec<LatencyBucket> = self
            .buckets
            .iter()
            .map(|bucket| LatencyBucket {
                below_ns: bucket.below_ns,
                count: bucket.count.saturating_sub(before(bucket)),
            })
            .filter(|bucket| bucket.count > 0)
            .collect();
        LatencyCounts {
            count: buckets.iter().fold(0, |sum, bucket| sum.saturating_add(bucket.count)),
            sum_ns: self.sum_ns.saturating_sub(earlier.sum_ns),
            buckets,
        }
    }
}

impl<'a> std::iter::Sum<&'a LatencyCounts> for LatencyCounts {
    /// The counts of all together.
    fn sum<I: Iterator<Item = &'a LatencyCounts>>(all: I) -> LatencyCounts {
        let mut sum = LatencyCounts::default();
        for counts in all {
            sum.count += counts.count;
            sum.sum_ns = sum.sum_ns.saturating_add(counts.sum_ns);
            for bucket in &counts.buckets {
                match sum.buckets.binary_search_by_key(&bucket.below_ns, |it| it.below_ns) {
                    Ok(place) => sum.buckets[place].count += bucket.count,
                    Err(place) => sum.buckets.insert(place, *bucket),
                }
            }
        }
        sum
    }
}

fn own_stripe() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static OWN: usize = NEXT.fetch_add(1, Ordering::Relaxed) % STRIPES;
    }
    OWN.with(|own| *own)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::SplitMix64;

    #[test]
    fn every_time_is_in_the_bucket_that_says_so() {
        let mut times: Vec<u64> = (0..POWERS)
            .flat_map(|power| (0..9).map(move |part| (1_u64 << power) + part * (1 << power) / 8))
            .collect();
        times.extend(0..300);
        times.sort_unstable();
        for ns in times.into_iter().filter(|&ns| ns < 1 << POWERS) {
            let bucket = bucket_of(ns);
            let start = bucket.checked_sub(1).map_or(0, end_of);
            assert!((start..end_of(bucket)).contains(&ns), "{ns} in {start}..{}", end_of(bucket));
            assert!(end_of(bucket) <= ns + ns / 4 + 1, "{ns}");
        }
        assert_eq!((bucket_of(u64::MAX), end_of(BUCKETS - 1)), (BUCKETS - 1, 1 << POWERS));
    }

    #[test]
    fn one_in_so_many_is_timed() {
        let timed = || (0..160).filter(|_| sample().is_some()).count();
        assert_eq!(std::thread::spawn(timed).join().unwrap(), 10);
    }

    #[test]
    fn percentiles_are_of_all_threads() {
        let latency = Latency::default();
        std::thread::scope(|scope| {
            for thread in 0..8 {
                let latency = &latency;
                scope.spawn(move || {
                    for n in 0..100_u64 {
                        latency.record(Duration::from_nanos(100 * thread + n));
                    }
                });
            }
        });
        let counts = latency.counts();
        assert_eq!((counts.count, counts.sum_ns), (800, 799 * 800 / 2));
        for (percent, ns) in [(0.0, 1), (50.0, 448), (99.0, 896), (100.0, 896)] {
            assert_eq!(counts.percentile_ns(percent), ns, "{percent} %");
        }
        assert_eq!(LatencyCounts::default().percentile_ns(50.0), 0);
    }

    #[test]
    fn counts_are_subtracted_and_added_time_by_time() {
        let latency = Latency::default();
        let mut words = SplitMix64::new(7);
        let mut times = |count: u32| -> Vec<u64> {
            let mut next = || {
                let word = words.next_word();
                (word >> 33) >> (word & 15)
            };
            (0..count).map(|_| next()).collect()
        };
        let record = |latency: &Latency, times: &[u64]| {
            times.iter().for_each(|&ns| latency.record(Duration::from_nanos(ns)));
        };
        let (first, second) = (times(500), times(300));
        record(&latency, &first);
        let earlier = latency.counts();
        record(&latency, &second);
        let alone = Latency::default();
        record(&alone, &second);
        let later = latency.counts();
        assert_eq!(later.since(&earlier), alone.counts());
        assert_eq!(later.since(&LatencyCounts::default()), later);
        assert_eq!(later.since(&later), LatencyCounts::default());
        assert_eq!([&earlier, &alone.counts()].into_iter().sum::<LatencyCounts>(), later);
        // Of another store: nothing below 0.
        assert_eq!(earlier.since(&later), LatencyCounts::default());
    }

    #[test]
    fn four_verbs_take_20_kib() {
        // 156 counts and a sum, on cache lines of their own: 1280 bytes, for each of four places.
        assert_eq!((Latency::bytes(), Latencies::bytes()), (5 << 10, 20 << 10));
    }
}
