//! Recompression: a page that is in the pool is compressed once more, to take less memory. The same
//! as in zram, for a store with two compressors.
//!
//! The page may be loaded, replaced or removed meanwhile: nothing is locked while it is compressed.
//! The new object counts only if the old one is unchanged, byte for byte. An equal entry would not
//! prove that, because a handle may name another object by then.

use std::cell::RefCell;

use super::entry::{Content, Held};
use super::{Effort, LoadError, Zswap, with_room, with_scratch};
use crate::page::{PAGE_SIZE, Page, PageKey};

/// A thread's room for an object and its page.
struct Room {
    object: Page,
    page: Page,
}

thread_local! {
    static ROOM: RefCell<Box<Room>> = RefCell::new(Box::new(Room::new()));
}

impl Room {
    fn new() -> Room {
        Room { object: [0; PAGE_SIZE], page: [0; PAGE_SIZE] }
    }
}

impl Zswap {
    /// Compresses the page of `key` again, densely
    /// ([`Compressor::compress_densely`](crate::compressor::Compressor::compress_densely)), and
    /// keeps the result if it is smaller. Returns the bytes saved: 0 if the pool has no such page,
    /// the page is dense already, or there is no headroom for both objects for a moment.
    ///
    /// # Errors
    ///
    /// [`LoadError::Corrupt`]; the entry stays.
    pub fn recompress(&self, key: PageKey) -> Result<usize, LoadError> {
        self.id.enter();
        with_room(&ROOM, Room::new, |room| self.recompress_in(room, key))
    }

    fn recompress_in(&self, room: &mut Room, key: PageKey) -> Result<usize, LoadError> {
        let lock = self.shards.of(key);
        let shard = lock.lock();
        let Some((entry, held)) = shard.get(key) else { return Ok(0) };
        let Content::Compressed { bytes: bytes_before, .. } = held.content else { return Ok(0) };
        let bytes_before = usize::from(bytes_before);
        let before = &mut room.object[..bytes_before];
        let page = &mut room.page;
        let is_dense = self.with_object(key, held, shard, |object| {
            if self.compressor.is_dense(object)? {
                return Ok(true);
            }
            before.copy_from_slice(object);
            self.restore_object(held, object, page)?;
            Ok(false)
        })?;
        if is_dense {
            return Ok(0);
        }
        let made = with_scratch(|scratch| {
            let packed = self.compress(Effort::Dense, key, page, scratch).ok()?;
            let is_smaller = !packed.as_is && packed.bytes < bytes_before;
            let made = is_smaller
                .then(|| self.insert_packed(held.tenant, key, packed, scratch, || false).ok());
            made.flatten()
        });
        let Some(made) = made else { return Ok(0) };
        let bytes = made.content.compressed_bytes() as usize;
        let made = Held { written: held.written, ..made };
        let mut shard = lock.lock();
        let is_same =
            shard.get(key) == Some((entry, held)) && self.is_still_object(key, held, before);
        if !is_same || !shard.replace_object(key, entry, made) {
            drop(shard);
            self.release_object(made);
            return Ok(0);
        }
        shard.counters.recompressed_pages += 1;
        drop(shard);
        self.release_object(held);
        Ok(bytes_before - bytes)
    }

    /// Whether what is kept for `key`, whose shard is locked, is this object, byte for byte.
    pub(super) fn is_still_object(&self, key: PageKey, held: Held, object: &[u8]) -> bool {
        let handle = held.content.handle().expect("it is in the pool");
        let compare = |slot: &[u8]| self.check_slot(key, held, slot).is_ok_and(|now| now == object);
        self.zpool.read(handle, compare).unwrap_or(false)
    }
}
