//! The refaults of a process: how many of the pages that leave it are touched again soon.
//!
//! The evictor takes pages from the largest process first. Where that one uses all that it has,
//! each of its pages comes back at once, while others keep pages that nobody uses. So a process
//! counts for less, the more of its pages refault. (The kernel balances its lists of file pages
//! and anonymous pages by refaults, too: mm/workingset.c.)

/// Pages that have left after which those before count for half.
const PERIOD: u32 = 1024;

/// Refaults are a part of at least so many pages: the first few tell little.
const LEFT_MIN: u32 = 128;

/// A process whose pages all refault counts for this part of its size still: it may change.
const PART_MIN: u64 = 32;

/// The refaults of one process.
#[derive(Debug, Default)]
pub(super) struct Refaults {
    left: u32,
    refaults: u32,
}

impl Refaults {
    /// Pages have left.
    pub(super) fn leave(&mut self, pages: usize) {
        self.left = self.left.saturating_add(pages.try_into().unwrap_or(u32::MAX));
        while self.left >= 2 * PERIOD {
            (self.left, self.refaults) = (self.left / 2, self.refaults / 2);
        }
    }

    /// A page was touched soon after it had left. (Those of pages that left long ago are not kept
    /// for later.)
    pub(super) fn refault(&mut self) {
        self.refaults = (self.refaults + 1).min(self.left);
    }

    /// The size of a process that has so many bytes, less its refaulting part.
    pub(super) fn discount(&self, bytes: u64) -> u64 {
        let left = u64::from(self.left.max(LEFT_MIN));
        let stay_away = left.saturating_sub(self.refaults.into());
        let most = bytes - bytes / PART_MIN;
        bytes / PART_MIN + (u128::from(most) * u128::from(stay_away) / u128::from(left)) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_counts_for_the_part_that_stays_away() {
        let mut refaults = Refaults::default();
        assert_eq!(refaults.discount(3200), 3200);
        refaults.leave(1000);
        (0..500).for_each(|_| refaults.refault());
        assert_eq!(refaults.discount(3200), 100 + 1550);
        (0..900).for_each(|_| refaults.refault());
        assert_eq!(refaults.discount(3200), 100, "it counts for some in any case");
        refaults.leave(1000);
        assert_eq!(refaults.discount(3200), 100 + 1550, "those that were too many are forgotten");
        (0..1000).for_each(|_| refaults.refault());
        assert_eq!(refaults.discount(u64::MAX), u64::MAX / 32);
    }

    #[test]
    fn the_first_refaults_tell_little() {
        let mut refaults = Refaults::default();
        refaults.leave(1);
        refaults.refault();
        assert!(refaults.discount(3200) > 3100);
    }

    #[test]
    fn a_process_that_has_changed_counts_in_full_again() {
        let mut refaults = Refaults::default();
        for _ in 0..100 {
            refaults.leave(100);
            (0..100).for_each(|_| refaults.refault());
        }
        assert_eq!(refaults.discount(3200), 100);
        (0..100).for_each(|_| refaults.leave(100));
        assert!(refaults.discount(3200) > 3100);
        refaults.leave(usize::MAX);
        assert!(refaults.left < 2 * PERIOD);
    }
}
