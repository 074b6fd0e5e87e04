//! Counts the refaults of a process: evicted pages that it touches again soon.
//!
//! The evictor takes pages from the largest process first. A process that uses all of its pages
//! gets each of them back at once, while others keep pages that nobody uses. So the evictor
//! discounts the size of a process by its refaults. The kernel weighs file pages against anonymous
//! pages by refaults, too (mm/workingset.c).

/// After so many evicted pages, earlier ones count for half.
const PERIOD: u32 = 1024;

/// Refaults are a part of at least so many evicted pages: the first few tell little.
const EVICTED_MIN: u32 = 128;

/// A process whose pages all refault counts for this part of its size: it may change.
const PART_MIN: u64 = 32;

/// The refaults of one process.
#[derive(Debug, Default)]
pub(crate) struct Refaults {
    evicted: u32,
    refaults: u32,
}

impl Refaults {
    /// Pages were evicted, or staged for that.
    pub(crate) fn evict(&mut self, pages: usize) {
        self.evicted = self.evicted.saturating_add(pages.try_into().unwrap_or(u32::MAX));
        while self.evicted >= 2 * PERIOD {
            (self.evicted, self.refaults) = (self.evicted / 2, self.refaults / 2);
        }
    }

    /// The process touched a page soon after its eviction. There are no more refaults than evicted
    /// pages.
    pub(crate) fn refault(&mut self) {
        self.refaults = (self.refaults + 1).min(self.evicted);
    }

    /// The size of a process of so many bytes, less its refaulting part.
    pub(crate) fn discount(&self, bytes: u64) -> u64 {
        let evicted = u64::from(self.evicted.max(EVICTED_MIN));
        let stay_away = evicted.saturating_sub(self.refaults.into());
        let most = bytes - bytes / PART_MIN;
        bytes / PART_MIN + (u128::from(most) * u128::from(stay_away) / u128::from(evicted)) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_counts_for_the_part_that_stays_away() {
        let mut refaults = Refaults::default();
        assert_eq!(refaults.discount(3200), 3200);
        refaults.evict(1000);
        (0..500).for_each(|_| refaults.refault());
        assert_eq!(refaults.discount(3200), 100 + 1550);
        (0..900).for_each(|_| refaults.refault());
        assert_eq!(refaults.discount(3200), 100, "it counts for some in any case");
        refaults.evict(1000);
        assert_eq!(refaults.discount(3200), 100 + 1550, "those that were too many are forgotten");
        (0..1000).for_each(|_| refaults.refault());
        assert_eq!(refaults.discount(u64::MAX), u64::MAX / 32);
    }

    #[test]
    fn counts_halve_once_there_are_two_periods() {
        let mut refaults = Refaults::default();
        refaults.evict(2 * PERIOD as usize - 1);
        (0..100).for_each(|_| refaults.refault());
        assert_eq!((refaults.evicted, refaults.refaults), (2 * PERIOD - 1, 100));
        refaults.evict(1);
        assert_eq!((refaults.evicted, refaults.refaults), (PERIOD, 50));
    }

    #[test]
    fn the_first_refaults_tell_little() {
        let mut refaults = Refaults::default();
        refaults.evict(1);
        refaults.refault();
        assert!(refaults.discount(3200) > 3100);
    }

    #[test]
    fn a_process_that_has_changed_counts_in_full_again() {
        let mut refaults = Refaults::default();
        for _ in 0..100 {
            refaults.evict(100);
            (0..100).for_each(|_| refaults.refault());
        }
        assert_eq!(refaults.discount(3200), 100);
        (0..100).for_each(|_| refaults.evict(100));
        assert!(refaults.discount(3200) > 3100);
        refaults.evict(usize::MAX);
        assert!(refaults.evicted < 2 * PERIOD);
    }
}
