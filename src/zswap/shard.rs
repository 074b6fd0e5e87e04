//! A shard: the index of some of the 64 MiB regions of key space, behind one lock.

use std::ops::RangeInclusive;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::counters::Counters;
use super::entry::Content;
use crate::index::{Entry, Index, IndexFull};
use crate::page::PageKey;

/// Pages in a region that is never divided between shards: 64 MiB, as the kernel splits its trees.
const REGION_BITS: u32 = 14;

/// Shards of a store. More than the threads that will ever meet in it.
const SHARDS: usize = 1 << 6; // 64

/// The shards, found by key.
#[derive(Debug)]
pub(super) struct Shards(Box<[ShardLock]>);

/// A shard's lock, on cache lines of its own.
#[derive(Debug)]
#[repr(align(128))]
pub(super) struct ShardLock(Mutex<Shard>);

#[derive(Debug)]
pub(super) struct Shard {
    index: Box<dyn Index>,
    next_identity: u32,
    /// Compressed bytes of the pages held.
    pub(super) compressed_bytes: u64,
    pub(super) counters: Counters,
}

impl Shards {
    pub(super) fn new(index: impl Fn() -> Box<dyn Index>) -> Shards {
        let shard = |_| {
            ShardLock(Mutex::new(Shard {
                index: index(),
                next_identity: 1,
                compressed_bytes: 0,
                counters: Counters::default(),
            }))
        };
        Shards((0..SHARDS).map(shard).collect())
    }

    /// The shard of a key. Neighbouring regions are in different shards.
    #[inline]
    pub(super) fn of(&self, key: PageKey) -> &ShardLock {
        &self.0[(key.0 >> REGION_BITS) as usize % SHARDS]
    }

    /// The shards of a range of keys, each once.
    pub(super) fn of_range(
        &self,
        keys: &RangeInclusive<PageKey>,
    ) -> impl Iterator<Item = &ShardLock> {
        let regions = keys.start().0 >> REGION_BITS..=keys.end().0 >> REGION_BITS;
        // As many neighbours as there are shards are in all of them.
        regions.take(SHARDS).map(|region| &self.0[region as usize % SHARDS])
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &ShardLock> {
        self.0.iter()
    }

    pub(super) fn bytes(&self) -> usize {
        let indexes = self.iter().map(|shard| shard.lock().index.bytes()).sum::<usize>();
        self.0.len() * size_of::<ShardLock>() + indexes
    }
}

impl ShardLock {
    #[inline]
    pub(super) fn lock(&self) -> MutexGuard<'_, Shard> {
        // Poisoned only by a broken invariant; other keys are as good as they were.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shard {
    pub(super) fn index(&self) -> &dyn Index {
        &*self.index
    }

    pub(super) fn get(&self, key: PageKey) -> Option<Entry> {
        self.index.get(key)
    }

    /// Puts a page in; what was stored under its key before.
    pub(super) fn put(
        &mut self,
        key: PageKey,
        content: Content,
    ) -> Result<Option<Content>, IndexFull> {
        let replaced = self.index.insert_or_replace(key, content.pack(self.next_identity))?;
        self.next_identity = self.next_identity.checked_add(1).unwrap_or(1);
        self.count_held(content, u64::wrapping_add);
        Ok(replaced.map(|entry| self.forget(entry)))
    }

    /// Removes whatever is under the key.
    pub(super) fn take(&mut self, key: PageKey) -> Option<Content> {
        self.index.take(key).map(|entry| self.forget(entry))
    }

    /// Removes what is under keys of a range, as far as `taken` has room; how many there were.
    pub(super) fn take_range(
        &mut self,
        keys: RangeInclusive<PageKey>,
        taken: &mut [Entry],
    ) -> usize {
        let count = self.index.take_range(keys, taken);
        for &entry in &taken[..count] {
            self.forget(entry);
        }
        count
    }

    /// Removes the entry if it is still the same one.
    pub(super) fn remove(&mut self, key: PageKey, identity: u32) -> Option<Content> {
        self.index.remove_if(key, identity).map(|entry| self.forget(entry))
    }

    fn forget(&mut self, entry: Entry) -> Content {
        let content = Content::unpack(entry);
        self.count_held(content, u64::wrapping_sub);
        content
    }

    fn count_held(&mut self, content: Content, add: fn(u64, u64) -> u64) {
        let held = &mut self.counters;
        held.stored_pages = add(held.stored_pages, 1);
        match content {
            Content::SameFilled(_) => held.same_filled_pages = add(held.same_filled_pages, 1),
            Content::AsIs { .. } => {
                held.stored_incompressible_pages = add(held.stored_incompressible_pages, 1);
            }
            Content::Compressed { .. } => {}
        }
        self.compressed_bytes = add(self.compressed_bytes, content.compressed_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::index::radix::Radix;

    #[test]
    fn a_range_has_the_shards_of_its_keys_once_each() {
        let shards = Shards::new(|| Box::new(Radix::new()));
        let region = |n: u64| n << REGION_BITS;
        for (start, end, expected) in [
            (7, 7, 1),
            (region(1) - 1, region(1), 2),
            (region(62), region(66) - 1, 4),
            (5, region(63), 64),
            (0, u64::MAX, 64),
            (region(9), region(8), 0),
        ] {
            let found: Vec<*const ShardLock> =
                shards.of_range(&(PageKey(start)..=PageKey(end))).map(std::ptr::from_ref).collect();
            assert_eq!(found.len(), expected, "{start:#x} to {end:#x}");
            let of = |key| std::ptr::from_ref(shards.of(PageKey(key)));
            assert!(expected == 0 || found.contains(&of(start)) && found.contains(&of(end)));
            assert!((1..found.len()).all(|n| !found[..n].contains(&found[n])));
        }
    }
}
