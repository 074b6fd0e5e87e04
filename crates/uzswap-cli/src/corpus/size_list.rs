//! Makes pages from a list of compressed sizes, which a machine's owner can share without sharing
//! memory.
//!
//! ```text
//!  size n      | 1 | random ............ | last | pad pad pad ........ pad |
//!                0                        n - 1                        4095
//! ```
//!
//! Its compressor strips the padding, so the object of such a page has exactly n bytes, and the
//! page is still loaded and compared.

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};

use thiserror::Error;

use uzswap::compressor::{CompressError, Compressor, Corrupt, Output};
use uzswap::page::{PAGE_SIZE, Page};
use uzswap::random::mix;

/// What follows the made-up bytes.
const PAD: u8 = 0;

/// Compressed sizes in store order, 0 to 4096 each; 0 is a same-filled page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SizeList(Vec<u16>);

/// Why a list of sizes was not understood.
#[derive(Debug, Error)]
pub enum SizesError {
    /// The file could not be read.
    #[error("cannot read {}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The kernel's error.
        #[source]
        source: io::Error,
    },
    /// A line is not a size.
    #[error(
        "{}, line {line}: expected one compressed size from 0 to 4096, got '{text}'",
        path.display()
    )]
    Line {
        /// The file.
        path: PathBuf,
        /// Its line, from 1.
        line: usize,
        /// What it says, shortened.
        text: String,
    },
    /// There is no size in it.
    #[error("{} has no sizes; each line must be one number from 0 to 4096", path.display())]
    Empty {
        /// The file.
        path: PathBuf,
    },
}

impl SizesError {
    /// Whether the machine is the reason (permission, I/O) and not the path or file given.
    pub fn is_machine(&self) -> bool {
        let SizesError::Io { source, .. } = self else { return false };
        !matches!(
            source.kind(),
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory | io::ErrorKind::IsADirectory
        )
    }
}

impl SizeList {
    /// Reads one decimal number a line. Blank lines and what follows a `#` are left out.
    ///
    /// # Errors
    ///
    /// [`SizesError`], with the line.
    pub fn read(path: &Path) -> Result<SizeList, SizesError> {
        match File::open(path) {
            Ok(file) => SizeList::parse(BufReader::new(file), path),
            Err(source) => Err(SizesError::Io { path: path.to_owned(), source }),
        }
    }

    /// As [`SizeList::read`], from what is open already; `path` is for messages.
    ///
    /// # Errors
    ///
    /// [`SizesError`], with the line.
    pub fn parse(mut reader: impl BufRead, path: &Path) -> Result<SizeList, SizesError> {
        let mut sizes = Vec::new();
        let mut bytes = Vec::new();
        for line in 1.. {
            bytes.clear();
            let read = reader.read_until(b'\n', &mut bytes);
            if read.map_err(|source| SizesError::Io { path: path.to_owned(), source })? == 0 {
                break;
            }
            let text = String::from_utf8_lossy(&bytes);
            let number = text.split('#').next().unwrap_or_default().trim();
            if number.is_empty() {
                continue;
            }
            let size = number.parse().ok().filter(|&size: &u16| usize::from(size) <= PAGE_SIZE);
            sizes.push(size.ok_or_else(|| SizesError::Line {
                path: path.to_owned(),
                line,
                text: number.chars().flat_map(char::escape_default).take(40).collect(),
            })?);
        }
        if sizes.is_empty() {
            return Err(SizesError::Empty { path: path.to_owned() });
        }
        Ok(SizeList(sizes))
    }

    /// How many pages it describes.
    pub fn page_count(&self) -> usize {
        self.0.len()
    }

    /// Makes page `number`: the same bytes at each call.
    pub fn make_page(&self, number: usize, page: &mut Page) {
        let size = usize::from(self.0[number]);
        page[size..].fill(PAD);
        let seed = (number as u64) << 16 | size as u64;
        let word_at = |place: usize| mix(seed ^ (place as u64) << 48).to_le_bytes();
        let (words, rest) = page[..size].as_chunks_mut();
        for (place, word) in words.iter_mut().enumerate() {
            *word = word_at(place);
        }
        rest.copy_from_slice(&word_at(size / 8)[..rest.len()]);
        // Not padding at its end, and not one repeated word: the first word differs from the last.
        if let Some(last) = size.checked_sub(1) {
            page[last] |= 2;
            page[0] = 1;
            page[PAGE_SIZE - 8] |= if size > PAGE_SIZE - 8 { 2 } else { 0 };
        }
    }
}

impl FromIterator<u16> for SizeList {
    /// # Panics
    ///
    /// If a size is over 4096.
    fn from_iter<T: IntoIterator<Item = u16>>(sizes: T) -> Self {
        let sizes: Vec<u16> = sizes.into_iter().collect();
        assert!(sizes.iter().all(|&size| usize::from(size) <= PAGE_SIZE), "a size is over 4096");
        SizeList(sizes)
    }
}

/// The compressor of made-up pages: strips the padding.
#[derive(Debug)]
pub struct StripPadding;

impl StripPadding {
    /// The name it is reported by.
    pub const NAME: &str = "sizes";
}

impl Compressor for StripPadding {
    fn name(&self) -> String {
        StripPadding::NAME.to_owned()
    }

    fn compress(&self, page: &Page, out: &mut Output) -> Result<usize, CompressError> {
        const LINE: usize = 1 << 6; // 64
        let (lines, _) = page.as_chunks::<LINE>();
        let line = lines.iter().rposition(|line| *line != [PAD; LINE]).unwrap_or(0);
        let last = lines[line].iter().rposition(|&byte| byte != PAD).unwrap_or(0);
        let bytes = line * LINE + last + 1;
        out[..bytes].copy_from_slice(&page[..bytes]);
        Ok(bytes)
    }

    fn decompress(&self, object: &[u8], page: &mut Page) -> Result<(), Corrupt> {
        let (data, padding) = page
            .split_at_mut_checked(object.len())
            .ok_or_else(|| Corrupt(format!("an object of {} bytes", object.len())))?;
        data.copy_from_slice(object);
        padding.fill(PAD);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use uzswap::compressor::OUTPUT_BYTES;
    use uzswap::same_filled::SameFilledCheck;

    fn parse(text: &[u8]) -> Result<SizeList, SizesError> {
        SizeList::parse(text, Path::new("list"))
    }

    #[test]
    fn a_page_of_every_size_comes_back_and_has_that_size() {
        let list: SizeList = (0..=4096).collect();
        let mut page = [0xaa; PAGE_SIZE];
        list.make_page(0, &mut page);
        assert!(SameFilledCheck::Forward.word(&page).is_some());
        let mut again = page;
        for size in 1..=PAGE_SIZE {
            list.make_page(size, &mut page);
            assert_eq!(SameFilledCheck::Forward.word(&page), None, "size {size}");
            let mut out = [0; OUTPUT_BYTES];
            assert_eq!(StripPadding.compress(&page, &mut out), Ok(size));
            StripPadding.decompress(&out[..size], &mut again).unwrap();
            assert_eq!(page, again, "size {size}");
            again.fill(0xaa);
            list.make_page(size, &mut again);
            assert_eq!(page, again, "size {size} made twice");
        }
        assert!(StripPadding.decompress(&[1; PAGE_SIZE + 1], &mut page).is_err());
    }

    #[test]
    fn pages_of_one_size_differ() {
        let list: SizeList = [900, 900].into_iter().collect();
        let (mut one, mut other) = ([0; PAGE_SIZE], [0; PAGE_SIZE]);
        list.make_page(0, &mut one);
        list.make_page(1, &mut other);
        assert_ne!(one, other);
    }

    #[test]
    fn comments_and_blank_lines_are_left_out() {
        let list = parse(b"# from a machine\n12\n\n  0 \r\n4096 # largest\n7").unwrap();
        assert_eq!(list, [12, 0, 4096, 7].into_iter().collect());
    }

    #[test]
    fn a_bad_line_is_named() {
        for bad in ["4097", "-1", "12 13", "1.5", "0x10", "Attaching 1 probe...", "\u{7f}", "70000"]
        {
            let error = parse(format!("# sizes\n12\n{bad}\n7\n").as_bytes()).unwrap_err();
            assert!(matches!(error, SizesError::Line { line: 3, .. }), "{bad}: {error}");
            assert!(error.to_string().contains("line 3"), "{error}");
        }
        assert!(matches!(parse(b"\xff\xfe"), Err(SizesError::Line { line: 1, .. })));
        assert!(matches!(parse(b"# none\n\n"), Err(SizesError::Empty { .. })));
        assert!(matches!(SizeList::read(Path::new("/")), Err(SizesError::Io { .. })));
    }
}
