//! Where the threads of the supervisor run, and when.

pub(crate) mod affinity;
pub(crate) mod cpu_share;
pub(crate) mod other_load;
pub(crate) mod priorities;
pub(crate) mod priority;
pub(crate) mod raised;
pub(crate) mod run_queue;
pub(crate) mod source_mix;
pub(crate) mod watchdog;
