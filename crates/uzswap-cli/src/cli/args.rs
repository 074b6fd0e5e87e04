//! Code for flags that several commands share.

use clap::builder::RangedU64ValueParser;

/// A number of rounds, or of runs of each of several variants.
pub(super) fn rounds() -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(1..=1000)
}

/// The values without repetitions.
pub(super) fn distinct<T: Copy + PartialEq>(values: &[T]) -> Vec<T> {
    let mut distinct = Vec::new();
    for &value in values {
        if !distinct.contains(&value) {
            distinct.push(value);
        }
    }
    distinct
}
