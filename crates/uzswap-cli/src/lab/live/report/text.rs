//! The live report for a terminal, and its sentences.

use super::{LiveFindings, LiveReport};
use crate::lab::histogram::powers_of_two_of;
use crate::lab::levels::spark_line;
use crate::lab::live::engine::LiveRun;
use crate::lab::live::{FailureKind, LiveLimit};
use crate::lab::report::format::{
    Screen, beside, counted, fitted, human_size, mib, nanoseconds, pictures, section, share, table,
    thousands, wrapped,
};
use crate::lab::report::{Difference, ROUNDS_MIN, Stats, mean, opening, percent_change};
use uzswap::zswap::LatencyCounts;

/// The run times of the study's first table.
const KINDS: [(&str, Seconds); 3] =
    [("real", |run| run.real_s), ("sys", |run| run.sys_s), ("user", |run| run.user_s)];

type Seconds = fn(&LiveRun) -> f64;

/// Columns beside a pool over time: the label and two bars.
const LABEL_COLUMNS: usize = 26;

/// The whole report.
pub(super) fn page(report: &LiveReport, screen: Screen) -> String {
    let mut page = opening(&report.verdict, &report.notes);
    if let Some(changes) = &report.baseline {
        page += &changes.to_text(screen);
    }
    page += &header(report);
    page += &failures(report);
    if report.ended().next().is_some() {
        page += &run_times(report, screen);
        page += &counts(report, screen);
        page += &latencies(report, screen);
        page += &peak(report, screen);
        page += &beyond(report, screen);
    }
    if !screen.has_details() {
        return page + "--details adds histograms, all times and a summary.\n";
    }
    page += "SUMMARY\n\n";
    for sentence in &report.summary {
        page += &wrapped("- ", "  ", sentence);
    }
    page
}

fn header(report: &LiveReport) -> String {
    let settings = &report.settings;
    let mut text = format!(
        "uzswap {} compare, live: {} x {}, in turns, under the limit\n",
        report.envelope.version,
        counted(report.combinations.len(), "combination"),
        counted(settings.rounds, "run"),
    );
    let line = |name: &str, words: &str| wrapped(&format!("{name:<10}"), "          ", words);
    text += &line("command", &report.program.text());
    for (name, shell) in [
        ("prepare", &report.program.prepare),
        ("check", &report.program.check),
        ("cleanup", &report.program.cleanup),
    ] {
        if let Some(shell) = shell {
            text += &line(name, shell);
        }
    }
    let warm_up = &report.warm_up;
    text += &line(
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
    text += &line(
        "limit",
        &format!(
            "{}{share}: anonymous memory of all programs, pool and metadata",
            human_size(settings.limit_bytes)
        ),
    );
    if let Some(bytes) = report.program.tmpfs_bytes {
        text += &line("folder", &format!("a fresh tmpfs of {} for each run", human_size(bytes)));
    }
    let machine = &report.envelope.machine;
    text +=
        &line("machine", &format!("Linux {}, {} x {}", machine.kernel, machine.cpus, machine.cpu));
    text + "\n"
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
    let mut table = table(&["LABEL", "MIN", "MAX", "MEAN", "MEDIAN", "STDDEV", "vs BASE", "95%"]);
    let kinds = if screen.has_details() { &KINDS[..] } else { &KINDS[..1] };
    for &(kind, of) in kinds {
        for findings in report.ended() {
            let stats = Stats::of(&findings.each(of));
            let seconds = |value: f64| format!("{value:.2}");
            let (change, interval) = match difference(findings, kind) {
                None => ("base".to_owned(), String::new()),
                Some(difference) => {
                    let sign = if difference.is_real() { ' ' } else { '~' };
                    (format!("{:+.2} {sign}", difference.mean), interval(&difference))
                }
            };
            table.add_row([
                format!("{kind:<4} {}", findings.label),
                seconds(stats.min),
                seconds(stats.max),
                seconds(stats.mean),
                seconds(stats.median),
                seconds(stats.stddev),
                change,
                interval,
            ]);
        }
    }
    let table = fitted(table, &[5, 4, 2, 1], screen);
    let mut text = section("(a) RUN TIME", "of the command, seconds", &table);
    text.pop();
    text += &wrapped(
        "",
        "",
        "vs BASE: mean difference, run by run; 95%: its interval. ~ no difference is shown: the \
         interval contains zero, or the runs are too few for one.",
    );
    if screen.has_details() {
        text += "sys and user: of the programs and the engine together.\n";
    }
    text + "\n"
}

fn difference(findings: &LiveFindings, kind: &str) -> Option<Difference> {
    let differences = findings.differences?;
    Some(match kind {
        "real" => differences.real_s,
        "sys" => differences.sys_s,
        _ => differences.user_s,
    })
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
    let mut table = table(&["COUNT", "MIN", "MAX", "MEAN", "MEDIAN", "STDDEV"]);
    for name in names {
        for findings in report.ended() {
            let of = |run: &LiveRun| {
                let count = run.counts.iter().find(|(other, _)| other == name);
                count.map_or(0.0, |(_, count)| *count)
            };
            let stats = Stats::of(&findings.each(of));
            let Stats { min, max, mean, median, stddev } = stats;
            let mut row = vec![format!("{name}, {}", findings.label)];
            row.extend([min, max, mean, median, stddev].map(|value| thousands(value as u64)));
            table.add_row(row);
        }
    }
    format!("{}\n\n", fitted(table, &[5, 4, 2, 1], screen))
}

/// (b): percentiles, then the pictures.
fn latencies(report: &LiveReport, screen: Screen) -> String {
    let mut table = table(&[
        "LABEL",
        "STORE p50",
        "p99",
        "LOAD p50",
        "p99",
        "FAULT p50",
        "p99",
        "p99.9",
        "FAULTS",
    ]);
    for findings in report.ended() {
        let time = |counts: &LatencyCounts, percent| match counts.count {
            0 => "-".to_owned(),
            _ => nanoseconds(counts.percentile_ns(percent)),
        };
        let LiveFindings { store_ns, load_ns, fault_ns, .. } = findings;
        table.add_row([
            findings.label.clone(),
            time(store_ns, 50.0),
            time(store_ns, 99.0),
            time(load_ns, 50.0),
            time(load_ns, 99.0),
            time(fault_ns, 50.0),
            time(fault_ns, 99.0),
            time(fault_ns, 99.9),
            thousands(fault_ns.count),
        ]);
    }
    let table = fitted(table, &[7, 8, 4, 2], screen);
    let mut text = section("(b) LATENCY", "all runs together", &table);
    text.pop();
    text += "STORE, LOAD: the engine's own; FAULT: as a thread waits for its page.\n";
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
    for findings in report.ended() {
        let titles = ["store", "load"].map(|what| format!("{}, {what} (ns)", findings.label));
        text += &beside(&titles[0], &titles[1], screen);
        text += &pictures(
            &powers_of_two_of(&findings.store_ns),
            &powers_of_two_of(&findings.load_ns),
            screen,
        );
        text += "\n";
    }
    let faults: Vec<&LiveFindings> = report.ended().collect();
    for pair in faults.chunks(2) {
        let title = |at: usize| {
            pair.get(at).map_or(String::new(), |it| format!("{}, fault (ns)", it.label))
        };
        let of = |at: usize| pair.get(at).map_or(Vec::new(), |it| powers_of_two_of(&it.fault_ns));
        text += &beside(&title(0), &title(1), screen);
        text += &pictures(&of(0), &of(1), screen);
        text += "\n";
    }
    text
}

/// (c): the largest pool, and the pages in it.
fn peak(report: &LiveReport, screen: Screen) -> String {
    let mut table = table(&[
        "LABEL",
        "POOL",
        "vs BASE",
        "PAGES",
        "THEIR BYTES",
        "POOL/BYTES",
        "METADATA",
        "ALL",
    ]);
    for findings in report.ended() {
        let Some(run) = findings.median_run() else { continue };
        let bytes = findings.pool_peak_page_bytes();
        let against = match findings.pool_percent_of_base {
            _ if findings.is_base() => "base".to_owned(),
            Some(percent) => format!("{:+.1}%", percent - 100.0),
            None => "-".to_owned(),
        };
        table.add_row([
            findings.label.clone(),
            thousands(findings.pool_peak_bytes),
            against,
            thousands(findings.pool_peak_pages),
            thousands(bytes),
            if bytes > 0 { share(findings.pool_peak_bytes, bytes) } else { "-".to_owned() },
            thousands(run.metadata_peak_bytes),
            thousands(run.peak_bytes),
        ]);
    }
    let table = fitted(table, &[4, 6, 7], screen);
    let mut text = section("(c) PEAK POOL SIZE", "of the run with the median pool; bytes", &table);
    text.pop();
    text += &wrapped(
        "",
        "",
        "PAGES: in the pool at its peak. A pool with more pages is larger too; POOL/BYTES shows \
         its density. ALL: peak of programs, pool and metadata together.",
    );
    text + "\n"
}

/// (d): the figures that the study did not take.
fn beyond(report: &LiveReport, screen: Screen) -> String {
    let mut table = table(&[
        "LABEL",
        "STORED",
        "LOADED",
        "REFUSED",
        "FREED",
        "FREE ms",
        "ENGINE CPU s",
        "of CPU",
    ]);
    for findings in report.ended() {
        let median = |of: fn(&LiveRun) -> f64| Stats::of(&findings.each(of)).median;
        let pages = |of: fn(&LiveRun) -> f64| thousands(median(of) as u64);
        let cpu = median(|run| run.user_s + run.sys_s);
        let engine = median(|run| run.engine_cpu_s);
        table.add_row([
            findings.label.clone(),
            pages(|run| run.stored_pages as f64),
            pages(|run| run.loaded_pages as f64),
            pages(|run| run.refused_pages as f64),
            match findings.parts.is_kernel() {
                true => "-".to_owned(),
                false => pages(|run| run.freed_pages.unwrap_or(0) as f64),
            },
            match findings.parts.is_kernel() {
                true => "-".to_owned(),
                false => format!("{:.1}", median(|run| run.free_ms.unwrap_or(0.0))),
            },
            format!("{engine:.2}"),
            if cpu > 0.0 { format!("{:.0}%", engine / cpu * 100.0) } else { "-".to_owned() },
        ]);
    }
    let table = fitted(table, &[7, 3, 4], screen);
    let mut text = section("(d) BEYOND THE STUDY", "medians; pages where no unit is given", &table);
    let mut table = self::table(&["LARGEST FREEING", "PAGES", "LEFT", "POOL", "LEFT", "IDEAL"]);
    let mut rows = 0;
    for findings in report.ended() {
        let Some(freeing) = &findings.largest_freeing else { continue };
        rows += 1;
        table.add_row([
            findings.label.clone(),
            thousands(freeing.pages_before),
            thousands(freeing.pages_after),
            thousands(freeing.pool_before_bytes),
            thousands(freeing.pool_after_bytes),
            thousands(freeing.ideal_bytes()),
        ]);
    }
    if rows > 0 {
        text += &format!("{}\n", fitted(table, &[], screen));
        text += "IDEAL: the remaining pages at the density from before; bytes.\n\n";
    }
    if report.has_kernel() {
        text +=
            "ENGINE CPU of the kernel: the thread that holds the limit; the rest is in sys.\n\n";
    }
    text += &pools_over_time(report, screen);
    text
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
