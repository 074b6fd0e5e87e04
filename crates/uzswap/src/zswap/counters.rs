//! Counters with the names and meanings of the kernel's: those of debugfs, and of `/proc/vmstat`
//! where it has them there.

#[cfg(feature = "serde")]
use serde::{Deserialize, Serialize};

/// Defines the counters: their fields, sums and list.
macro_rules! counters {
    ($($(#[doc = $help:literal])+ $kind:ident $name:ident,)+) => {
        /// What the store did and holds. Sums over shards: exact only while no other thread changes
        /// it.
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        #[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
        #[cfg_attr(feature = "serde", serde(default))]
        pub struct Counters {
            $($(#[doc = $help])+ pub $name: u64,)+
        }

        impl Counters {
            /// Adds another shard's counters.
            pub(super) fn add(&mut self, other: &Counters) {
                $(self.$name += other.$name;)+
            }

            /// Adds what another store did: its totals, but nothing that it holds.
            pub(super) fn add_totals(&mut self, other: &Counters) {
                $(if matches!(CounterKind::$kind, CounterKind::Total) {
                    self.$name += other.$name;
                })+
            }

            /// All of them, with what they mean.
            pub fn list(&self) -> impl Iterator<Item = Counter> {
                [$(Counter {
                    name: stringify!($name),
                    help: concat!($($help),+).trim_ascii(),
                    kind: CounterKind::$kind,
                    value: self.$name,
                }),+]
                .into_iter()
            }
        }
    };
}

/// One counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counter {
    /// Its name.
    pub name: &'static str,
    /// What it counts.
    pub help: &'static str,
    /// How it changes.
    pub kind: CounterKind,
    /// Its value.
    pub value: u64,
}

/// How a counter changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CounterKind {
    /// It tells what is held now.
    Held,
    /// It only grows.
    Total,
}

counters! {
    /// Bytes of host pages that the pool owns.
    Held pool_total_size,
    /// Pages held in memory now, same-filled ones included.
    Held stored_pages,
    /// Pages held now as one repeated word.
    Held same_filled_pages,
    /// Pages held now as they were, 4096 bytes.
    Held stored_incompressible_pages,
    /// Pages held now in units, compressed together with their neighbours.
    Held unit_pages,
    /// Pages held now in the backing alone.
    Held backing_pages,
    /// Pages held now in the pool that the backing has too.
    Held clean_pages,
    /// Stores that kept the page, in memory or in the backing.
    Total zswpout,
    /// Loads from memory.
    Total zswpin,
    /// Loads from the backing.
    Total backing_loads,
    /// Pages that a load from the backing brought back into the pool.
    Total promoted_pages,
    /// Loads that took the page out of the store.
    Total exclusive_loads,
    /// Pages that were invalidated.
    Total invalidated_pages,
    /// Stores that found the key taken; its page is gone.
    Total duplicate_entry,
    /// Stores that found the pool at its limit.
    Total pool_limit_hit,
    /// Stores refused as the pool could not get memory.
    Total reject_alloc_fail,
    /// Stores refused as there was no memory for an index entry.
    Total reject_kmemcache_fail,
    /// Stores refused as the compressor failed.
    Total reject_compress_fail,
    /// Stores refused as the compressed page was too large for the pool.
    Total reject_compress_poor,
    /// Stores refused as their tenant was at its limit.
    Total reject_tenant_limit,
    /// Writebacks that failed; the page stays in memory.
    Total reject_reclaim_fail,
    /// Pages written back from the pool to the backing.
    Total written_back_pages,
    /// Pages that left the pool without a write, as the backing still had them.
    Total dropped_clean_pages,
    /// Pages that the pool refused and the backing took.
    Total written_through_pages,
    /// Pages that the pool refused and keeps as they are until the backing takes them.
    Total staged_pages,
    /// Pages that were compressed once more, to take less room.
    Total recompressed_pages,
    /// Units of pages that were compressed together.
    Total stored_units,
    /// Times that a unit was decompressed, for one page or for several that a thread loads in turn.
    Total opened_units,
    /// Times that a unit was decompressed for one page, as far as its thread has opened another.
    Total units_opened_for_one,
    /// Units that recompression made of stored pages.
    Total joined_units,
    /// Units of which few pages were left, each of which is an object of its own since.
    Total split_units,
    /// Loads that failed as the object was corrupt, and writebacks.
    Total decompress_fail,
    /// Loads that the backing failed.
    Total backing_read_fail,
}
