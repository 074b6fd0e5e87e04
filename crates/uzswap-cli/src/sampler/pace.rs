//! Keeps a sample within its share of a processor: after work it waits until the share fits.

use std::thread;
use std::time::{Duration, Instant};

use uzswap_sys::{interrupt, process};

/// Time between two looks for a signal.
const POLL: Duration = Duration::from_millis(100);

/// The clocks of a sample.
#[derive(Debug)]
pub(super) struct Pace {
    start: Instant,
    /// Processor time over time, at most.
    share: f64,
}

impl Pace {
    /// Begins with this share of one processor, above 0.
    pub(super) fn new(share: f64) -> Pace {
        Pace { start: Instant::now(), share }
    }

    /// Time since the begin.
    pub(super) fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }

    /// Waits until the processor time of this process is within its share.
    pub(super) fn pay(&self) {
        let due = cpu_time().div_f64(self.share.max(1e-6));
        self.wait_until(due);
    }

    /// Waits until so much time has passed since the begin, or a signal comes.
    pub(super) fn wait_until(&self, due: Duration) {
        while let Some(left) = due.checked_sub(self.elapsed()).filter(|left| !left.is_zero()) {
            if interrupt::noted() {
                return;
            }
            thread::sleep(left.min(POLL));
        }
    }
}

/// Processor time of this process, of all its threads.
pub(super) fn cpu_time() -> Duration {
    let time = process::cpu_time();
    time.user + time.sys
}
