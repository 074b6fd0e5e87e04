//! Formats sizes, times, rates and ratios for narrow columns.

use super::rates::Interval;

/// Bytes in at most 5 columns, with the units of `--limit`.
pub(super) fn bytes(bytes: u64) -> String {
    let power = (bytes.max(1).ilog2() as usize / 10).min(4);
    let unit = ["", "K", "M", "G", "T"][power];
    let value = bytes as f64 / (1_u64 << (10 * power)) as f64;
    if power == 0 || value >= 99.95 {
        format!("{value:.0}{unit}")
    } else {
        format!("{value:.1}{unit}")
    }
}

/// A time in at most 6 columns.
fn time(ns: u64) -> String {
    let (value, unit) = match ns {
        0..1_000 => return format!("{ns}ns"),
        1_000..1_000_000 => (ns as f64 / 1e3, "us"),
        1_000_000..1_000_000_000 => (ns as f64 / 1e6, "ms"),
        _ => (ns as f64 / 1e9, "s"),
    };
    if value >= 99.95 { format!("{value:.0}{unit}") } else { format!("{value:.1}{unit}") }
}

/// Events a second: with one digit after the point below 10.
pub(super) fn rate(per_second: f64) -> String {
    if per_second < 9.95 { format!("{per_second:.1}") } else { format!("{per_second:.0}") }
}

/// A ratio in at most 6 columns; `-` for none.
pub(super) fn ratio(ratio: Option<f64>) -> String {
    match ratio {
        None => "-".to_owned(),
        Some(ratio @ ..99.995) => format!("{ratio:.2}"),
        Some(ratio) => format!("{:.0}", ratio.min(99_999.0)),
    }
}

/// Percentiles of the latest interval; `-` without faults.
pub(super) fn percentiles(interval: &Interval) -> [String; 2] {
    [interval.p50_ns, interval.p99_ns].map(|ns| match interval.faults {
        0 => "-".to_owned(),
        _ => time(ns),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_fit_their_columns() {
        let sizes = [0, 1023, 4096, 100 << 10, (1 << 20) - 1, 84_306_000, 3 << 29, 5 << 40];
        let texts = ["0", "1023", "4.0K", "100K", "1024K", "80.4M", "1.5G", "5.0T"];
        assert_eq!(sizes.map(bytes), texts);
        let times = [0, 999, 1000, 39_700, 99_950, 1_500_000, 68_000_000_000];
        assert_eq!(times.map(time), ["0ns", "999ns", "1.0us", "39.7us", "100us", "1.5ms", "68.0s"]);
        assert_eq!([0.0, 9.94, 9.96, 123_456.0].map(rate), ["0.0", "9.9", "10", "123456"]);
        let ratios = [1.0, 99.99, 150.2, 1e9].map(|value| ratio(Some(value)));
        assert_eq!(ratios, ["1.00", "99.99", "150", "99999"]);
    }
}
