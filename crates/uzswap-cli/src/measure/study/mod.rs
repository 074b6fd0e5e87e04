//! Studies of single parts of the store, beside their rivals.

pub mod index;
pub mod object_mapping;
pub mod same_filled;
pub mod swapload;

use serde::{Deserialize, Deserializer, Serialize};

use crate::measure::stats::Stats;

/// The median of some rounds, and their range.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    /// The median; the mean of the two in the middle if there are two.
    #[serde(deserialize_with = "number")]
    pub median: f64,
    /// The smallest.
    #[serde(deserialize_with = "number")]
    pub min: f64,
    /// The largest.
    #[serde(deserialize_with = "number")]
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

/// A number of a document, where a ratio over nothing is null.
fn number<'a, D: Deserializer<'a>>(from: D) -> Result<f64, D::Error> {
    Option::deserialize(from).map(|value| value.unwrap_or(f64::NAN))
}
