//! Surveys of processes that share pages since a fork. The kernel walks all pages of a process and
//! reports its proportional part (`Pss_Anon`).
//!
//! The parts of a group add up to its usage; the part of one process alone says little. So a survey
//! counts once all members have answered. In between, a forked child counts as nothing, because its
//! parent counts its pages. A COW copy counts for the process that has it.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::account::Figures;
use crate::account::sample::SharedOnce;
use crate::address_space::{AddressSpace, Part, Told};
use crate::fork::outsiders::Outsider;
use crate::fork_group::ForkGroup;
use crate::{PAGE_SIZE, Pager, SpaceHandle, lock, resident_bytes};
use uzswap_sys::process;

/// The most processor time that a survey saves up; and how long answers count at most near the
/// limit.
const SOON: Duration = Duration::from_millis(50);

/// How long a survey waits for answers that agree.
const LATE: Duration = Duration::from_millis(250);

/// In groups of so many members one more or less does not matter: a part is some 2 % of the shared
/// bytes off.
const MANY: u32 = 8;

/// The first and the longest rest far below the limit while surveys find no new peak. COW copies
/// show in no other figure.
const REST_MIN: Duration = Duration::from_millis(10);
const REST_MAX: Duration = Duration::from_millis(160);

/// Difference of two members' shared bytes that counts as agreement: members grow during a survey.
const APART_BYTES: u64 = 1 << 20;

/// If the last surveys lowered the usage by this part of the limit, a survey takes less time than
/// to evict as much.
const CORRECTED_PART: u64 = 64;

/// How long a survey runs before it looks at the usage again.
const AT_ONCE: Duration = Duration::from_millis(2);

/// The part of a processor that surveys may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Urgency {
    /// Far below the limit: a twentieth.
    Low,
    /// A tenth.
    Usual,
    /// The limit seems to be passed, or the evictor would work for pages that nobody has: a third.
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

/// The sum of the anonymous memory of all programs, each page once.
#[derive(Debug, Default)]
pub(crate) struct UsageTotal {
    alone: u64,
    groups: BTreeMap<usize, OfGroup>,
    /// Bytes of unmanaged processes; `groups` has them, too.
    outside: u64,
    /// Bytes that may count twice until the next survey; `groups` has them, too.
    doubtful: u64,
}

#[derive(Debug)]
struct OfGroup {
    group: ForkGroup,
    /// Bytes if its members shared nothing; and the sum of their charges.
    apart: u64,
    together: u64,
    /// Members that had left before the first was added.
    left: u32,
}

impl UsageTotal {
    /// Adds a process with so many resident bytes.
    pub(crate) fn add(&mut self, space: &mut AddressSpace, resident: u64) {
        let counted = space.count(resident);
        let Some(group) = space.group() else {
            self.alone += counted;
            return;
        };
        let left = group.left();
        self.doubtful += space.doubtful_bytes();
        let group = group.clone();
        self.add_member(&group, left, resident, counted);
    }

    /// Adds a process that has ended, which the server has not noted: other members may count its
    /// pages.
    pub(crate) fn add_ended(&mut self, space: &mut AddressSpace, resident: u64) {
        let doubtful = self.doubtful;
        self.add(space, resident);
        if space.group().is_some() {
            self.doubtful = doubtful + space.count(resident);
        }
    }

    /// Adds an unmanaged process that shares pages.
    pub(crate) fn add_outsider(&mut self, outsider: &Outsider, resident: u64) {
        let counted = outsider.count(resident);
        self.outside += counted;
        self.add_member(outsider.group(), outsider.group().left(), resident, counted);
    }

    fn add_member(&mut self, group: &ForkGroup, left: u32, resident: u64, counted: u64) {
        let nothing = || OfGroup { group: group.clone(), apart: 0, together: 0, left };
        let sums = self.groups.entry(group.number()).or_insert_with(nothing);
        sums.apart += resident;
        sums.together += counted;
    }

    /// The usage, each shared page once.
    pub(crate) fn once(&self) -> SharedOnce {
        SharedOnce {
            most: self.bytes(),
            known: self.known_bytes(),
            outside: self.outside,
            group_changes: self.changes(),
            is_certain: self.is_certain(), // after the bytes
        }
    }

    /// A lower bound of the usage, in bytes.
    fn known_bytes(&self) -> u64 {
        self.bytes().saturating_sub(self.doubtful)
    }

    /// A number that changes when a process joins or leaves a group.
    fn changes(&self) -> u64 {
        let of_group = |of: &OfGroup| u64::from(of.group.members()) + 2 * u64::from(of.left);
        self.groups.values().map(of_group).sum()
    }

    /// Whether no member has ended during the sum: its shared pages may have been added twice, as
    /// its own and as its heir's.
    fn is_certain(&self) -> bool {
        self.groups.values().all(|of| of.left == of.group.left())
    }

    /// In bytes.
    fn bytes(&self) -> u64 {
        let parted = |group: &ForkGroup| group.parted_since() * PAGE_SIZE as u64;
        let of_group = |of: &OfGroup| (of.together + parted(&of.group)).min(of.apart);
        self.alone + self.groups.values().map(of_group).sum::<u64>()
    }
}

/// A process that a survey queries.
#[derive(Debug, Clone)]
enum Asked {
    Managed(SpaceHandle),
    Outsider(Arc<Outsider>),
}

/// An answer to a survey.
#[derive(Debug)]
struct Answer {
    asked: Asked,
    group: usize,
    /// `None` for a process that has ended, which the server has not noted.
    told: Option<Told>,
}

impl Answer {
    /// Whether the process is still a member of the group.
    fn is_of_member(&self) -> bool {
        match &self.asked {
            Asked::Managed(space) => is_of_group(&lock(space), self.group),
            Asked::Outsider(_) => self.told.is_some(),
        }
    }

    /// Applies the answer: so many members count a share of each shared page.
    fn counts(&self, of: u32) {
        match (&self.asked, &self.told) {
            (Asked::Managed(space), told) => {
                let mut space = lock(space);
                match told {
                    _ if !is_of_group(&space, self.group) => {}
                    Some(told) => space.count_part(told, of),
                    None => space.count_no_part(),
                }
            }
            (Asked::Outsider(outsider), Some(told)) => {
                outsider.count_part(told.resident, told.part, of);
            }
            (Asked::Outsider(_), None) => {} // the next sample notes its end
        }
    }
}

fn is_of_group(space: &AddressSpace, number: usize) -> bool {
    space.group().is_some_and(|group| group.number() == number)
}

/// Shared bytes as the living members of a group have answered: the least and the most.
#[derive(Debug, Default)]
struct Common {
    members: u32,
    told: Option<[u64; 2]>,
    /// A member had ended before its query.
    has_ended: bool,
}

impl Common {
    fn add(&mut self, answer: &Answer) {
        self.has_ended |= answer.told.is_none();
        if let (Some(told), true) = (&answer.told, answer.is_of_member()) {
            let bytes = told.part.common_bytes();
            let [least, most] = self.told.unwrap_or([bytes; 2]);
            self.told = Some([least.min(bytes), most.max(bytes)]);
            self.members += 1;
        }
    }

    fn most_bytes(&self) -> u64 {
        self.told.map_or(0, |[_, most]| most)
    }

    /// Whether all answers agree. Otherwise a member has grown during the survey, or one was about
    /// to end.
    fn is_agreed(&self) -> bool {
        let most_apart = |most: u64| most / 8 + APART_BYTES;
        self.told.is_none_or(|[least, most]| most - least <= most_apart(most))
    }

    /// Whether a member of a small group has ended.
    fn has_lost_one_of_few(&self) -> bool {
        self.has_ended && self.members < MANY
    }
}

/// A group at the beginning of a survey.
#[derive(Debug)]
struct Known {
    group: ForkGroup,
    /// Members to query.
    asked: u32,
    /// Some members may share nothing any more.
    is_unsure: bool,
    /// COW copies in it that no member counted.
    parted: u64,
    /// The answers so far.
    common: Common,
}

impl Known {
    /// Whether the answers count now; `counted` is the time of the last survey that counted, or
    /// when the group was first seen.
    fn counts(&self, now: Instant, counted: Option<Instant>) -> bool {
        let Known { common, is_unsure, .. } = self;
        let is_late = counted.is_some_and(|counted| now >= counted + LATE);
        let is_sure = !common.has_lost_one_of_few() && (common.is_agreed() || *is_unsure);
        common.members > 0 && (is_sure || is_late)
    }
}

/// Starts the thread that surveys whenever the sampler wakes it. A query may take milliseconds, and
/// the sampler must go on meanwhile.
pub(crate) fn start(pager: &Arc<Pager>) -> io::Result<JoinHandle<()>> {
    let pager = Arc::clone(pager);
    let work = move || {
        process::prefer_this_thread();
        let mut survey = PssSurvey::new();
        while !pager.wakers.is_stopping() {
            match pager.account.is_survey_due() {
                true => survey.go_on(&pager),
                false => survey.rest(&pager),
            }
            pager.wakers.surveyor.wait(Duration::from_secs(1));
        }
    };
    thread::Builder::new().name("uzswap-pss".to_owned()).spawn(work)
}

/// Queries all processes that share pages, some at a time.
#[derive(Debug)]
struct PssSurvey {
    looked: Instant,
    /// Processor time left for queries, in ns; negative after a long one.
    left: i64,
    to_ask: Vec<Asked>,
    answers: Vec<Answer>,
    groups: BTreeMap<usize, Known>,
    /// Processor time of the queries of this survey, or of the last one.
    took: Duration,
    ended: Option<Instant>,
    /// When a survey of each group counted last, or when the group was first seen.
    counted: BTreeMap<usize, Instant>,
    /// Bytes by which the last surveys lowered the usage.
    corrected_bytes: u64,
    /// The known peak at the end of the last survey.
    peak: u64,
    /// The length of a rest far below the limit.
    rest: Duration,
    /// [`UsageTotal::changes`] at the last sample.
    changes: u64,
}

impl PssSurvey {
    fn new() -> PssSurvey {
        PssSurvey {
            looked: Instant::now(),
            left: nanoseconds(SOON),
            to_ask: Vec::new(),
            answers: Vec::new(),
            groups: BTreeMap::new(),
            took: Duration::ZERO,
            ended: None,
            counted: BTreeMap::new(),
            corrected_bytes: 0,
            peak: 0,
            rest: REST_MIN,
            changes: 0,
        }
    }

    /// Continues the survey, or begins one if the last is old. Far below the limit a survey serves
    /// the reported peak.
    fn go_on(&mut self, pager: &Pager) {
        let account = &pager.account;
        let Figures { used, limit, .. } = account.figures();
        let near = account.goal_bytes().saturating_sub(account.margin_bytes());
        let urgency = self.urgency(used, near, limit);
        let now = Instant::now();
        let earned = (now - self.looked) / urgency.times();
        self.left = (self.left + nanoseconds(earned)).min(nanoseconds(SOON));
        self.looked = now;
        let changes = account.group_changes();
        if std::mem::replace(&mut self.changes, changes) != changes {
            self.rest = REST_MIN;
        }
        if !account.may_be_over_apart() && self.is_resting() {
            return;
        }
        let is_urgent = self.begin(&pager.spaces(), &pager.outsiders.all(), urgency);
        while let Some(asked) = self.to_ask.pop() {
            let (left, time) = if is_urgent { (-nanoseconds(SOON), SOON) } else { (0, AT_ONCE) };
            if self.left <= left || now.elapsed() >= time {
                self.to_ask.push(asked);
                return;
            }
            let is_asked = match &asked {
                Asked::Managed(space) => self.ask(space),
                Asked::Outsider(outsider) => self.ask_outsider(outsider),
            };
            if !is_asked {
                self.to_ask.insert(0, asked); // after the others
                return;
            }
        }
        if !self.answers.is_empty() {
            let seemed = pager.sample();
            self.end(pager);
            let used = pager.sample();
            self.note_corrected(seemed.saturating_sub(used));
            account.note_surveyed(Some(used));
            self.rest_after(account.peak().total);
        }
    }

    /// The urgency with so many bytes in use; from `near` on the evictor is about to work.
    fn urgency(&self, used: u64, near: u64, limit: u64) -> Urgency {
        let corrects_much = self.corrected_bytes > limit / CORRECTED_PART;
        match used {
            used if used > limit || used > near && corrects_much => Urgency::High,
            used if used > limit / 2 => Urgency::Usual,
            _ => Urgency::Low,
        }
    }

    /// Notes by how many bytes a survey lowered the usage. Some surveys find nothing between others
    /// that do, so the figure shrinks by a quarter at a time.
    fn note_corrected(&mut self, bytes: u64) {
        self.corrected_bytes = bytes.max(self.corrected_bytes / 4 * 3);
    }

    /// Whether the last survey ended a moment ago without a new peak.
    fn is_resting(&self) -> bool {
        let is_between = self.to_ask.is_empty() && self.answers.is_empty();
        is_between && self.ended.is_some_and(|ended| self.looked < ended + self.rest)
    }

    /// Sets the next rest: the longer the peak stays, the longer.
    fn rest_after(&mut self, peak: u64) {
        let is_new = peak > self.peak + self.peak / 64;
        self.rest = if is_new { REST_MIN } else { (self.rest * 2).min(REST_MAX) };
        self.peak = self.peak.max(peak);
    }

    /// Ends the survey: sharing does not matter now.
    fn rest(&mut self, pager: &Pager) {
        self.to_ask.clear();
        self.answers.clear();
        self.groups.clear();
        pager.account.note_surveyed(None);
    }

    /// Begins a survey if none runs, and the last is old or a part is unsure; whether one is.
    fn begin(
        &mut self,
        spaces: &[SpaceHandle],
        outsiders: &[Arc<Outsider>],
        urgency: Urgency,
    ) -> bool {
        let mut groups: BTreeMap<usize, Known> = BTreeMap::new();
        let (mut all, mut is_any_unsure) = (Vec::new(), false);
        for space in spaces {
            let found = lock(space);
            if let Some(group) = found.group_to_ask() {
                let known = known_of(&mut groups, group);
                known.asked += 1;
                known.is_unsure |= found.is_part_unsure();
                is_any_unsure |= found.is_part_unsure();
                all.push(Asked::Managed(space.clone()));
            }
        }
        for outsider in outsiders {
            known_of(&mut groups, outsider.group()).asked += 1;
            all.push(Asked::Outsider(outsider.clone()));
        }
        if self.to_ask.is_empty() && (self.is_old(urgency) || is_any_unsure) {
            self.took = Duration::ZERO;
            // The oldest first: it may be the parent of processes that come meanwhile.
            self.to_ask = all.into_iter().rev().collect();
            self.counted.retain(|number, _| groups.contains_key(number));
            groups.keys().for_each(|number| _ = self.counted.entry(*number).or_insert(self.looked));
            self.groups = groups;
        }
        is_any_unsure
    }

    /// Whether the last answers have counted for some times as long as they took.
    fn is_old(&self, urgency: Urgency) -> bool {
        let counts_for = self.took.saturating_mul(urgency.times()).min(SOON * urgency.times() / 10);
        self.ended.is_none_or(|ended| self.looked >= ended + counts_for)
    }

    /// Applies the answers of all groups whose members agree. Answers of a group that never agrees
    /// count now and then.
    fn end(&mut self, pager: &Pager) {
        // The sampler sees all answers or none.
        let _no_sample = pager.account.begin_sample();
        self.settle(&pager.spaces());
    }

    /// The same for these managed processes.
    fn settle(&mut self, spaces: &[SpaceHandle]) {
        let now = Instant::now();
        let groups = &mut self.groups;
        for answer in &self.answers {
            if let Some(known) = groups.get_mut(&answer.group) {
                known.common.add(answer);
            }
        }
        groups.retain(|number, known| known.counts(now, self.counted.get(number).copied()));
        // Members that answered and still live count the shared pages, and no newcomer does.
        for space in spaces {
            let mut space = lock(space);
            let known = space.group().and_then(|group| groups.get(&group.number()));
            if let Some(Known { common, .. }) = known {
                space.give_back_inherited(common.most_bytes());
            }
        }
        for answer in self.answers.drain(..) {
            if let Some(Known { common, .. }) = groups.get(&answer.group) {
                answer.counts(common.members);
            }
        }
        for (number, Known { group, asked, parted, .. }) in groups {
            group.note_asked(*parted, *asked);
            self.counted.insert(*number, now);
        }
        self.ended = Some(now);
    }

    /// Queries a process; `false` if it has forked meanwhile, and no event has reported that.
    fn ask(&mut self, space: &SpaceHandle) -> bool {
        let (since, spent) = (Instant::now(), process::thread_time());
        let (files, group, made_own_bytes) = {
            let space = lock(space);
            let (Some(files), Some(group)) = (space.files(), space.group().cloned()) else {
                return true;
            };
            (files, group, space.made_own_bytes())
        };
        let before = group.members();
        let resident = resident_bytes(space);
        let part = files.part_of_anonymous();
        self.spend(spent);
        let members = (before + group.members()) / 2;
        match part {
            None if !lock(space).is_ending() => return true, // the kernel does not tell
            Some(_) if members < MANY && lock(space).uffd.is_changing() => return false,
            _ => {}
        }
        let told = part.map(|part| Told {
            at: since,
            resident,
            part: Part::of(part, resident, members),
            made_own_bytes,
        });
        let asked = Asked::Managed(space.clone());
        self.answers.push(Answer { asked, group: group.number(), told });
        true
    }

    /// Queries an unmanaged process that shares pages.
    fn ask_outsider(&mut self, outsider: &Arc<Outsider>) -> bool {
        let (since, spent) = (Instant::now(), process::thread_time());
        let group = outsider.group();
        let resident = outsider.resident_bytes();
        let told = resident.zip(outsider.part_of_anonymous()).map(|(resident, bytes)| Told {
            at: since,
            resident,
            part: Part::of(bytes, resident, group.members()),
            made_own_bytes: 0,
        });
        self.spend(spent);
        let asked = Asked::Outsider(Arc::clone(outsider));
        self.answers.push(Answer { asked, group: group.number(), told });
        true
    }

    /// Charges a query with its processor time. On a busy machine it also waits; that must not
    /// delay the next one, because processes copy pages meanwhile.
    fn spend(&mut self, since: Duration) {
        let took = process::thread_time().saturating_sub(since);
        self.left -= nanoseconds(took);
        self.took += took;
    }
}

/// The state of a group in this survey.
fn known_of<'a>(groups: &'a mut BTreeMap<usize, Known>, group: &ForkGroup) -> &'a mut Known {
    let of_it = || Known {
        group: group.clone(),
        asked: 0,
        is_unsure: false,
        parted: group.parted(),
        common: Common::default(),
    };
    groups.entry(group.number()).or_insert_with(of_it)
}

fn nanoseconds(time: Duration) -> i64 {
    time.as_nanos().try_into().unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::address_space::handle::SharedAddressSpace;
    use crate::fork::outsiders::bequeath;
    use uzswap::random::SplitMix64;

    fn member(group: &ForkGroup) -> SpaceHandle {
        let mut space = AddressSpace::of_nothing();
        space.joins(group, 100);
        SharedAddressSpace::alone(space)
    }

    fn answer(space: &SpaceHandle, group: &ForkGroup, part: Option<Part>) -> Answer {
        let told = |part| Told { at: Instant::now(), resident: 100 << 20, part, made_own_bytes: 0 };
        Answer {
            asked: Asked::Managed(Arc::clone(space)),
            group: group.number(),
            told: part.map(told),
        }
    }

    #[test]
    fn it_is_urgent_where_answers_lower_much_of_what_seems_in_use() {
        let mut survey = PssSurvey::new();
        let urgency =
            |survey: &PssSurvey| [450, 970, 1001].map(|used| survey.urgency(used, 960, 1000));
        let usual = [Urgency::Low, Urgency::Usual, Urgency::High];
        assert_eq!(urgency(&survey), usual);
        survey.note_corrected(40);
        assert_eq!(urgency(&survey), [Urgency::Low, Urgency::High, Urgency::High]);
        // The next ones lower nothing, in the end.
        (0..2).for_each(|_| survey.note_corrected(0));
        assert_eq!(urgency(&survey)[1], Urgency::High);
        survey.note_corrected(0);
        assert_eq!(urgency(&survey), usual);
    }

    #[test]
    fn who_ends_during_a_look_makes_it_uncertain() {
        let group = ForkGroup::default();
        let [first, second] = [(); 2].map(|()| member(&group));
        let mut sum = UsageTotal::default();
        sum.add(&mut lock(&first), 100);
        assert!(sum.is_certain());
        lock(&first).group = None;
        lock(&second).inherit(100);
        sum.add(&mut lock(&second), 100);
        assert!(!sum.is_certain());
        let mut sum = UsageTotal::default();
        sum.add(&mut lock(&first), 0);
        sum.add(&mut lock(&second), 100);
        assert!(sum.is_certain());
        assert_eq!(sum.bytes(), 100);
    }

    #[test]
    fn of_one_that_has_ended_unnoted_nothing_is_known() {
        let group = ForkGroup::default();
        let [first, second] = [(); 2].map(|()| member(&group));
        let sum = |has_ended: bool| {
            let mut sum = UsageTotal::default();
            match has_ended {
                true => sum.add_ended(&mut lock(&first), 300),
                false => sum.add(&mut lock(&first), 300),
            }
            sum.add(&mut lock(&second), 100);
            (sum.bytes(), sum.known_bytes())
        };
        let (before, after) = (sum(false), sum(true));
        assert_eq!(before.0, after.0, "where the limit is near, it counts until it is noted");
        assert_eq!([before.1, after.1], [400, 100], "it has freed what was its own");
    }

    #[test]
    fn an_answer_costs_no_more_where_it_waits() {
        let mut survey = PssSurvey::new();
        let (left, since) = (survey.left, process::thread_time());
        let wait = Duration::from_millis(50);
        thread::sleep(wait);
        survey.spend(since);
        assert!(survey.took < wait, "{survey:?}");
        assert_eq!(survey.left, left - nanoseconds(survey.took));
    }

    #[test]
    fn a_group_takes_no_more_than_its_members_would_alone() {
        let group = ForkGroup::default();
        let [first, second] = [(); 2].map(|()| member(&group));
        let sum = || {
            let mut sum = UsageTotal::default();
            sum.add(&mut lock(&first), 0);
            sum.add(&mut lock(&second), 10 * PAGE_SIZE as u64);
            sum.bytes() / PAGE_SIZE as u64
        };
        let before = sum();
        assert!(before <= 10, "{before} pages");
        group.part(3);
        assert_eq!(sum(), (before + 3).min(10), "each page that was parted took one more");
        group.part(100);
        assert_eq!(sum(), 10);
        group.note_asked(103, 2);
        assert_eq!(sum(), before);
    }

    #[test]
    fn answers_count_for_some_times_what_they_took() {
        let mut survey = PssSurvey::new();
        assert!(survey.is_old(Urgency::Low), "there were none");
        let ended = survey.looked;
        survey.ended = Some(ended);
        let mut is_old = |took: u64, after: u64, urgency: Urgency| {
            survey.took = Duration::from_millis(took);
            survey.looked = ended + Duration::from_millis(after);
            survey.is_old(urgency)
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
        let group = ForkGroup::default();
        let spaces = [(); 3].map(|()| member(&group));
        let mut survey = PssSurvey::new();
        assert!(!survey.begin(&spaces, &[], Urgency::Usual));
        assert_eq!(survey.to_ask.len(), 0, "they have no files to be asked by");
        spaces.iter().for_each(|space| lock(space).take_this_process());
        let asked =
            |survey: &PssSurvey| survey.groups.values().map(|known| known.asked).sum::<u32>();
        assert!(!survey.begin(&spaces, &[], Urgency::Usual));
        assert_eq!((survey.to_ask.len(), asked(&survey)), (3, 3));
        // No survey begins while members wait to be asked, or while the answers are new.
        survey.to_ask.pop();
        survey.begin(&spaces, &[], Urgency::Usual);
        assert_eq!(survey.to_ask.len(), 2);
        survey.to_ask.clear();
        (survey.ended, survey.took) = (Some(survey.looked), Duration::from_millis(1));
        survey.begin(&spaces, &[], Urgency::Usual);
        assert_eq!(survey.to_ask.len(), 0);
        survey.looked += Duration::from_millis(10);
        survey.begin(&spaces, &[], Urgency::Usual);
        assert_eq!(survey.to_ask.len(), 3);
    }

    #[test]
    fn answers_that_never_agree_count_now_and_then() {
        let group = ForkGroup::default();
        let known = |told: &[u64], is_unsure: bool| {
            let mut common = Common::default();
            for mib in told {
                let part = Part::of(mib << 20, 100 << 20, 3);
                common.add(&answer(&member(&group), &group, Some(part)));
            }
            Known { group: group.clone(), asked: 3, is_unsure, parted: 0, common }
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
        let group = ForkGroup::default();
        let common = |told: &[Option<u64>]| {
            let mut common = Common::default();
            for told in told {
                // Of three, if any, in MiB.
                let part = told.map(|mib| Part::of(mib << 20, 100 << 20, 3));
                common.add(&answer(&member(&group), &group, part));
            }
            (common.members, common.is_agreed() && !common.has_lost_one_of_few())
        };
        assert_eq!(common(&[Some(33), Some(32), Some(33)]), (3, true));
        // The third had ended when the second was asked, who has half.
        assert_eq!(common(&[Some(33), Some(50)]), (2, false));
        assert_eq!(common(&[Some(33), Some(33), None]), (2, false));
        let many = [vec![Some(33); MANY as usize], vec![None]].concat();
        assert_eq!(common(&many), (MANY, true));
        // One that ended after it was asked, and one that has come to another group.
        let [gone, moved] = [(); 2].map(|()| member(&group));
        lock(&gone).group = None;
        lock(&moved).group = Some(ForkGroup::default().join());
        let mut common = Common::default();
        for space in [gone, moved] {
            common.add(&answer(&space, &group, Some(Part::of(100, 100, 1))));
        }
        assert_eq!(common.members, 0);
    }

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
            let group = lock(&parent).group().cloned().unwrap_or_default();
            let resident = (pages.len() * PAGE_SIZE) as u64;
            let mut child = AddressSpace::of_nothing();
            lock(&parent).joins(&group, resident);
            child.joins(&group, resident);
            child.expect();
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
            let mut gone = lock(&space);
            let (group, lent) = (gone.group.take(), gone.lent_bytes());
            drop(gone);
            let Some(group) = group.map(|member| (*member).clone()) else { return };
            let is_of_it = |space: &&SpaceHandle| lock(space).group() == Some(&group);
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
                let Some(group) = found.group().cloned() else { continue };
                let part: f64 = pages.iter().map(|page| PAGE_SIZE as f64 / holders[page]).sum();
                let resident = (pages.len() * PAGE_SIZE) as u64;
                let part = Part::of(part as u64, resident, group.members());
                let (at, made_own_bytes) = (Instant::now(), found.made_own_bytes());
                let told = Some(Told { at, resident, part, made_own_bytes });
                let known = known_of(&mut survey.groups, &group);
                (known.asked, known.is_unsure) = (known.asked + 1, true);
                let asked = Asked::Managed(Arc::clone(space));
                survey.answers.push(Answer { asked, group: group.number(), told });
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
                        let off = model.sum().known_bytes().abs_diff(model.truth());
                        // Each part is rounded.
                        assert!(off < 1000, "seed {seed}, step {step}: {off} bytes off");
                    }
                    _ => model.write(at, pages, false),
                }
                let (sum, truth) = (model.sum(), model.truth());
                let known = sum.known_bytes();
                assert!(known <= truth + 1000, "seed {seed}, step {step}: {known} of {truth}");
            }
        }
    }
}
