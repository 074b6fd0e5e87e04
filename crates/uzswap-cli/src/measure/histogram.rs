//! Latencies: percentiles, and power-of-two histograms in the form of bpftrace.
//!
//! Values are kept to three significant digits, and no kept value crosses a power of two: the
//! picture's counts are exact. One thread records, in 224 KiB. The store counts for all threads at
//! once, and a run in 31 KiB; both are coarser.

use std::iter::Sum;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use uzswap::zswap::LatencyCounts;

/// The longest latency that is distinguished from a longer one, in nanoseconds.
const NS_MAX: u64 = 1 << 36; // 68.7 s

/// Latencies of one kind of operation, in nanoseconds.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(into = "Vec<(u64, u64)>", from = "Vec<(u64, u64)>")]
pub struct Latencies(Histogram<u64>);

impl Latencies {
    /// None yet. Its memory is touched already: recording adds nothing to the resident size.
    pub fn new() -> Latencies {
        let mut histogram =
            Histogram::new_with_bounds(1, NS_MAX, 3).expect("3 digits up to 2^36 is in range");
        // Fresh memory is not resident until written to.
        histogram.clear();
        Latencies(histogram)
    }

    /// Adds one operation.
    pub fn record(&mut self, ns: u64) {
        self.0.saturating_record(ns);
    }

    /// Percentiles and buckets.
    pub fn summary(&self) -> LatencySummary {
        LatencySummary {
            count: self.0.len(),
            mean: self.0.mean(),
            min: self.0.min(),
            p50: self.0.value_at_quantile(0.50),
            p90: self.0.value_at_quantile(0.90),
            p99: self.0.value_at_quantile(0.99),
            max: self.0.max(),
            buckets: powers_of_two(
                self.0
                    .iter_recorded()
                    .map(|step| (step.value_iterated_to(), step.count_since_last_iteration())),
            ),
        }
    }
}

impl Default for Latencies {
    fn default() -> Self {
        Latencies::new()
    }
}

impl<'a> Sum<&'a Latencies> for Latencies {
    fn sum<I: Iterator<Item = &'a Latencies>>(parts: I) -> Latencies {
        let mut all = Latencies::new();
        parts.for_each(|part| all.0.add(&part.0).expect("all have the same bounds"));
        all
    }
}

impl From<Latencies> for Vec<(u64, u64)> {
    /// Values and how often each came.
    fn from(latencies: Latencies) -> Self {
        let recorded = latencies.0.iter_recorded();
        recorded.map(|step| (step.value_iterated_to(), step.count_at_value())).collect()
    }
}

impl From<Vec<(u64, u64)>> for Latencies {
    fn from(recorded: Vec<(u64, u64)>) -> Self {
        let mut latencies = Latencies::new();
        for (ns, count) in recorded {
            latencies.0.saturating_record_n(ns, count);
        }
        latencies
    }
}

/// Latencies in figures.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LatencySummary {
    /// Operations.
    pub count: u64,
    /// Mean.
    pub mean: f64,
    /// Shortest.
    pub min: u64,
    /// Median.
    pub p50: u64,
    /// Nine in ten took no longer.
    pub p90: u64,
    /// 99 in a hundred took no longer.
    pub p99: u64,
    /// Longest.
    pub max: u64,
    /// Counts per power of two, without gaps.
    pub buckets: Vec<Bucket>,
}

/// Some latencies, in nanoseconds.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Percentiles {
    /// Median.
    pub p50: u64,
    /// Nine in ten.
    pub p90: u64,
    /// 99 in a hundred.
    pub p99: u64,
    /// Longest.
    pub max: u64,
}

impl LatencySummary {
    /// The figures of one run: the columns of a CSV.
    pub fn percentiles(&self) -> Percentiles {
        let &LatencySummary { p50, p90, p99, max, .. } = self;
        Percentiles { p50, p90, p99, max }
    }
}

impl Percentiles {
    /// The name of each, and the latency.
    pub fn columns(&self) -> [(&'static str, u64); 4] {
        [("p50", self.p50), ("p90", self.p90), ("p99", self.p99), ("max", self.max)]
    }
}

/// Operations that took at least `from_ns` and less than `to_ns`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bucket {
    /// Lower bound: 0, or a power of two.
    pub from_ns: u64,
    /// Upper bound, a power of two.
    pub to_ns: u64,
    /// How many.
    pub count: u64,
}

/// Buckets from the lowest to the highest power of two that is in use, without gaps. `times` are
/// times and how often each came, the shortest first.
fn powers_of_two(times: impl Iterator<Item = (u64, u64)>) -> Vec<Bucket> {
    let mut buckets: Vec<Bucket> = Vec::new();
    for (ns, count) in times {
        let from_ns = if ns < 2 { 0 } else { 1_u64 << ns.ilog2() };
        while let Some(last) = buckets.last()
            && last.to_ns < from_ns
        {
            let from_ns = last.to_ns;
            buckets.push(Bucket { from_ns, to_ns: from_ns * 2, count: 0 });
        }
        match buckets.last_mut() {
            Some(last) if last.from_ns == from_ns => last.count += count,
            _ => {
                let to_ns = from_ns.saturating_mul(2).max(2);
                buckets.push(Bucket { from_ns, to_ns, count });
            }
        }
    }
    buckets
}

/// The same of counts by time: all times of a count are in the power of two of the longest one.
pub fn powers_of_two_of(counts: &LatencyCounts) -> Vec<Bucket> {
    powers_of_two(counts.buckets.iter().map(|it| (it.below_ns.saturating_sub(1), it.count)))
}

/// The row of a bucket, as bpftrace prints it: its bounds, its count, and a bar of at most `width`
/// that is full for `count_max`.
pub fn draw_row(bucket: &Bucket, count_max: u64, width: usize) -> String {
    let length = (u128::from(bucket.count) * width as u128)
        .checked_div(u128::from(count_max))
        .unwrap_or(0) as usize; // <= width
    let bounds = format!("[{}, {})", power_name(bucket.from_ns), power_name(bucket.to_ns));
    format!("{bounds:<13}{:>9} |{:<width$}|", bucket.count, "@".repeat(length.min(width)))
}

/// A power of two as bpftrace writes it: 512, 1K, 64K, 1M.
fn power_name(value: u64) -> String {
    const SUFFIXES: [&str; 5] = ["", "K", "M", "G", "T"];
    let step = value.checked_ilog2().map_or(0, |bit| bit / 10) as usize;
    let step = step.min(SUFFIXES.len() - 1);
    format!("{}{}", value >> (10 * step), SUFFIXES[step])
}

#[cfg(test)]
mod tests {
    use super::*;
    use uzswap::zswap::LatencyBucket;

    fn recorded(values: &[u64]) -> Latencies {
        let mut latencies = Latencies::new();
        values.iter().for_each(|&ns| latencies.record(ns));
        latencies
    }

    #[test]
    fn buckets_are_powers_of_two_without_gaps() {
        let buckets = recorded(&[0, 1, 2, 3, 1023, 1024, 8191, 8192]).summary().buckets;
        let bounds: Vec<(u64, u64)> = buckets.iter().map(|b| (b.from_ns, b.to_ns)).collect();
        assert_eq!((bounds[0], bounds[1]), ((0, 2), (2, 4)));
        assert!(bounds.windows(2).all(|pair| pair[0].1 == pair[1].0));
        let counts: Vec<u64> = buckets.iter().map(|bucket| bucket.count).collect();
        assert_eq!(counts, [2, 2, 0, 0, 0, 0, 0, 0, 0, 1, 1, 0, 1, 1]);

        let bucket = |(below_ns, count)| LatencyBucket { below_ns, count };
        let times = [(1, 1), (2, 2), (5, 4), (8, 8), (33, 16), (u64::MAX, 32)];
        let counts = LatencyCounts { buckets: times.map(bucket).to_vec(), ..Default::default() };
        let found = powers_of_two_of(&counts);
        let found: Vec<_> = found.iter().map(|it| (it.from_ns, it.to_ns, it.count)).collect();
        let first = [(0, 2, 3), (2, 4, 0), (4, 8, 12), (8, 16, 0), (16, 32, 0), (32, 64, 16)];
        assert_eq!(found[..6], first);
        assert_eq!((found.len(), found[63]), (64, (1 << 63, u64::MAX, 32)));
    }

    #[test]
    fn a_value_next_to_a_power_of_two_stays_on_its_side() {
        for bit in 1..36 {
            let edge = 1_u64 << bit;
            let buckets = recorded(&[edge - 1, edge]).summary().buckets;
            assert_eq!(buckets.len(), 2, "2^{bit}: {buckets:?}");
            assert_eq!(buckets[1].from_ns, edge);
        }
    }

    #[test]
    fn the_picture_is_bpftraces() {
        let bucket = |from_ns, count| Bucket { from_ns, to_ns: from_ns * 2, count };
        assert_eq!(draw_row(&bucket(4096, 50), 100, 8), "[4K, 8K)            50 |@@@@    |");
        assert_eq!(draw_row(&bucket(512, 100), 100, 8), "[512, 1K)          100 |@@@@@@@@|");
        assert_eq!(draw_row(&bucket(1 << 20, 0), 100, 8), "[1M, 2M)             0 |        |");
        assert_eq!(draw_row(&bucket(1 << 19, 0), 0, 4), "[512K, 1M)           0 |    |");
    }

    #[test]
    fn percentiles_and_extremes() {
        let summary = recorded(&(1..=1000).collect::<Vec<u64>>()).summary();
        assert_eq!((summary.min, summary.p50, summary.p90), (1, 500, 900));
        assert_eq!((summary.p99, summary.max, summary.count), (990, 1000, 1000));
        assert!((summary.mean - 500.5).abs() < 0.01);
    }

    #[test]
    fn a_histogram_survives_the_way_to_another_process() {
        let here = recorded(&[1, 500, 500, 70_000, 3_000_000, u64::MAX]);
        let text = serde_json::to_string(&here).unwrap();
        let there: Latencies = serde_json::from_str(&text).unwrap();
        assert_eq!(there.summary(), here.summary());
        let both = [here, there].iter().sum::<Latencies>().summary();
        assert_eq!((both.count, both.p50), (12, 500));
    }
}
