//! The live report for a terminal, and its sentences.

use super::{Differences, LiveFindings, LiveReport};
use crate::human_size::human_size;
use crate::measure::histogram::powers_of_two_of;
use crate::measure::levels::spark_line;
use crate::measure::live::LiveRun;
use crate::measure::live::{FailureKind, LiveLimit};
use crate::report::format::{
    Screen, against, counted, explained, fact, fitted, histograms, listed, mib, nanoseconds,
    section, share, statistics, thousands, wrapped,
};
use crate::report::{Difference, ROUNDS_MIN, Stats, machine, mean, percent_change};
use uzswap::zswap::LatencyCounts;

/// The run times of the study's first table; without details the first of them alone.
const KINDS: [Kind; 3] = [
    ("real", |run| run.real_s, |it| it.real_s),
    ("sys", |run| run.sys_s, |it| it.sys_s),
    ("user", |run| run.user_s, |it| it.user_s),
];

/// The name, seconds of a run, and the difference to the base.
type Kind = (&'static str, fn(&LiveRun) -> f64, fn(Differences) -> Difference);

/// Columns beside a pool over time: the label and two bars.
const LABEL_COLUMNS: usize = 26;

/// The whole report.
pub(super) fn page(report: &LiveReport, screen: Screen) -> String {
    let mut page = report.conclusions.opening(screen);
    page += &header(report);
    page += &failures(report);
    if report.ended().next().is_some() {
        page += &run_times(report, screen);
        page += &counts(report, screen);
        page += &latencies(report, screen);
        page += &peak(report, screen);
        page += &beyond(report, screen);
    }
    page + &report.conclusions.closing("histograms, all times", screen)
}

fn header(report: &LiveReport) -> String {
    let settings = &report.settings;
    let mut text = format!(
        "uzswap {} compare, live: {} x {}, in turns, under the limit\n",
        report.envelope.version,
        counted(report.combinations.len(), "combination"),
        counted(settings.rounds, "run"),
    );
    text += &fact("command", &report.program.text());
    for (name, shell) in [
        ("prepare", &report.program.prepare),
        ("check", &report.program.check),
        ("cleanup", &report.program.cleanup),
    ] {
        if let Some(shell) = shell {
            text += &fact(name, shell);
        }
    }
    let warm_up = &report.warm_up;
    text += &fact(
        "alone",
        &format!(
            "{:.2} s, peak {} without a limit (the warm-up, one run)",
            warm_up.real_s,
            human_size(warm_up.peak_bytes)
        ),
    );
    let share = match settings.limit {
        LiveLimit::Percent(percent) => format!(" ({percent}% of the peak)"),
        LiveLimit::Bytes(_) => String::new(),
    };
    text += &fact(
        "limit",
        &format!(
            "{}{share}: anonymous memory of all programs, pool and metadata",
            human_size(settings.limit_bytes)
        ),
    );
    if let Some(bytes) = report.program.tmpfs_bytes {
        text += &fact("folder", &format!("a fresh tmpfs of {} for each run", human_size(bytes)));
    }
    text + &machine(&report.envelope.machine) + "\n"
}

/// Rows that did not end well, first: a reader must not overlook that they are missing.
fn failures(report: &LiveReport) -> String {
    let mut text = String::new();
    for findings in &report.combinations {
        let Some(failure) = &findings.failure else { continue };
        let run = findings.runs.len() + 1;
        let found = findings.smallest_limit.map_or(String::new(), |limit| {
            format!(
                "; it succeeded in {} and failed in {}",
                human_size(limit.fits_bytes),
                human_size(limit.fails_bytes)
            )
        });
        let first = format!("{}, run {run}: ", findings.label);
        text += &wrapped(&first, "  ", &format!("{}{found}", failure.message));
        for line in failure.output.lines().rev().take(8).collect::<Vec<_>>().into_iter().rev() {
            text += &wrapped("  | ", "  |   ", line);
        }
        text += "\n";
    }
    text
}

/// (a): the table of the linux-mm study, with the difference to the base.
fn run_times(report: &LiveReport, screen: Screen) -> String {
    let kinds = if screen.has_details() { &KINDS[..] } else { &KINDS[..1] };
    let mut rows = Vec::new();
    for (kind, of, against) in kinds {
        for findings in report.ended() {
            let against = match findings.differences.map(against) {
                None => ["base".to_owned(), String::new()],
                Some(difference) => {
                    let sign = if difference.is_real() { ' ' } else { '~' };
                    [format!("{:+.2} {sign}", difference.mean), interval(&difference)]
                }
            };
            let label = format!("{kind:<4} {}", findings.label);
            rows.push((label, Stats::of(&findings.each(of)), against));
        }
    }
    let table = statistics("LABEL", &["vs BASE", "95%"], |it| format!("{it:.2}"), rows);
    let mut text = explained(
        "(a) RUN TIME",
        "of the command, seconds",
        &fitted(table, &[5, 4, 2, 1], screen),
        "vs BASE: mean difference, run by run; 95%: its interval. ~ no difference is shown: the \
         interval contains zero, or the runs are too few for one.",
    );
    if screen.has_details() {
        text += "sys and user: of the programs and the engine together.\n";
    }
    text + "\n"
}

fn interval(difference: &Difference) -> String {
    match (difference.low, difference.high) {
        (Some(low), Some(high)) => format!("{low:+.2} to {high:+.2}"),
        _ => "-".to_owned(),
    }
}

/// The counts of a preset, if it has any.
fn counts(report: &LiveReport, screen: Screen) -> String {
    let names: Vec<&str> = match report.ended().next() {
        Some(findings) => findings.runs[0].counts.iter().map(|(name, _)| name.as_str()).collect(),
        None => Vec::new(),
    };
    if names.is_empty() {
        return String::new();
    }
    let row = |(name, findings): (&str, &LiveFindings)| {
        let of = |run: &LiveRun| {
            let count = run.counts.iter().find(|(other, _)| other == name);
            count.map_or(0.0, |(_, count)| *count)
        };
        (format!("{name}, {}", findings.label), Stats::of(&findings.each(of)), None)
    };
    let rows = names.into_iter().flat_map(|name| report.ended().map(move |it| (name, it)));
    let table = statistics("COUNT", &[], |it| thousands(it as u64), rows.map(row));
    format!("{}\n\n", fitted(table, &[5, 4, 2, 1], screen))
}

/// (b): percentiles, then the pictures.
fn latencies(report: &LiveReport, screen: Screen) -> String {
    let time = |counts: &LatencyCounts, percent| match counts.count {
        0 => "-".to_owned(),
        _ => nanoseconds(counts.percentile_ns(percent)),
    };
    let table = listed(
        report.ended(),
        &[
            ("LABEL", &|it| it.label.clone()),
            ("STORE p50", &|it| time(&it.store_ns, 50.0)),
            ("p99", &|it| time(&it.store_ns, 99.0)),
            ("LOAD p50", &|it| time(&it.load_ns, 50.0)),
            ("p99", &|it| time(&it.load_ns, 99.0)),
            ("FAULT p50", &|it| time(&it.fault_ns, 50.0)),
            ("p99", &|it| time(&it.fault_ns, 99.0)),
            ("p99.9", &|it| time(&it.fault_ns, 99.9)),
            ("FAULTS", &|it| thousands(it.fault_ns.count)),
        ],
    );
    let mut text = explained(
        "(b) LATENCY",
        "all runs together",
        &fitted(table, &[7, 8, 4, 2], screen),
        "STORE, LOAD: the engine's own; FAULT: as a thread waits for its page.",
    );
    if report.has_kernel() {
        text += &wrapped(
            "",
            "",
            "Of the kernel: MADV_PAGEOUT of a page, and a touch of one that is out, by a probe in \
             the cgroup.",
        );
    }
    text += "\n";
    if !screen.has_details() {
        return text;
    }
    let picture = |findings: &LiveFindings, what: &str, counts: &LatencyCounts| {
        (format!("{}, {what} (ns)", findings.label), powers_of_two_of(counts))
    };
    for it in report.ended() {
        let store = picture(it, "store", &it.store_ns);
        text += &histograms([store, picture(it, "load", &it.load_ns)], screen);
    }
    let mut faults = report.ended().map(|it| picture(it, "fault", &it.fault_ns));
    while let Some(left) = faults.next() {
        text += &histograms([left, faults.next().unwrap_or_default()], screen);
    }
    text
}

/// (c): the largest pool, and the pages in it.
fn peak(report: &LiveReport, screen: Screen) -> String {
    let density = |it: &LiveFindings| match it.pool_peak_page_bytes() {
        0 => "-".to_owned(),
        bytes => share(it.pool_peak_bytes, bytes),
    };
    let versus = |it: &LiveFindings| {
        against(it.is_base(), it.pool_percent_of_base.map(|percent| percent - 100.0))
    };
    let table = listed(
        report.ended().filter_map(|it| Some((it, it.median_run()?))),
        &[
            ("LABEL", &|(it, _)| it.label.clone()),
            ("POOL", &|(it, _)| thousands(it.pool_peak_bytes)),
            ("vs BASE", &|(it, _)| versus(it)),
            ("PAGES", &|(it, _)| thousands(it.pool_peak_pages)),
            ("THEIR BYTES", &|(it, _)| thousands(it.pool_peak_page_bytes())),
            ("POOL/BYTES", &|(it, _)| density(it)),
            ("METADATA", &|(_, run)| thousands(run.metadata_peak_bytes)),
            ("ALL", &|(_, run)| thousands(run.peak_bytes)),
        ],
    );
    explained(
        "(c) PEAK POOL SIZE",
        "of the run with the median pool; bytes",
        &fitted(table, &[4, 6, 7], screen),
        "PAGES: in the pool at its peak. A pool with more pages is larger too; POOL/BYTES shows \
         its density. ALL: peak of programs, pool and metadata together.",
    ) + "\n"
}

/// (d): the figures that the study did not take.
fn beyond(report: &LiveReport, screen: Screen) -> String {
    let median = |it: &LiveFindings, of: fn(&LiveRun) -> f64| Stats::of(&it.each(of)).median;
    let pages = |it: &LiveFindings, of| thousands(median(it, of) as u64);
    let own = |it: &LiveFindings, text: &dyn Fn() -> String| match it.parts.is_kernel() {
        true => "-".to_owned(),
        false => text(),
    };
    let of_cpu = |it: &LiveFindings| {
        let cpu = median(it, |run| run.user_s + run.sys_s);
        let engine = median(it, |run| run.engine_cpu_s);
        if cpu > 0.0 { format!("{:.0}%", engine / cpu * 100.0) } else { "-".to_owned() }
    };
    let freed = |run: &LiveRun| run.freed_pages.unwrap_or(0) as f64;
    let free_ms = |run: &LiveRun| run.free_ms.unwrap_or(0.0);
    let table = listed(
        report.ended(),
        &[
            ("LABEL", &|it| it.label.clone()),
            ("STORED", &|it| pages(it, |run| run.stored_pages as f64)),
            ("LOADED", &|it| pages(it, |run| run.loaded_pages as f64)),
            ("REFUSED", &|it| pages(it, |run| run.refused_pages as f64)),
            ("FREED", &|it| own(it, &|| pages(it, freed))),
            ("FREE ms", &|it| own(it, &|| format!("{:.1}", median(it, free_ms)))),
            ("ENGINE CPU s", &|it| format!("{:.2}", median(it, |run| run.engine_cpu_s))),
            ("of CPU", &|it| of_cpu(it)),
        ],
    );
    let table = fitted(table, &[7, 3, 4], screen);
    let mut text = section("(d) BEYOND THE STUDY", "medians; pages where no unit is given", &table);
    let mut freeings = report.ended().filter_map(|it| Some((it, it.largest_freeing?))).peekable();
    if freeings.peek().is_some() {
        let table = listed(
            freeings,
            &[
                ("LARGEST FREEING", &|(it, _)| it.label.clone()),
                ("PAGES", &|(_, freeing)| thousands(freeing.pages_before)),
                ("LEFT", &|(_, freeing)| thousands(freeing.pages_after)),
                ("POOL", &|(_, freeing)| thousands(freeing.pool_before_bytes)),
                ("LEFT", &|(_, freeing)| thousands(freeing.pool_after_bytes)),
                ("IDEAL", &|(_, freeing)| thousands(freeing.ideal_bytes())),
            ],
        );
        text += &format!("{}\n", fitted(table, &[], screen));
        text += "IDEAL: the remaining pages at the density from before; bytes.\n\n";
    }
    if report.has_kernel() {
        text +=
            "ENGINE CPU of the kernel: the thread that holds the limit; the rest is in sys.\n\n";
    }
    text + &pools_over_time(report, screen)
}

fn pools_over_time(report: &LiveReport, screen: Screen) -> String {
    let most = report.ended().flat_map(|findings| &findings.runs).flat_map(|run| &run.timeline);
    let Some(most) = most.map(|sample| sample.pool_bytes).max().filter(|&most| most > 0) else {
        return String::new();
    };
    let mut text = format!("POOL OVER TIME: start to end of a run; @ is {}\n\n", mib(most));
    for findings in report.ended() {
        let Some(run) = findings.median_run() else { continue };
        let line = line_of(run, most, screen.columns() - LABEL_COLUMNS);
        text += &format!("{:<24}|{line}|\n", findings.label);
    }
    text + "\n"
}

/// The largest pool of each part of a run, in characters.
fn line_of(run: &LiveRun, most: u64, width: usize) -> String {
    let end = run.timeline.last().map_or(0, |sample| sample.ms) + 1;
    let mut columns = vec![None; width];
    for sample in &run.timeline {
        let column = &mut columns[(sample.ms as usize * width) / end as usize];
        *column = (*column).max(Some(sample.pool_bytes));
    }
    let mut last = 0;
    let values = columns.into_iter().map(|bytes| {
        last = bytes.unwrap_or(last);
        last
    });
    spark_line(values, most)
}

/// The figures in words.
pub(super) fn sentences(report: &LiveReport) -> Vec<String> {
    let mut sentences = Vec::new();
    let Some(base) = report.base() else {
        sentences.push("Every combination failed: there is nothing to compare.".to_owned());
        return sentences;
    };
    for findings in &report.combinations {
        sentences.extend(fate(findings, report.settings.rounds));
    }
    let alone = report.warm_up.real_s;
    sentences.push(format!(
        "Under the limit the command takes {:.2} times its time without one with {} ({:.2} s to \
         {alone:.2} s).",
        base.mean_real_s() / alone.max(1e-9),
        base.label,
        base.mean_real_s(),
    ));
    let others: Vec<&LiveFindings> =
        report.ended().filter(|findings| !findings.is_base()).collect();
    for findings in &others {
        sentences.extend(compared(findings, base));
    }
    for findings in &others {
        sentences.extend(pools(findings, base));
    }
    for findings in report.ended() {
        let Some(run) = findings.median_run() else { continue };
        let limit = report.settings.limit_bytes;
        let peak = findings.each(|run| run.peak_bytes).into_iter().max().unwrap_or(0);
        if peak > limit + limit / 50 {
            sentences.push(format!(
                "{} exceeded the limit for a moment: peak {} of {}. Programs grew faster than \
                 pages were evicted.",
                findings.label,
                human_size(peak),
                human_size(limit),
            ));
        }
        if run.refused_pages > 0 {
            sentences.push(format!(
                "{} refused {} pages of {}: these stay uncompressed and count against the limit.",
                findings.label,
                thousands(run.refused_pages),
                thousands(run.stored_pages),
            ));
        }
        if run.stored_pages == 0 {
            sentences.push(format!(
                "{}: no page was evicted. The limit was not reached, or the programs are unmanaged \
                 (static, 32-bit, setuid); see `uzswap doctor`, or use a smaller --limit.",
                findings.label
            ));
        }
    }
    sentences
}

fn fate(findings: &LiveFindings, rounds: usize) -> Option<String> {
    let failure = findings.failure.as_ref()?;
    let what = match failure.kind {
        FailureKind::DidNotFit => "does not live within the limit",
        FailureKind::Command => "failed",
        FailureKind::TimedOut => "took longer than --timeout",
        FailureKind::Wrong => "did not pass --check",
        FailureKind::Machine => "could not be run",
        FailureKind::Interrupted => "was interrupted",
    };
    Some(format!(
        "{} {what} in run {} of {rounds} and had no further run; see above.",
        findings.label,
        findings.runs.len() + 1
    ))
}

/// The time from start to end, of the rounds that both have.
fn compared(findings: &LiveFindings, base: &LiveFindings) -> Option<String> {
    let difference = findings.differences?.real_s;
    let of_base = base.each(|run| run.real_s);
    let base_mean = mean(&of_base[..findings.runs.len().min(of_base.len())]);
    let percent = difference.mean / base_mean.max(1e-9) * 100.0;
    let word = if difference.mean >= 0.0 { "more" } else { "less" };
    let by = format!(
        "{} takes {:.2} s {word} than {} ({percent:+.1}%)",
        findings.label,
        difference.mean.abs(),
        base.label
    );
    Some(match (difference.low, difference.high) {
        (Some(low), Some(high)) if difference.is_real() => {
            format!("{by}; with 95% confidence the difference is {low:+.2} to {high:+.2} s.")
        }
        (Some(low), Some(high)) => format!(
            "{by}, but the interval {low:+.2} to {high:+.2} s contains zero: these runs show no \
             difference."
        ),
        _ => format!("{by}; fewer than {ROUNDS_MIN} rounds show no difference."),
    })
}

fn pools(findings: &LiveFindings, base: &LiveFindings) -> Option<String> {
    let pool = percent_change(findings.pool_peak_bytes as f64, base.pool_peak_bytes as f64)?;
    let dense = |it: &LiveFindings| {
        let bytes = it.pool_peak_page_bytes();
        (bytes > 0).then(|| it.pool_peak_bytes as f64 / bytes as f64)
    };
    let per_page = percent_change(dense(findings)?, dense(base)?)?;
    Some(format!(
        "Peak pool of {} against {}: {pool:+.1}%, {per_page:+.1}% per page in it.",
        findings.label, base.label
    ))
}
