//! Makes room: evicts pages, and ends a program where none is left.

mod batch_store;
mod ending;
mod evictable;
pub(crate) mod evictor;
mod idle_rounds;
pub(crate) mod progress;
