//! Axes: where a value is, in percent of the picture, and the ticks.

use super::unit::Unit;

/// The most labels of an axis but one: as many as a phone has room for.
const LABELS_MAX: u32 = 4;

/// A tick: its place in percent, and its label.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Tick {
    pub(super) at: f64,
    pub(super) label: String,
}

/// An axis from `from` to `to`, which differ.
#[derive(Debug, Clone)]
pub(super) struct Scale {
    from: f64,
    to: f64,
    is_log: bool,
    pub(super) ticks: Vec<Tick>,
}

impl Scale {
    /// A linear axis that holds all values that are finite. Its ends are ticks, in steps of 1, 2 or
    /// 5.
    pub(super) fn linear(unit: Unit, values: impl IntoIterator<Item = f64>) -> Scale {
        Scale::spaced(unit, values, LABELS_MAX)
    }

    /// The same for a narrow picture.
    pub(super) fn narrow(unit: Unit, values: impl IntoIterator<Item = f64>) -> Scale {
        Scale::spaced(unit, values, LABELS_MAX / 2)
    }

    fn spaced(unit: Unit, values: impl IntoIterator<Item = f64>, labels: u32) -> Scale {
        let values: Vec<f64> = values.into_iter().filter(|value| value.is_finite()).collect();
        let mut low = values.iter().copied().fold(f64::INFINITY, f64::min);
        let mut high = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        if values.is_empty() {
            (low, high) = (0.0, 1.0);
        }
        if high - low <= high.abs() * 1e-6 {
            // One value alone: it is drawn in the middle.
            let around = if high == 0.0 { 1.0 } else { high.abs() * 0.1 };
            (low, high) = if low == 0.0 { (0.0, around) } else { (low - around, high + around) };
        }
        let largest = high.abs().max(low.abs());
        let steps_of = |(part, name): (f64, &'static str)| {
            let step = nice_step((high - low) / part / f64::from(labels)) * part;
            let (first, last) = ((low / step).floor() as i64, (high / step).ceil() as i64);
            (part, name, step, first, last)
        };
        let (_, _, step, first, last) = steps_of(unit.part(largest));
        // The end of the axis chooses the part: it may be 1 s where the values are below.
        let end = (last as f64 * step).max(-(first as f64) * step);
        let (part, name, step, first, last) = steps_of(unit.part(end));
        let decimals = (-(step / part).log10().floor()).clamp(0.0, 9.0) as usize;
        let (from, to) = (first as f64 * step, last as f64 * step);
        let mut scale = Scale { from, to, is_log: false, ticks: Vec::new() };
        for number in first..=last {
            let value = number as f64 * step;
            let label = match number {
                0 => "0".to_owned(),
                _ => format!("{:.decimals$} {name}", value / part),
            };
            scale.ticks.push(Tick { at: scale.at(value), label: label.trim_end().to_owned() });
        }
        scale
    }

    /// A logarithmic axis of nanoseconds between two powers of two, with ticks at powers of two.
    pub(super) fn log_ns(from_ns: u64, to_ns: u64) -> Scale {
        let from = from_ns.max(1).ilog2();
        let to = to_ns.max(1).next_power_of_two().ilog2().max(from + 1);
        let step = (to - from).div_ceil(LABELS_MAX + 1).max(1);
        let ends = (f64::from(from).exp2(), f64::from(to).exp2());
        let mut scale = Scale { from: ends.0, to: ends.1, is_log: true, ticks: Vec::new() };
        for power in (from..=to).step_by(step as usize) {
            let at = scale.at(f64::from(power).exp2());
            scale.ticks.push(Tick { at, label: rounded(1 << power.min(63)) });
        }
        scale
    }

    /// The place of a value in percent, 0 to 100.
    pub(super) fn at(&self, value: f64) -> f64 {
        let share = match self.is_log {
            true => (value.max(self.from) / self.from).log2() / (self.to / self.from).log2(),
            false => (value - self.from) / (self.to - self.from),
        };
        if share.is_finite() { (share * 100.0).clamp(0.0, 100.0) } else { 0.0 }
    }
}

/// The smallest 1, 2 or 5 times a power of ten that is not below `step`.
fn nice_step(step: f64) -> f64 {
    let power = 10_f64.powf(step.log10().floor());
    let digit = [1.0, 2.0, 5.0].into_iter().find(|digit| digit * power >= step * (1.0 - 1e-9));
    digit.unwrap_or(10.0) * power
}

/// A power of two in nanoseconds, to two digits below 100: a label must be short.
fn rounded(ns: u64) -> String {
    let (part, name) = Unit::Nanoseconds.part(ns as f64);
    let value = ns as f64 / part;
    let number = if value < 9.95 { format!("{value:.1}") } else { format!("{value:.0}") };
    format!("{} {name}", number.strip_suffix(".0").unwrap_or(&number))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(scale: &Scale) -> Vec<&str> {
        scale.ticks.iter().map(|tick| tick.label.as_str()).collect()
    }

    #[test]
    fn ticks_are_in_steps_of_one_two_or_five() {
        let scale = Scale::linear(Unit::Seconds, [1.03, 1.17]);
        assert_eq!(labels(&scale), ["1.00 s", "1.05 s", "1.10 s", "1.15 s", "1.20 s"]);
        let scale = Scale::linear(Unit::Bytes, [0.0, 700.0 * 1_048_576.0]);
        assert_eq!(labels(&scale), ["0", "200 MiB", "400 MiB", "600 MiB", "800 MiB"]);
        assert!((scale.at(400.0 * 1_048_576.0) - 50.0).abs() < 1e-9);
        for high in (1..400).map(|step| f64::from(step) * 0.37) {
            let scale = Scale::linear(Unit::Ratio, [high, high * 1.7]);
            assert!((2..=7).contains(&scale.ticks.len()), "{high}: {scale:?}");
            assert_eq!((scale.ticks[0].at, scale.ticks.last().unwrap().at), (0.0, 100.0));
        }
    }

    #[test]
    fn powers_of_two_have_words() {
        let scale = Scale::log_ns(512, 8192);
        assert_eq!(labels(&scale), ["512 ns", "1 us", "2 us", "4.1 us", "8.2 us"]);
        assert!((scale.at(2048.0) - 50.0).abs() < 1e-9);
        assert!(Scale::log_ns(0, 1 << 36).ticks.len() <= 6);
    }

    #[test]
    fn no_values_make_an_axis_all_the_same() {
        for values in [&[][..], &[0.0], &[f64::NAN], &[5.0], &[5.0, f64::INFINITY], &[-2.0]] {
            for zero in [None, Some(0.0)] {
                let scale = Scale::linear(Unit::Seconds, values.iter().copied().chain(zero));
                let places = [0.0, 5.0, -1.0, f64::NAN].map(|value| scale.at(value));
                assert!(places.iter().all(|at| (0.0..=100.0).contains(at)), "{scale:?}");
                assert!(scale.ticks.len() >= 2, "{scale:?}");
            }
        }
        assert!(Scale::log_ns(0, 0).at(f64::NAN).is_finite());
    }
}
