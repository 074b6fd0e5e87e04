//! The engine of this program: `uzswap run`, in a process of its own.

use std::fs;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus, Stdio};

use super::child::{Ended, Exit, run_to_end};
use super::engine::{Engine, LiveParts, LiveRun, Request};
use super::failure::{Failure, FailureKind};
use crate::measure::experiment::unit_name;
use uzswap::compressor::FilteredKind;
use uzswap_pager::RunReport;

/// The limit of a run that is to have none, in bytes.
const NO_LIMIT: u64 = 1 << 50;

/// The exit code of `uzswap run`, without a report, where the machine does not allow it.
const CANNOT_RUN: i32 = 3;

/// Starts `uzswap run` for each run, and reads its `--stats`.
#[derive(Debug)]
pub(super) struct Uzswap;

impl Engine for Uzswap {
    fn run(&mut self, parts: &LiveParts, request: &Request<'_>) -> Result<LiveRun, Failure> {
        let LiveParts::Uzswap { zpool, compressor, index, unit_pages } = parts else {
            unreachable!("{parts} is another engine's");
        };
        let cannot =
            |error: io::Error| Failure::machine(format!("cannot start uzswap run: {error}"));
        let _ = fs::remove_file(request.stats); // of the run before
        let limit = request.limit_bytes.unwrap_or(NO_LIMIT);
        let exe = std::env::current_exe().map_err(cannot)?;
        let mut command = Command::new(exe);
        command.args(["run", "--quiet", "--limit", &limit.to_string()]);
        let FilteredKind { compressor, filter } = compressor;
        command.args(["--zpool", &zpool.to_string(), "--compressor", &compressor.to_string()]);
        command.args(["--filter", filter.name(), "--unit", &unit_name(*unit_pages)]);
        command.args(["--index", &index.to_string(), "--stats"]).arg(request.stats);
        command.arg("--").args(request.argv).stdin(Stdio::null());
        command.stdout(request.output.try_clone().map_err(cannot)?);
        command.stderr(request.output.try_clone().map_err(cannot)?);
        let ended = run_to_end(&mut command, request.timeout).map_err(cannot)?;
        let report = fs::read(request.stats).ok();
        let report: Option<RunReport> =
            report.and_then(|report| serde_json::from_slice(&report).ok());
        let status = status_of(&ended.exit)?;
        let kills = report.as_ref().map_or(0, |report| report.out_of_memory_kills);
        match report {
            _ if kills > 0 => Err(Failure::new(
                FailureKind::DidNotFit,
                format!("needs more than the limit: uzswap ended {kills} of its processes"),
            )),
            Some(report) if status.success() => Ok(run_of(&ended, &report)),
            None if status.code() == Some(CANNOT_RUN) => Err(Failure::machine(
                "this machine does not allow `uzswap run`; see `uzswap \
                                      doctor`"
                    .to_owned(),
            )),
            _ => Err(Failure::command(failed(status))),
        }
    }
}

/// How a command ended, if it was not killed.
pub(super) fn status_of(exit: &Exit) -> Result<ExitStatus, Failure> {
    match exit {
        Exit::Status(status) => Ok(*status),
        Exit::TimedOut => Err(Failure::new(FailureKind::TimedOut, "took longer than --timeout")),
        Exit::Interrupted => Err(Failure::interrupted()),
    }
}

/// How a command failed, in words.
pub(super) fn failed(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("failed with exit code {code}"),
        (None, Some(signal)) => format!("was ended by signal {signal}"),
        (None, None) => format!("failed: {status}"),
    }
}

fn run_of(ended: &Ended, report: &RunReport) -> LiveRun {
    let store = &report.store;
    LiveRun {
        real_s: ended.real.as_secs_f64(),
        user_s: ended.cpu.user.as_secs_f64(),
        sys_s: ended.cpu.sys.as_secs_f64(),
        engine_cpu_s: report.own_cpu_ns as f64 / 1e9,
        peak_bytes: report.peak_bytes,
        resident_peak_bytes: report.resident_peak_bytes,
        pool_peak_bytes: report.pool_peak_bytes,
        pool_peak_pages: report.pages_at_pool_peak,
        metadata_peak_bytes: report.metadata_peak_bytes,
        stored_pages: report.counts.stored_pages,
        loaded_pages: report.counts.restored_pages,
        refused_pages: store.reject_compress_poor
            + store.reject_compress_fail
            + store.reject_alloc_fail
            + store.reject_kmemcache_fail,
        freed_pages: Some(report.frees.pages),
        free_ms: Some(report.frees.sum_ns as f64 / 1e6),
        store_ns: report.latencies.store.clone(),
        load_ns: report.latencies.load.clone(),
        fault_ns: report.fault_latencies.clone(),
        counts: Vec::new(),
        timeline: report.timeline.clone(),
    }
}
