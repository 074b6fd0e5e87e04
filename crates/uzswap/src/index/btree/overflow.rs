//! Handles one pair too many for a full node.
//!
//! A neighbour with room takes some; otherwise the node is split. The place depends on whether a
//! run of keys is coming in: an ascending run leaves full nodes behind it, a descending one before
//! it, and random keys leave space everywhere.

/// A full node that is to take one more pair.
#[derive(Debug, Clone, Copy)]
pub(super) struct Overflow {
    /// The most pairs a node has, which is how many this one has.
    pub(super) capacity: usize,
    /// The fewest that the first and the second node may have after a split.
    pub(super) fewest: (usize, usize),
    /// Where in the node the pair is to go.
    pub(super) place: usize,
    /// Where the one before went.
    pub(super) last_insert: Option<usize>,
    /// Pairs of the neighbour before, if there is one.
    pub(super) left: Option<usize>,
    /// Pairs of the neighbour behind, if there is one.
    pub(super) right: Option<usize>,
}

/// Two nodes side by side share their pairs, the new one among them; how many the first one has
/// then.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Remedy {
    /// The neighbour before and this one.
    Left(usize),
    /// This one and the neighbour behind.
    Right(usize),
    /// This one and a new one behind it.
    Split(usize),
}

/// How keys come in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Run {
    Up,
    Down,
    None,
}

impl Overflow {
    pub(super) fn run(&self) -> Run {
        match self.last_insert {
            Some(last) if last + 1 == self.place => Run::Up,
            Some(last) if last == self.place => Run::Down,
            _ => Run::None,
        }
    }

    /// A node that gives pairs away stays at least half full.
    pub(super) fn remedy(&self) -> Remedy {
        let Overflow { capacity, fewest, place, .. } = *self;
        let run = self.run();
        let room = |pairs: Option<usize>| pairs.map_or(0, |pairs| capacity - pairs);
        let (left_room, right_room) = (room(self.left), room(self.right));
        // Random keys: what is too little to last is not worth the move.
        let worth = if run == Run::None { (capacity / 8).max(1) } else { 1 };
        // A run up has its room ahead: what is behind it moves on to the left.
        let left_first = match run {
            Run::Up => left_room > 0,
            Run::Down => right_room == 0,
            Run::None => left_room > right_room,
        };
        if left_first && left_room >= worth {
            let given = match run {
                Run::Up => left_room,
                Run::Down => place.clamp(1, left_room),
                Run::None => left_room.div_ceil(2),
            };
            return Remedy::Left(capacity - left_room + given.min(capacity / 2));
        }
        if right_room >= worth {
            let given = match run {
                Run::Up => (capacity - place).clamp(1, right_room),
                Run::Down => right_room,
                Run::None => right_room.div_ceil(2),
            };
            return Remedy::Right(capacity + 1 - given.min(capacity / 2));
        }
        let first = match run {
            Run::Up => place + 1,
            Run::Down => place,
            Run::None => capacity.div_ceil(2),
        };
        Remedy::Split(first.clamp(fewest.0, capacity + 1 - fewest.1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_remedy_leaves_nodes_within_their_bounds() {
        for (capacity, few) in (3..12).flat_map(|capacity| [1, 2].map(|few| (capacity, few))) {
            let neighbours: Vec<Option<usize>> =
                [None].into_iter().chain((few..=capacity).map(Some)).collect();
            for (&left, &right) in
                neighbours.iter().flat_map(|l| neighbours.iter().map(move |r| (l, r)))
            {
                for place in 0..=capacity {
                    for last in 0..=capacity {
                        let last_insert = (last < capacity).then_some(last);
                        let fewest = (few, 3 - few);
                        check(Overflow { capacity, fewest, place, last_insert, left, right });
                    }
                }
            }
        }
    }

    fn check(overflow: Overflow) {
        let Overflow { capacity, fewest, left, right, .. } = overflow;
        let half = capacity / 2;
        let good = match overflow.remedy() {
            Remedy::Left(first) => {
                let left = left.expect("there is one");
                let second = left + capacity + 1 - first;
                (left + 1..=capacity).contains(&first) && (half..=capacity).contains(&second)
            }
            Remedy::Right(first) => {
                let right = right.expect("there is one");
                let second = right + capacity + 1 - first;
                (half..=capacity).contains(&first) && (right + 1..=capacity).contains(&second)
            }
            Remedy::Split(first) => {
                let second = capacity + 1 - first;
                (fewest.0..=capacity).contains(&first) && (fewest.1..=capacity).contains(&second)
            }
        };
        assert!(good, "{overflow:?}: {:?}", overflow.remedy());
    }

    #[test]
    fn runs_leave_full_nodes_behind_and_random_keys_half_full_ones() {
        let full = Overflow {
            capacity: 31,
            fewest: (1, 1),
            place: 31,
            last_insert: Some(30),
            left: Some(31),
            right: None,
        };
        assert_eq!(full.remedy(), Remedy::Split(31));
        assert_eq!(
            Overflow { right: Some(31), place: 12, last_insert: Some(11), ..full }.remedy(),
            Remedy::Split(13)
        );
        assert_eq!(Overflow { right: Some(20), ..full }.remedy(), Remedy::Right(31));
        let down = Overflow { place: 0, last_insert: Some(0), left: None, ..full };
        assert_eq!(down.remedy(), Remedy::Split(1));
        let random = Overflow { place: 5, last_insert: None, ..full };
        assert_eq!(random.remedy(), Remedy::Split(16));
        assert_eq!(Overflow { left: Some(21), ..random }.remedy(), Remedy::Left(26));
    }

    const HALF: Overflow = Overflow {
        capacity: 31,
        fewest: (7, 7),
        place: 12,
        last_insert: None,
        left: Some(31),
        right: Some(31),
    };

    #[test]
    fn two_neighbouring_inserts_are_a_run() {
        let run = |last_insert| Overflow { last_insert, ..HALF }.run();
        for (last, expected) in
            [(10, Run::None), (11, Run::Up), (12, Run::Down), (13, Run::None), (30, Run::None)]
        {
            assert_eq!(run(Some(last)), expected, "{last}");
        }
        assert_eq!(run(None), Run::None);
    }

    #[test]
    fn a_neighbour_takes_what_is_worth_the_move() {
        let remedy = |last_insert, place, left, right| {
            let (left, right) = (Some(left), Some(right));
            Overflow { last_insert, place, left, right, ..HALF }.remedy()
        };
        // Random keys: half of the room, from an eighth of a node on, where there is more of it.
        assert_eq!(remedy(None, 12, 29, 29), Remedy::Split(16));
        assert_eq!(remedy(None, 12, 29, 28), Remedy::Right(30));
        assert_eq!(remedy(None, 12, 28, 29), Remedy::Left(30));
        assert_eq!(remedy(None, 12, 21, 11), Remedy::Right(22));
        // A run up: all that is behind it to the left, else what is ahead of it to the right.
        assert_eq!(remedy(Some(24), 25, 21, 11), Remedy::Left(31));
        assert_eq!(remedy(Some(24), 25, 30, 11), Remedy::Left(31));
        assert_eq!(remedy(Some(24), 25, 31, 20), Remedy::Right(26));
        assert_eq!(remedy(Some(29), 30, 31, 31), Remedy::Split(25));
        // A run down: the same, mirrored.
        assert_eq!(remedy(Some(4), 4, 20, 20), Remedy::Right(21));
        assert_eq!(remedy(Some(4), 4, 20, 31), Remedy::Left(24));
        assert_eq!(remedy(Some(4), 4, 31, 31), Remedy::Split(7));
    }
}
