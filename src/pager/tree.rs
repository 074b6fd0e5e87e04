//! The tree of processes: a thread that looks for those without a helper.
//!
//! It has no part in keeping to the limit. What it asks of the file system may take a tenth of a
//! second where others write.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::peer::Peer;
use super::process_files::{children_of, part_of_anonymous_of};
use super::{Pager, lock, status};
use crate::sys::process;

/// How often it looks.
pub(super) const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Looks that find a process without a helper until it is told: a program that has just started
/// says hello in a moment, or ends. What a managed program has forked waits for pages before, where
/// there are hardly any; or it has none, and is unmanaged.
const LOOKS: u32 = 2;
const LOOKS_AT_FORKED: u32 = 20;

/// What is known of the tree.
struct Tree {
    pager: Arc<Pager>,
    /// Processes without a helper, and how many looks in a row found them so.
    without: BTreeMap<u32, u32>,
    /// Programs of which that was told.
    told: BTreeSet<PathBuf>,
}

/// Starts the thread. To be unparked at the end.
pub(super) fn start(pager: &Arc<Pager>) -> io::Result<JoinHandle<()>> {
    let pager = Arc::clone(pager);
    let tree = Tree { pager, without: BTreeMap::new(), told: BTreeSet::new() };
    thread::Builder::new().name("uzswap-tree".to_owned()).spawn(move || tree.run())
}

impl Tree {
    fn run(mut self) {
        status::remove_left_overs();
        while !self.pager.stop.load(Ordering::Relaxed) {
            self.look();
            thread::park_timeout(LOOK_EVERY);
        }
    }

    /// Looks for processes without a helper: static and setuid programs. Their memory counts, and
    /// stays.
    fn look(&mut self) {
        let managed: BTreeSet<u32> = managed(&self.pager).collect();
        let mut without = BTreeMap::new();
        let mut bytes = 0;
        let mut largest = (0, None);
        for pid in processes(&self.pager) {
            // One that ended, or that the kernel lets nobody look at, has no such link.
            let Some(program) = program_of(pid) else { continue };
            if managed.contains(&pid) {
                continue;
            }
            let looks = self.without.get(&pid).unwrap_or(&0) + 1;
            without.insert(pid, looks);
            if looks < LOOKS {
                continue;
            }
            let own = part_of_anonymous_of(pid).unwrap_or(0);
            bytes += own;
            if own > largest.0 {
                largest = (own, Some(pid));
            }
            let is_parent =
                |it: &u32| managed.contains(it) && program_of(*it).as_ref() == Some(&program);
            if looks < LOOKS_AT_FORKED && process::parent_of(pid).filter(is_parent).is_some() {
                continue;
            }
            // What is stopped may say hello when it goes on.
            if !process::is_stopped(pid) && self.told.insert(program.clone()) {
                let program = program.to_string_lossy();
                let program = program.escape_debug(); // a name of a file may be anything
                self.pager.warn(&format!(
                    "{program} (process {pid}) runs unmanaged, as static and setuid programs do, \
                     and such as are started without LD_PRELOAD: its memory stays"
                ));
            }
        }
        self.without = without;
        let largest = largest.1.and_then(Peer::open).map(|peer| (largest.0, peer));
        let largest = largest.filter(|(_, peer)| peer.descends_from(std::process::id()));
        *self.pager.largest_unmanaged.lock().unwrap_or_else(PoisonError::into_inner) = largest;
        self.pager.unmanaged.store(bytes, Ordering::Relaxed);
    }
}

/// The file of the program that a process runs.
fn program_of(pid: u32) -> Option<PathBuf> {
    fs::read_link(format!("/proc/{pid}/exe")).ok()
}

/// Processes with a helper.
pub(super) fn managed(pager: &Pager) -> impl Iterator<Item = u32> {
    pager.spaces().into_iter().filter_map(|space| lock(&space).pid)
}

/// All processes below this one that are not its own.
pub(super) fn processes(pager: &Pager) -> Vec<u32> {
    let guard = pager.guard_pid();
    let mut processes = below(std::process::id());
    processes.retain(|pid| Some(*pid) != guard);
    processes
}

/// All processes below one.
fn below(pid: u32) -> Vec<u32> {
    let mut found = vec![pid];
    let mut at = 0;
    while let Some(&pid) = found.get(at) {
        at += 1;
        found.extend(children_of(pid));
    }
    found.remove(0);
    found
}
