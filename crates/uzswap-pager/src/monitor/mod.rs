//! Threads that look at the programs: sampler, registrar, unmanaged processes.

pub(crate) mod registrar;
mod sample;
pub(crate) mod sampler;
pub(crate) mod unmanaged;
pub(crate) mod unmanaged_reason;
