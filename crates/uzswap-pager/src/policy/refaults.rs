//! Counts the refaults of a process: evicted pages that it touches again soon.
//!
//! The evictor takes pages from the process with the oldest ones first. A process that uses all of
//! its pages gets each of them back at once, while others keep pages that nobody uses. So the
//! evictor discounts the age of pages by the refaults of their process. The kernel weighs file
//! pages against anonymous pages by refaults, too (mm/workingset.c).

use std::time::Duration;

/// After so many evicted pages, earlier ones count for half.
const PERIOD: u32 = 1024;

/// Refaults are a part of at least so many evicted pages: the first few tell little.
const EVICTED_MIN: u32 = 128;

/// The discount begins where more than this part refaults, in percent, and rises with the fourth
/// power of the part that stays away. Of the rules that were simulated for a kernel build this one
/// stored the fewest pages.
const REFAULTING_MIN: f64 = 40.0;
const POWER: i32 = 4;

/// Pages of a process whose pages all refault count for this part of their age: it may change.
const PART_MIN: f64 = 1.0 / 32.0;

/// Evicted pages and refaults, lately.
#[derive(Debug, Default)]
pub(super) struct Lately {
    pub(super) evicted: u32,
    pub(super) refaults: u32,
}

impl Lately {
    /// Pages were evicted, or staged for that.
    pub(super) fn evict(&mut self, pages: usize) {
        self.evicted = self.evicted.saturating_add(pages.try_into().unwrap_or(u32::MAX));
        while self.evicted >= 2 * PERIOD {
            (self.evicted, self.refaults) = (self.evicted / 2, self.refaults / 2);
        }
    }

    /// So many touches came soon after an eviction.
    pub(super) fn refault(&mut self, touches: u64) {
        self.refaults = self.refaults.saturating_add(touches.try_into().unwrap_or(u32::MAX));
    }
}

/// The refaults of one process.
#[derive(Debug, Default)]
pub(crate) struct Refaults(Lately);

impl Refaults {
    /// Pages were evicted, or staged for that.
    pub(crate) fn evict(&mut self, pages: usize) {
        self.0.evict(pages);
    }

    /// The process touched a page soon after its eviction. There are no more refaults than evicted
    /// pages.
    pub(crate) fn refault(&mut self) {
        self.0.refault(1);
        self.0.refaults = self.0.refaults.min(self.0.evicted);
    }

    /// The age of pages of the process, discounted by its refaults.
    pub(crate) fn discount(&self, age: Duration) -> Duration {
        let evicted = f64::from(self.0.evicted.max(EVICTED_MIN));
        let stays_away = 1.0 - f64::from(self.0.refaults) / evicted;
        let part = (stays_away / (1.0 - REFAULTING_MIN / 100.0)).min(1.0).powi(POWER);
        age.mul_f64(PART_MIN + (1.0 - PART_MIN) * part)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AGE: Duration = Duration::from_millis(3200);

    /// The discounted age of pages that are so old as `AGE`, in ms.
    fn discounted(refaults: &Refaults) -> u128 {
        refaults.discount(AGE).as_millis()
    }

    #[test]
    fn ages_are_discounted_where_much_refaults() {
        let mut refaults = Refaults::default();
        assert_eq!(discounted(&refaults), 3200);
        refaults.evict(1000);
        (0..400).for_each(|_| refaults.refault());
        assert_eq!(discounted(&refaults), 3200, "some may");
        (0..300).for_each(|_| refaults.refault());
        assert_eq!(discounted(&refaults), 100 + 3100 / 16, "half of what may stay away does");
        (0..900).for_each(|_| refaults.refault());
        assert_eq!(discounted(&refaults), 100, "it counts for some in any case");
        refaults.evict(1000);
        // (5/6)^4, as half stays away of 60 %.
        let part = 100 + 3100 * 625 / 1296;
        assert_eq!(discounted(&refaults), part, "those that were too many are forgotten");
        (0..1000).for_each(|_| refaults.refault());
        let [age, discounted] = [1 << 60, 1 << 55].map(Duration::from_secs);
        assert_eq!(refaults.discount(age), discounted);
    }

    #[test]
    fn counts_halve_once_there_are_two_periods() {
        let mut refaults = Refaults::default();
        refaults.evict(2 * PERIOD as usize - 1);
        (0..100).for_each(|_| refaults.refault());
        assert_eq!((refaults.0.evicted, refaults.0.refaults), (2 * PERIOD - 1, 100));
        refaults.evict(1);
        assert_eq!((refaults.0.evicted, refaults.0.refaults), (PERIOD, 50));
    }

    #[test]
    fn the_first_refaults_tell_little() {
        let mut refaults = Refaults::default();
        refaults.evict(1);
        refaults.refault();
        assert!(discounted(&refaults) > 3100);
    }

    #[test]
    fn a_process_that_has_changed_counts_in_full_again() {
        let mut refaults = Refaults::default();
        for _ in 0..100 {
            refaults.evict(100);
            (0..100).for_each(|_| refaults.refault());
        }
        assert_eq!(discounted(&refaults), 100);
        (0..100).for_each(|_| refaults.evict(100));
        assert!(discounted(&refaults) > 3100);
        refaults.evict(usize::MAX);
        assert!(refaults.0.evicted < 2 * PERIOD);
    }
}
