//! Registration of a program's memory with its userfaultfd, and scans for new memory.

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::fork_advice::ForkAdvice;
use super::lazy::LazyScans;
use super::write_protect::PROTECT_MAX;
use super::{AddressSpace, PAGE, pages};
use crate::program::procfs::{Empty, ProcessFiles, Size};
use crate::program::vmas::Mapping;
use crate::range_set::{RangeSet, count};
use crate::{SpaceHandle, lock};
use uzswap_sys::userfaultfd::Userfaultfd;

/// A stack with so few resident pages is not registered. The gain is small, and each ending thread
/// would wait until the drop of its stack was read.
const STACK_PAGES: u64 = 16;

/// Mappings that count as stacks at most, beside two for each thread. An allocator may put its
/// memory between guards, too.
const STACKS_MIN: usize = 32;

/// Registered memory, and scans for more.
#[derive(Debug)]
pub(crate) struct Registration {
    /// Ranges that are registered with the userfaultfd.
    ranges: RangeSet,
    scans: ScanState,
    lazy_scans: LazyScans,
}

impl Registration {
    pub(super) fn new(now: Instant) -> Registration {
        let (ranges, scans) = (RangeSet::new(), ScanState::default());
        Registration { ranges, scans, lazy_scans: LazyScans::new(now) }
    }

    pub(crate) fn ranges(&self) -> &RangeSet {
        &self.ranges
    }

    pub(crate) fn is_any(&self) -> bool {
        self.ranges != RangeSet::new()
    }

    pub(crate) fn insert(&mut self, range: Range<u64>) {
        self.ranges.insert(range);
    }

    pub(crate) fn remove(&mut self, range: Range<u64>) {
        self.ranges.remove(range);
    }

    pub(crate) fn replace(&mut self, ranges: RangeSet) {
        self.ranges = ranges;
    }

    pub(crate) fn scans(&mut self) -> &mut ScanState {
        &mut self.scans
    }

    /// Begins a scan for lazily freed pages, if there may be any by now; whether it did.
    pub(super) fn begin_lazy_scan(&mut self, now: Instant) -> bool {
        self.lazy_scans.begin(&self.ranges, now)
    }

    /// Ends a scan for lazily freed pages that began `since`.
    pub(super) fn end_lazy_scan(&mut self, since: Instant) {
        self.lazy_scans.end(since);
    }

    /// Memory of what is known, in bytes, about.
    pub(super) fn bytes(&self) -> usize {
        self.ranges.bytes() + self.lazy_scans.bytes()
    }
}

/// The state of scans of an address space.
#[derive(Debug, Default)]
pub(crate) struct ScanState {
    /// A scan is queued or running.
    is_awaited: bool,
    /// When the last scan began, and its processor time.
    began: Option<Instant>,
    took: Duration,
    /// Ranges that changed since the running scan began.
    changed: Option<RangeSet>,
    /// Size of the address space in pages when all of it was registered last. Less if it was
    /// smaller since, or if a range was unmapped: a mapping in its place may be as large.
    registered_at_size: Option<u64>,
}

/// Why a scan is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ScanReason {
    /// The address space has grown since all of it was registered.
    Grown,
    /// Some time has passed since the last scan.
    After(Duration),
}

impl ScanState {
    /// Why a scan is due for this size, if none runs. Scans may take this part of the time at
    /// most.
    pub(crate) fn due(&mut self, size: Size, part: u32) -> Option<ScanReason> {
        self.registered_at_size = self.registered_at_size.map(|before| before.min(size.mapped));
        let Some(began) = self.began else {
            return (!self.is_awaited).then_some(ScanReason::Grown);
        };
        let elapsed = began.elapsed();
        if self.is_awaited || elapsed < self.took * part {
            return None;
        }
        let has_grown = self.registered_at_size != Some(size.mapped);
        Some(if has_grown { ScanReason::Grown } else { ScanReason::After(elapsed) })
    }

    /// Notes ranges that change, from now on to the end of the scan.
    pub(super) fn begin_changes(&mut self) {
        self.changed = Some(RangeSet::new());
    }

    /// Notes a range that has changed.
    pub(super) fn note_changed(&mut self, range: Range<u64>) {
        if let Some(changed) = &mut self.changed {
            changed.insert(range);
        }
    }

    /// Takes the ranges that have changed.
    pub(super) fn take_changed(&mut self) -> RangeSet {
        self.changed.take().unwrap_or_default()
    }

    /// Notes so many registered pages as unmapped.
    pub(super) fn unmapped(&mut self, pages: usize) {
        self.registered_at_size =
            self.registered_at_size.map(|size| size.saturating_sub(pages as u64));
    }

    /// Notes that a scan is queued.
    pub(crate) fn await_one(&mut self) {
        self.is_awaited = true;
    }

    /// Notes the end of a scan that took so much processor time.
    pub(crate) fn end(&mut self, took: Duration) {
        (self.is_awaited, self.took) = (false, took);
    }
}

/// An unregistered mapping, or parts of it.
pub(super) struct Unregistered {
    mapping: Range<u64>,
    pub(super) parts: Vec<Range<u64>>,
    /// With so few resident pages it stays unregistered: it may be a thread's stack, a guard, or
    /// reserved.
    spared_pages: Option<u64>,
}

impl AddressSpace {
    /// Registers all anonymous memory that is not registered yet.
    pub(crate) fn register(&mut self) -> io::Result<()> {
        // Threads have new stacks all the time.
        self.register_and(!self.process.has_threads())
    }

    /// The same for memory that another process may share.
    pub(crate) fn register_shared(&mut self) -> io::Result<()> {
        self.register_and(true)
    }

    /// As [`AddressSpace::register`]; protects memory that may be shared, if the caller allows
    /// that.
    pub(super) fn register_and(&mut self, may_protect: bool) -> io::Result<()> {
        let Some(files) = self.process.files().cloned() else { return Ok(()) };
        if self.uffd.is_changing() || !self.settle() {
            return Ok(());
        }
        self.register_identity();
        self.know_fork_advice();
        let parts = self.unregistered(files.mappings.outside(self.registration.ranges())?);
        let mut registering = Registering::default();
        registering.register(&self.uffd, &files, parts)?;
        let registered = registering.in_order();
        self.note_registered_since(&registered);
        let now = files.mappings.at(&registered)?;
        self.note_registered(registered, &now, may_protect);
        Ok(())
    }

    /// The unregistered parts of these mappings that the registrar must register.
    pub(super) fn unregistered(&mut self, mappings: Vec<Mapping>) -> Vec<Unregistered> {
        self.unevictable.try_at_times(&self.process);
        let mut found = Vec::new();
        for mapping in mappings {
            let parts = self.registration.ranges().outside(mapping.range.clone());
            let may_be_stack = mapping.is_above_guard && parts == [mapping.range.clone()];
            let spared_pages = match mapping.has_no_access {
                true => Some(0),
                false => may_be_stack.then_some(STACK_PAGES),
            };
            found.push(Unregistered {
                parts: parts
                    .into_iter()
                    .flat_map(|part| self.unevictable.ranges().outside(part))
                    .collect(),
                mapping: mapping.range,
                spared_pages,
            });
        }
        found
    }

    /// Notes ranges as registered that are certain to be: the mappings after the registration
    /// agree. `false` if the registrar must do it again soon.
    ///
    /// A part may have had a hole when it was registered, with an unregistered mapping in it now.
    /// The kernel registers whole mappings: if no event is pending, a mapping that has a
    /// registered part is registered.
    pub(super) fn note_registered(
        &mut self,
        registered: Vec<Range<u64>>,
        now: &[Mapping],
        may_protect: bool,
    ) -> bool {
        if registered.is_empty() {
            self.protection.note_registered(true);
            return true;
        }
        if self.uffd.is_changing() || !self.layout.is_settled() {
            return false;
        }
        // All mappings since the fork are its own.
        let is_shared = self.protection.shares_unregistered() && self.protection.is_on();
        let mut are_whole = true;
        let spared = (is_shared && may_protect).then(|| self.process.stacks()).flatten();
        let spared = spared.and_then(|stacks| self.not_to_protect(stacks));
        for part in registered {
            let at = now.partition_point(|mapping| mapping.range.end <= part.start);
            let is_whole = now.get(at).is_some_and(|Mapping { range, .. }| {
                range.start <= part.start && part.end <= range.end
            });
            are_whole &= is_whole;
            if is_whole {
                for part in spared.iter().flat_map(|spared| spared.outside(part.clone())) {
                    self.protection.add(part);
                }
                self.registration.insert(part);
                self.unevictable.expect_words();
            }
        }
        self.protection.note_registered(are_whole);
        self.unevictable.keep_arguments(&self.process);
        self.have_all_forks_reported();
        self.protect(PROTECT_MAX);
        are_whole
    }

    /// Notes memory that was registered while mappings change: it may be newer than the changes.
    pub(super) fn note_registered_since(&mut self, registered: &[Range<u64>]) {
        if self.uffd.is_changing() || !self.layout.is_settled() {
            self.layout.note_registered_since(registered);
        }
    }

    /// The registered pages of a window in a row with `page`, at least `page` itself.
    pub(crate) fn registered_around(&self, page: u64, window: Range<u64>) -> Range<u64> {
        let mut parts = self.registration.ranges().within(window.start * PAGE..window.end * PAGE);
        parts.find(|part| part.contains(&(page * PAGE))).map_or(page..page + 1, pages)
    }

    /// Fresh pages around a missing one that can be filled as well. `None` if the kernel shows the
    /// marker of an evicted page there; that is not asked for a page alone.
    pub(crate) fn fresh_around(&self, page: u64, pages: Range<u64>) -> Option<Range<u64>> {
        // The program drops memory a moment after its event, and markers with it.
        let are_strict = self.are_markers_strict() && !self.layout.removing().contains(page * PAGE);
        let kind = if are_strict { Empty::Unmarked } else { Empty::Either };
        if count(&pages) <= 1 {
            return Some(pages);
        }
        self.empty_around(page, pages, kind)
    }

    /// Evicted pages around a missing one that can be filled as well. `None` if its entry has no
    /// marker: then the program dropped the page without an event (a guard was there), or an event
    /// is pending. The kernel is asked about a page alone only where the program was dropping
    /// memory.
    pub(crate) fn evicted_around(&self, page: u64, pages: Range<u64>) -> Option<Range<u64>> {
        if count(&pages) <= 1 && !self.layout.removing().contains(page * PAGE) {
            return Some(pages);
        }
        match self.awaits_marker(page * PAGE) {
            true => Some(page..page + 1),
            false => self.empty_around(page, pages, Empty::Marked),
        }
    }

    /// Pages of one kind around a missing `page`. A fill would remove a guard
    /// (MADV_GUARD_INSTALL), which no event reports.
    fn empty_around(&self, page: u64, pages: Range<u64>, kind: Empty) -> Option<Range<u64>> {
        let addresses = |pages: Range<u64>| pages.start * PAGE..pages.end * PAGE;
        let (at, range) = (addresses(page..page + 1), addresses(pages));
        let found = self.process.files().map(|files| files.empty_around(at, range, kind));
        match found {
            Some(Ok(around)) => around.map(super::pages),
            Some(Err(_)) | None => Some(page..page + 1),
        }
    }
}

/// As [`AddressSpace::register`], while faults are served. The lock is held to see which memory is
/// unregistered, and to note the result; not during the registration, which may take milliseconds.
/// No event is read meanwhile: of memory that moved to an unmapped range, the kernel tells whether
/// it is registered.
pub(crate) fn register(space: &SpaceHandle) -> io::Result<()> {
    let (files, uffd, mut known, has_advice) = {
        let mut space = lock(space);
        space.registration.scans.began = Some(Instant::now());
        if space.protection.shares_unregistered() {
            return space.register(); // nothing of before the fork may be missing
        }
        let Some(files) = space.process.files().cloned() else { return Ok(()) };
        space.register_identity();
        let known = space.registration.ranges.clone();
        (files, Arc::clone(&space.uffd), known, space.fork_reports.has_advice())
    };
    let size = files.size().map(|size| size.mapped);
    // At first the large mappings are registered: they grow most.
    let is_first = known == RangeSet::default();
    let found = if is_first { files.mappings.large() } else { files.mappings.outside(&known) }?;
    let events = space.lock_events();
    let (protects, is_settled, is_all) = {
        let mut space = lock(space);
        // Another mapping may have come where registered memory went.
        let is_all = known.iter().all(|part| space.registration.ranges().outside(part).is_empty());
        let is_settled = !uffd.is_changing() && space.settle();
        if is_settled {
            space.registration.scans.begin_changes();
        }
        (space.protection.is_on(), is_settled, is_all)
    };
    let mut registering = Registering::default();
    let mut register = |mappings| {
        let parts = lock(space).unregistered(mappings);
        registering.register(&uffd, &files, parts)
    };
    let registered = if is_first {
        // Without guards: the walk recognises a stack by the guard below it.
        let has_access = found.iter().filter(|mapping| !mapping.has_no_access);
        has_access.for_each(|mapping| known.insert(mapping.range.clone()));
        register(found).and_then(|()| register(files.mappings.outside(&known)?))
    } else {
        register(found)
    };
    if !has_advice {
        // The kernel walks all pages for it, and the program grows by faults meanwhile.
        let answer = ForkAdvice::of(&files);
        lock(space).fork_reports.note_advice(answer);
    }
    lock(space).note_registered_since(&registering.registered);
    drop(events);
    if !is_settled {
        // It grows by faults now, but counts as registered only when both readings of the mappings
        // agree.
        return registered;
    }
    let found = registered.and_then(|()| {
        let parts = registering.in_order();
        Ok((files.mappings.at(&parts)?, parts))
    });
    let mut space = lock(space);
    let changed = space.registration.scans.take_changed();
    let (now, registered) = found?;
    if space.protection.shares_unregistered() || space.protection.is_on() != protects {
        return Ok(()); // it forks: what was registered is to be protected, too
    }
    let (gone, there): (Vec<Range<u64>>, Vec<Range<u64>>) =
        registered.into_iter().partition(|part| changed.has_some_of(part));
    if space.note_registered(there, &now, false) && gone.is_empty() {
        space.registration.scans.registered_at_size = size.filter(|_| is_all);
    }
    Ok(())
}

/// Memory that a scan registers.
#[derive(Default)]
struct Registering {
    registered: Vec<Range<u64>>,
    /// Mappings that counted as stacks, and their limit once there are more than [`STACKS_MIN`].
    stacks: usize,
    stacks_max: Option<usize>,
}

impl Registering {
    /// Registers parts of mappings, without guards and stacks.
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
                // A stack is mapped without rights. It may have got rights and pages since.
                let has_rights_now = || pages == 0 && !files.mappings.has_no_access(&mapping);
                files.has_at_most(mapping.clone(), pages) || has_rights_now()
            });
            if !is_too_many && is_spared {
                self.stacks += usize::from(may_be_stack);
                continue;
            }
            for part in parts {
                // For write protection, too, from the start. A second registration before a fork
                // could include memory that was mapped there since.
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
        let mut scans = ScanState { began: Some(Instant::now()), ..ScanState::default() };
        scans.registered_at_size = Some(100);
        let has_grown = |scans: &mut ScanState, mapped| {
            matches!(
                scans.due(Size { mapped, anonymous: 0, others: 0 }, 1),
                Some(ScanReason::Grown)
            )
        };
        assert!(!has_grown(&mut scans, 100) && has_grown(&mut scans, 101));
        scans.unmapped(10);
        assert!(!has_grown(&mut scans, 90) && has_grown(&mut scans, 100));
        // A smaller size was read before.
        scans.registered_at_size = Some(100);
        assert!(!has_grown(&mut scans, 80) && has_grown(&mut scans, 100));
        scans.await_one();
        assert!(!has_grown(&mut scans, 100), "one is awaited");
    }
}
