//! The store: a compressed page cache, shared by threads.
//!
//! ```text
//!  store   key, page -> one word? -> compress -> zpool.insert -> index, what was there is freed
//!                                    (no lock)    (class lock)   (shard lock)
//!  load    key -> index -> word? fill : zpool.read -> decompress
//! ```
//!
//! - S1: after a store, whatever its outcome, the key never gives the page it had before; until
//!   then it gives that page. (Kernels up to 6.9 remove it first, later ones as here.)
//! - S2: a refused store changes nothing else; the caller keeps its page.
//! - S3: every handle is in one entry, and every object has a handle.
//! - S4: an entry that was looked up is removed by its key and identity, never by key alone.
//!
//! Locks are taken in the order shard, then pool; a load goes from one to the other hand over hand,
//! so that the object is pinned before its entry can go. Compression and decompression hold no
//! shard lock.

mod counters;
mod entry;
mod shard;
mod words;

use std::cell::RefCell;
use std::ops::RangeInclusive;
use std::sync::{Arc, MutexGuard};

use thiserror::Error;

pub use counters::Counters;
use entry::Content;
use shard::{Shard, Shards};

use crate::budget::{Budget, Counted};
use crate::compressor::{CompressError, Compressor, CompressorKind, Corrupt, OUTPUT_BYTES};
use crate::index::{Index, IndexError, IndexKind};
use crate::names::named;
use crate::page::{PAGE_SIZE, Page, PageKey, fill_with_word};
use crate::same_filled::SameFilled;
use crate::zpool::zsmalloc::ZsmallocOptions;
use crate::zpool::{Arena, HostPages, Zpool, ZpoolError, ZpoolKind};

/// What becomes of a page that does not shrink.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Incompressible {
    /// It is refused once the pool does not take it: kernels up to 6.17.
    #[default]
    Reject,
    /// It is kept as it is, in 4096 bytes, if compression does not save any: kernels from 6.18.
    StoreAsIs,
}

named!(
    Incompressible, "policy for incompressible pages",
    Reject => "reject", StoreAsIs => "store-as-is",
);

/// Entries of a range that are removed under one lock of their shard.
const RANGE_BATCH: usize = 64;

/// The longest header that can be put in front of an object, in bytes.
pub const OBJECT_HEADER_MAX: usize = 64;

/// What a store is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ZswapOptions {
    /// The allocator.
    pub zpool: ZpoolKind,
    /// What can be chosen about it, where it is zsmalloc.
    pub zsmalloc: ZsmallocOptions,
    /// The compressor.
    pub compressor: CompressorKind,
    /// The index of a shard.
    pub index: IndexKind,
    /// Shards, each an index with a lock of its own; a power of two. 64 are more than the threads
    /// that will ever meet in one; 1 is what kernels up to 6.8 had for a swap device.
    pub shards: usize,
    /// The policy for pages that do not shrink.
    pub incompressible: Incompressible,
    /// Bytes in front of each object that hold its key and are checked at load, 0 to
    /// [`OBJECT_HEADER_MAX`]. Kernel 6.1 puts 8 there where the allocator can evict (zbud, z3fold).
    pub object_header_bytes: usize,
    /// The budget, in host pages.
    pub pool_pages_max: usize,
    /// What it is on.
    pub counted: Counted,
    /// How large the pages are that the kernel gives.
    pub host_pages: HostPages,
    /// Which pages are kept as one word.
    pub same_filled: SameFilled,
}

impl Default for ZswapOptions {
    /// zsmalloc and lz4, bounded by the machine alone.
    fn default() -> Self {
        ZswapOptions {
            zpool: ZpoolKind::Zsmalloc,
            zsmalloc: ZsmallocOptions::default(),
            compressor: CompressorKind::Lz4,
            index: IndexKind::Radix,
            shards: 1 << 6,
            incompressible: Incompressible::Reject,
            object_header_bytes: 0,
            pool_pages_max: usize::MAX,
            counted: Counted::Pool,
            host_pages: HostPages::Small,
            same_filled: SameFilled::default(),
        }
    }
}

/// How a stored page is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stored {
    /// As its one word.
    SameFilled,
    /// Compressed to `bytes`.
    Compressed {
        /// Length of the object without its header.
        bytes: usize,
    },
    /// As it was.
    AsIs,
}

/// Who refused a compressed page as too large. A value, not a text: refusing takes no memory.
#[derive(Debug, Error)]
pub enum TooLarge {
    /// The compressor.
    #[error(transparent)]
    Compressor(CompressError),
    /// The pool.
    #[error(transparent)]
    Zpool(ZpoolError),
}

/// Why a page was not stored. The caller's page is untouched; the key holds nothing now.
#[derive(Debug, Error)]
pub enum StoreError {
    /// The compressed page is too large for the pool (`reject_compress_poor`).
    #[error("page {key} does not shrink enough: {reason}")]
    CompressPoor {
        /// The page.
        key: PageKey,
        /// What it came to, and the limit.
        reason: TooLarge,
    },
    /// The compressor failed (`reject_compress_fail`).
    #[error("page {key} could not be compressed: {reason}")]
    CompressFail {
        /// The page.
        key: PageKey,
        /// The compressor's words.
        reason: String,
    },
    /// The pool got no memory (`reject_alloc_fail`).
    #[error("no room in the pool for page {key}")]
    AllocFail {
        /// The page.
        key: PageKey,
        /// What the pool said.
        #[source]
        source: ZpoolError,
    },
    /// No memory for an index entry (`reject_kmemcache_fail`).
    #[error("no room in the index for page {key}")]
    IndexFull {
        /// The page.
        key: PageKey,
        /// What the index said.
        #[source]
        source: IndexError,
    },
}

/// A page is held but cannot be restored; its entry stays. What is in the caller's buffer is
/// unspecified.
#[derive(Debug, Error)]
#[error("page {key} is corrupt in {zpool} ({compressor}, object of {bytes} bytes)")]
pub struct LoadError {
    /// The page.
    pub key: PageKey,
    /// The allocator.
    pub zpool: &'static str,
    /// The compressor.
    pub compressor: String,
    /// The object's length.
    pub bytes: usize,
    /// What is wrong with it.
    #[source]
    pub source: Corrupt,
}

/// Memory of a store, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MemoryUse {
    /// Host pages that the pool owns: the kernel's `pool_total_size`.
    pub pool_bytes: u64,
    /// The most there were at once.
    pub pool_peak_bytes: u64,
    /// Sum of the compressed lengths, which nothing takes less than.
    pub compressed_bytes: u64,
    /// Index nodes and shards.
    pub index_bytes: u64,
    /// The allocator's tables: handles, page descriptors, free lists.
    pub zpool_metadata_bytes: u64,
    /// Resident host pages that the arena keeps for the next caller: at most 256 KiB, and the rest
    /// of a huge page.
    pub reserve_bytes: u64,
}

impl MemoryUse {
    /// Everything beside the pool's host pages.
    pub fn metadata_bytes(&self) -> u64 {
        self.index_bytes + self.zpool_metadata_bytes
    }
}

/// The compressed page store.
#[derive(Debug)]
pub struct Zswap {
    zpool: Box<dyn Zpool>,
    arena: Arc<Arena>,
    compressor: Box<dyn Compressor>,
    incompressible: Incompressible,
    object_header_bytes: usize,
    same_filled: SameFilled,
    shards: Shards,
}

/// A thread's room for one object: header, then whatever the compressor makes.
struct Scratch {
    bytes: [u8; OBJECT_HEADER_MAX + OUTPUT_BYTES],
}

thread_local! {
    static SCRATCH: RefCell<Box<Scratch>> =
        RefCell::new(Box::new(Scratch { bytes: [0; OBJECT_HEADER_MAX + OUTPUT_BYTES] }));
}

impl Zswap {
    /// An empty store.
    ///
    /// # Panics
    ///
    /// If an option is out of its range.
    pub fn new(options: ZswapOptions) -> Zswap {
        Zswap::with_compressor(options, options.compressor.build())
    }

    /// An empty store with a compressor that has no name: the one of `options` is not looked at.
    ///
    /// # Panics
    ///
    /// If an option is out of its range.
    pub fn with_compressor(options: ZswapOptions, compressor: Box<dyn Compressor>) -> Zswap {
        let max_bytes = (options.pool_pages_max as u64).saturating_mul(PAGE_SIZE as u64);
        let budget = Arc::new(Budget::new(max_bytes, options.counted));
        let arena = Arc::new(Arena::on(Arc::clone(&budget), options.host_pages));
        let zpool = options.zpool.build(Arc::clone(&arena), options.zsmalloc);
        Zswap::from_parts(options, arena, zpool, compressor, || options.index.build_on(&budget))
    }

    /// An empty store of these parts, for parts that have no name: of `options` only the policies
    /// are looked at. `zpool` must be empty and alone on `arena`; an index on another budget than
    /// the arena's is not part of the limit.
    ///
    /// # Panics
    ///
    /// If an option is out of its range.
    pub fn from_parts(
        options: ZswapOptions,
        arena: Arc<Arena>,
        zpool: Box<dyn Zpool>,
        compressor: Box<dyn Compressor>,
        index: impl Fn() -> Box<dyn Index>,
    ) -> Zswap {
        assert!(
            options.object_header_bytes <= OBJECT_HEADER_MAX,
            "an object header of {} bytes is over {OBJECT_HEADER_MAX}",
            options.object_header_bytes
        );
        let shards = Shards::new(options.shards, arena.budget(), index);
        Zswap {
            zpool,
            arena,
            compressor,
            incompressible: options.incompressible,
            object_header_bytes: options.object_header_bytes,
            same_filled: options.same_filled,
            shards,
        }
    }

    /// Keeps a copy of `page` under `key`. What the key held before is gone, also where the page is
    /// refused.
    ///
    /// # Errors
    ///
    /// [`StoreError`]; counted by its reason, and nothing but the key's earlier page has changed.
    pub fn store(&self, key: PageKey, page: &Page) -> Result<Stored, StoreError> {
        if let Some(word) = self.same_filled.word(page) {
            self.put(key, Content::SameFilled(word))
                .map_err(|source| self.refuse(StoreError::IndexFull { key, source }))?;
            return Ok(Stored::SameFilled);
        }
        let content =
            SCRATCH.with_borrow_mut(|scratch| self.insert_object(key, page, &mut scratch.bytes));
        let content = content.map_err(|error| {
            self.drop_stale(key);
            self.refuse(error)
        })?;
        if let Err(source) = self.put(key, content) {
            self.free(content);
            return Err(self.refuse(StoreError::IndexFull { key, source }));
        }
        Ok(match content {
            Content::Compressed { bytes, .. } => Stored::Compressed { bytes: usize::from(bytes) },
            _ => Stored::AsIs,
        })
    }

    /// Fills `page` with the page of `key` and keeps it; `false` where the key holds none, and
    /// `page` is untouched.
    ///
    /// # Errors
    ///
    /// [`LoadError`].
    pub fn load(&self, key: PageKey, page: &mut Page) -> Result<bool, LoadError> {
        let shard = self.shards.of(key).lock();
        let Some((_, content)) = shard.get(key) else { return Ok(false) };
        self.fetch(key, content, shard, page, || ())?;
        Ok(true)
    }

    /// Fills `page` with the page of `key` and drops it from the store; `false` where the key holds
    /// none. Of several threads that ask for the same page, one gets it.
    ///
    /// # Errors
    ///
    /// [`LoadError`]; the entry stays.
    pub fn load_exclusive(&self, key: PageKey, page: &mut Page) -> Result<bool, LoadError> {
        let lock = self.shards.of(key);
        loop {
            let mut shard = lock.lock();
            let Some((entry, content)) = shard.get(key) else { return Ok(false) };
            if content.handle().is_none() {
                shard.take(key);
                self.fetch(key, content, shard, page, || ())?;
                return Ok(true);
            }
            // Removed only once it has been restored, and while it is pinned: its handle names it
            // and no later object. Whoever holds the shard may wait for the pin, so not for long.
            let mut removed = None;
            self.fetch(key, content, shard, page, || {
                removed = lock.lock_soon().and_then(|mut shard| shard.remove(key, entry));
            })?;
            if let Some(content) = removed {
                self.free(content);
                return Ok(true);
            }
            // It went, or changed, or the shard is busy: look again.
            std::thread::yield_now();
        }
    }

    /// Forgets the page of `key`; whether there was one.
    pub fn invalidate(&self, key: PageKey) -> bool {
        let removed = self.shards.of(key).lock().take(key);
        removed.inspect(|&content| self.free(content)).is_some()
    }

    /// Forgets every page with a key in `keys`; how many there were.
    pub fn invalidate_range(&self, keys: RangeInclusive<PageKey>) -> usize {
        let mut count = 0;
        // A batch at a time: freeing takes no memory, and the shard is let go in between.
        let mut taken = [Content::SameFilled(0); RANGE_BATCH];
        for lock in self.shards.of_range(&keys) {
            let mut full = true;
            while full {
                let batch = lock.lock().take_range(keys.clone(), &mut taken);
                taken[..batch].iter().for_each(|&content| self.free(content));
                count += batch;
                full = batch == taken.len();
            }
        }
        count
    }

    /// Packs the pool's objects together and gives every page that comes free back to the kernel;
    /// the host pages that the packing freed.
    pub fn compact(&self) -> usize {
        let freed = self.zpool.compact();
        self.arena.trim();
        freed
    }

    /// What the store did and holds.
    pub fn counters(&self) -> Counters {
        let mut sum = Counters {
            pool_total_size: (self.zpool.stats().pool_pages * PAGE_SIZE) as u64,
            ..Counters::default()
        };
        self.shards.iter().for_each(|shard| sum.add(&shard.lock().counters));
        sum
    }

    /// What the store's memory is used for.
    pub fn memory(&self) -> MemoryUse {
        let zpool = self.zpool.stats();
        let arena = self.arena.stats();
        MemoryUse {
            pool_bytes: (zpool.pool_pages * PAGE_SIZE) as u64,
            pool_peak_bytes: (arena.peak_pages * PAGE_SIZE) as u64,
            compressed_bytes: self.shards.iter().map(|shard| shard.lock().compressed_bytes).sum(),
            index_bytes: self.shards.bytes() as u64,
            zpool_metadata_bytes: (zpool.metadata_bytes + arena.metadata_bytes) as u64,
            reserve_bytes: (arena.reserve_pages * PAGE_SIZE) as u64,
        }
    }

    /// What the store may take, and has taken.
    pub fn budget(&self) -> &Budget {
        self.arena.budget()
    }

    /// The allocator.
    pub fn zpool(&self) -> &dyn Zpool {
        &*self.zpool
    }

    /// Walks every structure and checks it. Only while no other thread uses the store.
    ///
    /// # Errors
    ///
    /// The first broken invariant, in words.
    pub fn audit(&self) -> Result<(), String> {
        self.zpool.audit().map_err(|error| format!("{}: {error}", self.zpool.name()))?;
        let (mut objects, mut compressed_bytes) = (0, 0);
        for lock in self.shards.iter() {
            let shard = lock.lock();
            shard.index().audit().map_err(|e| format!("{}: {e}", shard.index().name()))?;
            let mut broken = None;
            let (mut bytes, mut words) = (0, 0);
            shard.for_each(&mut |key, content| {
                bytes += content.compressed_bytes();
                words += usize::from(content.has_slot());
                let Some(handle) = content.handle() else { return };
                objects += 1;
                if let Err(error) = self.zpool.read(handle, &mut |_| ()) {
                    broken = Some(format!("S3: page {key}: {error}"));
                }
            });
            if let Some(error) = broken {
                return Err(error);
            }
            if bytes != shard.compressed_bytes {
                return Err(format!(
                    "entries sum to {bytes} compressed bytes, {} counted",
                    shard.compressed_bytes
                ));
            }
            if words != shard.words() {
                return Err(format!("entries name {words} words, {} are kept", shard.words()));
            }
            compressed_bytes += bytes;
        }
        let stats = self.zpool.stats();
        if stats.objects != objects {
            return Err(format!("S3: {objects} entries with objects, {} objects", stats.objects));
        }
        if ((stats.pool_pages * PAGE_SIZE) as u64) < compressed_bytes {
            return Err(format!(
                "{} host pages cannot hold {compressed_bytes} bytes",
                stats.pool_pages
            ));
        }
        Ok(())
    }

    /// Restores the page of `key`, which `content` is about. The shard is let go as soon as the
    /// object is pinned; `restored` is called before the pin ends.
    fn fetch(
        &self,
        key: PageKey,
        content: Content,
        shard: MutexGuard<'_, Shard>,
        page: &mut Page,
        restored: impl FnOnce(),
    ) -> Result<(), LoadError> {
        let handle = match content {
            Content::SameFilled(word) => {
                drop(shard);
                fill_with_word(page, word);
                return Ok(());
            }
            Content::Compressed { handle, .. } | Content::AsIs { handle } => handle,
        };
        let mut once = Some((shard, restored));
        let mut result = Ok(());
        self.zpool
            .read(handle, &mut |slot| {
                let (shard, restored) = once.take().expect("a slot is read once");
                // The pool pins the object from here on: the entry may go now.
                drop(shard);
                result = self.restore(key, content, slot, page);
                if result.is_ok() {
                    restored();
                }
            })
            .expect("S3: an entry's handle names an object");
        result.map_err(|source| {
            self.shards.of(key).lock().counters.decompress_fail += 1;
            LoadError {
                key,
                zpool: self.zpool.name(),
                compressor: self.compressor.name(),
                bytes: content.compressed_bytes() as usize,
                source,
            }
        })
    }

    /// Turns a slot of the pool back into the page.
    fn restore(
        &self,
        key: PageKey,
        content: Content,
        slot: &[u8],
        page: &mut Page,
    ) -> Result<(), Corrupt> {
        let (header, data) = slot.split_at(self.object_header_bytes);
        if !header.is_empty() && header != &object_header(key)[..header.len()] {
            return Err(Corrupt("its header names another page".to_owned()));
        }
        match content {
            Content::Compressed { bytes, .. } => {
                self.compressor.decompress(&data[..usize::from(bytes)], page)
            }
            _ => {
                page.copy_from_slice(&data[..PAGE_SIZE]);
                Ok(())
            }
        }
    }

    /// Compresses a page and puts the result into the pool.
    fn insert_object(
        &self,
        key: PageKey,
        page: &Page,
        scratch: &mut [u8; OBJECT_HEADER_MAX + OUTPUT_BYTES],
    ) -> Result<Content, StoreError> {
        // The header ends where the compressor's output starts.
        let (front, out) =
            scratch.split_first_chunk_mut::<OBJECT_HEADER_MAX>().expect("scratch has both");
        let out: &mut [u8; OUTPUT_BYTES] = out.try_into().expect("scratch has both");
        let header_bytes = self.object_header_bytes;
        front[OBJECT_HEADER_MAX - header_bytes..]
            .copy_from_slice(&object_header(key)[..header_bytes]);
        let bytes = match self.compressor.compress(page, out) {
            Ok(bytes) if bytes < PAGE_SIZE || self.incompressible == Incompressible::Reject => {
                Some(bytes)
            }
            Err(reason) if self.incompressible == Incompressible::Reject => {
                return Err(match reason {
                    CompressError::TooBig => {
                        StoreError::CompressPoor { key, reason: TooLarge::Compressor(reason) }
                    }
                    CompressError::Failed(reason) => StoreError::CompressFail { key, reason },
                });
            }
            _ => {
                out[..PAGE_SIZE].copy_from_slice(page);
                None
            }
        };
        let start = OBJECT_HEADER_MAX - header_bytes;
        let end = OBJECT_HEADER_MAX + bytes.unwrap_or(PAGE_SIZE);
        let object = &scratch[start..end];
        let handle = match self.zpool.insert(object) {
            // What the key held before may have been in the way.
            Err(ZpoolError::NoPages(_) | ZpoolError::NoTables(_)) if self.drop_stale(key) => {
                self.zpool.insert(object)
            }
            result => result,
        };
        let handle = handle.map_err(|source| match source {
            ZpoolError::TooBig { .. } | ZpoolError::Empty => {
                StoreError::CompressPoor { key, reason: TooLarge::Zpool(source) }
            }
            source => StoreError::AllocFail { key, source },
        })?;
        Ok(match bytes {
            Some(bytes) => Content::Compressed { handle, bytes: bytes as u16 }, // <= 4096
            None => Content::AsIs { handle },
        })
    }

    /// Puts an entry into the index and frees what it replaced; what was there goes also where that
    /// fails (S1): a long word needs memory beside the index, whether the key has an entry or not.
    fn put(&self, key: PageKey, content: Content) -> Result<(), IndexError> {
        let mut shard = self.shards.of(key).lock();
        let put = shard.put(key, content);
        let stale = match put {
            Ok(replaced) => replaced,
            Err(_) => shard.take(key),
        };
        shard.counters.duplicate_entry += u64::from(stale.is_some());
        drop(shard);
        stale.inspect(|&content| self.free(content));
        put.map(drop)
    }

    /// Removes what an earlier store left under the key, as this one fails (S1); whether there was
    /// anything.
    fn drop_stale(&self, key: PageKey) -> bool {
        let mut shard = self.shards.of(key).lock();
        let stale = shard.take(key);
        shard.counters.duplicate_entry += u64::from(stale.is_some());
        drop(shard);
        stale.inspect(|&content| self.free(content)).is_some()
    }

    /// Frees the object of content that is in no entry any more.
    fn free(&self, content: Content) {
        if let Some(handle) = content.handle() {
            self.zpool.remove(handle).expect("S3: an entry's handle names an object");
        }
    }

    /// Counts a refusal by its reason.
    fn refuse(&self, error: StoreError) -> StoreError {
        let (StoreError::CompressPoor { key, .. }
        | StoreError::CompressFail { key, .. }
        | StoreError::AllocFail { key, .. }
        | StoreError::IndexFull { key, .. }) = error;
        let counters = &mut self.shards.of(key).lock().counters;
        *match error {
            StoreError::CompressPoor { .. } => &mut counters.reject_compress_poor,
            StoreError::CompressFail { .. } => &mut counters.reject_compress_fail,
            StoreError::AllocFail { .. } => &mut counters.reject_alloc_fail,
            StoreError::IndexFull { .. } => &mut counters.reject_kmemcache_fail,
        } += 1;
        error
    }
}

/// The key, padded with zeros to the longest header.
fn object_header(key: PageKey) -> [u8; OBJECT_HEADER_MAX] {
    let mut header = [0; OBJECT_HEADER_MAX];
    header[..size_of::<u64>()].copy_from_slice(&key.0.to_le_bytes());
    header
}
