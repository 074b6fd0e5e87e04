//! Sets of addresses.

use std::collections::BTreeMap;
use std::ops::Range;

/// A set of addresses, as ranges that do not overlap, nor touch if not put in so.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct RangeSet(BTreeMap<u64, u64>);

impl RangeSet {
    pub(crate) const fn new() -> RangeSet {
        RangeSet(BTreeMap::new())
    }

    /// Adds a range.
    pub(crate) fn insert(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        let Range { mut start, mut end } = range;
        let touched: Vec<(u64, u64)> = self
            .0
            .range(..=end)
            .rev()
            .take_while(|&(_, &other_end)| other_end >= start)
            .map(|(&start, &end)| (start, end))
            .collect();
        for (other_start, other_end) in touched {
            self.0.remove(&other_start);
            start = start.min(other_start);
            end = end.max(other_end);
        }
        self.0.insert(start, end);
    }

    /// Adds a range as one of its own, whatever it touches, in place of what was there.
    pub(crate) fn insert_apart(&mut self, range: Range<u64>) {
        self.remove(range.clone());
        self.0.extend((!range.is_empty()).then_some((range.start, range.end)));
    }

    /// Takes a range out.
    pub(crate) fn remove(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        let touched: Vec<(u64, u64)> = self
            .0
            .range(..range.end)
            .rev()
            .take_while(|&(_, &end)| end > range.start)
            .map(|(&start, &end)| (start, end))
            .collect();
        for (start, end) in touched {
            self.0.remove(&start);
            if start < range.start {
                self.0.insert(start, range.start);
            }
            if end > range.end {
                self.0.insert(range.end, end);
            }
        }
    }

    /// The ranges of which something is in `range`.
    pub(crate) fn reaching_into(&self, range: Range<u64>) -> impl Iterator<Item = Range<u64>> {
        let before = self.0.range(..range.start).next_back();
        before
            .into_iter()
            .chain(self.0.range(range.clone()))
            .map(|(&start, &end)| start..end)
            .filter(move |found| found.start.max(range.start) < found.end.min(range.end))
    }

    /// Inserts all of another set.
    pub(crate) fn insert_all(&mut self, more: &RangeSet) {
        more.iter().for_each(|part| self.insert(part));
    }

    /// These without those.
    pub(crate) fn without(&self, less: &RangeSet) -> RangeSet {
        let mut rest = self.clone();
        less.iter().for_each(|part| rest.remove(part));
        rest
    }

    /// The parts of `range` that are in the set.
    pub(crate) fn within(&self, range: Range<u64>) -> impl Iterator<Item = Range<u64>> {
        let found = self.reaching_into(range.clone());
        found.map(move |found| found.start.max(range.start)..found.end.min(range.end))
    }

    /// The parts of `range` that are not.
    pub(crate) fn outside(&self, range: Range<u64>) -> Vec<Range<u64>> {
        let mut parts = Vec::new();
        let mut at = range.start;
        for part in self.within(range.clone()) {
            parts.push(at..part.start);
            at = part.end;
        }
        parts.push(at..range.end);
        parts.retain(|part| !part.is_empty());
        parts
    }

    /// Whether some of `range` is in the set.
    pub(crate) fn has_some_of(&self, range: &Range<u64>) -> bool {
        self.within(range.clone()).next().is_some()
    }

    pub(crate) fn contains(&self, at: u64) -> bool {
        self.end_around(at).is_some()
    }

    /// The end of the range that has an address.
    pub(crate) fn end_around(&self, at: u64) -> Option<u64> {
        self.0.range(..=at).next_back().map(|(_, &end)| end).filter(|&end| at < end)
    }

    /// Addresses in all ranges.
    pub(crate) fn total(&self) -> u64 {
        self.iter().map(|range| range.end - range.start).sum()
    }

    /// How many ranges they are.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Memory that they take, in bytes, about.
    pub(crate) fn bytes(&self) -> usize {
        // Two numbers each, in nodes of the tree that may be half empty.
        self.0.len() * 32
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = Range<u64>> {
        self.0.iter().map(|(&start, &end)| start..end)
    }
}

/// Whether two ranges have an address in common.
pub(crate) fn overlap(one: &Range<u64>, other: &Range<u64>) -> bool {
    one.start < other.end && other.start < one.end
}

/// How many pages a range of them has.
pub(crate) fn count(pages: &Range<u64>) -> usize {
    (pages.end - pages.start) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_of_ranges_is_a_set_of_addresses() {
        let mut seed = 7_u64;
        let mut random = |below: u64| {
            seed = seed
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) % below
        };
        for _ in 0..300 {
            let mut ranges = RangeSet::default();
            let mut twin = [false; 64];
            for _ in 0..40 {
                let start = random(64);
                let range = start..start + random(64 - start + 1);
                let adds = random(2) == 0;
                if adds {
                    ranges.insert(range.clone());
                } else {
                    ranges.remove(range.clone());
                }
                range.for_each(|at| twin[at as usize] = adds);
                let has: Vec<u64> = ranges.iter().flatten().collect();
                let expected: Vec<u64> = (0..64).filter(|&at| twin[at as usize]).collect();
                assert_eq!(has, expected);
                let all: Vec<_> = ranges.iter().collect();
                assert_eq!((ranges.len(), ranges.bytes()), (all.len(), all.len() * 32));
                assert_eq!(ranges.total(), expected.len() as u64);
                assert!(all.windows(2).all(|pair| pair[0].end < pair[1].start), "{all:?}");
                assert!((0..64).all(|at| ranges.contains(at) == twin[at as usize]));
                let start = random(64);
                let asked = start..start + random(64 - start + 1);
                let within: Vec<u64> = ranges.within(asked.clone()).flatten().collect();
                let outside: Vec<u64> =
                    ranges.outside(asked.clone()).into_iter().flatten().collect();
                let is_in = |at: &u64| twin[*at as usize];
                let end = |at: u64| all.iter().find(|range| range.contains(&at)).map(|it| it.end);
                assert_eq!(ranges.end_around(start), end(start));
                assert_eq!(ranges.has_some_of(&asked), asked.clone().any(|at| is_in(&at)));
                assert_eq!(within, asked.clone().filter(is_in).collect::<Vec<_>>());
                assert_eq!(outside, asked.filter(|at| !is_in(at)).collect::<Vec<_>>());
            }
        }
    }

    #[test]
    fn sets_are_joined_and_taken_off() {
        let set = |parts: &[Range<u64>]| {
            let mut set = RangeSet::new();
            parts.iter().for_each(|part| set.insert(part.clone()));
            set
        };
        let mut joined = set(&[0..10, 20..30]);
        joined.insert_all(&set(&[5..12, 30..31, 40..41]));
        assert_eq!(joined, set(&[0..12, 20..31, 40..41]));
        assert_eq!(joined.without(&set(&[3..4, 11..25, 40..50])), set(&[0..3, 4..11, 25..31]));
        assert_eq!(count(&(3..8)), 5);
        let pairs =
            [(0..5, 5..9), (0..5, 4..9), (4..9, 0..5), (5..9, 0..5), (1..2, 0..5), (0..5, 1..2)];
        let overlaps = pairs.map(|(one, other)| overlap(&one, &other));
        assert_eq!(overlaps, [false, true, true, false, true, true]);
    }

    #[test]
    fn what_is_put_in_apart_stays_so() {
        let mut ranges = RangeSet::default();
        ranges.insert_apart(10..20);
        ranges.insert_apart(20..30);
        ranges.insert_apart(15..25);
        ranges.insert_apart(40..40);
        assert_eq!(ranges.iter().collect::<Vec<_>>(), [10..15, 15..25, 25..30]);
        assert_eq!(ranges.reaching_into(14..16).collect::<Vec<_>>(), [10..15, 15..25]);
        assert_eq!(ranges.reaching_into(30..40).count(), 0);
        ranges.remove(12..16);
        assert_eq!(ranges.iter().collect::<Vec<_>>(), [10..12, 16..25, 25..30]);
        ranges.insert(25..26);
        assert_eq!(ranges.iter().collect::<Vec<_>>(), [10..12, 16..30]);
    }
}
