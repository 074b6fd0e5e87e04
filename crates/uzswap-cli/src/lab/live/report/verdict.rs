//! The first lines of a live study: which combination to use, its cost, and how sure that is.

use super::{LiveFindings, LiveReport};
use crate::lab::report::format::{counted, human_size};
use crate::lab::report::{Difference, ROUNDS_MIN};

/// The verdict, one sentence an element.
pub(super) fn sentences(report: &LiveReport) -> Vec<String> {
    let ended: Vec<&LiveFindings> =
        report.combinations.iter().filter(|findings| !findings.runs.is_empty()).collect();
    let Some(best) =
        ended.iter().copied().min_by(|a, b| a.mean_real_s().total_cmp(&b.mean_real_s()))
    else {
        return vec![format!(
            "No combination lives in {}: use a larger --limit.",
            human_size(report.settings.limit_bytes)
        )];
    };
    let others: Vec<&LiveFindings> =
        ended.into_iter().filter(|findings| findings.label != best.label).collect();
    let mut sentences = vec![advice(report, best)];
    sentences.extend(compared(best, &others));
    sentences.extend(missing(report));
    sentences
}

fn seconds(findings: &LiveFindings) -> Vec<f64> {
    findings.each(|run| run.real_s)
}

/// The fastest, against the command without a limit.
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

/// The others, as far as the runs show a difference.
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
            false => format!("no difference that {rounds} runs could show"),
        };
        parts.push(format!("{}: {why}", names.join(", ")));
    }
    (!parts.is_empty()).then(|| format!("{}.", parts.join("; ")))
}

/// Combinations that never ended well.
fn missing(report: &LiveReport) -> Option<String> {
    let failed = report.combinations.iter().filter(|findings| findings.failure.is_some());
    let names: Vec<&str> = failed.map(|findings| findings.label.as_str()).collect();
    (!names.is_empty()).then(|| format!("Failed, see below: {}.", names.join(", ")))
}
