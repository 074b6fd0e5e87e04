//! The search for the capacity at which a cache takes a given amount of real memory.
//!
//! A cache counts the bytes of its entries; its table, its links and the heap's waste come on top.
//! Real memory is about linear in the capacity, with an offset: false position finds it in few runs.

use anyhow::{Result, bail};

/// How far from the target the memory may be.
pub(crate) const TOLERANCE: f64 = 0.02;

/// The most runs before the search gives up.
const RUNS_MAX: usize = 12;

/// A capacity, and the memory that a cache of that capacity took. In bytes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Fit {
    pub(crate) capacity: u64,
    pub(crate) memory: u64,
}

/// The capacity at which `memory_of` is within `tolerance` of `target`, as a share of it.
///
/// # Errors
///
/// The errors of `memory_of`; another where no capacity that was tried comes close enough.
pub(crate) fn calibrate(
    target: u64,
    tolerance: f64,
    mut memory_of: impl FnMut(u64) -> Result<u64>,
) -> Result<Fit> {
    let distance = |fit: &Fit| fit.memory.abs_diff(target) as f64 / target as f64;
    let mut low: Option<Fit> = None; // the largest capacity that takes too little
    let mut high: Option<Fit> = None; // the smallest that takes too much
    let mut best: Option<Fit> = None;
    let mut capacity = target;
    for _ in 0..RUNS_MAX {
        let fit = Fit { capacity, memory: memory_of(capacity)? };
        if distance(&fit) <= tolerance {
            return Ok(fit);
        }
        if best.is_none_or(|best| distance(&fit) < distance(&best)) {
            best = Some(fit);
        }
        if fit.memory < target {
            low = Some(fit);
        } else {
            high = Some(fit);
        }
        capacity = match (low, high) {
            (Some(low), Some(high)) => between(low, high, target),
            // One side only: in proportion, and by at most half or twice at a time.
            _ => {
                let ratio = target as f64 / fit.memory.max(1) as f64;
                (capacity as f64 * ratio.clamp(0.5, 2.0)) as u64
            }
        }
        .max(1);
    }
    let best = best.expect("there was a run");
    bail!(
        "no capacity gives {target} bytes of real memory: the closest of {RUNS_MAX} runs took {} \
         with a capacity of {}",
        best.memory,
        best.capacity
    )
}

/// The capacity at which the line through both meets the target, at least a tenth of their distance
/// from both, so that noise and steps do not stop the search.
fn between(low: Fit, high: Fit, target: u64) -> u64 {
    let span = high.capacity as f64 - low.capacity as f64;
    let share = (target - low.memory) as f64 / (high.memory - low.memory) as f64;
    (low.capacity as f64 + span * share.clamp(0.1, 0.9)) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// Runs the search over a model of a cache; the fit, and the runs it took.
    fn search(memory_of: impl Fn(u64) -> u64) -> (Result<Fit>, usize) {
        let mut runs = 0;
        let fit = calibrate(128 * MIB, TOLERANCE, |capacity| {
            runs += 1;
            Ok(memory_of(capacity))
        });
        (fit, runs)
    }

    fn assert_found(name: &str, runs_max: usize, memory_of: impl Fn(u64) -> u64) {
        let (fit, runs) = search(&memory_of);
        let fit = fit.unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(fit.memory, memory_of(fit.capacity), "{name}");
        let off = fit.memory.abs_diff(128 * MIB) as f64 / (128 * MIB) as f64;
        assert!(off <= TOLERANCE, "{name}: {off}");
        assert!(runs <= runs_max, "{name}: {runs} runs");
    }

    #[test]
    fn caches_of_every_shape_are_found() {
        assert_found("exact", 1, |capacity| capacity);
        assert_found("overhead in proportion", 2, |capacity| capacity * 4 / 3);
        assert_found("a fixed cost", 4, |capacity| capacity + 50 * MIB);
        assert_found("less than told", 4, |capacity| capacity / 5);
        assert_found("convex", 6, |capacity| capacity * capacity / (256 * MIB));
        let table = |capacity: u64| capacity + (capacity / 8).next_power_of_two();
        assert_found("a table that doubles", 2, table);
    }

    #[test]
    fn noise_within_the_tolerance_does_not_stop_it() {
        for seed in 0..200 {
            let noisy = |capacity: u64| {
                let off = uzswap::random::mix(capacity ^ seed << 40) % (3 * MIB);
                capacity * 5 / 4 + 20 * MIB + off
            };
            assert_found("noise", 12, noisy);
        }
    }

    #[test]
    fn what_cannot_be_is_an_error() {
        for (name, memory) in [("no bound", 512 * MIB), ("holds nothing", 0), ("small", MIB)] {
            let (fit, runs) = search(|_| memory);
            assert!(fit.is_err(), "{name}");
            assert_eq!(runs, RUNS_MAX);
        }
        assert!(calibrate(MIB, TOLERANCE, |_| bail!("no memory")).is_err());
    }
}
