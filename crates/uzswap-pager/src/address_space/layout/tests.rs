//! Tests of pending changes, of a child and at a fork.

use super::*;
use crate::address_space::resolve::Piece;
use crate::page_table::UNKNOWN;

fn page(number: u64) -> Range<u64> {
    number * PAGE..(number + 1) * PAGE
}

#[test]
fn a_child_has_the_pending_drops_and_unknown_pages_of_its_parent() {
    let mut parent = Layout::default();
    parent.note_removing(0..2 * PAGE);
    parent.note_missing(1);
    parent.note_registered_since(&[page(4)]);
    parent.poison_later.insert(page(6));
    let mut child = Layout::default();
    child.inherit(&parent);
    let set = |number| runs_of(std::iter::once(number));
    assert_eq!((child.removing(), child.registered_since()), (&set(0), &set(4)));
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
        child.inherit_undecided(Uncertain::default());
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
fn the_kernel_tells_nothing_of_an_unknown_process() {
    let mut space = AddressSpace::of_nothing();
    let kernel = space.kernel();
    assert!(kernel.marked_in(page(0)).is_none() && kernel.registered().is_none());
    assert!(!kernel.is_changing() && !space.leave_growth_to_kernel(0, 1));
    space.process.read(std::process::id());
    let kernel = space.kernel();
    assert_eq!(kernel.marked_in(page(0)), Some(RangeSet::new()));
    assert_eq!(kernel.registered(), Some(RangeSet::new()));
}

#[test]
fn pages_ranges_and_late_markers_follow_a_move() {
    let mut space = AddressSpace::of_nothing();
    space.registration.insert(10 * PAGE..14 * PAGE);
    let entry = |place| Entry { place, heat: 2, ..UNKNOWN };
    space.table.set(10, entry(Place::Stored(1)));
    space.table.set(11, entry(Place::Staged(3)));
    space.staging.set_owner(3, 11);
    space.table.set(12, entry(Place::Program));
    space.mark_later(page(11));
    space.changed(Change::Moved(10 * PAGE..14 * PAGE, 30 * PAGE));
    assert!(space.settle() && space.layout.changes().is_empty());
    let places = [10, 11, 12, 30, 31, 32].map(|page| space.table.get(page));
    let [stored, staged] = [Place::Stored(1), Place::Staged(3)].map(entry);
    assert_eq!(places, [UNKNOWN, UNKNOWN, UNKNOWN, stored, staged, entry(Place::Program)]);
    assert_eq!(space.staging.owner(3), Some(31));
    let registered = space.registration.ranges().iter().collect::<Vec<_>>();
    assert_eq!((registered.len(), registered[0].clone()), (1, 30 * PAGE..34 * PAGE));
    assert_eq!(space.markers.marked, runs_of(std::iter::once(31)));
}

#[test]
fn a_dropped_page_is_forgotten_and_not_evicted_until_it_is_missing() {
    let mut space = AddressSpace::of_nothing();
    for number in [10, 11] {
        space.table.set(number, Entry { place: Place::Stored(number as u32), ..UNKNOWN });
    }
    space.changed(Change::Dropped(page(10)));
    assert!(space.settle());
    assert_eq!(space.layout.released(), [10]);
    assert_eq!(space.table.get(11).place, Place::Stored(11));
    assert_eq!(*space.layout.removing(), runs_of(std::iter::once(10)));
    space.forget_all();
    assert_eq!((space.table.stored_pages(), space.layout.take_released()), (0, vec![10, 11]));
}

#[test]
fn an_evicted_page_is_kept_unless_it_is_dropped_where_it_is() {
    let mut space = AddressSpace::of_nothing();
    let kept = [(10..12, 10), (30..31, 20)].map(|(at, was): (Range<u64>, u64)| Piece {
        start: at.start * PAGE,
        end: at.end * PAGE,
        was: was * PAGE,
    });
    let resolved = Resolved { kept: kept.to_vec(), ..Resolved::default() };
    let entry = |slot| Entry { place: Place::Stored(slot), ..UNKNOWN };
    let evicted = [(10, 1), (11, 2), (20, 3), (40, 4)].map(|(page, slot)| (page, entry(slot)));
    space.place(evicted.to_vec(), &resolved, &runs_of([10, 20, 30].into_iter()));
    assert_eq!([11, 30].map(|page| space.table.get(page)), [2, 3].map(entry));
    assert_eq!(space.layout.released(), [1, 4], "one was dropped, and one has no marker");
    let registered = space.registration.ranges().iter().map(|part| part.start / PAGE);
    assert_eq!(registered.collect::<Vec<_>>(), [11, 30]);
}
