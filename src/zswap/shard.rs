//! A shard: the index of some of the 64 MiB regions of key space, behind one lock.

use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use super::counters::Counters;
use super::entry::Content;
use super::words::Words;
use crate::budget::Budget;
use crate::index::{Entry, Index, IndexError};
use crate::page::PageKey;

/// Pages in a region that is never divided between shards: 64 MiB, as the kernel splits its trees.
const REGION_BITS: u32 = 14;

/// Tries before a lock counts as held for long: some microseconds.
const SPINS: usize = 100;

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
    words: Words,
    /// Compressed bytes of the pages held.
    pub(super) compressed_bytes: u64,
    pub(super) counters: Counters,
}

impl Shards {
    /// `count` of them, a power of two.
    pub(super) fn new(
        count: usize,
        budget: &Arc<Budget>,
        index: impl Fn() -> Box<dyn Index>,
    ) -> Shards {
        assert!(count.is_power_of_two(), "{count} shards are no power of two");
        let shard = |_| {
            ShardLock(Mutex::new(Shard {
                index: index(),
                words: Words::new(budget),
                compressed_bytes: 0,
                counters: Counters::default(),
            }))
        };
        Shards((0..count).map(shard).collect())
    }

    /// The shard of a key. Neighbouring regions are in different shards.
    #[inline]
    pub(super) fn of(&self, key: PageKey) -> &ShardLock {
        &self.0[self.place(key.0 >> REGION_BITS)]
    }

    /// The shards of a range of keys, each once.
    pub(super) fn of_range(
        &self,
        keys: &RangeInclusive<PageKey>,
    ) -> impl Iterator<Item = &ShardLock> {
        let regions = keys.start().0 >> REGION_BITS..=keys.end().0 >> REGION_BITS;
        // As many neighbours as there are shards are in all of them.
        regions.take(self.0.len()).map(|region| &self.0[self.place(region)])
    }

    /// The shard of a region. Their number is a power of two.
    #[inline]
    fn place(&self, region: u64) -> usize {
        region as usize & (self.0.len() - 1)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &ShardLock> {
        self.0.iter()
    }

    pub(super) fn bytes(&self) -> usize {
        let bytes = |shard: &Shard| shard.index.bytes() + shard.words.bytes();
        let indexes = self.iter().map(|lock| bytes(&lock.lock())).sum::<usize>();
        self.0.len() * size_of::<ShardLock>() + indexes
    }
}

impl ShardLock {
    #[inline]
    pub(super) fn lock(&self) -> MutexGuard<'_, Shard> {
        // Poisoned only by a broken invariant; other keys are as good as they were.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks the shard if that takes a moment only.
    pub(super) fn lock_soon(&self) -> Option<MutexGuard<'_, Shard>> {
        for _ in 0..SPINS {
            match self.0.try_lock() {
                Ok(shard) => return Some(shard),
                Err(TryLockError::Poisoned(shard)) => return Some(shard.into_inner()),
                Err(TryLockError::WouldBlock) => std::hint::spin_loop(),
            }
        }
        None
    }
}

impl Shard {
    pub(super) fn index(&self) -> &dyn Index {
        &*self.index
    }

    /// The entry of a key, and what it says.
    pub(super) fn get(&self, key: PageKey) -> Option<(Entry, Content)> {
        let entry = self.index.get(key)?;
        Some((entry, Content::of(entry, &self.words)))
    }

    /// Puts a page in; what was stored under its key before.
    pub(super) fn put(
        &mut self,
        key: PageKey,
        content: Content,
    ) -> Result<Option<Content>, IndexError> {
        let entry = content.pack(&mut self.words)?;
        let replaced = self.index.insert_or_replace(key, entry).inspect_err(|_| {
            Content::release(entry, &mut self.words);
        })?;
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
        taken: &mut [Content],
    ) -> usize {
        let Shard { index, words, .. } = self;
        let mut room = taken.iter_mut();
        let count = index.take_range(keys, room.len(), &mut |_, entry| {
            *room.next().expect("at most as many") = Content::release(entry, words);
        });
        taken[..count].iter().for_each(|&content| self.count_held(content, u64::wrapping_sub));
        count
    }

    /// Removes the entry if it is still this one.
    pub(super) fn remove(&mut self, key: PageKey, entry: Entry) -> Option<Content> {
        self.index.remove_if(key, entry).then(|| self.forget(entry))
    }

    /// Calls `visit` for each page held.
    pub(super) fn for_each(&self, visit: &mut dyn FnMut(PageKey, Content)) {
        self.index.for_each(PageKey(0)..=PageKey(u64::MAX), &mut |key, entry| {
            visit(key, Content::of(entry, &self.words));
        });
    }

    /// Words that are kept beside the index.
    pub(super) fn words(&self) -> usize {
        self.words.used()
    }

    fn forget(&mut self, entry: Entry) -> Content {
        let content = Content::release(entry, &mut self.words);
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
        let shards = Shards::new(64, &Arc::default(), || Box::new(Radix::new()));
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
