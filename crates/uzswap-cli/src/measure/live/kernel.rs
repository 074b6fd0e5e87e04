//! The kernel's engine: its own zswap or zram, with the command in a memory cgroup.

use std::io;
use std::process::Stdio;
use std::time::Duration;

use super::child::{Ended, run_to_end};
use super::engine::{Engine, LiveParts, LiveRun, Request};
use super::failure::{Failure, FailureKind};
use super::pager::{failed, status_of};
use crate::human_size::human_size;
use crate::measure::child::with_causes;
use uzswap::page::PAGE_SIZE;
use uzswap::zswap::{LatencyBucket, LatencyCounts};
use uzswap_kernel_swap::{
    Journal, KeeperReport, KernelEngine, KernelPool, KernelSwapError, KernelSwapOptions,
    PROBE_PAGES, ProbeReport, Session, SwapBacking, best_compressor,
};
use uzswap_pager::RunSample;

/// The kernel's swap and a cgroup, set up anew for each run and removed after it.
#[derive(Debug)]
pub(super) struct Kernel {
    /// Open from the first run on; its watcher undoes all if this process is killed.
    journal: Option<Journal>,
    backing: SwapBacking,
    /// Of the swap area.
    size_bytes: u64,
}

impl Kernel {
    /// For a command with such a peak.
    pub(super) fn new(backing: SwapBacking, peak_bytes: u64) -> Kernel {
        // All that the command has may be swapped, and the probe. A larger area would take more of
        // the limit: zram has a table of its whole size.
        let size_bytes = peak_bytes + peak_bytes / 4 + (32 << 20);
        Kernel { journal: None, backing, size_bytes }
    }

    /// The best compressor of an engine. `None` where the kernel does not say: the first run has
    /// the reason.
    pub(super) fn best_compressor(&mut self, kernel: KernelEngine) -> Option<&'static str> {
        best_compressor(kernel, &self.journal().ok()?).ok()?
    }

    fn journal(&mut self) -> Result<Journal, KernelSwapError> {
        let journal = match self.journal.take() {
            Some(journal) => journal,
            None => Journal::open()?,
        };
        Ok(self.journal.insert(journal).clone())
    }
}

impl Engine for Kernel {
    fn run(&mut self, parts: &LiveParts, request: &Request<'_>) -> Result<LiveRun, Failure> {
        let LiveParts::Kernel { kernel, compressor, zpool } = parts else {
            unreachable!("{parts} is another engine's");
        };
        let options = KernelSwapOptions {
            engine: *kernel,
            compressor: compressor.clone(),
            zpool: zpool.clone(),
            backing: self.backing.clone(),
            size_bytes: self.size_bytes,
        };
        let journal = self.journal().map_err(refused)?;
        let limit_bytes = request.limit_bytes.unwrap_or(u64::MAX);
        let session = Session::set_up(&options, &journal, limit_bytes).map_err(refused)?;
        let before = Swapped::now(*kernel);
        let result = run_in(&session, request);
        let swapped = Swapped::now(*kernel).since(before);
        // The machine is restored before the result is looked at.
        let keeper = session.end().map_err(refused)?;
        let measured = result?;
        check(&measured, &keeper)?;
        let Measured { ended, pool, probe, .. } = measured;
        Ok(run_of(&ended, &keeper, &pool, swapped, &probe))
    }
}

fn refused(error: KernelSwapError) -> Failure {
    Failure::machine(with_causes(&error))
}

fn machine(what: &str, error: &io::Error) -> Failure {
    Failure::machine(format!("cannot {what}: {error}"))
}

/// A command that has ended in its cgroup.
struct Measured {
    ended: Ended,
    pool: KernelPool,
    oom_kills: u64,
    probe: ProbeReport,
}

/// The first reason for which the figures of a run do not count.
fn check(measured: &Measured, keeper: &KeeperReport) -> Result<(), Failure> {
    let status = status_of(&measured.ended.exit)?;
    let (oom_kills, wrong) = (measured.oom_kills, measured.probe.wrong);
    if oom_kills > 0 {
        let KernelPool { backing_memory_bytes, refused_pages, .. } = measured.pool;
        let message = format!(
            "needs more than the limit: the kernel killed {oom_kills} of its processes (peaks: {} \
             anonymous, {} in the pool; at the end {} behind the pool, which refused {} pages)",
            human_size(keeper.peak_anonymous_bytes),
            human_size(keeper.peak_pool_bytes),
            human_size(backing_memory_bytes),
            refused_pages.unwrap_or_default(),
        );
        return Err(Failure::new(FailureKind::DidNotFit, message));
    }
    if let Some(error) = &keeper.error {
        return Err(Failure::machine(format!("cannot hold the limit of the cgroup: {error}")));
    }
    if wrong > 0 {
        return Err(Failure::new(
            FailureKind::Wrong,
            format!(
                "ran on a broken swap: {wrong} pages of the probe came back with other contents"
            ),
        ));
    }
    if !status.success() {
        return Err(Failure::command(failed(status)));
    }
    Ok(())
}

fn run_in(session: &Session, request: &Request<'_>) -> Result<Measured, Failure> {
    let cannot = |error: io::Error| machine("start the command in its cgroup", &error);
    let probe = session.start_probe().map_err(cannot)?;
    let mut command = session.entering().map_err(cannot)?;
    command.args(request.argv).stdin(Stdio::null());
    command.stdout(request.output.try_clone().map_err(cannot)?);
    command.stderr(request.output.try_clone().map_err(cannot)?);
    let ended = run_to_end(&mut command, request.timeout);
    let figures = session.figures();
    // Where memory ran out, the kernel may have killed the probe: no figures then.
    let probe = probe.finish().unwrap_or_default();
    let (pool, oom_kills) =
        figures.map_err(|error| machine("read the statistics of the kernel's swap", &error))?;
    Ok(Measured { ended: ended.map_err(cannot)?, pool, oom_kills, probe })
}

/// Pages that the machine has moved to its swap, and back.
#[derive(Debug, Clone, Copy, Default)]
struct Swapped {
    out: u64,
    back: u64,
}

impl Swapped {
    /// Since the machine was started, as /proc/vmstat has it.
    fn now(kernel: KernelEngine) -> Swapped {
        let vmstat = procfs::vmstat().unwrap_or_default();
        let of = |name: &str| vmstat.get(name).map_or(0, |&pages| pages.max(0) as u64);
        match kernel {
            KernelEngine::Zswap => Swapped { out: of("zswpout"), back: of("zswpin") },
            KernelEngine::Zram => Swapped { out: of("pswpout"), back: of("pswpin") },
        }
    }

    fn since(self, before: Swapped) -> Swapped {
        Swapped { out: self.out - before.out, back: self.back - before.back }
    }
}

fn run_of(
    ended: &Ended,
    keeper: &KeeperReport,
    pool: &KernelPool,
    swapped: Swapped,
    probe: &ProbeReport,
) -> LiveRun {
    let counts = |times: &[[u64; 2]]| -> LatencyCounts {
        let buckets: Vec<LatencyBucket> =
            times.iter().map(|&[below_ns, count]| LatencyBucket { below_ns, count }).collect();
        LatencyCounts {
            count: buckets.iter().map(|bucket| bucket.count).sum(),
            sum_ns: buckets.iter().map(|bucket| bucket.below_ns * bucket.count).sum(),
            buckets,
        }
    };
    let (store_ns, load_ns) = (counts(&probe.pageout_ns), counts(&probe.touch_ns));
    let sample = |sample: &uzswap_kernel_swap::Sample| RunSample {
        ms: sample.time_ms,
        resident_bytes: sample.anonymous_bytes,
        pool_bytes: sample.pool_bytes,
        metadata_bytes: 0,
        stored_pages: sample.stored_pages,
    };
    LiveRun {
        real_s: ended.real.as_secs_f64(),
        user_s: ended.cpu.user.as_secs_f64(),
        sys_s: ended.cpu.sys.as_secs_f64(),
        engine_cpu_s: Duration::from_nanos(keeper.cpu_ns).as_secs_f64(),
        peak_bytes: keeper.peak_bytes,
        resident_peak_bytes: keeper.peak_anonymous_bytes,
        pool_peak_bytes: keeper.peak_pool_bytes,
        pool_peak_pages: keeper.stored_pages_at_peak,
        metadata_peak_bytes: pool.metadata_bytes + pool.backing_memory_bytes,
        // Without the pages of the probe.
        stored_pages: swapped.out.saturating_sub(store_ns.count),
        loaded_pages: swapped.back.saturating_sub(load_ns.count),
        refused_pages: pool.refused_pages.unwrap_or(0),
        freed_pages: None,
        free_ms: None,
        fault_ns: load_ns.clone(),
        store_ns,
        load_ns,
        counts: Vec::new(),
        timeline: keeper.timeline.iter().map(sample).collect(),
    }
}

/// Bytes of the probe, which runs beside the command and counts against its limit.
pub(super) const PROBE_BYTES: u64 = (PROBE_PAGES * PAGE_SIZE) as u64;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::live::Exit;
    use std::os::unix::process::ExitStatusExt;
    use std::process::ExitStatus;

    #[test]
    fn a_run_counts_if_memory_sufficed_and_swap_was_right() {
        let kind = |exit: Exit, oom_kills: u64, wrong: u64, error: Option<&str>| {
            let ended = Ended { exit, real: Duration::ZERO, cpu: Default::default() };
            let probe = ProbeReport { wrong, ..ProbeReport::default() };
            let measured = Measured { ended, pool: KernelPool::default(), oom_kills, probe };
            let error = error.map(str::to_owned);
            let keeper = KeeperReport { error, ..KeeperReport::default() };
            check(&measured, &keeper).err().map(|failure| failure.kind)
        };
        let status = |code: i32| Exit::Status(ExitStatus::from_raw(code << 8));
        assert_eq!(kind(status(0), 0, 0, None), None);
        assert_eq!(kind(status(7), 0, 0, None), Some(FailureKind::Command));
        assert_eq!(kind(status(0), 0, 1, None), Some(FailureKind::Wrong));
        assert_eq!(kind(status(7), 0, 1, None), Some(FailureKind::Wrong));
        assert_eq!(kind(status(0), 0, 1, Some("EIO")), Some(FailureKind::Machine));
        assert_eq!(kind(status(7), 1, 0, None), Some(FailureKind::DidNotFit));
        assert_eq!(kind(Exit::TimedOut, 1, 0, None), Some(FailureKind::TimedOut));
        assert_eq!(kind(Exit::Interrupted, 0, 0, None), Some(FailureKind::Interrupted));
    }
}
