//! How often something may be done: so many times at once, and so many each second.

use std::time::{Duration, Instant};

/// Tokens: one is taken each time, and new ones come with time.
#[derive(Debug)]
pub(crate) struct Bucket {
    most: u32,
    each_second: u32,
    left: u32,
    since: Instant,
}

impl Bucket {
    /// A full one.
    pub(crate) fn new(most: u32, each_second: u32) -> Bucket {
        Bucket { most, each_second, left: most, since: Instant::now() }
    }

    /// Takes some, if there are as many.
    pub(crate) fn take(&mut self, count: u32, now: Instant) -> bool {
        let elapsed = now.saturating_duration_since(self.since);
        let earned = elapsed.as_millis() * u128::from(self.each_second) / 1000;
        if earned > 0 {
            let earned = u32::try_from(earned).unwrap_or(u32::MAX);
            self.left = self.left.saturating_add(earned).min(self.most);
            self.since += Duration::from_secs(u64::from(earned)) / self.each_second;
        }
        let is_enough = count <= self.left;
        if is_enough {
            self.left -= count;
        }
        is_enough
    }

    /// When it was full first.
    #[cfg(test)]
    pub(crate) fn start(&self) -> Instant {
        self.since
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_come_with_time() {
        let mut bucket = Bucket::new(5, 4);
        let start = bucket.since;
        let mut taken = |ms| {
            let now = start + Duration::from_millis(ms);
            (0..100).filter(|_| bucket.take(1, now)).count()
        };
        assert_eq!([taken(0), taken(0), taken(249)], [5, 0, 0]);
        // What is earned in part is not lost.
        assert_eq!([taken(250), taken(499), taken(500)], [1, 0, 1]);
        assert_eq!([taken(100_000), taken(100_200), taken(100_250)], [5, 0, 1]);
        assert!(!bucket.take(6, start + Duration::from_secs(200)), "more than it holds");
    }
}
