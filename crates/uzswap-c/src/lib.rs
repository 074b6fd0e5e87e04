//! The store for C: a shared and a static library, with the header `include/uzswap.h`.
//!
//! ```text
//!  options store values tenants stats   the functions that C calls
//!      \      \       /      /
//!       call, and the types of boundary: checks, the end of panics
//!                 |
//!      status, last_error             codes, and a message of each thread
//! ```
//!
//! `boundary` alone turns pointers into references. Its types are the arguments of all functions.
//! Of unsafe code the other modules have the attribute that exports a function, and no more.

#![allow(unsafe_code, reason = "C calls these functions, and gives pointers")]
#![warn(missing_docs)]

pub mod boundary;
pub mod call;
pub mod last_error;
pub mod options;
pub mod stats;
pub mod status;
pub mod store;
pub mod tenants;
pub mod values;
