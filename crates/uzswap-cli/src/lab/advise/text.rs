//! The advice for a terminal: the answer, the settings, the measurements.

use super::{Advice, AdviceReport, Tool};
use crate::lab::report::format::{Screen, fitted, human_size, section, table, thousands, wrapped};
use crate::lab::report::opening;

pub(super) fn page(report: &AdviceReport, screen: Screen) -> String {
    let recommendation = &report.recommendation;
    let mut page = opening(&recommendation.verdict, &recommendation.warnings);
    for advice in &recommendation.advice {
        page += &of_tool(advice);
    }
    page += &measurements(report, screen);
    for note in &report.corpus.notes {
        page += &wrapped("note    ", "        ", note);
    }
    page
}

fn of_tool(advice: &Advice) -> String {
    let title = match advice.tool {
        Tool::Run => "uzswap run: this program in less memory",
        Tool::Zram => "zram: the whole machine, swap in memory",
        Tool::Zswap => "zswap: the whole machine, in front of its swap area",
    };
    let mut text = format!("{title}\n");
    for setting in &advice.settings {
        text += &format!("  # {}\n", setting.place);
        for line in &setting.lines {
            text += &format!("  {line}\n");
        }
    }
    text += &wrapped(
        "  ",
        "  ",
        &format!(
            "Saves {} ({:.0}%) of real memory once these pages are compressed. 1,000 pages a \
             second out and back take {:.1}% of a CPU. Confidence: {}.",
            human_size(advice.saves_bytes),
            advice.saves_percent,
            advice.cpu_percent_per_1000_pages,
            advice.confidence.word(),
        ),
    );
    text + &wrapped("  ", "  ", &format!("Because {}.", advice.because)) + "\n"
}

fn measurements(report: &AdviceReport, screen: Screen) -> String {
    let mut table = table(&["COMPRESSOR", "RATIO", "MEMORY", "95%", "STORE us", "LOAD us"]);
    for measured in &report.measured {
        table.add_row([
            measured.compressor.clone(),
            format!("{:.2}", measured.ratio()),
            human_size(measured.bytes.estimate),
            format!("+-{:.1}%", measured.reach_percent()),
            format!("{:.1}", measured.store_us),
            format!("{:.1}", measured.load_us),
        ]);
    }
    let caption = format!(
        "{}, {}; {} pages compressed with zsmalloc; goal: {}",
        report.target.origin,
        human_size(report.target.bytes),
        thousands(report.corpus.pages),
        report.goal
    );
    section("MEASURED", &caption, &fitted(table, &[3], screen))
}
