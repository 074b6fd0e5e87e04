//! How much memory programs use, each byte counted once.

pub(crate) mod evictable;
pub(crate) mod growth;
pub(crate) mod outsiders;
pub(crate) mod pss_survey;
pub(crate) mod uncounted;
pub(crate) mod unmanaged_parts;
