//! Which page is where: the map from page keys to entries.

pub mod radix;

use std::fmt;
use std::ops::RangeInclusive;

use thiserror::Error;

use crate::page::PageKey;

/// What an index holds per page, 16 bytes. The index looks at the identity only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// The owner's: a handle, or the page's word.
    pub payload: u64,
    /// Tells this entry from an earlier or later one of the same key. Never 0.
    pub identity: u32,
    /// The owner's: what the payload is.
    pub tag: u32,
}

const _: () = assert!(size_of::<Entry>() == 16);

impl Entry {
    /// No entry: what room for entries is filled with.
    pub const ABSENT: Entry = Entry { payload: 0, identity: 0, tag: 0 };
}

/// The index could not get memory; it is as it was before the call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("no memory for an index entry")]
pub struct IndexFull;

/// A map from keys to entries. Not shared: its owner locks it.
pub trait Index: Send + fmt::Debug {
    /// The name it is chosen by.
    fn name(&self) -> &'static str;

    /// Puts an entry under its key, in one descent; the entry it replaced.
    ///
    /// # Errors
    ///
    /// [`IndexFull`]; never where the key has an entry already.
    fn insert_or_replace(&mut self, key: PageKey, entry: Entry)
    -> Result<Option<Entry>, IndexFull>;

    /// The entry of a key.
    fn get(&self, key: PageKey) -> Option<Entry>;

    /// Removes whatever entry a key has: for invalidation, where any will do.
    fn take(&mut self, key: PageKey) -> Option<Entry>;

    /// Removes the entry of a key if it is still the one of this identity: for whoever looked it up
    /// earlier and let the lock go since.
    fn remove_if(&mut self, key: PageKey, identity: u32) -> Option<Entry>;

    /// Removes entries with a key in `range`, as many as there are or as `taken` has room for, and
    /// puts them there, in no particular order; how many.
    fn take_range(&mut self, range: RangeInclusive<PageKey>, taken: &mut [Entry]) -> usize;

    /// Calls `visit` for each entry with a key in `range`, in no particular order.
    fn for_each(&self, range: RangeInclusive<PageKey>, visit: &mut dyn FnMut(PageKey, Entry));

    /// Entries held.
    fn count(&self) -> usize;

    /// Bytes of memory the index takes.
    fn bytes(&self) -> usize;

    /// Walks the structure and checks it.
    ///
    /// # Errors
    ///
    /// What is wrong and where.
    fn audit(&self) -> Result<(), String>;
}
