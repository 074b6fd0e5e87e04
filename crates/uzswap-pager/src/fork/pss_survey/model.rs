//! A model of programs that fork, and of all that a survey may know of them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

use super::PssSurvey;
use super::answers::{Answer, Asked, known_of};
use super::usage_total::UsageTotal;
use crate::address_space::handle::SharedAddressSpace;
use crate::address_space::{AddressSpace, SurveyAnswer};
use crate::fork::outsiders::bequeath;
use crate::fork_group::Part;
use crate::{PAGE_SIZE, SpaceHandle, lock};
use uzswap::random::SplitMix64;

/// Processes that fork, write, grow and end, and the pages that each has: what is true.
struct Model {
    processes: Vec<(SpaceHandle, BTreeSet<u32>)>,
    next_page: u32,
    random: SplitMix64,
}

impl Model {
    fn new(seed: u64) -> Model {
        let space = SharedAddressSpace::alone(AddressSpace::of_nothing());
        let processes = vec![(space, (0..1000).collect())];
        Model { processes, next_page: 1000, random: SplitMix64::new(seed) }
    }

    fn below(&mut self, most: usize) -> usize {
        (self.random.next_word() % most as u64) as usize
    }

    fn fork(&mut self, at: usize) {
        let (parent, pages) = self.processes[at].clone();
        let group = lock(&parent).charge.group().cloned().unwrap_or_default();
        let resident = (pages.len() * PAGE_SIZE) as u64;
        let mut child = AddressSpace::of_nothing();
        lock(&parent).join_group(&group, resident);
        child.join_group(&group, resident);
        child.charge.expect_helper();
        self.processes.push((SharedAddressSpace::alone(child), pages));
    }

    /// Some pages come; or some that it has are its own from now on, unasked.
    fn write(&mut self, at: usize, pages: usize, copies: bool) {
        let (_, has) = &mut self.processes[at];
        if copies {
            let before: Vec<u32> = has.iter().take(pages).copied().collect();
            before.iter().for_each(|page| _ = has.remove(page));
        }
        has.extend(self.next_page..self.next_page + pages as u32);
        self.next_page += pages as u32;
    }

    fn end(&mut self, at: usize) {
        let (space, _) = self.processes.remove(at);
        let member = lock(&space).charge.take_member();
        let ended = member.map(|(member, lent)| ((*member).clone(), lent));
        let Some((group, lent)) = ended else { return };
        let is_of_it = |space: &&SpaceHandle| lock(space).charge.group() == Some(&group);
        let rest: Vec<&SpaceHandle> =
            self.processes.iter().map(|(space, _)| space).filter(is_of_it).collect();
        match rest[..] {
            [last] => lock(last).end_sharing(),
            _ => bequeath(&rest, lent),
        }
    }

    fn truth(&self) -> u64 {
        let all: BTreeSet<u32> =
            self.processes.iter().flat_map(|(_, pages)| pages).copied().collect();
        (all.len() * PAGE_SIZE) as u64
    }

    fn sum(&self) -> UsageTotal {
        let mut sum = UsageTotal::default();
        for (space, pages) in &self.processes {
            sum.add(&mut lock(space), (pages.len() * PAGE_SIZE) as u64);
        }
        sum
    }

    /// All answer at one moment, as the kernel does.
    fn ask_all(&self) {
        let mut holders: BTreeMap<u32, f64> = BTreeMap::new();
        for page in self.processes.iter().flat_map(|(_, pages)| pages) {
            *holders.entry(*page).or_default() += 1.0;
        }
        let mut survey = PssSurvey::new();
        for (space, pages) in &self.processes {
            let found = lock(space);
            let Some(group) = found.charge.group().cloned() else { continue };
            let part: f64 = pages.iter().map(|page| PAGE_SIZE as f64 / holders[page]).sum();
            let resident = (pages.len() * PAGE_SIZE) as u64;
            let part = Part::of(part as u64, resident, group.members());
            let (at, copied_bytes) = (Instant::now(), found.charge.copied_bytes());
            let measured = Some(SurveyAnswer { at, resident, part, copied_bytes });
            let known = known_of(&mut survey.groups, &group);
            (known.asked, known.is_unsure) = (known.asked + 1, true);
            let asked = Asked::Managed(Arc::clone(space));
            survey.answers.push(Answer { asked, group: group.number(), measured });
        }
        let spaces: Vec<SpaceHandle> =
            self.processes.iter().map(|(space, _)| Arc::clone(space)).collect();
        survey.settle(&spaces);
    }
}

#[test]
fn what_is_known_is_never_more_than_there_is_and_all_of_it_once_all_were_asked() {
    for seed in 0..200 {
        let mut model = Model::new(seed);
        for step in 0..60 {
            let at = model.below(model.processes.len());
            let pages = model.below(200);
            match model.below(8) {
                0 | 1 if model.processes.len() < 12 => model.fork(at),
                2 if model.processes.len() > 1 => model.end(at),
                3 | 4 => model.write(at, pages, true),
                5 => {
                    model.ask_all();
                    let off = model.sum().once().known.abs_diff(model.truth());
                    // Each part is rounded.
                    assert!(off < 1000, "seed {seed}, step {step}: {off} bytes off");
                }
                _ => model.write(at, pages, false),
            }
            let (sum, truth) = (model.sum(), model.truth());
            let known = sum.once().known;
            assert!(known <= truth + 1000, "seed {seed}, step {step}: {known} of {truth}");
        }
    }
}
