//! The helper of an address space, and its command.

use std::ops::Range;
use std::sync::Arc;

use super::AddressSpace;
use super::move_batch::Moved;
use crate::policy::clock::ClockHand;
use crate::program::helper::{Command, Helper, MoveRun};
use crate::range_set::overlap;
use uzswap_sys::userfaultfd::Event;

/// The helper, and the command that it carries out.
#[derive(Debug, Default)]
pub(crate) struct Commands {
    helper: Option<Arc<Helper>>,
    /// The space is removed: the helper gets no command any more.
    are_over: bool,
    number: u32,
    current: Option<Command>,
    /// The result of the last command, and the batch whose memory it frees.
    collected: Moved,
    dropping: Option<usize>,
    /// The kernel refused the last move with ENOMEM: no memory, or too many mappings.
    has_no_memory: bool,
    hand: ClockHand,
}

impl Commands {
    /// The helper is there.
    pub(super) fn meet(&mut self, helper: Helper) {
        self.helper = Some(Arc::new(helper));
    }

    /// Gives no command any more.
    pub(crate) fn end(&mut self) {
        self.are_over = true;
    }

    /// The helper, unless commands have ended.
    pub(crate) fn helper(&self) -> Option<Arc<Helper>> {
        self.helper.clone().filter(|_| !self.are_over)
    }

    /// The same helper, if it has no command.
    pub(super) fn free_helper(&self) -> Option<Arc<Helper>> {
        self.helper().filter(|_| self.current.is_none())
    }

    /// The helper, also after the end of commands.
    pub(super) fn last_helper(&self) -> Option<&Arc<Helper>> {
        self.helper.as_ref()
    }

    /// The address of a page of staging.
    pub(super) fn staged_at(&self, staged: usize) -> Option<u64> {
        self.helper.as_ref().map(|helper| helper.staged_at(staged))
    }

    /// The hand, which chooses the pages of the next command.
    pub(super) fn hand(&mut self) -> &mut ClockHand {
        &mut self.hand
    }

    /// Memory of what is known, in bytes, about.
    pub(super) fn bytes(&self) -> usize {
        self.hand.bytes()
    }

    /// Gives a command to the helper; its number is the next one.
    pub(super) fn give(&mut self, helper: &Helper, mut command: Command) {
        self.number = self.number.wrapping_add(1);
        command.number = self.number;
        helper.give(&command);
        self.current = Some(command);
    }

    pub(super) fn current(&self) -> Option<&Command> {
        self.current.as_ref()
    }

    /// Takes the command, to note its result.
    pub(super) fn take_current(&mut self) -> Option<Command> {
        self.current.take()
    }

    /// The helper is not done with the command.
    pub(super) fn put_back(&mut self, command: Command) {
        self.current = Some(command);
    }

    /// Notes the result of a command, and the batch whose memory it frees.
    pub(super) fn finish(&mut self, moved: Moved, dropping: Option<usize>, has_no_memory: bool) {
        (self.collected, self.dropping) = (moved, dropping);
        self.has_no_memory = has_no_memory;
    }

    /// Takes the result of the last command.
    pub(super) fn take_result(&mut self) -> (Moved, Option<usize>) {
        (std::mem::take(&mut self.collected), self.dropping.take())
    }

    /// Whether the kernel refused the last move for want of memory or of mappings (ENOMEM).
    pub(crate) fn has_no_memory(&self) -> bool {
        self.has_no_memory
    }

    /// Something has changed in a range of addresses: no page of it is moved any more by a command
    /// that was given before (P2).
    pub(crate) fn take_back(&self, range: Range<u64>) {
        if let (Some(helper), Some(command)) = (&self.helper, &self.current) {
            helper.take_back(command, range);
        }
    }

    /// Lets the helper go on; `changed` where the program's mappings are not what they were.
    pub(crate) fn let_go(&self, changed: bool) {
        if let Some(helper) = &self.helper {
            helper.let_go(changed);
        }
    }

    /// Notes that the markers of a range are removed.
    pub(super) fn expect_unmarked(&mut self, range: &Range<u64>) {
        for run in self.current.iter_mut().flat_map(|command| &mut command.runs) {
            run.is_unmarked |= overlap(&run.addresses(), range);
        }
    }

    /// Takes a change that tells of nothing but the helper's own work; `false` for others. The
    /// caller asks for each change of the mappings, in the order in which they are read.
    pub(crate) fn take_own_change(&mut self, change: &Event) -> bool {
        let (Some(helper), Some(command)) = (&self.helper, &mut self.current) else { return false };
        if !command.is_remap() {
            return false;
        }
        let others = match *change {
            Event::Remap { from, to, len } => {
                let is_it = |run: &&mut MoveRun| {
                    run.addresses() == (from..from + len) && helper.staged_at(run.staged) == to
                };
                if let Some(run) = command.runs.iter_mut().find(is_it) {
                    run.is_reported = true;
                    return true;
                }
                [from..from + len, to..to + len]
            }
            Event::Unmap { start, end } => [start..end, 0..0],
            Event::Remove { .. } | Event::Fork { .. } | Event::PageFault { .. } => return false,
        };
        for run in command.runs.iter_mut().filter(|run| run.moved > 0 && !run.is_reported) {
            let at = run.addresses();
            run.is_doubted |= others.iter().any(|it| overlap(it, &at));
        }
        false
    }
}

impl AddressSpace {
    /// Keeps the helper from moving pages, and notes what it has moved; `false` where it is at
    /// work. One that was stopped may not go on for long: it is kept from moving any more.
    pub(crate) fn hold_commands(&mut self) -> bool {
        let Some(helper) = self.commands.helper.clone() else { return true };
        let held = helper.hold();
        if held {
            self.collect(helper.has_paused());
        } else if self.hold_remapping(&helper) {
            return true;
        }
        let is_in_the_way = !held || self.commands.current.is_some();
        if is_in_the_way && helper.is_late() && self.process.is_stopped() {
            return self.hold_stopped(&helper, held);
        }
        held
    }

    /// Breaks the command off of a helper that was stopped, wherever that was, and holds it. It may
    /// go on at any moment.
    fn hold_stopped(&mut self, helper: &Helper, held: bool) -> bool {
        // From now on it begins commands without pages.
        self.commands.take_back(0..u64::MAX);
        let command = self.commands.current.as_ref();
        let batch = command.and_then(|command| command.batch);
        let is_remap = command.is_some_and(Command::is_remap);
        if is_remap && !held {
            if !helper.take_from_work() {
                return false; // it is in mremap, or about to be
            }
        } else if let (Some(batch), false) = (batch, held) {
            // It may be about to move some: none are moved to what is not registered.
            if self.uffd.unregister(helper.batch_at(batch)).is_err() {
                return false;
            }
            self.markers.expect_stray(); // it may be about to mark those that it has moved
        }
        if self.break_off().is_err() {
            return held;
        }
        helper.hold_at_work();
        true
    }

    /// Ends a helper that is the last thread of its process.
    pub(crate) fn end_helper_left_alone(&self) {
        if let Some(helper) = self.commands.helper()
            && let Some(code) = self.process.code_left_alone()
        {
            helper.end(code);
        }
    }
}
