//! The working set of a program, and the time that it would take in less memory.
//!
//! A [`Window`] has the pages that the program touched in some milliseconds. Under a limit some of
//! its pages stay as they are and the others are compressed. If a window touches more pages than
//! stay, each page beyond them is at least one fault. A page that is evicted twice in one window
//! faults twice, which no window shows: the factor is the least.

use std::time::Duration;

use uzswap::page::PAGE_SIZE;

/// The pages that a program touched in a short time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Window {
    /// Its length.
    pub length: Duration,
    /// Anonymous pages that were touched.
    pub touched_pages: u64,
    /// Anonymous pages that were resident at its end.
    pub resident_pages: u64,
}

/// Memory for a program's pages, some of them compressed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Budget {
    /// All of it, in bytes.
    pub limit_bytes: u64,
    /// Bytes of pages over the memory that they take compressed; above 1.
    pub ratio: f64,
    /// A fault on a compressed page, in microseconds.
    pub fault_us: f64,
}

impl Budget {
    /// Pages that stay as they are, of so many.
    fn kept_pages(&self, resident_pages: u64) -> f64 {
        let (limit, all) = (self.limit_bytes as f64 / PAGE_SIZE as f64, resident_pages as f64);
        ((limit - all / self.ratio) / (1.0 - 1.0 / self.ratio)).clamp(0.0, all)
    }
}

/// The program's time under a budget over its time without: 1 or more, and no more than the truth.
pub fn least_time_factor(windows: &[Window], budget: Budget) -> f64 {
    let faults = windows.iter().map(|window| {
        (window.touched_pages as f64 - budget.kept_pages(window.resident_pages)).max(0.0)
    });
    1.0 + faults.sum::<f64>() * budget.fault_us / 1e6 / seconds(windows).max(1e-9)
}

/// The share of the windows that do not pass the working set.
pub const WORKING_SHARE: f64 = 0.9;

/// The pages that such a share of the windows does not pass, weighted by their time; the highest
/// where there are few. 0 without windows.
pub fn working_set_pages(windows: &[Window], share: f64) -> u64 {
    let mut by_pages = windows.to_vec();
    by_pages.sort_by_key(|window| window.touched_pages);
    let mut left = share * seconds(windows);
    for window in &by_pages {
        left -= window.length.as_secs_f64();
        if left <= 0.0 {
            return window.touched_pages;
        }
    }
    by_pages.last().map_or(0, |window| window.touched_pages)
}

/// Their time.
pub fn seconds(windows: &[Window]) -> f64 {
    windows.iter().map(|window| window.length).sum::<Duration>().as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const PAGES: u64 = MIB / PAGE_SIZE as u64;

    fn window(touched: u64, resident: u64) -> Window {
        Window {
            length: Duration::from_millis(100),
            touched_pages: touched * PAGES,
            resident_pages: resident * PAGES,
        }
    }

    fn budget(limit: u64) -> Budget {
        Budget { limit_bytes: limit * MIB, ratio: 4.0, fault_us: 25.0 }
    }

    #[test]
    fn touches_within_the_pages_that_stay_cost_nothing() {
        // 100 MiB in 55: 40 stay, and 60 take 15.
        assert_eq!(least_time_factor(&[window(40, 100)], budget(55)), 1.0);
        // 20 MiB are 5,120 pages, of 25 us: 128 ms of 100.
        let factor = least_time_factor(&[window(60, 100)], budget(55));
        assert!((factor - 2.28).abs() < 1e-6, "{factor}");
        // Half of the time without.
        let factor = least_time_factor(&[window(60, 100), window(1, 100)], budget(55));
        assert!((factor - 1.64).abs() < 1e-6, "{factor}");
        // A program that has not grown yet has all of its pages.
        assert_eq!(least_time_factor(&[window(50, 50)], budget(55)), 1.0);
        // Less than the compressed pages take: each touch is a fault.
        let factor = least_time_factor(&[window(1, 100)], budget(10));
        assert!((factor - 1.064).abs() < 1e-6, "{factor}");
        assert_eq!(least_time_factor(&[], budget(10)), 1.0);
    }

    #[test]
    fn the_working_set_holds_nine_of_ten_windows() {
        let windows: Vec<Window> = (1..=20).map(|mib| window(mib, 100)).collect();
        assert_eq!(working_set_pages(&windows, WORKING_SHARE), 18 * PAGES);
        assert_eq!(working_set_pages(&[window(3, 9)], WORKING_SHARE), 3 * PAGES);
        assert_eq!(working_set_pages(&[], WORKING_SHARE), 0);
    }
}
