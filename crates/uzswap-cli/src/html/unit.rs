//! Units of axes and tables.

use crate::human_size::human_size;
use crate::report::format::{nanoseconds, thousands, three_digits};

/// The unit of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unit {
    Bytes,
    Seconds,
    Nanoseconds,
    /// A number of things, or of things a second.
    Count,
    /// A ratio or a share.
    Ratio,
}

impl Unit {
    /// A value for a reader, with its unit. `-` where there is none.
    pub(super) fn text(self, value: f64) -> String {
        if !value.is_finite() {
            return "-".to_owned();
        }
        match self {
            Unit::Bytes => human_size(value as u64),
            Unit::Seconds => nanoseconds((value * 1e9).round() as u64),
            Unit::Nanoseconds if value < 1000.0 => format!("{} ns", three_digits(value)),
            Unit::Nanoseconds => nanoseconds(value.round() as u64),
            Unit::Count if value.fract().abs() < 1e-9 || value >= 100.0 => {
                thousands(value.round() as u64)
            }
            Unit::Count | Unit::Ratio => three_digits(value),
        }
    }

    /// The largest part of the unit that is not above `value`, and its name.
    pub(super) fn part(self, value: f64) -> (f64, &'static str) {
        const DECIMAL: [(f64, &str); 4] = [(1.0, ""), (1e3, "k"), (1e6, "M"), (1e9, "G")];
        const BINARY: [(f64, &str); 4] =
            [(1.0, "bytes"), (1024.0, "KiB"), (1_048_576.0, "MiB"), (1_073_741_824.0, "GiB")];
        const TIME: [(f64, &str); 4] = [(1.0, "ns"), (1e3, "us"), (1e6, "ms"), (1e9, "s")];
        let largest = |parts: [(f64, &'static str); 4], value: f64| {
            parts.into_iter().rev().find(|(size, _)| *size <= value).unwrap_or(parts[0])
        };
        match self {
            Unit::Bytes => largest(BINARY, value),
            Unit::Nanoseconds => largest(TIME, value),
            Unit::Seconds => {
                let (size, name) = largest(TIME, value * 1e9);
                (size / 1e9, name)
            }
            Unit::Count => largest(DECIMAL, value),
            Unit::Ratio => (1.0, ""),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_have_their_units() {
        assert_eq!(Unit::Bytes.text(3_145_728.0), "3.0 MiB");
        assert_eq!(Unit::Seconds.text(0.001_234), "1.23 ms");
        assert_eq!(Unit::Nanoseconds.text(12.34), "12.3 ns");
        assert_eq!(Unit::Nanoseconds.text(65_536.0), "65.5 us");
        assert_eq!(Unit::Count.text(12_345.0), "12,345");
        assert_eq!(Unit::Ratio.text(1.5), "1.50");
        assert_eq!(Unit::Ratio.text(f64::NAN), "-");
    }

    #[test]
    fn an_axis_has_the_part_of_its_largest_value() {
        assert_eq!(Unit::Seconds.part(0.5).1, "ms");
        assert_eq!(Unit::Bytes.part(5e9).1, "GiB");
        assert_eq!(Unit::Count.part(0.0), (1.0, ""));
    }
}
