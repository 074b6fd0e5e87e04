//! The pool around chunked host pages: code that zbud and z3fold share. Each of them adds how
//! objects lie in one page ([`Packing`]).
//!
//! ```text
//!  handle -> HandleTable -> location -> ChunkPages -> the object's chunks
//!                           page and place: the packing's encoding
//! ```

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::chunked::{ChunkPages, PageId, chunks_of};
use super::handle::HandleTable;
use super::lock::{PoolLock, PoolPart};
use super::{Arena, Handle, UnknownHandle, Zpool, ZpoolError, ZpoolStats, check_object};
use crate::AuditError;
use crate::budget::GrowError;
use uzswap_sys::pages::PageRun;

/// How an allocator arranges objects in a page; a value describes one page.
pub(super) trait Packing: Copy + Send + Sync + fmt::Debug + 'static {
    /// The allocator's name.
    const NAME: &'static str;
    /// Mark of the allocator's handles; no size class of zsmalloc has it.
    const HANDLE_SET: u8;
    /// The largest object, in bytes.
    const OBJECT_BYTES_MAX: usize;

    /// A page without objects, for a first one of so many bytes.
    fn empty_for(bytes: usize) -> Self;

    /// Whether the object can go to a page that holds others.
    fn is_shareable(bytes: usize) -> bool;

    /// The list that the page belongs on; none while it has no free place.
    fn list(&self) -> Option<u8>;

    /// Copies `object` to a free place of a page that has room for it.
    fn place(pages: &mut Pages<Self>, id: PageId, object: &[u8]) -> Handle;

    /// Page, first chunk and number of chunks of an object.
    fn find(pages: &Pages<Self>, handle: Handle) -> Option<(PageId, u8, u8)>;

    /// Frees an object. The host page that this leaves empty, if any; `None` for an unknown handle.
    fn remove(pages: &mut Pages<Self>, handle: Handle) -> Option<Option<PageRun>>;

    /// Moves objects together; the number of host pages that it gave to `arena`.
    fn compact(pages: &PoolLock<Pages<Self>>, arena: &Arena) -> usize;

    /// Checks the invariants of the packing.
    fn audit(pages: &Pages<Self>) -> Result<(), AuditError>;
}

/// An allocator of chunked host pages.
#[derive(Debug)]
pub(super) struct ChunkedPool<P: Packing> {
    arena: Arc<Arena>,
    pages: PoolLock<Pages<P>>,
    compacting: AtomicBool,
}

/// Everything the lock protects.
#[derive(Debug)]
pub(super) struct Pages<P> {
    pub(super) handles: HandleTable,
    pub(super) table: ChunkPages<P>,
    /// Host pages freed by moves of objects.
    pub(super) compacted: usize,
}

impl<P: Packing> ChunkedPool<P> {
    /// An empty pool.
    pub(super) fn new(arena: Arc<Arena>) -> ChunkedPool<P> {
        let pages = Pages {
            handles: HandleTable::new(P::HANDLE_SET, arena.budget()),
            table: ChunkPages::new(arena.budget()),
            compacted: 0,
        };
        ChunkedPool { arena, pages: PoolLock::new(pages), compacting: AtomicBool::new(false) }
    }

    #[cfg(test)]
    pub(super) fn pages(&self) -> &PoolLock<Pages<P>> {
        &self.pages
    }
}

impl<P: Packing> Zpool for ChunkedPool<P> {
    fn name(&self) -> &'static str {
        P::NAME
    }

    fn object_size_max(&self) -> usize {
        P::OBJECT_BYTES_MAX
    }

    fn insert(&self, object: &[u8]) -> Result<Handle, ZpoolError> {
        check_object(P::NAME, object.len(), P::OBJECT_BYTES_MAX)?;
        let mut pages = self.pages.write_reserved()?;
        if P::is_shareable(object.len())
            && let Some(id) = pages.table.best_fit(chunks_of(object.len()))
        {
            return Ok(P::place(&mut pages, id, object));
        }
        drop(pages);
        let (mut pages, run) =
            self.pages.write_with(self.arena.alloc(1)?, |run| self.arena.free(run))?;
        let id = pages.table.add(run, P::empty_for(object.len()));
        Ok(P::place(&mut pages, id, object))
    }

    fn read(&self, handle: Handle, reader: &mut dyn FnMut(&[u8])) -> Result<(), UnknownHandle> {
        let pages = self.pages.read();
        let (id, start, chunks) = P::find(&pages, handle).ok_or(UnknownHandle(handle))?;
        reader(pages.table.chunks(id, start, chunks));
        Ok(())
    }

    fn remove(&self, handle: Handle) -> Result<(), UnknownHandle> {
        let emptied = P::remove(&mut self.pages.write(), handle).ok_or(UnknownHandle(handle))?;
        if let Some(run) = emptied {
            self.arena.free(run);
        }
        Ok(())
    }

    fn compact(&self) -> usize {
        if self.compacting.swap(true, Ordering::Acquire) {
            return 0;
        }
        let freed = P::compact(&self.pages, &self.arena);
        let mut pages = self.pages.write();
        pages.handles.release_if_empty();
        pages.table.pages.release_if_empty();
        self.compacting.store(false, Ordering::Release);
        freed
    }

    fn stats(&self) -> ZpoolStats {
        let pages = self.pages.read();
        ZpoolStats {
            pool_pages: pages.table.pages.used(),
            objects: pages.handles.used(),
            metadata_bytes: size_of::<Self>()
                + pages.handles.bytes()
                + pages.table.pages.heap_bytes(),
            pages_compacted: pages.compacted,
        }
    }

    fn audit(&self) -> Result<(), AuditError> {
        let pages = self.pages.read();
        pages.handles.audit()?;
        P::audit(&pages)
    }
}

impl<P: Packing> Drop for ChunkedPool<P> {
    fn drop(&mut self) {
        // The arena may outlive the pool; its count of used pages must not.
        for run in self.pages.write().table.pages.take_all() {
            self.arena.free(run);
        }
    }
}

impl<P> PoolPart for Pages<P> {
    fn reserve(&mut self) -> Result<(), GrowError> {
        self.handles.reserve()?;
        self.table.reserve()
    }
}

impl<P: Packing> Pages<P> {
    /// Puts the page on the list of its free chunks.
    pub(super) fn list(&mut self, id: PageId) {
        if let Some(free) = self.table[id].list() {
            self.table.link(id, free);
        }
    }
}
