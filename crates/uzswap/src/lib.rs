#![doc = include_str!("../README.md")]
//!
//! # Modules
//!
//! ```text
//!                values      values of any length, over the store
//!                   |
//!                 zswap      the store: Zswap, made by ZswapOptions
//!          /     |     |    \
//!      zpool compressor index backing
//!          \     |     |    /
//!         budget, page, same_filled
//! ```
//!
//! A module calls those below it and the package `uzswap-sys`, and nothing else of this project.
//! `trace` writes and reads what was stored, loaded and freed.
#![warn(missing_docs, clippy::missing_errors_doc)]
#![cfg_attr(
    not(feature = "snapshot"),
    allow(dead_code, reason = "what a snapshot asks of the store, nothing else does")
)]

mod audit;
pub mod backing;
pub mod budget;
pub mod compressor;
pub mod index;
mod options;
pub mod page;
pub mod same_filled;
#[cfg(any(feature = "snapshot", feature = "trace"))]
mod sealed;
#[cfg(feature = "trace")]
pub mod trace;
pub mod values;
pub mod zpool;
pub mod zswap;

pub use audit::AuditError;
pub use named_enum::UnknownName;
pub use options::{NoEffect, OptionError};

// For the other packages of this workspace; these may change with any version.
#[doc(hidden)]
pub mod budgeted_vec;
#[cfg(feature = "serde")]
#[doc(hidden)]
pub mod by_name;
#[doc(hidden)]
pub mod files;
#[doc(hidden)]
pub mod named_enum;
#[doc(hidden)]
pub mod random;
