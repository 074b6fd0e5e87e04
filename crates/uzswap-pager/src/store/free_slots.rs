//! Free slots. With units, slots of an aligned group are taken together where all of them are free.

/// The free slots of a store.
#[derive(Debug)]
pub(super) struct FreeSlots {
    /// Slots of a group, a power of two.
    group_slots: u32,
    /// Groups of which all slots are free, each once.
    whole: Vec<u32>,
    /// Groups of which some slots may be free, each once.
    partial: Vec<u32>,
    /// By group, where a group has more slots than one.
    groups: Vec<Group>,
    count: usize,
}

#[derive(Debug, Clone, Copy, Default)]
struct Group {
    /// A bit for each free slot.
    free: u16,
    is_in_partial: bool,
}

impl FreeSlots {
    /// None, in groups of up to 16.
    pub(super) fn new(group_slots: usize) -> FreeSlots {
        assert!(group_slots.is_power_of_two() && group_slots <= 16, "groups of {group_slots}");
        FreeSlots {
            group_slots: group_slots as u32,
            whole: Vec::new(),
            partial: Vec::new(),
            groups: Vec::new(),
            count: 0,
        }
    }

    /// How many are free.
    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// Takes a slot, of a group that is in use if there is one.
    pub(super) fn take(&mut self) -> Option<u32> {
        if self.group_slots == 1 {
            return self.take_run(1);
        }
        let all = mask_of(self.group_slots);
        while let Some(&number) = self.partial.last() {
            let group = &mut self.groups[number as usize];
            if group.free != 0 && group.free != all {
                let bit = group.free.trailing_zeros();
                group.free &= !(1 << bit);
                self.count -= 1;
                return Some(number * self.group_slots + bit);
            }
            group.is_in_partial = false;
            self.partial.pop();
        }
        self.take_run(1)
    }

    /// Takes the first `slots` of a group of which all are free.
    pub(super) fn take_run(&mut self, slots: u32) -> Option<u32> {
        let number = self.whole.pop()?;
        self.count -= slots as usize;
        if self.group_slots > 1 {
            let free = mask_of(self.group_slots) & !mask_of(slots);
            self.groups[number as usize].free = free;
            self.list(number);
        }
        Some(number * self.group_slots)
    }

    /// A slot is free. The first of a group makes the group known.
    pub(super) fn add(&mut self, slot: u32) {
        self.count += 1;
        let number = slot / self.group_slots;
        if self.group_slots == 1 {
            self.whole.push(number);
            return;
        }
        if self.groups.len() <= number as usize {
            self.groups.resize(number as usize + 1, Group::default());
        }
        let group = &mut self.groups[number as usize];
        group.free |= 1 << (slot % self.group_slots);
        match group.free == mask_of(self.group_slots) {
            true => self.whole.push(number),
            false => self.list(number),
        }
    }

    fn list(&mut self, number: u32) {
        let group = &mut self.groups[number as usize];
        if group.free != 0 && !group.is_in_partial {
            group.is_in_partial = true;
            self.partial.push(number);
        }
    }

    /// The free slots, each once.
    pub(super) fn all(&self) -> Vec<u32> {
        if self.group_slots == 1 {
            return self.whole.clone();
        }
        let of = |(number, group): (usize, &Group)| {
            let first = number as u32 * self.group_slots;
            let free = group.free;
            (0..self.group_slots)
                .filter(move |bit| free >> bit & 1 != 0)
                .map(move |bit| first + bit)
        };
        self.groups.iter().enumerate().flat_map(of).collect()
    }

    /// Memory, in bytes.
    pub(super) fn bytes(&self) -> usize {
        (self.whole.capacity() + self.partial.capacity()) * size_of::<u32>()
            + self.groups.capacity() * size_of::<Group>()
    }
}

/// The bits of the first `slots` of a group, 1 to 16.
fn mask_of(slots: u32) -> u16 {
    (u32::from(u16::MAX) >> (16 - slots)) as u16
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use uzswap::random::SplitMix64;

    #[test]
    fn slots_are_taken_once_and_groups_as_a_whole() {
        for group_slots in [1, 2, 4, 16] {
            let mut free = FreeSlots::new(group_slots);
            let (mut random, mut all) = (SplitMix64::new(group_slots as u64), 0);
            let mut taken: BTreeSet<u32> = BTreeSet::new();
            for _ in 0..20_000 {
                let group_slots = group_slots as u32;
                match random.next_word() % 4 {
                    0 => taken.extend(free.take().inspect(|slot| assert!(!taken.contains(slot)))),
                    1 => {
                        let slots = 1 + random.next_word() as u32 % group_slots;
                        let run = free.take_run(slots).map(|first| first..first + slots);
                        for slot in run.into_iter().flatten() {
                            assert!(slot % group_slots < slots && taken.insert(slot));
                        }
                    }
                    2 if all < 500 => {
                        (all..all + group_slots).for_each(|slot| free.add(slot));
                        all += group_slots;
                    }
                    _ => {
                        let place = random.next_word() as usize % taken.len().max(1);
                        let slot = taken.iter().nth(place).copied();
                        slot.inspect(|slot| _ = taken.remove(slot)).into_iter().for_each(|slot| {
                            free.add(slot);
                        });
                    }
                }
                let is_free = |slot: &u32| !taken.contains(slot);
                let mut expected: Vec<u32> = (0..all).filter(is_free).collect();
                let mut found = free.all();
                found.sort_unstable();
                assert_eq!((&found, found.len()), (&expected, free.count()));
                // A whole group is found if there is one.
                expected.retain(|slot| slot % group_slots == 0);
                let is_whole = |first: &u32| (*first..first + group_slots).all(|at| is_free(&at));
                assert_eq!(expected.iter().any(is_whole), !free.whole.is_empty());
            }
            assert!(free.partial.len() <= all as usize);
        }
    }
}
