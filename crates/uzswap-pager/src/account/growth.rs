//! How fast programs grow where nobody is told: memory that is mapped and filled before it is
//! registered.
//!
//! So much is kept free as they may grow until they are looked at again, and what is new is
//! registered. It is what more is resident than before, less what faults were given, and with what
//! has left.

use std::time::{Duration, Instant};

use crate::address_space::BATCH_PAGES;
use uzswap::page::PAGE_SIZE;

/// How long it may take until somebody looks, and what is new is registered: a look each
/// millisecond, and what it takes.
const AHEAD: Duration = Duration::from_millis(3);

/// How long it is measured at once.
const WINDOW: Duration = Duration::from_millis(1);

/// Programs that grow in bursts are taken to do so for a while: what is expected is half of it so
/// much later.
const HALVED_AFTER: Duration = Duration::from_millis(50);

/// What a fault that is being served may account for in one window, in bytes.
const UNSURE_BYTES: i64 = 256 << 10;

/// What may be seen to have left before that is told, in bytes.
const LEAVING_BYTES: i64 = (BATCH_PAGES * PAGE_SIZE) as i64;

/// What is known of it.
#[derive(Debug)]
pub(crate) struct Growth {
    since: Instant,
    /// In this window, in bytes.
    untold: i64,
    /// What of the last one was less than none, and may be more here.
    debt: i64,
    bytes_per_second: f64,
}

impl Growth {
    pub(crate) fn new(now: Instant) -> Growth {
        Growth { since: now, untold: 0, debt: 0, bytes_per_second: 0.0 }
    }

    /// Programs have grown untold by so many bytes since it was looked last; by less than none
    /// where they gave some back, or some that has left was not noted yet. How many bytes they may
    /// grow by until it is looked again.
    pub(crate) fn see(&mut self, now: Instant, untold: i64) -> u64 {
        self.untold += untold;
        let time = now.duration_since(self.since);
        if time >= WINDOW {
            let bytes = (self.untold + self.debt - UNSURE_BYTES).max(0);
            let halvings = time.as_secs_f64() / HALVED_AFTER.as_secs_f64();
            let expected = self.bytes_per_second * (-halvings).exp2();
            self.bytes_per_second = expected.max(bytes as f64 / time.as_secs_f64());
            self.debt = self.untold.clamp(-LEAVING_BYTES, 0);
            (self.since, self.untold) = (now, 0);
        }
        (self.bytes_per_second * AHEAD.as_secs_f64()) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: i64 = 1 << 20;

    /// What is kept free after looks at these times, in ms, each with what has grown since the one
    /// before, in bytes; to a tenth of a MiB.
    fn seen<const N: usize>(looks: [(u64, i64); N]) -> [f64; N] {
        let start = Instant::now();
        let mut growth = Growth::new(start);
        looks.map(|(ms, untold)| {
            let bytes = growth.see(start + Duration::from_millis(ms), untold);
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
        // What went hides what comes in the next window alone, and no more than may leave at once.
        let more = 3 * MIB + UNSURE_BYTES;
        assert_eq!(seen([(1, -100 * MIB), (2, more)]), [0.0, 3.0]);
        assert_eq!(seen([(1, -100 * MIB), (2, 0), (3, more)]), [0.0, 0.0, 9.0]);
    }

    #[test]
    fn a_moment_is_no_window() {
        let start = Instant::now();
        let mut growth = Growth::new(start);
        let mut see = |us, untold| growth.see(start + Duration::from_micros(us), untold);
        assert_eq!([see(10, MIB), see(900, MIB), see(999, MIB)], [0; 3]);
        assert!(see(1000, 0) > 0);
    }
}
