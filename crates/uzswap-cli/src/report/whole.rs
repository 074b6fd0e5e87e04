//! Figures of a sample, scaled to all pages.

use serde::{Deserialize, Serialize};

use super::format::{Screen, fitted, mib, section, table, thousands, wrapped};
use super::{Report, label};
use crate::corpus::sample::{Estimate, Sample, UnitSums};
use crate::measure::replay::RunResult;
use uzswap::page::PAGE_SIZE;

/// Totals of all pages, of which a sample was replayed.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Whole {
    /// Host pages of the pool, in bytes: its growth unit by unit, and part-filled zspages once.
    pub pool_bytes: Estimate,
    /// Sum of the compressed lengths.
    pub compressed_bytes: Estimate,
    /// Pages kept as one word.
    pub same_filled_pages: Estimate,
    /// Pages that the store refuses.
    pub rejected_pages: Estimate,
}

impl Whole {
    /// Of one run; `None` where the pages were all, and where a limit or a trace decides over them.
    pub(super) fn of(run: &RunResult, sample: Option<&Sample>) -> Option<Whole> {
        let sample = sample.filter(|_| !run.unit_sums.is_empty())?;
        let total = |of: fn(&UnitSums) -> u64, page_max| {
            let units: Vec<(u64, u64)> =
                run.unit_sums.iter().map(|unit| (unit.pages, of(unit))).collect();
            Estimate::of_total(&units, sample.of_pages, page_max)
        };
        const PAGE: u64 = PAGE_SIZE as u64;
        Some(Whole {
            // A stored page takes a host page at most. Part-filled zspages do not grow with the
            // number of pages.
            pool_bytes: total(|unit| unit.pool_bytes, 2 * PAGE).plus(run.open_bytes),
            compressed_bytes: total(|unit| unit.compressed_bytes, PAGE),
            same_filled_pages: total(|unit| unit.same_filled_pages, 1),
            rejected_pages: total(|unit| unit.rejected_pages, 1),
        })
    }
}

/// The sample in words: `262,144 of 3,145,728 pages (8.3 %), runs of 16, seed 1`.
pub fn sample_in_words(sample: &Sample) -> String {
    let percent = 100.0 * sample.pages as f64 / sample.of_pages.max(1) as f64;
    let decimals = if percent < 1.0 { 3 } else { 1 };
    format!(
        "{} of {} pages ({percent:.decimals$} %), runs of {}, seed {}",
        thousands(sample.pages),
        thousands(sample.of_pages),
        sample.unit_pages,
        sample.seed
    )
}

/// The table of all combinations; empty where the pages were all.
pub(super) fn section_of(report: &Report, screen: Screen) -> String {
    let Some(sample) = &report.corpus.sample else { return String::new() };
    let head = ["LABEL", "POOL", "+-", "COMPRESSED", "SAME-FILLED", "+-", "REFUSED", "+-"];
    let mut table = table(&head);
    let scaled = report.combinations.iter().filter_map(|found| Some((found, found.whole?)));
    let mut is_empty = true;
    for (findings, whole) in scaled {
        is_empty = false;
        let (pages, bytes) = (sample.of_pages, sample.of_pages * PAGE_SIZE as u64);
        table.add_row([
            label(findings),
            mib(whole.pool_bytes.estimate),
            reach(whole.pool_bytes, bytes),
            mib(whole.compressed_bytes.estimate),
            thousands(whole.same_filled_pages.estimate),
            reach(whole.same_filled_pages, pages),
            thousands(whole.rejected_pages.estimate),
            reach(whole.rejected_pages, pages),
        ]);
    }
    if is_empty {
        return wrapped(
            "",
            "",
            "The pages are a sample, and figures of pools with limits are not scaled to all pages.",
        ) + "\n";
    }
    let caption = format!("of which {} units were drawn; 95 %", thousands(sample.units));
    let table = fitted(table, &[5, 6, 3], screen);
    let mut text = section("SCALED TO ALL PAGES", &caption, &table);
    text += &wrapped(
        "",
        "",
        "+-: how far the figure may be off with 95 % confidence, in percent; that of COMPRESSED is \
         in --json. <: the sample has none, and so much of all pages at most. (a) to (d) and the \
         summary are of the sample.",
    );
    text + "\n"
}

/// The longer side of an interval in percent. For a figure of zero, the most there may be, in
/// percent of all there is.
fn reach(figure: Estimate, all: u64) -> String {
    match figure.reach_percent() {
        Some(percent) => format!("{percent:.1}%"),
        None => format!("<{:.1}%", 100.0 * figure.high as f64 / all.max(1) as f64),
    }
}
