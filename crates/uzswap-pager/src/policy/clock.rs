//! The CLOCK hand of a process: it picks the pages to evict.
//!
//! User space has no accessed bit to read. A page counts as used if a thread touches it while it
//! is staged, or if it returns before as many other pages were stored as are resident: with twice
//! the memory it would have stayed. Used pages get the most heat. The hand picks a page of heat h
//! in one turn of 2^h.

#[cfg(test)]
mod tests;

use std::io;
use std::ops::Range;
use std::time::{Duration, Instant};

use super::age::HandPasses;
use crate::page_table::{HEAT_MAX, PageTable, Place};
use crate::range_set::RangeSet;
use uzswap::page::PAGE_SIZE;

const PAGE: u64 = PAGE_SIZE as u64;

/// A search ends after so many entries of the table, those of 1 GiB, or after queries of the
/// kernel that took so long. Faults of the process wait meanwhile.
const SCANNED_MAX: u64 = 1 << 18;
const ASKED_MAX: Duration = Duration::from_millis(2);

/// Address space of one query, and known pieces of 2 MiB in it. The kernel skips a GiB without
/// page tables, and walks each entry of existing tables, some 0.1 ms here. An unknown table has
/// pages that the program dropped, or only read.
const ASKED_BYTES: u64 = 16 << 30;
const ASKED_CHUNKS: usize = 128;

/// One query covers parts of memory with gaps of so many bytes between them, a page table or two.
const GAP_BYTES: u64 = 2 << 20;
const ASKED_PARTS: usize = 64;

/// Neighbours that are picked in the same turn: it is cheaper to move them together.
const NEIGHBOURS: u64 = 64;

/// Tells which pages of a range are resident.
pub(crate) type Resident<'a> = dyn FnMut(Range<u64>) -> io::Result<Answer> + 'a;

/// The first resident pages of a range.
#[derive(Debug)]
pub(crate) struct Answer {
    /// Runs of them.
    pub(crate) runs: Vec<Range<u64>>,
    /// Where it has stopped.
    pub(crate) to: u64,
    pub(crate) took: Duration,
}

/// What is known of pages.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Known<'a> {
    pub(crate) table: &'a PageTable,
    pub(crate) registered: &'a RangeSet,
    /// They stay where they are.
    pub(crate) unevictable: &'a RangeSet,
    /// The program is about to drop them.
    pub(crate) removing: &'a RangeSet,
}

/// Where the hand is.
#[derive(Debug, Default)]
pub(crate) struct ClockHand {
    /// An address.
    at: u64,
    /// Counts the times that it went around.
    turn: u64,
    passes: HandPasses,
}

/// What one search has found.
struct Search {
    pages: Vec<u64>,
    most: usize,
    /// Also about pages that are known to be there.
    asks_always: bool,
    /// Entries of the table that were scanned at, and what the kernel took to answer.
    scanned: u64,
    asked: Duration,
    /// The next turn in which some page is picked that was spared now.
    soonest: u64,
}

impl Search {
    /// Whether it has found enough, or taken enough.
    fn is_over(&self) -> bool {
        self.pages.len() == self.most || self.scanned > SCANNED_MAX || self.asked > ASKED_MAX
    }
}

impl Known<'_> {
    /// The parts of some addresses whose pages may leave.
    fn leaving(&self, addresses: Range<u64>) -> impl Iterator<Item = Range<u64>> {
        self.registered.within(addresses).flat_map(|part| self.unevictable.outside(part))
    }

    /// The first addresses that are scanned together: with parts whose pages may leave, and
    /// whatever is between them; and whether all is known of them.
    fn next(&self, addresses: Range<u64>) -> Option<(Range<u64>, bool)> {
        let mut parts = self.leaving(addresses).take(ASKED_PARTS);
        let Range { start, mut end } = parts.next()?;
        while end - start < ASKED_BYTES
            && let Some(next) = parts.next().filter(|next| next.start - end <= GAP_BYTES)
        {
            end = next.end;
        }
        let end = end.min(start + ASKED_BYTES);
        let (page_end, is_known) = self.table.known_stretch(start / PAGE, end / PAGE, ASKED_CHUNKS);
        Some((start..page_end * PAGE, is_known))
    }
}

impl ClockHand {
    /// Picks at most `most` registered pages in the order of the hand, without pages that must
    /// stay or that the program is about to drop. `resident` tells which pages may be picked; with
    /// `asks_always` it is asked for known pages, too. A search is bounded: a later one goes on
    /// from its end.
    pub(crate) fn pick(
        &mut self,
        now: Instant,
        most: usize,
        known: Known<'_>,
        resident: &mut Resident<'_>,
        asks_always: bool,
    ) -> io::Result<Vec<u64>> {
        let picked = self.search(most, known, resident, asks_always)?;
        self.passes.note(self.at, now);
        Ok(picked)
    }

    /// The age of the pages that it comes to next.
    pub(crate) fn age(&mut self, now: Instant) -> Duration {
        self.passes.age(now)
    }

    /// Memory of it, in bytes, about.
    pub(crate) fn bytes(&self) -> usize {
        self.passes.bytes()
    }

    fn search(
        &mut self,
        most: usize,
        known: Known<'_>,
        resident: &mut Resident<'_>,
        asks_always: bool,
    ) -> io::Result<Vec<u64>> {
        let pages = Vec::new();
        let mut search = Search {
            pages,
            most,
            asks_always,
            scanned: 0,
            asked: Duration::ZERO,
            soonest: u64::MAX,
        };
        let start = self.at;
        // Around, so that each page is seen once; again where all were spared, in the next turn
        // that some are not.
        for again in [false, true] {
            for part in [start..u64::MAX, 0..start] {
                self.at = part.start;
                let is_first = part.end == u64::MAX && !again;
                while let Some((stretch, is_known)) = known.next(self.at..part.end) {
                    self.at = stretch.start;
                    self.walk(stretch, is_known, known, resident, &mut search)?;
                    if search.is_over() {
                        return Ok(search.pages);
                    }
                }
                self.turn += u64::from(is_first);
            }
            if !search.pages.is_empty() || search.soonest == u64::MAX {
                break;
            }
            self.turn = self.turn.max(search.soonest);
        }
        self.at = start;
        Ok(search.pages)
    }

    /// Looks at some addresses, or the first of them. The kernel is not asked where all is known.
    fn walk(
        &mut self,
        stretch: Range<u64>,
        is_known: bool,
        known: Known<'_>,
        resident: &mut Resident<'_>,
        search: &mut Search,
    ) -> io::Result<()> {
        let is_known = is_known && !search.asks_always;
        let answer = match is_known {
            true => Answer { to: stretch.end, runs: vec![stretch], took: Duration::ZERO },
            false => resident(stretch)?,
        };
        search.asked += answer.took;
        for part in answer.runs.into_iter().flat_map(|run| known.leaving(run)) {
            search.scanned += (part.end - part.start) / PAGE;
            for (page, entry) in known.table.entries(part.start / PAGE..part.end / PAGE) {
                let is_there = entry.returned || !is_known;
                let may_leave = is_there && !known.removing.contains(page * PAGE);
                if entry.place != Place::Program || !may_leave {
                    continue;
                }
                let every = 1 << entry.heat;
                let passed = (self.turn + page / NEIGHBOURS) % every;
                if passed != 0 {
                    search.soonest = search.soonest.min(self.turn + every - passed);
                    continue;
                }
                search.pages.push(page);
                if search.pages.len() == search.most {
                    self.at = (page + 1) * PAGE;
                    return Ok(());
                }
            }
        }
        self.at = answer.to.max(self.at + PAGE);
        Ok(())
    }
}

/// Heat of a page that was in the store while so many others went there, of programs with so many
/// pages resident.
pub(crate) fn heat_of_restored(stored_since: u32, resident: u64) -> u8 {
    if u64::from(stored_since) < resident { HEAT_MAX } else { 0 }
}
