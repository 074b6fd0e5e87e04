//! A limit that was tried: the command alone, then under it.

use serde::{Deserialize, Serialize};

use crate::human_size::human_size;
use crate::measure::live::LiveRun;

/// The times of a trial.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Trial {
    /// Seconds of the command without a limit.
    pub alone_s: f64,
    /// Seconds of each run under the limit.
    pub real_s: Vec<f64>,
    /// The most memory that a run took, in bytes.
    pub peak_bytes: u64,
    /// The reason for which a run under the limit did not end well.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
}

impl Trial {
    /// From the run without a limit and those under it.
    pub fn new(alone: &LiveRun, runs: &[LiveRun], failure: Option<String>) -> Trial {
        Trial {
            alone_s: alone.real_s,
            real_s: runs.iter().map(|run| run.real_s).collect(),
            peak_bytes: runs.iter().map(|run| run.peak_bytes).max().unwrap_or(0),
            failure,
        }
    }

    /// The shortest and the longest run under the limit over the time alone.
    fn factors(&self) -> (f64, f64) {
        let factors = self.real_s.iter().map(|seconds| seconds / self.alone_s.max(1e-9));
        factors.fold((f64::INFINITY, 0.0), |(low, high), it| (it.min(low), it.max(high)))
    }

    /// The outcome in a sentence.
    pub(super) fn sentence(&self, limit: u64) -> String {
        let limit = human_size(limit);
        if let Some(failure) = &self.failure {
            return format!("Do not limit this program to {limit}: under that limit it {failure}.");
        }
        let (low, high) = self.factors();
        format!(
            "Tried in {limit}: {low:.2} to {high:.2} times the time alone ({} runs, {:.2} s \
             alone).",
            self.real_s.len(),
            self.alone_s
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn a_trial_tells_the_times_or_the_failure() {
        let run = |real_s| LiveRun { real_s, ..LiveRun::default() };
        let trial = Trial::new(&run(2.0), &[run(3.0), run(2.5)], None);
        assert_eq!(
            trial.sentence(32 * MIB),
            "Tried in 32.0 MiB: 1.25 to 1.50 times the time alone (2 runs, 2.00 s alone)."
        );
        let failed = Trial::new(&run(2.0), &[], Some("did not fit".to_owned()));
        assert_eq!(
            failed.sentence(32 * MIB),
            "Do not limit this program to 32.0 MiB: under that limit it did not fit."
        );
    }
}
