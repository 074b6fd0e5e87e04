//! Learns which pages a compressor makes less of once they are shuffled.
//!
//! No count of a page tells alone: what lz4 saves by a shuffle, and what it loses, depends on the
//! program. So pages are of kinds, by counts that one pass gives. Of some pages of each kind both
//! objects are made, and the kind remembers the bytes that the shuffle saved. A page takes the way
//! of its kind.
//!
//! An outcome that agrees with the memory halves the share of pages of which both are made. Another
//! outcome makes that share four times as large.

use std::sync::atomic::{AtomicU32, Ordering};

use uzswap_sys::shuffle::repeats;

use crate::page::Page;
use crate::random::mix;

/// Counts that a kind consists of.
const COUNTS: usize = 6;

/// Kinds of pages: each count has 4 degrees.
const KINDS: usize = 1 << (2 * COUNTS); // 16 KiB of memory

/// Both objects are made of one page in 2^this, at least, where the memory is right.
const TRIES_SHIFT_MAX: u32 = 6;

/// And of one in 2^this after it was wrong: so it is with pages that differ though of a kind.
const TRIES_SHIFT_MIN: u32 = 2;

/// The shuffle has to save one part in so many of the plain object: lz4 takes longer for a shuffled
/// page, both ways.
const WORTH: usize = 16;

/// A difference of less than one part in so many is as good as none.
const NEAR: usize = 50;

/// The memory of the kinds of pages.
#[derive(Debug)]
pub(super) struct Learned {
    /// Upper half of each: bytes that the shuffle saves beyond [`WORTH`]. Lower half: both objects
    /// are made of one page in 2^this. Threads may lose an outcome to each other.
    kinds: Box<[AtomicU32]>,
    /// Pages so far.
    count: AtomicU32,
}

/// The way of a page.
#[derive(Debug)]
pub(super) struct Choice {
    kind: usize,
    /// Whether the compressor takes its shuffle.
    pub(super) is_shuffled: bool,
    /// Whether both objects are made.
    pub(super) tries_both: bool,
}

impl Learned {
    pub(super) fn new() -> Learned {
        let kinds = (0..KINDS).map(|_| AtomicU32::new(0)).collect();
        Learned { kinds, count: AtomicU32::new(0) }
    }

    pub(super) fn choose(&self, page: &Page) -> Choice {
        let kind = kind_of(page);
        let (saved, shift) = parts(self.kinds[kind].load(Ordering::Relaxed));
        let count = self.count.load(Ordering::Relaxed);
        self.count.store(count.wrapping_add(1), Ordering::Relaxed);
        // By chance: pages of programs come in periods.
        let tries_both = mix(u64::from(count)) & ((1 << shift) - 1) == 0;
        Choice { kind, is_shuffled: saved > 0, tries_both }
    }

    /// Notes the lengths of both objects, in bytes; whether the one of the shuffle is better.
    pub(super) fn note(&self, choice: &Choice, plain: usize, shuffled: usize) -> bool {
        let state = &self.kinds[choice.kind];
        let (was, shift) = parts(state.load(Ordering::Relaxed));
        let saved = (plain - plain / WORTH) as i32 - shuffled as i32; // less than a page
        let is_right =
            choice.is_shuffled == (saved > 0) || (saved.unsigned_abs() as usize) < plain / NEAR;
        let shift = match is_right {
            true => TRIES_SHIFT_MAX.min(shift + 1),
            false => TRIES_SHIFT_MIN.max(shift.saturating_sub(2)),
        };
        let mean = (i32::from(was) + saved) / 2;
        state.store((mean << 16) as u32 | shift, Ordering::Relaxed);
        saved > 0
    }
}

fn parts(state: u32) -> (i16, u32) {
    ((state >> 16) as u16 as i16, state & 0xffff)
}

/// The kind of a page. Of 30 sets of counts, on heaps of six programs, this one was nearest to the
/// better of both.
fn kind_of(page: &Page) -> usize {
    let counts = repeats(page);
    let [first, second, _, fourth, .., seventh, _] = counts.lanes;
    let counts = [first, second, fourth, seventh, counts.halves / 2, counts.zeros / 2];
    // Of 508 words; degrees from 64, 192 and 320.
    counts.into_iter().fold(0, |kind, count| kind << 2 | 3.min(usize::from(count + 64) / 128))
}
