//! A cycle counter for short measurements.

/// What [`now`] counts.
#[cfg(target_arch = "x86_64")]
pub const UNIT: &str = "cycles are those of rdtsc";

/// What [`now`] counts.
#[cfg(not(target_arch = "x86_64"))]
pub const UNIT: &str = "cycles are nanoseconds";

/// The counter of this processor; differences mean something, on one thread.
#[cfg(target_arch = "x86_64")]
#[inline]
pub fn now() -> u64 {
    // SAFETY: every x86-64 processor has the instruction, and Linux lets processes use it.
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// Nanoseconds since the first call; differences mean something.
#[cfg(not(target_arch = "x86_64"))]
pub fn now() -> u64 {
    use std::sync::OnceLock;
    use std::time::Instant;

    static START: OnceLock<Instant> = OnceLock::new();
    START.get_or_init(Instant::now).elapsed().as_nanos() as u64 // 584 years
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_counter_goes_on() {
        let start = now();
        while now() == start {}
        assert!(now() > start);
    }
}
