//! The page of a command under a limit.

use serde::Deserialize;

use super::charts::box_plot::{self, box_plot};
use super::charts::scatter::{Axis, Point, scatter};
use super::figure::{Cell, DataTable, Figure};
use super::section::{LatencyRow, Part, Section, Timelines, latencies, memory_over_time};
use super::unit::Unit;
use super::verdict::Verdict;
use uzswap::page::PAGE_SIZE;
use uzswap::zswap::LatencyCounts;
use uzswap_pager::RunSample;

/// The fields of the document that the page shows.
#[derive(Debug, Deserialize)]
pub(super) struct Live {
    program: Program,
    settings: Settings,
    warm_up: Run,
    combinations: Vec<Combination>,
    #[serde(flatten)]
    verdict: Verdict,
}

#[derive(Debug, Deserialize)]
struct Program {
    argv: Vec<String>,
    prepare: Option<String>,
    check: Option<String>,
    cleanup: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Settings {
    limit_bytes: u64,
    rounds: u64,
}

#[derive(Debug, Deserialize)]
struct Combination {
    label: String,
    engine: String,
    pool_peak_bytes: u64,
    pool_peak_pages: u64,
    store_ns: LatencyCounts,
    load_ns: LatencyCounts,
    fault_ns: LatencyCounts,
    runs: Vec<Run>,
    failure: Option<Failure>,
}

#[derive(Debug, Deserialize)]
struct Failure {
    message: String,
}

#[derive(Debug, Deserialize)]
struct Run {
    real_s: f64,
    user_s: f64,
    sys_s: f64,
    peak_bytes: u64,
    pool_peak_bytes: u64,
    metadata_peak_bytes: u64,
    stored_pages: u64,
    loaded_pages: u64,
    refused_pages: u64,
    timeline: Vec<RunSample>,
}

impl Combination {
    fn is_kernel(&self) -> bool {
        self.engine == "kernel"
    }

    fn mean(&self, of: impl Fn(&Run) -> f64) -> Option<f64> {
        let runs = self.runs.len();
        (runs > 0).then(|| self.runs.iter().map(of).sum::<f64>() / runs as f64)
    }
}

impl Live {
    /// The words of its title.
    pub(super) fn title(&self) -> String {
        self.program.argv.join(" ")
    }

    /// Its sections.
    pub(super) fn sections(self) -> Vec<Section> {
        let figures = vec![
            Section {
                heading: "Run times",
                parts: vec![
                    Part::Figure(self.times("From start to end", |run| run.real_s)),
                    Part::Figure(self.times("In the kernel", |run| run.sys_s)),
                ],
            },
            self.latencies(),
            self.memory(),
            self.density(),
            self.command(),
        ];
        self.verdict.around(figures, &[])
    }

    fn times(&self, title: &str, of: fn(&Run) -> f64) -> Figure {
        let row = |combination: &Combination| box_plot::Row {
            name: combination.label.clone(),
            values: combination.runs.iter().map(of).collect(),
            is_kernel: combination.is_kernel(),
            why_none: match &combination.failure {
                Some(failure) => failure.message.clone(),
                None => "no run ended well".to_owned(),
            },
        };
        let rows: Vec<_> = self.combinations.iter().map(row).collect();
        let mut figure = box_plot(title, Unit::Seconds, &rows);
        let alone = Unit::Seconds.text(of(&self.warm_up));
        figure.explain_kernel(self.has_kernel());
        figure.caption += &format!(" Without a limit the command took {alone}.");
        figure
    }

    fn has_kernel(&self) -> bool {
        self.combinations.iter().any(Combination::is_kernel)
    }

    fn latencies(&self) -> Section {
        let figure = |title, things, of: fn(&Combination) -> &LatencyCounts| {
            fn row<'a>(it: &'a Combination, counts: &'a LatencyCounts) -> LatencyRow<'a> {
                LatencyRow { name: &it.label, counts, is_kernel: it.is_kernel() }
            }
            let row = |it| row(it, of(it));
            latencies(title, things, &self.combinations.iter().map(row).collect::<Vec<_>>())
        };
        let figures = [
            figure("Store", "stores", |it| &it.store_ns),
            figure("Load", "loads", |it| &it.load_ns),
            figure("Fault, as the program sees it", "faults", |it| &it.fault_ns),
        ];
        let figures = figures.into_iter().flatten().collect();
        Section::of_figures("Latencies", figures, "No run stored a page.")
    }

    fn memory(&self) -> Section {
        let all: Vec<Timelines<'_>> = self
            .combinations
            .iter()
            .map(|it| Timelines {
                name: &it.label,
                runs: it.runs.iter().map(|run| &run.timeline[..]).collect(),
            })
            .collect();
        let figures = memory_over_time(&all, Some(self.settings.limit_bytes));
        Section::of_figures("Memory over time", figures, "There is no combination.")
    }

    fn density(&self) -> Section {
        let point = |it: &Combination| {
            let bytes = |run: &Run| {
                let refused = run.refused_pages * PAGE_SIZE as u64;
                (run.pool_peak_bytes + run.metadata_peak_bytes + refused) as f64
            };
            let (x, y) = (it.mean(|run| run.real_s)?, it.mean(bytes)?);
            Some(Point { name: it.label.clone(), x, y, is_kernel: it.is_kernel() })
        };
        let points: Vec<Point> = self.combinations.iter().filter_map(point).collect();
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
        figure.explain_kernel(self.has_kernel());
        Section { heading: "Density against speed", parts: vec![Part::Figure(figure)] }
    }

    fn command(&self) -> Section {
        let Program { argv, prepare, check, cleanup, .. } = &self.program;
        let mut table = DataTable::of_facts();
        table.row("command", [Cell::Text(argv.join(" "))]);
        for (name, text) in [("prepare", prepare), ("check", check), ("cleanup", cleanup)] {
            if let Some(text) = text {
                table.row(name, [Cell::Text(text.clone())]);
            }
        }
        table.row("limit", [Cell::Value(self.settings.limit_bytes as f64, Unit::Bytes)]);
        table.row("rounds", [Cell::Value(self.settings.rounds as f64, Unit::Count)]);
        Section {
            heading: "Command and runs",
            parts: vec![Part::Table(table), Part::Table(self.pools()), Part::Table(self.runs())],
        }
    }

    fn pools(&self) -> DataTable {
        let mut table = DataTable::new(&["", "pool at its peak", "pages in it", "failure"]);
        for it in &self.combinations {
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

    fn runs(&self) -> DataTable {
        let mut table = DataTable::new(&[
            "", "run", "time", "user", "kernel", "peak", "pool", "stored", "loaded", "refused",
        ]);
        let warm_up = [("without a limit", 1, &self.warm_up)];
        let runs = self.combinations.iter().flat_map(|it| {
            it.runs.iter().enumerate().map(|(at, run)| (it.label.as_str(), at + 1, run))
        });
        for (label, number, run) in warm_up.into_iter().chain(runs) {
            let mut cells = vec![Cell::Value(number as f64, Unit::Count)];
            cells
                .extend([run.real_s, run.user_s, run.sys_s].map(|s| Cell::Value(s, Unit::Seconds)));
            let bytes = [run.peak_bytes, run.pool_peak_bytes];
            cells.extend(bytes.map(|bytes| Cell::Value(bytes as f64, Unit::Bytes)));
            let pages = [run.stored_pages, run.loaded_pages, run.refused_pages];
            cells.extend(pages.map(|pages| Cell::Value(pages as f64, Unit::Count)));
            table.row(label, cells);
        }
        table
    }
}
