//! Rounds of the evictor without a freed page, and when a program must end for them.

/// After so many rounds without a freed page a program is ended: some 3 s.
const ROUNDS_MAX: u32 = 2000;

/// After so many rounds without a freed page the evictor takes shared pages without a survey: some
/// 0.3 s.
const UNKNOWN_ROUNDS: u32 = 250;

/// The next step after such a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    GoOn,
    /// Helpers try all pages again that were found to stay.
    RetryAll,
    /// No page can be evicted.
    GiveUp,
}

/// Rounds since a page was freed.
#[derive(Debug, Default)]
pub(super) struct IdleRounds {
    idle: u32,
    /// Rounds before them in which some pages might have been free soon.
    held_up: u32,
    /// All pages were tried again.
    has_retried: bool,
}

impl IdleRounds {
    /// Notes a round without a freed page. `is_held_up`: a program may give pages soon that it
    /// cannot give now. `has_offered`: some pages were in commands of the round.
    pub(super) fn add(&mut self, is_held_up: impl FnOnce() -> bool, has_offered: bool) -> Step {
        match self.held_up < ROUNDS_MAX && is_held_up() {
            true => self.held_up += 1,
            false => self.idle += 1,
        }
        if self.idle < ROUNDS_MAX {
            return Step::GoOn;
        }
        if !std::mem::replace(&mut self.has_retried, true) {
            return Step::RetryAll;
        }
        let is_over = !has_offered || self.idle >= 2 * ROUNDS_MAX;
        if is_over { Step::GiveUp } else { Step::GoOn }
    }

    /// Whether shared pages are evicted without a survey.
    pub(super) fn are_many(&self) -> bool {
        self.idle >= UNKNOWN_ROUNDS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rounds until the first step that is another than to go on, and that step.
    fn next(rounds: &mut IdleRounds, is_held_up: bool, has_offered: bool) -> (u32, Step) {
        let mut steps = (1..).map(|round| (round, rounds.add(|| is_held_up, has_offered)));
        steps.find(|(_, step)| *step != Step::GoOn).unwrap()
    }

    #[test]
    fn all_pages_are_tried_again_before_a_program_ends() {
        let mut rounds = IdleRounds::default();
        assert_eq!(next(&mut rounds, false, false), (ROUNDS_MAX, Step::RetryAll));
        assert_eq!(next(&mut rounds, false, false), (1, Step::GiveUp));
        let mut rounds = IdleRounds::default();
        assert_eq!(next(&mut rounds, false, true), (ROUNDS_MAX, Step::RetryAll));
        assert_eq!(next(&mut rounds, false, true), (ROUNDS_MAX, Step::GiveUp));
    }

    #[test]
    fn programs_that_are_held_up_have_as_long_once_more() {
        let mut rounds = IdleRounds::default();
        assert_eq!(next(&mut rounds, true, false), (2 * ROUNDS_MAX, Step::RetryAll));
        let mut rounds = IdleRounds::default();
        (0..UNKNOWN_ROUNDS - 1).for_each(|_| _ = rounds.add(|| false, true));
        assert!(!rounds.are_many());
        rounds.add(|| false, true);
        assert!(rounds.are_many());
    }
}
