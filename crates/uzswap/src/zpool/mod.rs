//! The allocators of compressed objects, behind one interface.
//!
//! | name | an object's place | density bound |
//! |---|---|---|
//! | [`zsmalloc`] | a slot of its size class, in a zspage of 1 to 16 host pages | the class waste |
//! | zbud | one of two ends of a host page | 2 objects a page |
//! | z3fold | one of two ends or the middle of a host page | 3 objects a page |
//! | [`zblock`] | a slot of its type, in a block of 1 to 8 host pages | the slot waste |
//! | packed | any bytes of a region of 4 to 17 host pages | 6 bytes an object, and 4 % free |
//!
//! All of them take host pages from one [`Arena`], the only place that counts and caps them.

#[doc(hidden)]
pub mod arena;
mod chunked;
mod chunked_pool;
mod handle;
mod lock;
mod packed;
mod table;
mod z3fold;
pub mod zblock;
mod zbud;
pub mod zsmalloc;

use std::fmt;
use std::sync::Arc;

use thiserror::Error;

pub use arena::{Arena, ArenaError, HostPages, Sharing};
pub use handle::Handle;
use zsmalloc::ZsmallocOptions;

use crate::AuditError;
use crate::budget::GrowError;
pub use crate::named_enum::UnknownName;
use crate::named_enum::named;

/// An allocator of objects. Shared by threads; every call takes its own short locks. An allocator
/// must not call its own store.
pub trait Zpool: Send + Sync + fmt::Debug {
    /// The name it is chosen by.
    fn name(&self) -> &'static str;

    /// The largest object it takes, in bytes.
    fn object_size_max(&self) -> usize;

    /// Keeps a copy of `object` and names it, by at most [`Handle::BITS`] bits.
    ///
    /// # Errors
    ///
    /// [`ZpoolError`]. The pool is as it was before the call.
    fn insert(&self, object: &[u8]) -> Result<Handle, ZpoolError>;

    /// Calls `reader` once with the object's slot: the object's bytes first, then up to a page of
    /// slack (the allocators do not keep exact lengths). The object neither moves nor goes away
    /// while `reader` runs, and `reader` must not call the pool.
    ///
    /// # Errors
    ///
    /// [`UnknownHandle`]; `reader` was not called.
    fn read(&self, handle: Handle, reader: &mut dyn FnMut(&[u8])) -> Result<(), UnknownHandle>;

    /// Frees the object.
    ///
    /// # Errors
    ///
    /// [`UnknownHandle`]; nothing was freed.
    fn remove(&self, handle: Handle) -> Result<(), UnknownHandle>;

    /// Moves objects together as far as the allocator can; the host pages it freed. Handles stay
    /// valid. An empty pool's tables are given back too. 0 where another thread is compacting.
    fn compact(&self) -> usize;

    /// What the pool holds now. Taken part by part: exact only while no other thread changes it.
    fn stats(&self) -> ZpoolStats;

    /// The size classes (of zblock, the types) and what is in them, largest first; empty for
    /// allocators without classes.
    fn class_stats(&self) -> Vec<zsmalloc::ClassStats> {
        Vec::new()
    }

    /// Walks every structure and checks it; the first broken invariant, in words.
    ///
    /// # Errors
    ///
    /// What is wrong and where.
    fn audit(&self) -> Result<(), AuditError>;
}

/// Figures of one pool.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ZpoolStats {
    /// Host pages the pool owns. Times 4096 it is the kernel's `pool_total_size`.
    pub pool_pages: usize,
    /// Objects it holds.
    pub objects: usize,
    /// Bytes of the allocator's own tables outside the host pages: handles, page descriptors.
    pub metadata_bytes: usize,
    /// Host pages freed by compaction since the pool was made.
    pub pages_compacted: usize,
}

/// Why an object was not taken. The pool is unchanged.
#[non_exhaustive]
#[derive(Debug, Error)]
pub enum ZpoolError {
    /// An object of no bytes (the kernel's `EINVAL`).
    #[error("the object is empty")]
    Empty,
    /// An object over the allocator's limit (the kernel's `ENOSPC`).
    #[error("an object of {bytes} bytes exceeds the {max} bytes that {zpool} can hold")]
    TooBig {
        /// The allocator.
        zpool: &'static str,
        /// The object's length.
        bytes: usize,
        /// The allocator's limit.
        max: usize,
    },
    /// No host page for it (the kernel's `ENOMEM`).
    #[error("cannot get host pages for an object")]
    NoPages(#[from] ArenaError),
    /// No memory for the allocator's own tables (the kernel's `ENOMEM`).
    #[error("cannot grow the pool's tables")]
    NoTables(#[from] GrowError),
    /// The allocator is not as it should be: it panicked, or named the object by too many bits. It
    /// may have kept the object.
    #[error("the pool failed: {0}")]
    Failed(String),
}

/// The handle names no object of this pool: it was removed before, or never given out. The check
/// does not detect every handle of another pool of the same allocator.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("handle {0:?} names no object of this pool")]
pub struct UnknownHandle(pub Handle);

/// Checks an object's length against what an allocator takes.
fn check_object(zpool: &'static str, bytes: usize, max: usize) -> Result<(), ZpoolError> {
    match bytes {
        0 => Err(ZpoolError::Empty),
        _ if bytes > max => Err(ZpoolError::TooBig { zpool, bytes, max }),
        _ => Ok(()),
    }
}

/// The allocators, by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ZpoolKind {
    /// Size classes over runs of host pages.
    Zsmalloc,
    /// Two objects a host page.
    Zbud,
    /// Three objects a host page.
    Z3fold,
    /// Blocks of host pages in 37 types.
    Zblock,
    /// Objects side by side in regions of host pages.
    Packed,
}

named!(
    ZpoolKind, "zpool",
    Zsmalloc => "zsmalloc", Zbud => "zbud", Z3fold => "z3fold",
    Zblock => "zblock", Packed => "packed",
);

impl ZpoolKind {
    /// An empty pool on `arena`. `options` matter to zsmalloc only.
    pub fn build(self, arena: Arc<Arena>, options: ZsmallocOptions) -> Box<dyn Zpool> {
        match self {
            ZpoolKind::Zsmalloc => zsmalloc::build(arena, options),
            ZpoolKind::Zbud => Box::new(zbud::Zbud::new(arena)),
            ZpoolKind::Z3fold => Box::new(z3fold::Z3fold::new(arena)),
            ZpoolKind::Zblock => Box::new(zblock::Zblock::new(arena)),
            ZpoolKind::Packed => Box::new(packed::Packed::new(arena)),
        }
    }
}
