//! What each of the processes takes that have pages in common since a fork: its part of them, which
//! the kernel tells (`Pss_Anon`) when it has walked all its pages.
//!
//! The parts of a family add up to what it takes if all are asked; the part of one alone says
//! little. So the answers count once all were asked. In between, a child that was forked counts for
//! nothing, as its pages are in its parent's count; and each page that somebody makes its own,
//! which is asked for where there is little room, is in its own count from then on.

use std::collections::BTreeMap;
use std::sync::MutexGuard;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::family::Family;
use super::space::{Part, Space, Told};
use super::{PAGE_SIZE, Pager, SpaceLock, lock, resident_bytes};

/// Time that it may take at once where nothing was asked for long; and how long answers count at
/// most, where the limit is near.
const SOON: Duration = Duration::from_millis(50);

/// How long answers that do not agree do not count.
const LATE: Duration = Duration::from_millis(250);

/// Members of a family of which one more or less makes no difference that matters: a part is some
/// 2 % of what they have in common off.
const MANY: u32 = 8;

/// What answers of a family may be apart: some grow while they are asked.
const APART_BYTES: u64 = 1 << 20;

/// How long it goes on at once: nobody looks for what is new meanwhile.
const AT_ONCE: Duration = Duration::from_millis(2);

/// How much of the time it may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Urgency {
    /// Far below the limit: a twentieth.
    Low,
    /// A tenth.
    Usual,
    /// The limit seems to be passed: a third. What is told by then is less than it seems, mostly.
    High,
}

impl Urgency {
    fn times(self) -> u32 {
        match self {
            Urgency::Low => 20,
            Urgency::Usual => 10,
            Urgency::High => 3,
        }
    }
}

/// Adds up the anonymous memory that programs take, each page counted once.
#[derive(Debug, Default)]
pub(super) struct Sum {
    alone: u64,
    families: BTreeMap<usize, OfFamily>,
}

#[derive(Debug)]
struct OfFamily {
    family: Family,
    /// If its members had nothing in common, and as it is known of each.
    apart: u64,
    together: u64,
    /// Members that had left it when the first was added.
    left: u32,
}

impl Sum {
    /// One of which so many bytes are resident.
    pub(super) fn add(&mut self, space: &mut Space, resident: u64) {
        let counted = space.count(resident);
        let Some(family) = space.family() else {
            self.alone += counted;
            return;
        };
        let left = family.left();
        let nothing = || OfFamily { family: family.clone(), apart: 0, together: 0, left };
        let sums = self.families.entry(family.number()).or_insert_with(nothing);
        sums.apart += resident;
        sums.together += counted;
    }

    /// Whether no member of a family has ended meanwhile: what it had in common with others may
    /// have been added as its own, and once more as that of who has inherited it.
    pub(super) fn is_certain(&self) -> bool {
        self.families.values().all(|of| of.left == of.family.left())
    }

    /// In bytes.
    pub(super) fn bytes(&self) -> u64 {
        let parted = |family: &Family| family.parted_since() * PAGE_SIZE as u64;
        let of_family = |of: &OfFamily| (of.together + parted(&of.family)).min(of.apart);
        self.alone + self.families.values().map(of_family).sum::<u64>()
    }
}

/// What one has answered.
#[derive(Debug)]
struct Answer {
    space: SpaceLock,
    family: usize,
    /// `None` where it has ended, and nobody has noted that yet.
    told: Option<Told>,
}

impl Answer {
    /// Who has answered, if it is of that family still.
    fn member(&self) -> Option<MutexGuard<'_, Space>> {
        let is_of_it = |space: &MutexGuard<'_, Space>| {
            space.family().is_some_and(|family| family.number() == self.family)
        };
        Some(lock(&self.space)).filter(is_of_it)
    }
}

/// What members of a family that are there still have in common, in bytes: the least and the most
/// that any of them told.
#[derive(Debug, Default)]
struct Common {
    members: u32,
    told: Option<[u64; 2]>,
    /// Some had ended when they were asked.
    has_ended: bool,
}

impl Common {
    fn add(&mut self, answer: &Answer) {
        self.has_ended |= answer.told.is_none();
        if let (Some(told), Some(_)) = (&answer.told, answer.member()) {
            let bytes = told.part.common_bytes();
            let [least, most] = self.told.unwrap_or([bytes; 2]);
            self.told = Some([least.min(bytes), most.max(bytes)]);
            self.members += 1;
        }
    }

    fn most_bytes(&self) -> u64 {
        self.told.map_or(0, |[_, most]| most)
    }

    /// All have told about the same. Else some have grown meanwhile, or were asked when another was
    /// about to end, which had a part as well, or was taken to have one still.
    fn is_agreed(&self) -> bool {
        let most_apart = |most: u64| most / 8 + APART_BYTES;
        self.told.is_none_or(|[least, most]| most - least <= most_apart(most))
    }

    /// They are so few that it matters that one has ended.
    fn has_lost_one_of_few(&self) -> bool {
        self.has_ended && self.members < MANY
    }
}

/// A family, as it was when a census began.
#[derive(Debug)]
struct Known {
    family: Family,
    /// Members that are asked.
    asked: u32,
    /// Of some it is not known that they have anything in common still.
    is_unsure: bool,
    /// Pages that it had parted.
    parted: u64,
    /// What those have told that were asked.
    common: Common,
}

impl Known {
    /// Whether the answers count now, of a family whose answers counted last or that was first seen
    /// at a time.
    fn counts(&self, now: Instant, counted: Option<Instant>) -> bool {
        let Known { common, is_unsure, .. } = self;
        let is_late = counted.is_some_and(|counted| now >= counted + LATE);
        let is_sure = !common.has_lost_one_of_few() && (common.is_agreed() || *is_unsure);
        common.members > 0 && (is_sure || is_late)
    }
}

/// Asks all that have pages in common, some at each look.
#[derive(Debug)]
pub(super) struct Census {
    looked: Instant,
    /// Time that it may take, in ns; less than none where the last answer took longer.
    left: i64,
    to_ask: Vec<SpaceLock>,
    answers: Vec<Answer>,
    families: BTreeMap<usize, Known>,
    /// What the answers took, of this one or the last.
    took: Duration,
    ended: Option<Instant>,
    /// When the answers of a family counted last, or it was first seen.
    counted: BTreeMap<usize, Instant>,
}

impl Census {
    pub(super) fn new() -> Census {
        Census {
            looked: Instant::now(),
            left: nanoseconds(SOON),
            to_ask: Vec::new(),
            answers: Vec::new(),
            families: BTreeMap::new(),
            took: Duration::ZERO,
            ended: None,
            counted: BTreeMap::new(),
        }
    }

    /// Goes on with it, or begins anew where the last one is old; so many bytes are used, as far as
    /// is known.
    pub(super) fn go_on(&mut self, pager: &Pager, used: u64) {
        let urgency = match used {
            used if used > pager.limit_bytes => Urgency::High,
            used if used > pager.limit_bytes / 2 => Urgency::Usual,
            _ => Urgency::Low,
        };
        let now = Instant::now();
        let earned = (now - self.looked) / urgency.times();
        self.left = (self.left + nanoseconds(earned)).min(nanoseconds(SOON));
        self.looked = now;
        let is_urgent = self.begin(&pager.spaces(), urgency);
        while let Some(space) = self.to_ask.pop() {
            let (left, time) = if is_urgent { (-nanoseconds(SOON), SOON) } else { (0, AT_ONCE) };
            if self.left <= left || now.elapsed() >= time {
                self.to_ask.push(space);
                return;
            }
            if !self.ask(&space) {
                self.to_ask.insert(0, space); // after the others
                return;
            }
        }
        if !self.answers.is_empty() {
            self.end(pager);
            let is_over = pager.sample() > pager.goal_bytes();
            pager.is_surely_over.store(is_over, Ordering::Relaxed);
        }
    }

    /// It does not matter any more what is shared.
    pub(super) fn rest(&mut self, pager: &Pager) {
        self.to_ask.clear();
        self.answers.clear();
        self.families.clear();
        pager.is_surely_over.store(false, Ordering::Relaxed);
    }

    /// Begins, if nobody is to be asked still, and it is time or there is somebody of whose part
    /// little is known; whether there is.
    fn begin(&mut self, spaces: &[SpaceLock], urgency: Urgency) -> bool {
        let mut families: BTreeMap<usize, Known> = BTreeMap::new();
        let (mut all, mut is_any_unsure) = (Vec::new(), false);
        for space in spaces {
            let found = lock(space);
            if let Some(family) = found.family_to_ask() {
                let of_it = || Known {
                    family: family.clone(),
                    asked: 0,
                    is_unsure: false,
                    parted: family.parted(),
                    common: Common::default(),
                };
                let known = families.entry(family.number()).or_insert_with(of_it);
                known.asked += 1;
                known.is_unsure |= found.is_part_unsure();
                is_any_unsure |= found.is_part_unsure();
                all.push(space.clone());
            }
        }
        if self.to_ask.is_empty() && (self.is_old(urgency) || is_any_unsure) {
            self.took = Duration::ZERO;
            // The oldest first, who may be the parent of such that come meanwhile.
            self.to_ask = all.into_iter().rev().collect();
            self.counted.retain(|number, _| families.contains_key(number));
            families
                .keys()
                .for_each(|number| _ = self.counted.entry(*number).or_insert(self.looked));
            self.families = families;
        }
        is_any_unsure
    }

    /// Whether the answers of the last one, if there was any, have counted for long: for some times
    /// what they took.
    fn is_old(&self, urgency: Urgency) -> bool {
        let counts_for = self.took.saturating_mul(urgency.times()).min(SOON * urgency.times() / 10);
        self.ended.is_none_or(|ended| self.looked >= ended + counts_for)
    }

    /// All were asked: their answers count, but for families whose members do not agree. Of one
    /// that never does, they count now and then.
    fn end(&mut self, pager: &Pager) {
        // Whoever looks has the answers of all or of none.
        let _no_look = pager.sampling();
        let now = Instant::now();
        let families = &mut self.families;
        for answer in &self.answers {
            if let Some(known) = families.get_mut(&answer.family) {
                known.common.add(answer);
            }
        }
        families.retain(|number, known| known.counts(now, self.counted.get(number).copied()));
        // What they have in common is in the count of those that were asked and are there still,
        // and of no other: not of such that have come since, or are not known yet.
        for space in pager.spaces() {
            let mut space = lock(&space);
            let known = space.family().and_then(|family| families.get(&family.number()));
            if let Some(Known { common, .. }) = known {
                space.gives_back_inherited(common.most_bytes());
            }
        }
        for answer in self.answers.drain(..) {
            let Some(Known { common, .. }) = families.get(&answer.family) else { continue };
            let Some(mut space) = answer.member() else { continue };
            match &answer.told {
                Some(told) => space.has_part(told, common.members),
                None => space.has_no_part(),
            }
        }
        for (number, Known { family, asked, parted, .. }) in families {
            family.was_asked(*parted, *asked);
            self.counted.insert(*number, now);
        }
        self.ended = Some(now);
    }

    /// Asks one; `false` where it has forked meanwhile and that was not told yet.
    fn ask(&mut self, space: &SpaceLock) -> bool {
        let since = Instant::now();
        let (files, family, made_own_bytes) = {
            let space = lock(space);
            let (Some(files), Some(family)) = (space.files(), space.family().cloned()) else {
                return true;
            };
            (files, family, space.made_own_bytes())
        };
        let before = family.members();
        let resident = resident_bytes(space);
        let part = files.part_of_anonymous();
        self.left -= nanoseconds(since.elapsed());
        self.took += since.elapsed();
        let members = (before + family.members()) / 2;
        match part {
            None if !lock(space).is_ending() => return true, // it is not told
            Some(_) if members < MANY && lock(space).uffd.is_changing() => return false,
            _ => {}
        }
        let told = part.map(|part| Told {
            at: since,
            resident,
            part: Part::of(part, resident, members),
            made_own_bytes,
        });
        self.answers.push(Answer { space: space.clone(), family: family.number(), told });
        true
    }
}

fn nanoseconds(time: Duration) -> i64 {
    time.as_nanos().try_into().unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::shared::SharedSpace;
    use crate::turns::AllTurns;

    fn member(family: &Family) -> SpaceLock {
        let mut space = Space::of_nothing();
        space.joins(family, 100);
        SharedSpace::new(space, Arc::new(AllTurns::of(1)))
    }

    fn answer(space: &SpaceLock, family: &Family, part: Option<Part>) -> Answer {
        let told = |part| Told { at: Instant::now(), resident: 100 << 20, part, made_own_bytes: 0 };
        Answer { space: Arc::clone(space), family: family.number(), told: part.map(told) }
    }

    #[test]
    fn who_ends_during_a_look_makes_it_uncertain() {
        let family = Family::default();
        let [first, second] = [(); 2].map(|()| member(&family));
        let mut sum = Sum::default();
        sum.add(&mut lock(&first), 100);
        assert!(sum.is_certain());
        lock(&first).family = None;
        lock(&second).inherits(100);
        sum.add(&mut lock(&second), 100);
        assert!(!sum.is_certain());
        let mut sum = Sum::default();
        sum.add(&mut lock(&first), 0);
        sum.add(&mut lock(&second), 100);
        assert!(sum.is_certain());
        assert_eq!(sum.bytes(), 100);
    }

    #[test]
    fn a_family_takes_no_more_than_its_members_would_alone() {
        let family = Family::default();
        let [first, second] = [(); 2].map(|()| member(&family));
        let sum = || {
            let mut sum = Sum::default();
            sum.add(&mut lock(&first), 0);
            sum.add(&mut lock(&second), 10 * PAGE_SIZE as u64);
            sum.bytes() / PAGE_SIZE as u64
        };
        let before = sum();
        assert!(before <= 10, "{before} pages");
        family.part(3);
        assert_eq!(sum(), (before + 3).min(10), "each page that was parted took one more");
        family.part(100);
        assert_eq!(sum(), 10);
        family.was_asked(103, 2);
        assert_eq!(sum(), before);
    }

    #[test]
    fn answers_count_for_some_times_what_they_took() {
        let mut census = Census::new();
        assert!(census.is_old(Urgency::Low), "there were none");
        let ended = census.looked;
        census.ended = Some(ended);
        let mut is_old = |took: u64, after: u64, urgency: Urgency| {
            census.took = Duration::from_millis(took);
            census.looked = ended + Duration::from_millis(after);
            census.is_old(urgency)
        };
        for (took, urgency, old_after) in [
            (1, Urgency::High, 3),
            (1, Urgency::Usual, 10),
            (1, Urgency::Low, 20),
            // And no longer than if they had taken 5 ms.
            (1000, Urgency::High, 15),
            (1000, Urgency::Usual, 50),
            (1000, Urgency::Low, 100),
        ] {
            let are_old = [old_after - 1, old_after].map(|after| is_old(took, after, urgency));
            assert_eq!(are_old, [false, true], "{took} ms, {urgency:?}");
        }
    }

    #[test]
    fn all_members_are_asked_once_the_last_answers_are_old() {
        let family = Family::default();
        let spaces = [(); 3].map(|()| member(&family));
        let mut census = Census::new();
        assert!(!census.begin(&spaces, Urgency::Usual));
        assert_eq!(census.to_ask.len(), 0, "they have no files to be asked by");
        spaces.iter().for_each(|space| lock(space).is_this_process());
        let asked =
            |census: &Census| census.families.values().map(|known| known.asked).sum::<u32>();
        assert!(!census.begin(&spaces, Urgency::Usual));
        assert_eq!((census.to_ask.len(), asked(&census)), (3, 3));
        // No census begins while members wait to be asked, or while the answers are new.
        census.to_ask.pop();
        census.begin(&spaces, Urgency::Usual);
        assert_eq!(census.to_ask.len(), 2);
        census.to_ask.clear();
        (census.ended, census.took) = (Some(census.looked), Duration::from_millis(1));
        census.begin(&spaces, Urgency::Usual);
        assert_eq!(census.to_ask.len(), 0);
        census.looked += Duration::from_millis(10);
        census.begin(&spaces, Urgency::Usual);
        assert_eq!(census.to_ask.len(), 3);
    }

    #[test]
    fn answers_that_never_agree_count_now_and_then() {
        let family = Family::default();
        let known = |told: &[u64], is_unsure: bool| {
            let mut common = Common::default();
            for mib in told {
                let part = Part::of(mib << 20, 100 << 20, 3);
                common.add(&answer(&member(&family), &family, Some(part)));
            }
            Known { family: family.clone(), asked: 3, is_unsure, parted: 0, common }
        };
        let now = Instant::now();
        let [soon, late] = [LATE - Duration::from_millis(1), LATE].map(|age| now.checked_sub(age));
        let counts = |known: Known| [None, soon, late].map(|counted| known.counts(now, counted));
        assert_eq!(counts(known(&[33, 33], false)), [true; 3]);
        assert_eq!(counts(known(&[33, 50], false)), [false, false, true]);
        assert_eq!(counts(known(&[33, 50], true)), [true; 3], "little is known of some");
        assert_eq!(counts(known(&[], false)), [false; 3], "nobody is there");
    }

    #[test]
    fn members_agree_unless_one_was_about_to_end() {
        let family = Family::default();
        let common = |told: &[Option<u64>]| {
            let mut common = Common::default();
            for told in told {
                // Of three, if any, in MiB.
                let part = told.map(|mib| Part::of(mib << 20, 100 << 20, 3));
                common.add(&answer(&member(&family), &family, part));
            }
            (common.members, common.is_agreed() && !common.has_lost_one_of_few())
        };
        assert_eq!(common(&[Some(33), Some(32), Some(33)]), (3, true));
        // The third had ended when the second was asked, who has half.
        assert_eq!(common(&[Some(33), Some(50)]), (2, false));
        assert_eq!(common(&[Some(33), Some(33), None]), (2, false));
        let many = [vec![Some(33); MANY as usize], vec![None]].concat();
        assert_eq!(common(&many), (MANY, true));
        // One that ended after it was asked, and one that has come to another family.
        let [gone, moved] = [(); 2].map(|()| member(&family));
        lock(&gone).family = None;
        lock(&moved).family = Some(Family::default().join());
        let mut common = Common::default();
        for space in [gone, moved] {
            common.add(&answer(&space, &family, Some(Part::of(100, 100, 1))));
        }
        assert_eq!(common.members, 0);
    }
}
