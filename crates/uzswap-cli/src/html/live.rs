//! The page of a command under a limit.

use super::charts::box_plot::{self, box_plot};
use super::charts::scatter::{Axis, Point, scatter};
use super::figure::{Cell, DataTable, Figure};
use super::section::{LatencyRow, Part, Section, Timelines, latencies, memory_over_time};
use super::unit::Unit;
use crate::measure::live::{LiveCommand, LiveRun};
use crate::report::live::{LiveFindings, LiveReport};
use crate::report::mean;
use uzswap::page::PAGE_SIZE;
use uzswap::zswap::LatencyCounts;

/// Its sections.
pub(super) fn sections(report: &LiveReport) -> Vec<Section> {
    let figures = vec![
        Section {
            heading: "Run times",
            parts: vec![
                Part::Figure(times(report, "From start to end", |run| run.real_s)),
                Part::Figure(times(report, "In the kernel", |run| run.sys_s)),
            ],
        },
        latency(report),
        memory(report),
        density(report),
        command(report),
    ];
    report.conclusions.clone().around(figures, &[])
}

fn times(report: &LiveReport, title: &str, of: fn(&LiveRun) -> f64) -> Figure {
    let row = |combination: &LiveFindings| box_plot::Row {
        name: combination.label.clone(),
        values: combination.runs.iter().map(of).collect(),
        is_kernel: combination.parts.is_kernel(),
        why_none: match &combination.failure {
            Some(failure) => failure.message.clone(),
            None => "no run ended well".to_owned(),
        },
    };
    let rows: Vec<_> = report.combinations.iter().map(row).collect();
    let mut figure = box_plot(title, Unit::Seconds, &rows);
    let alone = Unit::Seconds.text(of(&report.warm_up));
    figure.explain_kernel(report.has_kernel());
    figure.caption += &format!(" Without a limit the command took {alone}.");
    figure
}

fn latency(report: &LiveReport) -> Section {
    let figure = |title, things, of: fn(&LiveFindings) -> &LatencyCounts| {
        fn row<'a>(it: &'a LiveFindings, counts: &'a LatencyCounts) -> LatencyRow<'a> {
            LatencyRow { name: &it.label, counts, is_kernel: it.parts.is_kernel() }
        }
        let row = |it| row(it, of(it));
        latencies(title, things, &report.combinations.iter().map(row).collect::<Vec<_>>())
    };
    let figures = [
        figure("Store", "stores", |it| &it.store_ns),
        figure("Load", "loads", |it| &it.load_ns),
        figure("Fault, as the program sees it", "faults", |it| &it.fault_ns),
    ];
    let figures = figures.into_iter().flatten().collect();
    Section::of_figures("Latencies", figures, "No run stored a page.")
}

fn memory(report: &LiveReport) -> Section {
    let all: Vec<Timelines<'_>> = report
        .combinations
        .iter()
        .map(|it| Timelines {
            name: &it.label,
            runs: it.runs.iter().map(|run| &run.timeline[..]).collect(),
        })
        .collect();
    let figures = memory_over_time(&all, Some(report.settings.limit_bytes));
    Section::of_figures("Memory over time", figures, "There is no combination.")
}

fn density(report: &LiveReport) -> Section {
    let point = |it: &LiveFindings| {
        let bytes = |run: &LiveRun| {
            let refused = run.refused_pages * PAGE_SIZE as u64;
            (run.pool_peak_bytes + run.metadata_peak_bytes + refused) as f64
        };
        let (x, y) = (mean(&it.each(|run| run.real_s)), mean(&it.each(bytes)));
        Point { name: it.label.clone(), x, y, is_kernel: it.parts.is_kernel() }
    };
    let points: Vec<Point> = report.ended().map(point).collect();
    let title = "Memory against run time";
    let mut figure = match points.is_empty() {
        true => Figure::missing(title, "No run ended well."),
        false => scatter(
            title,
            Axis { name: "mean run time", unit: Unit::Seconds },
            Axis { name: "pool, metadata, refused pages", unit: Unit::Bytes },
            &points,
        ),
    };
    figure.explain_kernel(report.has_kernel());
    Section { heading: "Density against speed", parts: vec![Part::Figure(figure)] }
}

fn command(report: &LiveReport) -> Section {
    let LiveCommand { prepare, check, cleanup, .. } = &report.program;
    let mut table = DataTable::of_facts();
    table.row("command", [Cell::Text(report.program.text())]);
    for (name, text) in [("prepare", prepare), ("check", check), ("cleanup", cleanup)] {
        if let Some(text) = text {
            table.row(name, [Cell::Text(text.clone())]);
        }
    }
    table.row("limit", [Cell::Value(report.settings.limit_bytes as f64, Unit::Bytes)]);
    table.row("rounds", [Cell::Value(report.settings.rounds as f64, Unit::Count)]);
    Section {
        heading: "Command and runs",
        parts: vec![Part::Table(table), Part::Table(pools(report)), Part::Table(runs(report))],
    }
}

fn pools(report: &LiveReport) -> DataTable {
    let mut table = DataTable::new(&["", "pool at its peak", "pages in it", "failure"]);
    for it in &report.combinations {
        let failure = it.failure.as_ref().map_or(String::new(), |it| it.message.clone());
        table.row(
            &it.label,
            [
                Cell::Value(it.pool_peak_bytes as f64, Unit::Bytes),
                Cell::Value(it.pool_peak_pages as f64, Unit::Count),
                Cell::Text(failure),
            ],
        );
    }
    table
}

fn runs(report: &LiveReport) -> DataTable {
    let mut table = DataTable::new(&[
        "", "run", "time", "user", "kernel", "peak", "pool", "stored", "loaded", "refused",
    ]);
    let warm_up = [("without a limit", 1, &report.warm_up)];
    let runs = report.combinations.iter().flat_map(|it| {
        it.runs.iter().enumerate().map(|(at, run)| (it.label.as_str(), at + 1, run))
    });
    for (label, number, run) in warm_up.into_iter().chain(runs) {
        let mut cells = vec![Cell::Value(number as f64, Unit::Count)];
        cells.extend([run.real_s, run.user_s, run.sys_s].map(|s| Cell::Value(s, Unit::Seconds)));
        let bytes = [run.peak_bytes, run.pool_peak_bytes];
        cells.extend(bytes.map(|bytes| Cell::Value(bytes as f64, Unit::Bytes)));
        let pages = [run.stored_pages, run.loaded_pages, run.refused_pages];
        cells.extend(pages.map(|pages| Cell::Value(pages as f64, Unit::Count)));
        table.row(label, cells);
    }
    table
}
