//! Tests of the clock hand.

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
    staged_pages: usize,
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
            staged_pages: 0,
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
        let known = Known { table, registered, unevictable: &none, removing: &none };
        hand.pick(Instant::now(), BATCH, known, found, false).unwrap()
    }

    fn touch(&mut self, page: u64) {
        let heat = match self.table.get(page).place {
            Place::Program if self.resident.contains(&page) => return,
            Place::Program => 0, // for the first time
            Place::Staged(_) => {
                self.staged_pages -= 1;
                HEAT_MAX
            }
            Place::Stored(at) => heat_of_restored(self.stored - at, self.room as u64),
        };
        self.faults += 1;
        self.table.set(page, Entry { heat, returned: true, ..UNKNOWN });
        self.resident.insert(page);
        while self.resident.len() + self.staged_pages > self.room {
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
        self.staged_pages += picked.len();
        self.batches.push_back((self.moved, picked));
        if self.batches.len() < 3 {
            return;
        }
        let (number, oldest) = self.batches.pop_front().unwrap();
        for page in oldest {
            if self.table.get(page).place == Place::Staged(number) {
                self.staged_pages -= 1;
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
    *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
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
    let known =
        Known { table: &table, registered: &registered, unevictable: &none, removing: &none };
    let alone = &mut |range: Range<u64>| {
        Ok(answer(vec![3 * PAGE..4 * PAGE, 7 * PAGE..8 * PAGE], range.end))
    };
    let mut pick = |asks_always| {
        ClockHand::default().pick(Instant::now(), 600, known, alone, asks_always).unwrap()
    };
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
        Known { table: &table, registered: &registered, unevictable: &left, removing: &removing };
    let picked =
        ClockHand::default().pick(Instant::now(), 2000, known, &mut everything, false).unwrap();
    let leaves = |page: &u64| !(100..200).contains(page) && !(500..600).contains(page);
    assert_eq!(picked, (0..1000).filter(leaves).collect::<Vec<u64>>());
}

#[test]
fn neighbours_of_one_heat_are_picked_in_one_turn() {
    const HEAT: u8 = 2;
    let (table, registered) = all_there(1024, HEAT);
    let none = RangeSet::new();
    let known =
        Known { table: &table, registered: &registered, unevictable: &none, removing: &none };
    let mut hand = ClockHand::default();
    let mut all = BTreeSet::new();
    for turn in 0..1 << HEAT {
        let picked = hand.pick(Instant::now(), 2000, known, &mut everything, false).unwrap();
        assert_eq!(picked.len(), 1024 >> HEAT, "turn {turn}");
        for block in picked.chunk_by(|a, b| a / NEIGHBOURS == b / NEIGHBOURS) {
            assert_eq!(block.len(), NEIGHBOURS as usize, "turn {turn}: {block:?}");
        }
        all.extend(picked);
    }
    assert_eq!(all.len(), 1024, "each page in one of four turns");
}

#[test]
fn the_only_page_is_picked_whatever_its_turn() {
    for number in 0..1 << HEAT_MAX {
        let (mut table, mut registered, none) =
            (PageTable::default(), RangeSet::new(), RangeSet::new());
        let page = number * NEIGHBOURS;
        registered.insert(page * PAGE..(page + 1) * PAGE);
        table.set(page, Entry { returned: true, heat: HEAT_MAX, ..UNKNOWN });
        let known =
            Known { table: &table, registered: &registered, unevictable: &none, removing: &none };
        let picked =
            ClockHand::default().pick(Instant::now(), 1, known, &mut everything, false).unwrap();
        assert_eq!(picked, [page]);
    }
}

const TIB: u64 = 1 << 40;

/// A program with so much registered memory, of which these pages are there, and the kernel.
struct Sparse {
    table: PageTable,
    registered: RangeSet,
    there: BTreeSet<u64>,
    /// The queries of the kernel, and the cost of each answer.
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
        let known = Known { table, registered, unevictable: &none, removing: &none };
        let found = &mut |range: Range<u64>| {
            asked.push(range.clone());
            let mut pages = there.range(range.start / PAGE..range.end / PAGE);
            let runs = pages.by_ref().take(64).map(|page| page * PAGE..(page + 1) * PAGE);
            let runs: Vec<Range<u64>> = runs.collect();
            let to = if pages.next().is_some() { runs[63].end } else { range.end };
            Ok(Answer { took: *took, ..answer(runs, to) })
        };
        hand.pick(Instant::now(), most, known, found, false).unwrap()
    }
}

#[test]
fn what_there_is_in_the_midst_of_a_huge_mapping_is_found_at_once() {
    let mut sparse = Sparse::new([0..16 * TIB, 20 * TIB..23 * TIB]);
    let there = [8 * TIB / PAGE..8 * TIB / PAGE + 300, 22 * TIB / PAGE..22 * TIB / PAGE + 5];
    sparse.there.extend(there.into_iter().flatten());
    let mut hand = ClockHand::default();
    assert_eq!(sparse.pick(&mut hand, 200), Vec::from_iter(sparse.there.iter().take(200).copied()));
    assert_eq!(sparse.pick(&mut hand, 105), Vec::from_iter(sparse.there.iter().skip(200).copied()));
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
        assert_eq!(sparse.asked.len(), searches * 9, "search {searches}");
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

#[test]
fn a_search_ends_after_many_entries_and_goes_on_behind_them() {
    let (table, none) = (PageTable::default(), RangeSet::new());
    let mut registered = RangeSet::new();
    registered.insert(0..4 * ASKED_BYTES);
    // The program is about to drop all that is there.
    let known =
        Known { table: &table, registered: &registered, unevictable: &none, removing: &registered };
    let mut hand = ClockHand::default();
    for at in [0, ASKED_BYTES, 2 * ASKED_BYTES] {
        let mut asked = Vec::new();
        let found = &mut |range: Range<u64>| {
            asked.push(range.start);
            everything(range)
        };
        assert!(hand.pick(Instant::now(), 1, known, found, false).unwrap().is_empty());
        assert_eq!(asked, [at]);
    }
}
