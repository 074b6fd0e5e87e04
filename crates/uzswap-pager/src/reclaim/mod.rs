//! Makes room: evicts pages, and ends a program where none is left.

pub(crate) mod ending;
pub(crate) mod evictable;
pub(crate) mod evictor;
pub(crate) mod progress;
