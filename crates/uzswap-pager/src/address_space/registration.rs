//! What of a space is registered; of that, its arguments never leave.

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::inheritance::ForkAdvice;
use super::never_evicted::LISTS;
use super::write_protect::PROTECT_MAX;
use super::{AddressSpace, PAGE, pages};
use crate::range_set::{RangeSet, count};
use crate::target::procfs::{ProcessFiles, Size};
use crate::target::vmas::Mapping;
use crate::{SpaceHandle, lock};
use uzswap_sys::process;
use uzswap_sys::userfaultfd::Userfaultfd;

/// Where no more pages are resident of what may be a thread's stack, it is not registered: there is
/// little to win, and each thread that ends would be held up to tell that it drops its stack.
const STACK_PAGES: u64 = 16;

/// Mappings that are spared as stacks at most, beside two for each thread. An allocator may put its
/// memory between guards, too.
const STACKS_MIN: usize = 32;

/// How much of a program's arguments and environment stays, in bytes.
const ARGUMENTS_MAX: u64 = 16 * PAGE;

/// How long pages that could not be moved are left alone.
const LEFT_FOR: Duration = Duration::from_secs(5);

/// Looks at the mappings of a space.
#[derive(Debug, Default)]
pub(crate) struct ScanState {
    /// It waits for one, or one goes on.
    is_awaited: bool,
    /// When the last one began, and what it took of a processor.
    began: Option<Instant>,
    took: Duration,
    /// Where mappings have changed since one began, while that goes on.
    pub(super) changed: Option<RangeSet>,
    /// Size of the address space, in pages, when all of it was last registered, or less if it was
    /// less since, or something was unmapped: what was mapped in its place may be as large.
    registered_at_size: Option<u64>,
}

/// Why one is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Look {
    /// The address space is larger than it was when all of it was registered.
    Grown,
    /// It is not, so long after the last one.
    After(Duration),
}

impl ScanState {
    /// Why one is due where the address space has this size now, if none goes on: one after another
    /// may take one part in so many of the time at most.
    pub(crate) fn due(&mut self, size: Size, part: u32) -> Option<Look> {
        self.registered_at_size = self.registered_at_size.map(|before| before.min(size.mapped));
        let Some(began) = self.began else { return (!self.is_awaited).then_some(Look::Grown) };
        let elapsed = began.elapsed();
        if self.is_awaited || elapsed < self.took * part {
            return None;
        }
        let has_grown = self.registered_at_size != Some(size.mapped);
        Some(if has_grown { Look::Grown } else { Look::After(elapsed) })
    }

    /// So many pages that were registered are there no more.
    pub(super) fn unmapped(&mut self, pages: usize) {
        self.registered_at_size =
            self.registered_at_size.map(|size| size.saturating_sub(pages as u64));
    }

    /// It waits for one.
    pub(crate) fn await_one(&mut self) {
        self.is_awaited = true;
    }

    /// One has ended, which took so much of a processor.
    pub(crate) fn end(&mut self, took: Duration) {
        (self.is_awaited, self.took) = (false, took);
    }
}

/// A mapping, or parts of it, that is not registered.
pub(super) struct Unregistered {
    mapping: Range<u64>,
    pub(super) parts: Vec<Range<u64>>,
    /// With so few pages resident it is not to be: it may be a thread's stack, or
    /// be a guard, or reserved.
    spared_pages: Option<u64>,
}

impl AddressSpace {
    /// Registers all anonymous memory that is not registered yet.
    pub(crate) fn register(&mut self) -> io::Result<()> {
        // Threads have new stacks all the time.
        self.register_and(!self.has_threads())
    }

    /// Likewise, where it may all be another process's as well.
    pub(crate) fn register_shared(&mut self) -> io::Result<()> {
        self.register_and(true)
    }

    /// As [`AddressSpace::register`]; what may be another's as well is protected, if it may be.
    pub(super) fn register_and(&mut self, may_protect: bool) -> io::Result<()> {
        let Some(files) = self.files.clone() else { return Ok(()) };
        if self.uffd.is_changing() {
            return Ok(());
        }
        self.settle();
        self.register_identity();
        self.know_fork_advice();
        let parts = self.unregistered(files.mappings.outside(&self.registered)?);
        let mut registering = Registering::default();
        registering.register(&self.uffd, &files, parts)?;
        let registered = registering.in_order();
        let now = files.mappings.at(&registered)?;
        self.note_registered(registered, &now, may_protect);
        Ok(())
    }

    /// What of these mappings is not registered, and not to be left alone.
    pub(super) fn unregistered(&mut self, mappings: Vec<Mapping>) -> Vec<Unregistered> {
        if self.left_since.elapsed() > LEFT_FOR {
            self.words.grow_older();
            self.try_all_again();
        }
        let mut found = Vec::new();
        for mapping in mappings {
            let parts = self.registered.outside(mapping.range.clone());
            let may_be_stack = mapping.is_above_guard && parts == [mapping.range.clone()];
            let spared_pages = match mapping.has_no_access {
                true => Some(0),
                false => may_be_stack.then_some(STACK_PAGES),
            };
            found.push(Unregistered {
                parts: parts.into_iter().flat_map(|part| self.left.outside(part)).collect(),
                mapping: mapping.range,
                spared_pages,
            });
        }
        found
    }

    /// Takes out what may not be what it seems, as something is untold: where something was moved
    /// to, which by being registered would be taken for that ([`AddressSpace::unmapped`]); and
    /// mappings of which some seems to be registered, as that may be what was there before, and has
    /// moved.
    pub(super) fn leave_uncertain(&self, found: &mut Vec<Unregistered>) {
        found.retain(|unregistered| !self.registered.has_some_of(&unregistered.mapping));
        for Unregistered { parts, .. } in found {
            let outside = |part: Range<u64>| self.moved_in.outside(part);
            *parts = std::mem::take(parts).into_iter().flat_map(outside).collect();
        }
    }

    /// Registers what was registered, if it is certain that it is still: by the mappings that there
    /// were since then. `false` where that is to be done again soon.
    ///
    /// A part may have had a hole when it was registered, where something else is now that is not.
    /// A mapping is registered as a whole or not at all: what lies in one now is registered, where
    /// no change since is untold.
    pub(super) fn note_registered(
        &mut self,
        registered: Vec<Range<u64>>,
        now: &[Mapping],
        may_protect: bool,
    ) -> bool {
        if registered.is_empty() {
            self.shares_unregistered = false;
            return true;
        }
        if self.uffd.is_changing() {
            return false;
        }
        // Since it forked, all that was mapped is its own.
        let is_shared = self.shares_unregistered && self.protects;
        let mut are_whole = true;
        let spared = (is_shared && may_protect).then(|| self.stacks()).flatten();
        let spared = spared.and_then(|stacks| self.not_to_protect(stacks));
        for part in registered {
            let at = now.partition_point(|mapping| mapping.range.end <= part.start);
            let is_whole = now.get(at).is_some_and(|Mapping { range, .. }| {
                range.start <= part.start && part.end <= range.end
            });
            are_whole &= is_whole;
            if is_whole {
                for part in spared.iter().flat_map(|spared| spared.outside(part.clone())) {
                    self.to_protect.insert(part);
                }
                self.registered.insert(part);
                self.knows_words = false;
            }
        }
        self.shares_unregistered &= !are_whole;
        if !std::mem::replace(&mut self.knows_arguments, true) {
            self.leave_arguments();
        }
        self.have_all_forks_told();
        self.protect(PROTECT_MAX);
        are_whole
    }

    /// Leaves arguments and environment where they are: to ps and others who read
    /// /proc/PID/cmdline, a page that has left is not there. They are registered all the same: else
    /// the kernel would split the mapping of the stack, whose size the C library tells by it.
    fn leave_arguments(&mut self) {
        let Some(range) = self.thread.and_then(process::arguments_of) else { return };
        let start = range.start / PAGE * PAGE;
        let pages = start..range.end.next_multiple_of(PAGE).min(start + ARGUMENTS_MAX);
        self.leave_for_good(pages);
    }

    /// Leaves the word where it is that the kernel clears when the first thread ends. A thread that
    /// ends has no faults served. In musl the word is a lock that all threads take when they end.
    pub(crate) fn leave_end_word(&mut self, address: u64) {
        if LISTS.contains(&address) {
            let start = address / PAGE * PAGE;
            self.leave_for_good(start..(address + 4).next_multiple_of(PAGE));
        }
    }

    fn leave_for_good(&mut self, pages: Range<u64>) {
        self.words.insert_lasting(pages.clone());
        self.left.insert(pages);
    }

    /// The pages of a window that are registered in a row with `page`; that in any case. None more
    /// where it is in doubt what is there.
    pub(crate) fn registered_around(&self, page: u64, window: Range<u64>) -> Range<u64> {
        let window = window.start * PAGE..window.end * PAGE;
        let is_doubted = self.doubted.iter().any(|doubted| doubted.has_some_of(&window));
        if is_doubted || self.has_doubt() {
            return page..page + 1;
        }
        let mut parts = self.registered.within(window);
        parts.find(|part| part.contains(&(page * PAGE))).map_or(page..page + 1, pages)
    }

    /// Those of some pages around `page`, which is missing, that can be filled as well: a guard
    /// (MADV_GUARD_INSTALL), of which nothing is told, would be gone then.
    pub(crate) fn fillable_around(&self, page: u64, pages: Range<u64>) -> Range<u64> {
        if count(&pages) <= 1 {
            return pages;
        }
        let (at, range) = (page * PAGE, pages.start * PAGE..pages.end * PAGE);
        let found = self.files.as_ref().and_then(|files| files.empty_around(at, range).ok());
        let found = found.filter(|found| found.contains(&at));
        found.map_or(page..page + 1, |found| found.start / PAGE..found.end / PAGE)
    }
}

/// As [`AddressSpace::register`], of one that may have pages to serve meanwhile. The lock is held
/// only to see what is not registered, and to note that it is: to register it may take
/// milliseconds, where a thread that changes mappings does not get to run. What it does is not read
/// meanwhile: of what is told to have moved to where it was unmapped, the kernel is asked whether
/// it is registered.
pub(crate) fn register(space: &SpaceHandle) -> io::Result<()> {
    let (files, uffd, mut known, has_advice) = {
        let mut space = lock(space);
        space.looks.began = Some(Instant::now());
        if space.shares_unregistered {
            return space.register(); // nothing of before the fork may be missing
        }
        let Some(files) = space.files.clone() else { return Ok(()) };
        space.register_identity();
        (files, Arc::clone(&space.uffd), space.registered.clone(), space.has_fork_advice())
    };
    let size = files.size().map(|size| size.mapped);
    // Where nothing is known yet, the large ones are registered first: they grow most.
    let is_first = known == RangeSet::default();
    let found = if is_first { files.mappings.large() } else { files.mappings.outside(&known) }?;
    let events = space.lock_events();
    let (protects, is_settled, is_all) = {
        let mut space = lock(space);
        // Where some went that was known, something else may have come meanwhile.
        let is_all = known.iter().all(|part| space.registered.outside(part).is_empty());
        let is_settled = !uffd.is_changing();
        if is_settled {
            space.settle();
            space.looks.changed = Some(RangeSet::default());
        }
        (space.protects, is_settled, is_all)
    };
    let mut registering = Registering::default();
    let mut register = |mappings| {
        let mut space = lock(space);
        let mut parts = space.unregistered(mappings);
        if !is_settled {
            space.leave_uncertain(&mut parts);
        }
        drop(space);
        registering.register(&uffd, &files, parts)
    };
    let registered = if is_first {
        // But for guards: by a guard, the walk tells the stack above it.
        let has_access = found.iter().filter(|mapping| !mapping.has_no_access);
        has_access.for_each(|mapping| known.insert(mapping.range.clone()));
        register(found).and_then(|()| register(files.mappings.outside(&known)?))
    } else {
        register(found)
    };
    if !has_advice {
        // The kernel looks at all pages for it: the program grows by faults meanwhile.
        let told = ForkAdvice::of(&files);
        lock(space).note_fork_advice(told);
    }
    drop(events);
    if !is_settled {
        // It grows by faults now, but does not count before it is certain what it is.
        return registered;
    }
    let found = registered.and_then(|()| {
        let parts = registering.in_order();
        Ok((files.mappings.at(&parts)?, parts))
    });
    let mut space = lock(space);
    let changed = space.looks.changed.take().unwrap_or_default();
    let (now, registered) = found?;
    if space.shares_unregistered || space.protects != protects {
        return Ok(()); // it forks: what was registered is to be protected, too
    }
    let (gone, there): (Vec<Range<u64>>, Vec<Range<u64>>) =
        registered.into_iter().partition(|part| changed.has_some_of(part));
    if space.note_registered(there, &now, false) && gone.is_empty() {
        space.looks.registered_at_size = size.filter(|_| is_all);
    }
    Ok(())
}

/// Memory that a look registers.
#[derive(Default)]
struct Registering {
    registered: Vec<Range<u64>>,
    /// Mappings that were spared as stacks, and how many may be, where there are more than
    /// [`STACKS_MIN`].
    stacks: usize,
    stacks_max: Option<usize>,
}

impl Registering {
    /// Registers parts of mappings, but for guards and stacks.
    fn register(
        &mut self,
        uffd: &Userfaultfd,
        files: &ProcessFiles,
        unregistered: Vec<Unregistered>,
    ) -> io::Result<()> {
        for Unregistered { mapping, parts, spared_pages } in unregistered {
            let may_be_stack = spared_pages == Some(STACK_PAGES);
            let is_too_many = may_be_stack && self.limit_stacks(files);
            let is_spared = spared_pages.is_some_and(|pages| {
                // A stack is mapped without rights: it may have got them since, and pages.
                let has_rights_now = || pages == 0 && !files.mappings.has_no_access(&mapping);
                files.has_at_most(mapping.clone(), pages) || has_rights_now()
            });
            if !is_too_many && is_spared {
                self.stacks += usize::from(may_be_stack);
                continue;
            }
            for part in parts {
                // For write protection, too, from the start: to register it again before a fork
                // would register what is mapped there by then, and take it for what was.
                match uffd.register(part.clone(), true, true) {
                    Ok(()) => self.registered.push(part),
                    // The part is gone, has another userfaultfd, or is of a special kind.
                    Err(error) if error.raw_os_error() == Some(libc::ESRCH) => return Err(error),
                    Err(_) => {}
                }
            }
        }
        Ok(())
    }

    /// All registered ranges, in the order of addresses.
    fn in_order(mut self) -> Vec<Range<u64>> {
        self.registered.sort_by_key(|part| part.start);
        self.registered.dedup();
        self.registered
    }

    /// Learns how many stacks there may be; whether as many were spared.
    fn limit_stacks(&mut self, files: &ProcessFiles) -> bool {
        if self.stacks < STACKS_MIN {
            return false;
        }
        let most = || STACKS_MIN + files.threads().count() * 2;
        let most = self.stacks_max.get_or_insert_with(most);
        self.stacks >= *most
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_mapped_where_something_was_unmapped_is_new() {
        let mut looks = ScanState { began: Some(Instant::now()), ..ScanState::default() };
        looks.registered_at_size = Some(100);
        let has_grown = |looks: &mut ScanState, mapped| {
            matches!(looks.due(Size { mapped, anonymous: 0, others: 0 }, 1), Some(Look::Grown))
        };
        assert!(!has_grown(&mut looks, 100) && has_grown(&mut looks, 101));
        looks.unmapped(10);
        assert!(!has_grown(&mut looks, 90) && has_grown(&mut looks, 100));
        // What was seen to be smaller before.
        looks.registered_at_size = Some(100);
        assert!(!has_grown(&mut looks, 80) && has_grown(&mut looks, 100));
        looks.await_one();
        assert!(!has_grown(&mut looks, 100), "one is awaited");
    }
}
