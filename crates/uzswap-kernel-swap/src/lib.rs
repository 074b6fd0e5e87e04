//! Sets up the kernel's own compressed swap for a measurement, and restores the machine afterwards.
//!
//! ```text
//!  Session      all of it, for one command                     session.rs
//!  KernelSwap   zswap or zram, a swap area, the settings       engine.rs, device.rs
//!  MemoryCgroup programs under a limit                         cgroup.rs
//!  Keeper       the limit is of programs and pool together     keeper.rs
//!  Journal      each change is written down before it is made  journal.rs
//!    log        the file                                       log.rs
//!    undo       how a change is undone                         undo.rs
//!    restore    journals of processes that have ended          restore.rs
//!  probe        latencies of swap, measured in the cgroup      probe.rs
//! ```
//!
//! The way of one run of a study through it:
//!
//! ```text
//!  Journal::open           the folder is locked, changes of ended processes are undone   watcher
//!  Session::set_up         swap area, settings, cgroup, keeper
//!  Session::start_probe    the latency probe enters the cgroup                           probe
//!  Session::entering       the command enters it; its caller waits for the end           enter
//!  Session::figures        the pool, and the processes that the kernel killed
//!  Session::end            the cgroup's processes are ended, each change is undone
//! ```
//!
//! The program that uses it is started again for the processes at the right. As
//! `restore-when-ended JOURNAL` it calls [`restore_when_ended`]. As `probe-latency` it prints the
//! report of [`probe()`] as JSON. As `in-cgroup FOLDER -- COMMAND` it writes 0 to the folder's
//! `cgroup.procs` and becomes the command.
//!
//! docs/reference/kernel-swap.md says what is changed and put back.

#![warn(missing_docs, clippy::missing_errors_doc)]

mod cgroup;
mod cgroup_tree;
mod change;
mod device;
mod engine;
mod error;
mod journal;
mod keeper;
mod kernel_files;
mod log;
mod probe;
mod restore;
mod session;
mod swap_header;
mod undo;

use cgroup::{Held, MemoryCgroup, MemoryUsage};
pub use device::SwapBacking;
use engine::PoolReader;
pub use engine::{
    COMPRESSORS, KernelEngine, KernelPool, KernelSwap, KernelSwapOptions, best_compressor,
};
pub use error::{KernelSwapError, UndoError};
pub use journal::{Journal, WATCHER_COMMAND};
use keeper::Keeper;
pub use keeper::{KeeperReport, Sample};
pub use probe::{PAGES as PROBE_PAGES, ProbeReport, probe};
pub use restore::{LeftOver, left_over, restore, restore_when_ended};
pub use session::{RunningProbe, Session};
pub use undo::Restored;
