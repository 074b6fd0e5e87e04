//! The report for a terminal.

use super::format::{
    Column, Screen, against, counted, explained, fact, fitted, histograms, in_brief, listed, mib,
    nanoseconds, once_each, section, share, statistics, thousands, wrapped,
};
use super::summary::against_base;
use super::{
    Findings, Machine, Report, access_section, base_of, label, percent_change, trace_section, whole,
};
use crate::measure::experiment::Settings;
use crate::measure::histogram::Bucket;
use crate::measure::replay::{FreedHalf, Phases, Spent};
use crate::measure::stats::{Stats, mean};
use uzswap::page::PAGE_SIZE;

/// The run times of the first table; without details the first of them alone.
const KINDS: [(&str, Seconds); 3] =
    [("real", |it| &it.real_s), ("sys", |it| &it.sys_s), ("user", |it| &it.user_s)];

type Seconds = fn(&Findings) -> &[f64];

/// The whole report.
pub(super) fn page(report: &Report, screen: Screen) -> String {
    let mut page = report.conclusions.opening(screen);
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
    page + &report.conclusions.closing("histograms, all times, settings", screen)
}

/// The last line of a header.
pub(crate) fn machine(Machine { kernel, cpu, cpus }: &Machine) -> String {
    fact("machine", &format!("Linux {kernel}, {cpus} x {cpu}"))
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
    text += &fact(
        "corpus",
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
        text += &fact("sample", &whole::sample_in_words(sample));
    }
    text += &duplicates(report);
    for note in &corpus.notes {
        text += &fact("", note);
    }
    if screen.has_details() {
        text += &settings_line(report);
    }
    text += &access_section::settings(report);
    text + &machine(&report.envelope.machine) + "\n"
}

/// Pages that one copy could stand for, if there are any.
fn duplicates(report: &Report) -> String {
    let Some(lengths) = report.compressed_lengths.first() else { return String::new() };
    let pages = lengths.kinds.iter().map(|kind| kind.duplicate_pages).sum();
    if pages == 0 {
        return String::new();
    }
    let of_sample = match report.corpus.sample {
        Some(_) => "; pages beyond the sample are not compared",
        None => "",
    };
    let share = share(pages, report.corpus.pages);
    fact("equal", &format!("{} pages ({share}) are copies of others{of_sample}", thousands(pages)))
}

/// The settings that all combinations share.
fn settings_line(report: &Report) -> String {
    let settings = &report.settings.settings;
    let distinct = |of: &dyn Fn(&Findings) -> Option<String>| {
        let words = once_each(report.combinations.iter().filter_map(of)).join(",");
        if words.is_empty() { "none".to_owned() } else { words }
    };
    let headers = distinct(&|it| {
        let bytes = it.object_header_bytes;
        (bytes > 0).then(|| format!("{}={bytes}", it.parts.zpool))
    });
    let mappings = distinct(&|it| it.parts.mapping.map(|mapping| mapping.to_string()));
    let indexes = distinct(&|it| Some(it.parts.index.to_string()));
    fact(
        "settings",
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
    let kinds = if screen.has_details() { &KINDS[..] } else { &KINDS[..1] };
    let mut rows = Vec::new();
    let mut noise = false;
    for (kind, seconds) in kinds {
        for findings in &report.combinations {
            let stats = Stats::of(seconds(findings));
            let base = Stats::of(seconds(base_of(&report.combinations, findings)));
            let change = against(findings.is_base(), percent_change(stats.mean, base.mean));
            let in_noise = !findings.is_base() && stats.overlaps(&base);
            noise |= in_noise;
            let change = format!("{change} {}", if in_noise { '~' } else { ' ' });
            rows.push((format!("{kind:<4} {}", label(findings)), stats, [change]));
        }
    }
    let caption = match report.corpus.trace {
        None => "all phases together, seconds",
        Some(_) => "the events of the trace, as fast as they go, seconds",
    };
    let table = statistics("LABEL", &["MEAN vs BASE"], |it| format!("{it:.3}"), rows);
    let (title, table) = ("(a) RUN TIME", fitted(table, &[4, 5], screen));
    let legend = "~ the ranges of the runs overlap: the difference is within the noise.";
    let text = match noise {
        true => explained(title, caption, &table, legend) + "\n",
        false => section(title, caption, &table),
    };
    match report.corpus.trace {
        None if screen.has_details() => text + &phases(report, screen),
        None => text,
        Some(_) => text + &trace_section::verbs(report, screen),
    }
}

/// Which phase takes the time.
fn phases(report: &Report, screen: Screen) -> String {
    fn mean_of(findings: &Findings, of: fn(&Phases) -> Spent) -> String {
        let seconds: Vec<f64> = findings.phases.iter().map(|phases| of(phases).real_s).collect();
        format!("{:.3}", mean(&seconds))
    }
    let mut columns: Vec<Column<'_, &Findings>> = vec![
        ("MEAN real", &|it| label(it)),
        ("STORE ALL", &|it| mean_of(it, |phases| phases.store)),
        ("LOAD ALL", &|it| mean_of(it, |phases| phases.load)),
        ("FREE HALF", &|it| mean_of(it, |phases| phases.free)),
        ("COMPACT", &|it| mean_of(it, |phases| phases.compact)),
        ("REFILL", &|it| mean_of(it, |phases| phases.refill)),
    ];
    if report.combinations.iter().any(|findings| findings.access.is_some()) {
        columns.insert(2, ("ACCESS", &|it| mean_of(it, |it| it.access.unwrap_or_default())));
    }
    format!("{}\n\n", fitted(listed(&report.combinations, &columns), &[5, 4], screen))
}

/// (b): a table of percentiles, then the pictures.
fn latencies(report: &Report, screen: Screen) -> String {
    let table = listed(
        &report.combinations,
        &[
            ("LABEL", &|it| label(it)),
            ("STORE p50", &|it| nanoseconds(it.store_ns.p50)),
            ("p90", &|it| nanoseconds(it.store_ns.p90)),
            ("p99", &|it| nanoseconds(it.store_ns.p99)),
            ("max", &|it| nanoseconds(it.store_ns.max)),
            ("LOAD p50", &|it| nanoseconds(it.load_ns.p50)),
            ("p90", &|it| nanoseconds(it.load_ns.p90)),
            ("p99", &|it| nanoseconds(it.load_ns.p99)),
            ("max", &|it| nanoseconds(it.load_ns.max)),
        ],
    );
    let table = fitted(table, &[4, 8, 2, 6], screen);
    let mut text = section("(b) LATENCY", "of each store and each load, all runs together", &table);
    if !screen.has_details() {
        return text;
    }
    for findings in &report.combinations {
        let picture = |what: &str, buckets: &[Bucket]| {
            (format!("{}, {what} (ns)", findings.label()), buckets.to_vec())
        };
        let store = picture("store", &findings.store_ns.buckets);
        text += &histograms([store, picture("load", &findings.load_ns.buckets)], screen);
    }
    text
}

/// (c): memory with every page stored.
fn peak(report: &Report, screen: Screen) -> String {
    let versus = |it: &Findings, of| against_base(&report.combinations, it, of);
    let table = listed(
        &report.combinations,
        &[
            ("LABEL", &|it| label(it)),
            ("POOL", &|it| thousands(it.figures.pool_total_size)),
            ("vs BASE", &|it| versus(it, |of| of.figures.pool_total_size as f64)),
            ("RATIO", &|it| format!("{:.3}", it.effective_ratio)),
            ("ALL IN", &|it| thousands(it.bytes_with_rejected)),
            ("vs BASE", &|it| versus(it, |of| of.bytes_with_rejected as f64)),
            ("METADATA", &|it| thousands(it.figures.zpool_metadata_bytes)),
            ("RSS", &|it| thousands(it.rss_bytes)),
            ("COMPRESSED", &|it| thousands(it.figures.compressed_bytes)),
            ("INDEX", &|it| thousands(it.figures.index_bytes)),
            ("RESERVE", &|it| thousands(it.figures.reserve_bytes)),
        ],
    );
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
    let table = listed(
        &report.combinations,
        &[
            ("LABEL", &|it| label(it)),
            ("STORED", &|it| thousands(it.figures.stored_pages)),
            ("SAME-FILLED", &|it| thousands(it.figures.same_filled_pages)),
            ("AS IS", &|it| thousands(it.figures.stored_incompressible_pages)),
            ("REFUSED", &|it| thousands(it.rejected_pages)),
        ],
    );
    fitted(table, &[], screen)
}

/// (d): what freeing leaves behind.
fn after_freeing(report: &Report, screen: Screen) -> String {
    let of_full = |it: &Findings, bytes: u64| {
        format!("{:.1}%", bytes as f64 / it.figures.pool_total_size.max(1) as f64 * 100.0)
    };
    let table = listed(
        &report.combinations,
        &[
            ("LABEL", &|it| label(it)),
            ("HALF FREED", &|it| thousands(it.figures.pool_after_free_bytes)),
            ("of full", &|it| of_full(it, it.figures.pool_after_free_bytes)),
            ("COMPACTED", &|it| thousands(it.figures.pool_after_compact_bytes)),
            ("of full", &|it| of_full(it, it.figures.pool_after_compact_bytes)),
            ("IDEAL", &|it| thousands(ideal_bytes(it))),
            ("REFILLED", &|it| thousands(it.figures.pool_after_refill_bytes)),
            ("of full", &|it| of_full(it, it.figures.pool_after_refill_bytes)),
        ],
    );
    let freed = half(report.settings.settings.free);
    let caption = format!("{freed} freed, compacted, stored again; bytes");
    let (title, table) = ("(d) POOL AFTER FREEING", fitted(table, &[5, 7, 6], screen));
    match table.contains("IDEAL") {
        true => {
            let legend = "IDEAL: the remaining pages at the density of the full pool.";
            explained(title, &caption, &table, legend) + "\n"
        }
        false => section(title, &caption, &table),
    }
}

/// The pool for the pages that are left, were it as dense as when it was full.
fn ideal_bytes(findings: &Findings) -> u64 {
    let figures = &findings.figures;
    let full = u128::from(figures.pool_total_size) * u128::from(figures.kept_compressed_bytes);
    let bytes = full / u128::from(figures.compressed_bytes.max(1));
    bytes.next_multiple_of(PAGE_SIZE as u128) as u64 // <= pool_total_size
}
