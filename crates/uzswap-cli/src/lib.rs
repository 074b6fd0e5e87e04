//! The command `uzswap`: [`cli`] reads the command line, and [`lab`] measures.
//!
//! This library is there for the binary, its tests and `uzswap-torture`; it promises nothing to
//! others.

#![warn(missing_docs, clippy::missing_errors_doc)]

pub mod cli;
pub mod lab;
