//! The keeper: a thread that holds programs, pool and tables of the kernel below one limit.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;

use uzswap_sys::process::prefer_this_thread;

use super::{KernelPool, KernelSwap, KernelSwapError, MemoryCgroup, MemoryUsage, PoolReader};

/// How often it looks.
const PERIOD: Duration = Duration::from_millis(10);

/// How often it looks while more is used than the limit allows.
const PERIOD_OVER: Duration = Duration::from_millis(1);

/// For so long the pool may grow before the limit is lowered by as much: one thread of the kernel
/// reclaims some 150 MiB/s, as fast as a program may allocate.
const HORIZON: Duration = Duration::from_millis(40);

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
pub struct Keeper {
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
    pub fn start(
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
                prefer_this_thread();
                let mut next = Instant::now() + PERIOD;
                loop {
                    let wait = next.saturating_duration_since(Instant::now());
                    if stopped.recv_timeout(wait) != Err(RecvTimeoutError::Timeout) {
                        return watch.finish();
                    }
                    let period = if watch.try_look() { PERIOD } else { PERIOD_OVER };
                    // A look that took longer is not made up for.
                    next = (next + period).max(Instant::now());
                }
            })
            .map_err(cannot)?;
        Ok(Keeper { stop: Some(stop), thread: Some(thread) })
    }

    /// Ends it. The limit stays as it was last.
    ///
    /// # Panics
    ///
    /// If its thread did.
    pub fn finish(mut self) -> KeeperReport {
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
    /// When it was the last look, and what the pool and its tables took then, in bytes.
    memory_before: Option<(Instant, u64)>,
    timeline: Timeline,
    report: KeeperReport,
}

impl Watch {
    fn new(cgroup: Arc<MemoryCgroup>, pool: PoolReader, limit_bytes: u64) -> Watch {
        let report = KeeperReport { limit_bytes, ..KeeperReport::default() };
        let (start, timeline) = (Instant::now(), Timeline::new());
        Watch { cgroup, pool, start, memory_before: None, timeline, report }
    }

    /// Whether the limit is reached; also where a file could not be read.
    fn try_look(&mut self) -> bool {
        self.look().unwrap_or_else(|error| {
            self.report.failed += 1;
            self.report.error = Some(error.to_string());
            true
        })
    }

    fn look(&mut self) -> io::Result<bool> {
        let pool = self.pool.memory()?;
        let memory = pool.memory_bytes();
        let growth = self.expected_growth(memory);
        let left = self.report.limit_bytes.saturating_sub(memory + growth);
        let held = self.cgroup.hold(left)?;
        self.report.looks += 1;
        self.report.refused += u64::from(held.is_refused);
        self.note(&pool, held.usage);
        Ok(held.is_reached)
    }

    /// How much the pool will have grown in a while, in bytes, if it grows as since the last look.
    fn expected_growth(&mut self, memory: u64) -> u64 {
        let now = Instant::now();
        let Some((then, before)) = self.memory_before.replace((now, memory)) else { return 0 };
        let growth = memory.saturating_sub(before);
        let elapsed_us = (now - then).as_micros().max(1);
        (u128::from(growth) * HORIZON.as_micros() / elapsed_us.max(PERIOD.as_micros())) as u64
    }

    fn note(&mut self, pool: &KernelPool, usage: MemoryUsage) {
        let report = &mut self.report;
        report.peak_bytes = report.peak_bytes.max(usage.anonymous + pool.memory_bytes());
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
        self.try_look();
        let time = clock_gettime(ClockId::ThreadCPUTime);
        self.report.cpu_ns = time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64;
        self.report.timeline = self.timeline.samples;
        self.report
    }
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
