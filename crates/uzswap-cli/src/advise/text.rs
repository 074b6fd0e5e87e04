//! The advice for a terminal: the answer, the settings, the measurements.

use super::{Advice, AdviceReport, Tool};
use crate::human_size::human_size;
use crate::report::format::{Screen, fitted, in_brief, section, table, thousands, wrapped};
use crate::report::opening;

pub(super) fn page(report: &AdviceReport, screen: Screen) -> String {
    let recommendation = &report.recommendation;
    let mut page = opening(&recommendation.verdict, &recommendation.warnings);
    for (at, advice) in recommendation.advice.iter().enumerate() {
        page += &of_tool(advice, at > 0);
    }
    page += &measurements(report, screen);
    for note in &report.corpus.notes {
        page += &wrapped("note    ", "        ", note);
    }
    page
}

/// The settings of a tool. The first tool's effect and cost are in the verdict.
fn of_tool(advice: &Advice, is_alternative: bool) -> String {
    let title = match advice.tool {
        Tool::Run => "uzswap run: this program in less memory",
        Tool::Zram => "zram: swap in memory, for all programs",
        Tool::Zswap => "zswap: in front of the swap area, for all programs",
    };
    let mut text = match is_alternative {
        true => format!("Or, not in addition, {title}\n"),
        false => format!("{title}\n"),
    };
    for (at, setting) in advice.settings.iter().enumerate() {
        let or = if at > 0 { "or " } else { "" };
        text += &format!("  # {or}{}\n", setting.place);
        for line in &setting.lines {
            text += &format!("  {line}\n");
        }
    }
    if is_alternative {
        text += &wrapped("  ", "  ", &advice.effect());
        text += &wrapped("  ", "  ", &advice.cost());
    }
    text + &wrapped("  ", "  ", &format!("Because {}.", advice.because)) + "\n"
}

fn measurements(report: &AdviceReport, screen: Screen) -> String {
    let mut table =
        table(&["ALLOCATOR", "COMPRESSOR", "RATIO", "95% SURE", "MEMORY", "STORE us", "LOAD us"]);
    for measured in &report.measured {
        let (low, high) = measured.ratio_interval();
        table.add_row([
            measured.zpool.to_string(),
            measured.compressor.clone(),
            format!("{:.2}", measured.ratio()),
            format!("{low:.2}-{high:.2}"),
            human_size(measured.bytes.estimate),
            format!("{:.1}", measured.store_us),
            format!("{:.1}", measured.load_us),
        ]);
    }
    let caption = format!(
        "{}, {}; {} pages compressed as uzswap run does, and as the kernel does (zsmalloc); \
         chosen: {}",
        in_brief(&report.target.origin),
        human_size(report.target.bytes),
        thousands(report.corpus.pages),
        report.goal
    );
    section("MEASURED", &caption, &fitted(table, &[3], screen))
}
