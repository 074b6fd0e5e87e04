//! The command `uzswap`: [`cli`] reads the command line, [`lab`] measures, and [`kernel_swap`] lets
//! the kernel do the same work, to compare with.
//!
//! This library is there for the binary and its tests; it promises nothing to others.

#![warn(missing_docs, clippy::missing_errors_doc)]

pub mod cli;
pub mod kernel_swap;
pub mod lab;
