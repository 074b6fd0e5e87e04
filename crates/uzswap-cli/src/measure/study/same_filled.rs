//! Measures the checks for same-filled pages on given pages: number of compares, and time.
//!
//! Three settings, as the check is worth something else in each:
//!
//! ```text
//!  all pages            cold, in the order of the corpus     what a store sees
//!  same-filled pages    cold, in the order of the corpus     the whole page is looked at
//!  one zero page        in the nearest cache                 the check alone
//! ```
//!
//! A page for the store was not used for long, and no processor has it in a cache. So before each
//! pass the caches are filled with something else, and no page comes twice in a pass. The checks
//! take turns.

use std::collections::HashSet;
use std::fs::{self, File};
use std::hint::black_box;
use std::io::{self, Read};
use std::path::Path;
use std::time::Instant;

use serde::{Deserialize, Serialize};

use super::Spread;
use crate::measure::child::ChildError;
use crate::measure::turns::{Cell, Progress, Study, StudyError, take_turns};
use uzswap::page::{PAGE_SIZE, Page, WORDS_PER_PAGE, words};
use uzswap::same_filled::SameFilledCheck;
use uzswap_sys::simd::instruction_set;

/// The contenders; the first is what the others are compared with.
const CHECKS: [SameFilledCheck; 4] = [
    SameFilledCheck::Forward,
    SameFilledCheck::Backward,
    SameFilledCheck::LastFirst,
    SameFilledCheck::Vector,
];

/// Checks of the page in cache in one pass: about a millisecond.
const HOT_PAGES: usize = 1 << 14;

/// Fewer same-filled pages than these make a pass too short for the clock.
pub const FEW_PAGES: u64 = 1 << 8;

/// The last-level cache where the kernel does not tell, in bytes.
const CACHE_BYTES: usize = 32 << 20;

/// Bytes of a line of a processor's caches: of every x86-64, and of most others.
const CACHE_LINE: usize = 64;

/// A page where a kernel would have it: at a page's border. Wide loads cross no cache line there.
#[derive(Debug, Clone)]
#[repr(align(4096))]
pub struct AlignedPage(pub Page);

/// What kinds of pages there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Census {
    /// All pages.
    pub pages: u64,
    /// Those of zeros.
    pub zero_pages: u64,
    /// Pages of one repeated word, zeros included.
    pub same_filled_pages: u64,
    /// Pages that are not same-filled and equal to a page before them.
    pub duplicate_pages: u64,
}

/// One check in one setting.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Figures {
    /// Compares a page, the mean; each is of `iteration_words`.
    pub iterations_mean: f64,
    /// Nanoseconds a page.
    pub ns_per_page: Spread,
    /// Pages in units of 10^6 bytes a second, whether or not all of a page was looked at.
    pub mb_per_s: Spread,
    /// Speed over that of `forward` in the same round.
    pub speed_vs_forward: Spread,
}

/// What one check came to.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CheckFindings {
    /// The check.
    pub check: SameFilledCheck,
    /// Words that an iteration compares; the first iteration of `vector` compares one.
    pub iteration_words: usize,
    /// Over all pages.
    pub all: Figures,
    /// Over same-filled pages alone; none where there are none.
    pub same_filled: Option<Figures>,
    /// Of one zero page in cache.
    pub in_cache: Figures,
}

/// What was found.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Findings {
    /// The pages.
    pub census: Census,
    /// How often each check took its turn.
    pub rounds: usize,
    /// Bytes that are read before each pass, to have the pages out of the caches.
    pub evict_bytes: usize,
    /// Instruction set of `vector`: `avx512f`, `avx2` or `baseline`.
    pub instruction_set: String,
    /// One element a check.
    pub checks: Vec<CheckFindings>,
}

/// The pages of a file that holds whole pages and nothing else.
///
/// # Errors
///
/// Of the file; `OutOfMemory` where the pages do not fit.
pub fn read_pages(path: &Path) -> io::Result<Vec<AlignedPage>> {
    let mut file = File::open(path)?;
    let count = usize::try_from(file.metadata()?.len()).map_err(io::Error::other)? / PAGE_SIZE;
    let mut pages: Vec<AlignedPage> = Vec::new();
    pages.try_reserve_exact(count).map_err(|_| io::ErrorKind::OutOfMemory)?;
    let mut page = [0; PAGE_SIZE];
    for _ in 0..count {
        file.read_exact(&mut page)?;
        pages.push(AlignedPage(page));
    }
    Ok(pages)
}

/// The pages of each setting.
struct Settings<'a> {
    rounds: usize,
    all: &'a [&'a Page],
    same_filled: &'a [&'a Page],
    hot: &'a [&'a Page],
    /// Read before a cold pass.
    other: &'a [u8],
}

/// Nanoseconds that one check takes for a page, the mean over the pages of a setting.
struct Times {
    all: f64,
    /// Of no meaning where there are no such pages.
    same_filled: f64,
    in_cache: f64,
}

impl Study for Settings<'_> {
    type Variant = SameFilledCheck;
    type Run = Times;

    fn rounds(&self) -> usize {
        self.rounds
    }

    fn groups(&self) -> Vec<Vec<SameFilledCheck>> {
        vec![CHECKS.to_vec()]
    }

    fn label(&self, check: &SameFilledCheck) -> String {
        check.to_string()
    }

    fn measure(&self, &check: &SameFilledCheck, _round: usize) -> Result<Times, ChildError> {
        let cold = |pages: &[&Page]| {
            for line in self.other.as_chunks::<CACHE_LINE>().0 {
                black_box(line[0]);
            }
            pass(pages, check)
        };
        Ok(Times {
            all: cold(self.all),
            same_filled: if self.same_filled.is_empty() { 0.0 } else { cold(self.same_filled) },
            in_cache: pass(self.hot, check),
        })
    }
}

/// Measures every check, `rounds` times.
///
/// # Errors
///
/// Nothing is measured unless every check is right about every page. A signal ends the study.
///
/// # Panics
///
/// If there are no pages or no rounds.
pub fn measure(
    pages: &[AlignedPage],
    rounds: usize,
    progress: Progress<'_>,
) -> Result<Findings, StudyError> {
    let all: Vec<&Page> = pages.iter().map(|page| &page.0).collect();
    for check in CHECKS {
        verify(&all, check.name(), |page| check.word(page))?;
    }
    let same_filled: Vec<&Page> =
        all.iter().copied().filter(|page| repeated_word(page).is_some()).collect();
    let zero = AlignedPage([0; PAGE_SIZE]);
    let hot = vec![&zero.0; HOT_PAGES];
    let evict_bytes = 2 * last_level_cache_bytes();
    // Written once: a part that was never written is one page of zeros, again and again.
    let other = vec![1_u8; evict_bytes];
    let settings =
        Settings { rounds, all: &all, same_filled: &same_filled, hot: &hot, other: &other };
    let cells = take_turns(&settings, progress)?;
    let findings = |cell: &Cell<SameFilledCheck, Times>| {
        let figures = |pages: &[&Page], of| Figures::of(pages, cell, &cells[0], of);
        CheckFindings {
            check: cell.variant,
            iteration_words: cell.variant.iteration_words(),
            all: figures(&all, |times| times.all),
            same_filled: (!same_filled.is_empty())
                .then(|| figures(&same_filled, |times| times.same_filled)),
            in_cache: figures(&hot[..1], |times| times.in_cache),
        }
    };
    Ok(Findings {
        census: census(&all),
        rounds,
        evict_bytes,
        instruction_set: instruction_set().to_owned(),
        checks: cells.iter().map(findings).collect(),
    })
}

/// Nanoseconds that one check takes for a page, the mean over the pages.
fn pass(pages: &[&Page], check: SameFilledCheck) -> f64 {
    let start = Instant::now();
    for page in pages {
        black_box(check.word(black_box(page)));
    }
    start.elapsed().as_nanos() as f64 / pages.len() as f64
}

impl Figures {
    fn of(
        pages: &[&Page],
        cell: &Cell<SameFilledCheck, Times>,
        forward: &Cell<SameFilledCheck, Times>,
        of: fn(&Times) -> f64,
    ) -> Figures {
        let iterations: usize = pages.iter().map(|page| cell.variant.look(page).iterations).sum();
        let ns = cell.values(of);
        Figures {
            iterations_mean: iterations as f64 / pages.len() as f64,
            ns_per_page: Spread::of(&ns),
            mb_per_s: Spread::of(&cell.values(|times| PAGE_SIZE as f64 / of(times) * 1e3)),
            speed_vs_forward: Spread::of_ratios(&forward.values(of), &ns),
        }
    }
}

/// Holds a check against the obvious way.
fn verify(
    pages: &[&Page],
    check: &'static str,
    word: impl Fn(&Page) -> Option<u64>,
) -> Result<(), StudyError> {
    let words = |word: Option<u64>| {
        word.map_or("not same-filled".to_owned(), |word| format!("same-filled with {word:#x}"))
    };
    for (number, page) in pages.iter().enumerate() {
        let (said, truth) = (word(page), repeated_word(page));
        if said != truth {
            return Err(StudyError::Check {
                about: format!("page {number}"),
                message: format!(
                    "the check {check} returned {}, expected {}",
                    words(said),
                    words(truth)
                ),
            });
        }
    }
    Ok(())
}

/// The word that a page repeats, by a look at all of it.
fn repeated_word(page: &Page) -> Option<u64> {
    let words = words(page);
    let equal = words.iter().filter(|&word| *word == words[0]).count();
    (equal == WORDS_PER_PAGE).then_some(u64::from_ne_bytes(words[0]))
}

fn census(pages: &[&Page]) -> Census {
    let mut census = Census {
        pages: pages.len() as u64,
        zero_pages: 0,
        same_filled_pages: 0,
        duplicate_pages: 0,
    };
    let mut seen = HashSet::new();
    for &page in pages {
        match repeated_word(page) {
            Some(word) => {
                census.same_filled_pages += 1;
                census.zero_pages += u64::from(word == 0);
            }
            None => census.duplicate_pages += u64::from(!seen.insert(page)),
        }
    }
    census
}

/// The largest cache of the first processor, in bytes.
fn last_level_cache_bytes() -> usize {
    let caches = fs::read_dir("/sys/devices/system/cpu/cpu0/cache").into_iter().flatten().flatten();
    let sizes = caches.filter_map(|cache| {
        let size = fs::read_to_string(cache.path().join("size")).ok()?;
        let kib: usize = size.trim().strip_suffix('K')?.parse().ok()?;
        Some(kib << 10)
    });
    sizes.max().unwrap_or(CACHE_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_check_that_is_wrong_is_named() {
        let (zero, mut other) = ([0; PAGE_SIZE], [0; PAGE_SIZE]);
        other[4095] = 1;
        let pages = [&zero, &other];
        for check in CHECKS {
            verify(&pages, check.name(), |page| check.word(page)).unwrap();
        }
        let error = verify(&pages, "hasty", |page| (page[0] == 0).then_some(0)).unwrap_err();
        let message = error.to_string();
        assert_eq!(
            message,
            "page 1: the check hasty returned same-filled with 0x0, expected not same-filled"
        );
        let error = verify(&pages, "blind", |_| None).unwrap_err();
        let message = error.to_string();
        assert_eq!(
            message,
            "page 0: the check blind returned not same-filled, expected same-filled with 0x0"
        );
    }

    #[test]
    fn pages_are_counted_by_kind() {
        let [zero, ones, mut text] = [[0; PAGE_SIZE], [1; PAGE_SIZE], [7; PAGE_SIZE]];
        text[5] = 0;
        let pages = [&zero, &zero, &ones, &text, &text, &text];
        assert_eq!(
            census(&pages),
            Census { pages: 6, zero_pages: 2, same_filled_pages: 3, duplicate_pages: 2 }
        );
    }
}
