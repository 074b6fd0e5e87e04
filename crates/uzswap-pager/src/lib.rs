//! The pager: programs under a limit, their cold pages in the store.
//!
//! ```text
//!  program                       supervisor
//!   threads --- fault --------->  fault server --- load ----.
//!   helper  <-- move, drop -----  evictor -------- store --- zswap
//!     (preload)                      |
//!                                 limit: resident anonymous memory + pool + tables of pages
//! ```
//!
//! Far below the limit no memory is registered. Near it the registrar registers anonymous memory
//! with a userfaultfd, and the evictor has the helper move cold pages out: a process with the
//! program's memory, which the preloaded library starts. The kernel's side is in
//! `docs/explanation/run-design.md`.
//!
//! ```text
//!  supervisor      starts the program and the threads, and waits for their end
//!  pager, locks    the state that threads share, by owner; the order of its locks
//!  monitor         sampler, registrar, unmanaged processes: what each takes, what is new
//!  fault           messages of the kernel: page faults, changes of mappings, forks
//!  reclaim         the loop that evicts, and the end of a program when no page is left
//!  address_space   one process: where its pages are, what is registered, what may move
//!  account         usage, peaks and headroom; growth that no fault reports
//!  fork            groups that share pages, and surveys of them
//!  policy, sched   decisions: which page, which compressor; where threads run
//!  program, store  a process, its files and helper; slots of the store and the file behind it
//!  admission       who may connect
//!  telemetry       counters, status, metrics
//!  audit           whether all of these agree, on request
//! ```
//!
//! The [`doctor`] says what a machine allows of this. The pager may call the store (`uzswap`), the
//! kernel (`uzswap-sys`), and carries the library for programs (`uzswap-preload`).

#![warn(missing_docs, clippy::missing_errors_doc)]

pub mod doctor;

mod account;
mod address_space;
mod admission;
mod audit;
mod fault;
mod fork;
mod fork_group;
mod locks;
mod messages;
mod monitor;
mod page_table;
mod pager;
mod policy;
mod program;
mod range_set;
mod reclaim;
mod report;
mod run_dir;
mod sched;
mod store;
mod supervisor;
mod telemetry;
mod token_bucket;
mod wakers;

pub use account::held_back::HeldBack;
pub use account::peaks::AtPeak;
pub use account::timeline::RunSample;
pub use account::uncounted::{Uncounted, UncountedPeak};
pub use address_space::Violation;
pub use audit::AuditReport;
pub use monitor::unmanaged_reason::why_unmanageable;
pub use report::RunReport;
pub use store::writeback::{WriteBackOptions, WriteBackReport};
pub use supervisor::{RunError, RunOptions, run};
pub use telemetry::counters::{FaultTimes, FreeTimes, PagerCounts};
pub use telemetry::metrics::MetricsAddress;
pub use telemetry::query::{NoAnswer, Survey, find_run, survey};
pub use telemetry::status::{Answer, ProcessStatus, RunStatus};

use address_space::handle::{SpaceHandle, lock, try_lock};
use address_space::resident_bytes;
use messages::{mib, too_many_files};
use page_table::untouched_pages;
use pager::Pager;
use report::ratio;
use uzswap::page::PAGE_SIZE;
