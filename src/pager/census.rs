//! What each of the processes takes that have pages in common since a fork: its part of them, which
//! the kernel tells (`Pss_Anon`) when it has walked all its pages.
//!
//! The parts of a family add up to what it takes if all are asked; the part of one alone says
//! little. So the answers count once all were asked. In between, a child that was forked counts for
//! nothing, as its pages are in its parent's count; and each page that somebody makes its own,
//! which is asked for where there is little room, is in its own count from then on.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::family::Family;
use super::space::{Part, Space};
use super::{PAGE_SIZE, Pager, SpaceLock, lock, resident_bytes};

/// Time that it may take at once where nothing was asked for long; and how long answers count at
/// most, where the limit is near.
const SOON: Duration = Duration::from_millis(50);

/// How long a family may grow and shrink before answers count that were given meanwhile.
const LATE: Duration = Duration::from_millis(250);

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
}

impl Sum {
    /// One of which so many bytes are resident.
    pub(super) fn add(&mut self, space: &mut Space, resident: u64) {
        let counted = space.count(resident);
        let Some(family) = space.family() else {
            self.alone += counted;
            return;
        };
        let nothing = || OfFamily { family: family.clone(), apart: 0, together: 0 };
        let sums = self.families.entry(family.number()).or_insert_with(nothing);
        sums.apart += resident;
        sums.together += counted;
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
    /// Bytes that were resident, and its part.
    resident: u64,
    part: Part,
    /// What was known to be in others' count.
    shared: u64,
}

/// A family, as it was when a census began.
#[derive(Debug)]
struct Known {
    family: Family,
    /// Members that are asked, and all.
    asked: u32,
    members: u32,
    /// Pages that it had parted.
    parted: u64,
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
                let (members, parted) = (family.members(), family.parted());
                let of_it = || Known { family: family.clone(), asked: 0, members, parted };
                families.entry(family.number()).or_insert_with(of_it).asked += 1;
                is_any_unsure |= found.is_part_unsure();
                all.push(space.clone());
            }
        }
        let counts_for = self.took.saturating_mul(urgency.times()).min(SOON * urgency.times() / 10);
        let is_old = self.ended.is_none_or(|ended| self.looked >= ended + counts_for);
        if self.to_ask.is_empty() && (is_old || is_any_unsure) {
            self.took = Duration::ZERO;
            self.to_ask = all;
            self.counted.retain(|number, _| families.contains_key(number));
            families
                .keys()
                .for_each(|number| _ = self.counted.entry(*number).or_insert(self.looked));
            self.families = families;
        }
        is_any_unsure
    }

    /// All were asked: their answers count, but for families that have grown or shrunk meanwhile.
    /// Of one that always does, they count now and then.
    fn end(&mut self, pager: &Pager) {
        // Whoever looks has the answers of all or of none.
        let _no_look = pager.sampling();
        let now = Instant::now();
        let families = &mut self.families;
        families.retain(|number, known| {
            let is_same = known.asked == known.members && known.members == known.family.members();
            let counted = self.counted.get(number).copied();
            is_same || counted.is_some_and(|counted| now >= counted + LATE)
        });
        for Answer { space, family, resident, part, shared } in self.answers.drain(..) {
            if families.contains_key(&family) {
                lock(&space).has_part(resident, part, shared);
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
        let (files, family, shared) = {
            let space = lock(space);
            let (Some(files), Some(family)) = (space.files(), space.family().cloned()) else {
                return true;
            };
            (files, family, space.shared_bytes())
        };
        let number = family.number();
        let (since, before) = (Instant::now(), family.members());
        let resident = resident_bytes(space);
        let part = files.part_of_anonymous();
        self.left -= nanoseconds(since.elapsed());
        self.took += since.elapsed();
        let (Some(part), Some(known)) = (part, self.families.get(&number)) else {
            return true; // it has ended
        };
        if lock(space).uffd.is_changing() {
            return false;
        }
        // Those that are not asked have parts as well, and count for none: such that have come
        // since, or are not known yet.
        let members = ((before + family.members()) / 2).max(known.asked);
        let part = Part::of(part, resident, members, known.asked);
        self.answers.push(Answer { space: space.clone(), family: number, resident, part, shared });
        true
    }
}

fn nanoseconds(time: Duration) -> i64 {
    time.as_nanos().try_into().unwrap_or(i64::MAX)
}
