//! Advice: settings for a program or a machine, from measurements of its own pages.
//!
//! ```text
//!  pages (a sample) --> replay as run and the kernel compress --> Measured
//!  accessed bits -----> windows ---> WorkingSet --.                   |
//!  /proc, /sys -------> SwapState ----------> recommend <-------------'  --> text, JSON
//! ```

mod for_run;
pub mod machine;
mod outlook;
mod recommend;
mod setting;
mod text;
mod trial;

use serde::{Deserialize, Serialize};

pub use outlook::{LimitRange, Outlook, WorkingSet};
pub use recommend::{Recommendation, recommend};
pub use setting::{Advice, Setting, Tool};
pub use trial::Trial;

use crate::corpus::observed::Unmanaged;
use crate::corpus::sample::{Estimate, Sample};
use crate::corpus::working_set::Window;
use crate::report::choice::{Candidate, GOAL};
use crate::report::format::thousands;
use crate::report::{CorpusInfo, Envelope, Findings, Report, Schema, Screen, Whole};
use machine::SwapState;
use uzswap::by_name::by_name;
use uzswap::named_enum::named;
use uzswap::page::PAGE_SIZE;
use uzswap::zpool::ZpoolKind;
use uzswap_pager::Uncounted;

/// Pages from which on zsmalloc's classes are mostly filled.
const PAGES_MANY: u64 = 10_000;
/// Pages below which a figure is little more than a guess.
const PAGES_FEW: u64 = 2_000;
/// Widest interval of a figure to rely on, to either side.
const NARROW_PERCENT: f64 = 5.0;

/// How sure a figure is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Confidence {
    /// Fewer than 2,000 pages.
    Low,
    /// Fewer than 10,000 pages, an interval wider than 5 % to a side, or a figure that only a run
    /// shows.
    Medium,
    /// Measured.
    High,
}

named!(Confidence, "confidence", Low => "low", Medium => "medium", High => "high");
by_name!(Confidence);

/// A runtime with a heap limit of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Runtime {
    /// V8: node, Chromium.
    V8,
    /// A Java virtual machine.
    Jvm,
}

impl Runtime {
    /// By a program's name or the path of one of its mappings.
    pub fn of(name: &str) -> Option<Runtime> {
        let name = name.rsplit('/').next().unwrap_or(name);
        match name {
            "node" | "nodejs" | "chrome" | "chromium" | "electron" => Some(Runtime::V8),
            "java" => Some(Runtime::Jvm),
            _ if name.starts_with("libjvm.so") => Some(Runtime::Jvm),
            _ if name.starts_with("libnode.so") => Some(Runtime::V8),
            _ => None,
        }
    }

    fn warning(self) -> &'static str {
        match self {
            Runtime::V8 => {
                "V8 has a heap limit of its own: \"JavaScript heap out of memory\" is no lack of \
                 memory. More memory does not help then; node --max-old-space-size=MIB does."
            }
            Runtime::Jvm => {
                "The Java virtual machine has a heap limit of its own: OutOfMemoryError is no lack \
                 of memory. More memory does not help then; java -Xmx does."
            }
        }
    }
}

/// The pages that advice is for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Target {
    /// Their source, in words.
    pub origin: String,
    /// The command line, as a shell takes it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    /// All of the pages, in bytes: of a command, at its peak.
    pub bytes: u64,
    /// Whether they are of all programs of the machine.
    pub is_machine: bool,
    /// A runtime that was recognised.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub runtime: Option<Runtime>,
    /// Memory that `run` neither counts nor evicts.
    pub uncounted: Uncounted,
    /// Programs that `run` cannot manage.
    pub unmanaged: Vec<Unmanaged>,
}

impl Target {
    /// Bytes of programs that `run` cannot manage.
    fn unmanaged_bytes(&self) -> u64 {
        self.unmanaged.iter().map(|it| it.bytes).sum()
    }
}

/// One compressor on the measured pages, with the allocator of a tool.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// The compressor, and its filter: none in the kernel.
    pub compressor: String,
    /// The allocator: the kernel's zsmalloc, or that of `run`.
    pub zpool: ZpoolKind,
    /// Pages that were compressed.
    pub pages: u64,
    /// Memory that all pages of the target take then: pool, metadata, refused pages.
    pub bytes: Estimate,
    /// All pages of the target, in bytes.
    pub of_bytes: u64,
    /// The median store, in microseconds.
    pub store_us: f64,
    /// The median load.
    pub load_us: f64,
}

impl Candidate for &Measured {
    fn bytes(&self) -> u64 {
        self.bytes.estimate
    }

    fn us_per_page(&self) -> f64 {
        Measured::us_per_page(self)
    }
}

impl Measured {
    /// Allocator and compressor.
    pub fn name(&self) -> String {
        format!("{} {}", self.zpool, self.compressor)
    }

    /// Bytes of the pages over the memory that they take.
    pub fn ratio(&self) -> f64 {
        ratio(self.of_bytes, self.bytes.estimate)
    }

    /// The ends of the ratio's 95 % interval.
    fn ratio_interval(&self) -> (f64, f64) {
        (ratio(self.of_bytes, self.bytes.high), ratio(self.of_bytes, self.bytes.low))
    }

    /// The name of the compressor without its filter.
    fn plain_compressor(&self) -> &str {
        self.compressor.split('~').next().unwrap_or_default()
    }

    /// Whether the kernel keeps pages so.
    fn is_of_kernel(&self) -> bool {
        self.zpool == ZpoolKind::Zsmalloc
    }

    /// One store and one load, in microseconds.
    fn us_per_page(&self) -> f64 {
        self.store_us + self.load_us
    }

    fn confidence(&self) -> (Confidence, String) {
        let pages = format!("{} pages were measured", thousands(self.pages));
        let reach = self.bytes.reach_percent().unwrap_or(0.0);
        match self.pages {
            0..PAGES_FEW => (Confidence::Low, format!("only {pages}")),
            PAGES_FEW..PAGES_MANY => (Confidence::Medium, pages),
            _ if reach > NARROW_PERCENT => {
                (Confidence::Medium, format!("the sample may be {reach:.0}% off"))
            }
            _ => (Confidence::High, pages),
        }
    }

    /// Of a combination on the sample, or on all pages that were captured. The target may have had
    /// more at its peak.
    fn of(findings: &Findings, target: &Target, sample: Option<&Sample>) -> Measured {
        const PAGE: u64 = PAGE_SIZE as u64;
        let pages = findings.figures.stored_pages + findings.rejected_pages;
        let all_pages = sample.map_or(pages, |sample| sample.of_pages);
        let share = |of: u64, part: u64| of as f64 / part.max(1) as f64;
        let (scale, growth) = (share(all_pages, pages), share(target.bytes, all_pages * PAGE));
        let metadata = findings.figures.metadata_bytes() as f64 * scale;
        // Part-filled zspages do not grow with the pages, so that a small pool is not to scale.
        let bytes = |of: fn(Estimate) -> u64| {
            let captured = match findings.whole {
                Some(Whole { pool_bytes, rejected_pages, .. }) => {
                    (of(pool_bytes) + rejected_pages.estimate * PAGE) as f64 + metadata
                }
                None => findings.bytes_with_rejected as f64 * scale,
            };
            (captured * growth) as u64
        };
        let us = |ns: u64| ns as f64 / 1e3;
        Measured {
            compressor: findings.compressor.clone(),
            zpool: findings.parts.zpool,
            pages,
            bytes: Estimate {
                estimate: bytes(|it| it.estimate),
                low: bytes(|it| it.low),
                high: bytes(|it| it.high),
            },
            of_bytes: target.bytes,
            store_us: us(findings.store_ns.p50),
            load_us: us(findings.load_ns.p50),
        }
    }
}

fn ratio(of_bytes: u64, bytes: u64) -> f64 {
    of_bytes as f64 / bytes.max(1) as f64
}

/// The whole answer. Its JSON form is what `--json` prints.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct AdviceReport {
    /// The fields that every document begins with.
    #[serde(flatten)]
    pub envelope: Envelope,
    /// The pages that it is for.
    pub target: Target,
    /// The pages that were measured.
    pub corpus: CorpusInfo,
    /// The rule by which one compressor was chosen.
    pub goal: String,
    /// One element a compressor of each tool.
    pub measured: Vec<Measured>,
    /// The memory that the program touches; absent where that was not sampled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub working_set: Option<WorkingSet>,
    /// The machine's memory and swap.
    pub swap: SwapState,
    /// The advice.
    #[serde(flatten)]
    pub recommendation: Recommendation,
}

impl AdviceReport {
    /// The advice from a comparison of compressors on the target's pages, and from the windows in
    /// which it was seen to touch them.
    pub fn new(
        target: Target,
        report: Report,
        windows: Vec<Window>,
        swap: SwapState,
    ) -> AdviceReport {
        let of =
            |findings: &Findings| Measured::of(findings, &target, report.corpus.sample.as_ref());
        let measured: Vec<Measured> = report.combinations.iter().map(of).collect();
        let working_set = WorkingSet::of(windows);
        let recommendation = recommend(&target, &measured, working_set.as_ref(), &swap);
        AdviceReport {
            envelope: Envelope::new(Schema::Advise),
            target,
            corpus: report.corpus,
            goal: GOAL.to_owned(),
            measured,
            working_set,
            swap,
            recommendation,
        }
    }

    /// The limit that is advised for `run`, in bytes, and the compressor.
    pub fn limit(&self) -> Option<(u64, &str)> {
        let mut all = self.recommendation.advice.iter();
        let run = all.find(|it| it.tool == Tool::Run)?;
        Some((run.takes_bytes, &run.compressor))
    }

    /// The same report with the outcome of a trial of that limit.
    #[must_use]
    pub fn tried(self, trial: Trial) -> AdviceReport {
        AdviceReport { recommendation: self.recommendation.tried(trial), ..self }
    }

    /// For a terminal.
    pub fn to_text(&self, screen: Screen) -> String {
        text::page(self, screen)
    }
}
