//! Surveys of processes that share pages since a fork. The kernel walks all pages of a process and
//! reports its proportional part (`Pss_Anon`).
//!
//! The parts of a group add up to its usage; the part of one process alone says little. So a survey
//! counts once all members have answered. In between, a forked child counts as nothing, because its
//! parent counts its pages. A COW copy counts for the process that has it.

mod answers;
#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;
mod usage_total;

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::account::Figures;
use crate::address_space::SurveyAnswer;
use crate::fork::outsiders::Outsider;
use crate::fork_group::Part;
use crate::{Pager, SpaceHandle, lock, resident_bytes};
use answers::{Answer, Asked, Known, MANY, known_of};
pub(crate) use usage_total::UsageTotal;
use uzswap_sys::process;

/// The most processor time that a survey saves up; and how long answers count at most near the
/// limit.
const SOON: Duration = Duration::from_millis(50);

/// The first and the longest rest far below the limit while surveys find no new peak. COW copies
/// show in no other figure.
const REST_MIN: Duration = Duration::from_millis(10);
const REST_MAX: Duration = Duration::from_millis(160);

/// If the last surveys lowered the usage by this part of the limit, a survey takes less time than
/// to evict as much.
const CORRECTED_PART: u64 = 64;

/// The time after which a survey samples the usage again.
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
    updated: Instant,
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
            updated: Instant::now(),
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
        let urgency = self.urgency(used, account.near_bytes(), limit);
        let now = Instant::now();
        let earned = (now - self.updated) / urgency.times();
        self.left = (self.left + nanoseconds(earned)).min(nanoseconds(SOON));
        self.updated = now;
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
        is_between && self.ended.is_some_and(|ended| self.updated < ended + self.rest)
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
                known.is_unsure |= found.charge.is_part_unsure();
                is_any_unsure |= found.charge.is_part_unsure();
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
            groups
                .keys()
                .for_each(|number| _ = self.counted.entry(*number).or_insert(self.updated));
            self.groups = groups;
        }
        is_any_unsure
    }

    /// Whether the last answers have counted for some times as long as they took.
    fn is_old(&self, urgency: Urgency) -> bool {
        let counts_for = self.took.saturating_mul(urgency.times()).min(SOON * urgency.times() / 10);
        self.ended.is_none_or(|ended| self.updated >= ended + counts_for)
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
            let known = space.charge.group().and_then(|group| groups.get(&group.number()));
            if let Some(Known { common, .. }) = known {
                space.charge.give_back_inherited(common.most_bytes());
            }
        }
        for answer in self.answers.drain(..) {
            if let Some(Known { common, .. }) = groups.get(&answer.group) {
                answer.counts(common.members);
            }
        }
        for (number, Known { group, asked, copied, .. }) in groups {
            group.note_asked(*copied, *asked);
            self.counted.insert(*number, now);
        }
        self.ended = Some(now);
    }

    /// Queries a process; `false` if it has forked meanwhile, and no event has reported that.
    fn ask(&mut self, space: &SpaceHandle) -> bool {
        let (since, spent) = (Instant::now(), process::thread_time());
        let (files, group, copied_bytes) = {
            let space = lock(space);
            let (Some(files), Some(group)) =
                (space.process.files().cloned(), space.charge.group().cloned())
            else {
                return true;
            };
            (files, group, space.charge.copied_bytes())
        };
        let before = group.members();
        let resident = resident_bytes(space);
        let part = files.part_of_anonymous();
        self.spend(spent);
        let members = (before + group.members()) / 2;
        match part {
            None if !lock(space).process.is_ending() => return true, // the kernel does not tell
            Some(_) if members < MANY && lock(space).uffd.is_changing() => return false,
            _ => {}
        }
        let measured = part.map(|part| SurveyAnswer {
            at: since,
            resident,
            part: Part::of(part, resident, members),
            copied_bytes,
        });
        let asked = Asked::Managed(space.clone());
        self.answers.push(Answer { asked, group: group.number(), measured });
        true
    }

    /// Queries an unmanaged process that shares pages.
    fn ask_outsider(&mut self, outsider: &Arc<Outsider>) -> bool {
        let (since, spent) = (Instant::now(), process::thread_time());
        let group = outsider.group();
        let resident = outsider.resident_bytes();
        let measured =
            resident.zip(outsider.part_of_anonymous()).map(|(resident, bytes)| SurveyAnswer {
                at: since,
                resident,
                part: Part::of(bytes, resident, group.members()),
                copied_bytes: 0,
            });
        self.spend(spent);
        let asked = Asked::Outsider(Arc::clone(outsider));
        self.answers.push(Answer { asked, group: group.number(), measured });
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

fn nanoseconds(time: Duration) -> i64 {
    time.as_nanos().try_into().unwrap_or(i64::MAX)
}

/// A member of a group for tests, with 100 resident bytes.
#[cfg(test)]
fn member(group: &crate::fork_group::ForkGroup) -> SpaceHandle {
    let mut space = crate::address_space::AddressSpace::of_nothing();
    space.join_group(group, 100);
    crate::address_space::handle::SharedAddressSpace::alone(space)
}
