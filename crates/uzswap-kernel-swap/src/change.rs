//! The changes of the machine that a journal has.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// A change of the machine, with all that is needed to undo it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Change {
    /// A setting of /proc or /sys, without white space around its texts.
    Setting { path: PathBuf, old: String, new: String },
    /// The memory controller, enabled for the children of a cgroup of version 2.
    Controller { cgroup: PathBuf, children: Vec<String> },
    /// A folder.
    Folder { path: PathBuf },
    /// A regular file.
    File { path: PathBuf },
    /// A file system, mounted at a folder of ours.
    Mount { folder: PathBuf },
    /// A loop device of a number of ours, with a file of ours.
    Loop { number: u32, backing: PathBuf },
    /// A zram device is about to be made. The kernel writes its number into the journal.
    NewZram { before: Vec<u32>, last_sequence: u64 },
    /// The device that `change` has made, before it is given its size.
    Zram { change: usize, number: u32, sequence: u64, bytes: u64 },
    /// A swap area that has our UUID in its header, in hexadecimal.
    SwapArea { path: PathBuf, uuid: String },
    /// A memory cgroup.
    Cgroup { folder: PathBuf },
}
