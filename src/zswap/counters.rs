//! Counters with the names and meanings of the kernel's debugfs files.

use serde::Serialize;

/// What the store did and holds. Sums over shards: exact only while no other thread changes it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Counters {
    /// Bytes of host pages that the pool owns.
    pub pool_total_size: u64,
    /// Pages held now, same-filled ones included.
    pub stored_pages: u64,
    /// Pages held now as one repeated word.
    pub same_filled_pages: u64,
    /// Pages held now as they were, 4096 bytes.
    pub stored_incompressible_pages: u64,
    /// Stores that found the key taken, and replaced its page.
    pub duplicate_entry: u64,
    /// Stores refused as the pool could not get memory.
    pub reject_alloc_fail: u64,
    /// Stores refused as there was no memory for an index entry.
    pub reject_kmemcache_fail: u64,
    /// Stores refused as the compressor failed.
    pub reject_compress_fail: u64,
    /// Stores refused as the compressed page was too large for the pool.
    pub reject_compress_poor: u64,
    /// Loads that failed as the object was corrupt.
    pub decompress_fail: u64,
}

impl Counters {
    /// Adds another shard's counters.
    pub(super) fn add(&mut self, other: &Counters) {
        let Counters {
            pool_total_size,
            stored_pages,
            same_filled_pages,
            stored_incompressible_pages,
            duplicate_entry,
            reject_alloc_fail,
            reject_kmemcache_fail,
            reject_compress_fail,
            reject_compress_poor,
            decompress_fail,
        } = other;
        self.pool_total_size += pool_total_size;
        self.stored_pages += stored_pages;
        self.same_filled_pages += same_filled_pages;
        self.stored_incompressible_pages += stored_incompressible_pages;
        self.duplicate_entry += duplicate_entry;
        self.reject_alloc_fail += reject_alloc_fail;
        self.reject_kmemcache_fail += reject_kmemcache_fail;
        self.reject_compress_fail += reject_compress_fail;
        self.reject_compress_poor += reject_compress_poor;
        self.decompress_fail += decompress_fail;
    }
}
