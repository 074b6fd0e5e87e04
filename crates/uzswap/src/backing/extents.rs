//! States of a backing's blocks: free, or held by how many objects.
//!
//! ```text
//!            take_run            last release          begin_discard
//!   clean -------------> held ------------------> spent -------------> discarding
//!     ^                  ^  1 ..= 65533             |                      |
//!     |                  '--------------------------'                      |
//!     |                          take_run                                  |
//!     '--------------------------------------------------------------------'
//!                                end_discard
//! ```
//!
//! Clean and spent blocks are free: either can be taken. A spent one still takes space in the
//! backing. One that is being discarded can not be taken: a hole that is punched late would destroy
//! what was written in between.
//!
//! Two bytes a block, and four for every 4096: the free ones of such a group are counted, so that a
//! search passes over the full ones. In a large table, blocks that were never taken have no memory.

use std::collections::TryReserveError;
use std::ops::Range;

use thiserror::Error;

use crate::AuditError;

use uzswap_sys::zeroed::zeroed;

/// A block that is free and takes no space.
const CLEAN: u16 = 0;
/// A block that is free and was written.
const SPENT: u16 = u16::MAX;
/// A block that is neither free nor held.
const DISCARDING: u16 = u16::MAX - 1;
/// The most holds of a block: 256 objects and a writer or two need far fewer.
const HOLDS_MAX: u16 = u16::MAX - 2;

/// Blocks in a group.
const GROUP: usize = 4096;

/// A search for a run of the wanted length ends after so many blocks if it has found any at all.
const SEARCH_BLOCKS: usize = 4 * GROUP;

/// The most blocks that are discarded at a time, and cannot be taken meanwhile: 128 MiB.
const DISCARD_BLOCKS_MAX: usize = 1 << 15;

/// A block is not in the state that the call is about: out of range, not held, held too often, not
/// being discarded. Nothing was changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("block {block} is {state} and cannot be {wanted}")]
pub struct UnknownBlock {
    /// The block.
    pub block: u32,
    /// What it is.
    pub state: &'static str,
    /// The refused change.
    pub wanted: &'static str,
}

/// The blocks of one backing. Not shared: it is behind a lock of its owner.
pub struct Extents {
    states: Box<[u16]>,
    /// Free blocks of each group.
    group_free: Box<[u16]>,
    group_spent: Box<[u16]>,
    free: usize,
    spent: usize,
    discarding: usize,
    /// Where the next search for a run begins.
    next: usize,
    /// Where the sweep for spent blocks is.
    sweep: usize,
}

fn is_free(state: u16) -> bool {
    state == CLEAN || state == SPENT
}

impl Extents {
    /// The blocks of an empty backing, all clean.
    ///
    /// # Errors
    ///
    /// Where the heap has no room for the tables, about 2 bytes a block. No other call takes
    /// memory.
    pub fn new(block_count: u32) -> Result<Extents, TryReserveError> {
        let count = block_count as usize;
        let groups = count.div_ceil(GROUP);
        let mut group_free = zeroed(groups)?;
        for (group, free) in group_free.iter_mut().enumerate() {
            *free = (count - group * GROUP).min(GROUP) as u16;
        }
        Ok(Extents {
            states: zeroed(count)?,
            group_free,
            group_spent: zeroed(groups)?,
            free: count,
            spent: 0,
            discarding: 0,
            next: 0,
            sweep: 0,
        })
    }

    /// Blocks that can be taken.
    pub fn free_blocks(&self) -> usize {
        self.free
    }

    /// Blocks that are held.
    pub fn used_blocks(&self) -> usize {
        self.states.len() - self.free - self.discarding
    }

    /// Free blocks that were written and not discarded since.
    pub fn spent_blocks(&self) -> usize {
        self.spent
    }

    /// Blocks between [`begin_discard`](Self::begin_discard) and
    /// [`end_discard`](Self::end_discard).
    pub fn discarding_blocks(&self) -> usize {
        self.discarding
    }

    /// Bytes of memory that this takes.
    pub fn bytes(&self) -> usize {
        size_of::<Self>()
            + size_of_val(&*self.states)
            + size_of_val(&*self.group_free)
            + size_of_val(&*self.group_spent)
    }

    /// Takes adjacent free blocks, as many as there are together, up to `wanted`; each is held
    /// once, by who writes it. `None` where no block is free, or none is wanted.
    ///
    /// The search goes on where the last one ended, to the first run that is long enough. After
    /// 16384 blocks without one it settles for the longest it met.
    pub fn take_run(&mut self, wanted: u32) -> Option<Range<u32>> {
        if self.free == 0 || wanted == 0 {
            return None;
        }
        let wanted = wanted as usize;
        let behind = self.next..self.states.len();
        let mut best = self.search(behind.clone(), wanted, 0..0);
        if best.is_empty() || best.len() < wanted && behind.len() < SEARCH_BLOCKS {
            best = self.search(0..self.next, wanted, best);
        }
        for block in best.clone() {
            self.set(block, 1);
        }
        self.next = if best.end == self.states.len() { 0 } else { best.end };
        Some(best.start as u32..best.end as u32)
    }

    fn search(&self, within: Range<usize>, wanted: usize, mut best: Range<usize>) -> Range<usize> {
        let mut at = within.start;
        while at < within.end && best.len() < wanted {
            if !best.is_empty() && at - within.start >= SEARCH_BLOCKS {
                break;
            }
            if self.group_free[at / GROUP] == 0 {
                at = (at / GROUP + 1) * GROUP;
                continue;
            }
            let end = within.end.min(at.saturating_add(wanted));
            let length = self.states[at..end].iter().take_while(|state| is_free(**state)).count();
            if length > best.len() {
                best = at..at + length;
            }
            at += length + 1;
        }
        best
    }

    /// One more object, or writer, in a block that is held.
    ///
    /// # Errors
    ///
    /// [`UnknownBlock`] where it is not held, or 65533 times.
    pub fn hold(&mut self, block: u32) -> Result<(), UnknownBlock> {
        match self.states.get(block as usize) {
            Some(1..HOLDS_MAX) => {
                self.states[block as usize] += 1;
                Ok(())
            }
            _ => Err(self.unknown(block, "held once more")),
        }
    }

    /// One less; whether the block is free now.
    ///
    /// # Errors
    ///
    /// [`UnknownBlock`] where it is not held.
    pub fn release(&mut self, block: u32) -> Result<bool, UnknownBlock> {
        match self.states.get(block as usize) {
            Some(1) => {
                self.set(block as usize, SPENT);
                Ok(true)
            }
            Some(2..=HOLDS_MAX) => {
                self.states[block as usize] -= 1;
                Ok(false)
            }
            _ => Err(self.unknown(block, "released")),
        }
    }

    /// How often a block is held; 0 for one that is free, being discarded, or not there.
    pub fn holds(&self, block: u32) -> u16 {
        match self.states.get(block as usize) {
            Some(&holds @ 1..=HOLDS_MAX) => holds,
            _ => 0,
        }
    }

    /// The next `min` (at least 1) or more adjacent spent blocks, at most 32768, to be discarded.
    /// They cannot be taken before [`end_discard`](Self::end_discard). `None` ends a sweep over all
    /// blocks; the next call begins another.
    pub fn begin_discard(&mut self, min: u32) -> Option<Range<u32>> {
        let min = (min as usize).clamp(1, DISCARD_BLOCKS_MAX);
        let count = self.states.len();
        let mut at = if self.spent < min { count } else { self.sweep };
        while at < count {
            if self.group_spent[at / GROUP] == 0 {
                at = (at / GROUP + 1) * GROUP;
                continue;
            }
            let end = count.min(at + DISCARD_BLOCKS_MAX);
            let length = self.states[at..end].iter().take_while(|state| **state == SPENT).count();
            if length >= min {
                for block in at..at + length {
                    self.set(block, DISCARDING);
                }
                self.sweep = at + length;
                return Some(at as u32..(at + length) as u32);
            }
            at += length + 1;
        }
        self.sweep = 0;
        None
    }

    /// Makes the blocks of a [`begin_discard`](Self::begin_discard), or a part of them, free again:
    /// the backing has answered, whether it could discard them or not.
    ///
    /// # Errors
    ///
    /// [`UnknownBlock`]: the first that is not being discarded.
    pub fn end_discard(&mut self, blocks: Range<u32>) -> Result<(), UnknownBlock> {
        let is_discarding = |block: &u32| {
            self.states.get(*block as usize).is_some_and(|state| *state == DISCARDING)
        };
        if let Some(block) = blocks.clone().find(|block| !is_discarding(block)) {
            return Err(self.unknown(block, "clean again"));
        }
        for block in blocks {
            self.set(block as usize, CLEAN);
        }
        Ok(())
    }

    /// Changes the state of a block, and the counts with it.
    fn set(&mut self, block: usize, state: u16) {
        let group = block / GROUP;
        let before = std::mem::replace(&mut self.states[block], state);
        if is_free(before) {
            self.free -= 1;
            self.group_free[group] -= 1;
        }
        if before == SPENT {
            self.spent -= 1;
            self.group_spent[group] -= 1;
        }
        self.discarding -= usize::from(before == DISCARDING);
        if is_free(state) {
            self.free += 1;
            self.group_free[group] += 1;
        }
        if state == SPENT {
            self.spent += 1;
            self.group_spent[group] += 1;
        }
        self.discarding += usize::from(state == DISCARDING);
    }

    fn unknown(&self, block: u32, wanted: &'static str) -> UnknownBlock {
        let state = match self.states.get(block as usize) {
            None => "not there",
            Some(&CLEAN | &SPENT) => "free",
            Some(&DISCARDING) => "being discarded",
            Some(_) => "held",
        };
        UnknownBlock { block, state, wanted }
    }

    /// Counts everything again; the first count that is wrong, in words.
    ///
    /// # Errors
    ///
    /// What is wrong and where.
    pub fn audit(&self) -> Result<(), AuditError> {
        let count = |states: &[u16], what: fn(u16) -> bool| {
            states.iter().filter(|state| what(**state)).count()
        };
        let equal = |what: &str, kept: usize, counted: usize| {
            if kept == counted {
                Ok(())
            } else {
                Err(AuditError::from(format!("{what}: {kept} kept, {counted} counted")))
            }
        };
        equal("free blocks", self.free, count(&self.states, is_free))?;
        equal("spent blocks", self.spent, count(&self.states, |state| state == SPENT))?;
        let discarding = count(&self.states, |state| state == DISCARDING);
        equal("blocks being discarded", self.discarding, discarding)?;
        for (group, states) in self.states.chunks(GROUP).enumerate() {
            let free = count(states, is_free);
            equal(&format!("free in group {group}"), self.group_free[group].into(), free)?;
            let spent = count(states, |state| state == SPENT);
            equal(&format!("spent in group {group}"), self.group_spent[group].into(), spent)?;
        }
        if self.next > self.states.len() || self.sweep > self.states.len() {
            return Err(format!("searches begin at {} and {}", self.next, self.sweep).into());
        }
        Ok(())
    }
}

impl std::fmt::Debug for Extents {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Extents")
            .field("blocks", &self.states.len())
            .field("free", &self.free)
            .field("spent", &self.spent)
            .field("discarding", &self.discarding)
            .finish_non_exhaustive()
    }
}
