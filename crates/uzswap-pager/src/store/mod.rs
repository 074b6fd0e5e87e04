//! Stored pages: slots, the file behind them, reads of it.

pub(crate) mod read_queue;
pub(crate) mod release_queue;
pub(crate) mod slots;
pub(crate) mod writeback;
