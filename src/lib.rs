//! zswap in user space.

pub mod cli;
pub mod compressor;
pub mod index;
pub mod lab;
pub mod page;
pub mod sys;
pub mod zpool;
pub mod zswap;
