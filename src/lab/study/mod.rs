//! The studies: one part of the store at a time, measured beside its rivals.

pub mod map;
pub mod same_filled;
