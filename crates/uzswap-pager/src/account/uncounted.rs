//! Memory of programs that does not count against the limit, because it cannot be evicted and is
//! not anonymous: shared memory and huge pages. It is reported.

use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};

use crate::program::procfs::{OfProcess, uncounted_of};

/// With less of a kind, in bytes, no line names it.
const NAMED_MIN: u64 = 1 << 20;

/// Growth of memory other than anonymous after which it is surveyed at once: so many bytes, and one
/// part in so many of what there was.
const GROWN_BYTES: u64 = 8 << 20;
const GROWN_PART: u64 = 16;

/// Memory that does not count against the limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Uncounted {
    /// Shared memory (memfd, tmpfs, shared anonymous mappings) that programs map, in bytes.
    pub shared_bytes: u64,
    /// Huge pages of hugetlbfs that programs map, in bytes.
    pub huge_bytes: u64,
}

impl Uncounted {
    /// In words, with sizes by `size`; `None` where it is hardly any.
    pub fn text(&self, size: impl Fn(u64) -> String) -> Option<String> {
        let shared = (self.shared_bytes, "of shared memory (memfd, tmpfs, shared mappings)");
        let huge = (self.huge_bytes, "of huge pages (hugetlbfs)");
        let kinds = [shared, huge].into_iter().filter(|(bytes, _)| *bytes >= NAMED_MIN);
        let kinds: Vec<String> =
            kinds.map(|(bytes, kind)| format!("{} {kind}", size(bytes))).collect();
        (!kinds.is_empty()).then(|| kinds.join(" and "))
    }
}

/// The most that there was of it.
#[derive(Debug, Default)]
pub struct UncountedPeak {
    shared: AtomicU64,
    huge: AtomicU64,
    /// Bytes mapped that are not anonymous, when a survey was due last.
    mapped: AtomicU64,
}

impl UncountedPeak {
    /// Notes the bytes mapped that are not anonymous; whether a survey is due.
    pub(super) fn take_growth(&self, mapped: u64) -> bool {
        let before = self.mapped.load(Ordering::Relaxed);
        let is_due = mapped >= before + before / GROWN_PART + GROWN_BYTES;
        if is_due {
            self.mapped.store(mapped, Ordering::Relaxed);
        }
        is_due
    }

    /// Surveys processes, by a thread of each.
    pub fn survey(&self, threads: impl Iterator<Item = u32>) {
        let each: Vec<OfProcess> = threads.filter_map(uncounted_of).collect();
        let Uncounted { shared_bytes, huge_bytes } = sum(&each);
        self.shared.fetch_max(shared_bytes, Ordering::Relaxed);
        self.huge.fetch_max(huge_bytes, Ordering::Relaxed);
    }

    /// The most that surveys have seen.
    pub fn get(&self) -> Uncounted {
        Uncounted {
            shared_bytes: self.shared.load(Ordering::Relaxed),
            huge_bytes: self.huge.load(Ordering::Relaxed),
        }
    }
}

/// Huge pages of several count once, as if each process that has some had the same.
fn sum(each: &[OfProcess]) -> Uncounted {
    let alone: u64 = each.iter().map(|of| of.huge_alone).sum();
    let shared = each.iter().map(|of| of.huge_shared).max().unwrap_or(0);
    let shared_bytes = each.iter().map(|of| of.shared_part).sum();
    Uncounted { shared_bytes, huge_bytes: alone + shared }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_is_named_if_there_is_some() {
        let text = |shared_bytes: u64, huge_bytes: u64| {
            Uncounted { shared_bytes, huge_bytes }.text(|bytes| format!("{} MiB", bytes >> 20))
        };
        assert_eq!(text(NAMED_MIN - 1, 0), None);
        let shared = text(5 << 20, 0).unwrap();
        assert!(shared.starts_with("5 MiB of shared") && !shared.contains("huge"), "{shared}");
        let both = text(5 << 20, 4 << 20).unwrap();
        assert!(
            both.contains("5 MiB of shared") && both.ends_with("4 MiB of huge pages (hugetlbfs)")
        );
    }

    #[test]
    fn parts_add_up_and_shared_huge_pages_count_once() {
        let each = [(3, 1, 8), (4, 2, 8)];
        let each = each.map(|(shared_part, huge_alone, huge_shared)| OfProcess {
            shared_part,
            huge_alone,
            huge_shared,
        });
        assert_eq!(sum(&each), Uncounted { shared_bytes: 7, huge_bytes: 11 });
        assert_eq!(sum(&[]), Uncounted::default());
    }

    #[test]
    fn the_peak_is_that_of_surveyed_processes() {
        let peak = UncountedPeak::default();
        // More than each managed program has.
        let shared = [(); 16].map(|()| uzswap_preload::SharedControl::new().unwrap().0);
        shared.iter().for_each(|control| control.work.store(1, Ordering::Relaxed));
        peak.survey(std::iter::empty());
        assert_eq!(peak.get(), Uncounted::default());
        peak.survey(std::iter::once(std::process::id()));
        let Uncounted { shared_bytes, huge_bytes } = peak.get();
        assert!(shared_bytes > 0 && huge_bytes == 0);
        peak.huge.store(5, Ordering::Relaxed);
        peak.survey(std::iter::empty());
        assert_eq!(peak.get(), Uncounted { shared_bytes, huge_bytes: 5 });
    }

    #[test]
    fn a_survey_is_due_when_much_more_is_mapped() {
        let peak = UncountedPeak::default();
        assert!(!peak.take_growth(GROWN_BYTES - 1) && peak.take_growth(GROWN_BYTES));
        assert!(!peak.take_growth(GROWN_BYTES) && !peak.take_growth(0), "each new step once");
        let step = GROWN_BYTES + GROWN_BYTES / GROWN_PART;
        assert!(!peak.take_growth(GROWN_BYTES + step - 1) && peak.take_growth(GROWN_BYTES + step));
    }
}
