//! How much memory programs use, each byte counted once.

pub(crate) mod growth;
pub(crate) mod uncounted;
pub(crate) mod unmanaged_parts;
