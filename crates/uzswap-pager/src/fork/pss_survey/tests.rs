//! Tests of surveys.

use super::*;
use crate::address_space::AddressSpace;
use crate::fork_group::ForkGroup;

#[test]
fn it_is_urgent_where_answers_lower_much_of_what_seems_in_use() {
    let mut survey = PssSurvey::new();
    let urgency = |survey: &PssSurvey| {
        [500, 501, 961, 1000, 1001].map(|used| survey.urgency(used, 960, 1000))
    };
    let usual = [Urgency::Low, Urgency::Usual, Urgency::Usual, Urgency::Usual, Urgency::High];
    assert_eq!(urgency(&survey), usual);
    survey.note_corrected(15);
    assert_eq!(urgency(&survey), usual);
    survey.note_corrected(16);
    let (low, some, high) = (Urgency::Low, Urgency::Usual, Urgency::High);
    assert_eq!(urgency(&survey), [low, some, high, high, high]);
    assert_eq!(survey.urgency(960, 960, 1000), some);
    survey.note_corrected(40);
    // The next ones lower nothing, in the end.
    (0..2).for_each(|_| survey.note_corrected(0));
    assert_eq!(urgency(&survey)[2], Urgency::High);
    survey.note_corrected(0);
    assert_eq!(urgency(&survey), usual);
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
fn answers_count_for_some_times_what_they_took() {
    let mut survey = PssSurvey::new();
    assert!(survey.is_old(Urgency::Low), "there were none");
    let ended = survey.updated;
    survey.ended = Some(ended);
    let mut is_old = |took: u64, after: u64, urgency: Urgency| {
        survey.took = Duration::from_millis(took);
        survey.updated = ended + Duration::from_millis(after);
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
    spaces.iter().for_each(|space| lock(space).process.read(std::process::id()));
    let asked = |survey: &PssSurvey| survey.groups.values().map(|known| known.asked).sum::<u32>();
    assert!(!survey.begin(&spaces, &[], Urgency::Usual));
    assert_eq!((survey.to_ask.len(), asked(&survey)), (3, 3));
    // No survey begins while members wait to be asked, or while the answers are new.
    survey.to_ask.pop();
    survey.begin(&spaces, &[], Urgency::Usual);
    assert_eq!(survey.to_ask.len(), 2);
    survey.to_ask.clear();
    (survey.ended, survey.took) = (Some(survey.updated), Duration::from_millis(1));
    survey.begin(&spaces, &[], Urgency::Usual);
    assert_eq!(survey.to_ask.len(), 0);
    survey.updated += Duration::from_millis(10);
    survey.begin(&spaces, &[], Urgency::Usual);
    assert_eq!(survey.to_ask.len(), 3);
}

#[test]
fn rests_double_until_the_peak_rises_by_a_64th() {
    let mut survey = PssSurvey::new();
    let mut rest = |peak| {
        survey.rest_after(peak);
        survey.rest.as_millis()
    };
    assert_eq!([640, 650, 660, 671].map(&mut rest), [10, 20, 40, 10]);
    assert_eq!([600, 0, 0, 0, 0, 690].map(&mut rest), [20, 40, 80, 160, 160, 10]);
    survey.updated = Instant::now();
    assert!(!survey.is_resting(), "none has ended");
    survey.ended = Some(survey.updated);
    let mut is_resting = |ms| {
        survey.updated = survey.ended.unwrap() + Duration::from_millis(ms);
        survey.is_resting()
    };
    assert_eq!([9, 10].map(&mut is_resting), [true, false]);
    is_resting(0);
    survey.to_ask.push(Asked::Managed(member(&ForkGroup::default())));
    assert!(!survey.is_resting(), "members wait to be asked");
}

#[test]
fn a_survey_that_has_asked_all_members_counts() {
    // The members have the memory of this process, which other tests fill: far below the limit.
    let pager = Arc::new(Pager::of_limit(1 << 40));
    let group = ForkGroup::default();
    for _ in 0..2 {
        let mut space = AddressSpace::of_nothing();
        space.process.read(std::process::id());
        space.join_group(&group, 100);
        pager.add_space(space);
    }
    let mut outsider = std::process::Command::new("sleep").arg("100").spawn().unwrap();
    // The kernel begins the program a moment later.
    while pager.outsiders.all().is_empty() {
        let places = process::places_of_program(outsider.id()).unwrap();
        pager.add_outsider(outsider.id(), &group, places);
    }
    let used = pager.sample();
    assert!(!group.is_counted() && used > 0);
    assert_eq!(pager.account.group_changes(), 3, "its members");
    let mut survey = PssSurvey::new();
    let mut tries = 0;
    while survey.ended.is_none() {
        survey.go_on(&pager);
        tries += 1;
        assert!(tries < 1000, "{survey:?}");
        thread::sleep(Duration::from_millis(1));
    }
    assert!(group.is_counted() && survey.counted.len() == 1 && survey.answers.is_empty());
    assert!(survey.took > Duration::ZERO && survey.peak > 0);
    let figures = pager.account.figures();
    assert!(figures.unmanaged > 0 && figures.unmanaged < figures.resident);
    // The surveyor rests now, whatever the age of the answers.
    (survey.took, survey.rest) = (Duration::ZERO, Duration::from_secs(9));
    let ended = survey.ended;
    survey.go_on(&pager);
    assert_eq!((survey.ended, survey.rest), (ended, Duration::from_secs(9)));
    // But not once a member has come.
    let _third = group.join();
    pager.sample();
    survey.go_on(&pager);
    assert!(survey.rest < Duration::from_secs(9));
    // Sharing does not matter any more.
    pager.account.note_surveyed(Some(u64::MAX));
    survey.to_ask.push(Asked::Managed(member(&group)));
    survey.rest(&pager);
    assert!(!pager.account.is_surely_over() && survey.to_ask.is_empty());
    outsider.kill().unwrap();
    outsider.wait().unwrap();
}

#[test]
fn no_member_is_asked_once_the_time_is_spent() {
    let pager = Pager::for_tests();
    let group = ForkGroup::default();
    let mut space = AddressSpace::of_nothing();
    space.process.read(std::process::id());
    space.join_group(&group, 100);
    pager.add_space(space);
    let mut survey = PssSurvey::new();
    survey.left = -nanoseconds(Duration::from_secs(1));
    survey.go_on(&pager);
    assert!(survey.ended.is_none() && survey.to_ask.len() == 1 && survey.answers.is_empty());
    // A process earns a twentieth of the time.
    survey.updated = Instant::now() - Duration::from_secs(10);
    let left = survey.left;
    survey.go_on(&pager);
    let earned = (survey.left - left) as f64 / 1e9;
    assert!((0.49..0.6).contains(&earned), "{earned} s");
}

#[test]
fn a_member_that_has_ended_answers_nothing() {
    let group = ForkGroup::default();
    let mut process = std::process::Command::new("sleep").arg("100").spawn().unwrap();
    let ended = member(&group);
    lock(&ended).process.read(process.id());
    process.kill().unwrap();
    process.wait().unwrap();
    let mut survey = PssSurvey::new();
    assert!(survey.ask(&ended));
    assert!(survey.answers.len() == 1 && survey.answers[0].measured.is_none());
    assert!(survey.ask(&member(&group)) && survey.answers.len() == 1, "an unknown process");
}
