//! An experiment: many runs, each in a fresh process, the combinations taking turns.
//!
//! Remains of a run in an allocator, in caches of the C library or in the resident size end with
//! its process. A machine that slows down half way slows every combination.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::corpus::size_list::{SizeList, SizesError, StripPadding};
use crate::measure::child::{self, ChildError, Refusal, with_causes};
use crate::measure::compressed_lengths::{self, KindLengths, KindPages};
use crate::measure::limited_pool::{self, LimitParts, LimitSettings, Limits, Meter};
use crate::measure::replay::{
    Accesses, Corpus, FreedHalf, ReplayError, RunResult, Trace, replay, replay_and_access,
    replay_trace,
};
use crate::measure::turns::{Cell, Progress, Study, StudyError, take_turns};
use uzswap::compressor::{Compressor, CompressorKind, FilteredKind};
use uzswap::index::IndexKind;
use uzswap::page::{PAGE_SIZE, Page};
use uzswap::same_filled::{SameFilled, SameFilledCheck};
use uzswap::zpool::zsmalloc::{ChainRule, HandleHeader, ObjectMapping, ZsmallocOptions};
use uzswap::zpool::{HostPages, ZpoolKind};
use uzswap::zswap::{BuildError, Incompressible, Zswap, ZswapOptions};
use uzswap_sys::process::disable_huge_pages;

/// The hidden subcommand that a child is started with.
pub const CHILD_COMMAND: &str = "compare-run";

/// The file that every run reads its pages from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum CorpusFile {
    /// Pages, 4096 bytes each and nothing else.
    Pages(OsString),
    /// A list of compressed sizes.
    Sizes(OsString),
    /// A trace: what was done, and the pages.
    Trace(OsString),
}

impl CorpusFile {
    /// Where it is.
    pub fn path(&self) -> &Path {
        let (CorpusFile::Pages(path) | CorpusFile::Sizes(path) | CorpusFile::Trace(path)) = self;
        Path::new(path)
    }
}

/// The combinations to compare.
#[derive(Debug, Clone)]
pub struct Experiment {
    /// The pages.
    pub corpus: CorpusFile,
    /// How many there are, of a trace its events: a run that finds another number is an error.
    pub pages: u64,
    /// The kinds of the pages, in their order, where compressed lengths count.
    pub kinds: Option<Vec<KindPages>>,
    /// Pages of each unit of a sample; empty where the pages are all.
    pub units: Vec<u64>,
    /// The allocators, in the order they take turns.
    pub zpools: Vec<ZpoolKind>,
    /// The indexes.
    pub indexes: Vec<IndexKind>,
    /// zsmalloc's object mappings.
    pub mappings: Vec<ObjectMapping>,
    /// Pages that are compressed together.
    pub unit_pages: Vec<usize>,
    /// The compressors, with their filters; a list of sizes has its own instead.
    pub compressors: Vec<FilteredKind>,
    /// Runs of each combination, at most.
    pub runs: usize,
    /// No run begins, after the first of each combination, with which the experiment would take
    /// longer.
    pub time_max: Option<Duration>,
    /// Whether a run ends once all pages were stored and loaded.
    pub is_brief: bool,
    /// Settings shared by all of them.
    pub settings: Settings,
    /// Bytes in front of each object, by allocator; 0 for those that are not named.
    pub object_headers: Vec<(ZpoolKind, usize)>,
    /// Limits of the pools, if they have any.
    pub limits: Option<Limits>,
}

/// Settings shared by all combinations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settings {
    /// The longest zspage of zsmalloc.
    pub chain_size: usize,
    /// Its rule for choosing a chain.
    pub chain_rule: ChainRule,
    /// Where it keeps an object's handle.
    pub handle_header: HandleHeader,
    /// The size of the pages that the kernel gives.
    pub host_pages: HostPages,
    /// Policy for pages that do not compress.
    pub incompressible: Incompressible,
    /// Which pages are freed.
    pub free: FreedHalf,
    /// How same-filled pages are found.
    pub same_filled: SameFilledCheck,
    /// Whether only zero pages count as same-filled.
    pub same_filled_zero_only: bool,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            chain_size: 8,
            chain_rule: ChainRule::LeastWaste,
            handle_header: HandleHeader::InObject,
            host_pages: HostPages::Small,
            incompressible: Incompressible::Reject,
            free: FreedHalf::Random,
            same_filled: SameFilledCheck::default(),
            same_filled_zero_only: false,
        }
    }
}

/// The parts that combinations differ in, beside the compressor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Parts {
    /// The allocator.
    pub zpool: ZpoolKind,
    /// The index.
    pub index: IndexKind,
    /// The way to an object in two pages: zsmalloc alone has such objects.
    pub mapping: Option<ObjectMapping>,
    /// Pages that are compressed together.
    #[serde(default = "single", skip_serializing_if = "is_single")]
    pub unit_pages: usize,
    /// The limit of the pool, and what becomes of pages then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<LimitParts>,
}

pub(super) fn single() -> usize {
    1
}

pub(super) fn is_single(&unit_pages: &usize) -> bool {
    unit_pages == 1
}

/// The size of so many pages: `16K`.
pub(super) fn unit_name(pages: usize) -> String {
    format!("{}K", pages * PAGE_SIZE / 1024)
}

/// One run: the task of a child.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RunSpec {
    /// The pages.
    pub corpus: CorpusFile,
    /// How many there must be.
    pub pages: u64,
    /// Pages of each unit of a sample, where their sums are wanted: of the first run alone.
    #[serde(default)]
    pub units: Vec<u64>,
    /// The parts beside the compressor.
    pub parts: Parts,
    /// The compressor; of no matter to a list of sizes.
    pub compressor: FilteredKind,
    /// Whether it ends once all pages were stored and loaded.
    #[serde(default)]
    pub is_brief: bool,
    /// Bytes in front of each object.
    pub object_header_bytes: usize,
    /// Settings shared by all combinations.
    pub settings: Settings,
    /// Settings shared by all limited pools.
    pub limit_settings: Option<LimitSettings>,
    /// The kinds of the pages, where compressed lengths are counted after the run.
    pub kinds: Option<Vec<KindPages>>,
}

/// The reply of a child.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Reply {
    run: RunResult,
    lengths: Option<Vec<KindLengths>>,
}

/// The parts of a store, and the runs of it.
#[derive(Debug, Clone)]
pub struct Combination {
    /// The parts beside the compressor.
    pub parts: Parts,
    /// Their name: the allocator's, and those of parts of which several are compared.
    pub name: String,
    /// The compressor's name.
    pub compressor: String,
    /// Bytes in front of each object.
    pub object_header_bytes: usize,
    /// Its runs, first to last.
    pub runs: Vec<RunResult>,
    /// The compressed lengths of the pages, from the first combination with its compressor.
    pub lengths: Option<Vec<KindLengths>>,
}

impl Combination {
    /// Its name and its compressor.
    pub fn label(&self) -> String {
        format!("{} {}", self.name, self.compressor)
    }
}

impl Experiment {
    /// Runs it.
    ///
    /// # Errors
    ///
    /// At the first run that does not end well. No child is left running.
    pub fn run(&self, progress: Progress<'_>) -> Result<Vec<Combination>, StudyError> {
        let cells = take_turns(self, progress)?;
        let whole = |Cell { variant: (combination, _), runs }: Cell<_, Reply>| {
            let lengths = runs.iter().find_map(|reply| reply.lengths.clone());
            let runs = runs.into_iter().map(|reply| reply.run).collect();
            Combination { runs, lengths, ..combination }
        };
        Ok(cells.into_iter().map(whole).collect())
    }

    fn combinations(&self) -> Vec<(Combination, FilteredKind)> {
        let compressors = match self.corpus {
            CorpusFile::Pages(_) | CorpusFile::Trace(_) => &self.compressors[..],
            CorpusFile::Sizes(_) => &[CompressorKind::None.into()],
        };
        let mut combinations = Vec::new();
        for &compressor in compressors {
            let compressor_name = match self.corpus {
                CorpusFile::Pages(_) | CorpusFile::Trace(_) => compressor.to_string(),
                CorpusFile::Sizes(_) => StripPadding::NAME.to_owned(),
            };
            for parts in self.parts() {
                let header = self.object_headers.iter().find(|(kind, _)| *kind == parts.zpool);
                let combination = Combination {
                    parts,
                    name: self.name_of(parts),
                    compressor: compressor_name.clone(),
                    object_header_bytes: header.map_or(0, |(_, bytes)| *bytes),
                    runs: Vec::new(),
                    lengths: None,
                };
                combinations.push((combination, compressor));
            }
        }
        combinations
    }

    /// Every choice of parts, the first of each list first.
    fn parts(&self) -> Vec<Parts> {
        let limits: Vec<Option<LimitParts>> = match &self.limits {
            None => vec![None],
            Some(limits) => limits.parts().into_iter().map(Some).collect(),
        };
        let mut parts = Vec::new();
        for &zpool in &self.zpools {
            let mappings = match zpool {
                ZpoolKind::Zsmalloc => self.mappings.iter().copied().map(Some).collect(),
                _ => vec![None],
            };
            for mapping in mappings {
                for &index in &self.indexes {
                    for &unit_pages in &self.unit_pages {
                        let with = |limit| Parts { zpool, index, mapping, unit_pages, limit };
                        parts.extend(limits.iter().copied().map(with));
                    }
                }
            }
        }
        parts
    }

    fn name_of(&self, parts: Parts) -> String {
        let mut name = parts.zpool.to_string();
        if let Some(mapping) = parts.mapping
            && self.mappings.len() > 1
        {
            name += &format!(" {mapping}");
        }
        if self.indexes.len() > 1 {
            name += &format!(" {}", parts.index);
        }
        if self.unit_pages[..] != [1] {
            name += &format!(" {}", unit_name(parts.unit_pages));
        }
        if let (Some(limits), Some(limit)) = (&self.limits, parts.limit) {
            let limit = limits.name_of(limit);
            if name == parts.zpool.to_string() && self.zpools.len() == 1 && !limit.is_empty() {
                // Labels are long enough without what is the same in all of them.
                name.clear();
            }
            name = format!("{name}{limit}").trim_start().to_owned();
        }
        name
    }
}

impl Study for Experiment {
    type Variant = (Combination, FilteredKind);
    type Run = Reply;

    fn rounds(&self) -> usize {
        self.runs
    }

    fn groups(&self) -> Vec<Vec<(Combination, FilteredKind)>> {
        vec![self.combinations()]
    }

    fn label(&self, (combination, _): &(Combination, FilteredKind)) -> String {
        combination.label()
    }

    fn measure(
        &self,
        (combination, compressor): &(Combination, FilteredKind),
        round: usize,
    ) -> Result<Reply, ChildError> {
        let is_first = round == 0;
        // Lengths are those of a compressor, whatever the parts.
        let is_counted = is_first && self.parts().first() == Some(&combination.parts);
        let spec = RunSpec {
            corpus: self.corpus.clone(),
            pages: self.pages,
            units: if is_first { self.units.clone() } else { Vec::new() },
            parts: combination.parts,
            compressor: *compressor,
            is_brief: self.is_brief,
            object_header_bytes: combination.object_header_bytes,
            settings: self.settings,
            limit_settings: self.limits.as_ref().map(|limits| limits.settings.clone()),
            kinds: self.kinds.clone().filter(|_| is_counted),
        };
        child::ask(&[CHILD_COMMAND], &spec)
    }

    fn has_time(&self, rounds_before: usize, elapsed: Duration) -> bool {
        has_time(self.time_max, rounds_before, elapsed)
    }
}

/// The child's side: reads a [`RunSpec`], does the run, writes the reply.
///
/// # Errors
///
/// Of the two streams, and of a spec that is none.
pub fn child(input: impl Read, output: impl Write) -> io::Result<()> {
    child::answer(input, output, |spec: RunSpec| {
        let corpus = match &spec.corpus {
            CorpusFile::Pages(path) => read_pages(Path::new(path))
                .map(Corpus::Pages)
                .map_err(|error| format!("cannot read {}: {error}", Path::new(path).display())),
            CorpusFile::Sizes(path) => SizeList::read(Path::new(path))
                .map(Corpus::Sizes)
                .map_err(|error: SizesError| with_causes(&error)),
            CorpusFile::Trace(path) => {
                let run = replay_trace_spec(&spec, Path::new(path))?;
                return Ok(Reply { run, lengths: None });
            }
        };
        let corpus = corpus.map_err(Refusal::CannotRun)?;
        unchanged(&spec, corpus.page_count() as u64, "pages")?;
        let run = replay_spec(&spec, &corpus)?;
        Ok(Reply { run, lengths: lengths(&spec, &corpus) })
    })
}

/// The compressed lengths, where the spec asks for them. They are no part of the run and its times.
fn lengths(spec: &RunSpec, corpus: &Corpus) -> Option<Vec<KindLengths>> {
    let settings = spec.settings;
    let same_filled =
        SameFilled { check: settings.same_filled, zero_only: settings.same_filled_zero_only };
    let compressor = compressor_of(spec, corpus);
    let kinds = spec.kinds.as_ref()?;
    Some(compressed_lengths::measure(corpus, &*compressor, same_filled, kinds))
}

fn compressor_of(spec: &RunSpec, corpus: &Corpus) -> Box<dyn Compressor> {
    match corpus {
        Corpus::Pages(_) => spec.compressor.build(),
        Corpus::Sizes(_) => Box::new(StripPadding),
    }
}

/// A run of a trace.
fn replay_trace_spec(spec: &RunSpec, path: &Path) -> Result<RunResult, Refusal> {
    let trace = Trace::read(path).map_err(|error| Refusal::CannotRun(with_causes(&error)))?;
    unchanged(spec, trace.info().totals.events(), "events")?;
    let options = options_of(spec);
    replay_trace(&trace, &spec.compressor.to_string(), || store(Zswap::new(options)))
        .map_err(refusal)
}

/// A store whose options come from the command line.
fn store(built: Result<Zswap, BuildError>) -> Zswap {
    built.expect("the command line has checked the ranges")
}

/// Its options, of which small pages hold for the whole process.
fn options_of(spec: &RunSpec) -> ZswapOptions {
    let settings = spec.settings;
    if settings.host_pages == HostPages::Small {
        // Nor for the index and the tables: a huge page would count as what is in it.
        disable_huge_pages();
    }
    ZswapOptions::bare()
        .zpool(spec.parts.zpool)
        .zsmalloc(
            ZsmallocOptions::default()
                .chain_size(settings.chain_size)
                .chain_rule(settings.chain_rule)
                .handle_header(settings.handle_header)
                .mapping(spec.parts.mapping.unwrap_or_default()),
        )
        .compressor(spec.compressor.compressor)
        .filter(spec.compressor.filter)
        .unit_pages(spec.parts.unit_pages)
        .index(spec.parts.index)
        .incompressible(settings.incompressible)
        .object_header_bytes(spec.object_header_bytes)
        .host_pages(settings.host_pages)
        .same_filled(SameFilled {
            check: settings.same_filled,
            zero_only: settings.same_filled_zero_only,
        })
}

fn replay_spec(spec: &RunSpec, corpus: &Corpus) -> Result<RunResult, Refusal> {
    let settings = spec.settings;
    let options = options_of(spec);
    let name = match corpus {
        Corpus::Pages(_) => spec.compressor.to_string(),
        Corpus::Sizes(_) => StripPadding::NAME.to_owned(),
    };
    let compressor = || compressor_of(spec, corpus);
    let (Some(parts), Some(limit)) = (spec.parts.limit, &spec.limit_settings) else {
        let build = || store(Zswap::with_compressor(options, compressor()));
        let freed = (!spec.is_brief).then_some(settings.free);
        return replay(corpus, &spec.units, freed, &name, build).map_err(refusal);
    };
    let meter = Arc::new(Meter::default());
    let backing = limited_pool::open(limit, parts, &meter)
        .map_err(|error| Refusal::CannotRun(format!("no backing: {}", with_causes(&error))))?;
    let accesses =
        Accesses::new(corpus.page_count(), limit.accesses, meter, parts.shrinker.options());
    replay_and_access(corpus, &[], settings.free, &name, Some(accesses), || {
        limited_pool::build(options, limit, parts, compressor(), backing)
    })
    .map_err(refusal)
}

fn refusal(error: ReplayError) -> Refusal {
    match error.is_check() {
        true => Refusal::Check(with_causes(&error)),
        false => Refusal::CannotRun(with_causes(&error)),
    }
}

/// Checks that there are as many pages, or events, as there were when the file was checked.
fn unchanged(spec: &RunSpec, found: u64, what: &str) -> Result<(), Refusal> {
    let expected = spec.pages;
    if found == expected {
        return Ok(());
    }
    Err(Refusal::CannotRun(format!(
        "{} has {found} {what} now and had {expected} before the first run; compare needs a file \
         that does not change",
        spec.corpus.path().display()
    )))
}

/// The pages of a file that the parent has checked already.
fn read_pages(path: &Path) -> io::Result<Vec<Page>> {
    let mut file = File::open(path)?;
    let bytes = usize::try_from(file.metadata()?.len()).map_err(io::Error::other)?;
    let mut pages: Vec<Page> = Vec::new();
    pages.try_reserve_exact(bytes / PAGE_SIZE).map_err(io::Error::other)?;
    pages.resize(bytes / PAGE_SIZE, [0; PAGE_SIZE]);
    file.read_exact(pages.as_flattened_mut())?;
    Ok(pages)
}

/// Whether one more run of each combination ends in time, if it takes as long as each of those
/// before, which took `elapsed` together. The first does.
fn has_time(time_max: Option<Duration>, runs_before: usize, elapsed: Duration) -> bool {
    let each = elapsed.div_f64(runs_before.max(1) as f64);
    runs_before == 0 || time_max.is_none_or(|most| elapsed + each <= most)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_run_begins_that_would_end_too_late() {
        let seconds = Duration::from_secs;
        let has_time = |runs, elapsed| has_time(Some(seconds(100)), runs, seconds(elapsed));
        assert!(has_time(0, 500));
        assert!(has_time(1, 50) && !has_time(1, 51));
        assert!(has_time(2, 66) && !has_time(2, 67));
        assert!(super::has_time(None, 4, seconds(5000)));
    }
}
