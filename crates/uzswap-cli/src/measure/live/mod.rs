//! The live study: a real command under a limit, for each combination of parts in turns.
//!
//! ```text
//!   warm-up, no limit --> peak, expected --check
//!                           |
//!   round 1: A B C   round 2: C B A ...        (turns)
//!                           |
//!   one run: folder, --prepare, command under an engine, --check, --cleanup   (command, engine)
//!                           |
//!   differences with intervals, tables         (report)
//! ```

mod child;
mod command;
mod engine;
mod failure;
mod kernel;
mod pager;
mod preset;

use std::io;

use serde::{Deserialize, Serialize};

pub(crate) use child::{Exit, run_to_end};
pub use command::{DIR, LiveCommand};
use command::{Place, find_program};
use engine::{Engine, Request};
pub use engine::{LiveParts, LiveRun};
pub use failure::{Failure, FailureKind};
use kernel::{Kernel, PROBE_BYTES};
use pager::Uzswap;
pub use preset::{Preset, PresetNameError, PresetPlace};

use crate::human_size::human_size;
use crate::measure::turns::{Progress, order_of_round};
use uzswap::compressor::CompressorKind;
use uzswap::index::IndexKind;
use uzswap::zpool::ZpoolKind;
use uzswap_kernel_swap::{COMPRESSORS, KernelEngine, SwapBacking};
use uzswap_sys::held_folder::{HeldFolder, temporary_folder};
use uzswap_sys::mounts;

/// The least limit that a study takes, in bytes, as `uzswap run` has it.
pub const LIMIT_MIN: u64 = 1 << 20;

/// How often the search for the smallest limit halves what is left between too little and enough.
const FIND_STEPS: usize = 4;

/// How much memory a command gets.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LiveLimit {
    /// Bytes.
    Bytes(u64),
    /// Percent of the command's own peak.
    Percent(f64),
}

impl LiveLimit {
    /// In bytes, for a command with such a peak.
    pub fn bytes(self, peak_bytes: u64) -> u64 {
        match self {
            LiveLimit::Bytes(bytes) => bytes,
            LiveLimit::Percent(percent) => (peak_bytes as f64 * percent / 100.0) as u64,
        }
    }
}

/// A study before it is made.
#[derive(Debug, Clone)]
pub struct LiveExperiment {
    /// What is run.
    pub command: LiveCommand,
    /// The rows.
    pub parts: Vec<LiveParts>,
    /// Rounds; each row has a run in each.
    pub rounds: usize,
    /// The memory that a run has.
    pub limit: LiveLimit,
    /// Whether the smallest limit is searched for at which a row that does not fit does.
    pub find_limit: bool,
    /// What is behind the kernel's zswap.
    pub kernel_backing: SwapBacking,
    /// Whether nobody named a compressor: each of the kernel's engines then has its best one.
    pub has_usual_compressor: bool,
}

/// A row of a study.
#[derive(Debug, Clone)]
pub struct LiveRow {
    /// The parts.
    pub parts: LiveParts,
    /// Runs that ended well, one a round, from the first round on.
    pub runs: Vec<LiveRun>,
    /// Why there are no more.
    pub failure: Option<Failure>,
    /// The smallest limit in bytes at which the command was seen to end well, if that was searched
    /// for, and the largest at which it was not.
    pub smallest_limit: Option<SmallestLimit>,
}

impl LiveRow {
    /// If its runs used more than the limit: by how much. A row that had more memory than another
    /// is no fair comparison, whichever engine it is of.
    fn over_limit(&self, limit_bytes: u64) -> Option<String> {
        let over = self.runs.iter().map(|run| run.peak_bytes.saturating_sub(limit_bytes));
        let over: Vec<u64> = over.filter(|&bytes| bytes > 0).collect();
        let most = over.iter().max()?;
        Some(format!(
            "{}: {} of {} runs used more than the limit, by at most {}: its times come from more \
             memory.",
            self.parts,
            over.len(),
            self.runs.len(),
            human_size(*most)
        ))
    }
}

/// Where the least memory lies that a command needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SmallestLimit {
    /// With so many bytes it ended well.
    pub fits_bytes: u64,
    /// With so many it did not.
    pub fails_bytes: u64,
}

/// The findings of a study.
#[derive(Debug, Clone)]
pub struct LiveResults {
    /// The run without a limit, before the others.
    pub warm_up: LiveRun,
    /// Bytes that each run had.
    pub limit_bytes: u64,
    /// The rows, in the order asked for.
    pub rows: Vec<LiveRow>,
    /// Remarks on the machine and the runs.
    pub notes: Vec<String>,
}

/// The run without a limit, and what it printed.
#[derive(Debug)]
struct WarmUp {
    run: LiveRun,
    check: Option<Vec<u8>>,
    is_never_swapped: bool,
    /// In which each run has its folder.
    base: HeldFolder,
    kernel: Kernel,
}

impl LiveExperiment {
    /// Makes the study. `progress` hears of each run before it starts.
    ///
    /// A run of a row that does not end well ends that row; the others go on.
    ///
    /// # Errors
    ///
    /// [`Failure`], if the command does not end well even without a limit, or of an interrupt.
    pub fn run(&self, progress: Progress<'_>) -> Result<LiveResults, Failure> {
        let program = &self.command.argv[0];
        find_program(program).map_err(|error| {
            let message = format!("cannot run {}: {error}", program.to_string_lossy());
            match error.kind() {
                io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied => {
                    Failure::command(message)
                }
                _ => Failure::machine(message),
            }
        })?;
        if self.command.tmpfs_bytes.is_some() {
            mounts::have_own().map_err(|error| {
                Failure::machine(format!(
                    "cannot mount a private tmpfs ({error}): --tmpfs needs root; without --tmpfs \
                     the folder {DIR} is on disk"
                ))
            })?;
        }
        let total = 1 + self.parts.len() * self.rounds;
        progress(0, total, "warm-up without a limit");
        let mut warm_up = self.warm_up()?;
        let limit_bytes = self.limit.bytes(warm_up.run.peak_bytes);
        if limit_bytes < LIMIT_MIN {
            return Err(Failure::command(match warm_up.run.peak_bytes {
                0 => "the command ended before the first sample of its memory; give --limit SIZE, \
                      or a command that takes longer"
                    .to_owned(),
                peak => format!(
                    "--limit comes to {}, less than the minimum of 1 MiB: the command's peak is {}",
                    human_size(limit_bytes),
                    human_size(peak)
                ),
            }));
        }
        let (mut rows, on_compressors) = self.rows(&mut warm_up.kernel);
        let mut done = 1;
        for round in 0..self.rounds {
            for at in order_of_round(rows.len(), round) {
                let row = &mut rows[at];
                if row.failure.is_none() {
                    let next = format!("{}, run {} of {}", row.parts, round + 1, self.rounds);
                    progress(done, total, &next);
                    match self.run_once(&row.parts, Some(limit_bytes), &mut warm_up) {
                        Ok(run) => row.runs.push(run),
                        Err(failure) if failure.kind == FailureKind::Interrupted => {
                            return Err(failure);
                        }
                        Err(failure) => row.failure = Some(failure),
                    }
                }
                done += 1;
            }
        }
        if self.find_limit {
            for row in &mut rows {
                let kind = row.failure.as_ref().map(|failure| failure.kind);
                if kind == Some(FailureKind::DidNotFit) {
                    row.smallest_limit =
                        self.smallest_limit(&row.parts, limit_bytes, &mut warm_up, &mut |next| {
                            progress(done, total, next);
                        })?;
                }
            }
        }
        progress(total, total, "");
        let mut notes = Vec::new();
        if self.parts.iter().any(LiveParts::is_kernel) {
            notes.push(format!(
                "The kernel has the same limit as uzswap: as its pool grows, a thread lowers the \
                 cgroup's limit so that anonymous memory, pool and known tables together stay \
                 below it. Page cache and tmpfs are not limited. A probe of {} runs in the cgroup.",
                human_size(PROBE_BYTES)
            ));
        }
        notes.extend(on_compressors);
        notes.extend(rows.iter().filter_map(|row| row.over_limit(limit_bytes)));
        notes.extend(self.command.preset.and_then(|preset| preset.note()));
        if !warm_up.is_never_swapped {
            notes.push(
                "This kernel swaps tmpfs pages (noswap needs Linux 6.4): the kernel's engines keep \
                 pages of the folder in their pools too, uzswap does not."
                    .to_owned(),
            );
        }
        Ok(LiveResults { warm_up: warm_up.run, limit_bytes, rows, notes })
    }

    /// The rows before their first run, and remarks on them.
    fn rows(&self, kernel: &mut Kernel) -> (Vec<LiveRow>, Vec<String>) {
        let mut parts = self.parts.clone();
        let remarks = match self.has_usual_compressor {
            true => take_best_compressors(&mut parts, |engine| kernel.best_compressor(engine)),
            false => Vec::new(),
        };
        let row = |parts| LiveRow { parts, runs: Vec::new(), failure: None, smallest_limit: None };
        (parts.into_iter().map(row).collect(), remarks)
    }

    /// The run without a limit: files are read into the cache, the peak is found, and the output
    /// of `--check` that each other run must have.
    fn warm_up(&self) -> Result<WarmUp, Failure> {
        // The same path in each run: programs write it into files that --check may read.
        let base = temporary_folder(0o755).map_err(|error| {
            Failure::machine(format!(
                "cannot create a folder for the runs: {error}; set TMPDIR to \
                                      a writable folder"
            ))
        })?;
        let parts = LiveParts::Uzswap {
            zpool: ZpoolKind::Zsmalloc,
            compressor: CompressorKind::Lz4.into(),
            index: IndexKind::default(),
            unit_pages: 1,
        };
        let place = Place::make(&self.command, base.path())?;
        let is_never_swapped = place.is_never_swapped();
        let ended = self.run_in(&place, &parts, None, None).map_err(Failure::without_a_limit);
        let check = ended.and_then(|run| Ok((run, place.check()?)));
        let cleaned = place.clean_up();
        let (run, check) = check?;
        cleaned?;
        let kernel = Kernel::new(self.kernel_backing.clone(), run.peak_bytes);
        Ok(WarmUp { run, check, is_never_swapped, base, kernel })
    }

    /// One run with all that surrounds it.
    fn run_once(
        &self,
        parts: &LiveParts,
        limit_bytes: Option<u64>,
        warm_up: &mut WarmUp,
    ) -> Result<LiveRun, Failure> {
        let base = warm_up.base.path();
        let place = Place::make(&self.command, base)?;
        let ended =
            self.run_in(&place, parts, limit_bytes, Some(&mut warm_up.kernel)).and_then(|run| {
                let check = place.check()?;
                if check != warm_up.check {
                    let check = String::from_utf8_lossy(check.as_deref().unwrap_or_default());
                    return Err(Failure::new(
                        FailureKind::Wrong,
                        "--check printed another result than after the run without a limit: a \
                         page was wrong, or the command is not deterministic",
                    )
                    .with_output(check.trim_end().chars().take(500).collect()));
                }
                Ok(run)
            });
        let cleaned = place.clean_up();
        let run = ended?;
        cleaned?;
        Ok(run)
    }

    fn run_in(
        &self,
        place: &Place<'_>,
        parts: &LiveParts,
        limit_bytes: Option<u64>,
        kernel: Option<&mut Kernel>,
    ) -> Result<LiveRun, Failure> {
        let (argv, stats) = (place.argv(), place.stats());
        let (timeout, output) = (self.command.timeout, place.output());
        let request = Request { argv: &argv, limit_bytes, timeout, output, stats: &stats };
        let run = match kernel {
            Some(kernel) if parts.is_kernel() => kernel.run(parts, &request),
            _ => Uzswap.run(parts, &request),
        };
        match run {
            Ok(run) => Ok(LiveRun { counts: place.counts(), ..run }),
            Err(failure) if failure.output.is_empty() => Err(failure.with_output(place.tail())),
            Err(failure) => Err(failure),
        }
    }

    /// Halves what lies between the limit and the peak.
    fn smallest_limit(
        &self,
        parts: &LiveParts,
        limit_bytes: u64,
        warm_up: &mut WarmUp,
        progress: &mut dyn FnMut(&str),
    ) -> Result<Option<SmallestLimit>, Failure> {
        const MIB: u64 = 1 << 20;
        let (mut fails_bytes, mut fits) = (limit_bytes, None);
        // Metadata comes on top of the peak.
        let mut try_bytes = warm_up.run.peak_bytes + warm_up.run.peak_bytes / 4 + 8 * MIB;
        for _ in 0..=FIND_STEPS {
            if try_bytes <= fails_bytes {
                break;
            }
            progress(&format!("{parts}, trying {} MiB", try_bytes / MIB));
            match self.run_once(parts, Some(try_bytes), warm_up) {
                Ok(_) => fits = Some(try_bytes),
                Err(failure) if failure.kind == FailureKind::Interrupted => return Err(failure),
                Err(_) => fails_bytes = try_bytes,
            }
            let Some(fits_bytes) = fits else { return Ok(None) };
            try_bytes = (fails_bytes + fits_bytes) / 2 / MIB * MIB;
        }
        Ok(fits.map(|fits_bytes| SmallestLimit { fits_bytes, fails_bytes }))
    }
}

/// Gives each of the kernel's engines the best compressor that it has. Remarks tell which lacks the
/// one that was meant, and how engines whose compressors differ are compared with the same one.
fn take_best_compressors(
    all: &mut [LiveParts],
    mut best_of: impl FnMut(KernelEngine) -> Option<&'static str>,
) -> Vec<String> {
    let mut remarks = Vec::new();
    for parts in all.iter_mut() {
        let LiveParts::Kernel { kernel, compressor, .. } = parts else { continue };
        let Some(best) = best_of(*kernel).filter(|best| best != compressor) else { continue };
        remarks.push(format!(
            "The {kernel} of this kernel lacks {compressor}: its row has {best}, the best that it \
             has."
        ));
        *compressor = best.to_owned();
    }
    remarks.dedup(); // rows of one engine follow each other
    let names: Vec<String> = all.iter().map(LiveParts::compressor).collect();
    if names.iter().any(|name| *name != names[0]) {
        // The engine that lacks most has it; the others probably have it, too.
        let last = COMPRESSORS.into_iter().rfind(|last| names.iter().any(|name| name == last));
        remarks.push(format!(
            "The engines' compressors differ. --compressor {} compares like with like.",
            last.expect("they are some of these")
        ));
    }
    remarks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_engine_has_its_best_compressor_and_remarks_say_where_they_differ() {
        let own = LiveParts::Uzswap {
            zpool: ZpoolKind::Zsmalloc,
            compressor: CompressorKind::Lz4.into(),
            index: IndexKind::default(),
            unit_pages: 1,
        };
        let kernel = |kernel: KernelEngine| LiveParts::Kernel {
            kernel,
            compressor: "lz4".to_owned(),
            zpool: None,
        };
        let (zswap, zram) = (kernel(KernelEngine::Zswap), kernel(KernelEngine::Zram));
        let taken = |all: &[&LiveParts], zswap: Option<&'static str>, zram: &'static str| {
            let mut all: Vec<LiveParts> = all.iter().copied().cloned().collect();
            let best_of = |engine| match engine {
                KernelEngine::Zswap => zswap,
                KernelEngine::Zram => Some(zram),
            };
            let remarks = take_best_compressors(&mut all, best_of);
            let labels: Vec<String> = all.iter().map(LiveParts::to_string).collect();
            (labels.join(", "), remarks.join(" "))
        };
        let of = |labels: &str, remarks: &str| (labels.to_owned(), remarks.to_owned());
        let all = [&own, &zswap, &zswap, &zram];
        let same = "zsmalloc lz4, zswap lz4, zswap lz4, zram lz4";
        assert_eq!(taken(&all, Some("lz4"), "lz4"), of(same, ""));
        // The kernel does not say: the first run has the reason.
        assert_eq!(taken(&all, None, "lz4"), of(same, ""));
        let lacks = |engine: &str, best: &str| {
            format!(
                "The {engine} of this kernel lacks lz4: its row has {best}, the best that it has."
            )
        };
        let differ =
            |name: &str| format!("The engines' compressors differ. --compressor {name} compares");
        let (labels, remarks) = taken(&all, Some("lzo"), "lz4");
        assert_eq!(labels, "zsmalloc lz4, zswap lzo, zswap lzo, zram lz4");
        let expected = format!("{} {} like with like.", lacks("zswap", "lzo"), differ("lzo"));
        assert_eq!(remarks, expected);
        // The one that the engine with the fewest has, whichever row is first.
        let (labels, remarks) = taken(&[&zswap, &zram], Some("zstd"), "lzo-rle");
        assert_eq!(labels, "zswap zstd, zram lzo-rle");
        assert!(remarks.contains(&differ("zstd")), "{remarks}");
        // There is nothing to differ from.
        assert_eq!(taken(&[&zram], None, "lzo"), ("zram lzo".to_owned(), lacks("zram", "lzo")));
    }

    #[test]
    fn runs_that_used_more_than_the_limit_are_reported() {
        const MIB: u64 = 1 << 20;
        let row = |parts: LiveParts, peaks: &[u64]| {
            let run = |&peak_bytes: &u64| LiveRun { peak_bytes, ..LiveRun::default() };
            let runs = peaks.iter().map(run).collect();
            LiveRow { parts, runs, failure: None, smallest_limit: None }.over_limit(8 * MIB)
        };
        let (kernel, compressor) = (KernelEngine::Zram, "lzo".to_owned());
        let zram = LiveParts::Kernel { kernel, compressor, zpool: None };
        let (zpool, compressor) = (ZpoolKind::Zsmalloc, CompressorKind::Lz4.into());
        let index = IndexKind::default();
        let own = LiveParts::Uzswap { zpool, compressor, index, unit_pages: 1 };
        for (parts, name) in [(zram, "zram lzo"), (own, "zsmalloc lz4")] {
            assert_eq!(row(parts.clone(), &[]), None);
            assert_eq!(row(parts.clone(), &[8 * MIB, 7 * MIB]), None);
            let reported = row(parts, &[10 * MIB, 8 * MIB, 9 * MIB]).unwrap();
            let start = format!("{name}: 2 of 3 runs used more than the limit, by at most 2.0 MiB");
            assert!(reported.starts_with(&start), "{reported}");
        }
    }
}
