//! The memory of a run over time, in a bounded number of samples.

use serde::{Deserialize, Serialize};

/// The most samples that are kept. Once there are so many, every second one goes, and the next ones
/// are taken half as often.
const SAMPLES_MAX: usize = 512;

/// Milliseconds between two samples at first.
const EVERY_MS: u64 = 5;

/// Memory at one time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunSample {
    /// Milliseconds since the start of the run.
    pub ms: u64,
    /// Resident anonymous memory of all programs, in bytes.
    pub resident_bytes: u64,
    /// Host pages of the pool, in bytes.
    pub pool_bytes: u64,
    /// Index, tables and descriptors, in bytes.
    pub metadata_bytes: u64,
    /// Pages in the store, uncompressed.
    pub stored_pages: u64,
}

/// Samples in the order of time.
#[derive(Debug)]
pub(crate) struct Timeline {
    samples: Vec<RunSample>,
    every_ms: u64,
    next_ms: u64,
}

impl Timeline {
    pub(crate) fn new() -> Timeline {
        Timeline { samples: Vec::new(), every_ms: EVERY_MS, next_ms: 0 }
    }

    /// Keeps a sample, unless the last one that was kept is too young.
    pub(crate) fn see(&mut self, sample: RunSample) {
        if sample.ms < self.next_ms {
            return;
        }
        if self.samples.len() == SAMPLES_MAX {
            let mut at = 0;
            self.samples.retain(|_| {
                at += 1;
                at % 2 == 1
            });
            self.every_ms *= 2;
        }
        self.next_ms = sample.ms + self.every_ms;
        self.samples.push(sample);
    }

    pub(crate) fn samples(&self) -> Vec<RunSample> {
        self.samples.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_run_has_few_samples_over_all_its_time() {
        for last_ms in [0, 4, 5, 2_559, 2_560, 100_000, 10_000_000_u64] {
            let mut timeline = Timeline::new();
            for ms in 0..=last_ms {
                timeline.see(RunSample { ms, stored_pages: ms, ..RunSample::default() });
            }
            let samples = timeline.samples();
            assert!(samples.len() <= SAMPLES_MAX, "{} samples of {last_ms} ms", samples.len());
            let enough = (last_ms / EVERY_MS + 1).min(SAMPLES_MAX as u64 / 2);
            assert!(samples.len() as u64 >= enough, "{} samples of {last_ms} ms", samples.len());
            assert_eq!(samples[0].ms, 0);
            let gaps = samples.windows(2).map(|pair| pair[1].ms - pair[0].ms);
            let widest = gaps.max().unwrap_or(0);
            assert!(last_ms - samples.last().unwrap().ms < 2 * widest.max(EVERY_MS));
            assert!(widest <= (last_ms / (SAMPLES_MAX as u64 / 4)).max(EVERY_MS), "{widest}");
            assert!(samples.iter().all(|sample| sample.stored_pages == sample.ms));
        }
    }
}
