//! The CLOCK hand of a process: it picks the pages to evict.
//!
//! User space has no accessed bit to read. A page counts as used if a thread touches it while it
//! is staged, or if it returns before as many other pages were stored as are resident: with twice
//! the memory it would have stayed. Used pages get the most heat. The hand picks a page of heat h
//! in one turn of 2^h.

use std::io;
use std::ops::Range;
use std::time::Duration;

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
    pub(crate) left: &'a RangeSet,
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
        self.registered.within(addresses).flat_map(|part| self.left.outside(part))
    }

    /// The first addresses that are scanned at together: with parts whose pages may leave, and
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

#[cfg(test)]
mod tests {
    use std::collections::{BTreeSet, VecDeque};

    use super::*;
    use crate::page_table::{Entry, UNKNOWN};

    /// A program whose pages leave when there are more than `room`: as the evictor does it, without
    /// the kernel.
    struct Model {
        hand: ClockHand,
        table: PageTable,
        registered: RangeSet,
        room: usize,
        resident: BTreeSet<u64>,
        /// Staged batches by number, and how many of their pages are left.
        batches: VecDeque<(u32, Vec<u64>)>,
        staged: usize,
        moved: u32,
        stored: u32,
        faults: usize,
    }

    const BATCH: usize = 32;

    fn answer(runs: Vec<Range<u64>>, to: u64) -> Answer {
        Answer { runs, to, took: Duration::ZERO }
    }

    impl Model {
        fn new(pages: u64, room: usize) -> Model {
            let mut model = Model {
                hand: ClockHand::default(),
                table: PageTable::default(),
                registered: RangeSet::default(),
                room,
                resident: BTreeSet::new(),
                batches: VecDeque::new(),
                staged: 0,
                moved: 0,
                stored: 0,
                faults: 0,
            };
            model.registered.insert(0..pages * PAGE);
            // The kernel is asked about the rest.
            for page in 0..pages / 2 {
                model.table.set(page, Entry { place: Place::Stored(0), ..UNKNOWN });
            }
            model
        }

        fn pick(&mut self) -> Vec<u64> {
            let Model { hand, table, registered, resident, .. } = self;
            let found = &mut |range: Range<u64>| {
                let pages = resident.range(range.start / PAGE..range.end / PAGE);
                let runs = pages.map(|page| page * PAGE..(page + 1) * PAGE).collect();
                Ok(answer(runs, range.end))
            };
            let none = RangeSet::new();
            let known = Known { table, registered, left: &none, removing: &none };
            hand.pick(BATCH, known, found, false).unwrap()
        }

        fn touch(&mut self, page: u64) {
            let heat = match self.table.get(page).place {
                Place::Program if self.resident.contains(&page) => return,
                Place::Program => 0, // for the first time
                Place::Staged(_) => {
                    self.staged -= 1;
                    HEAT_MAX
                }
                Place::Stored(at) => heat_of_restored(self.stored - at, self.room as u64),
            };
            self.faults += 1;
            self.table.set(page, Entry { heat, returned: true, ..UNKNOWN });
            self.resident.insert(page);
            while self.resident.len() + self.staged > self.room {
                self.evict();
            }
        }

        /// Stages a batch, and stores the rest of the oldest.
        fn evict(&mut self) {
            let picked = self.pick();
            self.moved += 1;
            for &page in &picked {
                let entry = self.table.get(page);
                assert_eq!(entry.place, Place::Program, "page {page} was picked twice");
                self.table.set(page, Entry { place: Place::Staged(self.moved), ..entry });
                self.resident.remove(&page);
            }
            self.staged += picked.len();
            self.batches.push_back((self.moved, picked));
            if self.batches.len() < 3 {
                return;
            }
            let (number, oldest) = self.batches.pop_front().unwrap();
            for page in oldest {
                if self.table.get(page).place == Place::Staged(number) {
                    self.staged -= 1;
                    self.stored += 1;
                    self.table.set(page, Entry { place: Place::Stored(self.stored), ..UNKNOWN });
                }
            }
        }
    }

    /// Faults where the page that was not touched for longest leaves.
    fn faults_of_lru(touches: &[u64], room: usize) -> usize {
        let mut touched_at = std::collections::BTreeMap::new();
        let mut by_time = std::collections::BTreeMap::new();
        let mut faults = 0;
        for (now, &page) in touches.iter().enumerate() {
            match touched_at.insert(page, now) {
                Some(before) => drop(by_time.remove(&before)),
                None => faults += 1,
            }
            by_time.insert(now, page);
            if by_time.len() > room {
                let (_, oldest) = by_time.pop_first().unwrap();
                touched_at.remove(&oldest);
            }
        }
        faults
    }

    /// Faults of the model, and of one that knows all touches.
    fn faults(touches: &[u64], pages: u64, room: usize) -> (usize, usize) {
        let mut model = Model::new(pages, room);
        touches.iter().for_each(|&page| model.touch(page));
        (model.faults, faults_of_lru(touches, room))
    }

    fn random(seed: &mut u64, below: u64) -> u64 {
        *seed =
            seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (*seed >> 33) % below
    }

    #[test]
    fn hot_pages_stay() {
        let mut seed = 1;
        // Of 50 touches 49 go to 700 pages of 6000; 900 have room. The hot ones change twice.
        let touches: Vec<u64> = (0..200_000)
            .map(|at| match at % 50 {
                0 => random(&mut seed, 6000),
                _ => at / 70_000 * 700 + random(&mut seed, 700),
            })
            .collect();
        let (ours, lru) = faults(&touches, 6000, 900);
        assert!(ours * 10 < lru * 18, "{ours} faults, {lru} of an LRU");
    }

    #[test]
    fn what_does_not_fit_costs_no_more_than_it_must() {
        let mut seed = 2;
        let touches: Vec<u64> = (0..50_000).map(|_| random(&mut seed, 6000)).collect();
        let (ours, lru) = faults(&touches, 6000, 900);
        assert!(ours * 10 < lru * 11, "{ours} faults, {lru} of an LRU");
    }

    #[test]
    fn pages_that_are_all_hot_are_picked_all_the_same() {
        let mut model = Model::new(100, 200);
        for page in 0..100 {
            model.touch(page);
            model.table.set(page, Entry { heat: HEAT_MAX, returned: true, ..UNKNOWN });
        }
        assert!(!model.pick().is_empty());
    }

    #[test]
    fn what_is_left_out_is_not_picked_though_it_is_there() {
        const COUNT: u64 = 512; // a part of the table
        let (mut table, mut registered, none) =
            (PageTable::default(), RangeSet::new(), RangeSet::new());
        registered.insert(0..COUNT * PAGE);
        (0..COUNT).for_each(|page| table.set(page, Entry { returned: true, ..UNKNOWN }));
        let known = Known { table: &table, registered: &registered, left: &none, removing: &none };
        let alone = &mut |range: Range<u64>| {
            Ok(answer(vec![3 * PAGE..4 * PAGE, 7 * PAGE..8 * PAGE], range.end))
        };
        let mut pick =
            |asks_always| ClockHand::default().pick(600, known, alone, asks_always).unwrap();
        assert_eq!(pick(true), [3, 7]);
        assert_eq!(pick(false), Vec::from_iter(0..COUNT));
    }

    /// A table of `count` pages, all of them there and of this heat, and what is registered.
    fn all_there(count: u64, heat: u8) -> (PageTable, RangeSet) {
        let (mut table, mut registered) = (PageTable::default(), RangeSet::new());
        registered.insert(0..count * PAGE);
        (0..count).for_each(|page| table.set(page, Entry { returned: true, heat, ..UNKNOWN }));
        (table, registered)
    }

    fn everything(range: Range<u64>) -> io::Result<Answer> {
        let end = range.end;
        Ok(answer(vec![range], end))
    }

    #[test]
    fn what_stays_or_is_about_to_be_dropped_is_not_picked() {
        let (table, registered) = all_there(1024, 0);
        let [mut left, mut removing] = [RangeSet::new(), RangeSet::new()];
        left.insert(100 * PAGE..200 * PAGE);
        left.insert(1000 * PAGE..1024 * PAGE);
        removing.insert(500 * PAGE..600 * PAGE);
        let known =
            Known { table: &table, registered: &registered, left: &left, removing: &removing };
        let picked = ClockHand::default().pick(2000, known, &mut everything, false).unwrap();
        let leaves = |page: &u64| !(100..200).contains(page) && !(500..600).contains(page);
        assert_eq!(picked, (0..1000).filter(leaves).collect::<Vec<u64>>());
    }

    #[test]
    fn neighbours_of_one_heat_are_picked_in_one_turn() {
        const HEAT: u8 = 2;
        let (table, registered) = all_there(1024, HEAT);
        let none = RangeSet::new();
        let known = Known { table: &table, registered: &registered, left: &none, removing: &none };
        let mut hand = ClockHand::default();
        let mut all = BTreeSet::new();
        for turn in 0..1 << HEAT {
            let picked = hand.pick(2000, known, &mut everything, false).unwrap();
            assert_eq!(picked.len(), 1024 >> HEAT, "turn {turn}");
            for block in picked.chunk_by(|a, b| a / NEIGHBOURS == b / NEIGHBOURS) {
                assert_eq!(block.len(), NEIGHBOURS as usize, "turn {turn}: {block:?}");
            }
            all.extend(picked);
        }
        assert_eq!(all.len(), 1024, "each page in one of four turns");
    }

    const TIB: u64 = 1 << 40;

    /// A program with so much registered memory, of which these pages are there, and the kernel.
    struct Sparse {
        table: PageTable,
        registered: RangeSet,
        there: BTreeSet<u64>,
        /// What the kernel was asked, and what it takes for each answer.
        asked: Vec<Range<u64>>,
        took: Duration,
    }

    impl Sparse {
        fn new(registered: impl IntoIterator<Item = Range<u64>>) -> Sparse {
            let mut ranges = RangeSet::new();
            registered.into_iter().for_each(|range| ranges.insert(range));
            let (there, asked, took) = (BTreeSet::new(), Vec::new(), Duration::ZERO);
            Sparse { table: PageTable::default(), registered: ranges, there, asked, took }
        }

        fn pick(&mut self, hand: &mut ClockHand, most: usize) -> Vec<u64> {
            let Sparse { table, registered, there, asked, took } = self;
            let none = RangeSet::new();
            let known = Known { table, registered, left: &none, removing: &none };
            let found = &mut |range: Range<u64>| {
                asked.push(range.clone());
                let mut pages = there.range(range.start / PAGE..range.end / PAGE);
                let runs = pages.by_ref().take(64).map(|page| page * PAGE..(page + 1) * PAGE);
                let runs: Vec<Range<u64>> = runs.collect();
                let to = if pages.next().is_some() { runs[63].end } else { range.end };
                Ok(Answer { took: *took, ..answer(runs, to) })
            };
            hand.pick(most, known, found, false).unwrap()
        }
    }

    #[test]
    fn what_there_is_in_the_midst_of_a_huge_mapping_is_found_at_once() {
        let mut sparse = Sparse::new([0..16 * TIB, 20 * TIB..23 * TIB]);
        let there = [8 * TIB / PAGE..8 * TIB / PAGE + 300, 22 * TIB / PAGE..22 * TIB / PAGE + 5];
        sparse.there.extend(there.into_iter().flatten());
        let mut hand = ClockHand::default();
        assert_eq!(
            sparse.pick(&mut hand, 200),
            Vec::from_iter(sparse.there.iter().take(200).copied())
        );
        assert_eq!(
            sparse.pick(&mut hand, 105),
            Vec::from_iter(sparse.there.iter().skip(200).copied())
        );
        let all = 19 * TIB / ASKED_BYTES;
        assert!((sparse.asked.len() as u64) < all + 10, "{} of {all}", sparse.asked.len());
        sparse.there.clear();
        assert!(sparse.pick(&mut hand, 1).is_empty());
    }

    #[test]
    fn a_search_is_as_long_as_the_kernel_takes_and_goes_on_where_it_ended() {
        let mut sparse = Sparse::new(Some(0..TIB));
        sparse.there.insert(TIB / PAGE - 1);
        sparse.took = ASKED_MAX / 8; // tables of dropped pages, all over
        let (mut hand, mut searches) = (ClockHand::default(), 1);
        while sparse.pick(&mut hand, 1).is_empty() {
            assert!(sparse.asked.len() <= searches * 9, "search {searches}");
            searches += 1;
        }
        assert!(sparse.asked.windows(2).all(|two| two[0].end == two[1].start));
        assert_eq!(searches as u64, (TIB / ASKED_BYTES).div_ceil(9));
    }

    #[test]
    fn the_kernel_is_asked_about_few_tables_of_which_something_is_known_at_once() {
        let mut sparse = Sparse::new(Some(0..TIB));
        // One page of each 4 MiB is in the store.
        for at in 0..TIB >> 22 {
            let entry = Entry { place: Place::Stored(at as u32), ..UNKNOWN };
            sparse.table.set((at << 22) / PAGE, entry);
        }
        assert!(sparse.pick(&mut ClockHand::default(), 1).is_empty());
        assert_eq!(sparse.asked.len() as u64, (TIB >> 22).div_ceil(ASKED_CHUNKS as u64 + 1));
    }

    #[test]
    fn many_small_mappings_are_asked_about_together() {
        const COUNT: u64 = 65_000;
        let parts = |at: u64| at * 5 * PAGE..(at * 5 + 4) * PAGE; // above a guard each
        let mut sparse = Sparse::new((0..COUNT).map(parts));
        sparse.there.extend((0..COUNT / 10).map(|at| at * 50));
        // One that is not registered.
        sparse.there.insert(54);
        let (mut hand, mut picked) = (ClockHand::default(), Vec::new());
        let registered = sparse.there.len() - 1;
        while picked.len() < registered {
            picked.extend(sparse.pick(&mut hand, 128.min(registered - picked.len())));
        }
        assert!(picked.is_sorted() && picked.iter().all(|page| sparse.there.contains(page)));
        assert!(picked.len() == registered && !picked.contains(&54));
        assert!(sparse.asked.len() as u64 <= COUNT / 60, "{}", sparse.asked.len());
    }

    #[test]
    fn what_comes_back_before_as_many_as_are_there_have_left_is_hot() {
        assert_eq!([0, 99, 100, 5000].map(|since| heat_of_restored(since, 100)), [5, 5, 0, 0]);
    }

    #[test]
    fn each_page_is_picked_once_around() {
        let mut model = Model::new(100, 200);
        (0..100).for_each(|page| model.touch(page));
        let order: Vec<u64> = (0..4).flat_map(|_| model.pick()).take(100).collect();
        assert_eq!(order, (0..100).collect::<Vec<u64>>());
    }
}
