//! Tests of pending changes, of a child and at a fork.

use super::*;
use crate::page_table::UNKNOWN;

fn page(number: u64) -> Range<u64> {
    number * PAGE..(number + 1) * PAGE
}

#[test]
fn a_child_has_the_pending_drops_and_unknown_pages_of_its_parent() {
    let mut parent = Layout::default();
    parent.note_removing(0..2 * PAGE);
    parent.note_missing(0);
    parent.note_registered_since(&[page(4)]);
    parent.poison_later.insert(page(6));
    let mut child = Layout::default();
    child.inherit(&parent);
    let set = |number| runs_of(std::iter::once(number));
    assert_eq!((child.removing(), child.registered_since()), (&set(1), &set(4)));
    child.move_unknown(&[Move { from: page(6), to: 9 * PAGE, is_optional: false }]);
    assert_eq!([6, 7, 9].map(|at| child.awaits_poison(at * PAGE)), [true, false, true]);
    child.note_poisoned(page(6));
    assert_eq!(child.next_to_poison(), Some(page(9)));
    child.note_poisoned(page(9));
    assert_eq!(child.next_to_poison(), None);
}

#[test]
fn changes_of_the_parent_count_until_the_child_is_decided() {
    let mut child = Layout::default();
    child.note_change_of_parent(Change::Unmapped(page(0)));
    child.note_pending_of_parent();
    assert!(child.is_settled() && child.take_undecided().is_none());
    for are_some_pending in [false, true] {
        let (answers, changes) = (Vec::new(), Changes::default());
        child.inherit_undecided(Uncertain { answers, changes, are_some_pending: false });
        assert!(child.is_undecided() && !child.is_settled());
        child.note_change_of_parent(Change::Unmapped(page(0)));
        if are_some_pending {
            child.note_pending_of_parent();
        }
        let of_parent = child.take_undecided().unwrap();
        assert_eq!(of_parent.are_some_pending, are_some_pending);
        assert!(!of_parent.changes.is_empty() && child.is_settled());
    }
}

#[test]
fn a_process_of_one_thread_settles_its_changes_at_a_fork() {
    let released = |pid: Option<u32>| {
        let mut space = AddressSpace::of_nothing();
        pid.into_iter().for_each(|pid| space.process.read(pid));
        space.table.set(5, Entry { place: Place::Stored(3), ..UNKNOWN });
        space.changed(Change::Unmapped(page(5)));
        assert!(space.layout.has_changed(&page(5)) && !space.layout.has_changed(&page(6)));
        space.settle_at_fork();
        assert_eq!(space.layout.is_settled(), space.layout.released() == [3]);
        space.layout.take_released()
    };
    let mut process = std::process::Command::new("sleep").arg("100").spawn().unwrap();
    assert_eq!(released(Some(process.id())), [3]);
    process.kill().unwrap();
    process.wait().unwrap();
    assert!(released(None).is_empty(), "its threads are not known");
    let threads = [(); 2].map(|()| std::thread::spawn(std::thread::park));
    let several = released(Some(std::process::id()));
    assert!(several.is_empty(), "another may have changed it");
    for thread in threads {
        thread.thread().unpark();
        thread.join().unwrap();
    }
}
