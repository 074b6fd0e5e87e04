//! A leaf: entries of 512 neighbouring keys. Few of them are kept with their places, many in an
//! array of all 512.
//!
//! ```text
//!  capacity |    3 |   12 |   64 |  512
//!     bytes |   32 |  120 |  640 | 4096
//! ```
//!
//! A full leaf grows to the next size, 30 to 63 bytes an entry then. A leaf shrinks once the next
//! lower size would be two thirds full, so that it takes at most 98 bytes an entry.

use std::ops::Range;

use crate::AuditError;
use crate::index::{Entry, IndexError};

/// Bits of a key that are a place in a leaf.
pub(super) const LEAF_BITS: u32 = 9;
/// Places in a leaf.
pub(super) const LEAF_PLACES: usize = 1 << LEAF_BITS; // 512

/// Marks a place as not in use: no place.
const VACANT: u16 = u16::MAX;

/// Entries in any order, with their places.
#[derive(Debug)]
pub(super) struct Few<const N: usize> {
    places: [u16; N],
    entries: [Option<Entry>; N],
}

type Block<const N: usize> = Box<[Few<N>; 1]>;
type Places = Box<[Option<Entry>; LEAF_PLACES]>;

/// The entries of a leaf, and how many there are.
#[derive(Debug)]
pub(super) enum Leaf {
    UpTo3(Block<3>, u16),
    UpTo12(Block<12>, u16),
    UpTo64(Block<64>, u16),
    All(Places, u16),
}

const _: () = assert!(size_of::<Leaf>() == 16);

/// The sizes of leaves, smallest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Size {
    UpTo3,
    UpTo12,
    UpTo64,
    All,
}

impl Size {
    pub(super) const SMALLEST: Size = Size::UpTo3;

    /// Entries that a leaf of this size takes.
    pub(super) fn capacity(self) -> usize {
        match self {
            Size::UpTo3 => 3,
            Size::UpTo12 => 12,
            Size::UpTo64 => 64,
            Size::All => LEAF_PLACES,
        }
    }

    /// Bytes of memory that it takes.
    pub(super) fn bytes(self) -> usize {
        match self {
            Size::UpTo3 => size_of::<Few<3>>(),
            Size::UpTo12 => size_of::<Few<12>>(),
            Size::UpTo64 => size_of::<Few<64>>(),
            Size::All => size_of::<[Option<Entry>; LEAF_PLACES]>(),
        }
    }

    /// The next larger size; the largest is the last.
    pub(super) fn larger(self) -> Size {
        match self {
            Size::UpTo3 => Size::UpTo12,
            Size::UpTo12 => Size::UpTo64,
            Size::UpTo64 | Size::All => Size::All,
        }
    }

    /// The next smaller size; the smallest is the last.
    fn smaller(self) -> Size {
        match self {
            Size::UpTo3 | Size::UpTo12 => Size::UpTo3,
            Size::UpTo64 => Size::UpTo12,
            Size::All => Size::UpTo64,
        }
    }

    /// The most entries for which a smaller size does: it keeps a third free. An entry alone needs
    /// no leaf.
    #[inline]
    fn sparse_entries(self) -> usize {
        match self {
            Size::UpTo3 => 1,
            larger => larger.smaller().capacity() / 3 * 2,
        }
    }
}

/// The same for a leaf of any size with few entries, and something else for one with all places.
macro_rules! by_size {
    ($leaf:expr, ($all:ident, $all_used:ident) => $on_all:expr,
     ($few:ident, $used:ident) => $on_few:expr $(,)?) => {
        match $leaf {
            Leaf::All($all, $all_used) => $on_all,
            Leaf::UpTo3($few, $used) => $on_few,
            Leaf::UpTo12($few, $used) => $on_few,
            Leaf::UpTo64($few, $used) => $on_few,
        }
    };
}

/// A leaf without room for another entry; nothing was changed.
#[derive(Debug)]
pub(super) struct IsFull;

impl<const N: usize> Few<N> {
    fn boxed() -> Result<Block<N>, IndexError> {
        let mut block = Vec::new();
        block.try_reserve_exact(1).map_err(|_| IndexError::NoMemory)?;
        block.push(Few { places: [VACANT; N], entries: [None; N] });
        Ok(block.into_boxed_slice().try_into().expect("made with this length"))
    }

    /// Where the entry of a place is. Looks at all of them, without a branch.
    #[inline]
    fn find(&self, place: usize) -> Option<usize> {
        let mut found = 0;
        for (number, &held) in (1..).zip(&self.places) {
            found |= if held == place as u16 { number } else { 0_u16 };
        }
        Some(usize::from(found.checked_sub(1)?))
    }

    fn replace(
        &mut self,
        used: &mut u16,
        place: usize,
        entry: Entry,
    ) -> Result<Option<Entry>, IsFull> {
        if let Some(found) = self.find(place) {
            return Ok(self.entries[found].replace(entry));
        }
        let free = usize::from(*used);
        if free == N {
            return Err(IsFull);
        }
        (self.places[free], self.entries[free]) = (place as u16, Some(entry)); // < 512
        *used += 1;
        Ok(None)
    }

    /// Takes the entry at a number out; the last one gets that number.
    fn swap_remove(&mut self, used: &mut u16, number: usize) -> Option<Entry> {
        *used -= 1;
        let last = usize::from(*used);
        self.places.swap(number, last);
        self.entries.swap(number, last);
        self.places[last] = VACANT;
        self.entries[last].take()
    }

    fn take_places(
        &mut self,
        used: &mut u16,
        places: Range<usize>,
        max: usize,
        taken: &mut dyn FnMut(usize, Entry),
    ) -> usize {
        let mut count = 0;
        for number in (0..usize::from(*used)).rev() {
            let place = usize::from(self.places[number]);
            if count < max
                && places.contains(&place)
                && let Some(entry) = self.swap_remove(used, number)
            {
                taken(place, entry);
                count += 1;
            }
        }
        count
    }

    fn for_each(&self, visit: &mut dyn FnMut(usize, Entry)) {
        for (&place, entry) in self.places.iter().zip(&self.entries) {
            if let Some(entry) = *entry {
                visit(usize::from(place), entry);
            }
        }
    }

    fn audit(&self, used: usize) -> Result<(), AuditError> {
        for (number, (&place, entry)) in self.places.iter().zip(&self.entries).enumerate() {
            let is_place = usize::from(place) < LEAF_PLACES;
            if (is_place, entry.is_some()) != (number < used, number < used) {
                return Err(format!("R2: {used} entries, and number {number} is at {place}").into());
            }
            if is_place && self.places[..number].contains(&place) {
                return Err(format!("R2: two entries at {place}").into());
            }
        }
        Ok(())
    }
}

fn all_places() -> Result<Places, IndexError> {
    let mut entries = Vec::new();
    entries.try_reserve_exact(LEAF_PLACES).map_err(|_| IndexError::NoMemory)?;
    entries.resize(LEAF_PLACES, None);
    Ok(entries.into_boxed_slice().try_into().expect("made with this length"))
}

#[inline]
fn replace_of_all(all: &mut Places, used: &mut u16, place: usize, entry: Entry) -> Option<Entry> {
    let replaced = all[place].replace(entry);
    *used += u16::from(replaced.is_none());
    replaced
}

impl Leaf {
    /// An empty leaf, whose memory the caller has charged.
    ///
    /// # Errors
    ///
    /// [`IndexError::NoMemory`].
    pub(super) fn new(size: Size) -> Result<Leaf, IndexError> {
        Ok(match size {
            Size::UpTo3 => Leaf::UpTo3(Few::boxed()?, 0),
            Size::UpTo12 => Leaf::UpTo12(Few::boxed()?, 0),
            Size::UpTo64 => Leaf::UpTo64(Few::boxed()?, 0),
            Size::All => Leaf::All(all_places()?, 0),
        })
    }

    pub(super) fn size(&self) -> Size {
        match self {
            Leaf::UpTo3(..) => Size::UpTo3,
            Leaf::UpTo12(..) => Size::UpTo12,
            Leaf::UpTo64(..) => Size::UpTo64,
            Leaf::All(..) => Size::All,
        }
    }

    /// The smallest size that keeps a third free.
    pub(super) fn fitting_size(&self) -> Size {
        let mut size = self.size();
        while size != Size::SMALLEST && self.used() <= size.sparse_entries() {
            size = size.smaller();
        }
        size
    }

    /// Whether its entries could do with less memory.
    #[inline]
    pub(super) fn is_sparse(&self) -> bool {
        match self {
            Leaf::All(_, used) => usize::from(*used) <= Size::All.sparse_entries(),
            few => few.used() <= few.size().sparse_entries(),
        }
    }

    /// Entries that it holds.
    pub(super) fn used(&self) -> usize {
        usize::from(*by_size!(self, (_all, used) => used, (_few, used) => used))
    }

    #[inline]
    pub(super) fn get(&self, place: usize) -> Option<Entry> {
        match self {
            Leaf::All(all, _) => all[place],
            few => few.get_of_few(place),
        }
    }

    /// Apart, so that a look-up of a dense key is short.
    #[inline(never)]
    fn get_of_few(&self, place: usize) -> Option<Entry> {
        by_size!(
            self,
            (all, _used) => all[place],
            (few, _used) => few[0].entries[few[0].find(place)?],
        )
    }

    /// Puts an entry at its place; the one it replaced.
    ///
    /// # Errors
    ///
    /// [`IsFull`]; never where the place has an entry, nor in the largest size.
    #[inline]
    pub(super) fn replace(&mut self, place: usize, entry: Entry) -> Result<Option<Entry>, IsFull> {
        match self {
            Leaf::All(all, used) => Ok(replace_of_all(all, used, place, entry)),
            few => few.replace_of_few(place, entry),
        }
    }

    #[inline(never)]
    fn replace_of_few(&mut self, place: usize, entry: Entry) -> Result<Option<Entry>, IsFull> {
        by_size!(
            self,
            (all, used) => Ok(replace_of_all(all, used, place, entry)),
            (few, used) => few[0].replace(used, place, entry),
        )
    }

    /// Puts an entry at a place without one, for which there must be room.
    pub(super) fn put(&mut self, place: usize, entry: Entry) {
        let put = self.replace(place, entry);
        assert!(matches!(put, Ok(None)), "place {place}: {put:?}");
    }

    /// Takes the entry of a place if `wanted` says so.
    #[inline]
    pub(super) fn take_if(
        &mut self,
        place: usize,
        wanted: impl Fn(Entry) -> bool,
    ) -> Option<Entry> {
        by_size!(
            self,
            (all, used) => {
                let taken = all[place].take_if(|entry| wanted(*entry))?;
                *used -= 1;
                Some(taken)
            },
            (few, used) => {
                let few = &mut few[0];
                let number = few.find(place)?;
                few.entries[number].filter(|entry| wanted(*entry))?;
                few.swap_remove(used, number)
            },
        )
    }

    /// Takes entries at `places`, at most `max`, in no particular order; how many.
    pub(super) fn take_places(
        &mut self,
        places: Range<usize>,
        max: usize,
        taken: &mut dyn FnMut(usize, Entry),
    ) -> usize {
        by_size!(
            self,
            (all, used) => {
                let mut count = 0;
                for place in places {
                    if count == max {
                        break;
                    }
                    if let Some(entry) = all[place].take() {
                        taken(place, entry);
                        count += 1;
                    }
                }
                *used -= count as u16; // <= 512
                count
            },
            (few, used) => few[0].take_places(used, places, max, taken),
        )
    }

    /// Calls `visit` for each entry with its place, in no particular order.
    pub(super) fn for_each(&self, mut visit: impl FnMut(usize, Entry)) {
        by_size!(
            self,
            (all, _used) => {
                for (place, entry) in all.iter().enumerate() {
                    if let Some(entry) = *entry {
                        visit(place, entry);
                    }
                }
            },
            (few, _used) => few[0].for_each(&mut visit),
        );
    }

    /// Whether it holds an entry at one of `places`.
    pub(super) fn has_any(&self, places: Range<usize>) -> bool {
        by_size!(
            self,
            (all, _used) => all[places].iter().any(Option::is_some),
            (few, used) => few[0].places[..usize::from(*used)]
                .iter()
                .any(|&place| places.contains(&usize::from(place))),
        )
    }

    /// Checks R1 and R2.
    pub(super) fn audit(&self) -> Result<(), AuditError> {
        let mut entries = 0;
        self.for_each(|_, _| entries += 1);
        if entries == 0 || entries != self.used() {
            return Err(format!("R1: {entries} entries, {} counted", self.used()).into());
        }
        by_size!(self, (_all, _used) => Ok(()), (few, used) => few[0].audit(usize::from(*used)))
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU64;

    use super::*;

    const SIZES: [Size; 4] = [Size::UpTo3, Size::UpTo12, Size::UpTo64, Size::All];

    fn entry(place: usize) -> Entry {
        Entry(NonZeroU64::new(place as u64 + 1).expect("over 0"))
    }

    /// Places one far from the other, each once.
    fn places(count: usize) -> impl DoubleEndedIterator<Item = usize> {
        (0..count).map(|n| n * 185 % LEAF_PLACES)
    }

    #[test]
    fn a_leaf_of_any_size_takes_and_loses_as_many_entries_as_it_says() {
        for size in SIZES {
            let mut leaf = Leaf::new(size).unwrap();
            assert_eq!((leaf.size(), leaf.used()), (size, 0));
            assert!(leaf.audit().is_err(), "{size:?}: an empty leaf");
            for place in places(size.capacity()) {
                assert_eq!(leaf.get(place), None);
                assert_eq!(leaf.replace(place, entry(1)).unwrap(), None, "{size:?}");
                assert_eq!(leaf.replace(place, entry(place)).unwrap(), Some(entry(1)));
                assert!(leaf.has_any(place..place + 1));
                leaf.audit().unwrap();
            }
            if size != Size::All {
                let absent = places(size.capacity() + 1).next_back().unwrap();
                assert!(leaf.replace(absent, entry(1)).is_err(), "{size:?}");
                assert!(!leaf.has_any(absent..absent + 1) && leaf.get(absent).is_none());
                assert_eq!(leaf.take_if(absent, |_| true), None);
            }
            assert_eq!(leaf.used(), size.capacity());
            for place in places(size.capacity()) {
                leaf.audit().unwrap();
                assert_eq!(leaf.take_if(place, |held| held != entry(place)), None);
                assert_eq!(leaf.take_if(place, |held| held == entry(place)), Some(entry(place)));
                assert_eq!((leaf.get(place), leaf.take_if(place, |_| true)), (None, None));
            }
            assert_eq!(leaf.used(), 0, "{size:?}");
        }
    }

    #[test]
    fn entries_are_taken_from_places_up_to_a_number() {
        for size in SIZES {
            for max in [0, 1, 2, 7, usize::MAX] {
                let mut leaf = Leaf::new(size).unwrap();
                for place in places(size.capacity()) {
                    leaf.replace(place, entry(place)).unwrap();
                }
                let range = 100..300;
                let inside = places(size.capacity()).filter(|place| range.contains(place)).count();
                let mut taken = Vec::new();
                let count = leaf.take_places(range.clone(), max, &mut |place, held| {
                    assert_eq!(held, entry(place));
                    taken.push(place);
                });
                assert_eq!((count, taken.len()), (inside.min(max), count), "{size:?}, {max}");
                assert_eq!(leaf.used(), size.capacity() - count);
                let mut left = Vec::new();
                leaf.for_each(|place, held| {
                    assert_eq!(held, entry(place));
                    left.push(place);
                });
                taken.sort_unstable();
                taken.dedup();
                assert!(taken.len() == count && taken.iter().all(|place| range.contains(place)));
                left.extend(taken);
                left.sort_unstable();
                let mut all: Vec<usize> = places(size.capacity()).collect();
                all.sort_unstable();
                assert_eq!(left, all, "{size:?}, {max}");
            }
        }
    }

    #[test]
    fn sizes_follow_each_other_and_leave_room_in_between() {
        let mut size = Size::SMALLEST;
        for expected in SIZES {
            assert_eq!(size, expected);
            let larger = size.larger();
            if larger != size {
                assert_eq!(larger.smaller(), size);
                assert_eq!(larger.sparse_entries(), size.capacity() / 3 * 2);
                // One that has just grown, or is about to shrink.
                assert!(larger.bytes() <= 64 * (size.capacity() + 1), "{larger:?}");
                assert!(larger.bytes() <= 98 * (larger.sparse_entries() + 1), "{larger:?}");
            }
            size = larger;
        }
        assert_eq!((Size::All.larger(), Size::SMALLEST.sparse_entries()), (Size::All, 1));
        assert_eq!(Size::SMALLEST.bytes(), 32);
    }
}
