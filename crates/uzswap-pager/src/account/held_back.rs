//! Memory below the limit that holds no content of programs.

use serde::{Deserialize, Serialize};

/// Memory that is held back from programs at one time, by kind, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldBack {
    /// Kept free for the time between two samples, and for a batch on its way out.
    pub margin_bytes: u64,
    /// Kept free for growth that no fault reports.
    pub growth_bytes: u64,
    /// Memory of staging, a part of the resident memory: staged pages, and copies of pages that
    /// have returned or are stored.
    pub staging_bytes: u64,
    /// Tables of pages and slots, a part of the metadata.
    pub tables_bytes: u64,
}
