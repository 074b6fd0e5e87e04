//! The supervisor in the model: its evictor, its server and its registrar.

use super::*;

impl World {
    pub(super) fn read(&mut self) {
        if self.is_locked {
            return;
        }
        self.note_moved();
        let read: Vec<(usize, Event)> = std::mem::take(&mut self.queue);
        for range in read.iter().flat_map(|(_, event)| event.ranges()) {
            self.command.retain(|at| !range.contains(at));
        }
        for (_, event) in &read {
            let change = match event {
                Event::Unmap(range) => Change::Unmapped(addresses(range)),
                Event::Remove(range) => Change::Dropped(addresses(range)),
                Event::Move(from, to) => Change::Moved(addresses(from), address(*to)),
            };
            self.space.changed(change);
        }
        self.settle();
        for (thread, event) in read {
            self.note(format!("read {event:?} of {thread}"));
            self.threads[thread].state = State::WasRead;
        }
    }

    /// Applies changes, and marks the pages whose markers the kernel refused.
    pub(super) fn settle(&mut self) -> bool {
        let is_settled = self.space.settle_with(&self.machine);
        if is_settled {
            self.poison();
            let marked = std::mem::take(&mut self.space.markers.marked);
            for at in marked.iter().flat_map(|range| places(&range)) {
                let page = self.machine.pages[at].as_mut();
                page.expect("an evicted page is mapped").is_marked = true;
            }
        }
        self.free_released();
        is_settled
    }

    /// Pages of unknown content raise a signal. Here they are zero from now on.
    pub(super) fn poison(&mut self) {
        let unknown = std::mem::take(&mut self.space.layout.poison_later);
        for at in unknown.iter().flat_map(|range| places(&range)) {
            if let Some(page) = &mut self.machine.pages[at]
                && page.is_registered
                && page.resident.is_none()
            {
                self.unknown += 1;
                *page = Page { content: 0, resident: Some(0), is_marked: false, ..*page };
            }
        }
    }

    /// Notes the pages that the helper has moved (P3).
    pub(super) fn note_moved(&mut self) {
        for (at, content) in std::mem::take(&mut self.moved) {
            self.slots += 1;
            self.kept.insert(self.slots, content);
            let place = Place::Stored(self.slots);
            self.space.table.set(number(at), Entry { place, ..UNKNOWN });
            self.note(format!("{at} is evicted: {content}"));
            if self.machine.changing > 0 {
                self.space.mark_later(addresses(&(at..at + 1)));
            } else if let Some(page) = &mut self.machine.pages[at] {
                page.is_marked = true;
            }
        }
    }

    pub(super) fn free_released(&mut self) {
        for slot in self.space.layout.take_released() {
            self.kept.remove(&slot).expect("a slot that is kept");
        }
    }

    /// A command is given, carried out, or its result noted.
    pub(super) fn leave(&mut self) {
        if !self.moved.is_empty() {
            return self.note_moved();
        }
        if self.command.is_empty() {
            if !self.settle() {
                return;
            }
            let AddressSpace { table, registration, unevictable, layout, .. } = &self.space;
            let may_leave = |&at: &usize| {
                let address = address(at);
                self.machine.pages[at].is_some_and(|page| page.resident.is_some())
                    && table.get(number(at)).place == Place::Program
                    && registration.ranges().contains(address)
                    && !unevictable.ranges().contains(address)
                    && !layout.removing.contains(address)
            };
            let all: Vec<usize> = (0..PAGES).filter(may_leave).collect();
            self.command = all.into_iter().filter(|_| self.one_in(2)).collect();
            return;
        }
        if self.machine.changing > 0 {
            return;
        }
        for at in std::mem::take(&mut self.command) {
            let Some(page) = &mut self.machine.pages[at] else { continue };
            self.moved.extend(page.resident.take().map(|content| (at, content)));
        }
        if self.one_in(4) {
            self.note_moved();
        }
    }

    pub(super) fn register(&mut self) {
        let World { space, machine, .. } = self;
        let all = |machine: &Machine| -> Vec<Mapping> {
            let to_scan = |at: Range<usize>| Mapping {
                range: addresses(&at),
                is_above_guard: false,
                has_no_access: false,
            };
            machine.mappings().into_iter().map(to_scan).collect()
        };
        self.registrar = match std::mem::take(&mut self.registrar) {
            Registrar::Waits => {
                let mut mappings = all(machine);
                // The kernel is not asked for what is known.
                mappings
                    .retain(|it| !space.registration.ranges().outside(it.range.clone()).is_empty());
                Registrar::Scanned(mappings)
            }
            Registrar::Scanned(mappings) => {
                self.is_locked = true;
                let is_settled = machine.changing == 0 && space.layout.is_settled();
                if is_settled {
                    space.registration.scans().begin_changes();
                }
                let parts = space.unregistered(mappings);
                let parts = parts.into_iter().flat_map(|unregistered| unregistered.parts).collect();
                Registrar::Registers { parts, registered: Vec::new(), is_settled }
            }
            Registrar::Registers { mut parts, mut registered, is_settled } => {
                match parts.pop_front() {
                    Some(part) => {
                        if machine.register(&places(&part)) {
                            registered.push(part.clone());
                        }
                        let text = format!("registered {:?}, {is_settled}", places(&part));
                        self.history.push(text);
                        Registrar::Registers { parts, registered, is_settled }
                    }
                    None => {
                        self.is_locked = false;
                        if machine.changing > 0 || !space.layout.is_settled() {
                            space.layout.note_registered_since(&registered);
                        }
                        match is_settled {
                            true => Registrar::Registered(registered),
                            false => Registrar::Waits,
                        }
                    }
                }
            }
            Registrar::Registered(registered) => {
                let is_at = |mapping: &Mapping| {
                    registered.iter().any(|part| mapping.range.contains(&part.start))
                };
                let now = all(machine).into_iter().filter(is_at).collect();
                Registrar::ScannedAgain(registered, now)
            }
            Registrar::ScannedAgain(registered, now) => {
                let changed = space.registration.scans().take_changed();
                let there = registered.into_iter().filter(|part| !changed.has_some_of(part));
                if machine.changing == 0 {
                    space.note_registered(there.collect(), &now, false);
                    self.history.push("noted as registered".to_owned());
                }
                Registrar::Waits
            }
        };
        self.free_released();
    }
}
