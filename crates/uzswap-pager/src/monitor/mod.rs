//! Threads that sample and scan the programs: sampler, registrar, unmanaged processes.

mod memory_ids;
pub(crate) mod process_tree;
pub(crate) mod registrar;
mod sample;
pub(crate) mod sampler;
pub(crate) mod unmanaged;
pub(crate) mod unmanaged_reason;
mod unmanaged_schedule;
