//! What a program does to its mappings, as the userfaultfd tells it.

use std::ops::Range;

use super::{PAGE, Space, pages};
use crate::pager::process_files::growth_under_way;
use crate::pager::ranges::{Ranges, count};
use crate::pager::table::{Entry, Place, UNKNOWN};

impl Space {
    /// Forgets a range of pages; `release` is called for each slot that one of them named.
    pub(in crate::pager) fn forget(&mut self, range: Range<u64>, release: &mut dyn FnMut(u32)) {
        let Space { table, staging, .. } = self;
        table.take_range(pages(range), &mut |_, entry| match entry.place {
            Place::Stored(slot) => release(slot),
            Place::Staged(staged) => drop(staging.owners.take(staged)),
            Place::Program => {}
        });
    }

    /// Forgets all pages.
    pub(in crate::pager) fn forget_all(&mut self, release: &mut dyn FnMut(u32)) {
        self.forget(0..u64::MAX - PAGE, release);
        while let Some((&page, _)) = self.elder.first_key_value() {
            self.drop_aside(page, release);
        }
    }

    /// The program drops a range of pages, now or in a moment (P4).
    pub(in crate::pager) fn removed(&mut self, range: Range<u64>, release: &mut dyn FnMut(u32)) {
        self.forget(range.clone(), release);
        self.removing.insert(range);
    }

    /// What is watched of a range is not what it was.
    fn has_changed(&mut self, range: Range<u64>) {
        if let Some(changed) = &mut self.looks.changed {
            changed.insert(range);
        }
    }

    /// The program has unmapped a range.
    pub(in crate::pager) fn unmapped(&mut self, range: Range<u64>, release: &mut dyn FnMut(u32)) {
        self.has_changed(range.clone());
        self.doubted.retain(|doubted| !doubted.has_some_of(&range));
        let (late, departed) = self.late(range.clone());
        self.untold.remove(range.clone());
        self.departed.remove(range.clone());
        self.elder_watched.remove(range.clone());
        for part in late.outside(range.clone()) {
            self.to_protect.remove(part.clone());
            self.removing.remove(part.clone());
            self.words.remove(part.clone());
            for part in departed.within(part.clone()) {
                let watched = self.set_aside(part.clone(), release);
                self.looks.unmapped(watched);
                self.untold.insert(part.clone());
                self.departed.insert(part);
            }
            departed.outside(part).into_iter().for_each(|part| self.has_gone(part, release));
        }
        for part in late.within(range) {
            for page in pages(part) {
                self.drop_aside(page, release);
            }
        }
    }

    /// What was there is no more, whatever came there before.
    fn has_gone(&mut self, part: Range<u64>, release: &mut dyn FnMut(u32)) {
        self.moved_in.remove(part.clone());
        let watched = self.watched.within(part.clone()).map(|part| count(&pages(part))).sum();
        self.looks.unmapped(watched);
        self.forget(part.clone(), release);
        self.watched.remove(part.clone());
        self.left.remove(part.clone());
        // It may not have gone, and the helper must never wait for it.
        self.own.within(part).for_each(|part| self.left.insert(part));
    }

    /// The program has moved a range.
    pub(in crate::pager) fn moved(
        &mut self,
        from: Range<u64>,
        to: u64,
        release: &mut dyn FnMut(u32),
    ) {
        let into = to..to + (from.end - from.start);
        self.end_doubt(&from, &into, release);
        for range in [from.clone(), into.clone()] {
            self.has_changed(range.clone());
            self.to_protect.remove(range.clone());
            self.removing.remove(range.clone());
            self.words.remove(range);
        }
        // Not asked of the kernel: memory may be there still (MREMAP_DONTUNMAP).
        let mut late = Ranges::default();
        self.untold.within(from.clone()).for_each(|part| late.insert(part));
        self.untold.remove(from.clone());
        let mut entries = Vec::new();
        let mut watched = Vec::new();
        // What has moved is told to be unmapped, too: of what is there by then, it is late again.
        for part in late.outside(from.clone()) {
            self.moved_in.remove(part.clone());
            let taken = &mut |page, entry| entries.push((page, entry));
            self.table.take_range(pages(part.clone()), taken);
            watched.extend(self.watched.within(part.clone()));
            self.watched.remove(part.clone());
            self.left.remove(part);
        }
        for part in late.within(from.clone()) {
            watched.extend(self.elder_watched.within(part.clone()));
            self.elder_watched.remove(part.clone());
            for page in pages(part) {
                entries.extend(self.elder.remove(&page).map(|entry| (page, entry)));
            }
        }
        self.set_aside(into.clone(), release);
        for (page, entry) in entries {
            let page = page - from.start / PAGE + to / PAGE;
            if let Place::Staged(staged) = entry.place {
                self.staging.owners.set(staged, page);
            }
            self.table.set(page, entry);
        }
        for part in watched {
            self.watched.insert(part.start - from.start + to..part.end - from.start + to);
        }
        self.moved_in.insert_apart(into);
    }

    /// What is known there is of memory that has gone, as will be told; how many pages of it were
    /// watched.
    fn set_aside(&mut self, part: Range<u64>, release: &mut dyn FnMut(u32)) -> usize {
        let mut elder = Vec::new();
        self.table.take_range(pages(part.clone()), &mut |page, entry| elder.push((page, entry)));
        for (page, entry) in elder {
            self.drop_aside(page, release);
            self.elder.insert(page, entry);
            self.untold.insert(page * PAGE..(page + 1) * PAGE);
        }
        let watched: Vec<Range<u64>> = self.watched.within(part.clone()).collect();
        self.watched.remove(part.clone());
        self.left.remove(part.clone());
        self.elder_watched.remove(part);
        for part in &watched {
            self.untold.insert(part.clone());
            self.elder_watched.insert(part.clone());
        }
        watched.into_iter().map(|part| count(&pages(part))).sum()
    }

    /// The parts of a range that something has been moved to since they were unmapped, which is
    /// told only now: the kernel tells in another order than it does where two threads do it. They
    /// were known to be watched when something came there; or memory is there, and it is watched,
    /// so it is not what was unmapped, if it was known to be before: it would not have been
    /// registered since. And those where nothing of what was moved there is any more: it may have
    /// moved on. (Where only a part of it has gone, that was unmapped.)
    ///
    /// The kernel also tells of what it could not unmap in the end (a limit, a sealed page): that
    /// is there as before. What reaches into it from below has grown, and so has what was moved
    /// there where more of it is there than was told.
    fn late(&mut self, range: Range<u64>) -> (Ranges, Ranges) {
        let [mut late, mut departed] = [const { Ranges::new() }; 2];
        let files = self.files.as_ref();
        let has_moved_in = self.moved_in.has_some_of(&range);
        if has_moved_in || files.is_some_and(|files| files.mappings.has_some_in(&range)) {
            // An error where its process is gone.
            let [watched] = self.mappings_with(["um"]).unwrap_or_default();
            for found in watched.reaching_into(range.clone()) {
                let part = found.start.max(range.start)..found.end.min(range.end);
                let is_of_before = found.start >= range.start && !self.moved_in.has_some_of(&part);
                for known in self.watched.within(part) {
                    match is_of_before {
                        true => late.insert(known),
                        false => self.moved_in.within(known).for_each(|part| late.insert(part)),
                    }
                }
            }
            for moved in self.moved_in.reaching_into(range.clone()) {
                if !watched.has_some_of(&moved) {
                    departed.insert(moved.start.max(range.start)..moved.end.min(range.end));
                }
            }
            if late != Ranges::default() {
                self.doubted.push(late.clone());
            }
        }
        self.untold.within(range).for_each(|part| late.insert(part));
        (late, departed)
    }

    /// Something was moved to where something was told to be unmapped before: that was what had
    /// been moved there, and not what was there before it. The kernel tells what a move is over
    /// just before it tells of the move, of which it does not tell how much longer it is there.
    fn end_doubt(&mut self, from: &Range<u64>, into: &Range<u64>, release: &mut dyn FnMut(u32)) {
        self.end_departures(from, into, release);
        if self.doubted.is_empty() {
            return;
        }
        let first = into.start..into.start + PAGE;
        let found = self.files.as_ref().and_then(|files| files.mappings.at(&[first]).ok());
        let found = found.into_iter().flatten().find(|found| found.range.contains(&into.start));
        let end = found.map_or(into.end, |found| found.range.end.max(into.end));
        let is_gone = |doubted: &mut Ranges| doubted.has_some_of(&(into.start..end));
        self.doubted.retain(|doubted| !doubted.has_some_of(from));
        let gone: Vec<Ranges> = self.doubted.extract_if(.., is_gone).collect();
        gone.iter().flat_map(Ranges::iter).for_each(|range| self.has_gone(range, release));
    }

    /// Likewise, of what may have moved on: from where it was, as is told now; or something has
    /// come there since, or grown to there from before it.
    fn end_departures(
        &mut self,
        from: &Range<u64>,
        into: &Range<u64>,
        release: &mut dyn FnMut(u32),
    ) {
        if self.departed == Ranges::default() {
            return;
        }
        let moved_on = |moved: &Range<u64>| moved.contains(&from.start);
        let was_there = self.moved_in.reaching_into(from.clone()).filter(|moved| !moved_on(moved));
        let ended: Vec<_> = was_there.chain(self.moved_in.reaching_into(into.clone())).collect();
        for part in ended {
            let gone: Vec<Range<u64>> = self.departed.within(part.clone()).collect();
            self.departed.remove(part);
            for part in gone {
                self.untold.remove(part.clone());
                self.elder_watched.remove(part.clone());
                pages(part).for_each(|page| self.drop_aside(page, release));
            }
        }
        self.departed.remove(from.clone());
    }

    fn drop_aside(&mut self, page: u64, release: &mut dyn FnMut(u32)) {
        match self.elder.remove(&page).map(|entry| entry.place) {
            Some(Place::Stored(slot)) => release(slot),
            Some(Place::Staged(staged)) => drop(self.staging.owners.take(staged)),
            Some(Place::Program) | None => {}
        }
    }

    /// All that is told was read: what is told from now on was done after it, if nothing is under
    /// way.
    pub(in crate::pager) fn settle(&mut self, release: &mut dyn FnMut(u32)) {
        let is_settled = self.moved_in == Ranges::default() && self.doubted.is_empty();
        if !is_settled && !self.uffd.is_changing() {
            self.moved_in = Ranges::default();
            self.untold = Ranges::default();
            self.departed = Ranges::default();
            self.elder_watched = Ranges::default();
            self.doubted = Vec::new();
            while let Some((&page, _)) = self.elder.first_key_value() {
                self.drop_aside(page, release);
            }
        }
    }

    /// A child has what is not settled of its parent; `share` is called for each slot. Whether some
    /// of it is aside.
    pub(in crate::pager) fn inherit_changes(
        &mut self,
        parent: &Space,
        share: &mut dyn FnMut(u32),
    ) -> bool {
        self.moved_in = parent.moved_in.clone();
        self.untold = parent.untold.clone();
        self.departed = parent.departed.clone();
        self.elder_watched = parent.elder_watched.clone();
        self.doubted = parent.doubted.clone();
        let mut is_any_aside = false;
        for (&page, &Entry { place, .. }) in &parent.elder {
            match place {
                Place::Stored(slot) => {
                    share(slot);
                    self.elder.insert(page, Entry { place, ..UNKNOWN });
                }
                Place::Staged(_) => is_any_aside = true,
                Place::Program => {}
            }
        }
        is_any_aside
    }

    /// Its parent has unmapped a range: before the fork, if it is not mapped here.
    pub(in crate::pager) fn parent_unmapped(
        &mut self,
        range: Range<u64>,
        release: &mut dyn FnMut(u32),
    ) {
        if !self.uffd.is_changing() && !self.is_mapped(range.start) {
            self.unmapped(range, release);
        }
    }

    /// Its parent has moved a range: before the fork, if it is there here, against what is known.
    pub(in crate::pager) fn parent_moved(
        &mut self,
        from: Range<u64>,
        to: u64,
        release: &mut dyn FnMut(u32),
    ) {
        let is_known =
            |range: &Range<u64>| self.watched.has_some_of(range) || self.untold.has_some_of(range);
        let into = to..to + (from.end - from.start);
        let was_known = is_known(&from) && !is_known(&into);
        if was_known && !self.is_mapped(from.start) && self.is_mapped(to) {
            self.moved(from, to, release);
        }
    }

    fn is_mapped(&self, at: u64) -> bool {
        self.uffd.register(at..at + PAGE, true, true).is_ok() // it is watched, if it was before
    }

    /// A page is missing, and the mappings change. Where the thread that waits for it is in
    /// mremap(2), lets the kernel itself fill what is locked of what the mapping grows by: it does
    /// so, first page first, before it tells that it moved it, and that would never be told. None
    /// of what is elsewhere, though what was locked before is there as a rule; nothing where the
    /// helper is at work. Whether it is that.
    pub(in crate::pager) fn leave_growth_to_kernel(&mut self, address: u64, waits: u32) -> bool {
        let growth = self.search_thread_told(waits).and_then(growth_under_way);
        if let Some(growth) = growth {
            self.leave_to_kernel(address..address.saturating_add(growth));
        }
        growth.is_some()
    }

    fn leave_to_kernel(&mut self, range: Range<u64>) {
        let Ok([locked]) = self.mappings_with(["lo"]) else { return };
        if !self.hold_commands() {
            return;
        }
        let mut unknown = Ranges::default();
        for page in locked.within(range).flat_map(pages) {
            if self.table.get(page).place == Place::Program {
                unknown.insert(page * PAGE..(page + 1) * PAGE);
            }
        }
        for part in unknown.iter() {
            let _ = self.uffd.unregister(part.clone());
            self.has_changed(part.clone());
            self.watched.remove(part.clone());
            self.to_protect.remove(part.clone());
            self.take_back(part);
        }
        self.let_commands(true);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::{PAGE_SIZE, Page};
    use crate::pager::process_files::ProcessFiles;
    use crate::sys::userfaultfd::{self, Features, Userfaultfd};

    const COUNT: u64 = 8;
    const BYTES: u64 = COUNT * PAGE;
    /// Nothing is mapped at these.
    const ELSEWHERE: [u64; 3] = [1 << 50, 2 << 50, 3 << 50];

    /// This process's own, and memory of it that is watched; `None` where it may not be.
    fn space(memory: &[Page]) -> Option<(Space, u64)> {
        let at = memory.as_ptr().addr().next_multiple_of(PAGE_SIZE) as u64;
        let not_tested = |error| eprintln!("not tested: this process has no userfaultfd: {error}");
        let uffd = Userfaultfd::from_fd(userfaultfd::create(true).map_err(not_tested).ok()?);
        uffd.api(Features::NONE).ok()?;
        uffd.register(at..at + BYTES, true, false).ok()?;
        let process = std::process::id();
        let mut space = Space::new(uffd, Some(process));
        space.files = Some(std::sync::Arc::new(ProcessFiles::open(process).ok()?));
        Some((space, at))
    }

    /// Pages that have left, under slots from `slot` on.
    fn have_left(space: &mut Space, at: u64, slot: u32) {
        for (page, slot) in pages(at..at + BYTES).zip(slot..) {
            space.table.set(page, Entry { place: Place::Stored(slot), ..UNKNOWN });
        }
        space.watched.insert(at..at + BYTES);
    }

    fn slots(space: &Space, at: u64) -> Vec<u32> {
        let places = pages(at..at + BYTES).map(|page| space.table.get(page).place);
        places
            .filter_map(|place| if let Place::Stored(at) = place { Some(at) } else { None })
            .collect()
    }

    #[test]
    fn what_is_told_late_is_of_what_was_there_before() {
        let memory = vec![[1; PAGE_SIZE]; 4 * COUNT as usize];
        let Some((mut space, at)) = space(&memory) else { return };
        let [from, to, other] = ELSEWHERE;
        let mut released = Vec::new();
        let mut release = |slot| released.push(slot);
        have_left(&mut space, at, 0);
        have_left(&mut space, from, 100);
        // Something else came before it is told that what was there was moved, and it is told then
        // that it was unmapped, too.
        space.moved(from..from + BYTES, at, &mut release);
        space.moved(at..at + BYTES, to, &mut release);
        space.unmapped(at..at + BYTES, &mut release);
        space.unmapped(from..from + BYTES, &mut release);
        assert_eq!(slots(&space, at), Vec::from_iter(100..108));
        assert_eq!(slots(&space, to), Vec::from_iter(0..8));
        for start in [at, to] {
            assert!(space.watched.outside(start..start + BYTES).is_empty());
        }
        // A page is moved over it, and grows.
        have_left(&mut space, other, 200);
        space.unmapped(at..at + BYTES, &mut release);
        space.moved(other..other + PAGE, at, &mut release);
        assert_eq!(slots(&space, at), [200]);
        space.settle(&mut release);
        assert_eq!(slots(&space, at), [200]);
        assert_eq!(released, Vec::from_iter(100..108));
    }

    #[test]
    fn what_was_moved_in_may_have_grown_over_what_is_told_late() {
        let memory = vec![[1; PAGE_SIZE]; 4 * COUNT as usize];
        let Some((mut space, at)) = space(&memory) else { return };
        let mut released = Vec::new();
        let mut release = |slot| released.push(slot);
        have_left(&mut space, at, 0);
        have_left(&mut space, ELSEWHERE[0], 100);
        space.moved(ELSEWHERE[0]..ELSEWHERE[0] + 3 * PAGE, at, &mut release);
        space.unmapped(at..at + BYTES, &mut release);
        assert_eq!(slots(&space, at), Vec::from_iter(100..103));
        released.sort_unstable();
        assert_eq!(released, Vec::from_iter(0..8));
    }

    #[test]
    fn what_was_not_known_to_be_watched_may_be_so_since() {
        let memory = vec![[1; PAGE_SIZE]; 4 * COUNT as usize];
        let Some((mut space, at)) = space(&memory) else { return };
        let mut released = Vec::new();
        have_left(&mut space, at, 0);
        space.watched.remove(at..at + 2 * PAGE);
        space.unmapped(at..at + 4 * PAGE, &mut |slot| released.push(slot));
        assert_eq!((slots(&space, at), released), (Vec::from_iter(2..8), vec![0, 1]));
    }

    #[test]
    fn what_could_not_be_unmapped_is_there_as_before() {
        let memory = vec![[1; PAGE_SIZE]; 4 * COUNT as usize];
        let Some((mut space, at)) = space(&memory) else { return };
        let mut released = Vec::new();
        let mut release = |slot| released.push(slot);
        have_left(&mut space, at, 0);
        space.unmapped(at..at + BYTES, &mut release);
        space.settle(&mut release);
        assert_eq!(slots(&space, at), Vec::from_iter(0..8));
        // A mapping that begins below has grown to where something was unmapped.
        space.unmapped(at + 4 * PAGE..at + BYTES, &mut release);
        assert_eq!(slots(&space, at), Vec::from_iter(0..4));
        assert_eq!(released, Vec::from_iter(4..8));
    }

    #[test]
    fn what_has_moved_on_may_be_told_to_be_unmapped_first() {
        let memory = vec![[1; PAGE_SIZE]; 4 * COUNT as usize];
        let [from, there, to] = ELSEWHERE;
        let has_come = || {
            let (mut space, at) = space(&memory)?;
            have_left(&mut space, from, 100);
            space.moved(from..from + BYTES, there, &mut |_| unreachable!());
            space.unmapped(there..there + BYTES, &mut |_| unreachable!());
            assert!(slots(&space, there).is_empty());
            Some((space, at))
        };
        let mut released = Vec::new();
        // It has, with what it had grown by; and is told to be unmapped, too.
        let Some((mut space, _)) = has_come() else { return };
        space.moved(there..there + 2 * BYTES, to, &mut |slot| released.push(slot));
        space.unmapped(there..there + 2 * BYTES, &mut |slot| released.push(slot));
        space.settle(&mut |slot| released.push(slot));
        assert_eq!((slots(&space, to), released.len()), (Vec::from_iter(100..108), 0));
        drop(space); // another may watch the memory now
        // It was unmapped: nothing is told any more; or of something else there, or that has grown.
        for end in 0..4 {
            let (mut space, _) = has_come().expect("as before");
            let mut released = Vec::new();
            let release = &mut |slot| released.push(slot);
            match end {
                0 => space.settle(release),
                1 => space.unmapped(there..there + BYTES, release),
                2 => space.moved(to - BYTES..to - PAGE, there + PAGE, release),
                _ => space.moved(there - PAGE..there + BYTES, to, release),
            }
            assert_eq!((slots(&space, to), released), (Vec::new(), Vec::from_iter(100..108)));
        }
        // Where the rest is there still, so much of it was unmapped.
        let (mut space, at) = has_come().expect("as before");
        have_left(&mut space, from, 200);
        have_left(&mut space, from + BYTES, 300);
        space.moved(from..from + 2 * BYTES, at, &mut |_| unreachable!());
        space.unmapped(at + BYTES..at + 2 * BYTES, &mut |slot| released.push(slot));
        assert_eq!(released, Vec::from_iter(300..308));
        assert_eq!(slots(&space, at), Vec::from_iter(200..208));
    }

    #[test]
    fn what_is_told_of_the_parent_may_have_been_before_the_fork() {
        let memory = vec![[1; PAGE_SIZE]; 4 * COUNT as usize];
        let [before, other, after] = ELSEWHERE;
        let Some((mut child, at)) = space(&memory) else { return };
        let mut released = Vec::new();
        let mut release = |slot| released.push(slot);
        have_left(&mut child, before, 100);
        have_left(&mut child, other, 200);
        // It was: what was moved is where it was moved to.
        child.parent_moved(before..before + BYTES, at, &mut release);
        child.parent_unmapped(before..before + BYTES, &mut release);
        child.parent_unmapped(other..other + BYTES, &mut release);
        // It was not: it is still where it was.
        child.parent_moved(at..at + BYTES, after, &mut release);
        child.parent_moved(after..after + BYTES, at, &mut release);
        child.parent_unmapped(at..at + BYTES, &mut release);
        assert_eq!(slots(&child, at), Vec::from_iter(100..108));
        assert_eq!(released, Vec::from_iter(200..208));
    }

    #[test]
    fn a_child_has_what_is_not_settled_of_its_parent() {
        let memory = vec![[1; PAGE_SIZE]; 4 * COUNT as usize];
        let [from, there, _] = ELSEWHERE;
        let Some((mut parent, _)) = space(&memory) else { return };
        have_left(&mut parent, from, 100);
        parent.moved(from..from + BYTES, there, &mut |_| unreachable!());
        parent.unmapped(there..there + BYTES, &mut |_| unreachable!());
        let other = vec![[1; PAGE_SIZE]; 4 * COUNT as usize];
        let (mut child, at) = space(&other).expect("as before");
        let mut shared = Vec::new();
        assert!(!child.inherit_changes(&parent, &mut |slot| shared.push(slot)));
        assert_eq!(shared, Vec::from_iter(100..108));
        child.moved(there..there + BYTES, at, &mut |_| unreachable!());
        assert_eq!(slots(&child, at), shared);
    }
}
