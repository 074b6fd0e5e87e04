//! The command line, end to end: each module has its goal. One program, which takes less time to
//! build than a dozen, and whose tests run beside each other.

use std::sync::{Mutex, MutexGuard, PoisonError};

mod advise;
mod bench_index;
mod bench_map;
mod bench_same_filled;
mod capture_file;
mod classes;
mod compare;
mod doctor;
mod fleet_sample;
mod sample;
mod stat;
#[path = "../support/mod.rs"]
mod support;
mod terminal;
mod top_keys;
mod workload;

/// A test locks this while it reads the pages of all processes, or counts the pages that a process
/// touches. The kernel counts a page that another process reads as touched.
fn accesses() -> MutexGuard<'static, ()> {
    static ACCESSES: Mutex<()> = Mutex::new(());
    ACCESSES.lock().unwrap_or_else(PoisonError::into_inner)
}
