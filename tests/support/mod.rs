//! What the live tests share.

use std::io::Write;

/// Says that a test could not run here, and why. With `UZSWAP_LIVE=require` that is a failure.
pub(crate) fn skip(name: &str, reason: &str) {
    // Written, not printed: the test harness hides what passing tests print.
    writeln!(std::io::stderr(), "SKIP {name}: {reason}").expect("standard error takes a line");
    let required = std::env::var_os("UZSWAP_LIVE").is_some_and(|value| value == "require");
    assert!(!required, "{name} was skipped and UZSWAP_LIVE=require is set");
}
