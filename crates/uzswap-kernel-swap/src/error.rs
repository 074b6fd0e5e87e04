//! Errors of the setup of the kernel's swap.

use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

use super::KernelEngine;

/// Why the kernel's swap could not be set up, or the machine not be put back.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum KernelSwapError {
    /// Swap areas, mounts and cgroups are root's.
    #[error("measuring the kernel's swap needs root; run as root, or with sudo")]
    NotRoot,
    /// The folder of journals could be written by other users.
    #[error(
        "{path} must be a folder of root with mode 0700, but has owner {owner} and mode \
         {mode:04o}; remove it"
    )]
    Folder {
        /// The folder.
        path: PathBuf,
        /// Its owner.
        owner: u32,
        /// Its permission bits.
        mode: u32,
    },
    /// Another process has changed the kernel's swap.
    #[error("process {pid} uses the kernel's swap settings; wait until it ends, or end it")]
    InUse {
        /// The process; 0 where it is not known.
        pid: u32,
    },
    /// A file of this kind that is no journal.
    #[error(
        "this version cannot read journal {path} ({reason}); undo its changes by hand, then remove \
         it"
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The kernel has no such engine.
    #[error("this kernel has no {engine}: {advice}")]
    NoEngine {
        /// The engine.
        engine: KernelEngine,
        /// What would give it one.
        advice: &'static str,
    },
    /// The kernel has no such compressor.
    #[error("this kernel's {engine} has no compressor '{name}'; it has: {}", known.join(", "))]
    UnknownCompressor {
        /// The engine.
        engine: KernelEngine,
        /// The name that was given.
        name: String,
        /// The names that the kernel lists.
        known: Vec<String>,
    },
    /// The kernel has no choice of allocators.
    #[error(
        "this kernel has no choice of allocators (no {parameter}): zswap uses zsmalloc, and \
         '{name}' cannot be measured"
    )]
    NoZpool {
        /// The allocator that was given.
        name: String,
        /// The setting that is not there.
        parameter: String,
    },
    /// No memory controller is mounted.
    #[error(
        "no memory cgroup is mounted: /proc/mounts has neither a cgroup with 'memory' nor a \
         cgroup2 with that controller; mount -t cgroup2 none /sys/fs/cgroup"
    )]
    NoMemoryCgroup,
    /// A size that no swap area has.
    #[error("a swap area must have 40960 bytes to 8 TiB, got {0} bytes")]
    Size(u64),
    /// The kernel refused something.
    #[error("cannot {action}: {source}{}", advice_after(advice))]
    Kernel {
        /// What was tried, and on what.
        action: String,
        /// The kernel's error.
        source: io::Error,
        /// Advice; empty if there is none.
        advice: &'static str,
    },
    /// Something could not be undone. The journal stays.
    #[error(
        "cannot restore the machine's settings: {}; `uzswap doctor --restore` tries again",
        .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
    )]
    NotUndone(Vec<UndoError>),
}

/// A change that could not be undone.
#[derive(Debug, Error)]
#[error("{what}: {source}{}", advice_after(advice))]
pub struct UndoError {
    what: String,
    source: io::Error,
    advice: &'static str,
}

impl UndoError {
    pub(super) fn new(what: impl Into<String>, source: io::Error, advice: &'static str) -> Self {
        UndoError { what: what.into(), source, advice }
    }
}

fn advice_after(advice: &str) -> String {
    if advice.is_empty() { String::new() } else { format!("; {advice}") }
}

impl KernelSwapError {
    /// Of an action that the kernel refused.
    pub(super) fn kernel(action: impl Into<String>, source: impl Into<io::Error>) -> Self {
        KernelSwapError::Kernel { action: action.into(), source: source.into(), advice: "" }
    }

    /// Of an action on a path.
    pub(super) fn on(action: &str, path: &Path, source: impl Into<io::Error>) -> Self {
        KernelSwapError::kernel(format!("{action} {}", path.display()), source)
    }

    /// The same, with something to do about it.
    pub(super) fn advise(mut self, text: &'static str) -> Self {
        if let KernelSwapError::Kernel { advice, .. } = &mut self {
            *advice = text;
        }
        self
    }

    /// Whether the request is at fault, and not the machine.
    pub fn is_usage(&self) -> bool {
        matches!(
            self,
            KernelSwapError::UnknownCompressor { .. }
                | KernelSwapError::NoZpool { .. }
                | KernelSwapError::Size(_)
        )
    }
}
