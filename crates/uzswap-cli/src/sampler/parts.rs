//! The files of a sample, which are written while it goes on.
//!
//! ```text
//!  pages-RUN.parquet        replaced by each new reading of pages
//!  intervals-RUN.parquet    full: it stays as it is
//!  intervals-RUN-1.parquet  the last part: replaced at each save, until it is full
//!  runs-RUN.parquet         replaced at each save, after the others
//! ```

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use uzswap_fleet::folder::{FolderError, file_name, write};
use uzswap_fleet::table::{IntervalRow, PageRow, RunRow, Table, encode};

/// Rows from which on a part is full: three hours of minutes of a hundred processes, in a MiB. Each
/// save encodes and writes as many at most, and an interval's.
const PART_ROWS: usize = 1 << 14;

/// Rows that no file has yet, and rows whose file the next save writes again.
pub(super) struct Parts<'a> {
    folder: &'a Path,
    run: u64,
    part: u32,
    intervals: Vec<IntervalRow>,
    pages: Option<Vec<u8>>,
    files: BTreeSet<PathBuf>,
}

impl<'a> Parts<'a> {
    pub(super) fn new(folder: &'a Path, run: u64) -> Parts<'a> {
        let (intervals, files) = (Vec::new(), BTreeSet::new());
        Parts { folder, run, part: 0, intervals, pages: None, files }
    }

    pub(super) fn push(&mut self, row: IntervalRow) {
        self.intervals.push(row);
    }

    /// Sets the file of the table `pages`.
    pub(super) fn set_pages(&mut self, file: Vec<u8>) {
        self.pages = Some(file);
    }

    /// Writes what is new. The row of the run comes last: what it tells of is there.
    pub(super) fn save(&mut self, run: &RunRow) -> Result<(), FolderError> {
        if let Some(pages) = self.pages.take() {
            self.write::<PageRow>(0, &pages)?;
        }
        // A sample without an interval has an empty first part: readers look for it.
        if !self.intervals.is_empty() || self.part == 0 {
            self.write::<IntervalRow>(self.part, &encode(self.intervals.iter().cloned()))?;
        }
        if self.intervals.len() >= PART_ROWS {
            self.intervals.clear();
            self.part += 1;
        }
        self.write::<RunRow>(0, &encode([run.clone()]))
    }

    fn write<T: Table>(&mut self, part: u32, bytes: &[u8]) -> Result<(), FolderError> {
        let path = self.folder.join(file_name::<T>(self.run, part));
        write(&path, bytes)?;
        self.files.insert(path);
        Ok(())
    }

    /// All files that were written.
    pub(super) fn files(&self) -> Vec<PathBuf> {
        self.files.iter().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use uzswap_fleet::folder::samples;

    #[test]
    fn parts_fill_one_after_the_other_and_no_row_is_twice() {
        let folder = tempfile::tempdir().unwrap();
        let mut parts = Parts::new(folder.path(), 7);
        let run = RunRow { run: 7, ended_by: "nothing".to_owned(), ..RunRow::default() };
        parts.save(&run).unwrap();
        let rows = || samples(folder.path()).unwrap()[0].rows().unwrap().0;
        assert!(rows().is_empty());
        for (number, part) in [(1, 0), (PART_ROWS, 0), (PART_ROWS + 1, 1), (2 * PART_ROWS + 9, 1)] {
            let next = rows().len() as u64..number as u64;
            next.for_each(|interval| {
                parts.push(IntervalRow { run: 7, interval, ..IntervalRow::default() });
            });
            // Twice: the second has nothing new.
            parts.save(&run).unwrap();
            parts.save(&run).unwrap();
            let intervals: Vec<u64> = rows().iter().map(|row| row.interval).collect();
            assert!(intervals == (0..number as u64).collect::<Vec<u64>>(), "{number} rows");
            assert_eq!(samples(folder.path()).unwrap()[0].intervals.len(), part + 1);
        }
        assert_eq!(parts.files().len(), 3, "{:?}", parts.files());
        assert!(!samples(folder.path()).unwrap()[0].has_end().unwrap());
    }
}
