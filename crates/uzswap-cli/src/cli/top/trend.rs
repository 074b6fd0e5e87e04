//! The latest samples of a run, for its spark lines.

use std::collections::VecDeque;

use crate::measure::levels::spark_line;

/// Samples that are kept: as many as the widest spark line shows.
const KEPT: usize = 200;

/// Two values a sample, the latest last.
#[derive(Debug, Clone, Default)]
pub(super) struct Trend {
    /// Faults in 1000 s.
    faults: VecDeque<u64>,
    pool_bytes: VecDeque<u64>,
}

impl Trend {
    /// Adds a sample.
    pub(super) fn add(&mut self, faults_per_s: f64, pool_bytes: u64) {
        for (values, value) in
            [(&mut self.faults, (faults_per_s * 1e3) as u64), (&mut self.pool_bytes, pool_bytes)]
        {
            if values.len() == KEPT {
                values.pop_front();
            }
            values.push_back(value);
        }
    }

    /// Faults a second in so many columns; the highest level is their maximum in these columns.
    pub(super) fn faults(&self, columns: usize) -> String {
        let most = latest(&self.faults, columns).max().unwrap_or(0);
        line(&self.faults, most, columns)
    }

    /// The pool in so many columns; the highest level is the limit.
    pub(super) fn pool(&self, limit_bytes: u64, columns: usize) -> String {
        line(&self.pool_bytes, limit_bytes, columns)
    }
}

fn latest(values: &VecDeque<u64>, columns: usize) -> impl Iterator<Item = u64> {
    values.iter().skip(values.len().saturating_sub(columns)).copied()
}

fn line(values: &VecDeque<u64>, most: u64, columns: usize) -> String {
    format!("{:>columns$}", spark_line(latest(values, columns), most))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_shows_the_latest_samples() {
        let mut trend = Trend::default();
        assert_eq!((trend.faults(3), trend.pool(9, 2)), ("   ".to_owned(), "  ".to_owned()));
        for (faults, pool) in [(900.0, 9), (0.0, 0), (0.001, 1), (100.0, 5)] {
            trend.add(faults, pool);
        }
        assert_eq!(trend.faults(6), "  @ ..");
        assert_eq!(trend.faults(3), " .@");
        assert_eq!((trend.pool(9, 5), trend.pool(5, 2)), (" @ .+".to_owned(), ":@".to_owned()));
        (0..KEPT).for_each(|_| trend.add(1.0, 1));
        assert_eq!(trend.faults(KEPT + 1), " ".to_owned() + &"@".repeat(KEPT));
    }
}
