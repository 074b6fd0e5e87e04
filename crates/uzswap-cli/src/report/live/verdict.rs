//! The first lines of a live study: which combination to use, its cost, and how sure that is.

use super::{LiveFindings, LiveReport};
use crate::human_size::human_size;
use crate::measure::live::LiveParts;
use crate::measure::recompression::{self, Timed};
use crate::report::format::counted;
use crate::report::{Difference, ROUNDS_MIN, mean};
use uzswap::zswap::LatencyCounts;

/// The verdict, one sentence an element.
pub(super) fn sentences(report: &LiveReport) -> Vec<String> {
    let ended: Vec<&LiveFindings> = report.ended().collect();
    let figures: Vec<_> =
        ended.iter().map(|findings| (seconds(findings), bytes_of_page(findings))).collect();
    let Some(best) = choice(&figures).map(|best| ended[best]) else {
        return vec![format!(
            "No combination lives in {}: use a larger --limit.",
            human_size(report.settings.limit_bytes)
        )];
    };
    let others: Vec<&LiveFindings> =
        ended.into_iter().filter(|findings| findings.label != best.label).collect();
    let mut sentences = vec![advice(report, best)];
    sentences.extend(compared(best, &others));
    sentences.extend(recompressed(best, &others));
    sentences.extend(missing(report));
    sentences
}

fn seconds(findings: &LiveFindings) -> Vec<f64> {
    findings.each(|run| run.real_s)
}

/// Bytes of the pool for each page in it; infinite where none was stored.
fn bytes_of_page(findings: &LiveFindings) -> f64 {
    match findings.pool_peak_pages {
        0 => f64::INFINITY,
        pages => findings.pool_peak_bytes as f64 / pages as f64,
    }
}

/// Chooses the densest of those that are as fast as the fastest, as far as the runs show. Few runs
/// show nothing: then the fastest. Each has seconds of its runs, and bytes of the pool for each
/// page; the place is that in the list.
fn choice(figures: &[(Vec<f64>, f64)]) -> Option<usize> {
    let by_time = |a: &(Vec<f64>, f64), b: &(Vec<f64>, f64)| mean(&a.0).total_cmp(&mean(&b.0));
    let (fastest, _) = figures.iter().min_by(|a, b| by_time(a, b))?;
    let is_equal = |seconds: &[f64]| match seconds.len() < ROUNDS_MIN {
        true => seconds == fastest,
        false => !Difference::of(seconds, fastest).is_some_and(|it| it.is_real()),
    };
    let equal = figures.iter().enumerate().filter(|(_, (seconds, _))| is_equal(seconds));
    let best = equal.min_by(|(_, a), (_, b)| a.1.total_cmp(&b.1).then_with(|| by_time(a, b)));
    best.map(|(place, _)| place)
}

/// The best, against the command without a limit.
fn advice(report: &LiveReport, best: &LiveFindings) -> String {
    let alone = report.warm_up.real_s;
    let (limit, peak) = (report.settings.limit_bytes, report.warm_up.peak_bytes);
    let mean = best.mean_real_s();
    format!(
        "Use {}: {:.2} times the run time without a limit ({mean:.2} s to {alone:.2} s), in {} of \
         {} ({:.0}%).",
        best.label,
        mean / alone.max(1e-9),
        human_size(limit),
        human_size(peak),
        limit as f64 / peak.max(1) as f64 * 100.0
    )
}

/// The others, as far as the runs show a difference of time, or their pools are larger.
fn compared(best: &LiveFindings, others: &[&LiveFindings]) -> Option<String> {
    let difference = |other: &LiveFindings| Difference::of(&seconds(other), &seconds(best));
    let is_real = |other: &&&LiveFindings| difference(other).is_some_and(|it| it.is_real());
    let (slower, equal): (Vec<&LiveFindings>, Vec<&LiveFindings>) =
        others.iter().copied().partition(|other| is_real(&other));
    let mut parts: Vec<String> = slower
        .iter()
        .filter_map(|other| {
            let it = difference(other)?;
            let percent = it.mean / best.mean_real_s().max(1e-9) * 100.0;
            let (low, high) = (it.low?, it.high?);
            Some(format!("{} takes {percent:+.1}% ({low:+.2} to {high:+.2} s)", other.label))
        })
        .collect();
    if !equal.is_empty() {
        let names: Vec<&str> = equal.iter().map(|other| other.label.as_str()).collect();
        let rounds = best.runs.len();
        let why = match rounds < ROUNDS_MIN {
            true => format!("{} cannot show a difference", counted(rounds, "run")),
            false => format!("no difference of time that {rounds} runs could show"),
        };
        let are_larger = equal.iter().all(|other| bytes_of_page(other) > bytes_of_page(best));
        let why = if are_larger { why + ", and larger pools" } else { why };
        parts.push(format!("{}: {why}", names.join(", ")));
    }
    (!parts.is_empty()).then(|| format!("{}.", parts.join("; ")))
}

/// Whether recompression is of use, where the allocator of the best has several compressors.
fn recompressed(best: &LiveFindings, others: &[&LiveFindings]) -> Option<String> {
    let parts = |findings: &LiveFindings| match findings.parts {
        LiveParts::Uzswap { zpool, compressor, .. } => Some((zpool, compressor.to_string())),
        LiveParts::Kernel { .. } => None,
    };
    let own = parts(best)?.0;
    let named = |findings| {
        let (_, compressor) = parts(findings).filter(|(zpool, _)| *zpool == own)?;
        Some((compressor, findings))
    };
    let all = [best].into_iter().chain(others.iter().copied());
    let all: Vec<(String, &LiveFindings)> = all.filter_map(named).collect();
    let us = |counts: &LatencyCounts| counts.percentile_ns(50.0) as f64 / 1e3;
    let timed: Vec<Timed<'_>> = all
        .iter()
        .map(|(compressor, findings)| Timed {
            compressor,
            bytes: bytes_of_page(findings),
            store_us: us(&findings.store_ns),
            load_us: us(&findings.load_ns),
        })
        .collect();
    let runs = || all.iter().flat_map(|(_, findings)| &findings.runs);
    let stored: u64 = runs().map(|run| run.stored_pages).sum();
    let loaded: u64 = runs().map(|run| run.loaded_pages).sum();
    let returned = (stored > 0).then(|| loaded as f64 / stored as f64 * 100.0);
    recompression::answer(&timed, returned)
}

/// Combinations that never ended well.
fn missing(report: &LiveReport) -> Option<String> {
    let failed = report.combinations.iter().filter(|findings| findings.failure.is_some());
    let names: Vec<&str> = failed.map(|findings| findings.label.as_str()).collect();
    (!names.is_empty()).then(|| format!("Failed, see below: {}.", names.join(", ")))
}

#[cfg(test)]
mod tests {
    #[test]
    fn of_equal_times_the_densest_is_chosen() {
        let (fast, noisy, slow) = ([1.0, 1.1, 0.9], [1.0, 1.4, 0.8], [2.0, 2.1, 1.9]);
        let choice = |figures: &[(&[f64], f64)]| {
            let figures: Vec<_> = figures.iter().map(|(s, size)| (s.to_vec(), *size)).collect();
            super::choice(&figures)
        };
        assert_eq!(choice(&[]), None);
        assert_eq!(choice(&[(&fast, 2000.0), (&noisy, 1000.0), (&slow, 500.0)]), Some(1));
        assert_eq!(choice(&[(&noisy, 2000.0), (&fast, 1000.0)]), Some(1));
        assert_eq!(choice(&[(&slow, 500.0), (&fast, 2000.0)]), Some(1));
        // Where nothing was stored, or the pools are the same, the fastest; so with too few runs.
        assert_eq!(choice(&[(&noisy, f64::INFINITY), (&fast, f64::INFINITY)]), Some(1));
        assert_eq!(choice(&[(&noisy, 1000.0), (&fast, 1000.0)]), Some(1));
        assert_eq!(choice(&[(&noisy[..2], 1000.0), (&fast[..2], 2000.0)]), Some(1));
    }
}
