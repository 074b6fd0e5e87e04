//! The index: a map from page keys to entries.

#[doc(hidden)]
pub mod btree;
mod node_arena;
#[doc(hidden)]
pub mod radix;
#[doc(hidden)]
pub mod rbtree;
#[doc(hidden)]
pub mod xarray;

use std::fmt;
use std::num::NonZeroU64;
use std::ops::RangeInclusive;
use std::sync::Arc;

use thiserror::Error;

use crate::AuditError;
use crate::budget::{Budget, GrowError, OverBudget};
use crate::named_enum::named;
use crate::page::PageKey;

/// The value of an index per page: 64 bits of the owner's, never all zero.
///
/// An entry is its own identity: the owner gives no two pages of one key the same entry while a
/// thread that looked up the first may still come to remove it. The kernel's index does the same
/// with the address of a record of its own; here there is no such record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry(pub NonZeroU64);

const _: () = assert!(size_of::<Option<Entry>>() == 8);

/// The keys from the first to the last of them.
pub type KeyRange = RangeInclusive<PageKey>;

/// Looks at a key and its entry.
pub type Visit<'a> = &'a mut dyn FnMut(PageKey, Entry);

/// The entry that was there before, or why the index did not take the new one.
pub type Replaced = Result<Option<Entry>, IndexError>;

/// Why an index did not take an entry; it is as it was before the call.
#[non_exhaustive]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum IndexError {
    /// The heap gave no memory for a node, or there are no more numbers for one.
    #[error("cannot allocate memory for an index entry")]
    NoMemory,
    /// The budget has no room for a node.
    #[error("no headroom for an index entry: {0}")]
    OverBudget(#[from] OverBudget),
    /// The index has narrower keys.
    #[error("the key exceeds {max}, the largest key of this index")]
    KeyTooLarge {
        /// Its largest key.
        max: PageKey,
    },
}

impl From<GrowError> for IndexError {
    fn from(error: GrowError) -> Self {
        match error {
            GrowError::OverBudget(over) => IndexError::OverBudget(over),
            GrowError::NoMemory { .. } | GrowError::Full { .. } => IndexError::NoMemory,
        }
    }
}

/// A map from keys to entries. Not shared: its owner locks it.
pub trait Index: Send + fmt::Debug {
    /// The name it is chosen by.
    fn name(&self) -> &'static str;

    /// Puts an entry under its key, in one descent; the entry it replaced.
    ///
    /// # Errors
    ///
    /// [`IndexError`]; never where the key has an entry already.
    fn insert_or_replace(&mut self, key: PageKey, entry: Entry) -> Replaced;

    /// The entry of a key.
    fn get(&self, key: PageKey) -> Option<Entry>;

    /// Removes the entry of a key, where `only` is given if it is that one; the entry that was
    /// removed. Takes no memory.
    fn remove(&mut self, key: PageKey, only: Option<Entry>) -> Option<Entry>;

    /// Removes whatever entry a key has: for invalidation, where any will do. Takes no memory.
    fn take(&mut self, key: PageKey) -> Option<Entry> {
        self.remove(key, None)
    }

    /// Removes the entry of a key if it is still this one, for whoever looked it up earlier and let
    /// the lock go since; whether it was. Takes no memory.
    fn remove_if(&mut self, key: PageKey, entry: Entry) -> bool {
        self.remove(key, Some(entry)).is_some()
    }

    /// Removes entries with a key in `range`, as many as there are but at most `max`, in no
    /// particular order, and hands each to `taken`; how many. Takes no memory.
    fn take_range(&mut self, range: KeyRange, max: usize, taken: Visit<'_>) -> usize;

    /// Calls `visit` for each entry with a key in `range`, in no particular order.
    fn for_each(&self, range: KeyRange, visit: Visit<'_>);

    /// Entries held.
    fn count(&self) -> usize;

    /// Bytes of memory the index takes: its own struct, and beyond that what is charged to its
    /// budget.
    fn bytes(&self) -> usize;

    /// Walks the structure and checks it.
    ///
    /// # Errors
    ///
    /// What is wrong and where.
    fn audit(&self) -> Result<(), AuditError>;
}

/// The indexes, by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum IndexKind {
    /// A two-level page table.
    #[default]
    Radix,
    /// A B+-tree.
    BTree,
    /// A B+-tree for keys of 32 bits.
    BTree32,
    /// A radix tree of 64 ways, as kernels from 6.10 on have.
    XArray,
    /// The red-black tree of kernels up to 6.9.
    RbTree,
}

named!(
    IndexKind, "index",
    Radix => "radix", BTree => "btree", BTree32 => "btree32", XArray => "xarray",
    RbTree => "rbtree",
);

impl IndexKind {
    /// An empty index, bounded by the machine alone.
    pub fn build(self) -> Box<dyn Index> {
        self.build_on(&Arc::default())
    }

    /// An empty index whose memory is charged to `budget`.
    pub fn build_on(self, budget: &Arc<Budget>) -> Box<dyn Index> {
        match self {
            IndexKind::Radix => Box::new(radix::Radix::on(budget)),
            IndexKind::BTree => Box::new(btree::BTree64::on(budget)),
            IndexKind::BTree32 => Box::new(btree::BTree32::on(budget)),
            IndexKind::XArray => Box::new(xarray::XArray::on(budget)),
            IndexKind::RbTree => Box::new(rbtree::RbTree::on(budget)),
        }
    }
}
