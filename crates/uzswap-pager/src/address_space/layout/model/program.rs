//! The threads of the program in the model, which change mappings and touch pages.

use super::*;

impl World {
    pub(super) fn step_of(&mut self, thread: usize) {
        let state = self.threads[thread].state;
        match state {
            State::Runs => {
                self.change(thread);
                let pending = self.threads[thread].pending.len();
                self.machine.changing += pending;
                if pending > 0 {
                    self.threads[thread].state = State::Reports;
                }
            }
            // The thread may be preempted before.
            State::Reports if self.one_in(3) => self.report(thread),
            State::Reports | State::Waits => {}
            State::WasRead => self.go_on(thread),
            State::Drops => {
                let range = self.threads[thread].drops.clone();
                self.note(format!("{thread} drops {range:?}"));
                self.drop_pages(&range);
                self.threads[thread].state = State::Runs;
            }
        }
    }

    fn report(&mut self, thread: usize) {
        let event = self.threads[thread].pending[0].clone();
        self.note(format!("{thread} reports {event:?}"));
        self.queue.push((thread, event));
        self.threads[thread].state = State::Waits;
    }

    fn go_on(&mut self, thread: usize) {
        self.machine.changing -= 1;
        let event = self.threads[thread].pending.pop_front().expect("it was reported");
        self.threads[thread].state = match event {
            Event::Remove(range) => {
                self.threads[thread].drops = range;
                State::Drops
            }
            _ if self.threads[thread].pending.is_empty() => State::Runs,
            _ => State::Reports,
        };
    }

    fn change(&mut self, thread: usize) {
        match self.below(14) {
            0..3 => self.map(thread),
            3..5 => self.unmap(thread),
            5 => self.map_over(thread),
            6..9 => self.remap(thread),
            9 => self.advise(thread),
            10 => self.split(thread),
            _ => (0..4).for_each(|_| self.touch(thread)),
        }
    }

    fn hole(&mut self, length: usize) -> Option<usize> {
        let is_free = |at: &usize| self.machine.is_free(&(*at..*at + length));
        // Unmapped memory whose event is pending, and memory just below, are the hard cases.
        let pending = self.threads.iter().flat_map(|thread| &thread.pending);
        let gone = pending.map(|event| event.ranges()[0].start);
        let mut free: Vec<usize> = gone
            .flat_map(|at| [Some(at), at.checked_sub(length)])
            .flatten()
            .filter(is_free)
            .collect();
        if free.is_empty() {
            free = (0..PAGES).filter(is_free).collect();
        }
        (!free.is_empty()).then(|| free[self.below(free.len())])
    }

    fn fill(&mut self, range: Range<usize>, like: Page) {
        for at in range {
            let fresh = Page { content: 0, resident: None, is_marked: false, ..like };
            self.machine.pages[at] = Some(fresh);
        }
    }

    /// New memory, some of it written to.
    fn new_memory(&mut self, range: Range<usize>) {
        let before = range.start.checked_sub(1).and_then(|at| self.machine.pages[at]);
        let is_joined = before.is_some_and(|page| !page.is_registered) && self.one_in(4);
        let mapping = match before.filter(|_| is_joined) {
            Some(page) => page.mapping,
            None => self.machine.new_mapping(),
        };
        let (content, resident) = (0, None);
        let new = Page { mapping, is_registered: false, content, resident, is_marked: false };
        self.fill(range.clone(), new);
        range.for_each(|at| {
            if self.one_in(2) {
                self.write(at);
            }
        });
    }

    fn map(&mut self, thread: usize) {
        let owned: usize = self.threads[thread].regions.iter().map(Range::len).sum();
        let length = 1 + self.below(LENGTH_MAX);
        if owned + length > PAGES / THREADS {
            return;
        }
        let Some(at) = self.hole(length) else { return };
        self.note(format!("{thread} maps {:?}", at..at + length));
        self.new_memory(at..at + length);
        self.threads[thread].regions.push(at..at + length);
    }

    /// A part of a region.
    fn part(&mut self, thread: usize) -> Option<(usize, Range<usize>)> {
        let count = self.threads[thread].regions.len();
        if count == 0 {
            return None;
        }
        let region = self.below(count);
        let Range { start, end } = self.threads[thread].regions[region].clone();
        let first = start + self.below(end - start);
        let last = first + 1 + self.below(end - first);
        Some((region, if self.one_in(2) { start..end } else { first..last }))
    }

    /// Takes a part out of a region.
    fn cut(&mut self, thread: usize, region: usize, part: &Range<usize>) {
        let whole = self.threads[thread].regions.swap_remove(region);
        for rest in [whole.start..part.start, part.end..whole.end] {
            if !rest.is_empty() {
                self.threads[thread].regions.push(rest);
            }
        }
    }

    fn tell_unmap(&mut self, thread: usize, range: &Range<usize>) {
        if self.machine.has_registered(range) {
            self.threads[thread].pending.push_back(Event::Unmap(range.clone()));
        }
        self.machine.unmap(range);
    }

    fn unmap(&mut self, thread: usize) {
        let Some((region, part)) = self.part(thread) else { return };
        self.note(format!("{thread} unmaps {part:?}"));
        self.tell_unmap(thread, &part);
        self.cut(thread, region, &part);
    }

    fn map_over(&mut self, thread: usize) {
        let Some((region, part)) = self.part(thread) else { return };
        self.note(format!("{thread} maps over {part:?}"));
        self.tell_unmap(thread, &part);
        self.new_memory(part.clone());
        self.cut(thread, region, &part);
        self.threads[thread].regions.push(part);
    }

    fn remap(&mut self, thread: usize) {
        let Some((region, _)) = self.part(thread) else { return };
        let from = self.threads[thread].regions[region].clone();
        if !(from.start + 1..from.end).all(|at| self.machine.is_same(at - 1, at)) {
            return; // of several mappings
        }
        let page = self.machine.pages[from.start].expect("mapped");
        let length = match self.one_in(2) {
            true => from.len(),
            false => 1 + self.below(LENGTH_MAX),
        };
        let kept = length.min(from.len());
        let grown = from.end..from.start + length;
        match self.below(5) {
            0 if length < from.len() => {
                let tail = from.start + length..from.end;
                self.note(format!("{thread} shrinks {from:?} to {length}"));
                self.tell_unmap(thread, &tail);
                self.cut(thread, region, &tail);
            }
            1 if length > from.len() && self.machine.is_free(&grown) => {
                self.note(format!("{thread} grows {from:?} to {length}"));
                self.fill(grown, page);
                self.threads[thread].regions[region].end = from.start + length;
            }
            2 => {
                let Some(to) = self.hole(from.len()) else { return };
                self.note(format!("{thread} moves {from:?} to {to} and keeps it"));
                self.move_pages(&from, to, from.len());
                self.fill(from.clone(), page);
                self.threads[thread].regions.push(to..to + from.len());
                if page.is_registered {
                    self.threads[thread].pending.push_back(Event::Move(from, to));
                }
            }
            kind => {
                let over = (kind == 3).then(|| self.room_elsewhere(thread, region, length));
                let Some(to) = over.flatten().or_else(|| self.hole(length)) else { return };
                self.note(format!("{thread} moves {from:?} to {to}, {length} pages"));
                let into = to..to + length;
                if !self.machine.is_free(&into) {
                    self.tell_unmap(thread, &into);
                    let is_under = |other: &Range<usize>| other.contains(&to);
                    let under = self.threads[thread].regions.iter().position(is_under);
                    self.cut(thread, under.expect("room in a region"), &into);
                }
                let mut unmapped = VecDeque::new();
                if page.is_registered {
                    let tail = from.start + kept..from.end;
                    unmapped.extend((!tail.is_empty()).then_some(Event::Unmap(tail)));
                    unmapped.push_back(Event::Unmap(from.start..from.start + kept));
                    let event = Event::Move(from.start..from.start + kept, to);
                    self.threads[thread].pending.push_back(event);
                }
                self.threads[thread].pending.append(&mut unmapped);
                self.move_pages(&from, to, length);
                self.machine.unmap(&from);
                self.threads[thread].regions.retain(|region| *region != from);
                self.threads[thread].regions.push(into);
            }
        }
    }

    /// A place in another region of its own.
    fn room_elsewhere(&mut self, thread: usize, region: usize, length: usize) -> Option<usize> {
        let (other, part) = self.part(thread)?;
        let end = self.threads[thread].regions[other].end;
        (other != region && part.start + length <= end).then_some(part.start)
    }

    fn move_pages(&mut self, from: &Range<usize>, to: usize, length: usize) {
        let mapping = self.machine.new_mapping();
        for offset in 0..length {
            let old = self.machine.pages[from.start + offset.min(from.len() - 1)].expect("mapped");
            let new = match offset < from.len() {
                true => Page { mapping, ..old },
                false => Page { mapping, content: 0, resident: None, is_marked: false, ..old },
            };
            self.machine.pages[to + offset] = Some(new);
        }
    }

    /// Makes a part a mapping of its own. The kernel reports nothing.
    fn split(&mut self, thread: usize) {
        let Some((region, part)) = self.part(thread) else { return };
        self.note(format!("{thread} splits {part:?}"));
        let mapping = self.machine.new_mapping();
        for page in self.machine.pages[part.clone()].iter_mut().flatten() {
            page.mapping = mapping;
        }
        self.cut(thread, region, &part);
        self.threads[thread].regions.push(part);
    }

    fn advise(&mut self, thread: usize) {
        let Some((_, part)) = self.part(thread) else { return };
        self.note(format!("{thread} drops or will drop {part:?}"));
        match self.machine.has_registered(&part) {
            true => self.threads[thread].pending.push_back(Event::Remove(part)),
            false => self.drop_pages(&part),
        }
    }

    fn drop_pages(&mut self, range: &Range<usize>) {
        for page in self.machine.pages[range.clone()].iter_mut().flatten() {
            *page = Page { content: 0, resident: None, is_marked: false, ..*page };
        }
    }

    fn touch(&mut self, thread: usize) {
        let Some((_, part)) = self.part(thread) else { return };
        if self.fault(part.start) && self.one_in(2) {
            self.write(part.start);
        }
    }

    pub(super) fn write(&mut self, at: usize) {
        self.contents += 1;
        let content = self.contents;
        let page = self.machine.pages[at].as_mut().expect("mapped");
        (page.content, page.resident) = (content, Some(content));
    }

    /// Fills a page; `false` if the supervisor cannot serve the fault now.
    pub(super) fn fault(&mut self, at: usize) -> bool {
        self.note_moved();
        let mut page = self.machine.pages[at].expect("mapped");
        if page.resident.is_some() {
            return true;
        }
        let mut found = 0;
        if page.is_registered {
            if self.is_locked || !self.settle() {
                return false;
            }
            page = self.machine.pages[at].expect("mapped");
            let range = addresses(&(at..at + 1));
            let place = self.space.table.get(number(at)).place;
            match place {
                Place::Stored(slot) if page.is_marked => {
                    found = self.kept.remove(&slot).expect("a slot that is kept");
                }
                Place::Stored(_) => {
                    self.space.forget(range); // the program dropped it
                    self.free_released();
                }
                _ if page.is_marked && !self.space.layout.removing.contains(range.start) => {
                    self.fail(&format!("page {at} was evicted, and is not known"));
                }
                Place::Staged(_) | Place::Program => {}
            }
            self.space.returned(number(at), 0);
        }
        self.note(format!("fault at {at}: {found}"));
        self.machine.pages[at] = Some(Page { resident: Some(found), is_marked: false, ..page });
        if found != page.content {
            self.fail(&format!("page {at} has {found} and not {}", page.content));
        }
        true
    }
}
