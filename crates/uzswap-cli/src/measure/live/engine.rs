//! The engines that store the pages of a program, and the figures of one run.

use std::ffi::OsString;
use std::fmt;
use std::fs::File;
use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::failure::Failure;
use crate::measure::experiment::{is_single, single, unit_name};
use uzswap::compressor::FilteredKind;
use uzswap::index::IndexKind;
use uzswap::zpool::ZpoolKind;
use uzswap::zswap::LatencyCounts;
use uzswap_kernel_swap::KernelEngine;
use uzswap_pager::RunSample;

/// One choice of parts: a row of the study.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "engine", rename_all = "snake_case")]
pub enum LiveParts {
    /// This program's store.
    Uzswap {
        /// The allocator.
        zpool: ZpoolKind,
        /// The compressor, with its filter.
        compressor: FilteredKind,
        /// The index.
        index: IndexKind,
        /// Pages that are compressed together.
        #[serde(default = "single", skip_serializing_if = "is_single")]
        unit_pages: usize,
    },
    /// The kernel's own compressed swap.
    Kernel {
        /// Which.
        kernel: KernelEngine,
        /// Its compressor, by the kernel's name.
        compressor: String,
        /// Its allocator, where the kernel has a choice.
        zpool: Option<String>,
    },
}

impl LiveParts {
    /// The allocator is the one that others are compared with, of this program's own engine.
    pub(crate) fn is_usual_base(&self) -> bool {
        matches!(self, LiveParts::Uzswap { zpool: ZpoolKind::Zsmalloc, .. })
    }

    /// The name of its compressor.
    pub(super) fn compressor(&self) -> String {
        match self {
            LiveParts::Uzswap { compressor, .. } => compressor.to_string(),
            LiveParts::Kernel { compressor, .. } => compressor.clone(),
        }
    }

    /// Whether the kernel keeps the pages.
    pub fn is_kernel(&self) -> bool {
        matches!(self, LiveParts::Kernel { .. })
    }
}

impl fmt::Display for LiveParts {
    /// The allocator and the compressor, and the index and the unit if they are not the usual ones;
    /// of the kernel `zram` or `zswap` and its parts.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LiveParts::Uzswap { zpool, compressor, index, unit_pages } => {
                write!(f, "{zpool} {compressor}")?;
                if *index != IndexKind::default() {
                    write!(f, " {index}")?;
                }
                match is_single(unit_pages) {
                    true => Ok(()),
                    false => write!(f, " {}", unit_name(*unit_pages)),
                }
            }
            LiveParts::Kernel { kernel, compressor, zpool: None } => {
                write!(f, "{kernel} {compressor}")
            }
            LiveParts::Kernel { kernel, compressor, zpool: Some(zpool) } => {
                write!(f, "{kernel} {compressor} {zpool}")
            }
        }
    }
}

/// The order for a run.
#[derive(Debug)]
pub(super) struct Request<'a> {
    /// The program and its arguments.
    pub(super) argv: &'a [OsString],
    /// Bytes for the programs, the pool and what is known of pages; `None` for no limit.
    pub(super) limit_bytes: Option<u64>,
    /// After this time it is killed.
    pub(super) timeout: Option<Duration>,
    /// Where standard output and standard error go.
    pub(super) output: &'a File,
    /// Where the engine may write its statistics.
    pub(super) stats: &'a Path,
}

/// The figures of a run.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct LiveRun {
    /// Seconds from the start of the command to the end of all its processes.
    pub real_s: f64,
    /// Processor seconds in user mode, of the programs and the engine.
    pub user_s: f64,
    /// Processor seconds in the kernel, of both.
    pub sys_s: f64,
    /// Processor seconds of the engine alone; of the kernel's, only those outside of the programs.
    pub engine_cpu_s: f64,
    /// The most that programs, pool and metadata took at once, in bytes.
    pub peak_bytes: u64,
    /// The most resident anonymous memory of all programs, in bytes.
    pub resident_peak_bytes: u64,
    /// The most host pages of the pool, in bytes.
    pub pool_peak_bytes: u64,
    /// Pages that the pool held then, uncompressed.
    pub pool_peak_pages: u64,
    /// The most metadata, in bytes.
    pub metadata_peak_bytes: u64,
    /// Pages that left programs for the pool.
    pub stored_pages: u64,
    /// Pages that came back from it.
    pub loaded_pages: u64,
    /// Pages that the pool did not take, and that were kept whole elsewhere or went to the backing.
    pub refused_pages: u64,
    /// Pages that were freed, as no program needed them any more; the kernel does not tell.
    pub freed_pages: Option<u64>,
    /// Milliseconds that freeing them took.
    pub free_ms: Option<f64>,
    /// Stores, in nanoseconds.
    pub store_ns: LatencyCounts,
    /// Loads from the pool, in nanoseconds.
    pub load_ns: LatencyCounts,
    /// Faults as the programs saw them, in nanoseconds.
    pub fault_ns: LatencyCounts,
    /// The counts of a preset, by name.
    pub counts: Vec<(String, f64)>,
    /// Memory over time.
    pub timeline: Vec<RunSample>,
}

/// An engine.
pub(super) trait Engine {
    /// Runs a command to its end.
    fn run(&mut self, parts: &LiveParts, request: &Request<'_>) -> Result<LiveRun, Failure>;
}
