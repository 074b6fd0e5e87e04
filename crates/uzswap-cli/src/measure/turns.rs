//! Studies: the variants take turns in rounds, and each turn is a measured step.
//!
//! A machine that slows down half way slows every variant: A B C, C B A, B C A, A C B, ...

use std::thread;
use std::time::{Duration, Instant};

use thiserror::Error;

use crate::measure::child::{ChildError, TICK};
use uzswap_sys::interrupt;

/// Gets the number of turns that are done, of all turns, and the next turn in words.
pub type Progress<'a> = &'a mut dyn FnMut(usize, usize, &str);

/// Variants to compare, and how one of them is measured.
pub(super) trait Study {
    /// One of those that are compared.
    type Variant;
    /// The findings of one turn.
    type Run;

    /// Turns of each variant, at most.
    fn rounds(&self) -> usize;

    /// The variants. Variants of a group take turns; a group begins once the one before has ended.
    fn groups(&self) -> Vec<Vec<Self::Variant>>;

    /// A variant in words.
    fn label(&self, variant: &Self::Variant) -> String;

    /// Measures a variant once. `round` counts from 0.
    fn measure(&self, variant: &Self::Variant, round: usize) -> Result<Self::Run, ChildError>;

    /// Whether one more round of a group may begin, `elapsed` after the start of the study.
    fn has_time(&self, _rounds_before: usize, _elapsed: Duration) -> bool {
        true
    }
}

/// A variant and its runs.
#[derive(Debug, Clone)]
pub(super) struct Cell<V, R> {
    /// Which.
    pub(super) variant: V,
    /// First to last.
    pub(super) runs: Vec<R>,
}

impl<V, R> Cell<V, R> {
    /// A figure of each run.
    pub(super) fn values(&self, of: impl Fn(&R) -> f64) -> Vec<f64> {
        self.runs.iter().map(of).collect()
    }
}

/// The cells of a study.
pub(super) type Cells<S> = Vec<Cell<<S as Study>::Variant, <S as Study>::Run>>;

/// Why a study was given up.
#[derive(Debug, Error)]
pub enum StudyError {
    /// A run found something lost or changed.
    #[error("{about}: {message}")]
    Check {
        /// The run, or the part of it.
        about: String,
        /// The mistake.
        message: String,
    },
    /// A run could not be started or finished.
    #[error("{about}: {message}")]
    Machine {
        /// The run, or the part of it.
        about: String,
        /// The reason.
        message: String,
    },
    /// Ctrl-C or a like signal.
    #[error("interrupted")]
    Interrupted,
}

impl StudyError {
    fn of_run(error: ChildError, about: String) -> StudyError {
        match error {
            ChildError::Check(message) => StudyError::Check { about, message },
            ChildError::Machine(message) => StudyError::Machine { about, message },
            ChildError::Interrupted => StudyError::Interrupted,
        }
    }
}

/// Makes a study.
///
/// # Errors
///
/// At the first turn that does not end well. No child is left running.
pub(super) fn take_turns<S: Study>(
    study: &S,
    progress: Progress<'_>,
) -> Result<Cells<S>, StudyError> {
    let (rounds, groups) = (study.rounds(), study.groups());
    let total = groups.iter().map(Vec::len).sum::<usize>() * rounds;
    let start = Instant::now();
    let mut done = 0;
    let mut cells = Vec::new();
    for variants in groups {
        let cell = |variant| Cell { variant, runs: Vec::new() };
        let mut group: Cells<S> = variants.into_iter().map(cell).collect();
        for round in 0..rounds {
            if !study.has_time(round, start.elapsed()) {
                break;
            }
            for place in order_of_round(group.len(), round) {
                let Cell { variant, runs } = &mut group[place];
                let label = format!("{}, run {}", study.label(variant), round + 1);
                progress(done, total, &format!("{label} of {rounds}"));
                if interrupt::noted() {
                    return Err(StudyError::Interrupted);
                }
                let run = study.measure(variant, round);
                runs.push(run.map_err(|error| StudyError::of_run(error, label))?);
                done += 1;
            }
        }
        cells.extend(group);
    }
    progress(total, total, "");
    Ok(cells)
}

/// The variants of one round, by number. Every second round is the one before it, backwards; the
/// two after it start with the next variant. So none is always early, and none always follows the
/// same other.
pub(super) fn order_of_round(variants: usize, round: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..variants).collect();
    if variants > 0 {
        order.rotate_left(round / 2 % variants);
    }
    if round % 2 == 1 {
        order.reverse();
    }
    order
}

/// Waits as long, or until a signal ends the study.
pub(super) fn wait(time: Duration) {
    let end = Instant::now() + time;
    while !interrupt::noted() {
        match end.checked_duration_since(Instant::now()) {
            Some(left) if !left.is_zero() => thread::sleep(left.min(TICK)),
            _ => break,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two groups of letters, in so many rounds.
    struct Letters(usize);

    impl Study for Letters {
        type Variant = char;
        type Run = usize;

        fn rounds(&self) -> usize {
            3
        }

        fn groups(&self) -> Vec<Vec<char>> {
            vec![vec!['a', 'b'], vec!['x']]
        }

        fn label(&self, variant: &char) -> String {
            variant.to_string()
        }

        fn measure(&self, variant: &char, round: usize) -> Result<usize, ChildError> {
            match (variant, round) {
                ('x', 1) => Err(ChildError::Check("no such letter".to_owned())),
                _ => Ok(round),
            }
        }

        fn has_time(&self, rounds_before: usize, _: Duration) -> bool {
            rounds_before < self.0
        }
    }

    fn turns(rounds: usize) -> (Vec<String>, Result<Cells<Letters>, StudyError>) {
        let mut seen = Vec::new();
        let result = take_turns(&Letters(rounds), &mut |done, total, next| {
            seen.push(format!("{done}/{total} {next}"));
        });
        (seen, result)
    }

    #[test]
    fn variants_take_turns_in_their_groups() {
        let (seen, result) = turns(1);
        let expected = ["0/9 a, run 1 of 3", "1/9 b, run 1 of 3", "2/9 x, run 1 of 3", "9/9 "];
        assert_eq!(seen, expected);
        let runs: Vec<_> =
            result.unwrap().into_iter().map(|cell| (cell.variant, cell.runs)).collect();
        assert_eq!(runs, [('a', vec![0]), ('b', vec![0]), ('x', vec![0])]);
    }

    #[test]
    fn rounds_begin_with_another_variant_and_end_with_an_error() {
        let (seen, result) = turns(3);
        let order: String = seen.iter().map(|line| &line[4..5]).collect();
        assert_eq!(order, "abbabaxx");
        assert_eq!(result.unwrap_err().to_string(), "x, run 2: no such letter");
    }

    #[test]
    fn each_takes_its_turn_once_a_round_at_changing_places() {
        for combinations in 1..=7 {
            let rounds: Vec<Vec<usize>> =
                (0..combinations * 2).map(|round| order_of_round(combinations, round)).collect();
            for order in &rounds {
                let mut sorted = order.clone();
                sorted.sort_unstable();
                assert_eq!(sorted, (0..combinations).collect::<Vec<usize>>());
            }
            if combinations > 2 {
                assert!(rounds.windows(2).all(|pair| pair[0] != pair[1]), "{rounds:?}");
            }
            let firsts: Vec<usize> = rounds.iter().map(|order| order[0]).collect();
            let first_turns = |it| firsts.iter().filter(|&&first| first == it).count();
            assert!((0..combinations).all(|it| first_turns(it) > 0), "{firsts:?}");
        }
        assert!(order_of_round(0, 3).is_empty());
    }
}
