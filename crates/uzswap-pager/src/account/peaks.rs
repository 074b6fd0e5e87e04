//! The most memory of each kind, as it was sampled.

use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};

/// The parts of all that programs, pool and what is known of pages took at one time, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AtPeak {
    /// Anonymous memory of managed programs.
    pub resident_bytes: u64,
    /// Anonymous memory of programs without a helper.
    pub unmanaged_bytes: u64,
    /// Host pages of the pool.
    pub pool_bytes: u64,
    /// Index, tables, descriptors.
    pub metadata_bytes: u64,
}

/// Peaks of bytes in use. Each may have been at another time.
#[derive(Debug, Default)]
pub(super) struct Peaks {
    total: AtomicU64,
    resident: AtomicU64,
    pool: AtomicU64,
    /// Stored pages at the peak of the pool.
    stored_pages: AtomicU64,
    metadata: AtomicU64,
    /// Of the kernel's page tables of programs.
    page_tables: AtomicU64,
}

/// The peaks at one time, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Peak {
    pub(crate) total: u64,
    pub(crate) resident: u64,
    pub(crate) pool: u64,
    /// Stored pages at the peak of the pool.
    pub(crate) stored_pages: u64,
    pub(crate) metadata: u64,
    pub(crate) page_tables: u64,
}

impl Peaks {
    /// Notes the usage, and the resident part of it; whether the usage is a new peak.
    pub(super) fn raise_total(&self, total: u64, resident: u64) -> bool {
        self.resident.fetch_max(resident, Ordering::Relaxed);
        self.total.fetch_max(total, Ordering::Relaxed) < total
    }

    /// Notes the pool, with the pages that it has then.
    pub(super) fn raise_pool(&self, bytes: u64, stored_pages: impl FnOnce() -> u64) {
        if self.pool.fetch_max(bytes, Ordering::Relaxed) < bytes {
            self.stored_pages.store(stored_pages(), Ordering::Relaxed);
        }
    }

    pub(super) fn raise_metadata(&self, bytes: u64) {
        self.metadata.fetch_max(bytes, Ordering::Relaxed);
    }

    pub(super) fn raise_page_tables(&self, bytes: u64) {
        self.page_tables.fetch_max(bytes, Ordering::Relaxed);
    }

    pub(super) fn total_bytes(&self) -> u64 {
        self.total.load(Ordering::Relaxed)
    }

    pub(super) fn get(&self) -> Peak {
        let get = |bytes: &AtomicU64| bytes.load(Ordering::Relaxed);
        Peak {
            total: get(&self.total),
            resident: get(&self.resident),
            pool: get(&self.pool),
            stored_pages: get(&self.stored_pages),
            metadata: get(&self.metadata),
            page_tables: get(&self.page_tables),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peak_only_rises_and_is_new_once() {
        let peaks = Peaks::default();
        assert!(peaks.raise_total(100, 60) && !peaks.raise_total(100, 70));
        assert!(!peaks.raise_total(90, 50) && peaks.raise_total(101, 1));
        for (bytes, pages) in [(10, 5), (30, 7), (30, 9), (20, 99)] {
            peaks.raise_pool(bytes, || pages);
        }
        peaks.raise_metadata(3);
        peaks.raise_page_tables(4);
        peaks.raise_page_tables(2);
        let expected = Peak {
            total: 101,
            resident: 70,
            pool: 30,
            stored_pages: 7,
            metadata: 3,
            page_tables: 4,
        };
        assert_eq!(peaks.get(), expected);
    }
}
