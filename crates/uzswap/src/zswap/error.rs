//! Outcomes and errors of a store: how a page is kept, and why it is not.

use std::collections::TryReserveError;
use std::io;

use thiserror::Error;

use super::tenant::OverTenantLimit;
use super::tenant_id::TenantId;
use crate::budget::GrowError;
use crate::compressor::{CompressError, Corrupt};
use crate::index::IndexError;
use crate::options::OptionError;
use crate::page::PageKey;
use crate::zpool::{ArenaError, ZpoolError};

/// How a stored page is kept.
#[non_exhaustive]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stored {
    /// As its one word.
    SameFilled,
    /// Compressed to `bytes`.
    Compressed {
        /// Length of the object without its header.
        bytes: usize,
    },
    /// As it was. Where such pages are refused, until the next batch takes it to the backing.
    AsIs,
    /// In the backing: the pool refused it, and it could not wait there for others.
    WrittenThrough,
}

/// Why a store was not made.
#[non_exhaustive]
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum BuildError {
    /// An option is out of its range.
    #[error(transparent)]
    Option(#[from] OptionError),
    /// Only records say which page was used when, and so which goes to a backing.
    #[error("a store with a backing needs records; set the option records, or omit the backing")]
    BackingWithoutRecords,
    /// The compressor does not take so many pages together.
    #[error("compressor '{compressor}' does not compress units of {pages} pages; omit the units")]
    NoUnits {
        /// The compressor.
        compressor: String,
        /// Pages of a unit.
        pages: usize,
    },
    /// No memory for the tables of the backing.
    #[error("cannot allocate the tables of the backing")]
    NoMemory(#[from] TryReserveError),
}

/// The part that refused a compressed page as too large. A value, not a text: refusing takes no
/// memory.
#[non_exhaustive]
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
#[non_exhaustive]
#[derive(Debug, Error)]
pub enum StoreError {
    /// The compressed page is too large for the pool (`reject_compress_poor`).
    #[error("page {key} does not compress enough: {reason}")]
    CompressPoor {
        /// The page.
        key: PageKey,
        /// Its compressed size, and the limit.
        reason: TooLarge,
    },
    /// The compressor failed (`reject_compress_fail`).
    #[error("cannot compress page {key}: {reason}")]
    CompressFail {
        /// The page.
        key: PageKey,
        /// The compressor's words.
        reason: String,
    },
    /// The pool was full, and has not come down to the accept threshold since (`pool_limit_hit`).
    #[error(
        "page {key} is refused: the pool reached its limit of {max_bytes} bytes and accepts pages \
         again at {accept_bytes} bytes (now {pool_bytes})"
    )]
    PoolLimit {
        /// The page.
        key: PageKey,
        /// Its size now.
        pool_bytes: u64,
        /// The limit.
        max_bytes: u64,
        /// The accept threshold.
        accept_bytes: u64,
    },
    /// The tenant's limit, or that of one above it (`reject_tenant_limit`).
    #[error("page {key} is refused")]
    TenantLimit {
        /// The page.
        key: PageKey,
        /// The tenant of the limit, and its usage.
        #[source]
        source: OverTenantLimit,
    },
    /// The tenant is none of this store's, or was removed.
    #[error("page {key} is refused: tenant {tenant} does not exist or was removed")]
    NoTenant {
        /// The page.
        key: PageKey,
        /// Whose it was to be.
        tenant: TenantId,
    },
    /// The pool got no memory (`reject_alloc_fail`).
    #[error("no headroom in the pool for page {key}")]
    AllocFail {
        /// The page.
        key: PageKey,
        /// What the pool said.
        #[source]
        source: ZpoolError,
    },
    /// No memory for an index entry (`reject_kmemcache_fail`).
    #[error("no headroom in the index for page {key}")]
    IndexFull {
        /// The page.
        key: PageKey,
        /// What the index said.
        #[source]
        source: IndexError,
    },
    /// The pool refused it, and the backing too.
    #[error("cannot write page {key} to {backing} ({refused})")]
    Backing {
        /// The page.
        key: PageKey,
        /// The backing.
        backing: String,
        /// Why the pool refused it.
        refused: Box<StoreError>,
        /// The error of the backing; `StorageFull` if it has no free block.
        #[source]
        source: io::Error,
    },
}

impl StoreError {
    /// Whether the budget was used up, rather than the machine's memory.
    pub fn is_pool_limit(&self) -> bool {
        match self {
            StoreError::PoolLimit { .. } => true,
            StoreError::AllocFail { source, .. } => matches!(
                source,
                ZpoolError::NoPages(ArenaError::Limit { .. })
                    | ZpoolError::NoTables(GrowError::OverBudget(_))
            ),
            StoreError::IndexFull { source, .. } => matches!(source, IndexError::OverBudget(_)),
            StoreError::Backing { refused, .. } => refused.is_pool_limit(),
            _ => false,
        }
    }
}

/// A page is held but cannot be restored; its entry stays. The content of the caller's buffer is
/// unspecified.
#[non_exhaustive]
#[derive(Debug, Error)]
pub enum LoadError {
    /// The object found is not the one that was stored.
    #[error("page {key} is corrupt in {place} ({compressor}, object of {bytes} bytes)")]
    Corrupt {
        /// The page.
        key: PageKey,
        /// The allocator, or the backing.
        place: String,
        /// The compressor.
        compressor: String,
        /// The object's length.
        bytes: usize,
        /// What is wrong with it.
        #[source]
        source: Corrupt,
    },
    /// The backing did not give it.
    #[error("cannot read page {key} from block {block} of {backing}")]
    Backing {
        /// The page.
        key: PageKey,
        /// The backing.
        backing: String,
        /// The block it starts in.
        block: u32,
        /// What the backing said.
        #[source]
        source: io::Error,
    },
}

impl LoadError {
    /// The page.
    pub fn key(&self) -> PageKey {
        match self {
            LoadError::Corrupt { key, .. } | LoadError::Backing { key, .. } => *key,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::budget::{Counted, OverBudget};

    #[test]
    fn a_refusal_says_whether_the_limit_is_its_reason() {
        let key = PageKey(1);
        let over =
            OverBudget { asked_bytes: 1, used_bytes: 2, max_bytes: 2, counted: Counted::Pool };
        let no_memory = || ZpoolError::NoTables(GrowError::NoMemory { bytes: 1 });
        let limits = || {
            let pages = ArenaError::Limit { pages: 1, source: over };
            [
                StoreError::PoolLimit { key, pool_bytes: 2, max_bytes: 2, accept_bytes: 1 },
                StoreError::AllocFail { key, source: ZpoolError::NoPages(pages) },
                StoreError::AllocFail {
                    key,
                    source: ZpoolError::NoTables(GrowError::OverBudget(over)),
                },
                StoreError::IndexFull { key, source: IndexError::OverBudget(over) },
            ]
        };
        let others = || {
            let tenant = TenantId::ROOT;
            let at_limit = OverTenantLimit { tenant, bytes: 1, current_bytes: 2, max_bytes: 2 };
            let too_large = TooLarge::Compressor(CompressError::TooBig);
            [
                StoreError::CompressPoor { key, reason: too_large },
                StoreError::CompressFail { key, reason: String::new() },
                StoreError::TenantLimit { key, source: at_limit },
                StoreError::NoTenant { key, tenant },
                StoreError::AllocFail { key, source: no_memory() },
                StoreError::AllocFail { key, source: ZpoolError::Empty },
                StoreError::IndexFull { key, source: IndexError::NoMemory },
            ]
        };
        let in_backing = |refused| {
            let source = io::ErrorKind::StorageFull.into();
            StoreError::Backing { key, backing: String::new(), refused: Box::new(refused), source }
        };
        for error in limits().into_iter().chain(limits().map(in_backing)) {
            assert!(error.is_pool_limit(), "{error:?}");
        }
        for error in others().into_iter().chain(others().map(in_backing)) {
            assert!(!error.is_pool_limit(), "{error:?}");
        }
    }
}
