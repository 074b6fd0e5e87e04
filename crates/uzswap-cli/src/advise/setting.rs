//! Settings of a tool, with their effect, their cost, and how sure that is.

use serde::{Deserialize, Serialize};

use super::outlook::LimitRange;
use super::trial::Trial;
use super::{Confidence, Measured};
use crate::human_size::human_size;
use crate::report::format::thousands;
use uzswap::by_name::by_name;
use uzswap::named_enum::named;

/// Advice for so many times the measured pages is a guess.
const UNSEEN_MANY: u64 = 10;

/// The tools that there is advice for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tool {
    /// `uzswap run`, which needs neither swap nor settings of the kernel.
    Run,
    /// The kernel's zram.
    Zram,
    /// The kernel's zswap.
    Zswap,
}

named!(Tool, "tool", Run => "run", Zram => "zram", Zswap => "zswap");
by_name!(Tool);

/// Settings of one tool, and their worth.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Advice {
    /// The tool.
    pub tool: Tool,
    /// The compressor that the rule chose among those that the tool has.
    pub compressor: String,
    /// Bytes of the pages over the memory that they take with it.
    pub ratio: f64,
    /// Forms of the settings, each ready to paste.
    pub settings: Vec<Setting>,
    /// Bytes of the pages that the settings are about, uncompressed.
    pub pages_bytes: u64,
    /// Bytes of real memory that they take with the settings.
    pub takes_bytes: u64,
    /// The difference.
    pub saves_bytes: u64,
    /// The same in percent of `pages_bytes`.
    pub saves_percent: f64,
    /// The condition under which they save that, in words.
    pub assumes: String,
    /// Percent of a processor for each 1,000 pages a second that leave memory and come back.
    pub cpu_percent_per_1000_pages: f64,
    /// The program's time over its time without, at least; absent where nothing shows it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub least_time_factor: Option<f64>,
    /// Of `run`: the limits that other runs of the program may lead to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit_range: Option<LimitRange>,
    /// Of `run`: the limit was tried.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trial: Option<Trial>,
    /// How sure the figures are.
    pub confidence: Confidence,
    /// The reason, in words.
    pub confidence_because: String,
    /// The measurement behind it, in words.
    pub because: String,
}

/// One form of settings.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Setting {
    /// The place for it: a file's name, or a shell.
    pub place: String,
    /// Its lines.
    pub lines: Vec<String>,
}

impl Setting {
    /// Lines for a place.
    pub(super) fn new(place: &str, lines: Vec<String>) -> Setting {
        Setting { place: place.to_owned(), lines }
    }
}

impl Advice {
    /// The setting in one line.
    pub(super) fn action(&self) -> String {
        match (self.tool, &self.settings[..]) {
            (Tool::Run, [setting, ..]) => setting.lines.join("; "),
            _ => format!("{} with {}, by the lines below", self.tool, self.compressor),
        }
    }

    /// The saving and its condition.
    pub(super) fn effect(&self) -> String {
        format!(
            "Effect: {} instead of {} (saves {}, {:.0}%), {}.",
            human_size(self.takes_bytes),
            human_size(self.pages_bytes),
            human_size(self.saves_bytes),
            self.saves_percent,
            self.assumes
        )
    }

    /// The price, and how sure all of it is.
    pub(super) fn cost(&self) -> String {
        format!(
            "Cost: {:.1}% of a CPU for 1,000 pages of 4 KiB a second, out and back. \
             Confidence: {} ({}).",
            self.cpu_percent_per_1000_pages, self.confidence, self.confidence_because
        )
    }
}

/// Settings of so many pages with a compressor, of which the caller knows the rest.
pub(super) fn advice(
    tool: Tool,
    best: &Measured,
    settings: Vec<Setting>,
    (pages_bytes, takes_bytes): (u64, u64),
    assumes: String,
) -> Advice {
    let saves_bytes = pages_bytes.saturating_sub(takes_bytes);
    let (low, high) = best.ratio_interval();
    let (confidence, confidence_because) = confidence(tool, best, pages_bytes);
    Advice {
        tool,
        compressor: best.compressor.clone(),
        ratio: best.ratio(),
        settings,
        pages_bytes,
        takes_bytes,
        saves_bytes,
        saves_percent: saves_bytes as f64 / pages_bytes.max(1) as f64 * 100.0,
        assumes,
        // us a page are 0.1 % of a processor for 1,000 pages a second.
        cpu_percent_per_1000_pages: best.us_per_page() / 10.0,
        least_time_factor: None,
        limit_range: None,
        trial: None,
        confidence,
        confidence_because,
        because: format!(
            "{} measured pages compress {:.2} to 1 ({low:.2} to {high:.2}) with {}; a store takes \
             {:.1} us, a load {:.1} us",
            thousands(best.pages),
            best.ratio(),
            best.compressor,
            best.store_us,
            best.load_us
        ),
    }
}

/// How sure a tool's figures are, and why.
fn confidence(tool: Tool, best: &Measured, pages_bytes: u64) -> (Confidence, String) {
    if pages_bytes / best.of_bytes.max(1) >= UNSEEN_MANY {
        let words = format!(
            "for {} of pages that may come, {} are there to measure",
            human_size(pages_bytes),
            human_size(best.of_bytes)
        );
        return (Confidence::Low, words);
    }
    match (tool, best.confidence()) {
        // Sizes are measured; of the time in less memory, the least is known at best.
        (Tool::Run, (Confidence::Medium | Confidence::High, _)) => {
            let why = "only a run shows how fast the program is then: advise --try";
            (Confidence::Medium, why.to_owned())
        }
        (_, measured) => measured,
    }
}
