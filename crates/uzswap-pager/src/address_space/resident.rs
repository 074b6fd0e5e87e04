//! Resident pages of a process, from sample to sample.

/// Resident pages at the last sample, and the known changes since.
#[derive(Debug, Default)]
pub(super) struct Resident {
    /// `None` before the first sample.
    pages: Option<u64>,
    /// Pages that faults brought since, less evicted pages.
    faulted: i64,
    /// Pages that left before the last sample: given back, or evicted and not noted yet.
    missing: u64,
}

/// A change between two samples that no fault and no eviction explains, in pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Unexplained {
    /// Negative if pages left, or an eviction is not noted yet.
    pub(super) grown: i64,
    /// Pages that the process gave back before the last sample.
    pub(super) given_back: u64,
}

impl Resident {
    /// Pages at the last sample.
    pub(super) fn pages(&self) -> Option<u64> {
        self.pages
    }

    /// Notes pages that a fault brought, or, if negative, evicted pages.
    pub(super) fn note_faulted(&mut self, pages: i64) {
        self.faulted += pages;
    }

    /// Takes a sample of so many pages. An eviction is noted a sample later at the latest.
    pub(super) fn sample(&mut self, pages: u64) -> Unexplained {
        let before = self.pages.replace(pages).unwrap_or(pages);
        let grown = pages as i64 - before as i64 - std::mem::take(&mut self.faulted);
        let missing = std::mem::replace(&mut self.missing, grown.min(0).unsigned_abs());
        Unexplained { grown, given_back: missing.saturating_sub(grown.max(0) as u64) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The outcome of samples of so many pages, each after so many faults.
    fn sampled<const N: usize>(samples: [(u64, i64); N]) -> [(i64, u64); N] {
        let mut resident = Resident::default();
        samples.map(|(pages, faulted)| {
            resident.note_faulted(faulted);
            let Unexplained { grown, given_back } = resident.sample(pages);
            (grown, given_back)
        })
    }

    #[test]
    fn pages_that_left_were_given_back_unless_an_eviction_is_noted_a_sample_later() {
        // The first sample explains nothing.
        let given_back = [(100, 0), (90, 0), (90, 0), (90, 0)];
        assert_eq!(sampled(given_back), [(0, 0), (-10, 0), (0, 10), (0, 0)]);
        let evicted = [(100, 0), (90, 0), (90, -10), (90, 0)];
        assert_eq!(sampled(evicted), [(0, 0), (-10, 0), (10, 0), (0, 0)]);
        let both = [(100, 0), (70, 0), (80, 5), (80, 0)];
        assert_eq!(sampled(both), [(0, 0), (-30, 0), (5, 25), (0, 0)]);
    }

    #[test]
    fn faults_explain_growth() {
        assert_eq!(sampled([(100, 7), (130, 20), (130, 0)]), [(-7, 0), (10, 0), (0, 0)]);
    }
}
