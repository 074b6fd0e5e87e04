//! Bytes as people write them.

/// Bytes in the unit that suits them.
pub(crate) fn human_size(bytes: u64) -> String {
    let units = ["KiB", "MiB", "GiB", "TiB"];
    match bytes.max(1).ilog2() as usize / 10 {
        0 => format!("{bytes} bytes"),
        power => {
            let power = power.min(units.len());
            amount(bytes as f64 / (1_u64 << (10 * power)) as f64, units[power - 1])
        }
    }
}

/// Rounded to a tenth below 100, and to a whole number from there on: 99.96 is 100.
pub(crate) fn amount(value: f64, unit: &str) -> String {
    if value >= 99.95 { format!("{value:.0} {unit}") } else { format!("{value:.1} {unit}") }
}
