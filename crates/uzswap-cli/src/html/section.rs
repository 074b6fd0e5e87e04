//! Sections of a page, and the views of a document that several kinds of page have.

use super::charts::histogram::{Bar, Row, histogram};
use super::charts::lines::{Lines, lines, thinned};
use super::escape::html;
use super::figure::{Cell, DataTable, Figure, Key};
use super::scale::Scale;
use super::unit::Unit;
use crate::measure::histogram::{Bucket, powers_of_two_of};
use uzswap::zswap::LatencyCounts;
use uzswap_pager::RunSample;

/// The most samples of all lines of a page, and of all their tables.
const SAMPLES_DRAWN_MAX: usize = 2000;
const SAMPLES_LISTED_MAX: usize = 300;

/// A part of a section.
#[derive(Debug)]
pub(super) enum Part {
    Figure(Figure),
    /// Sentences.
    List(Vec<String>),
    /// Numbers without a picture.
    Table(DataTable),
    /// Text as it was typed.
    Code(String),
}

/// A section under its heading.
#[derive(Debug)]
pub(super) struct Section {
    pub(super) heading: &'static str,
    pub(super) parts: Vec<Part>,
}

impl Section {
    /// A section of figures; with none it says `why`.
    pub(super) fn of_figures(heading: &'static str, figures: Vec<Figure>, why: &str) -> Section {
        let mut parts: Vec<Part> = figures.into_iter().map(Part::Figure).collect();
        if parts.is_empty() {
            parts.push(Part::List(vec![why.to_owned()]));
        }
        Section { heading, parts }
    }

    /// Leaves out all tables.
    pub(super) fn clear_tables(&mut self) {
        self.parts.retain(|part| !matches!(part, Part::Table(_)));
        for part in &mut self.parts {
            if let Part::Figure(figure) = part {
                figure.table = DataTable::default();
            }
        }
    }

    /// As an element. `number` counts the figures of the page.
    pub(super) fn html(&self, number: &mut usize) -> String {
        let mut body = String::new();
        let mut figures = String::new();
        for part in &self.parts {
            match part {
                Part::Figure(figure) => {
                    *number += 1;
                    figures += &figure.html(*number);
                }
                Part::List(sentences) => {
                    let items = sentences.iter().map(|text| format!("<li>{}</li>", html(text)));
                    body += &format!("<ul>{}</ul>\n", items.collect::<String>());
                }
                Part::Table(table) => body += &table.html(),
                Part::Code(text) => body += &format!("<pre><code>{}</code></pre>\n", html(text)),
            }
        }
        if !figures.is_empty() {
            body += &format!("<div class=\"figures\">\n{figures}</div>\n");
        }
        format!("<section>\n<h2>{}</h2>\n{body}</section>\n", html(self.heading))
    }
}

/// A row of latencies.
#[derive(Debug)]
pub(super) struct LatencyRow<'a> {
    pub(super) name: &'a str,
    pub(super) counts: &'a LatencyCounts,
    pub(super) is_kernel: bool,
}

/// Latencies of several rows over one logarithmic axis, in powers of two; none without a time.
pub(super) fn latencies(title: &str, things: &str, rows: &[LatencyRow<'_>]) -> Option<Figure> {
    let rows: Vec<Row> = rows
        .iter()
        .map(|row| {
            let [p50, p99] = [50.0, 99.0].map(|percent| row.counts.percentile_ns(percent));
            latency_row(row.name, &powers_of_two_of(row.counts), [p50, p99], row.is_kernel)
        })
        .collect();
    latency_figure(title, things, &rows)
}

/// A row of latencies with its median and the time that 99 in 100 do not exceed.
pub(super) fn latency_row(name: &str, buckets: &[Bucket], times: [u64; 2], is_kernel: bool) -> Row {
    let bar = |it: &Bucket| Bar { from: it.from_ns as f64, to: it.to_ns as f64, count: it.count };
    let [p50, p99] = times.map(|ns| Unit::Nanoseconds.text(ns as f64));
    Row {
        name: name.to_owned(),
        words: format!("p50 {p50}, p99 {p99}"),
        bars: buckets.iter().map(bar).collect(),
        marks: times.map(|ns| ns as f64).to_vec(),
        is_kernel,
    }
}

/// Rows of latencies over one axis; none without a time.
pub(super) fn latency_figure(title: &str, things: &str, rows: &[Row]) -> Option<Figure> {
    let all = || rows.iter().flat_map(|row| &row.bars).filter(|bar| bar.count > 0);
    let from = all().map(|bar| bar.from).fold(f64::INFINITY, f64::min);
    let to = all().map(|bar| bar.to).fold(0.0, f64::max);
    all().next()?;
    let scale = Scale::log_ns(from as u64, to as u64);
    let mut figure = histogram(title, things, Unit::Nanoseconds, &scale, rows);
    figure.caption += " The axis is logarithmic: a bar is a power of two.";
    figure.keys = vec![Key { class: "median", name: "p50" }, Key { class: "far", name: "p99" }];
    figure.explain_kernel(rows.iter().any(|row| row.is_kernel));
    Some(figure)
}

/// Runs of one combination, over time.
#[derive(Debug)]
pub(super) struct Timelines<'a> {
    pub(super) name: &'a str,
    pub(super) runs: Vec<&'a [RunSample]>,
}

/// The pool and the resident memory over time: a figure for each of several combinations, all over
/// the same axes.
pub(super) fn memory_over_time(all: &[Timelines<'_>], limit_bytes: Option<u64>) -> Vec<Figure> {
    let samples = || all.iter().flat_map(|one| &one.runs).flat_map(|run| run.iter());
    let across = Scale::linear(Unit::Seconds, samples().map(seconds).chain([0.0]));
    let bytes = samples().flat_map(|sample| [sample.pool_bytes, sample.resident_bytes]);
    let bytes = bytes.chain(limit_bytes).chain([0]);
    let upward = Scale::linear(Unit::Bytes, bytes.map(|b| b as f64));
    let runs = all.iter().map(|one| one.runs.len()).sum::<usize>().max(1);
    let most = |all: usize| (all / runs).clamp(2, 200);
    all.iter()
        .map(|one| {
            if one.runs.iter().all(|run| run.is_empty()) {
                return Figure::missing(one.name, "No run has samples of its memory.");
            }
            let drawn: Vec<Vec<RunSample>> =
                one.runs.iter().map(|run| thinned(run, most(SAMPLES_DRAWN_MAX))).collect();
            let of = |class, of: fn(&RunSample) -> u64| {
                let point = |at: &RunSample| (seconds(at), of(at) as f64);
                let runs = drawn.iter().map(|run| run.iter().map(point).collect());
                Lines { class, runs: runs.collect() }
            };
            let both = [of("resident", |at| at.resident_bytes), of("pool", |at| at.pool_bytes)];
            let level = limit_bytes.map(|bytes| (bytes as f64, "limit"));
            let mut figure = lines(one.name, &across, &upward, level, &both);
            figure.caption = format!(
                "A pair of lines is a run; each has at most {} samples here, and {} in the table.",
                most(SAMPLES_DRAWN_MAX),
                most(SAMPLES_LISTED_MAX)
            );
            figure.keys = vec![
                Key { class: "resident", name: "resident in the programs" },
                Key { class: "pool", name: "the pool" },
            ];
            figure.table = listed(one, most(SAMPLES_LISTED_MAX));
            figure
        })
        .collect()
}

fn seconds(sample: &RunSample) -> f64 {
    sample.ms as f64 / 1000.0
}

fn listed(timelines: &Timelines<'_>, most: usize) -> DataTable {
    let mut table =
        DataTable::new(&["run", "time", "resident", "pool", "metadata", "stored pages"]);
    for (at, run) in timelines.runs.iter().enumerate() {
        for sample in thinned(run, most) {
            let bytes = |bytes: u64| Cell::Value(bytes as f64, Unit::Bytes);
            table.row(
                &(at + 1).to_string(),
                [
                    Cell::Value(seconds(&sample), Unit::Seconds),
                    bytes(sample.resident_bytes),
                    bytes(sample.pool_bytes),
                    bytes(sample.metadata_bytes),
                    Cell::Value(sample.stored_pages as f64, Unit::Count),
                ],
            );
        }
    }
    table
}
