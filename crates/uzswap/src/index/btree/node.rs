//! A node: sorted keys, each with its entry or child.

use crate::AuditError;
use crate::page::PageKey;

/// Types that a tree can have as keys.
pub trait Key: Copy + Ord + Send + std::fmt::Debug + std::fmt::LowerHex {
    /// The largest; it pads nodes.
    const MAX: Self;

    /// Of a page key; `None` if it is over [`Key::MAX`].
    fn new(key: PageKey) -> Option<Self>;

    /// As a page key.
    fn page_key(self) -> PageKey;

    /// The one before, of any but 0.
    fn before(self) -> Self;

    /// The one after, of any but the largest.
    fn after(self) -> Self;
}

macro_rules! key {
    ($type:ident) => {
        impl Key for $type {
            const MAX: Self = $type::MAX;

            #[inline]
            fn new(key: PageKey) -> Option<Self> {
                key.0.try_into().ok()
            }

            fn page_key(self) -> PageKey {
                PageKey(self.into())
            }

            fn before(self) -> Self {
                self - 1
            }

            fn after(self) -> Self {
                self + 1
            }
        }
    };
}

key!(u64);
key!(u32);

/// Keys that are searched at once.
const GROUP: usize = 8;

/// No insertion yet.
const NOWHERE: u16 = u16::MAX;

/// Up to `N` pairs in the order of their keys, which are different. On cache lines of its own, all
/// keys in front of all values: a search touches the lines of the keys alone.
#[derive(Debug, Clone)]
#[repr(C, align(64))]
pub(super) struct Node<K, V, const N: usize> {
    keys: [K; N],
    values: [V; N],
    len: u16,
    /// Where the last pair was inserted: the next one beside it is taken for a run.
    last: u16,
}

impl<K: Key, V: Copy, const N: usize> Node<K, V, N> {
    /// A node of nothing; `value` fills its places.
    pub(super) const fn new(value: V) -> Self {
        assert!(N >= 2 && N < NOWHERE as usize);
        // The search does not look at the eighth key of the last group.
        assert!(!N.is_multiple_of(GROUP));
        Node { keys: [K::MAX; N], values: [value; N], len: 0, last: NOWHERE }
    }

    #[inline]
    pub(super) fn len(&self) -> usize {
        usize::from(self.len)
    }

    #[inline]
    pub(super) fn key(&self, place: usize) -> K {
        self.keys[place]
    }

    #[inline]
    pub(super) fn value(&self, place: usize) -> V {
        self.values[place]
    }

    #[inline]
    pub(super) fn value_mut(&mut self, place: usize) -> &mut V {
        &mut self.values[place]
    }

    pub(super) fn set_key(&mut self, place: usize, key: K) {
        self.keys[place] = key;
    }

    /// Where the last insertion was, if there was one.
    pub(super) fn last_insert(&self) -> Option<usize> {
        (self.last != NOWHERE).then(|| usize::from(self.last))
    }

    /// How many keys are less than `key`: the place of the first that is not. As free places hold
    /// the largest key, the number of keys does not matter, and nothing here branches on a key.
    ///
    /// Searches the last keys of groups of eight (a cache line of 64-bit keys), then within the
    /// group. In neither step do the loads wait for each other, as those of a binary search do.
    #[inline]
    pub(super) fn count_below(&self, key: K) -> usize {
        let below = |keys: &[K]| keys.iter().map(|held| usize::from(*held < key)).sum::<usize>();
        if N < GROUP {
            return below(&self.keys);
        }
        let mut groups = 0;
        for group in 1..N.div_ceil(GROUP) {
            groups += usize::from(self.keys[group * GROUP - 1] < key);
        }
        // The eighth key of the group is not below, or it is none; all before the group are.
        let from = (groups * GROUP).min(N - (GROUP - 1));
        from + below(&self.keys[from..from + GROUP - 1])
    }

    /// The place of this key.
    #[inline]
    pub(super) fn find(&self, key: K) -> Option<usize> {
        let place = self.count_below(key);
        self.has(place, key).then_some(place)
    }

    /// Whether the key at `place` is this one.
    #[inline]
    pub(super) fn has(&self, place: usize, key: K) -> bool {
        // Free places look like the largest key.
        place < self.len() && self.keys[place] == key
    }

    /// Puts a pair at `place`; there must be room.
    pub(super) fn insert(&mut self, place: usize, key: K, value: V) {
        let len = self.len();
        self.keys.copy_within(place..len, place + 1);
        self.values.copy_within(place..len, place + 1);
        self.keys[place] = key;
        self.values[place] = value;
        self.len += 1;
        self.last = place as u16;
    }

    /// Removes the pairs from place `from` up to and without `to`.
    pub(super) fn remove(&mut self, from: usize, to: usize) {
        let len = self.len();
        self.keys.copy_within(to..len, from);
        self.values.copy_within(to..len, from);
        let left = len - (to - from);
        self.keys[left..len].fill(K::MAX);
        self.len = left as u16;
    }

    /// Moves the last `count` pairs to the front of the node behind this one.
    pub(super) fn move_to_right(&mut self, right: &mut Self, count: usize) {
        let (left_len, len, right_len) = (self.len() - count, self.len(), right.len());
        right.keys.copy_within(..right_len, count);
        right.values.copy_within(..right_len, count);
        right.keys[..count].copy_from_slice(&self.keys[left_len..len]);
        right.values[..count].copy_from_slice(&self.values[left_len..len]);
        self.keys[left_len..len].fill(K::MAX);
        self.len = left_len as u16;
        right.len += count as u16;
    }

    /// Moves the first `count` pairs of the node behind this one to the end of this one.
    pub(super) fn move_to_left(&mut self, right: &mut Self, count: usize) {
        let len = self.len();
        self.keys[len..len + count].copy_from_slice(&right.keys[..count]);
        self.values[len..len + count].copy_from_slice(&right.values[..count]);
        self.len += count as u16;
        right.remove(0, count);
    }

    /// Checks the order and the padding.
    pub(super) fn audit(&self) -> Result<(), AuditError> {
        let len = self.len();
        if len > N {
            return Err(format!("{len} pairs in a node of {N}").into());
        }
        if let Some(place) = (1..len).find(|&place| self.keys[place - 1] >= self.keys[place]) {
            return Err(format!("key {:#x} is not after the one before", self.keys[place]).into());
        }
        if self.keys[len..].iter().any(|&key| key != K::MAX) {
            return Err("a free place holds a key that is not the largest".into());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn search_all<const N: usize>() {
        for len in 0..=N {
            let mut node: Node<u32, (), N> = Node::new(());
            (0..len).for_each(|place| node.insert(place, place as u32 * 2 + 1, ()));
            for key in 0..=2 * N as u32 + 1 {
                let below = (0..len).filter(|&place| node.key(place) < key).count();
                assert_eq!(node.count_below(key), below, "{key} of {len} in {N}");
                assert_eq!(node.find(key).is_some(), key % 2 == 1 && key < 2 * len as u32);
            }
            assert_eq!(node.count_below(u32::MAX), len);
            assert_eq!(node.find(u32::MAX), None, "padding is no key");
        }
    }

    #[test]
    fn every_key_is_found_in_nodes_of_any_size() {
        search_all::<2>();
        search_all::<3>();
        search_all::<4>();
        search_all::<31>();
        search_all::<42>();
        search_all::<63>();
    }

    #[test]
    fn the_largest_key_is_a_key() {
        let mut node: Node<u64, u8, 4> = Node::new(0);
        node.insert(0, u64::MAX, 9);
        assert_eq!(node.find(u64::MAX), Some(0));
        node.insert(0, 5, 1);
        assert_eq!((node.find(u64::MAX), node.value(1)), (Some(1), 9));
        node.remove(1, 2);
        assert_eq!(node.find(u64::MAX), None);
    }
}
