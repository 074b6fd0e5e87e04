//! The rule by which a comparison names one combination: memory first, at a bounded price.
//!
//! Start with the combination that costs least time a page. Take a denser one where it saves at
//! least 3 percent, and costs at most 1 us a page (one store and one load) for each percent. A read
//! of a page from a fast SSD takes some 80 us: the rule never pays more than 100 us for a page.

/// Percent of memory below which a saving is not worth a change of parts.
const SAVING_MIN: f64 = 3.0;

/// Microseconds a page that one percent of memory may cost.
const US_PER_PERCENT: f64 = 1.0;

/// Pages to a page of memory below which compression does not pay off.
pub const RATIO_MIN: f64 = 1.15;

/// The rule's goal in words, for reports.
pub const GOAL: &str =
    "the densest that costs at most 1 us a page more for each percent of memory saved";

/// The two figures of a combination that the rule looks at.
pub trait Candidate {
    /// Memory that all pages take, in bytes.
    fn bytes(&self) -> u64;

    /// One store and one load, in microseconds.
    fn us_per_page(&self) -> f64;

    /// Percent of memory that it saves against another.
    fn saving(&self, other: &Self) -> f64 {
        (1.0 - self.bytes() as f64 / other.bytes().max(1) as f64) * 100.0
    }
}

/// The combination that the rule comes to; `None` without any.
pub fn choose<C: Candidate>(all: impl IntoIterator<Item = C>) -> Option<C> {
    let mut by_cost: Vec<C> = all.into_iter().collect();
    by_cost.sort_by(|one, other| one.us_per_page().total_cmp(&other.us_per_page()));
    by_cost.into_iter().reduce(|best, next| {
        let saved = next.saving(&best);
        let cost = next.us_per_page() - best.us_per_page();
        if saved >= SAVING_MIN && cost <= saved * US_PER_PERCENT { next } else { best }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Clone, Copy, PartialEq)]
    struct Made(u64, f64);

    impl Candidate for Made {
        fn bytes(&self) -> u64 {
            self.0
        }

        fn us_per_page(&self) -> f64 {
            self.1
        }
    }

    #[test]
    fn memory_is_bought_at_a_bounded_price() {
        let (lz4, zstd, best) = (Made(400, 3.0), Made(240, 16.0), Made(232, 304.0));
        assert_eq!(choose([best, zstd, lz4]), Some(zstd));
        // 2 % less is not worth a change, whatever it costs.
        assert_eq!(choose([Made(400, 3.0), Made(392, 3.1)]), Some(Made(400, 3.0)));
        // 40 % may cost 40 us, not 41.
        assert_eq!(choose([Made(400, 1.0), Made(240, 41.0)]), Some(Made(240, 41.0)));
        assert_eq!(choose([Made(400, 1.0), Made(240, 42.0)]), Some(Made(400, 1.0)));
        assert_eq!(choose([] as [Made; 0]), None);
    }
}
