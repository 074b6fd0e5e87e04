//! How fast programs grow where nobody is told: memory that is mapped and filled before it is
//! watched.
//!
//! So much is kept free as they may grow until they are looked at again, and what is new is
//! watched. It is what more is resident than faults were given and than has left.

use std::time::{Duration, Instant};

use super::space::TRAY_PAGES;
use crate::page::PAGE_SIZE;

/// How long it may take until somebody looks, and what is new is watched: a look each millisecond,
/// and what it takes.
const AHEAD: Duration = Duration::from_millis(3);

/// How long it is measured at once.
const WINDOW: Duration = Duration::from_millis(1);

/// Programs that grow in bursts are taken to do so for a while: what is expected is half of it so
/// much later.
const HALVED_AFTER: Duration = Duration::from_millis(50);

/// What a fault that is being served may account for in one window, in bytes.
const UNSURE_BYTES: i64 = 256 << 10;

/// What may be seen to have left before that is told, in bytes.
const LEAVING_BYTES: i64 = (TRAY_PAGES * PAGE_SIZE) as i64;

/// What is known of it.
#[derive(Debug)]
pub(super) struct Growth {
    since: Instant,
    /// In this window, in bytes.
    unannounced: i64,
    /// What had been told when it was looked last.
    told: i64,
    bytes_per_second: f64,
}

impl Growth {
    pub(super) fn new(now: Instant) -> Growth {
        Growth { since: now, unannounced: 0, told: 0, bytes_per_second: 0.0 }
    }

    /// Programs have grown by so many bytes since it was looked last, or have shrunk; since the
    /// start, so many pages were given to them, and so many have left. How many bytes they may grow
    /// by untold until it is looked again.
    pub(super) fn see(&mut self, now: Instant, grown: i64, given: u64, left: u64) -> u64 {
        let told = (given as i64 - left as i64) * PAGE_SIZE as i64;
        self.unannounced += grown - (told - std::mem::replace(&mut self.told, told));
        let time = now.duration_since(self.since);
        if time >= WINDOW {
            let bytes = (self.unannounced - UNSURE_BYTES).max(0);
            let halvings = time.as_secs_f64() / HALVED_AFTER.as_secs_f64();
            let expected = self.bytes_per_second * (-halvings).exp2();
            self.bytes_per_second = expected.max(bytes as f64 / time.as_secs_f64());
            (self.since, self.unannounced) = (now, self.unannounced.clamp(-LEAVING_BYTES, 0));
        }
        (self.bytes_per_second * AHEAD.as_secs_f64()) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: i64 = 1 << 20;

    /// What is kept free after looks at these times, in ms, each with what has grown since the one
    /// before, in bytes, and pages given and left since the start; to a tenth of a MiB.
    fn seen<const N: usize>(looks: [(u64, i64, u64, u64); N]) -> [f64; N] {
        let start = Instant::now();
        let mut growth = Growth::new(start);
        looks.map(|(ms, grown, given, left)| {
            let bytes = growth.see(start + Duration::from_millis(ms), grown, given, left);
            (bytes as f64 / MIB as f64 * 10.0).round() / 10.0
        })
    }

    #[test]
    fn what_was_told_is_no_growth() {
        // Faults were given 2 MiB, then 1 MiB has left; then 3 MiB and 4 in one window.
        let told = [(1, 2 * MIB, 512, 0), (2, -MIB, 512, 256), (3, -MIB, 1280, 1280)];
        assert_eq!(seen(told), [0.0; 3]);
        // What leaves may be seen a moment before it is told.
        assert_eq!(seen([(1, -2 * MIB, 0, 0), (2, 0, 0, 512)]), [0.0; 2]);
    }

    #[test]
    fn growth_is_expected_to_go_on_for_a_while() {
        let unsure = UNSURE_BYTES;
        assert_eq!(seen([(4, 8 * MIB + unsure, 0, 0), (54, 0, 0, 0)]), [6.0, 3.0]);
        // Less than before, in a window, is not more than what was.
        assert_eq!(seen([(1, MIB + unsure, 0, 0), (51, 5 * MIB, 0, 0)]), [3.0, 1.5]);
        // A large part that went does not hide what comes.
        assert_eq!(seen([(1, -100 * MIB, 0, 0), (2, 3 * MIB + unsure, 0, 0)]), [0.0, 3.0]);
    }

    #[test]
    fn a_moment_is_no_window() {
        let start = Instant::now();
        let mut growth = Growth::new(start);
        let mut see = |us, grown| growth.see(start + Duration::from_micros(us), grown, 0, 0);
        assert_eq!([see(10, MIB), see(900, MIB), see(999, MIB)], [0; 3]);
        assert!(see(1000, 0) > 0);
    }
}
