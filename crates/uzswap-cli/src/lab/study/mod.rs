//! Studies of single parts of the store, beside their rivals.

pub mod index;
pub mod object_mapping;
pub mod same_filled;
pub mod swapload;

use serde::Serialize;
use thiserror::Error;

use super::child::ChildError;
use super::report::Stats;

/// The median of some rounds, and their range.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Spread {
    /// The median; the mean of the two in the middle if there are two.
    pub median: f64,
    /// The smallest.
    pub min: f64,
    /// The largest.
    pub max: f64,
}

impl Spread {
    /// Of one value or more.
    ///
    /// # Panics
    ///
    /// If there are none.
    pub fn of(values: &[f64]) -> Spread {
        let Stats { median, min, max, .. } = Stats::of(values);
        Spread { median, min, max }
    }

    /// Of the ratios of two contenders, round by round.
    ///
    /// # Panics
    ///
    /// If there are none.
    pub fn of_ratios(over: &[f64], under: &[f64]) -> Spread {
        let ratios: Vec<f64> = over.iter().zip(under).map(|(over, under)| over / under).collect();
        Spread::of(&ratios)
    }
}

/// Why a study was given up.
#[derive(Debug, Error)]
pub enum StudyError {
    /// A run found something lost or changed.
    #[error("{run}: {message}")]
    Check {
        /// Which run.
        run: String,
        /// What is wrong.
        message: String,
    },
    /// A run could not be started or finished.
    #[error("{run}: {message}")]
    Machine {
        /// Which run.
        run: String,
        /// What went wrong.
        message: String,
    },
    /// Ctrl-C or a like signal.
    #[error("interrupted")]
    Interrupted,
}

impl StudyError {
    fn of_run(error: ChildError, run: String) -> StudyError {
        match error {
            ChildError::Check(message) => StudyError::Check { run, message },
            ChildError::Machine(message) => StudyError::Machine { run, message },
            ChildError::Interrupted => StudyError::Interrupted,
        }
    }
}
