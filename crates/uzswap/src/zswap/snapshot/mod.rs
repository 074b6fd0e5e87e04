//! Snapshots: the whole store in one file.
//!
//! ```text
//!  list of keys, coldest first -> a page at a time, as it is in pool or backing -> block -> FILE
//!        (shard locks)                  (shard lock, pin)                      (no lock)
//! ```
//!
//! - N1: under its name a snapshot is complete, or it is the one before, or it is not there.
//! - N2: each page in it is one that its key had at some time during the call; a key that has had
//!   pages all the time has one in it.
//! - N3: a page that is corrupt in the store is in no snapshot.
//! - N4: what was changed in a file, or cut from it, is found when it is read.
//!
//! Objects are copied as they are; nothing is compressed again. The file is laid out in
//! `docs/reference/snapshot-format.md`.
//!
//! ```
//! use uzswap::page::{PAGE_SIZE, PageKey};
//! use uzswap::zswap::{Zswap, ZswapOptions};
//!
//! let directory = tempfile::tempdir()?;
//! let path = directory.path().join("store");
//! let zswap = Zswap::new(ZswapOptions::default())?;
//! zswap.store(PageKey(7), &[3; PAGE_SIZE])?;
//! assert_eq!(zswap.snapshot(&path)?.pages(), 1);
//!
//! let (zswap, _) = Zswap::from_snapshot(ZswapOptions::default(), None, &path)?;
//! let mut page = [0; PAGE_SIZE];
//! assert!(zswap.load(PageKey(7), &mut page)?);
//! assert_eq!(page, [3; PAGE_SIZE]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod atomic_file;
mod error;
mod export;
mod format;
mod import;
mod reader;
mod writer;

use serde::{Deserialize, Serialize};

pub use error::{RestoreError, SnapshotError, SnapshotFault, SnapshotReadError};
pub use format::{VERSION, VERSION_MIN};
pub use import::RestoreSummary;
pub use reader::{PageForm, SnapshotBlock, SnapshotPage, SnapshotReader};

use super::Stats;
use crate::compressor::ObjectFormat;

/// Policy for pages that cannot be written to a snapshot.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SnapshotOptions {
    /// Leave out pages that are corrupt, or that the backing does not give, and count them. Else
    /// the first one ends the snapshot.
    pub skip_corrupt: bool,
}

/// The header of a snapshot, before its pages.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SnapshotHeader {
    /// The program that wrote it, and its version.
    pub program: String,
    /// When it was begun: seconds since 1970, in UTC.
    pub created_at: u64,
    /// The format of its objects; none in version 1, which tells the compressor's name alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub object_format: Option<ObjectFormat>,
    /// Parts, history and content of the store then. Pages may have come and gone since, until they
    /// were written.
    pub stats: Stats,
}

impl SnapshotHeader {
    /// The format of its objects; in version 1, that of the compressor of this name.
    pub fn objects(&self) -> ObjectFormat {
        let by_name = || ObjectFormat::of_name(&self.stats.options.compressor);
        self.object_format.clone().unwrap_or_else(by_name)
    }
}

/// What is in a snapshot.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct SnapshotSummary {
    /// Pages kept as one repeated word.
    pub same_filled_pages: u64,
    /// Objects that were in the pool.
    pub pool_objects: u64,
    /// Pages that were in the pool as they were.
    pub pool_as_is_pages: u64,
    /// Objects that were in the backing alone.
    pub backing_objects: u64,
    /// Pages that were in the backing alone, as they were.
    pub backing_as_is_pages: u64,
    /// Bytes of all words, objects and pages.
    pub data_bytes: u64,
    /// Pages that were left out ([`SnapshotOptions::skip_corrupt`]).
    pub skipped_pages: u64,
    /// Bytes of the file.
    pub file_bytes: u64,
}

impl SnapshotSummary {
    /// Pages in it.
    pub fn pages(&self) -> u64 {
        self.same_filled_pages + self.pool_objects + self.pool_as_is_pages + self.backing_pages()
    }

    /// Pages that were in the backing alone.
    pub fn backing_pages(&self) -> u64 {
        self.backing_objects + self.backing_as_is_pages
    }

    /// Counts a page.
    fn count(&mut self, form: PageForm<'_>, in_backing: bool) {
        *match (form, in_backing) {
            (PageForm::Word(_), _) => &mut self.same_filled_pages,
            (PageForm::Object(_), false) => &mut self.pool_objects,
            (PageForm::AsIs(_), false) => &mut self.pool_as_is_pages,
            (PageForm::Object(_), true) => &mut self.backing_objects,
            (PageForm::AsIs(_), true) => &mut self.backing_as_is_pages,
        } += 1;
        self.data_bytes += form.bytes() as u64;
    }
}
