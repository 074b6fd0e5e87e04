//! The kernel's engine: its own zswap or zram, with the command in a memory cgroup.

use std::fs;
use std::io::{self, Read};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use super::child::{Ended, Exit, run_to_end};
use super::engine::{Engine, LiveParts, LiveRun, Request};
use super::failure::Failure;
use super::pager::failed;
use crate::kernel_swap::{
    Journal, Keeper, KeeperReport, KernelEngine, KernelPool, KernelSwap, KernelSwapError,
    KernelSwapOptions, MemoryCgroup, PROBE_PAGES, ProbeReport, SwapBacking,
};
use uzswap::page::PAGE_SIZE;
use uzswap::zswap::{LatencyBucket, LatencyCounts};
use uzswap_pager::RunSample;

/// The hidden subcommands that enter a cgroup and measure in it.
const ENTER: &str = "in-cgroup";
const PROBE: &str = "probe-latency";

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
        let swap = KernelSwap::set_up(&options, &journal).map_err(refused)?;
        let cgroup = Arc::new(MemoryCgroup::make(&journal).map_err(refused)?);
        let limit_bytes = request.limit_bytes.unwrap_or(u64::MAX);
        let keeper = Keeper::start(&cgroup, &swap, limit_bytes).map_err(refused)?;
        let before = Swapped::now(*kernel);
        let result = run_in(&cgroup, &swap, request);
        let swapped = Swapped::now(*kernel).since(before);
        let killed = cgroup.kill_all();
        let keeper = keeper.finish();
        // The machine is put back before the result is looked at.
        let removed = Arc::into_inner(cgroup).expect("the keeper has ended").remove();
        swap.tear_down().map_err(refused)?;
        removed.map_err(refused)?;
        killed.map_err(|error| machine("end the processes of the cgroup", &error))?;
        let Measured { ended, pool, oom_kills, probe } = result?;
        let status = status_of(&ended.exit)?;
        if oom_kills > 0 {
            return Err(Failure::did_not_fit(format!(
                "needs more than the limit: the kernel killed {oom_kills} of its processes"
            )));
        }
        if let Some(error) = &keeper.error {
            return Err(Failure::machine(format!("cannot hold the limit of the cgroup: {error}")));
        }
        if !status.success() {
            return Err(Failure::command(failed(status)));
        }
        Ok(run_of(&ended, &keeper, &pool, swapped, &probe))
    }
}

fn refused(error: KernelSwapError) -> Failure {
    Failure::machine(error_text(&error))
}

/// An error and its causes on one line.
fn error_text(error: &dyn std::error::Error) -> String {
    match error.source() {
        Some(source) => format!("{error}: {}", error_text(source)),
        None => error.to_string(),
    }
}

fn machine(what: &str, error: &io::Error) -> Failure {
    Failure::machine(format!("cannot {what}: {error}"))
}

fn status_of(exit: &Exit) -> Result<ExitStatus, Failure> {
    match exit {
        Exit::Status(status) => Ok(*status),
        Exit::TimedOut => Err(Failure::timed_out("took longer than --timeout".to_owned())),
        Exit::Interrupted => Err(Failure::interrupted()),
    }
}

/// A command that has ended in its cgroup.
struct Measured {
    ended: Ended,
    pool: KernelPool,
    oom_kills: u64,
    probe: ProbeReport,
}

fn run_in(
    cgroup: &MemoryCgroup,
    swap: &KernelSwap,
    request: &Request<'_>,
) -> Result<Measured, Failure> {
    let cannot = |error: io::Error| machine("start the command in its cgroup", &error);
    let exe = std::env::current_exe().map_err(cannot)?;
    let entering = || {
        let mut command = Command::new(&exe);
        command.arg(ENTER).arg(cgroup.folder()).arg("--");
        command
    };
    let mut probe = entering();
    probe.arg(&exe).arg(PROBE).stdin(Stdio::piped()).stdout(Stdio::piped());
    let probe = probe.spawn().map_err(cannot)?;
    let mut command = entering();
    command.args(request.argv).stdin(Stdio::null());
    command.stdout(request.output.try_clone().map_err(cannot)?);
    command.stderr(request.output.try_clone().map_err(cannot)?);
    let ended = run_to_end(&mut command, request.timeout);
    let pool = swap.pool();
    let oom_kills = cgroup.oom_kills();
    // Where memory ran out, the probe may have been killed for it: no figures then.
    let probe = report_of(probe).unwrap_or_default();
    Ok(Measured {
        ended: ended.map_err(cannot)?,
        pool: pool.map_err(|error| machine("read the statistics of the pool", &error))?,
        oom_kills: oom_kills.map_err(|error| machine("read the events of the cgroup", &error))?,
        probe,
    })
}

/// The report of a probe, which ends with its input.
fn report_of(mut probe: Child) -> io::Result<ProbeReport> {
    drop(probe.stdin.take());
    let mut text = Vec::new();
    probe.stdout.take().expect("it is piped").read_to_end(&mut text)?;
    probe.wait()?;
    Ok(serde_json::from_slice(&text)?)
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
        let text = fs::read_to_string("/proc/vmstat").unwrap_or_default();
        let of = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
            line.and_then(|number| number.parse().ok()).unwrap_or(0)
        };
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
    let sample = |sample: &crate::kernel_swap::Sample| RunSample {
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
