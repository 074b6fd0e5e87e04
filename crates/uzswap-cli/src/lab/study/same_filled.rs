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
//! take turns: A B C D, B C D A, ...

use std::collections::HashSet;
use std::fs::{self, File};
use std::hint::black_box;
use std::io::{self, Read};
use std::path::Path;
use std::time::Instant;

use serde::Serialize;
use thiserror::Error;

use super::Spread;
use uzswap::page::{PAGE_SIZE, Page, WORDS_PER_PAGE, words};
use uzswap::same_filled::SameFilledCheck;
use uzswap_sys::interrupt;
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

/// Why there are no findings.
#[derive(Debug, Error)]
pub enum SameFilledError {
    /// A check is wrong about a page.
    #[error(
        "page {page}: the check {check} returned {}, expected {}", verdict(*said), verdict(*truth)
    )]
    Wrong {
        /// Number of the page, from 0.
        page: usize,
        /// The check.
        check: &'static str,
        /// The word that it says the page repeats.
        said: Option<u64>,
        /// The word that it does repeat.
        truth: Option<u64>,
    },
    /// Ctrl-C or a like signal.
    #[error("interrupted")]
    Interrupted,
}

fn verdict(word: Option<u64>) -> String {
    word.map_or("not same-filled".to_owned(), |word| format!("same-filled with {word:#x}"))
}

/// What kinds of pages there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
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
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
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
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CheckFindings {
    /// The check's name.
    pub check: &'static str,
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
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Findings {
    /// The pages.
    pub census: Census,
    /// How often each check took its turn.
    pub rounds: usize,
    /// Bytes that are read before each pass, to have the pages out of the caches.
    pub evict_bytes: usize,
    /// Instruction set of `vector`: `avx512f`, `avx2` or `baseline`.
    pub instruction_set: &'static str,
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

/// Measures every check, `rounds` times. `progress` gets the number of rounds that are done.
///
/// # Errors
///
/// [`SameFilledError`]; nothing is measured unless every check is right about every page.
///
/// # Panics
///
/// If there are no pages or no rounds.
pub fn measure(
    pages: &[AlignedPage],
    rounds: usize,
    progress: &mut dyn FnMut(usize),
) -> Result<Findings, SameFilledError> {
    let all: Vec<&Page> = pages.iter().map(|page| &page.0).collect();
    for check in CHECKS {
        verify(&all, check.name(), |page| check.word(page))?;
    }
    let same_filled: Vec<&Page> =
        all.iter().copied().filter(|page| repeated_word(page).is_some()).collect();
    let zero = AlignedPage([0; PAGE_SIZE]);
    let hot = vec![&zero.0; HOT_PAGES];
    let evict_bytes = 2 * last_level_cache_bytes();
    // Written once: what was never written is one page of zeros, again and again.
    let other = vec![1_u8; evict_bytes];
    let evict = || {
        for line in other.as_chunks::<CACHE_LINE>().0 {
            black_box(line[0]);
        }
    };
    let keep = || {};
    let mut all_ns: Samples = Default::default();
    let mut same_filled_ns: Samples = Default::default();
    let mut in_cache_ns: Samples = Default::default();
    for round in 0..rounds {
        progress(round);
        for turn in 0..CHECKS.len() {
            if interrupt::noted() {
                return Err(SameFilledError::Interrupted);
            }
            let place = (round + turn) % CHECKS.len();
            all_ns[place].push(pass(&all, CHECKS[place], &evict));
            if !same_filled.is_empty() {
                same_filled_ns[place].push(pass(&same_filled, CHECKS[place], &evict));
            }
            in_cache_ns[place].push(pass(&hot, CHECKS[place], &keep));
        }
    }
    let findings = |place: usize| CheckFindings {
        check: CHECKS[place].name(),
        iteration_words: CHECKS[place].iteration_words(),
        all: figures(place, &all, &all_ns),
        same_filled: (!same_filled.is_empty())
            .then(|| figures(place, &same_filled, &same_filled_ns)),
        in_cache: figures(place, &hot[..1], &in_cache_ns),
    };
    Ok(Findings {
        census: census(&all),
        rounds,
        evict_bytes,
        instruction_set: instruction_set(),
        checks: (0..CHECKS.len()).map(findings).collect(),
    })
}

/// Nanoseconds a page, by check and round.
type Samples = [Vec<f64>; CHECKS.len()];

/// Nanoseconds that one check takes for a page, the mean over the pages.
fn pass(pages: &[&Page], check: SameFilledCheck, prepare: &dyn Fn()) -> f64 {
    prepare();
    let start = Instant::now();
    for page in pages {
        black_box(check.word(black_box(page)));
    }
    start.elapsed().as_nanos() as f64 / pages.len() as f64
}

fn figures(place: usize, pages: &[&Page], samples: &Samples) -> Figures {
    let iterations: usize = pages.iter().map(|page| CHECKS[place].look(page).iterations).sum();
    let ns = &samples[place];
    let speeds: Vec<f64> = ns.iter().map(|ns| PAGE_SIZE as f64 / ns * 1e3).collect();
    let ratios: Vec<f64> = samples[0].iter().zip(ns).map(|(forward, ns)| forward / ns).collect();
    Figures {
        iterations_mean: iterations as f64 / pages.len() as f64,
        ns_per_page: Spread::of(ns),
        mb_per_s: Spread::of(&speeds),
        speed_vs_forward: Spread::of(&ratios),
    }
}

/// Holds a check against the obvious way.
fn verify(
    pages: &[&Page],
    check: &'static str,
    word: impl Fn(&Page) -> Option<u64>,
) -> Result<(), SameFilledError> {
    for (number, page) in pages.iter().enumerate() {
        let (said, truth) = (word(page), repeated_word(page));
        if said != truth {
            return Err(SameFilledError::Wrong { page: number, check, said, truth });
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
        assert!(matches!(error, SameFilledError::Wrong { page: 0, truth: Some(0), .. }));
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
