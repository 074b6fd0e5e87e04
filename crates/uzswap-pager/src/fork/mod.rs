//! Processes that share pages since a fork.

pub(crate) mod outsiders;
pub(crate) mod pss_survey;
