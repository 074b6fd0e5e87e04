//! The checks of the targets are those that `cargo test --test fuzz_seeds` runs.

use uzswap_testing::fuzz;

#[path = "../../crates/uzswap-cli/tests/fuzz_targets/mod.rs"]
mod fuzz_targets;

/// Checks one input of the target that is called so.
///
/// # Panics
///
/// Where a parser does not keep its promise, and where there is no such target.
pub fn check(name: &str, data: &[u8]) {
    let target = fuzz_targets::TARGETS.iter().find(|(target, _)| *target == name);
    (target.expect("a target").1)(data);
}
