//! Faults: a program gets the page that it waits for, and those that it will want next.

use std::fmt::Display;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use super::page_loader::{PageLoader, RESTORED_MAX};
use super::touch::{Access, Touch};
use super::wake_ups::WakeUps;
use super::{FaultServer, PAGE};
use crate::address_space::AddressSpace;
use crate::address_space::handle::Locked;
use crate::page_table::Place;
use crate::policy::throttle::{Attempt, Decision};
use crate::range_set::count;
use crate::{Pager, SpaceHandle, lock};
use uzswap::page::Page;
use uzswap_sys::userfaultfd::Stopped;

/// Pages of zeros for one fault at most.
pub(super) const FRESH_MAX: usize = 64;

/// A fault that is served, or that waits for headroom or for the file.
#[derive(Debug)]
pub(super) struct Fault {
    space: u32,
    touch: Touch,
    /// The thread is the helper of its process.
    is_helper: bool,
    since: Instant,
    /// The evictor's round at that time.
    round: u64,
    /// A try found no headroom.
    found_no_room: bool,
    /// It has waited longer than usual.
    waits_longer: bool,
    /// By the last decision it is served over the limit.
    is_over_limit: bool,
    /// Pages to restore, once they were chosen.
    window: Option<Range<u64>>,
}

impl Fault {
    /// A fault of a space, in a round of the evictor.
    pub(super) fn new(
        space: u32,
        touch: Touch,
        is_helper: bool,
        since: Instant,
        round: u64,
    ) -> Fault {
        Fault {
            space,
            touch,
            is_helper,
            since,
            round,
            found_no_room: false,
            waits_longer: false,
            is_over_limit: false,
            window: None,
        }
    }

    /// Whether the same thread touches the same page in the same way.
    pub(super) fn is(&self, space: u32, touch: &Touch) -> bool {
        let what = |space, touch: &Touch| (space, touch.thread, touch.page(), touch.access);
        what(self.space, &self.touch) == what(space, touch)
    }

    fn page(&self) -> u64 {
        self.touch.page()
    }

    /// Whether the evictor must make room for it.
    pub(super) fn awaits_room(&self) -> bool {
        self.found_no_room
    }

    pub(super) fn space(&self) -> u32 {
        self.space
    }

    pub(super) fn touch(&self) -> &Touch {
        &self.touch
    }
}

/// What became of a fault.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Resolution {
    Done,
    /// There is no room for it now.
    NoRoom,
    /// The page is being read from the file.
    Later,
    /// The worker must decompress pages first, with the space unlocked.
    Load,
}

/// Serves the faults of one worker: it needs no state of the fault server.
#[derive(Debug)]
pub(super) struct PageServer {
    pager: Arc<Pager>,
    loader: PageLoader,
    /// The content of pages that were never touched.
    zeros: Arc<Box<[Page]>>,
    /// How many serve faults at once.
    workers: usize,
    pub(super) wake_ups: WakeUps,
}

impl FaultServer {
    /// What a worker serves faults with.
    pub(super) fn page_server(&self) -> PageServer {
        PageServer {
            pager: Arc::clone(&self.pager),
            loader: PageLoader::new(&self.pager, self.reader.clone()),
            zeros: Arc::clone(&self.zeros),
            workers: self.spaces.workers(),
            wake_ups: WakeUps::default(),
        }
    }
}

impl PageServer {
    /// Serves faults of a space that is locked, or has them wait: those are returned.
    pub(super) fn serve_all<'a>(
        &mut self,
        shared: &'a SpaceHandle,
        mut space: Locked<'a>,
        faults: Vec<Fault>,
    ) -> Vec<Fault> {
        let mut waiting = Vec::new();
        for mut fault in faults {
            let served;
            (space, served) = self.serve_one(shared, space, &mut fault);
            waiting.extend(self.note(fault, served));
        }
        waiting
    }

    /// Serves a fault of a space that is locked. The space is unlocked while pages are
    /// decompressed, and locked again afterwards.
    fn serve_one<'a>(
        &mut self,
        shared: &'a SpaceHandle,
        mut space: Locked<'a>,
        fault: &mut Fault,
    ) -> (Locked<'a>, Resolution) {
        self.loader.forget();
        loop {
            match self.serve(&mut space, fault, Instant::now()) {
                Resolution::Load => {
                    drop(space);
                    self.loader.load();
                    space = lock(shared);
                }
                served => return (space, served),
            }
        }
    }

    /// Notes that a fault was served; returns one that waits.
    fn note(&self, fault: Fault, served: Resolution) -> Option<Fault> {
        match served {
            Resolution::NoRoom => Some(Fault { found_no_room: true, ..fault }),
            Resolution::Later => Some(fault),
            Resolution::Load => unreachable!("the pages were loaded"),
            Resolution::Done => {
                let is_over_limit = fault.waits_longer || fault.is_over_limit;
                if fault.found_no_room || is_over_limit {
                    self.pager.meter.waited_for_room(is_over_limit);
                }
                self.pager.meter.fault(fault.since.elapsed());
                None
            }
        }
    }

    /// Pages that this worker may give to a program, at most `most`: each has its part of those up
    /// to the limit.
    fn may_give(&self, most: usize) -> usize {
        (self.pager.account.pages_to_limit() / self.workers).clamp(1, most)
    }

    /// The values that decide whether a fault is served now.
    fn attempt(&self, space: &AddressSpace, fault: &Fault, now: Instant) -> Attempt {
        let Pager { account, progress, .. } = &*self.pager;
        let is_first_write = fault.touch.access == Access::FirstWrite;
        Attempt {
            waited: now - fault.since,
            rounds: progress.rounds() - fault.round,
            is_helper: fault.is_helper,
            is_first_write,
            is_about_to_fork: is_first_write && space.is_about_to_fork(),
            has_helper: space.process.thread().is_some(),
            headroom_pages: account.headroom_pages(),
            pages_to_limit: account.pages_to_limit(),
            is_exhausted: account.is_exhausted(),
            is_freeing: progress.is_freeing(now),
            is_full: progress.is_full(now),
        }
    }

    /// Gives a program the page that it waits for, and those that it will want next, unless the
    /// fault must wait.
    fn serve(&mut self, space: &mut AddressSpace, fault: &mut Fault, now: Instant) -> Resolution {
        if space.faults.are_over() {
            return Resolution::Done; // the kernel has reported the fault again
        }
        let attempt = self.attempt(space, fault, now);
        let decision = attempt.decide();
        fault.waits_longer |= decision == Decision::WaitLonger;
        fault.is_over_limit = decision == Decision::ServeOverLimit;
        if !space.settle() {
            let errno = libc::EAGAIN;
            self.not_filled(space, fault, Stopped { errno, done: 0 });
            return Resolution::Done;
        }
        if space.may_be_poisoned(fault.touch.address, fault.touch.poisonings) {
            self.wake_later(space, fault.page()..fault.page() + 1);
            return Resolution::Done;
        }
        if matches!(decision, Decision::Wait | Decision::WaitLonger) {
            return Resolution::NoRoom;
        }
        let page = fault.page();
        let place = space.table.get(page).place;
        if fault.touch.access == Access::FirstWrite {
            let freed = space.let_write(page, attempt.pages_to_unprotect());
            self.wake_later(space, freed.start..freed.end.max(page + 1));
            self.pager.charge(count(&freed), 0);
        } else if place != Place::Program {
            let served = self.serve_kept(space, fault);
            if served != Resolution::Done {
                return served;
            }
        } else if !fault.is_helper && space.not_commanded(page, page..page + 1).is_empty() {
            // The page returned since the fault, and a command evicts it again: it is not fresh,
            // and the thread must fault again. A helper that waits for a page has moved nothing
            // yet.
            self.wake_later(space, page..page + 1);
        } else {
            self.serve_fresh(space, fault);
        }
        space.faults.note_served();
        Resolution::Done
    }

    /// A page that was never touched, or dropped: zeros.
    fn serve_fresh(&mut self, space: &mut AddressSpace, fault: &Fault) {
        let page = fault.page();
        let address = page * PAGE;
        if fault.touch.access == Access::Read {
            match space.uffd.zeropage(address..address + PAGE, false) {
                // A page came meanwhile, or the entry has a marker.
                Err(stopped) if stopped.errno == libc::EEXIST => {}
                filled => {
                    let filled = filled.map(|()| page..page + 1);
                    self.filled(space, fault, filled).for_each(|page| space.zeroed(page));
                    return;
                }
            }
        }
        // The compressed form of a page may take as much as the page: without headroom fill one
        // page.
        let most = self.may_give(FRESH_MAX);
        let window = space.fresh_window(page, most);
        let wanted = run_around(space, page, window, |place| place == Place::Program);
        let Some(wanted) = space.fresh_around(page, wanted) else {
            if space.uffd.is_changing() {
                return self.wake_later(space, page..page + 1);
            }
            return self.lose(space, page, &"its content is not known");
        };
        let filled = fill_or_one(space, page, wanted.start, &self.zeros[..count(&wanted)]);
        let done = self.filled(space, fault, filled);
        self.pager.charge(count(&done), 0);
        self.pager.meter.fresh(count(&done));
        space.filled_fresh(page, done);
    }

    /// A staged or stored page.
    fn serve_kept(&mut self, space: &mut AddressSpace, fault: &mut Fault) -> Resolution {
        let page = fault.page();
        let most = self.may_give(RESTORED_MAX);
        let window = fault.window.get_or_insert_with(|| space.evicted_window(page, most)).clone();
        let wanted = run_around(space, page, window.clone(), |place| place != Place::Program);
        if self.loader.plan(space, page, window.start, &wanted) {
            return Resolution::Load;
        }
        let Some(wanted) = space.evicted_around(page, wanted) else {
            if space.uffd.is_changing() {
                self.wake_later(space, page..page + 1);
            } else {
                space.forget(page * PAGE..(page + 1) * PAGE);
                self.serve_fresh(space, fault);
            }
            return Resolution::Done;
        };
        match self.loader.take(space, page, &wanted) {
            None => return Resolution::Later,
            Some(Ok(taken)) => {
                let contents = self.loader.contents(&taken);
                let filled = fill_or_one(space, page, taken.start, contents);
                let done = self.filled(space, fault, filled);
                self.note_restored(space, page, done);
            }
            Some(Err(_)) if space.process.is_ending() => {} // nobody waits any more
            Some(Err(error)) => self.lose(space, page, &error),
        }
        Resolution::Done
    }

    /// Notes that pages came back, of which a thread waited for one.
    fn note_restored(&self, space: &mut AddressSpace, page: u64, done: Range<u64>) {
        let (mut restored, mut staging_hits) = (0, 0);
        for at in done {
            match space.table.get(at).place {
                Place::Stored(slot) => {
                    // Others came along, and were not asked for.
                    let heat = if at == page { self.pager.heat_of_restored(slot) } else { 0 };
                    if heat > 0 {
                        space.faults.note_refault();
                        self.pager.store.note_refault(slot);
                    }
                    space.returned(at, heat);
                    self.pager.store.release(slot);
                    restored += 1;
                }
                _ => {
                    space.returned(at, 0);
                    if at == page {
                        space.faults.note_refault();
                    }
                    staging_hits += 1;
                }
            }
        }
        self.pager.charge(restored + staging_hits, restored);
        self.pager.meter.restored(restored, staging_hits);
    }

    /// Ends the process, or the wait of its thread, because a page cannot be restored.
    fn lose(&mut self, space: &mut AddressSpace, page: u64, error: &dyn Display) {
        let (pid, address) = (space.process.pid().unwrap_or(0), page * PAGE);
        let text = format!("cannot restore page {address:#x} of process {pid}: {error}");
        self.pager.lose(space, page, &text);
        self.wake_later(space, page..page + 1);
    }

    /// Some pages were filled for a fault, or none: those.
    fn filled(
        &mut self,
        space: &mut AddressSpace,
        fault: &Fault,
        filled: Result<Range<u64>, Stopped>,
    ) -> Range<u64> {
        let page = fault.page();
        match filled {
            Ok(done) => {
                self.wake_later(space, done.clone());
                if !done.contains(&page) {
                    // The thread faults again, for this page alone.
                    self.wake_later(space, page..page + 1);
                }
                done
            }
            Err(stopped) => {
                self.not_filled(space, fault, stopped);
                page..page
            }
        }
    }

    /// Wakes the threads that wait for one of these pages, once nothing is locked.
    fn wake_later(&mut self, space: &AddressSpace, pages: Range<u64>) {
        self.wake_ups.add(space, pages.start * PAGE..pages.end * PAGE);
    }

    /// A page could not be filled.
    fn not_filled(&mut self, space: &mut AddressSpace, fault: &Fault, stopped: Stopped) {
        let address = fault.page() * PAGE;
        if stopped.errno == libc::EAGAIN {
            let is_growth = space.leave_growth_to_kernel(address, fault.touch.thread);
            if !is_growth && self.workers == 1 {
                // For who changes the mappings. Where there are more, that runs anyway.
                std::thread::yield_now();
            }
        }
        match stopped.errno {
            // Its memory is gone.
            libc::ESRCH => {}
            // The page is there, or no longer mapped, or the server must read an event first. The
            // thread faults again.
            libc::EEXIST | libc::ENOENT | libc::EAGAIN | libc::EINVAL => {
                self.wake_later(space, fault.page()..fault.page() + 1);
            }
            errno => self.lose(space, fault.page(), &io::Error::from_raw_os_error(errno)),
        }
    }
}

/// Copies contents to missing pages from `first` on, or to `page` alone where a border between
/// mappings is among them; those that were filled.
fn fill_or_one(
    space: &AddressSpace,
    page: u64,
    first: u64,
    contents: &[Page],
) -> Result<Range<u64>, Stopped> {
    match fill(space, first, contents) {
        Err(stopped) if stopped.errno == libc::ENOENT && contents.len() > 1 => {
            let at = count(&(first..page));
            fill(space, page, &contents[at..=at])
        }
        filled => filled,
    }
}

/// Copies contents to missing pages from `first` on; those that were filled.
fn fill(space: &AddressSpace, first: u64, contents: &[Page]) -> Result<Range<u64>, Stopped> {
    match space.uffd.copy(first * PAGE, contents.as_flattened(), false, false) {
        Ok(()) => Ok(first..first + contents.len() as u64),
        Err(stopped) if stopped.done < PAGE => Err(stopped),
        Err(stopped) => Ok(first..first + stopped.done / PAGE),
    }
}

/// The pages of a window around `page`, itself in any case, that are registered and in a place like
/// this.
fn run_around(
    space: &AddressSpace,
    page: u64,
    window: Range<u64>,
    like: impl Fn(Place) -> bool,
) -> Range<u64> {
    let registered = space.registered_around(page, window);
    let is_like =
        |page: &u64| like(space.table.get(*page).place) && !space.layout.awaits_poison(page * PAGE);
    let below = (registered.start..page).rev().take_while(is_like).count() as u64;
    let above = (page + 1..registered.end).take_while(is_like).count() as u64;
    page - below..page + 1 + above
}

#[cfg(test)]
mod tests {
    use super::*;

    fn touch(thread: u32, address: u64, access: Access) -> Touch {
        Touch { thread, address, access, poisonings: 0 }
    }

    #[test]
    fn a_repeated_report_is_the_same_fault() {
        let fault = Fault::new(1, touch(2, 5 * PAGE, Access::Read), false, Instant::now(), 0);
        assert!(fault.is(1, &touch(2, 6 * PAGE - 1, Access::Read)));
        assert!(!fault.is(3, &touch(2, 5 * PAGE, Access::Read)), "another space");
        assert!(!fault.is(1, &touch(3, 5 * PAGE, Access::Read)), "another thread");
        assert!(!fault.is(1, &touch(2, 6 * PAGE, Access::Read)), "another page");
        assert!(!fault.is(1, &touch(2, 5 * PAGE, Access::Write)), "another access");
    }
}
