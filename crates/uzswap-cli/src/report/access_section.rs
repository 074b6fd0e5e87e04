//! Section (e) of the report: accesses to pools with limits.

use comfy_table::Table;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::cell::{Field, named, one};
use super::format::{
    Screen, counted, fact, fitted, listed, mib, nanoseconds, once_each, section, share, thousands,
    wrapped,
};
use super::{Findings, Percentiles, Report, label, median};
use crate::measure::experiment::Combination;
use crate::measure::histogram::{Latencies, LatencySummary};
use crate::measure::limited_pool::{LimitParts, MaxPool, ShrinkerMode};
use crate::measure::replay::{Accessed, RunResult};
use uzswap::zswap::LatencyCounts;

/// The accesses of one combination. Counts are of all runs, lists have an element a run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct AccessFindings {
    /// Accesses of all runs.
    pub accesses: u64,
    /// Share of them that the pool answered, 0 to 1.
    pub pool_hit_share: f64,
    /// The same, run by run.
    pub pool_hit_share_by_run: Vec<f64>,
    /// Share of them that the backing answered.
    pub backing_hit_share: f64,
    /// Share of them to pages that had been refused.
    pub miss_share: f64,
    /// Accesses a second, run by run; the time of the stores among them included.
    pub accesses_per_s: Vec<f64>,
    /// Pages that were refused as all were stored first, run by run.
    pub refused_pages: Vec<u64>,
    /// Stores of the accesses that were refused, run by run.
    pub refused_stores: Vec<u64>,
    /// Pages written back, run by run.
    pub written_back_pages: Vec<u64>,
    /// Pages that left the pool without a write, run by run.
    pub dropped_clean_pages: Vec<u64>,
    /// Pages brought back, run by run.
    pub promoted_pages: Vec<u64>,
    /// Pages that the pool refused and the backing took, run by run.
    pub written_through_pages: Vec<u64>,
    /// Writebacks that failed, run by run.
    pub reject_reclaim_fail: Vec<u64>,
    /// Bytes written, run by run.
    pub written_bytes: Vec<u64>,
    /// Seconds in writeback, run by run.
    pub writeback_s: Vec<f64>,
    /// Batches that were written back: how often one took how long, to a quarter or better.
    pub writeback: LatencyCounts,
    /// The most a pool had in any run.
    pub pool_peak_bytes: u64,
    /// Loads from the pool.
    pub pool_load_ns: LatencySummary,
    /// Loads from the backing.
    pub backing_load_ns: LatencySummary,
    /// Stores of the accesses.
    pub store_ns: LatencySummary,
    /// The same, run by run.
    pub store_ns_by_run: Vec<Percentiles>,
}

impl AccessFindings {
    /// Of the runs, where their pool had a limit.
    pub(super) fn of(runs: &[RunResult]) -> Option<AccessFindings> {
        let runs: Vec<&Accessed> = runs.iter().filter_map(|run| run.accessed.as_ref()).collect();
        if runs.is_empty() {
            return None;
        }
        let each = |of: fn(&Accessed) -> u64| runs.iter().map(|run| of(run)).collect::<Vec<u64>>();
        let share = |of: fn(&Accessed) -> u64| {
            let all: u64 = runs.iter().map(|run| run.accesses).sum();
            each(of).iter().sum::<u64>() as f64 / all.max(1) as f64
        };
        let merged = |of: fn(&Accessed) -> &Latencies| {
            runs.iter().map(|run| of(run)).sum::<Latencies>().summary()
        };
        let by_run = |of: fn(&Accessed) -> f64| runs.iter().map(|run| of(run)).collect();
        Some(AccessFindings {
            accesses: each(|run| run.accesses).iter().sum(),
            pool_hit_share: share(|run| run.pool_hits),
            pool_hit_share_by_run: by_run(|run| run.pool_hits as f64 / run.accesses.max(1) as f64),
            backing_hit_share: share(|run| run.backing_hits),
            miss_share: share(|run| run.misses),
            accesses_per_s: by_run(|run| run.accesses as f64 / run.spent.real_s.max(1e-9)),
            refused_pages: each(|run| run.refused_pages),
            refused_stores: each(|run| run.refused_stores),
            written_back_pages: each(|run| run.written_back_pages),
            dropped_clean_pages: each(|run| run.dropped_clean_pages),
            promoted_pages: each(|run| run.promoted_pages),
            written_through_pages: each(|run| run.written_through_pages),
            reject_reclaim_fail: each(|run| run.reject_reclaim_fail),
            written_bytes: each(|run| run.written_bytes),
            writeback_s: by_run(|run| run.writeback.sum_ns as f64 / 1e9),
            writeback: runs.iter().map(|run| &run.writeback).sum(),
            pool_peak_bytes: each(|run| run.pool_peak_bytes).into_iter().max().unwrap_or(0),
            pool_load_ns: merged(|run| &run.pool_load_ns),
            backing_load_ns: merged(|run| &run.backing_load_ns),
            store_ns: merged(|run| &run.store_ns),
            store_ns_by_run: runs.iter().map(|run| run.store_ns.summary().percentiles()).collect(),
        })
    }

    /// The median run's accesses a second.
    fn rate(&self) -> f64 {
        median_of(&self.accesses_per_s)
    }
}

fn median_of(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(0.0)
}

/// Whether its runs come to the same figures: not where a thread decides what stays.
pub(super) fn is_steady(combination: &Combination) -> bool {
    combination.parts.limit.is_none_or(|limit| limit.shrinker == ShrinkerMode::Off)
}

/// A combination with accesses.
type Row<'a> = (&'a Findings, LimitParts, &'a AccessFindings);

/// Those with accesses.
fn accessed(report: &Report) -> Vec<Row<'_>> {
    let runs = report.combinations.iter();
    runs.filter_map(|findings| Some((findings, findings.parts.limit?, findings.access.as_ref()?)))
        .collect()
}

/// The limits in words, for the head of the report; empty without any.
pub(super) fn settings(report: &Report) -> String {
    let Some(settings) = &report.settings.limits else { return String::new() };
    let all = accessed(report);
    let choices = |of: fn(&LimitParts) -> String| {
        once_each(all.iter().map(|(_, limit, _)| of(limit))).join(",")
    };
    let backing = settings.backing.as_ref().map_or("none".to_owned(), |backing| {
        format!("{} of {}", backing.path.display(), mib(backing.bytes))
    });
    let accesses = settings.accesses;
    let words = format!(
        "pool {}, accept threshold {}%; backing: {backing}, written as {}; order: {}; when full: \
         {}; shrinker: {}; checksums: {}; {} {} by Zipf's law with skew {}, seed {}",
        choices(|limit| limit.max_pool.to_string()),
        settings.accept_threshold_percent,
        choices(|limit| limit.written_as.to_string()),
        choices(|limit| limit.lru.to_string()),
        choices(|limit| limit.when_full.to_string()),
        choices(|limit| limit.shrinker.to_string()),
        if settings.checksum { "on" } else { "off" },
        thousands(accesses.count),
        if accesses.exclusive { "loads and stores" } else { "loads" },
        accesses.skew,
        accesses.seed,
    );
    fact("limits", &words)
}

/// (e): three tables. Empty without limits.
pub(super) fn tables(report: &Report, screen: Screen) -> String {
    let all = accessed(report);
    if all.is_empty() {
        return String::new();
    }
    let percent = |share: f64| format!("{:.2}%", share * 100.0);
    let limit_of = |limit: &LimitParts| match limit.max_pool {
        MaxPool::None => "none".to_owned(),
        MaxPool::Bytes(bytes) => mib(bytes),
    };
    let hits = listed(
        &all,
        &[
            ("LABEL", &|(findings, ..)| label(findings)),
            ("POOL HIT", &|(.., access)| percent(access.pool_hit_share)),
            ("BACKING", &|(.., access)| percent(access.backing_hit_share)),
            ("MISS", &|(.., access)| percent(access.miss_share)),
            ("REFUSED", &|(.., access)| pages(&access.refused_pages)),
            ("ACCESSES/s", &|(.., access)| thousands(access.rate() as u64)),
            ("POOL PEAK", &|(.., access)| mib(access.pool_peak_bytes)),
            ("LIMIT", &|(_, limit, _)| limit_of(limit)),
        ],
    );
    let time = |of: &LatencySummary, ns| match of.count {
        0 => "-".to_owned(),
        _ => nanoseconds(ns),
    };
    let times = listed(
        &all,
        &[
            ("LATENCY", &|(findings, ..)| label(findings)),
            ("POOL p50", &|(.., it)| time(&it.pool_load_ns, it.pool_load_ns.p50)),
            ("p99", &|(.., it)| time(&it.pool_load_ns, it.pool_load_ns.p99)),
            ("BACKING p50", &|(.., it)| time(&it.backing_load_ns, it.backing_load_ns.p50)),
            ("p99", &|(.., it)| time(&it.backing_load_ns, it.backing_load_ns.p99)),
            ("STORE p50", &|(.., it)| time(&it.store_ns, it.store_ns.p50)),
            ("p99", &|(.., it)| time(&it.store_ns, it.store_ns.p99)),
            ("FIRST p99", &|(findings, ..)| nanoseconds(findings.store_ns.p99)),
        ],
    );
    let runs = counted(report.settings.runs_each, "run");
    let hits = fitted(hits, &[3, 6, 2], screen);
    let mut text = section("(e) ACCESSES UNDER A LIMIT", &format!("shares of all {runs}"), &hits);
    let (times, writes) =
        (fitted(times, &[7, 3, 1], screen), fitted(writebacks(&all), &[4, 2, 3, 6], screen));
    text += &format!("{times}\n\n{writes}\n\n");
    text += &wrapped(
        "",
        "",
        "POOL HIT, BACKING: loads answered from there. MISS: accesses to pages that had been \
         refused. REFUSED: pages refused as all were stored first; FIRST: those stores. STORE: \
         stores of the accesses. WRITEBACK: until the end of the accesses; p50 and p99 of a batch, \
         up to 64 pages, to a quarter. Counts, rates and TIME are of the median run.",
    );
    text + "\n"
}

/// The median run's pages.
fn pages(by_run: &[u64]) -> String {
    thousands(median(by_run.to_vec()))
}

/// The table of pages that left the pool for the backing.
fn writebacks(all: &[Row<'_>]) -> Table {
    let batch = |access: &AccessFindings, percent| match access.writeback.count {
        0 => "-".to_owned(),
        _ => nanoseconds(access.writeback.percentile_ns(percent)),
    };
    listed(
        all,
        &[
            ("WRITEBACK", &|(findings, ..)| label(findings)),
            ("PAGES", &|(.., access)| pages(&access.written_back_pages)),
            ("CLEAN", &|(.., access)| pages(&access.dropped_clean_pages)),
            ("THROUGH", &|(.., access)| pages(&access.written_through_pages)),
            ("PROMOTED", &|(.., access)| pages(&access.promoted_pages)),
            ("p50", &|(.., access)| batch(access, 50.0)),
            ("p99", &|(.., access)| batch(access, 99.0)),
            ("TIME", &|(.., access)| format!("{:.2} s", median_of(&access.writeback_s))),
            ("WRITTEN", &|(.., access)| mib(median(access.written_bytes.clone()))),
        ],
    )
}

/// The names and values of the columns that a run has with a limit.
pub(super) fn fields(findings: &Findings, document: &Value, run: usize) -> Vec<Field> {
    let (Some(limit), Some(access)) = (findings.parts.limit, &findings.access) else {
        return Vec::new();
    };
    let max_pool = match limit.max_pool {
        MaxPool::None => String::new(),
        MaxPool::Bytes(bytes) => bytes.to_string(),
    };
    let mut fields = vec![one("max_pool_bytes", max_pool)];
    fields.extend(named(&document["limit"], run, "lru,written_as,when_full,shrinker"));
    fields.push(one("pool_hit_share", format!("{:.6}", access.pool_hit_share_by_run[run])));
    fields.push(one("accesses_per_s", format!("{:.0}", access.accesses_per_s[run])));
    fields.extend(named(&document["access"], run, COUNTS));
    let store = access.store_ns_by_run[run];
    fields.push(one("access_store_ns_p50", store.p50.to_string()));
    fields.push(one("access_store_ns_p99", store.p99.to_string()));
    fields
}

/// The columns of a run in the CSV.
const COUNTS: &str = "refused_pages,refused_stores,written_back_pages,dropped_clean_pages,\
     written_through_pages,promoted_pages,written_bytes,writeback_s";

/// Findings of the accesses, for combinations with the same compressor.
pub(super) fn sentences(all: &[&Findings], compressor: &str) -> Vec<String> {
    let limited = |findings: &&&Findings| {
        findings.parts.limit.is_some_and(|limit| limit.max_pool != MaxPool::None)
    };
    let mut order: Vec<(&str, &AccessFindings)> = all
        .iter()
        .filter(limited)
        .filter_map(|findings| Some((findings.name.as_str(), findings.access.as_ref()?)))
        .collect();
    order.sort_by(|(_, one), (_, other)| other.pool_hit_share.total_cmp(&one.pool_hit_share));
    let Some(((best, access), others)) = order.split_first() else { return Vec::new() };
    let hits = |access: &AccessFindings| {
        format!(
            "{:.2}% at {} accesses a second",
            access.pool_hit_share * 100.0,
            thousands(access.rate() as u64)
        )
    };
    let mut text =
        format!("Best hit rate of a limited pool with {compressor}: {best}, {}", hits(access));
    for (name, access) in others {
        text += &format!("; {name} {}", hits(access));
    }
    let mut sentences = vec![text + "."];
    if let Some((name, fastest)) =
        order.iter().max_by(|(_, one), (_, other)| one.rate().total_cmp(&other.rate()))
        && name != best
    {
        sentences.push(format!(
            "Most accesses a second with {compressor}: {name}, {} against {} of {best}.",
            thousands(fastest.rate() as u64),
            thousands(access.rate() as u64),
        ));
    }
    let refused: Vec<String> = all
        .iter()
        .filter(limited)
        .filter(|findings| findings.rejected_pages > 0)
        .map(|findings| {
            let pages = findings.figures.pages;
            let refused = findings.rejected_pages;
            format!("{} {} ({})", findings.name, thousands(refused), share(refused, pages))
        })
        .collect();
    if !refused.is_empty() {
        sentences.push(format!(
            "Refused by a full pool, or as too large, with {compressor}: {} of the pages. Their \
             callers keep them.",
            refused.join(", ")
        ));
    }
    sentences.extend(against_unlimited(all, compressor));
    sentences
}

/// The slowest stores of a hundred against those of a pool without a limit.
fn against_unlimited(all: &[&Findings], compressor: &str) -> Option<String> {
    let unlimited = |findings: &&&Findings| {
        findings.parts.limit.is_some_and(|limit| limit.max_pool == MaxPool::None)
    };
    let p99 = |findings: &Findings| {
        let access = findings.access.as_ref()?;
        let runs = match access.store_ns.count {
            0 => &findings.store_ns_by_run,
            _ => &access.store_ns_by_run,
        };
        Some(median(runs.iter().map(|run| run.p99).collect()))
    };
    let base = all.iter().find(unlimited)?;
    let base_ns = p99(base)?;
    let others: Vec<String> = all
        .iter()
        .filter(|findings| !unlimited(findings))
        .filter_map(|findings| {
            let times = p99(findings)? as f64 / base_ns.max(1) as f64;
            Some(format!("{} {times:.1} x", findings.name))
        })
        .collect();
    (!others.is_empty()).then(|| {
        format!(
            "Store p99 with {compressor} against {} ({}, median run): {}.",
            base.name,
            nanoseconds(base_ns),
            others.join(", ")
        )
    })
}
