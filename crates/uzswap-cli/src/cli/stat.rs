//! `uzswap stat`: prints the contents of a snapshot.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::anyhow;
use serde::{Serialize, Serializer};

use super::json::JsonOutput;
use super::{Failure, print};
use crate::corpus::page_set::rfc3339;
use crate::human_size::human_size;
use crate::report::Schema;
use crate::report::format::{nanoseconds, thousands};
use uzswap::compressor::{Compressor, ObjectFormat};
use uzswap::page::PAGE_SIZE;
use uzswap::zswap::snapshot::{
    PageForm, SnapshotHeader, SnapshotPage, SnapshotReadError, SnapshotReader, SnapshotSummary,
};
use uzswap::zswap::{CounterKind, Stats};

/// The widest name that is printed whole.
const NAME_COLUMNS: usize = 28;

/// What `uzswap stat` is asked for.
#[derive(Debug, clap::Args)]
pub(super) struct Stat {
    /// The snapshot
    #[arg(value_name = "FILE")]
    file: PathBuf,

    /// Decompress every page too; checksums and lengths are always checked
    #[arg(long)]
    verify: bool,

    /// Print JSON instead of text; with =FILE, write it there beside the text
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true)]
    json: Option<Option<PathBuf>>,

    /// Print the store's statistics in Prometheus text format
    #[arg(long, conflicts_with = "json")]
    prometheus: bool,
}

/// The result; with `--json`, in an envelope.
#[derive(Debug, Serialize)]
struct Report {
    file: String,
    program: String,
    /// When the snapshot was begun, in seconds since 1970; in RFC 3339 as JSON.
    #[serde(serialize_with = "as_rfc3339")]
    written_at: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    object_format: Option<ObjectFormat>,
    stats: Stats,
    /// What is in the file.
    pages: u64,
    #[serde(flatten)]
    summary: SnapshotSummary,
    /// Pages that were decompressed, with `--verify`.
    verified_pages: Option<u64>,
}

impl Stat {
    pub(super) fn run(self) -> Result<(), Failure> {
        let mut output = JsonOutput::open(self.json.as_ref())?;
        let mut reader = SnapshotReader::open(&self.file).map_err(failure)?;
        let mut checker = self.verify.then(|| Checker::new(reader.header())).transpose()?;
        while let Some(block) = reader.next_block().map_err(failure)? {
            if let Some(checker) = &mut checker {
                block.pages().try_for_each(|page| checker.check(page, &self.file))?;
            }
        }
        let summary = *reader.summary().expect("all of it was read");
        let SnapshotHeader { program, created_at, object_format, stats } = reader.header().clone();
        let report = Report {
            file: self.file.display().to_string(),
            program,
            written_at: created_at,
            object_format,
            stats,
            pages: summary.pages(),
            summary,
            verified_pages: checker.map(|checker| checker.pages),
        };
        if self.prometheus {
            return print(&report.stats.prometheus());
        }
        output.print(Schema::Stat, &report, || report.text())
    }
}

fn failure(error: SnapshotReadError) -> Failure {
    match &error.fault {
        fault if fault.is_damage() => Failure::Check(error.into()),
        fault => Failure::of(fault.is_machine(), error),
    }
}

/// Decompresses pages.
struct Checker {
    compressor: Box<dyn Compressor>,
    pages: u64,
}

impl Checker {
    fn new(header: &SnapshotHeader) -> Result<Checker, Failure> {
        let compressor = header.objects().decoder().ok_or_else(|| {
            let name = &header.stats.options.compressor;
            Failure::Usage(anyhow!(
                "--verify: no compressor of this uzswap reads the objects of \
                                    '{name}'"
            ))
        })?;
        Ok(Checker { compressor, pages: 0 })
    }

    fn check(&mut self, page: SnapshotPage<'_>, file: &std::path::Path) -> Result<(), Failure> {
        self.pages += 1;
        let PageForm::Object(object) = page.form else { return Ok(()) };
        self.compressor.decompress(object, &mut [0; PAGE_SIZE]).map_err(|error| {
            Failure::Check(anyhow!(
                "snapshot {}: page {} of {} bytes: {error}",
                file.display(),
                page.key,
                object.len()
            ))
        })
    }
}

impl Report {
    fn text(&self) -> String {
        let Report { program, written_at, stats, summary, .. } = self;
        let mut text = Text(String::new());
        text.row("snapshot", &printable(&self.file, 88));
        text.row(
            "written",
            &format!("{} by {}", age(*written_at), printable(program, NAME_COLUMNS)),
        );
        text.row("file", &format!("{}, complete", human_size(summary.file_bytes)));
        if let Some(pages) = self.verified_pages {
            text.row("verified", &format!("{} decompressed without error", counted(pages)));
        }
        let options = &stats.options;
        let records = match &options.lru {
            Some(lru) => {
                format!("{lru}, checksums {}", if options.checksum { "on" } else { "off" })
            }
            None => "no records".to_owned(),
        };
        text.row(
            "store",
            &format!("{}, {}, {records}", options.zpool, printable(&options.compressor, 28)),
        );
        text.line("\nPAGES");
        self.pages(&mut text);
        self.memory(&mut text);
        tenants(stats, &mut text);
        text.line("\nCOUNTERS that are not 0");
        for counter in stats
            .counters
            .list()
            .filter(|counter| counter.kind == CounterKind::Total && counter.value > 0)
        {
            let help = printable(counter.help.trim_end_matches('.'), 58);
            text.line(&format!("  {:<23} {:>14}  {help}", counter.name, thousands(counter.value)));
        }
        latencies(stats, &mut text);
        text.0
    }

    fn pages(&self, text: &mut Text) {
        let summary = &self.summary;
        let all = self.pages;
        text.figure("all", all, &format!("{} of pages", human_size(all * PAGE_SIZE as u64)));
        let share = |pages: u64| match all {
            0 => String::new(),
            _ => format!("{:5.1} %", pages as f64 * 100.0 / all as f64),
        };
        for (name, pages) in [
            ("one repeated word", summary.same_filled_pages),
            ("compressed, in the pool", summary.pool_objects),
            ("as they are, in the pool", summary.pool_as_is_pages),
            ("compressed, in the backing", summary.backing_objects),
            ("as they are, in the backing", summary.backing_as_is_pages),
        ] {
            if pages > 0 {
                text.figure(name, pages, &share(pages));
            }
        }
        if summary.skipped_pages > 0 {
            text.figure("left out: corrupt", summary.skipped_pages, "");
        }
        if summary.data_bytes > 0 {
            let ratio = (all * PAGE_SIZE as u64) as f64 / summary.data_bytes as f64;
            text.line(&format!(
                "  {:<28} {ratio:>14.2}  pages to data ({})",
                "ratio",
                human_size(summary.data_bytes)
            ));
        }
    }

    fn memory(&self, text: &mut Text) {
        let stats = &self.stats;
        let memory = &stats.memory;
        text.line("\nMEMORY");
        let limit = match stats.options.max_pool_bytes {
            Some(bytes) => format!("limit {}", human_size(bytes)),
            None => "no limit".to_owned(),
        };
        text.size("pool", memory.pool_bytes, &limit);
        text.size("pool, at most", memory.pool_peak_bytes, "");
        text.size("objects in it", memory.compressed_bytes, "");
        text.size("index, records, tables", memory.metadata_bytes(), "");
        if let Some(backing) = &stats.backing {
            let blocks = PAGE_SIZE as u64;
            let of = human_size(backing.blocks.saturating_mul(blocks));
            let name = printable(&backing.name, 44);
            let used = backing.used_blocks.saturating_mul(blocks);
            text.size("backing", used, &format!("of {of}: {name}"));
        }
    }
}

fn tenants(stats: &Stats, text: &mut Text) {
    if stats.tenants.len() < 2 {
        return;
    }
    text.line("\nTENANTS");
    text.line(&format!(
        "  {:>4}  {:<NAME_COLUMNS$} {:>6} {:>12} {:>12} {:>12}  writeback",
        "", "name", "below", "bytes", "most", "limit"
    ));
    for tenant in &stats.tenants {
        let limit = match tenant.options.max_bytes {
            u64::MAX => "none".to_owned(),
            bytes => human_size(bytes),
        };
        let parent = tenant.parent.map_or_else(String::new, |parent| parent.to_string());
        text.line(&format!(
            "  {:>4}  {:<NAME_COLUMNS$} {parent:>6} {:>12} {:>12} {limit:>12}  {}",
            tenant.number,
            printable(&tenant.options.name, NAME_COLUMNS),
            human_size(tenant.current_bytes),
            human_size(tenant.peak_bytes),
            if tenant.options.writeback { "yes" } else { "no" },
        ));
    }
}

fn latencies(stats: &Stats, text: &mut Text) {
    if stats.latencies.verbs().iter().all(|(_, counts)| counts.count == 0) {
        return;
    }
    text.line("\nLATENCIES");
    text.line(&format!(
        "  {:<14} {:>14} {:>12} {:>12} {:>12}",
        "", "count", "mean", "p50 below", "p99 below"
    ));
    for (name, counts) in stats.latencies.verbs().into_iter().filter(|(_, n)| n.count > 0) {
        text.line(&format!(
            "  {:<14} {:>14} {:>12} {:>12} {:>12}",
            name.replace('_', " "),
            thousands(counts.count),
            nanoseconds(counts.sum_ns / counts.count),
            nanoseconds(counts.percentile_ns(50.0)),
            nanoseconds(counts.percentile_ns(99.0)),
        ));
    }
}

/// Lines of at most 100 columns.
struct Text(String);

impl Text {
    fn line(&mut self, line: &str) {
        writeln!(self.0, "{}", line.trim_end()).expect("a string takes all");
    }

    fn row(&mut self, name: &str, value: &str) {
        self.line(&format!("{name:<10} {value}"));
    }

    fn figure(&mut self, name: &str, pages: u64, note: &str) {
        self.line(&format!("  {name:<28} {:>14}  {note}", thousands(pages)));
    }

    fn size(&mut self, name: &str, bytes: u64, note: &str) {
        self.line(&format!("  {name:<28} {:>14}  {note}", human_size(bytes)));
    }
}

/// Text of others: without control characters, and cut to so many columns, 3 at least.
pub(super) fn printable(text: &str, columns: usize) -> String {
    let clean: String = text
        .chars()
        .map(|c| if c.is_ascii_graphic() || c == ' ' { c } else { '?' })
        .take(columns + 1)
        .collect();
    match clean.len() > columns {
        true => format!("{}...", &clean[..columns - 3]),
        false => clean,
    }
}

/// As JSON has it: null from the year 10000 on, which RFC 3339 cannot write.
fn as_rfc3339<S: Serializer>(seconds: &u64, serializer: S) -> Result<S::Ok, S::Error> {
    const YEAR_10000: u64 = 253_402_300_800;
    let seconds = Some(*seconds).filter(|&seconds| seconds < YEAR_10000);
    seconds.map(|seconds| rfc3339(UNIX_EPOCH + Duration::from_secs(seconds))).serialize(serializer)
}

fn age(created_at: u64) -> String {
    let then = UNIX_EPOCH.checked_add(Duration::from_secs(created_at));
    let Some(since) = then.and_then(|then| SystemTime::now().duration_since(then).ok()) else {
        return "in the future".to_owned();
    };
    match since.as_secs() {
        seconds @ 0..120 => format!("{seconds} s ago"),
        seconds @ 120..7200 => format!("{} min ago", seconds / 60),
        seconds @ 7200..172_800 => format!("{} h ago", seconds / 3600),
        seconds => format!("{} days ago", seconds / 86_400),
    }
}

fn counted(pages: u64) -> String {
    format!("{} {}", thousands(pages), if pages == 1 { "page" } else { "pages" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_printed_for_people() {
        assert_eq!(printable("a\x1b[31m\u{e9}", 20), "a?[31m?");
        assert_eq!(printable("0123456789", 9), "012345...");
        assert_eq!(age(u64::MAX), "in the future");
    }
}
