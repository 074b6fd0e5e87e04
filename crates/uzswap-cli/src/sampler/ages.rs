//! How cold the pages of a process are, by its accessed bits.
//!
//! ```text
//!  interval        1     2     3     4     5    ...   17
//!  clear  --|-----|-----|-----|-----|-----|----- ... -----|--  clear again
//!  touched      a     b     c     d     e                      pages since the bits were cleared
//!
//!  cold for 4 intervals    resident - d     exact at the end of interval 4
//!  promoted at 4           e - d            touched in interval 5, and not in the 4 before
//! ```
//!
//! The kernel counts touched pages and does not name them. So each interval of a cycle gives the
//! figures of one age, and a cycle gives all. Between, the figures of the last cycle stand. The
//! first cycle of a process that came later is shorter: all cycles end at the same time.

use crate::corpus::working_set::Window;

/// Ages of the histograms, in intervals: 1, 2, 4, 8 and 16.
pub const AGES: usize = 5;

/// The intervals of a cycle: promotions at the largest age are those of the interval after it.
pub(super) const CYCLE: u64 = (1 << (AGES - 1)) + 1; // 17

/// The histograms of one process.
#[derive(Debug, Clone, Default)]
pub(super) struct Ages {
    /// Intervals since the bits were cleared.
    intervals: u64,
    /// Pages that were touched up to the interval before.
    touched_before: u64,
    cold: Vec<u64>,
    promoted: Vec<u64>,
    working_set: u64,
}

impl Ages {
    /// The bits were cleared.
    pub(super) fn begin_cycle(&mut self) {
        (self.intervals, self.touched_before) = (0, 0);
    }

    /// Counts the pages at the end of an interval.
    pub(super) fn turn(&mut self, window: Window) {
        self.intervals += 1;
        let cold = window.resident_pages.saturating_sub(window.touched_pages);
        let promoted = window.touched_pages.saturating_sub(self.touched_before);
        if self.intervals == 1 {
            self.working_set = window.touched_pages;
        }
        set(&mut self.cold, self.intervals, cold);
        set(&mut self.promoted, self.intervals - 1, promoted);
        self.touched_before = window.touched_pages;
    }

    /// Pages touched in an interval: the first one of the cycle.
    pub(super) fn working_set(&self) -> u64 {
        self.working_set
    }

    /// Pages of each age and above, of those that are resident: no more than of the age before.
    pub(super) fn cold(&self, resident_pages: u64) -> Vec<u64> {
        let mut least = resident_pages;
        let lower = |&pages: &u64| {
            least = least.min(pages);
            least
        };
        self.cold.iter().map(lower).collect()
    }

    /// Pages that were of each age or above when they were touched: no fewer than of the age after.
    pub(super) fn promoted(&self) -> Vec<u64> {
        let mut most = 0;
        let raise = |&pages: &u64| {
            most = most.max(pages);
            most
        };
        let mut list: Vec<u64> = self.promoted.iter().rev().map(raise).collect();
        list.reverse();
        list
    }
}

/// Sets the figure of an age, if it is one of the histogram.
fn set(list: &mut Vec<u64>, age: u64, pages: u64) {
    if !age.is_power_of_two() {
        return;
    }
    let place = age.ilog2() as usize;
    match list.get_mut(place) {
        Some(figure) => *figure = pages,
        // Ages come in their order.
        None if place < AGES => list.push(pages),
        None => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pages by the number of the interval in which each is touched, again and again.
    fn turns(periods: &[u64], intervals: u64) -> Ages {
        let (mut ages, mut since) = (Ages::default(), 0);
        for now in 1..=intervals {
            let touched =
                periods.iter().filter(|&&period| period > 0 && now / period > since / period);
            let window = Window {
                touched_pages: touched.count() as u64,
                resident_pages: periods.len() as u64,
                ..Window::default()
            };
            ages.turn(window);
            if now % CYCLE == 0 {
                ages.begin_cycle();
                since = now;
            }
        }
        ages
    }

    #[test]
    fn ages_are_exact_at_their_interval() {
        // Ten pages each interval, twenty each third, and thirty never.
        let periods = [[1; 10].as_slice(), &[3; 20], &[0; 30]].concat();
        let ages = turns(&periods, 17);
        assert_eq!(ages.working_set(), 10);
        assert_eq!(ages.cold(60), [50, 50, 30, 30, 30]);
        // The twenty were untouched for two intervals when they were touched, and never for four.
        assert_eq!(ages.promoted(), [20, 20, 0, 0, 0]);
    }

    #[test]
    fn a_new_cycle_replaces_the_figures_age_by_age() {
        let mut ages = Ages::default();
        let window =
            |touched_pages| Window { touched_pages, resident_pages: 100, ..Window::default() };
        (0..17).for_each(|_| ages.turn(window(0)));
        ages.begin_cycle();
        assert_eq!((ages.working_set(), ages.cold(100)), (0, vec![100; 5]));
        // All that is cold for two intervals is cold for one.
        ages.turn(window(70));
        assert_eq!((ages.working_set(), ages.cold(100)), (70, vec![30; 5]));
        ages.turn(window(90));
        assert_eq!(ages.cold(100), [30, 10, 10, 10, 10]);
        assert_eq!(ages.promoted(), [20, 0, 0, 0, 0]);
        assert_eq!(ages.cold(7), [7; 5], "the process gave memory back");
    }

    #[test]
    fn a_list_is_as_long_as_what_is_known() {
        for (intervals, cold, promoted) in [(0, 0, 0), (1, 1, 0), (2, 2, 1), (3, 2, 2), (16, 5, 4)]
        {
            let ages = turns(&[1], intervals);
            assert_eq!((ages.cold(1).len(), ages.promoted().len()), (cold, promoted));
        }
        assert_eq!(turns(&[1], 40).promoted().len(), AGES);
    }
}
