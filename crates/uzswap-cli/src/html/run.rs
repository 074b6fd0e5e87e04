//! The page of one `uzswap run`.

use super::charts::bars::{Bar, Group, bars};
use super::figure::{Cell, DataTable, Figure};
use super::section::{LatencyRow, Part, Section, Timelines, latencies, memory_over_time};
use super::unit::Unit;
use uzswap::zswap::LatencyCounts;
use uzswap_pager::RunReport;

/// Its sections.
pub(super) fn sections(report: &RunReport) -> Vec<Section> {
    vec![
        Section {
            heading: "Verdict",
            parts: vec![Part::List(sentences(report)), Part::Table(key_figures(report))],
        },
        latency_section(report),
        memory(report),
        pages(report),
    ]
}

fn sentences(report: &RunReport) -> Vec<String> {
    let size = |bytes: u64| Unit::Bytes.text(bytes as f64);
    let (peak, limit) = (report.peak_bytes, size(report.limit_bytes));
    let mut sentences = vec![match peak {
        0 => format!("The run ended before the first sample of its memory; its limit is {limit}."),
        peak => format!("The run took at most {} of {limit}.", size(peak)),
    }];
    sentences.push(match report.ratio {
        Some(ratio) => format!(
            "The pool held {} pages in {}, {ratio:.2} to 1.",
            Unit::Count.text(report.pages_at_pool_peak as f64),
            size(report.pool_peak_bytes)
        ),
        None => "The run stored no page.".to_owned(),
    });
    if report.out_of_memory_kills > 0 {
        sentences.push(format!(
            "The supervisor ended {} processes at the limit.",
            report.out_of_memory_kills
        ));
    }
    sentences
}

fn key_figures(report: &RunReport) -> DataTable {
    let mut table = DataTable::of_facts();
    let bytes = [
        ("limit", report.limit_bytes),
        ("peak", report.peak_bytes),
        ("resident peak", report.resident_peak_bytes),
        ("pool peak", report.pool_peak_bytes),
        ("metadata peak", report.metadata_peak_bytes),
        ("supervisor", report.own_bytes),
    ];
    for (name, bytes) in bytes {
        table.row(name, [Cell::Value(bytes as f64, Unit::Bytes)]);
    }
    let times = [
        ("faults, p50", report.faults.p50_ns),
        ("faults, p99", report.faults.p99_ns),
        ("faults, all", report.faults.sum_ns),
        ("supervisor, processor", report.own_cpu_ns),
    ];
    table.row("faults", [Cell::Value(report.faults.count as f64, Unit::Count)]);
    for (name, ns) in times {
        table.row(name, [Cell::Value(ns as f64, Unit::Nanoseconds)]);
    }
    table
}

fn latency_section(report: &RunReport) -> Section {
    let figure = |title, things, counts: &LatencyCounts| {
        latencies(title, things, &[LatencyRow { name: "", counts, is_kernel: false }])
    };
    let times = &report.latencies;
    let figures = [
        figure("Store", "stores", &times.store),
        figure("Load", "loads", &times.load),
        figure("Fault, from its arrival to the page", "faults", &report.fault_latencies),
        figure("Load from the backing", "loads", &times.backing_load),
        figure("Writeback of a batch", "batches", &times.writeback),
    ];
    let figures = figures.into_iter().flatten().collect();
    Section::of_figures("Latencies", figures, "The run had no fault and stored no page.")
}

fn memory(report: &RunReport) -> Section {
    let runs = vec![&report.timeline[..]];
    let all = [Timelines { name: "Pool and resident memory", runs }];
    let figures = memory_over_time(&all, Some(report.limit_bytes));
    Section::of_figures("Memory over time", figures, "")
}

fn pages(report: &RunReport) -> Section {
    let bar = |(name, value): (&str, u64)| Bar::new(name, value as f64);
    let counts = report.counts;
    let moves = [
        ("stored", counts.stored_pages),
        ("restored", counts.restored_pages),
        ("staging hits", counts.staging_hits),
        ("zero-filled", counts.fresh_pages),
    ];
    let store = &report.store;
    let kinds = [
        ("in the store", store.stored_pages),
        ("same-filled", store.same_filled_pages),
        ("stored as is", store.stored_incompressible_pages),
        ("recompressed", store.recompressed_pages),
        ("written back", store.written_back_pages),
    ];
    let figure = |title: &str, caption: &str, all: &[(&str, u64)]| -> Figure {
        let all = all.iter().copied().map(bar).collect();
        let groups = [Group { name: String::new(), bars: all }];
        bars(title, caption, Unit::Count, ("pages", None), &groups)
    };
    let figures = vec![
        figure("Pages that moved", "The whole run: a page may move often.", &moves),
        figure("Pages of the store", "The first three at the end of the run.", &kinds),
    ];
    Section::of_figures("How the pages compress", figures, "")
}
