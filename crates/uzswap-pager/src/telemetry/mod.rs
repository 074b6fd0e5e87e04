//! What a run tells: counters, status, metrics.

pub(crate) mod counters;
pub(crate) mod metrics;
pub(crate) mod query;
pub(crate) mod socket_server;
pub(crate) mod status;
