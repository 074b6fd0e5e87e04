//! Tests of commands to the helper.

use std::sync::atomic::Ordering::Relaxed;

use super::*;
use crate::address_space::changes::Change;
use crate::address_space::for_tests::{STAGING, WRITTEN, Written};
use crate::address_space::pages;
use crate::program::procfs::Size;

/// The first of a hundred registered pages.
const FIRST: u64 = 1 << 20;

fn registered() -> AddressSpace {
    let mut space = AddressSpace::with_helper(STAGING);
    space.registration.insert(FIRST * PAGE..(FIRST + 100) * PAGE);
    space
}

/// The runs of the command: first page after `first`, pages, first page of staging.
fn runs(space: &AddressSpace, first: u64) -> Vec<(u64, usize, usize)> {
    let command = space.commands.current().unwrap();
    command.runs.iter().map(|run| (run.page - first, run.count, run.staged)).collect()
}

fn empty_batches(space: &mut AddressSpace) -> usize {
    std::iter::from_fn(|| space.staging.take_empty()).count()
}

#[test]
fn a_command_names_registered_pages_of_the_program() {
    let with_holes = || {
        let mut space = registered();
        space.table.set(FIRST + 1, Entry { place: Place::Stored(0), ..UNKNOWN });
        space.layout.note_removing((FIRST + 4) * PAGE..(FIRST + 5) * PAGE);
        space.unevictable.keep_end_word((FIRST + 6) * PAGE);
        // The kernel refused it when it was shared.
        space.unevictable.add((FIRST + 8) * PAGE..(FIRST + 9) * PAGE);
        space
    };
    let wanted = [(FIRST, 10), (FIRST + 98, 4)];
    let mut space = with_holes();
    assert!(space.give_move_shared(&wanted, false));
    assert_eq!(runs(&space, FIRST), [(0, 1, 0), (2, 2, 1), (5, 1, 3), (7, 3, 4), (98, 2, 7)]);
    let command = space.commands.current().unwrap();
    assert_eq!((command.work, command.batch, command.anew), (work::OWN_AND_MOVE, Some(0), None));
    assert!(!space.give_move_shared(&wanted, false), "the helper has a command");
    assert_eq!(empty_batches(&mut space), 7);
    let mut space = with_holes();
    assert!(space.give_move_shared(&wanted[..1], true));
    let by_page = [(0, 1, 0), (2, 1, 1), (3, 1, 2), (5, 1, 3), (7, 1, 4), (8, 1, 5), (9, 1, 6)];
    assert_eq!(runs(&space, FIRST), by_page);
    let may_leave = (0..10).filter(|page| space.may_leave(FIRST + page));
    assert_eq!(may_leave.collect::<Vec<_>>(), [0, 2, 3, 5, 7, 9]);
}

#[test]
fn no_command_is_given_without_pages_or_while_they_may_not_move() {
    let states: [fn(&mut AddressSpace); 3] = [
        |space| space.unevictable.expect_words(),
        |space| space.prepare_fork(),
        |space| space.changed(Change::Unmapped(0..PAGE)),
    ];
    for make in states {
        let mut space = registered();
        assert!(space.may_move());
        make(&mut space);
        assert!(!space.may_move() && !space.give_move_shared(&[(FIRST, 1)], false));
    }
    let mut space = registered();
    assert!(!space.give_move_shared(&[], false) && !space.give_move(9, false).unwrap());
    assert!(!space.give_move_shared(&[(FIRST + 100, 1)], false), "it is not registered");
    // The helper frees a drained batch all the same.
    space.drain_batch(3);
    assert!(space.give_move_shared(&[(FIRST + 100, 1)], false));
    let command = space.commands.current().unwrap();
    assert_eq!((command.batch, command.drops, command.runs.len()), (None, Some(3), 0));
    assert_eq!(empty_batches(&mut space), 8);
}

#[test]
fn the_hand_finds_resident_and_exclusive_pages() {
    let written = Written::new();
    for (most, alone) in [(2, false), (9, false), (2, true), (9, true)] {
        let mut space = AddressSpace::with_helper(STAGING);
        space.registration.insert(written.start..written.start + 2 * WRITTEN * PAGE);
        assert!(!space.give_move(0, alone).unwrap());
        space.staging.take_empty();
        assert!(space.give_move(most, alone).unwrap());
        assert_eq!(runs(&space, written.page()), [(0, most.min(WRITTEN as usize), BATCH_PAGES)]);
        assert_eq!(space.commands.current().unwrap().work, work::MOVE);
    }
}

#[test]
fn the_pages_around_a_fault_are_none_of_the_command() {
    let mut space = registered();
    let window = |space: &AddressSpace, page: u64, from: u64, to: u64| {
        let window = space.not_commanded(FIRST + page, FIRST + from..FIRST + to);
        (window.start - FIRST, window.end - FIRST)
    };
    assert_eq!(window(&space, 16, 8, 24), (8, 24));
    assert!(space.give_move_shared(&[(FIRST + 10, 4), (FIRST + 20, 2)], false));
    assert_eq!(window(&space, 16, 8, 24), (14, 20));
    assert_eq!(window(&space, 5, 2, 7), (2, 7));
    assert_eq!(window(&space, 9, 2, 30), (2, 10));
    assert_eq!(window(&space, 22, 2, 30), (22, 30));
    assert_eq!(
        [10, 13, 21].map(|page| window(&space, page, 8, 24)),
        [10, 13, 21].map(|it| (it, it))
    );
}

#[test]
fn moved_pages_are_noted_in_part_and_once_the_command_is_done() {
    let mut space = registered();
    // A batch of five pages is drained: its memory was in the program's charge.
    let drained = space.staging.take_empty().unwrap();
    space.staging.fill(drained, 5, false);
    space.drain_batch(drained);
    let size = Size { mapped: 9, anonymous: 9, others: 0 };
    space.charge.take_unobserved_growth(size);
    assert!(space.give_move_shared(&[(FIRST, 4)], false));
    assert!(space.commands.free_helper().is_none());
    let helper = space.commands.last_helper().cloned().unwrap();
    let run = &helper.control().runs[0];
    let first = space.commands.current().unwrap().runs[0].staged as u32;
    assert_eq!(first as usize, BATCH_PAGES, "the second batch");
    run.moved.store(3 * PAGE, Relaxed);
    run.marked.store(2 * PAGE, Relaxed);
    space.collect(false);
    assert_eq!(space.table.staged_pages(), 0);
    space.collect(true);
    assert_eq!(space.commands.current().unwrap().runs[0].moved, 3);
    let owners = |space: &AddressSpace| [0, 1, 2, 3].map(|at| space.staging.owner(first + at));
    assert_eq!(owners(&space), [Some(FIRST), Some(FIRST + 1), Some(FIRST + 2), None]);
    assert_eq!(space.table.get(FIRST + 2).place, Place::Staged(first + 2));
    run.moved.store(4 * PAGE, Relaxed);
    helper.control().done.store(space.commands.current().unwrap().number, Relaxed);
    let filled = space.filled_batches();
    let (moved, freed) = space.dropped();
    assert_eq!((moved.pages, moved.offered, freed), (4, 4, 5));
    assert_eq!((space.filled_batches(), space.table.staged_pages()), (filled + 1, 4));
    assert!(space.commands.free_helper().is_some() && moved.replaced.is_none());
    // The helper has marked two entries.
    let marked = space.markers.marked.iter().flat_map(pages);
    assert_eq!(marked.collect::<Vec<_>>(), [FIRST + 2, FIRST + 3]);
    assert_eq!(space.charge.take_unobserved_growth(size), 5 * PAGE as i64);
    assert_eq!(space.dropped().0.pages, 0, "they are noted once");
}

#[test]
fn a_command_that_is_broken_off_has_moved_the_pages_in_staging() {
    let written = Written::new();
    let staged = |work, moved, is_reported: usize| {
        let mut space = AddressSpace::with_helper(written.start);
        let helper = space.commands.free_helper().unwrap();
        let mut run = MoveRun::new(FIRST, 0);
        (run.count, run.moved) = (2 * WRITTEN as usize, moved);
        space.give(&helper, work, Some((0, READ_WRITE)), vec![run]);
        helper.control().runs[0].moved.store(is_reported as u64 * PAGE, Relaxed);
        space.break_off().unwrap();
        assert!(space.commands.free_helper().is_some());
        space.table.staged_pages()
    };
    assert_eq!(staged(work::MOVE, 0, 0), 3);
    assert_eq!(staged(work::MOVE, 2, 0), 1, "two were noted before");
    assert_eq!(staged(work::OWN_AND_MOVE, 0, 6), 3);
    assert_eq!(staged(work::REMAP, 0, 2), 2, "it tells each page");
    assert_eq!(staged(work::DROP_FREED, 0, 0), 0);
    assert!(AddressSpace::of_nothing().break_off().is_ok());
}

#[test]
fn a_batch_is_filled_freed_or_empty_by_the_answers() {
    let done = |work, moved, errno, anew: Option<Rights>| {
        let mut space = registered();
        let mut run = MoveRun::new(FIRST + 10, 0);
        (run.count, run.moved) = (8, moved);
        space.table.set(FIRST + 10 + moved as u64, Entry { heat: 3, ..UNKNOWN });
        let batch = space.staging.take_empty();
        let command = Command { number: 1, work, anew, batch, runs: vec![run], drops: None };
        space.done(command, std::iter::once(errno));
        space
    };
    let refused = |work, errno| {
        let mut space = done(work, 3, errno, None);
        let stay = (FIRST..FIRST + 100).filter(|page| !space.may_leave(*page)).count();
        let Moved { pages, offered, refused, replaced, .. } = space.commands.take_result().0;
        assert_eq!((pages, offered), (3, 8));
        assert_eq!(replaced, (work == work::REMAP).then_some((FIRST + 10) * PAGE));
        (refused.len(), stay)
    };
    for errno in [libc::EINVAL, libc::EACCES, libc::EPERM] {
        assert_eq!(refused(work::MOVE, errno), (1, 0));
        let is_special = errno != libc::EACCES;
        assert_eq!(refused(work::REMAP, errno), (0, if is_special { 8 } else { 0 }));
    }
    assert_eq!(refused(work::MOVE, 0), (0, 0));
    let pinned = done(work::OWN_AND_MOVE, 7, libc::EBUSY, None).commands.take_result().0;
    assert!(pinned.shared.is_empty(), "no page is after it");
    let heat = |errno| done(work::MOVE, 3, errno, None).table.get(FIRST + 13).heat;
    assert_eq!([libc::ENOENT, libc::EAGAIN].map(heat), [0, 3], "the page is gone");

    let batches = |moved, errno| {
        let mut space = done(work::MOVE, moved, errno, None);
        (space.filled_batches(), space.has_drained_batch(), empty_batches(&mut space))
    };
    assert_eq!(batches(3, 0), (1, false, 7));
    assert_eq!(batches(0, 0), (0, false, 8));
    assert_eq!(batches(0, libc::EEXIST), (0, true, 7), "mlockall has filled it");
    let executable = READ_WRITE | libc::PROT_EXEC as Rights;
    let rights = |work| {
        let space = done(work, 3, 0, Some(executable));
        [READ_WRITE, executable].map(|rights| space.staging.has_rights(0, rights))
    };
    assert_eq!(rights(work::MOVE), [false, true]);
    assert_eq!(rights(work::REMAP), [false; 2], "runs keep the rights of their mappings");
}

#[test]
fn refused_moves_are_distinguished_by_their_errno() {
    let done = |work, moved, errno| {
        let mut space = AddressSpace::of_nothing();
        space.registration.insert(0..100 * PAGE);
        let mut run = MoveRun::new(10, 0);
        (run.count, run.moved) = (8, moved);
        let runs = vec![run];
        let command = Command { number: 1, work, anew: None, batch: None, runs, drops: None };
        space.done(command, std::iter::once(errno));
        let stay: Vec<u64> = (10..18).filter(|page| !space.may_leave(*page)).collect();
        let has_no_memory = space.commands.has_no_memory();
        (space.commands.take_result().0.shared, stay, has_no_memory)
    };
    // The page may be shared, and is made the program's own first.
    assert_eq!(done(work::MOVE, 3, libc::EBUSY), (vec![(13, 5)], vec![], false));
    // The page is pinned, and those after it are tried one by one.
    assert_eq!(done(work::OWN_AND_MOVE, 3, libc::EBUSY), (vec![(14, 4)], vec![13], false));
    // The kernel refuses more mappings, and nothing went.
    assert_eq!(done(work::MOVE, 0, libc::ENOMEM), (vec![], vec![], true));
    assert_eq!(done(work::MOVE, 3, libc::ENOMEM), (vec![], vec![], false));
}

#[test]
fn pages_are_marked_again_where_their_protection_has_ended() {
    let marked_of = |unprotected: Range<u64>| -> Vec<Range<u64>> {
        let mut space = AddressSpace::of_nothing();
        let mut run = MoveRun::new(10, 0);
        run.count = 4;
        let (number, work, runs) = (1, work::MOVE, vec![run]);
        let command = Command { number, work, anew: None, batch: None, runs, drops: None };
        space.commands.put_back(command);
        let _ = space.unprotect(unprotected, false); // its userfaultfd is none
        let mut command = space.commands.take_current().unwrap();
        // The helper has moved three pages, and marked two of them.
        space.note_moved(&mut command, std::iter::once((3, 2)));
        space.markers.marked.iter().map(pages).collect()
    };
    assert_eq!(marked_of(14 * PAGE..20 * PAGE), vec![12..13]);
    assert_eq!(marked_of(8 * PAGE..11 * PAGE), vec![10..13]);
}
