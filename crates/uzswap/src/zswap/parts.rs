//! The store's parts, which may be of others. Each of their calls is made here, so a part that
//! panics, calls the store from inside or returns an impossible length does no harm to the store.
//!
//! | the part's call | where it panics, or returns nonsense | the store |
//! |---|---|---|
//! | `compress` | the compressor failed on the page | refuses it, or keeps it as it is |
//! | `compress_unit` | the unit does not fit | keeps its pages one by one |
//! | `is_dense`, `decompress..` | the object is corrupt | refuses the load, keeps the entry |
//! | `insert` | the pool failed | refuses the page |
//! | `read`, also where it shows nothing | the object is corrupt | refuses the load |
//! | `remove` | the object is lost: it may take room for ever | goes on without it |
//! | `compact`, `stats` | 0 | goes on |
//! | `write` | no block of the call is written | keeps the pages |
//! | `read` of a backing | the copy is not read | refuses the load, keeps the entry |
//! | `discard` | the blocks are not discarded | takes them again |
//!
//! A part that calls its own store would wait for locks that its thread holds. The call panics
//! instead, and so becomes one of the cases above. A part may call another store: parts can be made
//! of stores.

use std::any::Any;
use std::cell::Cell;
use std::fmt;
use std::io;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicU64, Ordering};

use super::Effort;
use crate::AuditError;
use crate::backing::{Backing, Block, BlockWrite};
use crate::compressor::{CompressError, Compressor, Corrupt, ObjectFormat, Output};
use crate::page::{PAGE_SIZE, Page};
use crate::zpool::{Handle, Zpool, ZpoolError, ZpoolStats};

/// Calls of parts that can be under way on one thread: stores made of stores, some levels of them.
const DEPTH_MAX: usize = 16;

/// The stores that have a part of theirs at work on a thread, outermost first.
struct AtWork {
    depth: Cell<usize>,
    stores: [Cell<u64>; DEPTH_MAX],
}

thread_local! {
    static AT_WORK: AtWork = const {
        AtWork { depth: Cell::new(0), stores: [const { Cell::new(0) }; DEPTH_MAX] }
    };
}

/// The number of a store, which no other of this process has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct StoreId(u64);

/// A part panicked.
#[derive(Debug)]
struct Panicked(String);

impl fmt::Display for Panicked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "it panicked: {}", self.0)
    }
}

impl Panicked {
    fn of(panic: &(dyn Any + Send)) -> Panicked {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
        Panicked(text.unwrap_or("without a message").to_owned())
    }
}

impl StoreId {
    /// One that no other store has.
    pub(super) fn new() -> StoreId {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        StoreId(NEXT.fetch_add(1, Ordering::Relaxed))
    }

    /// Its number; a new store has the next one.
    pub(super) fn number(self) -> u64 {
        self.0
    }

    /// Begins a call of the store.
    ///
    /// # Panics
    ///
    /// If a part of this store is at work on this thread: the call is one of that part.
    #[inline]
    pub(super) fn enter(self) {
        if AT_WORK.with(|at_work| at_work.depth.get()) > 0 {
            self.enter_from_inside();
        }
    }

    #[cold]
    fn enter_from_inside(self) {
        let is_own = AT_WORK.with(|at_work| {
            let at_work = &at_work.stores[..at_work.depth.get()];
            at_work.iter().any(|store| store.get() == self.0)
        });
        assert!(!is_own, "a compressor, pool or backing called the store that it is a part of");
    }

    /// Has a part of the store do something.
    #[inline]
    fn call<T>(self, call: impl FnOnce() -> T) -> Result<T, Panicked> {
        AT_WORK.with(|at_work| {
            let depth = at_work.depth.get();
            let Some(place) = at_work.stores.get(depth) else {
                return Err(Panicked(format!("{DEPTH_MAX} parts of stores call each other")));
            };
            place.set(self.0);
            at_work.depth.set(depth + 1);
            let done = catch_unwind(AssertUnwindSafe(call));
            at_work.depth.set(depth);
            done.map_err(|panic| Panicked::of(&*panic))
        })
    }
}

/// The allocator.
#[derive(Debug)]
pub(super) struct Pool {
    part: Box<dyn Zpool>,
    store: StoreId,
    name: &'static str,
    object_size_max: usize,
    /// Objects that may be in it, and that no entry names.
    lost: AtomicU64,
}

impl Pool {
    pub(super) fn new(part: Box<dyn Zpool>, store: StoreId) -> Pool {
        let (name, object_size_max) = (part.name(), part.object_size_max());
        Pool { part, store, name, object_size_max, lost: AtomicU64::new(0) }
    }

    pub(super) fn part(&self) -> &dyn Zpool {
        &*self.part
    }

    pub(super) fn name(&self) -> &'static str {
        self.name
    }

    pub(super) fn object_size_max(&self) -> usize {
        self.object_size_max
    }

    pub(super) fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    #[cold]
    fn lose(&self) {
        self.lost.fetch_add(1, Ordering::Relaxed);
    }

    #[inline]
    pub(super) fn insert(&self, object: &[u8]) -> Result<Handle, ZpoolError> {
        let failed = match self.store.call(|| self.part.insert(object)) {
            Ok(Ok(handle)) if handle.to_bits() >> Handle::BITS == 0 => return Ok(handle),
            Ok(Err(error)) => return Err(error),
            Ok(Ok(handle)) => format!("it named an object {handle:?}, over {} bits", Handle::BITS),
            Err(panicked) => panicked.to_string(),
        };
        self.lose(); // it may have kept the object
        Err(ZpoolError::Failed(failed))
    }

    /// Calls `reader` with an object's slot, at most once, and not where there is an error.
    #[inline]
    pub(super) fn read<T>(
        &self,
        handle: Handle,
        reader: impl FnOnce(&[u8]) -> T,
    ) -> Result<T, Corrupt> {
        let mut reader = Some(reader);
        let mut result = None;
        let read = self.store.call(|| {
            self.part.read(handle, &mut |slot| {
                // A panic of the reader is none of the pool's: it goes past it.
                if let Some(reader) = reader.take() {
                    result = Some(catch_unwind(AssertUnwindSafe(|| reader(slot))));
                }
            })
        });
        match (result, read) {
            // The reader's result counts, whatever the pool did after that.
            (Some(Ok(value)), _) => Ok(value),
            (Some(Err(panic)), _) => resume_unwind(panic),
            (None, Ok(Ok(()))) => Err(Corrupt("the pool did not show it".to_owned())),
            (None, Ok(Err(unknown))) => Err(Corrupt(unknown.to_string())),
            (None, Err(panicked)) => Err(Corrupt(format!("the pool: {panicked}"))),
        }
    }

    #[inline]
    pub(super) fn remove(&self, handle: Handle) {
        if !matches!(self.store.call(|| self.part.remove(handle)), Ok(Ok(()))) {
            self.lose();
        }
    }

    pub(super) fn compact(&self) -> usize {
        self.store.call(|| self.part.compact()).unwrap_or(0)
    }

    pub(super) fn stats(&self) -> ZpoolStats {
        self.store.call(|| self.part.stats()).unwrap_or_default()
    }

    pub(super) fn audit(&self) -> Result<(), AuditError> {
        let audited = self.store.call(|| self.part.audit());
        audited.unwrap_or_else(|panicked| Err(panicked.to_string().into()))
    }
}

/// The compressor.
#[derive(Debug)]
pub(super) struct Packer {
    part: Box<dyn Compressor>,
    store: StoreId,
    name: String,
    format: ObjectFormat,
}

impl Packer {
    pub(super) fn new(part: Box<dyn Compressor>, store: StoreId) -> Packer {
        let (name, format) = (part.name(), part.format());
        Packer { part, store, name, format }
    }

    pub(super) fn name(&self) -> String {
        self.name.clone()
    }

    pub(super) fn format(&self) -> &ObjectFormat {
        &self.format
    }

    /// Compresses a page; the length, 1 to [`PAGE_SIZE`].
    #[inline]
    pub(super) fn compress(
        &self,
        effort: Effort,
        page: &Page,
        out: &mut Output,
    ) -> Result<usize, CompressError> {
        let compressed = self.store.call(|| match effort {
            Effort::Fast => self.part.compress(page, out),
            Effort::Dense => self.part.compress_densely(page, out),
        });
        match compressed {
            Ok(Ok(bytes)) if (1..=PAGE_SIZE).contains(&bytes) => Ok(bytes),
            Ok(Ok(bytes)) => Err(CompressError::of_length(bytes)),
            Ok(Err(error)) => Err(error),
            Err(panicked) => Err(CompressError::Failed(panicked.to_string())),
        }
    }

    /// Compresses a unit; the length, at least 1, or `None` where it is not shorter than `out`.
    pub(super) fn compress_unit(
        &self,
        effort: Effort,
        pages: &[u8],
        out: &mut [u8],
    ) -> Option<usize> {
        let compressed = self.store.call(|| match effort {
            Effort::Fast => self.part.compress_unit(pages, out),
            Effort::Dense => self.part.compress_unit_densely(pages, out),
        });
        compressed.ok()?.ok().filter(|bytes| (1..=out.len()).contains(bytes))
    }

    pub(super) fn decompress_unit(&self, object: &[u8], pages: &mut [u8]) -> Result<(), Corrupt> {
        let done = self.store.call(|| self.part.decompress_unit(object, pages));
        done.unwrap_or_else(|panicked| Err(Corrupt(panicked.to_string())))
    }

    pub(super) fn is_dense(&self, object: &[u8]) -> Result<bool, Corrupt> {
        let is_dense = self.store.call(|| self.part.is_dense(object));
        is_dense.map_err(|panicked| Corrupt(panicked.to_string()))
    }

    #[inline]
    pub(super) fn decompress(&self, object: &[u8], page: &mut Page) -> Result<(), Corrupt> {
        let done = self.store.call(|| self.part.decompress(object, page));
        done.unwrap_or_else(|panicked| Err(Corrupt(panicked.to_string())))
    }
}

/// The backing.
#[derive(Debug)]
pub(super) struct Behind {
    part: Box<dyn Backing>,
    store: StoreId,
    name: String,
    block_count: u32,
}

impl Behind {
    pub(super) fn new(part: Box<dyn Backing>, store: StoreId) -> Behind {
        let (name, block_count) = (part.name(), part.block_count());
        Behind { part, store, name, block_count }
    }

    pub(super) fn part(&self) -> &dyn Backing {
        &*self.part
    }

    pub(super) fn name(&self) -> String {
        self.name.clone()
    }

    pub(super) fn block_count(&self) -> u32 {
        self.block_count
    }

    pub(super) fn write(&self, writes: &mut [BlockWrite<'_>]) {
        if let Err(panicked) = self.store.call(|| self.part.write(writes)) {
            let error = || io::Error::other(panicked.to_string());
            writes.iter_mut().for_each(|write| write.outcome = Err(error()));
        }
    }

    pub(super) fn read(&self, first: u32, blocks: &mut [Block]) -> io::Result<()> {
        let read = self.store.call(|| self.part.read(first, blocks));
        read.unwrap_or_else(|panicked| Err(io::Error::other(panicked.to_string())))
    }

    pub(super) fn discard(&self, blocks: Range<u32>) -> io::Result<()> {
        let done = self.store.call(|| self.part.discard(blocks));
        done.unwrap_or_else(|panicked| Err(io::Error::other(panicked.to_string())))
    }
}
