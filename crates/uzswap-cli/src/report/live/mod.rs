//! The findings of a live study: for people, and as JSON or CSV.

mod text;
mod verdict;

use serde::{Deserialize, Serialize};

use crate::measure::live::{
    Failure, LiveCommand, LiveExperiment, LiveLimit, LiveResults, SmallestLimit,
};
use crate::measure::live::{LiveParts, LiveRun};
use crate::report::cell::cell;
use crate::report::{Conclusions, Difference, Envelope, Schema, Screen, mean};
use uzswap::page::PAGE_SIZE;
use uzswap::zswap::LatencyCounts;
use uzswap_pager::RunSample;

/// The columns of the CSV that are fields of a run.
const COLUMNS: &str = "real_s,user_s,sys_s,engine_cpu_s,peak_bytes,resident_peak_bytes,\
     pool_peak_bytes,pool_peak_pages,metadata_peak_bytes,stored_pages,loaded_pages,refused_pages,\
     freed_pages";

/// A study's findings. Its JSON form is what `--json` prints.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct LiveReport {
    /// The fields that every document begins with.
    #[serde(flatten)]
    pub envelope: Envelope,
    /// What was run.
    pub program: LiveCommand,
    /// How.
    pub settings: LiveSettings,
    /// The run without a limit.
    pub warm_up: LiveRun,
    /// One element a combination of parts, in the order asked for.
    pub combinations: Vec<LiveFindings>,
    /// What it comes to, in words.
    #[serde(flatten)]
    pub conclusions: Conclusions,
}

/// How a study was made.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct LiveSettings {
    /// As it was asked for.
    pub limit: LiveLimit,
    /// In bytes.
    pub limit_bytes: u64,
    /// Rounds, in each of which each combination had a run.
    pub rounds: usize,
}

/// What one combination came to.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct LiveFindings {
    /// Its name.
    pub label: String,
    /// Its parts.
    #[serde(flatten)]
    pub parts: LiveParts,
    /// The name of the combination that differences refer to.
    pub base: String,
    /// Seconds against those of the base, where there is one; `null` for the base itself.
    pub differences: Option<Differences>,
    /// The largest pool of a run, in bytes: the median of the runs. As all figures below, 0 where
    /// no run ended well.
    pub pool_peak_bytes: u64,
    /// Pages that it held then, in the same run.
    pub pool_peak_pages: u64,
    /// The pool against the base's, in percent, from bytes.
    pub pool_percent_of_base: Option<f64>,
    /// Stores of all runs together, in nanoseconds, one in 16 of them.
    pub store_ns: LatencyCounts,
    /// Loads of all runs together, also one in 16.
    pub load_ns: LatencyCounts,
    /// Faults as the programs saw them, all of them.
    pub fault_ns: LatencyCounts,
    /// The largest freeing of the median run.
    pub largest_freeing: Option<Freeing>,
    /// The runs, first to last.
    pub runs: Vec<LiveRun>,
    /// Why there are no more.
    pub failure: Option<Failure>,
    /// Where the least memory lies that it needs, if that was searched for.
    pub smallest_limit: Option<SmallestLimit>,
}

/// Run times against the base's, in seconds.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Differences {
    /// From start to end.
    pub real_s: Difference,
    /// In the kernel.
    pub sys_s: Difference,
    /// In user mode.
    pub user_s: Difference,
}

/// The largest fall of the number of stored pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Freeing {
    /// Pages before it.
    pub pages_before: u64,
    /// Pages after it.
    pub pages_after: u64,
    /// Bytes of the pool before it.
    pub pool_before_bytes: u64,
    /// Bytes of the pool after it.
    pub pool_after_bytes: u64,
}

impl Freeing {
    /// Of samples in the order of time. `None` where no page was freed between two of them.
    pub(super) fn largest(samples: &[RunSample]) -> Option<Freeing> {
        let mut largest: Option<Freeing> = None;
        let mut highest = samples.first()?;
        for sample in samples {
            if sample.stored_pages > highest.stored_pages {
                highest = sample;
            }
            let fall = highest.stored_pages - sample.stored_pages;
            let before = largest.map_or(0, |it| it.pages_before - it.pages_after);
            if fall > before {
                largest = Some(Freeing {
                    pages_before: highest.stored_pages,
                    pages_after: sample.stored_pages,
                    pool_before_bytes: highest.pool_bytes,
                    pool_after_bytes: sample.pool_bytes,
                });
            }
        }
        largest
    }

    /// Bytes for the pages that are left, were the pool as dense as before.
    pub fn ideal_bytes(&self) -> u64 {
        let bytes = u128::from(self.pool_before_bytes) * u128::from(self.pages_after);
        (bytes / u128::from(self.pages_before.max(1))) as u64 // <= pool_before_bytes
    }
}

impl LiveFindings {
    /// Whether differences refer to this one.
    pub fn is_base(&self) -> bool {
        self.label == self.base
    }

    /// The run of the median pool.
    pub(super) fn median_run(&self) -> Option<&LiveRun> {
        let mut runs: Vec<&LiveRun> = self.runs.iter().collect();
        runs.sort_by_key(|run| run.pool_peak_bytes);
        runs.get(self.runs.len().saturating_sub(1) / 2).copied()
    }

    /// A figure of each run.
    pub fn each<T>(&self, of: impl Fn(&LiveRun) -> T) -> Vec<T> {
        self.runs.iter().map(of).collect()
    }

    /// Mean time of a run, in seconds.
    pub(super) fn mean_real_s(&self) -> f64 {
        mean(&self.each(|run| run.real_s))
    }

    /// Bytes of the pages that the pool held at its peak.
    pub fn pool_peak_page_bytes(&self) -> u64 {
        self.pool_peak_pages * PAGE_SIZE as u64
    }
}

impl LiveReport {
    /// The findings of a study.
    pub fn new(experiment: &LiveExperiment, results: LiveResults) -> LiveReport {
        let LiveResults { warm_up, limit_bytes, rows, notes } = results;
        // A row that never ended well is nothing to compare with.
        let usable = || rows.iter().filter(|row| !row.runs.is_empty());
        let base = usable().find(|row| row.parts.is_usual_base()).or(usable().next());
        let base = base.cloned();
        let base_label = base.as_ref().map_or(String::new(), |base| base.parts.to_string());
        let runs: Vec<LiveFindings> = rows
            .into_iter()
            .map(|row| {
                let label = row.parts.to_string();
                let merged = |of: fn(&LiveRun) -> &LatencyCounts| row.runs.iter().map(of).sum();
                let differences = base.as_ref().filter(|_| label != base_label).and_then(|base| {
                    let against = |of: fn(&LiveRun) -> f64| {
                        let seconds = |runs: &[LiveRun]| runs.iter().map(of).collect::<Vec<f64>>();
                        Difference::of(&seconds(&row.runs), &seconds(&base.runs))
                    };
                    Some(Differences {
                        real_s: against(|run| run.real_s)?,
                        sys_s: against(|run| run.sys_s)?,
                        user_s: against(|run| run.user_s)?,
                    })
                });
                let mut findings = LiveFindings {
                    label,
                    base: base_label.clone(),
                    differences,
                    pool_peak_bytes: 0,
                    pool_peak_pages: 0,
                    pool_percent_of_base: None,
                    store_ns: merged(|run| &run.store_ns),
                    load_ns: merged(|run| &run.load_ns),
                    fault_ns: merged(|run| &run.fault_ns),
                    largest_freeing: None,
                    parts: row.parts,
                    runs: row.runs,
                    failure: row.failure,
                    smallest_limit: row.smallest_limit,
                };
                if let Some(run) = findings.median_run().cloned() {
                    findings.pool_peak_bytes = run.pool_peak_bytes;
                    findings.pool_peak_pages = run.pool_peak_pages;
                    findings.largest_freeing = Freeing::largest(&run.timeline);
                }
                findings
            })
            .collect();
        let mut report = LiveReport {
            envelope: Envelope::new(Schema::CompareLimit),
            program: experiment.command.clone(),
            settings: LiveSettings {
                limit: experiment.limit,
                limit_bytes,
                rounds: experiment.rounds,
            },
            warm_up,
            combinations: runs,
            conclusions: Conclusions { notes, ..Conclusions::default() },
        };
        let base_pool = report.base().map_or(0, |base| base.pool_peak_bytes);
        for findings in &mut report.combinations {
            let pool = findings.pool_peak_bytes;
            findings.pool_percent_of_base =
                (base_pool > 0 && pool > 0).then(|| pool as f64 / base_pool as f64 * 100.0);
        }
        report.conclusions.verdict = verdict::sentences(&report);
        report.conclusions.summary = text::sentences(&report);
        report
    }

    /// The combinations with a run that ended well.
    pub fn ended(&self) -> impl Iterator<Item = &LiveFindings> {
        self.combinations.iter().filter(|findings| !findings.runs.is_empty())
    }

    /// Whether the kernel keeps the pages of one of them.
    pub fn has_kernel(&self) -> bool {
        self.combinations.iter().any(|findings| findings.parts.is_kernel())
    }

    /// What differences refer to.
    pub(super) fn base(&self) -> Option<&LiveFindings> {
        self.combinations.iter().find(|findings| findings.is_base())
    }

    /// One row a run, under a header line.
    pub fn to_csv(&self) -> String {
        let mut rows = vec![format!("label,run,{COLUMNS},free_ms")];
        for findings in &self.combinations {
            for (at, run) in findings.runs.iter().enumerate() {
                let document = serde_json::to_value(run).expect("numbers and texts");
                let mut cells = vec![findings.label.clone(), (at + 1).to_string()];
                cells.extend(COLUMNS.split(',').map(|name| cell(&document[name])));
                cells.push(run.free_ms.map_or(String::new(), |ms| format!("{ms:.3}")));
                rows.push(cells.join(","));
            }
        }
        rows.join("\n") + "\n"
    }

    /// For a terminal.
    pub fn to_text(&self, screen: Screen) -> String {
        text::page(self, screen)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_saved_study_is_read_and_written_as_it_is() {
        let path = "../../docs/experiments/2026-12-01-allocator-study.json";
        let text = std::fs::read_to_string(path).unwrap();
        let mut saved: serde_json::Value = serde_json::from_str(&text).unwrap();
        let kernel = serde_json::json!({ "engine": "kernel", "kernel": "zram", "zpool": null });
        let row = saved["combinations"][1].as_object_mut().unwrap();
        row.remove("index");
        row.extend(kernel.as_object().unwrap().clone());
        saved["program"]["timeout_s"] = 90.5.into();
        saved["program"]["preset"] = "stress:60s".into();
        let report: LiveReport = serde_json::from_value(saved.clone()).unwrap();
        assert!(report.has_kernel());
        assert_eq!(serde_json::to_value(&report).unwrap(), saved);
    }

    #[test]
    fn the_largest_freeing_is_the_deepest_fall() {
        let samples = |pages: &[u64]| -> Vec<RunSample> {
            let sample = |(at, &stored_pages): (usize, &u64)| RunSample {
                ms: at as u64,
                stored_pages,
                pool_bytes: stored_pages * 1000 + 7,
                ..RunSample::default()
            };
            pages.iter().enumerate().map(sample).collect()
        };
        let fall = |pages: &[u64]| {
            Freeing::largest(&samples(pages)).map(|it| (it.pages_before, it.pages_after))
        };
        assert_eq!(fall(&[]), None);
        assert_eq!(fall(&[1, 2, 3]), None);
        assert_eq!(fall(&[0, 50, 40, 100, 30, 20, 90, 25]), Some((100, 20)));
        assert_eq!(fall(&[9, 0, 100, 95]), Some((9, 0)));
        let freeing = Freeing::largest(&samples(&[100, 50])).unwrap();
        assert_eq!(freeing.ideal_bytes(), 50_003);
    }
}
