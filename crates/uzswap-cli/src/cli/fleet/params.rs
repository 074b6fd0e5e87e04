//! `--params` of `uzswap fleet replay`: settings of the controller, and lists of them.

use super::super::args::{distinct, parse_time};

use super::parse_percent;
use uzswap_fleet::{Lengths, Parameters};

/// Values of each parameter. All their combinations are tried.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Params {
    threshold_percentile: Vec<u8>,
    warm_up_seconds: Vec<u64>,
    pub(super) slo_ppm: u64,
    pub(super) lengths: Lengths,
}

impl Params {
    /// Parses `threshold-percentile=90,98,warm-up=300s`: an item without a name is a further value.
    pub(super) fn parse(text: &str) -> Result<Params, String> {
        let Parameters { threshold_percentile, warm_up_seconds, slo_ppm, lengths } =
            Parameters::default();
        let (mut percentiles, mut warm_ups) = (Vec::new(), Vec::new());
        let (mut slos, mut compressors) = (Vec::new(), Vec::new());
        let mut name = "";
        for item in text.split(',') {
            let value = match item.split_once('=') {
                Some((of, value)) => {
                    name = of.trim();
                    value.trim()
                }
                None => item.trim(),
            };
            let said = |error: String| format!("{name}: {error}");
            match name {
                "threshold-percentile" => percentiles.push(parse_percentile(value).map_err(said)?),
                "warm-up" => warm_ups.push(parse_warm_up(value).map_err(said)?),
                "slo" => slos.push(parse_slo(value).map_err(said)?),
                "compressor" => {
                    let parsed: Result<Lengths, _> = value.parse();
                    compressors.push(parsed.map_err(|error| said(error.to_string()))?);
                }
                _ => {
                    return Err(format!(
                        "'{item}' is no NAME=VALUE; names are threshold-percentile, warm-up, slo \
                         and compressor"
                    ));
                }
            }
        }
        Ok(Params {
            threshold_percentile: several(&percentiles, threshold_percentile),
            warm_up_seconds: several(&warm_ups, warm_up_seconds),
            slo_ppm: one("slo", &slos, slo_ppm)?,
            lengths: one("compressor", &compressors, lengths)?,
        })
    }

    /// All combinations.
    pub(super) fn settings(&self) -> Vec<Parameters> {
        let with = |&threshold_percentile| {
            self.warm_up_seconds.iter().map(move |&warm_up_seconds| Parameters {
                threshold_percentile,
                warm_up_seconds,
                slo_ppm: self.slo_ppm,
                lengths: self.lengths,
            })
        };
        self.threshold_percentile.iter().flat_map(with).collect()
    }
}

fn several<T: Copy + PartialEq>(values: &[T], usual: T) -> Vec<T> {
    if values.is_empty() { vec![usual] } else { distinct(values) }
}

fn one<T: Copy>(name: &str, values: &[T], usual: T) -> Result<T, String> {
    match values {
        [] => Ok(usual),
        [value] => Ok(*value),
        _ => Err(format!("{name}: takes one value")),
    }
}

fn parse_percentile(text: &str) -> Result<u8, String> {
    let number = text.parse().ok().filter(|percentile| *percentile <= 100);
    number.ok_or_else(|| "expected a whole number of 0 to 100".to_owned())
}

/// A time of whole seconds, which may be 0.
fn parse_warm_up(text: &str) -> Result<u64, String> {
    if let Ok(0.0) = text.trim_end_matches(|c: char| c.is_ascii_alphabetic()).parse::<f64>() {
        return Ok(0);
    }
    let time = parse_time(text)?;
    let is_whole = time.subsec_nanos() == 0;
    is_whole.then_some(time.as_secs()).ok_or_else(|| "expected whole seconds".to_owned())
}

/// Percent of the working set a minute, in millionths of it.
fn parse_slo(text: &str) -> Result<u64, String> {
    let millionths = parse_percent(text).map(|percent| (percent * 10_000.0).round() as u64);
    millionths.ok_or_else(|| "expected a percentage of 0 to 100, such as 0.2%".to_owned())
}

#[cfg(test)]
mod tests {
    use super::super::replay::PARAMS;
    use super::*;
    use uzswap_fleet::SLO_PPM;

    #[test]
    fn lists_are_combined_and_what_is_not_named_is_usual() {
        let usual = Params::parse(PARAMS).unwrap();
        assert_eq!(usual.settings(), [Parameters::default()]);
        assert_eq!(Params::parse("slo=0.2%"), Ok(usual));
        let params = Params::parse("threshold-percentile=90, 98,90,warm-up=0,300s").unwrap();
        let pairs = params.settings();
        let pairs = pairs.iter().map(|it| (it.threshold_percentile, it.warm_up_seconds));
        assert_eq!(pairs.collect::<Vec<_>>(), [(90, 0), (90, 300), (98, 0), (98, 300)]);
        let params = Params::parse("compressor=zstd,slo=1%").unwrap();
        assert_eq!((params.lengths, params.slo_ppm), (Lengths::Zstd, 10_000));
    }

    #[test]
    fn values_have_units_and_bounds() {
        for (text, words) in [
            ("", "'' is no NAME=VALUE; names are threshold-percentile, warm-up"),
            ("90", "'90' is no NAME=VALUE"),
            ("percentile=90", "'percentile=90' is no NAME=VALUE"),
            ("threshold-percentile=101", "threshold-percentile: expected a whole number"),
            ("threshold-percentile=90,", "threshold-percentile: expected a whole number"),
            ("warm-up=5", "warm-up: expected a time with ms, s, m or h"),
            ("warm-up=100ms", "warm-up: expected whole seconds"),
            ("slo=101%", "slo: expected a percentage"),
            ("slo=1%,2%", "slo: takes one value"),
            ("compressor=gzip", "lzo-rle"),
        ] {
            let error = Params::parse(text).unwrap_err();
            assert!(error.contains(words), "{text}: {error}");
        }
        assert_eq!(parse_slo("0.2%"), Ok(SLO_PPM));
        assert!(parse_slo("-1").is_err() && parse_slo("x").is_err());
        assert_eq!((parse_warm_up("0s"), parse_warm_up("5m")), (Ok(0), Ok(300)));
    }
}
