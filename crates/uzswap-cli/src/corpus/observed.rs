//! Facts of processes that were seen beside their pages.

use serde::{Deserialize, Serialize};

use crate::corpus::working_set::Window;
use uzswap_pager::Uncounted;

/// Facts that a capture has of some processes while they ran.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Observed {
    /// The pages that they touched.
    pub windows: Vec<Window>,
    /// The most memory that `run` neither counts nor evicts.
    pub uncounted: Uncounted,
    /// Programs that `run` cannot manage, as they were when the pages were captured.
    pub unmanaged: Vec<Unmanaged>,
}

/// A program that `run` cannot manage.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unmanaged {
    /// The name of its file.
    pub program: String,
    /// The reason.
    pub why: String,
    /// Its anonymous memory, in bytes.
    pub bytes: u64,
}
