//! A machine's sample under a setting of the controller that decides what is compressed.
//!
//! The controller is the one of Lagar-Cavilla and others, Software-Defined Far Memory in
//! Warehouse-Scale Computers, ASPLOS 2019, DOI 10.1145/3297858.3304053. For each job and interval:
//!
//! ```text
//!  histograms of the interval --> best threshold: the smallest age whose promotions are within the
//!                                 objective
//!  best thresholds so far     --> their K-th percentile, or the last one where that is larger
//!                                 = the threshold of the next interval
//!  younger than the warm-up   --> nothing is compressed
//! ```
//!
//! - W1: an outcome depends on the machine and the parameters alone. Sums are of whole numbers, so
//!   that no order of machines or threads changes them.

use std::collections::{BTreeMap, HashMap};

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use crate::folder::{FolderError, SampleFiles};
use crate::saving::{Lengths, Prices, Saving};
use crate::table::{IntervalRow, LIST_MAX, NotATable, PageRow, ReplayRow, decode};

/// The objective of the paper: 0.2 % of the working set a minute.
pub const SLO_PPM: u64 = 2000;

/// The quantile of promotion rates that has to meet it.
const QUANTILE: f64 = 0.98;

/// Promotion rates are kept up to this: the working set, a thousand times a minute.
const PPM_MAX: u64 = 1_000_000_000;

/// A setting of the controller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Parameters {
    /// Percentile of past best thresholds that is kept, 0 to 100.
    pub threshold_percentile: u8,
    /// Time of each job in which nothing is compressed, in seconds.
    pub warm_up_seconds: u64,
    /// Promotions that the objective allows, in millionths of the working set a minute.
    pub slo_ppm: u64,
    /// The compressor.
    pub lengths: Lengths,
}

impl Default for Parameters {
    /// The setting of the paper before it was tuned.
    fn default() -> Parameters {
        Parameters {
            threshold_percentile: 98,
            warm_up_seconds: 600,
            slo_ppm: SLO_PPM,
            lengths: Lengths::default(),
        }
    }
}

impl Lengths {
    /// Nanoseconds to store and to load a page: medians of three runs of `uzswap compare --zpool
    /// zsmalloc` on its workload, 2026-11-30, AMD EPYC, release build. Its two processors had a
    /// load of 11: the 90th percentiles are about twice the medians.
    fn costs(self) -> (u64, u64) {
        match self {
            Lengths::Lz4 => (4_760, 1_230),
            Lengths::LzoRle => (4_760, 2_230),
            Lengths::Zstd => (14_940, 5_310),
        }
    }
}

/// A process in its intervals.
#[derive(Debug, Clone, Default)]
struct Job {
    intervals: Vec<Interval>,
    saving: Saving,
}

/// What the controller sees of an interval.
#[derive(Debug, Clone)]
struct Interval {
    milliseconds: u64,
    working_set_pages: u64,
    cold_pages: Vec<u64>,
    promoted_pages: Vec<u64>,
}

/// The sample of one machine, as the controller needs it.
#[derive(Debug, Clone)]
pub struct Machine {
    host: u64,
    run: u64,
    jobs: Vec<Job>,
    /// Of all sampled pages, for jobs without any; none where no page was sampled.
    saving: Option<Saving>,
    /// 1 of a sample that nothing has ended, as far as its files are known.
    samples_without_end: u64,
}

impl Machine {
    /// Reads the files of a sample.
    ///
    /// # Errors
    ///
    /// [`FolderError`], which names the file.
    pub fn read(files: &SampleFiles, lengths: Lengths) -> Result<Machine, FolderError> {
        let (intervals, pages) = files.rows()?;
        let samples_without_end = u64::from(!files.has_end()?);
        Ok(Machine { samples_without_end, ..Machine::new(intervals, &pages, lengths) })
    }

    /// Memory that it takes, in bytes, without what the allocator adds.
    pub fn memory_bytes(&self) -> usize {
        let of_interval = |it: &Interval| {
            let ages = it.cold_pages.capacity() + it.promoted_pages.capacity();
            size_of::<Interval>() + ages * size_of::<u64>()
        };
        let of_job =
            |job: &Job| size_of::<Job>() + job.intervals.iter().map(of_interval).sum::<usize>();
        size_of::<Machine>() + self.jobs.iter().map(of_job).sum::<usize>()
    }

    /// A machine from the bytes of its files `intervals`, in the order of their parts, and, where
    /// there is one, `pages`.
    ///
    /// # Errors
    ///
    /// [`NotATable`].
    pub fn from_parquet(
        intervals: impl IntoIterator<Item = Vec<u8>>,
        pages: Option<Vec<u8>>,
        lengths: Lengths,
    ) -> Result<Machine, NotATable> {
        let pages: Vec<PageRow> = pages.map_or(Ok(Vec::new()), decode)?;
        let mut rows = Vec::new();
        for part in intervals {
            rows.append(&mut decode(part)?);
        }
        Ok(Machine::new(rows, &pages, lengths))
    }

    /// A machine from the rows of its tables. Rows are those of one sample, in the order of time.
    pub fn new(intervals: Vec<IntervalRow>, pages: &[PageRow], lengths: Lengths) -> Machine {
        let (host, run) = intervals.first().map_or((0, 0), |row| (row.host, row.run));
        let mut jobs: BTreeMap<u64, Job> = BTreeMap::new();
        for row in intervals {
            let (Some(process), Some(working_set_pages)) = (row.process, row.working_set_pages)
            else {
                continue; // the machine's own
            };
            let milliseconds = (row.seconds * 1000.0).clamp(1.0, 1e9) as u64;
            jobs.entry(process).or_default().intervals.push(Interval {
                milliseconds,
                working_set_pages,
                cold_pages: row.cold_pages,
                promoted_pages: row.promoted_pages,
            });
        }
        let (prices, mut all) = (Prices::default(), Saving::default());
        let mut by_process: HashMap<u64, Saving> = HashMap::new();
        for page in pages {
            let saving = prices.of(page, lengths);
            all.add(saving);
            by_process.entry(page.process).or_default().add(saving);
        }
        for (process, job) in &mut jobs {
            job.saving = by_process.get(process).copied().unwrap_or(all);
        }
        let saving = (all.pages > 0).then_some(all);
        let jobs = jobs.into_values().collect();
        Machine { host, run, jobs, saving, samples_without_end: 0 }
    }
}

/// The result of a replay of one or more machines. serde carries it to another process, whole.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(test, derive(PartialEq))]
pub struct Outcome {
    /// Host and run of the one machine; none of a sum.
    sample: Option<(u64, u64)>,
    /// Samples that nothing has ended.
    pub(crate) samples_without_end: u64,
    machines: u64,
    jobs: u64,
    active_intervals: u64,
    cold_page_ms: u64,
    far_page_ms: u64,
    promoted_pages: u64,
    cpu_ns: u64,
    /// The time that the machines were sampled, summed.
    machine_ms: u64,
    /// Saved bytes times time; none where no page was sampled.
    saved_byte_ms: Option<u128>,
    #[serde(with = "recorded")]
    promotion_ppm: Histogram<u64>,
}

/// No rate.
fn no_rates() -> Histogram<u64> {
    Histogram::new_with_bounds(1, PPM_MAX, 3).expect("the bounds are constants")
}

/// A histogram as pairs of a value and its count.
mod recorded {
    use hdrhistogram::Histogram;
    use serde::de::{Deserialize, Deserializer, Error};
    use serde::ser::Serializer;

    pub(super) fn serialize<S: Serializer>(it: &Histogram<u64>, to: S) -> Result<S::Ok, S::Error> {
        let pairs = it.iter_recorded().map(|at| (at.value_iterated_to(), at.count_at_value()));
        to.collect_seq(pairs)
    }

    pub(super) fn deserialize<'a, D: Deserializer<'a>>(of: D) -> Result<Histogram<u64>, D::Error> {
        let mut histogram = super::no_rates();
        for (value, count) in Vec::<(u64, u64)>::deserialize(of)? {
            histogram.record_n(value, count).map_err(D::Error::custom)?;
        }
        Ok(histogram)
    }
}

impl Outcome {
    /// Of no machine.
    pub fn new() -> Outcome {
        Outcome {
            sample: None,
            samples_without_end: 0,
            machines: 0,
            jobs: 0,
            active_intervals: 0,
            cold_page_ms: 0,
            far_page_ms: 0,
            promoted_pages: 0,
            cpu_ns: 0,
            machine_ms: 0,
            saved_byte_ms: None,
            promotion_ppm: no_rates(),
        }
    }

    /// Adds another one's machines.
    pub fn add(&mut self, other: &Outcome) {
        let sum = u64::saturating_add;
        self.samples_without_end = sum(self.samples_without_end, other.samples_without_end);
        self.machines = sum(self.machines, other.machines);
        self.jobs = sum(self.jobs, other.jobs);
        self.active_intervals = sum(self.active_intervals, other.active_intervals);
        self.cold_page_ms = sum(self.cold_page_ms, other.cold_page_ms);
        self.far_page_ms = sum(self.far_page_ms, other.far_page_ms);
        self.promoted_pages = sum(self.promoted_pages, other.promoted_pages);
        self.cpu_ns = sum(self.cpu_ns, other.cpu_ns);
        self.machine_ms = sum(self.machine_ms, other.machine_ms);
        self.saved_byte_ms = match (self.saved_byte_ms, other.saved_byte_ms) {
            (Some(one), Some(other)) => Some(one.saturating_add(other)),
            (one, other) => one.or(other),
        };
        self.promotion_ppm.add(&other.promotion_ppm).expect("they have the same bounds");
    }

    /// The row of the table `replays`, for the machine or for all.
    pub fn row(&self, parameters: &Parameters) -> ReplayRow {
        let p98_promotion_ppm = self.promotion_ppm.value_at_quantile(QUANTILE);
        let average = |byte_ms: u128| {
            // The machines' times are of much the same length: an average of each, summed.
            let bytes =
                byte_ms.saturating_mul(self.machines.into()) / u128::from(self.machine_ms.max(1));
            u64::try_from(bytes).unwrap_or(u64::MAX)
        };
        let (cold, far) = (self.cold_page_ms, self.far_page_ms);
        ReplayRow {
            host: self.sample.map(|(host, _)| host),
            run: self.sample.map(|(_, run)| run),
            threshold_percentile: parameters.threshold_percentile.into(),
            warm_up_seconds: parameters.warm_up_seconds,
            compressor: parameters.lengths.name().to_owned(),
            slo_ppm: parameters.slo_ppm,
            jobs: self.jobs,
            active_intervals: self.active_intervals,
            cold_page_seconds: cold / 1000,
            far_page_seconds: far / 1000,
            coverage: if cold > 0 { far as f64 / cold as f64 } else { 0.0 },
            p98_promotion_ppm,
            within_slo: p98_promotion_ppm <= parameters.slo_ppm,
            promoted_pages: self.promoted_pages,
            cpu_percent: self.cpu_ns as f64 / 1e4 / self.machine_ms.max(1) as f64,
            saved_bytes: self.saved_byte_ms.map(average),
        }
    }
}

impl Default for Outcome {
    fn default() -> Outcome {
        Outcome::new()
    }
}

/// Best thresholds so far, as places in the list of ages; the last place is none.
#[derive(Debug)]
struct History {
    counts: [u64; LIST_MAX + 1],
    last: Option<usize>,
}

impl History {
    fn push(&mut self, best: usize) {
        self.counts[best] += 1;
        self.last = Some(best);
    }

    /// The threshold of the next interval: the percentile by nearest rank, or the last one. `None`
    /// before the first.
    fn threshold(&self, percentile: u8) -> Option<usize> {
        let all: u64 = self.counts.iter().sum();
        let rank = (all * u64::from(percentile)).div_ceil(100).max(1);
        let mut below = 0;
        let kept = self.counts.iter().position(|count| {
            below += count;
            below >= rank
        });
        kept?.max(self.last?).into()
    }
}

/// Replays a machine under a setting.
pub fn replay(machine: &Machine, parameters: &Parameters) -> Outcome {
    let sample = Some((machine.host, machine.run));
    let mut outcome = Outcome { sample, machines: 1, ..Outcome::new() };
    outcome.samples_without_end = machine.samples_without_end;
    outcome.jobs = machine.jobs.len() as u64;
    outcome.saved_byte_ms = machine.saving.map(|_| 0);
    for job in &machine.jobs {
        let job_ms = replay_job(job, parameters, &mut outcome);
        outcome.machine_ms = outcome.machine_ms.max(job_ms);
    }
    outcome
}

/// Replays a job; its time.
fn replay_job(job: &Job, parameters: &Parameters, outcome: &mut Outcome) -> u64 {
    let (store_ns, load_ns) = parameters.lengths.costs();
    let mut history = History { counts: [0; LIST_MAX + 1], last: None };
    let (mut age_ms, mut far_before) = (0_u64, 0_u64);
    for interval in &job.intervals {
        let cold = interval.cold_pages.first().copied().unwrap_or(0);
        outcome.cold_page_ms =
            outcome.cold_page_ms.saturating_add(cold.saturating_mul(interval.milliseconds));
        let is_warm = age_ms >= parameters.warm_up_seconds.saturating_mul(1000);
        let threshold = history.threshold(parameters.threshold_percentile).filter(|_| is_warm);
        // Ages that were not measured yet have no figures: nothing is compressed at them.
        let pages = |list: &[u64]| threshold.and_then(|place| list.get(place).copied());
        let (far, promoted) = (pages(&interval.cold_pages), pages(&interval.promoted_pages));
        if let (Some(far), Some(promoted)) = (far, promoted) {
            let ms = interval.milliseconds;
            outcome.active_intervals += 1;
            outcome.far_page_ms = outcome.far_page_ms.saturating_add(far.saturating_mul(ms));
            outcome.promoted_pages = outcome.promoted_pages.saturating_add(promoted);
            let rate = promotion_ppm(promoted, interval);
            outcome.promotion_ppm.saturating_record(rate);
            if let Some(saved) = &mut outcome.saved_byte_ms {
                *saved =
                    saved.saturating_add(u128::from(job.saving.bytes_of(far)) * u128::from(ms));
            }
            // What was promoted and is cold again was stored again.
            let stored = far.saturating_sub(far_before).saturating_add(promoted);
            let spent =
                stored.saturating_mul(store_ns).saturating_add(promoted.saturating_mul(load_ns));
            outcome.cpu_ns = outcome.cpu_ns.saturating_add(spent);
        }
        far_before = far.unwrap_or(0);
        if let Some(best) = best_threshold(interval, parameters.slo_ppm) {
            history.push(best);
        }
        age_ms = age_ms.saturating_add(interval.milliseconds);
    }
    age_ms
}

/// The smallest age whose promotions are within the objective, as its place in the list; the last
/// place where none is. `None` where no promotions were measured.
fn best_threshold(interval: &Interval, slo_ppm: u64) -> Option<usize> {
    let promoted = &interval.promoted_pages;
    let is_within = |pages: &u64| promotion_ppm(*pages, interval) <= slo_ppm;
    (!promoted.is_empty()).then(|| promoted.iter().position(is_within).unwrap_or(LIST_MAX))
}

/// Promotions in millionths of the working set a minute.
fn promotion_ppm(pages: u64, interval: &Interval) -> u64 {
    let per_minute = u128::from(pages) * 60_000 * 1_000_000;
    let whole = u128::from(interval.working_set_pages.max(1)) * u128::from(interval.milliseconds);
    u64::try_from(per_minute / whole).unwrap_or(PPM_MAX).min(PPM_MAX)
}

#[cfg(test)]
mod tests;
