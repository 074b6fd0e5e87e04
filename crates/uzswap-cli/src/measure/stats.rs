//! Statistics of small samples: mean, median, deviation.

/// Minimum, maximum, mean, median and sample standard deviation.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Stats {
    /// Smallest.
    pub min: f64,
    /// Largest.
    pub max: f64,
    /// Mean.
    pub mean: f64,
    /// Median; the mean of the two in the middle if there are two.
    pub median: f64,
    /// Sample standard deviation; 0 for a single value.
    pub stddev: f64,
}

impl Stats {
    /// Of these values.
    ///
    /// # Panics
    ///
    /// If there are none.
    pub fn of(values: &[f64]) -> Stats {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (Some(&min), Some(&max)) = (sorted.first(), sorted.last()) else {
            panic!("no values, no statistics");
        };
        let count = sorted.len();
        let mean = mean(values);
        let squares = sorted.iter().map(|value| (value - mean).powi(2)).sum::<f64>();
        Stats {
            min,
            max,
            mean,
            median: (sorted[(count - 1) / 2] + sorted[count / 2]) / 2.0,
            stddev: (squares / (count - 1).max(1) as f64).sqrt(),
        }
    }

    /// Whether the ranges of the two meet: a difference of their means says little then.
    pub fn overlaps(&self, other: &Stats) -> bool {
        self.min <= other.max && other.min <= self.max
    }
}

/// The mean of some values; 0 of none.
pub fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

/// By how many percent `value` is over (or, negative, under) `base`; `None` where the base is 0.
pub fn percent_change(value: f64, base: f64) -> Option<f64> {
    (base > 0.0).then(|| (value / base - 1.0) * 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_five_figures() {
        let stats = Stats::of(&[4.0, 2.0, 8.0, 6.0, 5.0]);
        assert_eq!((stats.min, stats.max, stats.mean, stats.median), (2.0, 8.0, 5.0, 5.0));
        assert!((stats.stddev - 5.0_f64.sqrt()).abs() < 1e-12);
        assert!((Stats::of(&[1.0, 2.0]).median - 1.5).abs() < 1e-12);
        assert!(Stats::of(&[3.0]).stddev.abs() < 1e-12);
        assert!(mean(&[]).abs() < 1e-12, "no values are no error");
    }

    #[test]
    fn ranges_meet_or_do_not() {
        let of = |values: &[f64]| Stats::of(values);
        assert!(of(&[1.0, 2.0]).overlaps(&of(&[2.0, 3.0])));
        assert!(of(&[1.0, 4.0]).overlaps(&of(&[2.0, 3.0])));
        assert!(!of(&[1.0, 2.0]).overlaps(&of(&[2.1, 3.0])));
    }

    #[test]
    fn percentages_are_those_of_the_linux_mm_study() {
        // Peak pools in bytes: from the bytes it is +35.0 % and +1.2 %.
        let zsmalloc = 1_137_659_904.0;
        let percent = |bytes| format!("{:+.1}", percent_change(bytes, zsmalloc).unwrap());
        assert_eq!(percent(1_535_741_952.0), "+35.0");
        assert_eq!(percent(1_151_303_680.0), "+1.2");
        // Mean run times, seconds.
        assert_eq!(format!("{:+.1}", percent_change(108.74, 111.30).unwrap()), "-2.3");
        assert_eq!(percent_change(1.0, 0.0), None);
    }
}
