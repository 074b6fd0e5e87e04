//! The process of an address space: its numbers, and what /proc shows of it.

use std::cmp::Ordering;
use std::io;
use std::sync::Arc;

use super::PAGE;
use super::fork_advice::ForkAdvice;
use super::kernel_words::LISTS;
use crate::program::peer::Peer;
use crate::program::procfs::{
    ProcessFiles, Size, has_locked_memory, has_pinned_memory, number_in_namespace,
};
use crate::range_set::RangeSet;
use uzswap_sys::process;

/// The process of an address space, as far as it is known.
#[derive(Debug, Default)]
pub(crate) struct Process {
    pid: Option<u32>,
    peer: Option<Arc<Peer>>,
    /// Of a child: its nearest ancestor that was known when it was forked.
    forked_by: Option<u32>,
    /// The helper's thread, which has the memory longer than the first thread may.
    thread: Option<u32>,
    /// Numbers of the first thread and the helper in their PID namespace, and in the supervisor's.
    renumbered: Vec<(u32, u32)>,
    files: Option<Arc<ProcessFiles>>,
}

impl Process {
    pub(super) fn new(pid: Option<u32>) -> Process {
        Process { pid, ..Process::default() }
    }

    /// The unknown process of a child.
    pub(super) fn of_child(parent: &Process) -> Process {
        Process { forked_by: parent.root(), ..Process::default() }
    }

    /// Its helper is there: the supervisor reads these files from now on.
    pub(super) fn meet(&mut self, peer: Arc<Peer>, files: ProcessFiles) {
        let renumbered = |here| number_in_namespace(here).map(|there| (there, here));
        self.renumbered = [files.thread, peer.pid()].into_iter().map_while(renumbered).collect();
        self.thread = Some(files.thread);
        self.files = Some(Arc::new(files));
        self.pid = Some(peer.pid());
        self.peer = Some(peer);
    }

    /// Reads the files of this process.
    #[cfg(test)]
    pub(crate) fn read(&mut self, pid: u32) {
        self.files = Some(Arc::new(ProcessFiles::of_thread(pid).unwrap()));
    }

    /// Replaces its files; returns those of before.
    pub(super) fn replace_files(
        &mut self,
        files: Option<Arc<ProcessFiles>>,
    ) -> Option<Arc<ProcessFiles>> {
        std::mem::replace(&mut self.files, files)
    }

    pub(crate) fn pid(&self) -> Option<u32> {
        self.pid
    }

    pub(crate) fn peer(&self) -> Option<&Arc<Peer>> {
        self.peer.as_ref()
    }

    pub(crate) fn thread(&self) -> Option<u32> {
        self.thread
    }

    pub(crate) fn files(&self) -> Option<&Arc<ProcessFiles>> {
        self.files.as_ref()
    }

    /// The process, or the last known one before it.
    pub(crate) fn root(&self) -> Option<u32> {
        self.pid.or(self.forked_by)
    }

    /// The process in words of a message: a child has no number before it is known.
    pub(super) fn in_words(&self) -> String {
        match (self.pid, self.forked_by) {
            (Some(pid), _) => format!("process {pid}"),
            (None, Some(parent)) => format!("a child of process {parent}"),
            (None, None) => "an unknown process".to_owned(),
        }
    }

    /// Its size; `None` before the process is known, and after its end.
    pub(super) fn size(&self) -> Option<Size> {
        self.files.as_ref()?.size()
    }

    /// The thread that the userfaultfd reports by this number of its own PID namespace. `None` if
    /// it is unknown, or if a search would cost more than a fault.
    pub(crate) fn reported_thread(&self, number: u32) -> Option<u32> {
        self.thread?;
        if self.renumbered.is_empty() {
            return Some(number);
        }
        self.renumbered.iter().find(|(there, _)| *there == number).map(|(_, here)| *here)
    }

    /// The same for a process with locked memory, whatever the search costs.
    pub(super) fn search_reported_thread(&self, number: u32) -> Option<u32> {
        self.reported_thread(number).or_else(|| {
            if !has_locked_memory(self.thread?) {
                return None;
            }
            let is_it = |&thread: &u32| number_in_namespace(thread) == Some(number);
            self.files.as_ref()?.threads().find(is_it)
        })
    }

    /// Whether the process has the memory still: it may have called exec(2) just now. `true` where
    /// the kernel does not tell.
    pub(crate) fn has_its_memory(&self) -> bool {
        let Some(files) = &self.files else { return true };
        let differs =
            |thread| process::compare_memory(thread, files.thread).is_ok_and(Ordering::is_ne);
        files.has_helper_as_thread() || !files.threads().all(differs)
    }

    /// Whether the helper was stopped, alone or with its process.
    pub(crate) fn is_stopped(&self) -> bool {
        self.thread.is_some_and(process::is_stopped)
    }

    /// The exit code for a helper that is the last thread of its process. Threads that end one by
    /// one leave it there. The exit code is that of the last one, of which the kernel keeps
    /// nothing: as a rule, it is the first one, of which it does.
    pub(super) fn code_left_alone(&self) -> Option<u32> {
        let (pid, files) = (self.pid?, self.files.as_ref()?);
        // The kernel shows the exit code of the first thread while another one lives.
        let code = process::first_thread_code(pid)?;
        (files.has_helper_as_thread() && files.threads().count() <= 1).then_some(code)
    }

    /// Whether the process ends, while other threads may still have its memory. The helper ends at
    /// no other time, and it releases the memory some time before it is gone.
    pub(crate) fn is_ending(&self) -> bool {
        self.has_lost_helper(self.size())
    }

    /// The same, by its size as the helper's thread shows it. The connection of an ended helper may
    /// live on, if another process or thread has the descriptor.
    pub(crate) fn has_lost_helper(&self, size: Option<Size>) -> bool {
        self.files.is_some() && size.is_none_or(|size| size.mapped == 0)
    }

    /// Mappings with each of these flags.
    pub(super) fn mappings_with<const N: usize>(
        &self,
        wanted: [&str; N],
    ) -> io::Result<[RangeSet; N]> {
        match &self.files {
            Some(files) => files.mappings_with(wanted),
            None => Ok([const { RangeSet::new() }; N]),
        }
    }

    /// Locked mappings (mlock).
    pub(super) fn locked_mappings(&self) -> io::Result<RangeSet> {
        match self.thread.is_some_and(has_locked_memory) {
            true => self.mappings_with(["lo"]).map(|[locked]| locked),
            false => Ok(RangeSet::default()),
        }
    }

    /// Whether it has registered buffers, to which the kernel may write at any time.
    pub(super) fn has_pinned_memory(&self) -> bool {
        self.thread.is_some_and(has_pinned_memory)
    }

    /// Its present advice about forks.
    pub(super) fn fork_advice(&self) -> io::Result<ForkAdvice> {
        self.files.as_ref().map_or(Ok(ForkAdvice::default()), |files| ForkAdvice::of(files))
    }

    /// Stacks of threads that there are, or were: mappings of their own since Linux 6.7 (MAP_STACK:
    /// no huge pages). `None` where that is not known.
    pub(crate) fn stacks(&self) -> Option<RangeSet> {
        self.thread?;
        self.mappings_with(["nh"]).ok().map(|[stacks]| stacks)
    }

    /// Memory that must not be protected, as [`super::leave_words_of_threads`] says; `None` where
    /// that is not known. A stack is spared without a thread, too: one may come before it is
    /// protected.
    pub(super) fn not_to_protect(&self, stacks: RangeSet) -> Option<RangeSet> {
        if !self.has_threads() {
            return Some(stacks);
        }
        let mut spared = stacks;
        for thread in self.files.as_ref()?.threads() {
            // None on its way in or out, or it is a thread of another kind.
            let list = process::robust_list(thread).ok().filter(|list| LISTS.contains(list))?;
            let page = list / PAGE * PAGE;
            if Some(thread) == self.pid {
                spared.insert(page - PAGE..page + PAGE * 2); // not on a stack that was mapped so
            } else if !spared.contains(list) {
                return None;
            }
        }
        Some(spared)
    }

    /// Whether it has more threads than one.
    pub(crate) fn has_threads(&self) -> bool {
        self.files.as_ref().is_some_and(|files| files.threads().count() > 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_name_the_parent_of_a_child_that_is_not_known_yet() {
        let parent = Process::new(Some(7));
        let child = Process::of_child(&parent);
        let words = [parent.in_words(), child.in_words(), Process::of_child(&child).in_words()];
        assert_eq!(words, ["process 7", "a child of process 7", "a child of process 7"]);
    }
}
