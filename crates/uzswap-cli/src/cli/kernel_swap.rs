//! Hidden subcommands for the kernel's own swap: the watcher that restores the machine, the way
//! into a cgroup, the latency probe, and a run of one command.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Error, anyhow};
use serde::Serialize;

use super::json::json;
use super::size::parse_size;
use super::{Failure, print};
use crate::measure::live::{Exit, run_to_end};
use uzswap_kernel_swap::{
    Journal, KeeperReport, KernelEngine, KernelPool, KernelSwapError, KernelSwapOptions,
    ProbeReport, RunningProbe, Session, SwapBacking, probe, restore_when_ended,
};
use uzswap_sys::interrupt;
use uzswap_sys::stderr::log;

/// Exit codes of env(1): it failed itself, the command cannot be run, there is none.
const FAILED: u8 = 125;
const NOT_RUN: u8 = 126;
const NOT_FOUND: u8 = 127;

/// Why it did not work, for the exit code.
pub(super) fn failure(error: KernelSwapError) -> Failure {
    Failure::of(!error.is_usage(), error)
}

/// Waits until standard input ends, then undoes what is left in a journal.
#[derive(Debug, clap::Args)]
pub(super) struct RestoreWhenEnded {
    journal: PathBuf,
}

impl RestoreWhenEnded {
    pub(super) fn run(self) -> Result<(), Failure> {
        restore_when_ended(&self.journal).map_err(failure)
    }
}

/// Enters a cgroup, then becomes a command.
#[derive(Debug, clap::Args)]
pub(super) struct InCgroup {
    /// Folder of the cgroup
    cgroup: PathBuf,
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

impl InCgroup {
    /// Returns where it could not.
    pub(super) fn run(self) -> ExitCode {
        let processes = self.cgroup.join("cgroup.procs");
        // 0 is the process that writes.
        if let Err(error) = std::fs::OpenOptions::new()
            .write(true)
            .open(&processes)
            .and_then(|mut file| io::Write::write_all(&mut file, b"0"))
        {
            log(&format!("cannot enter cgroup {}: {error}", self.cgroup.display()));
            return ExitCode::from(FAILED);
        }
        let name = self.command[0].to_string_lossy();
        let error = Command::new(&self.command[0]).args(&self.command[1..]).exec();
        log(&format!("cannot run '{name}': {error}"));
        match error.kind() {
            io::ErrorKind::NotFound => ExitCode::from(NOT_FOUND),
            _ => ExitCode::from(NOT_RUN),
        }
    }
}

/// Measures the latency of swap until standard input ends.
#[derive(Debug, clap::Args)]
pub(super) struct ProbeLatency {}

impl ProbeLatency {
    pub(super) fn run(self) -> Result<(), Failure> {
        let report = probe(io::stdin())
            .map_err(|error| Failure::Machine(Error::new(error).context("cannot measure swap")))?;
        print(&json(&report))?;
        match report.wrong {
            0 => Ok(()),
            wrong => Err(Failure::Check(anyhow!(
                "{wrong} pages came back from the kernel's swap with wrong contents"
            ))),
        }
    }
}

/// Runs a command on the kernel's own compressed swap, and prints what that took.
#[derive(Debug, clap::Args)]
#[command(args_override_self = true)]
pub(super) struct KernelRun {
    /// zswap or zram
    #[arg(long)]
    engine: KernelEngine,
    /// By the kernel's name
    #[arg(long, default_value = "lzo")]
    compressor: String,
    /// Allocator of zswap, where the kernel has a choice
    #[arg(long)]
    zpool: Option<String>,
    /// Behind zswap: loop, zram, file:FOLDER
    #[arg(long, default_value = "loop")]
    backing: SwapBacking,
    /// Size of the swap area
    #[arg(long, default_value = "1G", value_parser = parse_size)]
    size: usize,
    /// Most memory of the command, the pool and the kernel's tables together
    #[arg(long, value_parser = parse_size)]
    limit: usize,
    /// Measure latencies of swap beside the command
    #[arg(long)]
    probe: bool,
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

/// What is printed of a run.
#[derive(Debug, Serialize)]
struct KernelRunReport {
    engine: KernelEngine,
    area: PathBuf,
    other_areas: Vec<PathBuf>,
    /// Of the command; 128 and the signal where one ended it.
    exit_code: i32,
    oom_kills: u64,
    /// Of the pool when the command had ended.
    pool_at_end: KernelPool,
    keeper: KeeperReport,
    probe: Option<ProbeReport>,
}

impl KernelRun {
    pub(super) fn run(self) -> Result<(), Failure> {
        interrupt::watch().map_err(|error| Failure::Machine(error.into()))?;
        let report = self.measure();
        interrupt::end_if_noted();
        let report = report?;
        print(&json(&report))?;
        match report.exit_code {
            0 => Ok(()),
            code => Err(Failure::Check(anyhow!("the command ended with code {code}"))),
        }
    }

    /// All that was made is undone when this returns.
    fn measure(&self) -> Result<KernelRunReport, Failure> {
        let journal = Journal::open().map_err(failure)?;
        let options = KernelSwapOptions {
            engine: self.engine,
            compressor: self.compressor.clone(),
            zpool: self.zpool.clone(),
            backing: self.backing.clone(),
            size_bytes: self.size as u64,
        };
        let session = Session::set_up(&options, &journal, self.limit as u64).map_err(failure)?;
        let result = self.run_in(&session);
        let area = session.swap().area().to_owned();
        let other_areas = session.swap().other_areas().to_vec();
        let keeper = session.end().map_err(failure)?;
        journal.undo_all().map_err(failure)?;
        let (exit_code, pool_at_end, oom_kills, probe) =
            result.map_err(|error| Failure::Machine(error.into()))?;
        Ok(KernelRunReport {
            engine: self.engine,
            area,
            other_areas,
            exit_code,
            oom_kills,
            pool_at_end,
            keeper,
            probe,
        })
    }

    fn run_in(&self, session: &Session) -> io::Result<(i32, KernelPool, u64, Option<ProbeReport>)> {
        let probe = self.probe.then(|| session.start_probe()).transpose()?;
        let mut command = session.entering()?;
        // Its output is not part of the report.
        command.args(&self.command).stdout(Stdio::null());
        let exit = run_to_end(&mut command, None)?.exit;
        let (pool, oom_kills) = session.figures()?;
        let probe = probe.map(RunningProbe::finish).transpose()?;
        let code = match exit {
            Exit::Status(status) => status.code().or(status.signal().map(|signal| 128 + signal)),
            Exit::TimedOut | Exit::Interrupted => None,
        };
        Ok((code.unwrap_or(FAILED.into()), pool, oom_kills, probe))
    }
}
