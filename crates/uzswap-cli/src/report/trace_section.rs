//! Sections of the report on replays of a trace.

use serde::{Deserialize, Serialize};

use super::format::{Screen, fact, fitted, mib, section, share, table, thousands};
use super::{CorpusInfo, Findings, Report, label};
use crate::measure::replay::{RunResult, TraceCounts, Traced};
use crate::measure::stats::mean;
use uzswap::page::PAGE_SIZE;

/// The events of one combination. Counts are the same in each run; lists have an element a run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct TraceFindings {
    /// The counts.
    #[serde(flatten)]
    pub counts: TraceCounts,
    /// Seconds in stores, run by run.
    pub store_s: Vec<f64>,
    /// Seconds in loads, run by run.
    pub load_s: Vec<f64>,
    /// Seconds in frees, run by run.
    pub free_s: Vec<f64>,
}

impl TraceFindings {
    /// Of the runs, where they replayed a trace.
    pub(super) fn of(runs: &[RunResult]) -> Option<TraceFindings> {
        let all: Vec<Traced> = runs.iter().filter_map(|run| run.traced).collect();
        let counts = all.first()?.counts;
        let each = |of: fn(&Traced) -> f64| all.iter().map(of).collect();
        Some(TraceFindings {
            counts,
            store_s: each(|run| run.store_s),
            load_s: each(|run| run.load_s),
            free_s: each(|run| run.free_s),
        })
    }
}

/// Contents of the trace, for the header.
pub(super) fn of(corpus: &CorpusInfo) -> String {
    let Some(trace) = &corpus.trace else { return String::new() };
    let totals = trace.totals;
    let mut text = format!(
        "{} loads, {} frees; {} distinct contents ({}); took {:.1} s as it was recorded",
        thousands(totals.loads),
        thousands(totals.frees),
        thousands(totals.contents),
        mib(totals.contents * PAGE_SIZE as u64),
        totals.ns as f64 / 1e9
    );
    if !trace.complete {
        text += &format!(
            "; CUT OFF: the recording did not end as it should; this is what it has up to byte {}",
            trace.bytes
        );
    }
    fact("", &text)
}

/// Which verb takes the time.
pub(super) fn verbs(report: &Report, screen: Screen) -> String {
    let mut table =
        table(&["MEAN real", "STORES", "s", "REFUSED", "LOADS", "s", "LEFT OUT", "FREES", "s"]);
    for findings in &report.combinations {
        let Some(trace) = &findings.trace else { continue };
        let mean = |seconds: &[f64]| format!("{:.3}", mean(seconds));
        table.add_row([
            label(findings),
            thousands(trace.counts.stores),
            mean(&trace.store_s),
            thousands(trace.counts.refused_stores),
            thousands(trace.counts.loads),
            mean(&trace.load_s),
            thousands(trace.counts.missed_loads),
            thousands(trace.counts.frees),
            mean(&trace.free_s),
        ]);
    }
    format!("{}\n\n", fitted(table, &[8, 7, 3], screen))
}

/// (d): what is left at the end.
pub(super) fn at_end(report: &Report, screen: Screen) -> String {
    let mut table = table(&["LABEL", "PAGES", "POOL", "of peak", "COMPACTED", "of peak"]);
    for findings in &report.combinations {
        let Some(trace) = &findings.trace else { continue };
        let figures = &findings.figures;
        let mut row = vec![label(findings), thousands(trace.counts.pages_left)];
        for bytes in [figures.pool_after_free_bytes, figures.pool_after_compact_bytes] {
            let percent = bytes as f64 / figures.pool_total_size.max(1) as f64 * 100.0;
            row.extend([thousands(bytes), format!("{percent:.1}%")]);
        }
        table.add_row(row);
    }
    let table = fitted(table, &[1], screen);
    section("(d) POOL AT THE END", "after the last event, then compacted; bytes", &table)
}

/// What the refused stores mean.
pub(super) fn refusals(all: &[&Findings], compressor: &str) -> Option<String> {
    let refusing: Vec<String> = all
        .iter()
        .filter_map(|findings| Some((findings, findings.trace.as_ref()?)))
        .filter(|(_, trace)| trace.counts.refused_stores > 0)
        .map(|(findings, trace)| {
            format!(
                "{} {} of {} stores ({}), and so {} loads were left out",
                findings.parts.zpool,
                thousands(trace.counts.refused_stores),
                thousands(trace.counts.stores),
                share(trace.counts.refused_stores, trace.counts.stores),
                thousands(trace.counts.missed_loads),
            )
        })
        .collect();
    (!refusing.is_empty()).then(|| {
        format!(
            "Refused with {compressor}: {}. Such pages would have stayed in memory: `uzswap run` \
             keeps them as they are, as --incompressible store-as-is does here. ALL IN counts 4096 \
             bytes for each that was missing when the pool was largest.",
            refusing.join("; ")
        )
    })
}
