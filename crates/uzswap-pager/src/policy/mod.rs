//! Decisions: values in, values out. No system call, no lock.

pub(crate) mod age;
pub(crate) mod clock;
pub(crate) mod oom;
pub(crate) mod readahead;
pub(crate) mod recompress;
pub(crate) mod refaults;
pub(crate) mod shared_turns;
pub(crate) mod thrashing;
pub(crate) mod throttle;
pub(crate) mod victim;
