//! Processes that share pages since a fork.

pub(crate) mod group;
