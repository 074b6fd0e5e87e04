//! The flags of a live study: a command under a limit.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, anyhow};

use super::Failure;
use super::args::{check_units, distinct, parse_time};
use super::progress::with_bar;
use super::size::parse_size;
use crate::human_size::human_size;
use crate::measure::live::{
    self, FailureKind, LiveCommand, LiveExperiment, LiveLimit, LiveParts, Preset, PresetPlace,
};
use crate::report::live::{LiveFindings, LiveReport};
use uzswap::budget::percent_of_memory;
use uzswap::compressor::{CompressorKind, Filter, FilteredKind};
use uzswap::index::IndexKind;
use uzswap::zpool::ZpoolKind;
use uzswap_kernel_swap::{KernelEngine, SwapBacking};

/// Who keeps the pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum EngineName {
    /// This program's own.
    Uzswap,
    /// The kernel's zswap, or zram where it has none.
    Kernel,
    /// The kernel's zswap.
    Zswap,
    /// The kernel's zram.
    Zram,
}

impl EngineName {
    /// Which of the kernel's, if it is one of these.
    fn kernel(self) -> Option<KernelEngine> {
        match self {
            EngineName::Uzswap => None,
            EngineName::Zswap => Some(KernelEngine::Zswap),
            EngineName::Zram => Some(KernelEngine::Zram),
            EngineName::Kernel => Some(match Path::new("/sys/module/zswap").exists() {
                true => KernelEngine::Zswap,
                false => KernelEngine::Zram,
            }),
        }
    }
}

fn own_parts(choice: &LiveChoice<'_>, compressor: CompressorKind) -> Vec<LiveParts> {
    let filters = distinct(choice.filters);
    let compressors = filters.into_iter().map(|filter| FilteredKind { compressor, filter });
    compressors.flat_map(|compressor| parts_with(choice, compressor)).collect()
}

fn parts_with(choice: &LiveChoice<'_>, compressor: FilteredKind) -> Vec<LiveParts> {
    let mut parts = Vec::new();
    for zpool in distinct(choice.zpools) {
        for index in distinct(choice.indexes) {
            let with = |unit_pages| LiveParts::Uzswap { zpool, compressor, index, unit_pages };
            parts.extend(distinct(choice.unit_pages).into_iter().map(with));
        }
    }
    parts
}

/// A row for each allocator that the kernel has, where it has a choice (zswap up to 6.17).
fn kernel_parts(
    choice: &LiveChoice<'_>,
    kernel: KernelEngine,
    compressor: CompressorKind,
) -> Vec<LiveParts> {
    let with = |zpool: Option<String>| {
        // The kernel has one level of each.
        let name = compressor.to_string();
        let compressor = name.split(':').next().unwrap_or(&name).to_owned();
        LiveParts::Kernel { kernel, compressor, zpool }
    };
    let has_choice = Path::new("/sys/module/zswap/parameters/zpool").exists();
    match kernel {
        KernelEngine::Zswap if has_choice => {
            distinct(choice.zpools).iter().map(|zpool| with(Some(zpool.to_string()))).collect()
        }
        _ => vec![with(None)],
    }
}

/// Flags of replays, which a study of the command itself has no use for.
const LIVE_ALONE: [&str; 19] = [
    "corpus",
    "pid",
    "sizes",
    "trace",
    "at",
    "tree",
    "sample",
    "seed",
    "free",
    "incompressible",
    "object_header",
    "chain_size",
    "chain_rule",
    "handle_header",
    "mapping",
    "host_pages",
    "same_filled",
    "same_filled_zero_only",
    "LimitArgs",
];

/// The limit of a preset where none is given.
const PRESET_LIMIT: LiveLimit = LiveLimit::Percent(60.0);

/// The compressor where none is named: a run takes as long as the command, so there is one.
const USUAL_COMPRESSOR: CompressorKind = CompressorKind::Lz4;

/// How the command itself is run.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Live (the command itself, under a limit)")]
pub(super) struct LiveArguments {
    /// Run the command itself in less memory: 512M, or 60% of its own peak
    ///
    /// The command runs under `uzswap run`, once without a limit, then in --runs rounds in which
    /// the combinations take turns. Nothing is replayed: times are those of the command.
    #[arg(long, value_name = "SIZE|PERCENT", value_parser = parse_limit,
          conflicts_with_all = LIVE_ALONE)]
    limit: Option<LiveLimit>,
    /// Ready-made command: build (with --source), usemem, memhog, stress
    ///
    /// With sizes and times: usemem:4x64M:random, memhog:256M, stress:60s.
    #[arg(long, value_name = "NAME", group = "pages", conflicts_with_all = LIVE_ALONE)]
    preset: Option<Preset>,
    /// Source tree of --preset build: copied to a fresh folder for each run
    #[arg(long, value_name = "DIR", hide_short_help = true)]
    source: Option<PathBuf>,
    /// uzswap, and kernel (zswap or zram), which needs root [default: uzswap]
    #[arg(
        long,
        value_name = "NAMES",
        value_delimiter = ',',
        default_value = "uzswap",
        hide_default_value = true,
        hide_possible_values = true
    )]
    engine: Vec<EngineName>,
    /// Swap area behind the kernel's zswap: loop (over a tmpfs), zram, file:FOLDER
    #[arg(long, value_name = "AREA", default_value = "loop", hide_short_help = true)]
    kernel_swap: SwapBacking,
    /// Shell command before each run; {dir} is a folder of the run
    #[arg(long, value_name = "CMD")]
    prepare: Option<String>,
    /// Shell command after each run; must always print the same
    #[arg(long, value_name = "CMD")]
    check: Option<String>,
    /// Shell command after each run, not timed
    #[arg(long, value_name = "CMD", hide_short_help = true)]
    cleanup: Option<String>,
    /// Make {dir} a fresh tmpfs of this size for each run (needs root)
    #[arg(long, value_name = "SIZE", value_parser = parse_size, hide_short_help = true)]
    tmpfs: Option<usize>,
    /// Kill a run that takes longer: 90s, 10m
    #[arg(long, value_name = "TIME", value_parser = parse_time,
          hide_short_help = true)]
    timeout: Option<Duration>,
    /// For a combination that cannot live within the limit, search for the smallest at which it can
    #[arg(long, hide_short_help = true)]
    find_limit: bool,
}

/// The choices of a comparison that a live study takes, too.
#[derive(Debug)]
pub(super) struct LiveChoice<'a> {
    pub(super) command: &'a [OsString],
    pub(super) zpools: &'a [ZpoolKind],
    /// Empty where none was named.
    pub(super) compressors: &'a [CompressorKind],
    pub(super) filters: &'a [Filter],
    pub(super) indexes: &'a [IndexKind],
    pub(super) unit_pages: &'a [usize],
    pub(super) runs: usize,
}

impl LiveArguments {
    /// The study that is asked for, if one is.
    ///
    /// # Errors
    ///
    /// Of flags that do not fit together.
    pub(super) fn experiment(
        &self,
        choice: &LiveChoice<'_>,
    ) -> Result<Option<LiveExperiment>, Failure> {
        let Some(limit) = self.limit.or(self.preset.map(|_| PRESET_LIMIT)) else {
            return self.nothing_live().map(|()| None);
        };
        if self.source.is_some() && self.preset.is_none() {
            return Err(Failure::Usage(anyhow!("--source needs --preset build")));
        }
        let mut command = match self.preset {
            Some(preset) => self.command_of(preset)?,
            None if choice.command.is_empty() => {
                return Err(Failure::Usage(anyhow!(
                    "--limit needs a command after --, as in compare --limit 60% -- make, or a \
                     --preset"
                )));
            }
            None => LiveCommand::new(choice.command.to_vec()),
        };
        command.prepare = self.prepare.clone().or(command.prepare);
        command.cleanup = self.cleanup.clone().or(command.cleanup);
        command.check = self.check.clone().or(command.check);
        command.tmpfs_bytes = self.tmpfs.map(|bytes| bytes as u64).or(command.tmpfs_bytes);
        command.timeout = self.timeout;
        let mut parts = Vec::new();
        let has_usual_compressor = choice.compressors.is_empty();
        let compressors = match has_usual_compressor {
            true => &[USUAL_COMPRESSOR],
            false => choice.compressors,
        };
        check_units(choice.unit_pages.iter().copied().max().unwrap_or(1), compressors)?;
        for engine in distinct(&self.engine) {
            for compressor in distinct(compressors) {
                match engine.kernel() {
                    None => parts.extend(own_parts(choice, compressor)),
                    Some(kernel) => parts.extend(kernel_parts(choice, kernel, compressor)),
                }
            }
        }
        let find_limit = self.find_limit;
        Ok(Some(LiveExperiment {
            command,
            parts,
            rounds: choice.runs,
            limit,
            find_limit,
            kernel_backing: self.kernel_swap.clone(),
            has_usual_compressor,
        }))
    }

    fn command_of(&self, preset: Preset) -> Result<LiveCommand, Failure> {
        let own_program = std::env::current_exe()
            .context("cannot find the path of uzswap")
            .map_err(Failure::Machine)?;
        // A tmpfs that has what it may have: half of the memory, as the kernel's default.
        let is_root = rustix::process::geteuid().is_root();
        let tmpfs_bytes = percent_of_memory(50).ok().filter(|_| is_root);
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        let source = self.source.as_deref();
        let place = PresetPlace { source, own_program: &own_program, cpus, tmpfs_bytes };
        preset.command(&place).map_err(|why| Failure::Usage(anyhow!(why)))
    }

    /// Checks that there is no flag of a live study where there is none.
    fn nothing_live(&self) -> Result<(), Failure> {
        let given = [
            ("--engine", self.engine != [EngineName::Uzswap]),
            ("--source", self.source.is_some()),
            ("--prepare", self.prepare.is_some()),
            ("--check", self.check.is_some()),
            ("--cleanup", self.cleanup.is_some()),
            ("--tmpfs", self.tmpfs.is_some()),
            ("--timeout", self.timeout.is_some()),
            ("--find-limit", self.find_limit),
        ];
        match given.into_iter().find(|(_, is_given)| *is_given) {
            Some((flag, _)) => Err(Failure::Usage(anyhow!("{flag} needs --limit and a command"))),
            None => Ok(()),
        }
    }
}

/// Makes the study, with a bar on standard error if that is a terminal.
pub(super) fn study(experiment: &LiveExperiment) -> Result<LiveReport, Failure> {
    let results = with_bar(|progress| experiment.run(progress)).map_err(|failure| {
        let live::Failure { kind, message, output } = failure;
        let error = match output.is_empty() {
            true => anyhow!(message),
            false => anyhow!("{message}; its last output:\n{output}"),
        };
        match kind {
            FailureKind::Machine | FailureKind::Interrupted => Failure::Machine(error),
            FailureKind::Wrong => Failure::Check(error),
            _ => Failure::Usage(error),
        }
    })?;
    Ok(LiveReport::new(experiment, results))
}

/// Whether a study that was printed is one to rely on.
pub(super) fn verdict(report: &LiveReport) -> Result<(), Failure> {
    let wrong = |findings: &&LiveFindings| {
        findings.failure.as_ref().is_some_and(|failure| failure.kind == FailureKind::Wrong)
    };
    if let Some(findings) = report.combinations.iter().find(wrong) {
        return Err(Failure::Check(anyhow!(
            "{}: --check printed another result than without a limit",
            findings.label
        )));
    }
    if report.combinations.iter().all(|findings| findings.runs.is_empty()) {
        return Err(Failure::Check(anyhow!(
            "every combination failed in {}; use a larger --limit, or --find-limit",
            human_size(report.settings.limit_bytes)
        )));
    }
    Ok(())
}

/// Parses `512M` or `60%`.
fn parse_limit(text: &str) -> Result<LiveLimit, String> {
    let Some(number) = text.strip_suffix('%') else {
        let bytes = parse_size(text)? as u64;
        if bytes < live::LIMIT_MIN {
            return Err("limit must be at least 1M".to_owned());
        }
        return Ok(LiveLimit::Bytes(bytes));
    };
    let percent = number.parse().ok().filter(|percent| (1.0..=1000.0).contains(percent));
    percent
        .map(LiveLimit::Percent)
        .ok_or_else(|| "limit must be a size, or 1% to 1000% of the command's peak".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_parsed_or_refused_in_words() {
        assert_eq!(parse_limit("60%"), Ok(LiveLimit::Percent(60.0)));
        assert_eq!(parse_limit("12.5%"), Ok(LiveLimit::Percent(12.5)));
        assert_eq!(parse_limit("512M"), Ok(LiveLimit::Bytes(512 << 20)));
        for wrong in ["0%", "-5%", "nan%", "%", "1001%", "512", "x"] {
            assert!(parse_limit(wrong).is_err(), "{wrong}");
        }
    }
}
