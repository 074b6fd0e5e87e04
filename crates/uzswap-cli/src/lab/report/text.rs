//! The report for a terminal.

use super::format::{
    Screen, beside, counted, fitted, in_brief, mib, nanoseconds, pictures, section, table,
    thousands, wrapped,
};
use super::stats::{Stats, mean};
use super::summary::against_base;
use super::{Findings, Report, access_section, base_of, label, trace_section, whole};
use crate::lab::experiment::Settings;
use crate::lab::histogram::LatencySummary;
use crate::lab::replay::{FreedHalf, Phases, Spent};
use uzswap::page::PAGE_SIZE;

/// The whole report.
pub(super) fn page(report: &Report, screen: Screen) -> String {
    let mut page = opening(&report.verdict, &report.notes);
    if let Some(changes) = &report.baseline {
        page += &changes.to_text(screen);
    }
    page += &header(report, screen);
    page += &run_times(report, screen);
    page += &latencies(report, screen);
    page += &peak(report, screen);
    page += &match report.corpus.trace {
        None => after_freeing(report, screen),
        Some(_) => trace_section::at_end(report, screen),
    };
    page += &access_section::tables(report, screen);
    page += &whole::section_of(report, screen);
    if !screen.has_details() {
        return page + "--details adds histograms, all times, settings and a summary.\n";
    }
    page += "SUMMARY\n\n";
    for sentence in &report.summary {
        page += &wrapped("- ", "  ", sentence);
    }
    page
}

/// The verdict and the remarks that a reader needs before any figure.
pub(crate) fn opening(verdict: &[String], notes: &[String]) -> String {
    let mut text = String::new();
    for sentence in verdict {
        text += &wrapped("", "", sentence);
    }
    for note in notes {
        text += &wrapped("Note: ", "  ", note);
    }
    text + "\n"
}

fn header(report: &Report, screen: Screen) -> String {
    let corpus = &report.corpus;
    let mut text = format!(
        "uzswap {} compare: {} x {}, in turns, a process each\n",
        report.envelope.version,
        counted(report.combinations.len(), "combination"),
        counted(report.settings.runs_each, "run"),
    );
    let what = match &*corpus.kind {
        "sizes" => "sizes, contents made up: ",
        "trace" => "trace of ",
        _ => "",
    };
    let pages = if corpus.trace.is_some() { "stores" } else { "pages" };
    text += &wrapped(
        "corpus    ",
        "          ",
        &format!(
            "{what}{}, {} {pages} ({}), sha256{} {}",
            in_brief(&corpus.origin),
            thousands(corpus.pages),
            mib(corpus.pages * PAGE_SIZE as u64),
            if corpus.sample.is_some() { " of the sample" } else { "" },
            corpus.sha256.get(..12).unwrap_or(&corpus.sha256)
        ),
    );
    text += &trace_section::of(corpus);
    if let Some(sample) = &corpus.sample {
        text += &wrapped("sample    ", "          ", &whole::sample_in_words(sample));
    }
    for note in &corpus.notes {
        text += &wrapped("          ", "          ", note);
    }
    if screen.has_details() {
        text += &settings_line(report);
    }
    text += &access_section::settings(report);
    let machine = &report.envelope.machine;
    text += &wrapped(
        "machine   ",
        "          ",
        &format!("Linux {}, {} x {}", machine.kernel, machine.cpus, machine.cpu),
    );
    text + "\n"
}

/// The settings that all combinations share.
fn settings_line(report: &Report) -> String {
    let settings = &report.settings.settings;
    let with_header =
        report.combinations.iter().filter(|findings| findings.object_header_bytes > 0);
    let headers = distinct(
        with_header
            .map(|findings| format!("{}={}", findings.parts.zpool, findings.object_header_bytes)),
    );
    let headers = if headers.is_empty() { "none" } else { &headers };
    let mappings = distinct(
        report.combinations.iter().filter_map(|findings| Some(findings.parts.mapping?.to_string())),
    );
    let mappings = if mappings.is_empty() { "none" } else { &mappings };
    let indexes =
        distinct(report.combinations.iter().map(|findings| findings.parts.index.to_string()));
    wrapped(
        "settings  ",
        "          ",
        &format!(
            "zsmalloc chains up to {} pages by {}, handle {}, mapping {mappings}; index: \
             {indexes}; incompressible pages: {}; object header: {headers}; host pages: {}; \
             same-filled pages: {}{}",
            settings.chain_size,
            settings.chain_rule,
            settings.handle_header,
            settings.incompressible,
            settings.host_pages,
            same_filled(settings),
            match report.corpus.trace {
                None => format!("; freed: {}", half(settings.free)),
                Some(_) => String::new(),
            },
        ),
    )
}

/// Each of the names once, in their order.
fn distinct(names: impl Iterator<Item = String>) -> String {
    let mut once: Vec<String> = Vec::new();
    for name in names {
        if !once.contains(&name) {
            once.push(name);
        }
    }
    once.join(",")
}

fn half(freed: FreedHalf) -> &'static str {
    match freed {
        FreedHalf::Random => "a random half",
        FreedHalf::Odd => "pages of odd number",
    }
}

fn same_filled(settings: &Settings) -> String {
    let zero_only = if settings.same_filled_zero_only { ", zero only" } else { "" };
    format!("{}{zero_only}", settings.same_filled)
}

/// (a): the table of the linux-mm study.
fn run_times(report: &Report, screen: Screen) -> String {
    let mut table = table(&["LABEL", "MIN", "MAX", "MEAN", "MEDIAN", "STDDEV", "MEAN vs BASE"]);
    let seconds_of = |findings: &Findings, kind| match kind {
        "real" => Stats::of(&findings.real_s),
        "sys" => Stats::of(&findings.sys_s),
        _ => Stats::of(&findings.user_s),
    };
    let mut noise = false;
    let kinds = if screen.has_details() { &["real", "sys", "user"][..] } else { &["real"] };
    for &kind in kinds {
        for findings in &report.combinations {
            let stats = seconds_of(findings, kind);
            let base = seconds_of(base_of(&report.combinations, findings), kind);
            let change = match super::percent_change(stats.mean, base.mean) {
                _ if findings.is_base() => "base".to_owned(),
                Some(change) => format!("{change:+.1}%"),
                None => "-".to_owned(),
            };
            let in_noise = !findings.is_base() && stats.overlaps(&base);
            noise |= in_noise;
            let seconds = |value: f64| format!("{value:.3}");
            table.add_row([
                format!("{kind:<4} {}", label(findings)),
                seconds(stats.min),
                seconds(stats.max),
                seconds(stats.mean),
                seconds(stats.median),
                seconds(stats.stddev),
                format!("{change} {}", if in_noise { '~' } else { ' ' }),
            ]);
        }
    }
    let caption = match report.corpus.trace {
        None => "all phases together, seconds",
        Some(_) => "the events of the trace, as fast as they go, seconds",
    };
    let mut text = section("(a) RUN TIME", caption, &fitted(table, &[4, 5], screen));
    if noise {
        text.pop();
        text += "~ the ranges of the runs overlap: the difference is within the noise.\n\n";
    }
    match report.corpus.trace {
        None if screen.has_details() => text + &phases(report, screen),
        None => text,
        Some(_) => text + &trace_section::verbs(report, screen),
    }
}

/// Which phase takes the time.
fn phases(report: &Report, screen: Screen) -> String {
    let has_accesses = report.combinations.iter().any(|findings| findings.access.is_some());
    let mut head = vec!["MEAN real", "STORE ALL", "LOAD ALL", "FREE HALF", "COMPACT", "REFILL"];
    if has_accesses {
        head.insert(2, "ACCESS");
    }
    let mut table = table(&head);
    for findings in &report.combinations {
        let mean_of = |of: fn(&Phases) -> Spent| {
            let seconds: Vec<f64> =
                findings.phases.iter().map(|phases| of(phases).real_s).collect();
            format!("{:.3}", mean(&seconds))
        };
        let mut row = vec![
            label(findings),
            mean_of(|phases| phases.store),
            mean_of(|phases| phases.load),
            mean_of(|phases| phases.free),
            mean_of(|phases| phases.compact),
            mean_of(|phases| phases.refill),
        ];
        if has_accesses {
            row.insert(2, mean_of(|phases| phases.access.unwrap_or_default()));
        }
        table.add_row(row);
    }
    format!("{}\n\n", fitted(table, &[5, 4], screen))
}

/// (b): a table of percentiles, then the pictures.
fn latencies(report: &Report, screen: Screen) -> String {
    let mut table =
        table(&["LABEL", "STORE p50", "p90", "p99", "max", "LOAD p50", "p90", "p99", "max"]);
    for findings in &report.combinations {
        let mut row = vec![label(findings)];
        for LatencySummary { p50, p90, p99, max, .. } in [&findings.store_ns, &findings.load_ns] {
            row.extend([p50, p90, p99, max].map(|&ns| nanoseconds(ns)));
        }
        table.add_row(row);
    }
    let table = fitted(table, &[4, 8, 2, 6], screen);
    let mut text = section("(b) LATENCY", "of each store and each load, all runs together", &table);
    if !screen.has_details() {
        return text;
    }
    for findings in &report.combinations {
        let titles = ["store", "load"].map(|what| format!("{}, {what} (ns)", findings.label()));
        text += &beside(&titles[0], &titles[1], screen);
        text += &pictures(&findings.store_ns.buckets, &findings.load_ns.buckets, screen);
        text += "\n";
    }
    text
}

/// (c): memory with every page stored.
fn peak(report: &Report, screen: Screen) -> String {
    let mut table = table(&[
        "LABEL",
        "POOL",
        "vs BASE",
        "RATIO",
        "ALL IN",
        "vs BASE",
        "METADATA",
        "RSS",
        "COMPRESSED",
        "INDEX",
        "RESERVE",
    ]);
    let against = |findings, of| against_base(&report.combinations, findings, of);
    for findings in &report.combinations {
        let figures = &findings.figures;
        table.add_row([
            label(findings),
            thousands(figures.pool_total_size),
            against(findings, |of| of.figures.pool_total_size as f64),
            format!("{:.3}", findings.effective_ratio),
            thousands(findings.bytes_with_rejected),
            against(findings, |of| of.bytes_with_rejected as f64),
            thousands(figures.zpool_metadata_bytes),
            thousands(findings.rss_bytes),
            thousands(figures.compressed_bytes),
            thousands(figures.index_bytes),
            thousands(figures.reserve_bytes),
        ]);
    }
    let caption = match report.corpus.trace {
        None => "every page stored; bytes",
        Some(_) => "when the pool was largest; bytes",
    };
    let table = fitted(table, &[10, 9, 8, 7, 6], screen);
    let mut text = section("(c) PEAK POOL SIZE", caption, &table);
    if screen.has_details() {
        text += &format!("{}\n\n", counts(report, screen));
    }
    text += &wrapped(
        "",
        "",
        "RATIO: stored pages over pool and metadata. ALL IN: pool, metadata, and 4096 bytes for \
         each refused page.",
    );
    if screen.has_details() {
        text += "METADATA: the allocator's own tables. RSS: growth of the process.\n";
    }
    text + "\n"
}

/// Pages by their fate.
fn counts(report: &Report, screen: Screen) -> String {
    let mut table = table(&["LABEL", "STORED", "SAME-FILLED", "AS IS", "REFUSED"]);
    for findings in &report.combinations {
        let figures = &findings.figures;
        table.add_row([
            label(findings),
            thousands(figures.stored_pages),
            thousands(figures.same_filled_pages),
            thousands(figures.stored_incompressible_pages),
            thousands(findings.rejected_pages),
        ]);
    }
    fitted(table, &[], screen)
}

/// (d): what freeing leaves behind.
fn after_freeing(report: &Report, screen: Screen) -> String {
    let mut table = table(&[
        "LABEL",
        "HALF FREED",
        "of full",
        "COMPACTED",
        "of full",
        "IDEAL",
        "REFILLED",
        "of full",
    ]);
    for findings in &report.combinations {
        let figures = &findings.figures;
        let full = figures.pool_total_size;
        let of_full = |bytes: u64| {
            [thousands(bytes), format!("{:.1}%", bytes as f64 / full.max(1) as f64 * 100.0)]
        };
        let mut row = vec![label(findings)];
        row.extend(of_full(figures.pool_after_free_bytes));
        row.extend(of_full(figures.pool_after_compact_bytes));
        row.push(thousands(ideal_bytes(findings)));
        row.extend(of_full(figures.pool_after_refill_bytes));
        table.add_row(row);
    }
    let caption =
        format!("{} freed, compacted, stored again; bytes", half(report.settings.settings.free));
    let table = fitted(table, &[5, 7, 6], screen);
    let mut text = section("(d) POOL AFTER FREEING", &caption, &table);
    if text.contains("IDEAL") {
        text.pop();
        text += "IDEAL: the remaining pages at the density of the full pool.\n\n";
    }
    text
}

/// The pool for the pages that are left, were it as dense as when it was full.
fn ideal_bytes(findings: &Findings) -> u64 {
    let figures = &findings.figures;
    let full = u128::from(figures.pool_total_size) * u128::from(figures.kept_compressed_bytes);
    let bytes = full / u128::from(figures.compressed_bytes.max(1));
    bytes.next_multiple_of(PAGE_SIZE as u128) as u64 // <= pool_total_size
}
