//! Evidence about a fork, from before the supervisor decides which memory the child has.

use super::changes::Changes;
use super::fork_advice::ForkAdvice;
use super::forking_threads::ForkingThreads;
use crate::program::procfs::ProcessFiles;
use crate::range_set::RangeSet;

/// The advice of a parent, as known after the event of its fork.
#[derive(Debug)]
pub(crate) enum AdviceAtFork {
    /// The advice at the fork.
    Known(ForkAdvice),
    /// An advice of before or after: threads of the parent ran in between.
    Uncertain(Uncertain),
}

impl AdviceAtFork {
    /// Stacks of threads; `None` without an answer.
    pub(crate) fn stacks(&self) -> Option<RangeSet> {
        let last = match self {
            AdviceAtFork::Known(advice) => Some(advice),
            AdviceAtFork::Uncertain(uncertain) => uncertain.answers.last(),
        };
        last.map(|advice| advice.stacks.clone())
    }
}

/// A fork of a parent that may have changed at the same time.
#[derive(Debug, Default)]
pub(crate) struct Uncertain {
    /// The kernel's answers: from before the fork, if the parent reported that, and from after it.
    pub(crate) answers: Vec<ForkAdvice>,
    /// Changes of the parent, from before the fork or from after it.
    pub(super) changes: Changes,
    /// Threads that may have done the fork, by the C library.
    pub(super) forking: ForkingThreads,
    /// More of them may follow, and nobody waits for that.
    pub(super) are_some_pending: bool,
    /// The parent was undecided itself: it may have taken back the advice of its own fork.
    pub(super) is_of_undecided: bool,
}

impl Uncertain {
    /// The same for two forks, of which the first is undecided. Changes may have come before both;
    /// those of the first child may have come where the first fork left memory out.
    pub(super) fn after(self, first: &Uncertain) -> Uncertain {
        let mut changes = first.changes.clone();
        changes.append(&self.changes);
        Uncertain {
            answers: first.answers.iter().cloned().chain(self.answers).collect(),
            changes,
            forking: ForkingThreads::default(),
            are_some_pending: first.are_some_pending || !self.changes.is_empty(),
            is_of_undecided: true,
        }
    }

    /// Memory that the fork may have skipped, and memory that it may have copied without pages.
    pub(super) fn left_out(&self) -> [RangeSet; 2] {
        let mut left_out = [const { RangeSet::new() }; 2];
        for ForkAdvice { not_copied, wiped, .. } in &self.answers {
            left_out[0].insert_all(not_copied);
            left_out[1].insert_all(wiped);
        }
        left_out
    }

    /// Memory whose pages the fork left out, and registered memory of the child of which nobody
    /// knows that. After a direct fork, parent and child may both have taken their advice back.
    pub(super) fn left_out_of(&self, child: &ChildMappings) -> [RangeSet; 2] {
        let [not_copied, mut wiped] = self.left_out();
        let mut left_out = not_copied.without(&child.registered);
        if child.has_waited && !self.is_of_undecided {
            left_out.insert_all(&child.wiped);
            return [left_out, RangeSet::new()];
        }
        wiped.insert_all(&child.wiped);
        left_out.insert_all(&wiped);
        [left_out, child.registered.clone()]
    }
}

/// Mappings of a child, as the kernel tells them while the child waits.
#[derive(Debug, Default)]
pub(super) struct ChildMappings {
    pub(super) registered: RangeSet,
    /// `MADV_WIPEONFORK`.
    pub(super) wiped: RangeSet,
    /// Markers in registered memory.
    pub(super) marked: RangeSet,
    /// The child has waited since a fork by the C library: its mappings are those of the fork.
    pub(super) has_waited: bool,
}

impl ChildMappings {
    pub(super) fn read(files: &ProcessFiles, has_waited: bool) -> Option<ChildMappings> {
        let [registered, wiped] = files.mappings_with(["um", "wf"]).ok()?;
        let mut marked = RangeSet::new();
        for range in registered.iter() {
            marked.insert_all(&files.marked_in(range).ok()?);
        }
        Some(ChildMappings { registered, wiped, marked, has_waited })
    }
}
