//! Spark lines: values over time as levels of ASCII, one character a value.

/// From nothing to the most.
const LEVELS: &[u8] = b" .:-=+*#%@";

/// The level of a value, of which `most` is the highest. Only 0 has the lowest level.
pub(crate) fn level(value: u64, most: u64) -> char {
    let top = LEVELS.len() - 1;
    let level = (u128::from(value) * top as u128).div_ceil(u128::from(most.max(1)));
    char::from(LEVELS[level.min(top as u128) as usize])
}

/// The levels of values, in their order.
pub(crate) fn spark_line(values: impl IntoIterator<Item = u64>, most: u64) -> String {
    values.into_iter().map(|value| level(value, most)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_nothing_has_the_lowest_level() {
        assert_eq!(spark_line([0, 1, 500, 999, 1000, 1001], 1000), " .+@@@");
        assert_eq!(spark_line(0..10, 9), " .:-=+*#%@");
        assert_eq!(spark_line([u64::MAX / 2, u64::MAX], u64::MAX), "+@");
        assert_eq!(spark_line([0, 1], 0), " @");
    }
}
