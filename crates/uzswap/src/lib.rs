//! zswap in user space: pages are compressed and kept in dense memory by an allocator made for it.
//!
//! ```text
//!                      cli    compare, capture, workload, classes
//!                       |
//!                      lab    pages of real processes, replayed and measured
//!                       |
//!                     zswap   store, load, invalidate, compact; the counters
//!                   /   |   \
//!              zpool compressor index     where, how small, which
//!                  \    |   /
//!                  sys  page
//! ```
//!
//! The nouns:
//!
//! - A [page](page::Page) is 4096 bytes, named by a [key](page::PageKey).
//! - An *object* is what a [compressor](compressor::Compressor) makes of a page.
//! - A [zpool](zpool::Zpool) is an allocator of objects: [zsmalloc](zpool::zsmalloc),
//!   [zbud](zpool::zbud), [z3fold](zpool::z3fold). It names an object by a
//!   [handle](zpool::Handle) and takes *host pages* from an [arena](zpool::Arena).
//! - An [index](index::Index) leads from a key to an *entry*: a handle and a length, or the one
//!   word that a *same-filled* page repeats.
//! - A [`Zswap`](zswap::Zswap) is the store made of these, shared by threads.
//!
//! ```
//! use uzswap::page::{PAGE_SIZE, PageKey};
//! use uzswap::zswap::ZswapOptions;
//!
//! let zswap = ZswapOptions::default().compressor("zstd:3".parse()?).build()?;
//! let mut page = [0; PAGE_SIZE];
//! page[..11].copy_from_slice(b"Hello, page");
//!
//! zswap.store(PageKey(7), &page)?;
//! let mut back = [0xff; PAGE_SIZE];
//! assert!(zswap.load(PageKey(7), &mut back)?);
//! assert_eq!(back, page);
//! assert_eq!(zswap.counters().stored_pages, 1);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

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
#[cfg(feature = "trace")]
pub mod trace;
pub mod zpool;
pub mod zswap;

pub use audit::AuditError;
pub use names::UnknownName;
pub use options::OptionError;

// For the other packages of this workspace; these may change with any version.
#[doc(hidden)]
pub mod files;
#[doc(hidden)]
pub mod names;
#[doc(hidden)]
pub mod random;
#[doc(hidden)]
pub mod table;
