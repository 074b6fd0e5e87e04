//! The page of a comparison by replays.

use super::charts::bars::{self, Group, bars};
use super::charts::box_plot::{self, box_plot};
use super::charts::histogram::{Bar, Row, histogram};
use super::charts::scatter::{Axis, Point, scatter};
use super::figure::{Cell, DataTable, Figure, Key};
use super::scale::Scale;
use super::section::{Part, Section, latency_figure, latency_row};
use super::unit::Unit;
use crate::measure::compressed_lengths::KindLengths;
use crate::measure::histogram::LatencySummary;
use crate::report::{CompressedLengths, CorpusInfo, Findings, Report};
use uzswap::page::PAGE_SIZE;

impl Report {
    /// Its sections.
    pub(super) fn sections(self) -> Vec<Section> {
        let figures = vec![
            Section {
                heading: "Run times",
                parts: vec![
                    Part::Figure(self.times("Seconds a run", |it| &it.real_s)),
                    Part::Figure(self.times("Seconds in the kernel", |it| &it.sys_s)),
                ],
            },
            self.latencies(),
            self.memory(),
            self.density(),
            self.compression(),
            self.source(),
        ];
        self.conclusions.around(figures, &self.corpus.notes)
    }

    fn times(&self, title: &str, of: fn(&Findings) -> &Vec<f64>) -> Figure {
        let row = |combination: &Findings| box_plot::Row {
            name: combination.label(),
            values: of(combination).clone(),
            is_kernel: false,
            why_none: "no run".to_owned(),
        };
        box_plot(title, Unit::Seconds, &self.combinations.iter().map(row).collect::<Vec<_>>())
    }

    fn latencies(&self) -> Section {
        let figure = |title, things, of: fn(&Findings) -> Option<&LatencySummary>| {
            let rows = self.combinations.iter().filter_map(|combination| {
                let latency = of(combination)?;
                let times = [latency.p50, latency.p99];
                Some(latency_row(&combination.label(), &latency.buckets, times, false))
            });
            latency_figure(title, things, &rows.collect::<Vec<Row>>())
        };
        let figures = [
            figure("Store", "stores", |it| Some(&it.store_ns)),
            figure("Load", "loads", |it| Some(&it.load_ns)),
            figure("Load from the backing", "loads", |it| {
                it.access.as_ref().map(|access| &access.backing_load_ns)
            }),
        ];
        let figures = figures.into_iter().flatten().collect();
        Section::of_figures("Latencies", figures, "No operation was timed.")
    }

    fn is_trace(&self) -> bool {
        self.corpus.trace.is_some()
    }

    fn memory(&self) -> Section {
        let groups = self.combinations.iter().map(|it| {
            let bar = |name: &str, pool: u64, rss: u64| bars::Bar {
                point: Some(rss as f64),
                ..bars::Bar::new(name, pool as f64)
            };
            let pool = &it.figures;
            let bars = if self.is_trace() {
                vec![
                    bar("largest", pool.pool_total_size, it.rss_bytes),
                    bar("at the end", pool.pool_after_refill_bytes, it.rss_after_refill_bytes),
                ]
            } else {
                vec![
                    bar("full", pool.pool_total_size, it.rss_bytes),
                    bar("half freed", pool.pool_after_free_bytes, it.rss_after_free_bytes),
                    bar("compacted", pool.pool_after_compact_bytes, it.rss_after_compact_bytes),
                    bar("refilled", pool.pool_after_refill_bytes, it.rss_after_refill_bytes),
                ]
            };
            Group { name: it.label(), bars }
        });
        let mut figure = bars(
            "Pool and resident memory by phase",
            "The number is the pool. Resident memory is that of the whole store, with metadata and \
             page tables: the median of the runs.",
            Unit::Bytes,
            ("pool", Some("resident")),
            &groups.collect::<Vec<_>>(),
        );
        figure.keys = vec![
            Key { class: "bar ours", name: "host pages of the pool" },
            Key { class: "mark", name: "resident memory" },
        ];
        Section { heading: "Memory", parts: vec![Part::Figure(figure)] }
    }

    fn density(&self) -> Section {
        let points = |of: fn(&Findings) -> Option<f64>| {
            let point = |it: &Findings| {
                let y = it.bytes_with_rejected as f64;
                Some(Point { name: it.label(), x: of(it)?, y, is_kernel: false })
            };
            self.combinations.iter().filter_map(point).collect::<Vec<Point>>()
        };
        let figure = |title, name, unit, points: Vec<Point>| {
            let upward = Axis { name: "pool, metadata, refused pages", unit: Unit::Bytes };
            match points.is_empty() {
                true => Figure::missing(title, "No combination has a figure."),
                false => scatter(title, Axis { name, unit }, upward, &points),
            }
        };
        let figures = vec![
            figure(
                "Memory against run time",
                "mean run time",
                Unit::Seconds,
                points(|it| (!it.real_s.is_empty()).then(|| it.mean_real_s())),
            ),
            figure(
                "Memory against the time of a store",
                "p50 of a store",
                Unit::Nanoseconds,
                points(|it| (!it.store_ns.buckets.is_empty()).then_some(it.store_ns.p50 as f64)),
            ),
        ];
        Section::of_figures("Density against speed", figures, "There is no combination.")
    }

    fn compression(&self) -> Section {
        let groups = self.combinations.iter().map(|it| {
            let bar = |name: &str, value: u64| bars::Bar::new(name, value as f64);
            let figures = &it.figures;
            let special = figures.same_filled_pages + figures.stored_incompressible_pages;
            let bars = vec![
                bar("compressed", figures.stored_pages.saturating_sub(special)),
                bar("same-filled", figures.same_filled_pages),
                bar("stored as is", figures.stored_incompressible_pages),
                bar("refused", it.rejected_pages),
            ];
            Group { name: it.label(), bars }
        });
        let mut figures = vec![bars(
            "Pages by their fate",
            "A same-filled page is kept as one word. A page is refused if the allocator has no \
             room for its object.",
            Unit::Count,
            ("pages", None),
            &merged(groups),
        )];
        figures.extend(self.compressed_lengths.iter().flat_map(CompressedLengths::figures));
        Section::of_figures("How the pages compress", figures, "")
    }

    fn source(&self) -> Section {
        let CorpusInfo { origin, kind, pages, sha256, captured_at, .. } = &self.corpus;
        let mut table = DataTable::of_facts();
        table.row("origin", [Cell::Text(origin.clone())]);
        let unit = if self.is_trace() { "stores" } else { "pages" };
        table.row("kind", [Cell::Text(kind.clone())]);
        table.row(unit, [Cell::Value(*pages as f64, Unit::Count)]);
        table.row("captured", [Cell::Text(captured_at.clone())]);
        table.row("sha256", [Cell::Text(sha256.clone())]);
        let mut sizes = DataTable::new(&["", "objects", "pool", "metadata", "with refused pages"]);
        for it in &self.combinations {
            let bytes = [
                it.figures.compressed_bytes,
                it.figures.pool_total_size,
                it.metadata_bytes,
                it.bytes_with_rejected,
            ];
            sizes.row(&it.label(), bytes.map(|bytes| Cell::Value(bytes as f64, Unit::Bytes)));
        }
        Section { heading: "Pages and sizes", parts: vec![Part::Table(table), Part::Table(sizes)] }
    }
}

/// Groups with the same bars become one, with all of their names.
fn merged(groups: impl Iterator<Item = Group>) -> Vec<Group> {
    let mut different: Vec<Group> = Vec::new();
    for group in groups {
        match different.iter_mut().find(|other| other.bars == group.bars) {
            Some(same) => same.name += &format!(", {}", group.name),
            None => different.push(group),
        }
    }
    different
}

impl CompressedLengths {
    /// The lengths, and the kinds of pages.
    fn figures(&self) -> Vec<Figure> {
        let scale = Scale::linear(Unit::Bytes, [0.0, PAGE_SIZE as f64]);
        let row = |kind: &KindLengths| {
            let length = |at: usize| (at * self.chunk_bytes) as f64;
            let bars = kind.pages_by_length.iter().enumerate();
            let bars = bars.map(|(at, &count)| Bar { from: length(at), to: length(at + 1), count });
            let compressed: u64 = kind.pages_by_length.iter().sum();
            let mean = kind.compressed_bytes as f64 / compressed.max(1) as f64;
            let pages = Unit::Count.text(kind.pages as f64);
            Row {
                name: kind.kind.clone(),
                words: format!("{pages} pages, mean {mean:.0} bytes"),
                bars: bars.collect(),
                marks: vec![mean],
                is_kernel: false,
            }
        };
        let rows: Vec<Row> = self.kinds.iter().map(row).collect();
        let title = format!("Compressed length, {}", self.compressor);
        let mut figure = histogram(&title, "pages", Unit::Bytes, &scale, &rows);
        figure.caption += &format!(
            " A bar is {} bytes wide. Same-filled pages are left out. A row is the kind of \
             mapping, where the file of pages has kinds.",
            self.chunk_bytes
        );
        figure.keys = vec![Key { class: "median", name: "mean" }];
        let groups = self.kinds.iter().map(|kind| {
            let bar = |name: &str, value: u64| bars::Bar::new(name, value as f64);
            let whole = kind.pages * PAGE_SIZE as u64;
            let bars = vec![
                bar("pages", whole),
                bar("same-filled", kind.same_filled_pages * PAGE_SIZE as u64),
                bar("copies of others", kind.duplicate_pages * PAGE_SIZE as u64),
                bar("compressed", kind.compressed_bytes),
            ];
            Group { name: kind.kind.clone(), bars }
        });
        let kinds = bars(
            &format!("Bytes by kind of mapping, {}", self.compressor),
            "All pages; the same-filled ones and the copies of others among them; all but the \
             same-filled ones once compressed.",
            Unit::Bytes,
            ("bytes", None),
            &groups.collect::<Vec<_>>(),
        );
        vec![figure, kinds]
    }
}
