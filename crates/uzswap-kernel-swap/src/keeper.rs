//! The keeper: a thread that keeps programs, pool and tables of the kernel below one limit.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle, available_parallelism};
use std::time::{Duration, Instant};

use serde::Serialize;

use uzswap_sys::process::{self, prefer_this_thread, run_first};

use super::{Held, KernelPool, KernelSwap, KernelSwapError, MemoryCgroup, MemoryUsage, PoolReader};

/// How often it looks at the pool.
const PERIOD: Duration = Duration::from_millis(1);

/// How often it looks at all, whether the pool has changed or not.
const PERIOD_OF_ALL: Duration = Duration::from_millis(10);

/// For so long it waits where the kernel could not reclaim.
const PAUSE: Duration = Duration::from_millis(5);

/// Bytes of the limit for each processor that are left free: the pool's growth until the next look.
/// One processor stores 100 to 300 MiB/s.
const RESERVE_PER_PROCESSOR: u64 = 512 << 10;

/// No more than this part of a limit is left free.
const RESERVE_PART: u64 = 32;

/// If the pool grows as it did, it may grow for so long until the limit is lowered.
const HORIZON: Duration = Duration::from_millis(5);

/// Samples of the timeline that are kept.
const SAMPLES_MAX: usize = 512;

/// What was used at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Sample {
    /// Since the keeper was started, in ms.
    pub time_ms: u64,
    /// Resident anonymous memory of the programs, in bytes.
    pub anonymous_bytes: u64,
    /// The pool, in bytes.
    pub pool_bytes: u64,
    /// Pages in it.
    pub stored_pages: u64,
}

/// What a keeper saw.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct KeeperReport {
    /// The limit of anonymous memory, pool, tables and backing together, in bytes.
    pub limit_bytes: u64,
    /// The most that they took together, in bytes.
    pub peak_bytes: u64,
    /// The most anonymous memory, in bytes.
    pub peak_anonymous_bytes: u64,
    /// The pool at its largest, in bytes; then `stored_pages` were in it.
    pub peak_pool_bytes: u64,
    /// Pages in the pool when that was at its largest.
    pub stored_pages_at_peak: u64,
    /// Looks at the figures.
    pub looks: u64,
    /// Looks at which more was used than the limit allows.
    pub over: u64,
    /// Looks at which the kernel could not reclaim what was too much.
    pub refused: u64,
    /// Looks at which a file could not be read or written; the last error is in `error`.
    pub failed: u64,
    /// The last such error.
    pub error: Option<String>,
    /// Processor time of the thread, in ns: with reclaim that the kernel did in it.
    pub cpu_ns: u64,
    /// Figures over time, 10 ms apart or twice, four times ... as far.
    pub timeline: Vec<Sample>,
}

/// Holds a cgroup below a limit until it is finished.
#[derive(Debug)]
pub(super) struct Keeper {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<KeeperReport>>,
}

impl Keeper {
    /// Holds the anonymous memory of a cgroup, the pool, the kernel's tables and the memory of the
    /// backing below `limit_bytes` together. Programs may enter the cgroup when this returns.
    ///
    /// # Errors
    ///
    /// [`KernelSwapError::Kernel`] where the files cannot be read and written, or where there can
    /// be no thread.
    pub(super) fn start(
        cgroup: &Arc<MemoryCgroup>,
        swap: &KernelSwap,
        limit_bytes: u64,
    ) -> Result<Keeper, KernelSwapError> {
        let mut watch = Watch::new(Arc::clone(cgroup), swap.reader(), limit_bytes);
        let cannot = |error| KernelSwapError::kernel("hold the limit of a memory cgroup", error);
        watch.look().map_err(cannot)?;
        let (stop, stopped) = channel();
        let thread = thread::Builder::new()
            .name("uzswap-keeper".to_owned())
            .spawn(move || {
                // Programs must not keep it from a processor.
                run_first().unwrap_or_else(|_| prefer_this_thread());
                let mut wait = PERIOD;
                while stopped.recv_timeout(wait) == Err(RecvTimeoutError::Timeout) {
                    wait = watch.try_look();
                }
                watch.finish()
            })
            .map_err(cannot)?;
        Ok(Keeper { stop: Some(stop), thread: Some(thread) })
    }

    /// Ends it. The limit stays as it was last.
    ///
    /// # Panics
    ///
    /// If its thread did.
    pub(super) fn finish(mut self) -> KeeperReport {
        self.stop.take();
        self.thread.take().expect("it is ended once").join().expect("it does not panic")
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.stop.take();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join(); // its report is not asked for
        }
    }
}

/// What the thread has.
struct Watch {
    cgroup: Arc<MemoryCgroup>,
    pool: PoolReader,
    start: Instant,
    reserve: u64,
    /// The last look at all.
    last: Option<Last>,
    timeline: Timeline,
    report: KeeperReport,
}

#[derive(Clone, Copy)]
struct Last {
    time: Instant,
    /// Bytes that the pool and its tables took.
    memory: u64,
    is_reached: bool,
}

impl Watch {
    fn new(cgroup: Arc<MemoryCgroup>, pool: PoolReader, limit_bytes: u64) -> Watch {
        let report = KeeperReport { limit_bytes, ..KeeperReport::default() };
        let (start, timeline) = (Instant::now(), Timeline::new());
        let reserve = reserve(limit_bytes, available_parallelism().map_or(1, usize::from));
        Watch { cgroup, pool, start, reserve, last: None, timeline, report }
    }

    /// How long to wait for the next look; longer where a file could not be read.
    fn try_look(&mut self) -> Duration {
        self.look().unwrap_or_else(|error| {
            self.report.failed += 1;
            self.report.error = Some(error.to_string());
            PAUSE
        })
    }

    fn look(&mut self) -> io::Result<Duration> {
        let pool = self.pool.memory()?;
        self.report.looks += 1;
        if !self.is_due(pool.memory_bytes()) {
            return Ok(PERIOD);
        }
        self.look_at_all(&pool)
    }

    /// The pool is cheap to read, the cgroup is not.
    fn is_due(&self, memory: u64) -> bool {
        self.last.is_none_or(|last| {
            let has_grown = memory > last.memory + self.reserve / 4;
            !last.is_reached || has_grown || last.time.elapsed() >= PERIOD_OF_ALL
        })
    }

    fn look_at_all(&mut self, pool: &KernelPool) -> io::Result<Duration> {
        let (memory, time) = (pool.memory_bytes(), Instant::now());
        let growth = self.last.map_or(0, |last| {
            expected_growth(memory.saturating_sub(last.memory), time - last.time)
        });
        let left = self.report.limit_bytes.saturating_sub(memory + self.reserve + growth);
        let held = self.cgroup.hold(left)?;
        self.last = Some(Last { time, memory, is_reached: held.is_reached });
        self.report.refused += u64::from(held.is_refused);
        self.note(pool, held.usage);
        Ok(match held {
            Held { is_refused: true, .. } => PAUSE,
            Held { is_reached: true, .. } => PERIOD,
            _ => Duration::ZERO,
        })
    }

    fn note(&mut self, pool: &KernelPool, usage: MemoryUsage) {
        let (report, used) = (&mut self.report, usage.anonymous + pool.memory_bytes());
        report.peak_bytes = report.peak_bytes.max(used);
        report.over += u64::from(used > report.limit_bytes);
        report.peak_anonymous_bytes = report.peak_anonymous_bytes.max(usage.anonymous);
        if pool.pool_bytes > report.peak_pool_bytes {
            report.peak_pool_bytes = pool.pool_bytes;
            report.stored_pages_at_peak = pool.stored_pages;
        }
        self.timeline.add(Sample {
            time_ms: self.start.elapsed().as_millis() as u64, // for half a billion years
            anonymous_bytes: usage.anonymous,
            pool_bytes: pool.pool_bytes,
            stored_pages: pool.stored_pages,
        });
    }

    fn finish(mut self) -> KeeperReport {
        // What came after the last look.
        self.last = None;
        self.try_look();
        self.report.cpu_ns = process::thread_time().as_nanos() as u64;
        self.report.timeline = self.timeline.samples;
        self.report
    }
}

/// Bytes of a limit that are left free on a machine.
fn reserve(limit_bytes: u64, processors: usize) -> u64 {
    (RESERVE_PER_PROCESSOR * processors as u64).min(limit_bytes / RESERVE_PART)
}

/// How much a pool will grow in the horizon, in bytes, that has grown so much in such a time.
fn expected_growth(growth: u64, time: Duration) -> u64 {
    let time = time.max(PERIOD).as_micros();
    (u128::from(growth) * HORIZON.as_micros() / time) as u64 // at most five times as much
}

/// Samples at an interval that doubles whenever there are too many.
struct Timeline {
    samples: Vec<Sample>,
    /// One of so many looks is kept.
    interval: u64,
    looks: u64,
}

impl Timeline {
    fn new() -> Timeline {
        Timeline { samples: Vec::with_capacity(SAMPLES_MAX), interval: 1, looks: 0 }
    }

    fn add(&mut self, sample: Sample) {
        let look = self.looks;
        self.looks += 1;
        if !look.is_multiple_of(self.interval) {
            return;
        }
        if self.samples.len() == SAMPLES_MAX {
            let mut at = 0;
            self.samples.retain(|_| {
                at += 1;
                at % 2 == 1
            });
            self.interval *= 2;
            if !look.is_multiple_of(self.interval) {
                return;
            }
        }
        self.samples.push(sample);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reserve_is_a_small_part_of_a_limit() {
        assert_eq!(reserve(1 << 30, 2), 1 << 20);
        assert_eq!(reserve(16 << 20, 2), 512 << 10);
        assert_eq!(reserve(16 << 20, 64), 512 << 10);
    }

    #[test]
    fn a_pool_that_grows_is_expected_to_grow_on() {
        let growth = |ms| expected_growth(1000, Duration::from_millis(ms));
        assert_eq!((growth(5), growth(10)), (1000, 500));
        // A look at once after another tells little of the speed.
        assert_eq!((growth(0), growth(1)), (5000, 5000));
    }

    #[test]
    fn a_timeline_gets_coarser_as_it_gets_longer() {
        for looks in [1, 511, 512, 513, 1024, 1025, 5000, 100_000] {
            let mut timeline = Timeline::new();
            for look in 0..looks {
                let zero =
                    Sample { time_ms: 0, anonymous_bytes: 0, pool_bytes: 0, stored_pages: 0 };
                timeline.add(Sample { time_ms: look, ..zero });
            }
            let times: Vec<u64> = timeline.samples.iter().map(|sample| sample.time_ms).collect();
            assert!(times.len() <= SAMPLES_MAX && times[0] == 0, "{looks}");
            assert!(times.len() as u64 >= (SAMPLES_MAX as u64 / 2).min(looks), "{looks}");
            let step = timeline.interval;
            assert!(
                times.iter().enumerate().all(|(at, &time)| time == at as u64 * step),
                "{looks}"
            );
            assert!(times.last().unwrap() + step >= looks, "{looks}: the end is there");
        }
    }
}
