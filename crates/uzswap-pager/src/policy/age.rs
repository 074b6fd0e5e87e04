//! The age of a process's pages: since when the hand was last where it is now.
//!
//! A page before the hand has been spared since then, or came meanwhile. Processes compare by this
//! time: the hands of all pass at the same rate, as if all pages were in one list.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// The places that a hand has passed.
#[derive(Debug, Default)]
pub(crate) struct HandPasses {
    /// Of the last turn those before the hand, then those of this turn: the last one is where the
    /// hand is.
    passes: VecDeque<Pass>,
    /// When it was here last. Before its second turn: when the age was asked for first.
    since: Option<Instant>,
}

#[derive(Debug)]
struct Pass {
    /// Turns around before it.
    turn: u64,
    at: u64,
    time: Instant,
}

impl HandPasses {
    /// Notes that the hand has come to an address. If that is not above the last one, the hand has
    /// gone around.
    pub(super) fn note(&mut self, at: u64, now: Instant) {
        let (last_turn, last_at) = self.passes.back().map_or((0, 0), |it| (it.turn, it.at));
        let turn = last_turn + u64::from(at <= last_at);
        let is_behind = |pass: &&Pass| (pass.turn + 1, pass.at) <= (turn, at);
        while let Some(pass) = self.passes.front().filter(is_behind) {
            self.since = Some(pass.time);
            self.passes.pop_front();
        }
        self.passes.push_back(Pass { turn, at, time: now });
    }

    /// The age of the pages before the hand.
    pub(super) fn age(&mut self, now: Instant) -> Duration {
        now - *self.since.get_or_insert(now)
    }

    /// Memory of it, in bytes, about.
    pub(super) fn bytes(&self) -> usize {
        self.passes.capacity() * size_of::<Pass>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn pages_are_as_old_as_the_last_pass_of_the_hand() {
        let start = Instant::now();
        let mut passes = HandPasses::default();
        let at = |ms: u32| start + MS * ms;
        assert_eq!(passes.age(at(5)), Duration::ZERO, "it counts from now on");
        for (ms, place) in [(10, 100), (20, 200), (30, 300)] {
            passes.note(place, at(ms));
            assert_eq!(passes.age(at(ms)), MS * (ms - 5), "the first turn");
        }
        // Pages below 100 were passed at 10 ms at the latest, those from 200 on later than at 20.
        for (ms, place, age) in [(40, 50, 35), (50, 100, 40), (60, 250, 40), (70, 300, 40)] {
            passes.note(place, at(ms));
            assert_eq!(passes.age(at(ms)), MS * age, "{place}");
        }
        passes.note(99, at(80));
        assert_eq!(passes.age(at(80)), MS * 40, "since it was at 50");
        assert_eq!(passes.passes.len(), 4);
        assert_eq!(passes.bytes(), passes.passes.capacity() * size_of::<Pass>());
    }

    #[test]
    fn a_turn_that_ends_where_it_began_starts_anew() {
        let start = Instant::now();
        let mut passes = HandPasses::default();
        assert_eq!(passes.age(start), Duration::ZERO);
        for ms in [10, 30, 60, 100] {
            passes.note(7, start + MS * ms);
        }
        assert_eq!(passes.age(start + MS * 100), MS * 40);
        assert_eq!(passes.passes.len(), 1);
    }
}
