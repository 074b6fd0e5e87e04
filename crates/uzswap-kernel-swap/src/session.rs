//! A session: the kernel's swap and a cgroup below one limit, for one command.

use std::io::{self, Read};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use super::{
    Journal, Keeper, KeeperReport, KernelPool, KernelSwap, KernelSwapError, KernelSwapOptions,
    MemoryCgroup, ProbeReport,
};

/// The hidden subcommands that enter a cgroup and measure in it.
const ENTER: &str = "in-cgroup";
const PROBE: &str = "probe-latency";

/// Swap, cgroup and limit from [`Session::set_up`] until [`Session::end`].
#[derive(Debug)]
pub struct Session {
    // Dropped in this order: the keeper changes the cgroup, and swap has the pages of the cgroup.
    keeper: Keeper,
    cgroup: Arc<MemoryCgroup>,
    swap: KernelSwap,
}

impl Session {
    /// Sets up swap and cgroup. The keeper holds programs, pool and tables together in
    /// `limit_bytes`.
    ///
    /// # Errors
    ///
    /// [`KernelSwapError`], of the swap, the cgroup or the keeper; nothing is changed then.
    pub fn set_up(
        options: &KernelSwapOptions,
        journal: &Journal,
        limit_bytes: u64,
    ) -> Result<Session, KernelSwapError> {
        let swap = KernelSwap::set_up(options, journal)?;
        let cgroup = Arc::new(MemoryCgroup::make(journal)?);
        let keeper = Keeper::start(&cgroup, &swap, limit_bytes)?;
        Ok(Session { keeper, cgroup, swap })
    }

    /// The swap.
    pub fn swap(&self) -> &KernelSwap {
        &self.swap
    }

    /// A command that enters the cgroup, and becomes the command that its caller adds to its
    /// arguments.
    ///
    /// # Errors
    ///
    /// The kernel's, of the path of this program.
    pub fn entering(&self) -> io::Result<Command> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg(ENTER).arg(self.cgroup.folder()).arg("--");
        Ok(command)
    }

    /// Starts the probe, in the cgroup.
    ///
    /// # Errors
    ///
    /// The kernel's, of starting a process.
    pub fn start_probe(&self) -> io::Result<RunningProbe> {
        let mut command = self.entering()?;
        command.arg(std::env::current_exe()?).arg(PROBE);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().map(RunningProbe)
    }

    /// The pool, and how many processes the kernel killed for want of memory.
    ///
    /// # Errors
    ///
    /// The kernel's, of the files of statistics.
    pub fn figures(&self) -> io::Result<(KernelPool, u64)> {
        Ok((self.swap.pool()?, self.cgroup.oom_kills()?))
    }

    /// Kills the processes in the cgroup and restores the machine.
    ///
    /// # Errors
    ///
    /// [`KernelSwapError::NotUndone`]; the kernel's, of the kill. All steps are tried before.
    pub fn end(self) -> Result<KeeperReport, KernelSwapError> {
        let Session { keeper, cgroup, swap } = self;
        let killed = cgroup.kill_all();
        let report = keeper.finish();
        let removed = Arc::into_inner(cgroup).expect("the keeper has ended").remove();
        swap.tear_down()?;
        removed?;
        killed.map_err(|error| KernelSwapError::kernel("end the cgroup's processes", error))?;
        Ok(report)
    }
}

/// A probe at work.
#[derive(Debug)]
pub struct RunningProbe(Child);

impl RunningProbe {
    /// Ends the probe. Its report.
    ///
    /// # Errors
    ///
    /// `InvalidData` where it gave no report, as where the kernel killed it for want of memory.
    pub fn finish(mut self) -> io::Result<ProbeReport> {
        drop(self.0.stdin.take());
        let mut text = Vec::new();
        let read = self.0.stdout.take().expect("it is piped").read_to_end(&mut text);
        self.0.wait()?;
        read?;
        Ok(serde_json::from_slice(&text)?)
    }
}
