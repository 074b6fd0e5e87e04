//! The checks of the targets are those that `cargo test --test fuzz_seeds` runs.

#[path = "../../tests/fuzz/mod.rs"]
mod fuzz;
#[path = "../../tests/fuzz_targets/mod.rs"]
mod fuzz_targets;
#[path = "../../tests/varied_pages/mod.rs"]
mod varied_pages;

/// Checks one input of the target that is called so.
///
/// # Panics
///
/// Where a parser does not keep its promise, and where there is no such target.
pub fn check(name: &str, data: &[u8]) {
    let target = fuzz_targets::TARGETS.iter().find(|(target, _)| *target == name);
    (target.expect("a target").1)(data);
}
