//! Growth that no fault reports: a program maps memory and fills it before the registrar registers
//! it.
//!
//! The supervisor keeps headroom for the growth until the next sample and registration. The growth
//! is the increase of resident bytes, less the pages that faults brought, plus the evicted pages.

use std::time::{Duration, Instant};

use crate::page_table::BATCH_PAGES;
use uzswap::page::PAGE_SIZE;

/// The time until a sample sees new memory and a registrar registers it: a sample each
/// millisecond, and its duration.
const AHEAD: Duration = Duration::from_millis(3);

/// The length of a measurement.
const WINDOW: Duration = Duration::from_millis(1);

/// Programs grow in bursts: the expectation halves in this time.
const HALVED_AFTER: Duration = Duration::from_millis(50);

/// Bytes that a fault in progress may account for in one measurement.
const UNSURE_BYTES: i64 = 256 << 10;

/// Bytes of an eviction that a sample sees before the evictor notes it.
const LEAVING_BYTES: i64 = (BATCH_PAGES * PAGE_SIZE) as i64;

/// The measured growth.
#[derive(Debug)]
pub(crate) struct Growth {
    since: Instant,
    /// Unobserved growth in this window, in bytes.
    unobserved: i64,
    /// Negative growth of the last window: an eviction seen before it was noted.
    debt: i64,
    bytes_per_second: f64,
}

impl Growth {
    pub(crate) fn new(now: Instant) -> Growth {
        Growth { since: now, unobserved: 0, debt: 0, bytes_per_second: 0.0 }
    }

    /// Takes the unobserved growth since the last sample, in bytes; negative if programs freed
    /// memory, or an eviction was not noted yet. Returns the bytes by which programs may grow
    /// until the next sample.
    pub(crate) fn see(&mut self, now: Instant, unobserved: i64) -> u64 {
        self.unobserved += unobserved;
        let time = now.duration_since(self.since);
        if time >= WINDOW {
            let bytes = (self.unobserved + self.debt - UNSURE_BYTES).max(0);
            let halvings = time.as_secs_f64() / HALVED_AFTER.as_secs_f64();
            let expected = self.bytes_per_second * (-halvings).exp2();
            self.bytes_per_second = expected.max(bytes as f64 / time.as_secs_f64());
            self.debt = self.unobserved.clamp(-LEAVING_BYTES, 0);
            (self.since, self.unobserved) = (now, 0);
        }
        (self.bytes_per_second * AHEAD.as_secs_f64()) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: i64 = 1 << 20;

    /// The headroom after samples at these times (ms) with this growth (bytes), to a tenth of a
    /// MiB.
    fn seen<const N: usize>(samples: [(u64, i64); N]) -> [f64; N] {
        let start = Instant::now();
        let mut growth = Growth::new(start);
        samples.map(|(ms, unobserved)| {
            let bytes = growth.see(start + Duration::from_millis(ms), unobserved);
            (bytes as f64 / MIB as f64 * 10.0).round() / 10.0
        })
    }

    #[test]
    fn growth_is_expected_to_go_on_for_a_while() {
        let unsure = UNSURE_BYTES;
        assert_eq!(seen([(4, 8 * MIB + unsure), (54, 0)]), [6.0, 3.0]);
        // Less than before, in a window, is not more than what was.
        assert_eq!(seen([(1, MIB + unsure), (51, 5 * MIB)]), [3.0, 1.5]);
    }

    #[test]
    fn what_has_left_may_be_noted_later() {
        assert_eq!(seen([(1, -2 * MIB), (2, 2 * MIB)]), [0.0; 2]);
        // An eviction hides growth in the next window alone, and one batch of it at most.
        let more = 3 * MIB + UNSURE_BYTES;
        assert_eq!(seen([(1, -100 * MIB), (2, more)]), [0.0, 3.0]);
        assert_eq!(seen([(1, -100 * MIB), (2, 0), (3, more)]), [0.0, 0.0, 9.0]);
    }

    #[test]
    fn a_moment_is_no_window() {
        let start = Instant::now();
        let mut growth = Growth::new(start);
        let mut see = |us, unobserved| growth.see(start + Duration::from_micros(us), unobserved);
        assert_eq!([see(10, MIB), see(900, MIB), see(999, MIB)], [0; 3]);
        assert!(see(1000, 0) > 0);
    }
}
