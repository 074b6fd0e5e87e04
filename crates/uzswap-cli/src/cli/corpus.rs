//! The source of pages of a command: a file, a capture, or the built-in workload.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, IsTerminal, Read, Write};
use std::path::Path;

use anyhow::Context;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use sha2::{Digest, Sha256};

use super::Failure;
use super::capture::failure;
use super::size::check_available;
use crate::corpus::capture::{
    CaptureError, capture_file, capture_workload, is_core_dump, sample_page_set, thin_page_set,
};
use crate::corpus::observed::Observed;
use crate::corpus::page_set::{About, PageSet, PageSetError, Place, hex};
use crate::corpus::sample::SamplePlan;
use crate::corpus::size_list::{SizeList, SizesError};
use crate::corpus::workload::Workload;
use crate::measure::compressed_lengths::KindPages;
use crate::measure::experiment::CorpusFile;
use crate::measure::replay::Trace;
use crate::report::CorpusInfo;
use uzswap::files::create_private;
use uzswap::page::PAGE_SIZE;
use uzswap_sys::escape::escaped;
use uzswap_sys::held_folder::{HeldFolder, temporary_folder};

/// The pages, and what is known of them.
pub(super) struct Source {
    pub(super) file: CorpusFile,
    pub(super) info: CorpusInfo,
    /// The kinds of the pages, in their order.
    pub(super) kinds: Vec<KindPages>,
    /// Pages of each unit of a sample; empty where the pages are all.
    pub(super) units: Vec<u64>,
    /// The mappings that the pages are from, as far as they have names.
    pub(super) mappings: Vec<String>,
    /// The most resident pages of a command that was captured.
    pub(super) peak_pages: Option<u64>,
    /// Facts of the processes beside the pages, where the caller asked for them.
    pub(super) observed: Observed,
    /// The description of pages.
    about: Option<About>,
    /// Where the file is, if it was made for this command.
    _made: Option<HeldFolder>,
}

impl Source {
    /// The pages of a page set, a core dump, any file of whole pages; of a large one, a sample.
    pub(super) fn of_file(path: &Path, plan: SamplePlan) -> Result<Source, Failure> {
        if is_core_dump(path) {
            let waiting = format!("reading core dump {}", path.display());
            return Source::captured(&waiting, |output| capture_file(path, output, plan));
        }
        // A small file needs no place for a sample.
        let pages = fs::metadata(path).map_or(0, |metadata| metadata.len() / PAGE_SIZE as u64);
        if plan.has_room(pages) {
            return Source::of_page_set(path);
        }
        let made = temporary_directory()?;
        let output = made.path().join("pages");
        match sample_page_set(path, Place::temporary(&output), plan).map_err(not_captured)? {
            Some(about) => Ok(Source::of_pages(output.into(), about, Some(made))),
            None => Source::of_page_set(path),
        }
    }

    /// The pages of the built-in workload, of about `size` bytes.
    pub(super) fn of_workload(
        workload: Workload,
        seed: u64,
        size: usize,
    ) -> Result<Source, Failure> {
        check_available(size)?;
        Source::captured(&format!("building the built-in workload {workload}"), |path| {
            capture_workload(workload, seed, size, path)
        })
    }

    /// The page set that `capture` writes; `waiting` is shown meanwhile.
    pub(super) fn captured(
        waiting: &str,
        capture: impl FnOnce(Place<'_>) -> Result<About, CaptureError>,
    ) -> Result<Source, Failure> {
        let made = temporary_directory()?;
        let path = made.path().join("pages");
        let bar = bar(1, "{msg}");
        if !waiting.is_empty() {
            bar.set_message(escaped(waiting).into_owned());
        }
        let about = capture(Place::temporary(&path));
        bar.finish_and_clear();
        Ok(Source::of_pages(path.into(), about.map_err(not_captured)?, Some(made)))
    }

    /// A smaller sample of captured pages; the same where `plan` has room for all of them.
    pub(super) fn thinned(self, plan: SamplePlan) -> Result<Source, Failure> {
        let Some(about) = &self.about else { return Ok(self) };
        let made = temporary_directory()?;
        let path = made.path().join("pages");
        let thin = thin_page_set(self.file.path(), about, Place::temporary(&path), plan);
        match thin.map_err(not_captured)? {
            Some(about) => {
                let thin = Source::of_pages(path.into(), about, Some(made));
                Ok(Source { mappings: self.mappings, ..thin }) // those of all pages that were read
            }
            None => Ok(self),
        }
    }

    /// The page set at `path`, checked.
    fn of_page_set(path: &Path) -> Result<Source, Failure> {
        let set = PageSet::read(path).map_err(|error| Failure::of(error.is_machine(), error))?;
        let (path, made) = lasting(path, set.pages.as_flattened())?;
        Ok(Source::of_pages(path, set.about, made))
    }

    fn of_pages(path: OsString, about: About, made: Option<HeldFolder>) -> Source {
        let kinds = KindPages::of_ranges(&about.ranges, about.page_count);
        let (units, mappings) = (about.unit_pages(), mappings(&about));
        let info = info(about.clone());
        Source {
            file: CorpusFile::Pages(path),
            info,
            kinds,
            units,
            mappings,
            peak_pages: about.peak_pages,
            observed: about.observed.clone(),
            about: Some(about),
            _made: made,
        }
    }

    /// The list of sizes at `path`, checked.
    pub(super) fn of_sizes(path: &Path) -> Result<Source, Failure> {
        let list = fs::read(path)
            .map_err(|source| SizesError::Io { path: path.to_owned(), source })
            .and_then(|text| Ok((SizeList::parse(&text[..], path)?, text)));
        let (list, text) = list.map_err(|error| Failure::of(error.is_machine(), error))?;
        let info = CorpusInfo {
            origin: path.display().to_string(),
            kind: "sizes".to_owned(),
            pages: list.page_count() as u64,
            sha256: hex(&Sha256::digest(&text)),
            trace: None,
            captured_at: String::new(),
            sample: None,
            notes: Vec::new(),
        };
        let (path, made) = lasting(path, &text)?;
        let kinds = KindPages::unknown(info.pages);
        Ok(Source::without_ranges(CorpusFile::Sizes(path), info, kinds, made))
    }

    fn without_ranges(
        file: CorpusFile,
        info: CorpusInfo,
        kinds: Vec<KindPages>,
        made: Option<HeldFolder>,
    ) -> Source {
        Source {
            file,
            info,
            kinds,
            units: Vec::new(),
            mappings: Vec::new(),
            peak_pages: None,
            observed: Observed::default(),
            about: None,
            _made: made,
        }
    }

    /// The trace at `path`, checked.
    pub(super) fn of_trace(path: &Path) -> Result<Source, Failure> {
        // Each run reads it again.
        if fs::metadata(path).is_ok_and(|metadata| !metadata.is_file()) {
            let path = path.display();
            return Err(Failure::Usage(anyhow::anyhow!("{path} is not a regular file")));
        }
        let trace = Trace::read(path).map_err(|error| Failure::of(error.is_machine(), error))?;
        let trace = trace.info().clone();
        let sha256 = File::open(path)
            .and_then(sha256_of)
            .with_context(|| format!("cannot read {}", path.display()))
            .map_err(Failure::Machine)?;
        let info = CorpusInfo {
            origin: trace.about.origin.clone(),
            kind: "trace".to_owned(),
            pages: trace.totals.stores,
            sha256,
            captured_at: trace.about.recorded_at.clone(),
            trace: Some(trace),
            sample: None,
            notes: Vec::new(),
        };
        let own = fs::canonicalize(path)
            .with_context(|| format!("cannot find {}", path.display()))
            .map_err(Failure::Machine)?;
        Ok(Source::without_ranges(CorpusFile::Trace(own.into()), info, Vec::new(), None))
    }

    /// Number of pages or events that each run must find in the file.
    pub(super) fn count(&self) -> u64 {
        let trace = self.info.trace.as_ref();
        trace.map_or(self.info.pages, |trace| trace.totals.events())
    }
}

/// The names of mappings, each once.
fn mappings(about: &About) -> Vec<String> {
    let names: BTreeSet<&str> = about.ranges.iter().map(|range| range.name.as_str()).collect();
    names.into_iter().map(str::to_owned).collect()
}

/// An error of a capture into a folder of this command.
fn not_captured(error: CaptureError) -> Failure {
    match error {
        CaptureError::Output(
            error @ (PageSetError::Create { .. } | PageSetError::Write { .. }),
        ) => Failure::Machine(
            anyhow::Error::new(error)
                .context("cannot store the pages for the runs; set TMPDIR to a folder with space"),
        ),
        CaptureError::Output(error) => Failure::of(error.is_machine(), error),
        other => failure(other),
    }
}

fn info(about: About) -> CorpusInfo {
    CorpusInfo {
        origin: about.origin,
        kind: "pages".to_owned(),
        pages: about.page_count,
        trace: None,
        sha256: about.sha256,
        captured_at: about.captured_at,
        sample: about.sample,
        notes: about.notes,
    }
}

fn sha256_of(mut file: File) -> io::Result<String> {
    let mut hash = Sha256::new();
    let mut chunk = vec![0; 1 << 20];
    loop {
        match file.read(&mut chunk) {
            Ok(0) => return Ok(hex(&hash.finalize())),
            Ok(bytes) => hash.update(&chunk[..bytes]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// A file that every run can read: the one given, or a copy of its contents where it is a pipe.
fn lasting(path: &Path, contents: &[u8]) -> Result<(OsString, Option<HeldFolder>), Failure> {
    // By its own name: /dev/stdin is another file in another process.
    let own = fs::canonicalize(path).unwrap_or_default();
    if fs::metadata(&own).is_ok_and(|metadata| metadata.is_file()) {
        return Ok((own.into(), None));
    }
    let made = temporary_directory()?;
    let copy = made.path().join("copy");
    create_private(&copy)
        .and_then(|mut file| file.write_all(contents))
        .with_context(|| format!("cannot copy {}", path.display()))
        .map_err(Failure::Machine)?;
    Ok((copy.into(), Some(made)))
}

fn temporary_directory() -> Result<HeldFolder, Failure> {
    temporary_folder(0o700)
        .context(
            "cannot create a temporary directory for the pages; set TMPDIR to a writable \
                  folder",
        )
        .map_err(Failure::Machine)
}

/// A bar on standard error, if that is a terminal.
pub fn bar(length: u64, template: &str) -> ProgressBar {
    let target = if io::stderr().is_terminal() {
        ProgressDrawTarget::stderr()
    } else {
        ProgressDrawTarget::hidden()
    };
    let style = ProgressStyle::with_template(template).expect("the template is a constant");
    ProgressBar::with_draw_target(Some(length), target).with_style(style.progress_chars("##-"))
}
