//! The size of a batch: the pages that a helper moves at once.

use crate::page_table::BATCH_PAGES;
use uzswap::page::PAGE_SIZE;

/// Pages of a batch, and their part of the resident pages. A thread that faults meanwhile waits for
/// the whole batch; larger batches make fewer of these moments.
pub(crate) const PAGES_MIN: usize = 128;
const PAGES_MAX: usize = BATCH_PAGES;
const PAGES_PART: usize = 80;

/// Staged batches of an address space before the oldest is stored, and about their part of its
/// resident pages.
const STAGED_MIN: usize = 2;
const STAGED_MAX: usize = 4;
const STAGED_PART: usize = 32;

/// Pages of a batch of an address space with so many resident bytes, and its staged batches before
/// the oldest is stored.
pub(crate) fn batches(resident_bytes: u64) -> (usize, usize) {
    let resident = (resident_bytes / PAGE_SIZE as u64) as usize;
    let pages = (resident / PAGES_PART).clamp(PAGES_MIN, PAGES_MAX);
    (pages, (resident / STAGED_PART).div_ceil(pages).clamp(STAGED_MIN, STAGED_MAX))
}

/// Bytes of a batch of an address space with so many resident bytes.
pub(crate) fn batch_bytes(resident_bytes: u64) -> u64 {
    (batches(resident_bytes).0 * PAGE_SIZE) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_grow_with_the_resident_pages_between_bounds() {
        let of_pages = |pages: usize| batches((pages * PAGE_SIZE) as u64);
        assert_eq!(of_pages(0), (PAGES_MIN, STAGED_MIN));
        assert_eq!(of_pages(PAGES_PART * 200), (200, STAGED_MIN.max(200 * 80 / 32 / 200 + 1)));
        assert_eq!(of_pages(1 << 30), (PAGES_MAX, STAGED_MAX));
        assert_eq!(batch_bytes(0), (PAGES_MIN * PAGE_SIZE) as u64);
    }
}
