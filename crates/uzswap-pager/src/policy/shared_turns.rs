//! The rounds in which the evictor takes pages that more than two processes share.
//!
//! An eviction makes a COW copy of such a page for each process, and each process restores the page
//! alone. But exclusive pages may be those in use. So the evictor compares the refaults of both
//! kinds: shared pages take their turn the more often the fewer of them come back.

use super::refaults::Lately;
use super::victim::FEW;

/// Where both kinds come back alike, shared pages are evicted in one of as many rounds as there are
/// processes, and in one of so many at most. With turns, 60 children in 32 MiB took 1.1 s, without
/// them 14 s.
const LENGTH_MIN: u32 = 4;

/// Bounds of the length of a turn, as a multiple of that. Four children with hot pages of their own
/// and a cold parent take half the time with the lower bound. A data loader whose children copy all
/// pages stores a third less with the upper one.
const TIMES_MIN: f64 = 0.25;
const TIMES_MAX: f64 = 8.0;

/// Before anything is known, so many of so many evicted pages came back.
const REFAULTS_BEFORE: f64 = 32.0;
const EVICTED_BEFORE: f64 = 128.0;

/// Rounds without a search for exclusive pages after one that found none: it walks all pages.
const EXCLUSIVE_PAUSE: u64 = 32;

/// Pages of each kind: evicted ones, or refaults.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Pages {
    /// Of one process each.
    pub(crate) exclusive: u64,
    /// Evicted from several processes. Each of them may refault such a page.
    pub(crate) shared: u64,
}

/// Refaults of an evicted page.
fn refaults_of_page(kind: &Lately) -> f64 {
    (f64::from(kind.refaults) + REFAULTS_BEFORE) / (f64::from(kind.evicted) + EVICTED_BEFORE)
}

/// The turns.
#[derive(Debug, Default)]
pub(crate) struct SharedTurns {
    exclusive: Lately,
    shared: Lately,
    /// Refaults since the start.
    refaults: Pages,
    round: u64,
    /// The round of the last turn.
    last_turn: u64,
    /// The last round that found no exclusive pages.
    found_none: Option<u64>,
}

impl SharedTurns {
    /// Begins a round; whether it first searches for exclusive pages. The largest group has
    /// `members_max` processes. Refaults are those since the start.
    pub(crate) fn begin(&mut self, members_max: u32, refaults: Pages) -> bool {
        self.round += 1;
        self.exclusive.refault(refaults.exclusive - self.refaults.exclusive);
        self.shared.refault(refaults.shared - self.refaults.shared);
        self.refaults = refaults;
        if self.round >= self.last_turn + self.length(members_max) {
            self.last_turn = self.round;
            return false;
        }
        let is_paused = self.found_none.is_some_and(|then| self.round < then + EXCLUSIVE_PAUSE);
        members_max > FEW && !is_paused
    }

    /// The round has evicted pages.
    pub(crate) fn note_evicted(&mut self, pages: Pages) {
        self.exclusive.evict(pages.exclusive as usize);
        self.shared.evict(pages.shared as usize);
    }

    /// The search of this round found no exclusive pages.
    pub(crate) fn note_no_exclusive(&mut self) {
        self.found_none = Some(self.round);
    }

    /// Rounds from one turn to the next.
    fn length(&self, members_max: u32) -> u64 {
        let times = refaults_of_page(&self.shared) / refaults_of_page(&self.exclusive);
        let alike = f64::from(members_max.max(LENGTH_MIN));
        (alike * times.clamp(TIMES_MIN, TIMES_MAX)) as u64 // 1 at least
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The rounds, of so many, that take shared pages as well.
    fn turns(turns: &mut SharedTurns, members_max: u32, rounds: u64) -> Vec<u64> {
        let refaults = turns.refaults;
        (1..=rounds).filter(|_| !turns.begin(members_max, refaults)).collect()
    }

    /// After so many evicted pages and refaults of each kind.
    fn after(evicted: [u64; 2], refaults: [u64; 2]) -> SharedTurns {
        let pages = |[exclusive, shared]: [u64; 2]| Pages { exclusive, shared };
        let mut turns = SharedTurns::default();
        turns.note_evicted(pages(evicted));
        turns.begin(0, pages(refaults));
        turns.last_turn = turns.round;
        turns
    }

    #[test]
    fn at_first_shared_pages_take_their_turn_once_in_as_many_rounds_as_there_are_processes() {
        let counts = [1, 2, 3, 4, 5, 6, 7];
        let turns = counts.map(|members| turns(&mut SharedTurns::default(), members, 12).len());
        assert_eq!(turns, [12, 12, 3, 3, 2, 2, 1]);
    }

    #[test]
    fn turns_follow_the_refaults_of_both_kinds() {
        let lengths = |turns: SharedTurns| [4, 10].map(|members| turns.length(members));
        assert_eq!(lengths(after([800, 800], [400, 400])), [4, 10]);
        assert_eq!(lengths(after([800, 800], [200, 432])), [8, 20], "twice as many come back");
        assert_eq!(lengths(after([800, 800], [0, 3000])), [32, 80]);
        assert_eq!(lengths(after([800, 800], [700, 0])), [1, 2]);
        assert_eq!(lengths(after([0, 800], [0, 200])), [4, 10], "as before anything is known");
        let mut turns = after([800, 800], [200, 432]);
        turns.begin(4, turns.refaults);
        assert_eq!(turns.length(4), 8, "each refault counts once");
    }

    #[test]
    fn early_pages_count_for_less_and_less() {
        let mut turns = after([1024, 1024], [0, 1024]);
        assert_eq!(turns.length(4), 32);
        for _ in 0..10 {
            turns.note_evicted(Pages { exclusive: 1024, shared: 1024 });
        }
        assert_eq!(turns.length(4), 4);
    }

    #[test]
    fn a_search_that_found_nothing_is_not_repeated_for_some_rounds() {
        let mut turns = after([800, 800], [0, 3000]);
        turns.note_no_exclusive();
        let refaults = turns.refaults;
        let searches: Vec<u64> = (1..=50).filter(|_| turns.begin(4, refaults)).collect();
        assert_eq!(searches, Vec::from_iter(33..=50));
    }
}
