//! Goal: `Extents` says what a table of states says, and never gives out a block that is held or
//! being discarded.
//! Method: a slow twin that walks its table for every decision; every reachable state of four
//! blocks, with every call in each; seeded histories over more blocks, with audits.
//! Blind to: threads (it is behind its owner's lock).

use std::collections::{HashMap, VecDeque};
use std::ops::Range;

use uzswap::backing::Extents;
use uzswap::random::SplitMix64;

const DISCARD_BLOCKS_MAX: usize = 32768;
const HOLDS_MAX: u32 = 65533;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum State {
    Clean,
    Spent,
    Held(u32),
    Discarding,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Twin {
    states: Vec<State>,
    next: usize,
    sweep: usize,
}

#[derive(Debug, Clone)]
enum Call {
    Take(u32),
    Hold(u32),
    Release(u32),
    BeginDiscard(u32),
    EndDiscard(Range<u32>),
}

#[derive(Debug, PartialEq, Eq)]
enum Answer {
    Run(Option<Range<u32>>),
    Freed(bool),
    Done,
    Refused(u32),
}

/// The runs of blocks in `within` that `is_one` holds for.
fn runs(states: &[State], within: Range<usize>, is_one: fn(State) -> bool) -> Vec<Range<usize>> {
    let mut found: Vec<Range<usize>> = Vec::new();
    for block in within {
        if is_one(states[block]) {
            match found.last_mut() {
                Some(run) if run.end == block => run.end += 1,
                _ => found.push(block..block + 1),
            }
        }
    }
    found
}

fn is_free(state: State) -> bool {
    matches!(state, State::Clean | State::Spent)
}

fn numbers(run: &Range<usize>) -> Range<u32> {
    run.start as u32..run.end as u32
}

impl Twin {
    fn new(count: usize) -> Twin {
        Twin { states: vec![State::Clean; count], next: 0, sweep: 0 }
    }

    fn held(&mut self, block: u32) -> Option<&mut u32> {
        match self.states.get_mut(block as usize) {
            Some(State::Held(holds)) => Some(holds),
            _ => None,
        }
    }

    fn call(&mut self, call: &Call) -> Answer {
        match *call {
            Call::Take(wanted) => Answer::Run(self.take_run(wanted as usize)),
            Call::Hold(block) => match self.held(block) {
                Some(holds) if *holds < HOLDS_MAX => {
                    *holds += 1;
                    Answer::Done
                }
                _ => Answer::Refused(block),
            },
            Call::Release(block) => match self.held(block) {
                Some(1) => {
                    self.states[block as usize] = State::Spent;
                    Answer::Freed(true)
                }
                Some(holds) => {
                    *holds -= 1;
                    Answer::Freed(false)
                }
                None => Answer::Refused(block),
            },
            Call::BeginDiscard(min) => Answer::Run(self.begin_discard(min.max(1) as usize)),
            Call::EndDiscard(ref range) => {
                let is_discarding =
                    |block: &u32| self.states.get(*block as usize) == Some(&State::Discarding);
                if let Some(block) = range.clone().find(|block| !is_discarding(block)) {
                    return Answer::Refused(block);
                }
                for block in range.clone() {
                    self.states[block as usize] = State::Clean;
                }
                Answer::Done
            }
        }
    }

    /// The first run that is long enough, from the end of the last one on; else the longest.
    fn take_run(&mut self, wanted: usize) -> Option<Range<u32>> {
        if wanted == 0 {
            return None;
        }
        let count = self.states.len();
        let mut found = runs(&self.states, self.next..count, is_free);
        found.extend(runs(&self.states, 0..self.next, is_free));
        let long_enough = found.iter().find(|run| run.len() >= wanted);
        let longest = || found.iter().rev().max_by_key(|run| run.len());
        let run = long_enough.or_else(longest)?;
        let run = run.start..run.end.min(run.start + wanted);
        self.take(run.clone());
        Some(numbers(&run))
    }

    fn take(&mut self, run: Range<usize>) {
        self.states[run.clone()].fill(State::Held(1));
        self.next = run.end % self.states.len();
    }

    fn begin_discard(&mut self, min: usize) -> Option<Range<u32>> {
        let count = self.states.len();
        let found = runs(&self.states, self.sweep..count, |state| state == State::Spent);
        let Some(run) = found.into_iter().find(|run| run.len() >= min) else {
            self.sweep = 0;
            return None;
        };
        let run = run.start..run.end.min(run.start + DISCARD_BLOCKS_MAX);
        self.states[run.clone()].fill(State::Discarding);
        self.sweep = run.end;
        Some(numbers(&run))
    }

    fn check(&self, extents: &Extents) {
        extents.audit().unwrap();
        let count = |what: fn(State) -> bool| self.states.iter().filter(|s| what(**s)).count();
        assert_eq!(extents.free_blocks(), count(is_free));
        assert_eq!(extents.spent_blocks(), count(|state| state == State::Spent));
        assert_eq!(extents.discarding_blocks(), count(|state| state == State::Discarding));
        assert_eq!(extents.used_blocks(), count(|state| matches!(state, State::Held(_))));
        for (block, state) in self.states.iter().enumerate() {
            let holds = if let State::Held(holds) = *state { holds } else { 0 };
            assert_eq!(u32::from(extents.holds(block as u32)), holds, "block {block}");
        }
    }
}

fn call(extents: &mut Extents, call: &Call) -> Answer {
    let refused = |error: uzswap::backing::UnknownBlock| Answer::Refused(error.block);
    match *call {
        Call::Take(wanted) => Answer::Run(extents.take_run(wanted)),
        Call::Hold(block) => extents.hold(block).map_or_else(refused, |()| Answer::Done),
        Call::Release(block) => extents.release(block).map_or_else(refused, Answer::Freed),
        Call::BeginDiscard(min) => Answer::Run(extents.begin_discard(min)),
        Call::EndDiscard(ref range) => {
            extents.end_discard(range.clone()).map_or_else(refused, |()| Answer::Done)
        }
    }
}

#[test]
fn every_call_in_every_state_of_four_blocks() {
    const BLOCKS: u32 = 4;
    let mut calls = vec![Call::Take(0)];
    for number in 0..BLOCKS {
        calls.extend([Call::Take(number + 1), Call::Hold(number), Call::Release(number)]);
        calls.push(Call::BeginDiscard(number));
        calls.extend((number..=BLOCKS).map(|end| Call::EndDiscard(number..end)));
    }
    // Out of range.
    calls.extend([Call::Hold(BLOCKS), Call::Release(u32::MAX), Call::EndDiscard(3..5)]);

    // The shortest history to each state.
    let mut known = HashMap::from([(Twin::new(BLOCKS as usize), Vec::new())]);
    let mut new = VecDeque::from_iter(known.keys().cloned());
    while let Some(state) = new.pop_front() {
        let history: Vec<usize> = known[&state].clone();
        for (number, last) in calls.iter().enumerate() {
            let mut extents = Extents::new(BLOCKS).unwrap();
            for &before in &history {
                call(&mut extents, &calls[before]);
            }
            let mut twin = state.clone();
            let expected = twin.call(last);
            let place = || format!("{history:?} then {last:?} in {state:?}");
            assert_eq!(call(&mut extents, last), expected, "{}", place());
            twin.check(&extents);
            let is_small = twin.states.iter().all(|state| !matches!(state, State::Held(3..)));
            if is_small && !known.contains_key(&twin) {
                let mut history = history.clone();
                history.push(number);
                known.insert(twin.clone(), history);
                new.push_back(twin);
            }
        }
    }
    assert!(known.len() > 4000, "{} states", known.len());
}

/// A call that is likely to make sense.
fn likely(random: &mut SplitMix64, twin: &Twin, turn: u64) -> Call {
    let below = |random: &mut SplitMix64, n: usize| (random.next_word() % n as u64) as u32;
    let count = twin.states.len();
    // Times of filling and of emptying.
    let fills = turn.is_multiple_of(2);
    let block = below(random, count + 1);
    match random.next_word() % 16 {
        0..4 if fills => Call::Take(below(random, 70)),
        0 => Call::Take(1 + below(random, 3)),
        4..6 => Call::Hold(block),
        6 => Call::BeginDiscard(below(random, 10)),
        7..9 => {
            let found = runs(&twin.states, 0..count, |state| state == State::Discarding);
            let Some(run) = found.get(below(random, found.len() + 1) as usize) else {
                return Call::EndDiscard(block..block + below(random, 3));
            };
            let run = numbers(run);
            Call::EndDiscard(run.start..run.end - below(random, 2).min(run.end - run.start))
        }
        _ => Call::Release(block),
    }
}

#[test]
fn histories_are_as_the_twin_says() {
    // Up to 16384 blocks a search sees all of them.
    for (seed, count) in [1, 2, 7, 64, 500, 4095, 4096, 4097, 9000, 12288].into_iter().enumerate() {
        let mut random = SplitMix64::new(seed as u64);
        let mut extents = Extents::new(count as u32).unwrap();
        let mut twin = Twin::new(count);
        for step in 0..6000 {
            let next = likely(&mut random, &twin, step / 1500);
            let expected = twin.call(&next);
            let answer = call(&mut extents, &next);
            assert_eq!(answer, expected, "{next:?}, step {step} of seed {seed}");
            if step % 500 == 499 {
                twin.check(&extents);
            }
        }
        twin.check(&extents);
    }
}

#[test]
fn a_large_table_gives_out_what_is_free() {
    const BLOCKS: usize = 100_000; // a search stops early
    let mut random = SplitMix64::new(7);
    let mut extents = Extents::new(BLOCKS as u32).unwrap();
    assert!(extents.bytes() < BLOCKS * 21 / 10);
    let mut states = vec![State::Clean; BLOCKS];
    for round in 0..6 {
        // Full to the last block: each run is of free blocks, and there is one while any is free.
        while extents.free_blocks() > 0 {
            let run = extents.take_run(1 + (random.next_word() % 300) as u32).unwrap();
            assert!(!run.is_empty());
            for block in run {
                let before = std::mem::replace(&mut states[block as usize], State::Held(1));
                assert!(is_free(before), "block {block} is {before:?}");
            }
        }
        assert_eq!(extents.take_run(1), None);
        // Emptied in pieces, of which some are discarded while others are taken again.
        let piece = 1 + random.next_word() as usize % 50_000;
        for (block, state) in states.iter_mut().enumerate() {
            if (block / piece + round).is_multiple_of(2) {
                assert_eq!(extents.release(block as u32), Ok(true));
                *state = State::Spent;
            }
        }
        let mut ranges = Vec::new();
        while let Some(range) = extents.begin_discard(100) {
            assert!(range.len() >= 100 && range.len() <= DISCARD_BLOCKS_MAX);
            for block in range.clone() {
                let before = std::mem::replace(&mut states[block as usize], State::Discarding);
                assert_eq!(before, State::Spent);
            }
            ranges.push(range);
            if ranges.len().is_multiple_of(3) {
                let range = ranges.swap_remove(0);
                extents.end_discard(range.clone()).unwrap();
                states[range.start as usize..range.end as usize].fill(State::Clean);
            }
        }
        extents.audit().unwrap();
        while let Some(run) = extents.take_run(64) {
            for block in run {
                let before = std::mem::replace(&mut states[block as usize], State::Held(1));
                assert!(is_free(before), "block {block} is {before:?}");
            }
        }
        for range in ranges {
            extents.end_discard(range.clone()).unwrap();
            states[range.start as usize..range.end as usize].fill(State::Clean);
        }
        extents.audit().unwrap();
    }
}

#[test]
fn a_run_is_found_across_full_groups() {
    let mut extents = Extents::new(40_000).unwrap();
    assert_eq!(extents.take_run(40_000), Some(0..40_000));
    for block in [39_000, 39_001, 4095, 4096, 4097] {
        extents.release(block).unwrap();
    }
    assert_eq!(extents.take_run(3), Some(4095..4098));
    assert_eq!(extents.take_run(3), Some(39_000..39_002));
    assert_eq!(extents.take_run(3), None);
    // The first block of a group behind full ones.
    for block in [8192, 36_864] {
        extents.release(block).unwrap();
        assert_eq!(extents.take_run(2), Some(block..block + 1));
        extents.release(block).unwrap();
        assert_eq!(extents.begin_discard(1), Some(block..block + 1));
        extents.end_discard(block..block + 1).unwrap();
        assert_eq!(extents.begin_discard(1), None);
    }
}

#[test]
fn holds_end_before_they_overflow() {
    let mut extents = Extents::new(1).unwrap();
    assert_eq!(extents.take_run(5), Some(0..1));
    for _ in 1..HOLDS_MAX {
        extents.hold(0).unwrap();
    }
    let error = extents.hold(0).unwrap_err();
    assert_eq!(error.to_string(), "block 0 is held and cannot be held once more");
    for left in (0..HOLDS_MAX).rev() {
        assert_eq!(extents.release(0), Ok(left == 0));
    }
    assert_eq!(extents.release(0).unwrap_err().state, "free");
}

#[test]
fn no_blocks_are_none() {
    let mut extents = Extents::new(0).unwrap();
    assert_eq!((extents.take_run(1), extents.begin_discard(0)), (None, None));
    extents.hold(0).unwrap_err();
    extents.audit().unwrap();
}
