//! Answers to a survey, and whether they count.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::address_space::{AddressSpace, SurveyAnswer};
use crate::fork::outsiders::Outsider;
use crate::fork_group::ForkGroup;
use crate::{SpaceHandle, lock};

/// How long a survey waits for answers that agree.
const LATE: Duration = Duration::from_millis(250);

/// In groups of so many members one more or less does not matter: a part is some 2 % of the shared
/// bytes off.
pub(super) const MANY: u32 = 8;

/// Difference of two members' shared bytes that counts as agreement: members grow during a survey.
const APART_BYTES: u64 = 1 << 20;

/// A process that a survey queries.
#[derive(Debug, Clone)]
pub(super) enum Asked {
    Managed(SpaceHandle),
    Outsider(Arc<Outsider>),
}

/// An answer to a survey.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) asked: Asked,
    pub(super) group: usize,
    /// `None` for a process that has ended, which the server has not noted.
    pub(super) measured: Option<SurveyAnswer>,
}

impl Answer {
    /// Whether the process is still a member of the group.
    pub(super) fn is_of_member(&self) -> bool {
        match &self.asked {
            Asked::Managed(space) => is_of_group(&lock(space), self.group),
            Asked::Outsider(_) => self.measured.is_some(),
        }
    }

    /// Applies the answer: so many members count a share of each shared page.
    pub(super) fn counts(&self, of: u32) {
        match (&self.asked, &self.measured) {
            (Asked::Managed(space), measured) => {
                let mut space = lock(space);
                match measured {
                    _ if !is_of_group(&space, self.group) => {}
                    Some(measured) => space.charge.count_part(measured, of),
                    None => space.charge.count_no_part(),
                }
            }
            (Asked::Outsider(outsider), Some(measured)) => {
                outsider.count_part(measured.resident, measured.part, of);
            }
            (Asked::Outsider(_), None) => {} // the next sample notes its end
        }
    }
}

pub(super) fn is_of_group(space: &AddressSpace, number: usize) -> bool {
    space.charge.group().is_some_and(|group| group.number() == number)
}

/// Shared bytes as the living members of a group have answered: the least and the most.
#[derive(Debug, Default)]
pub(super) struct Common {
    pub(super) members: u32,
    pub(super) bounds: Option<[u64; 2]>,
    /// A member had ended before its query.
    pub(super) has_ended: bool,
}

impl Common {
    pub(super) fn add(&mut self, answer: &Answer) {
        self.has_ended |= answer.measured.is_none();
        if let (Some(measured), true) = (&answer.measured, answer.is_of_member()) {
            let bytes = measured.part.common_bytes();
            let [least, most] = self.bounds.unwrap_or([bytes; 2]);
            self.bounds = Some([least.min(bytes), most.max(bytes)]);
            self.members += 1;
        }
    }

    pub(super) fn most_bytes(&self) -> u64 {
        self.bounds.map_or(0, |[_, most]| most)
    }

    /// Whether all answers agree. Otherwise a member has grown during the survey, or one was about
    /// to end.
    pub(super) fn is_agreed(&self) -> bool {
        let most_apart = |most: u64| most / 8 + APART_BYTES;
        self.bounds.is_none_or(|[least, most]| most - least <= most_apart(most))
    }

    /// Whether a member of a small group has ended.
    fn has_lost_one_of_few(&self) -> bool {
        self.has_ended && self.members < MANY
    }
}

/// A group at the beginning of a survey.
#[derive(Debug)]
pub(super) struct Known {
    pub(super) group: ForkGroup,
    /// Members to query.
    pub(super) asked: u32,
    /// Some members may share nothing any more.
    pub(super) is_unsure: bool,
    /// COW copies in it that no member counted.
    pub(super) copied: u64,
    /// The answers so far.
    pub(super) common: Common,
}

impl Known {
    /// Whether the answers count now; `counted` is the time of the last survey that counted, or
    /// when the group was first seen.
    pub(super) fn counts(&self, now: Instant, counted: Option<Instant>) -> bool {
        let Known { common, is_unsure, .. } = self;
        let is_late = counted.is_some_and(|counted| now >= counted + LATE);
        let is_sure = !common.has_lost_one_of_few() && (common.is_agreed() || *is_unsure);
        common.members > 0 && (is_sure || is_late)
    }
}

/// The state of a group in this survey.
pub(super) fn known_of<'a>(
    groups: &'a mut BTreeMap<usize, Known>,
    group: &ForkGroup,
) -> &'a mut Known {
    let of_it = || Known {
        group: group.clone(),
        asked: 0,
        is_unsure: false,
        copied: group.copied(),
        common: Common::default(),
    };
    groups.entry(group.number()).or_insert_with(of_it)
}

#[cfg(test)]
mod tests {
    use super::super::member;
    use super::*;
    use crate::fork_group::Part;

    fn answer(space: &SpaceHandle, group: &ForkGroup, part: Option<Part>) -> Answer {
        let measured =
            |part| SurveyAnswer { at: Instant::now(), resident: 100 << 20, part, copied_bytes: 0 };
        Answer {
            asked: Asked::Managed(Arc::clone(space)),
            group: group.number(),
            measured: part.map(measured),
        }
    }

    #[test]
    fn answers_that_never_agree_count_now_and_then() {
        let group = ForkGroup::default();
        let known = |mibs: &[u64], is_unsure: bool| {
            let mut common = Common::default();
            for mib in mibs {
                let part = Part::of(mib << 20, 100 << 20, 3);
                common.add(&answer(&member(&group), &group, Some(part)));
            }
            Known { group: group.clone(), asked: 3, is_unsure, copied: 0, common }
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
        let common = |mibs: &[Option<u64>]| {
            let mut common = Common::default();
            for mib in mibs {
                // Of three, if any, in MiB.
                let part = mib.map(|mib| Part::of(mib << 20, 100 << 20, 3));
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
        lock(&gone).charge.take_member();
        lock(&moved).charge.take_member();
        lock(&moved).join_group(&ForkGroup::default(), 100);
        let mut common = Common::default();
        for space in [gone, moved] {
            common.add(&answer(&space, &group, Some(Part::of(100, 100, 1))));
        }
        assert_eq!(common.members, 0);
    }

    #[test]
    fn an_answer_counts_for_a_process_that_is_a_member_still() {
        let group = ForkGroup::default();
        let counted = |is_member: bool, part: Option<Part>| {
            let space = member(&group);
            let answer = answer(&space, &group, part);
            lock(&space).charge.count(100);
            if !is_member {
                lock(&space).charge.take_member();
            }
            assert_eq!(answer.is_of_member(), is_member);
            answer.counts(2);
            lock(&space).charge.counted()
        };
        let part = Part::of(60 << 20, 100 << 20, 2);
        let mut common = Common::default();
        common.add(&answer(&member(&group), &group, Some(part)));
        assert_eq!(common.most_bytes(), 80 << 20);
        let (of_two, _) = part.counted_of(2);
        assert!(of_two > 100);
        assert_eq!([true, false].map(|is| counted(is, Some(part))), [of_two, 100]);
        assert_eq!([true, false].map(|is| counted(is, None)), [0, 100], "others count its pages");
    }
}
