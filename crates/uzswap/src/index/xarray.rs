//! A radix tree of 64 ways, of the shape that zswap has had since kernel 6.10 (its xarray).
//!
//! ```text
//!  key | 6 | ... | 6 | 6 |
//!        |         |   '-> slot of a lowest node: an entry
//!        |         '-----> slot of a node above it: a node
//!        '---------------> slot of the root; as many levels as the largest key needs
//! ```
//!
//! - X1: a node has as many slots in use as it says, and at least one.
//! - X2: a node is under the slot that its first key and its level lead to.
//! - X3: the root is as low as the keys allow: above the lowest level it has a slot in use beside
//!   the first one.
//!
//! Dense keys cost little more than their entries; a lone key costs a node a level, and clusters
//! need 64 keys, not 512, to fill one. Nodes are numbered in chunks, as those of the B+-tree.

use std::fmt;
use std::sync::Arc;

use super::node_arena::NodeArena;
use super::{Entry, Index, IndexError, KeyRange, Replaced, Visit};
use crate::AuditError;
use crate::budget::Budget;
use crate::page::PageKey;

const WAY_BITS: u32 = 6;
const WAYS: usize = 1 << WAY_BITS; // 64

/// The most levels: 64 bits, 6 at a time.
const LEVELS_MAX: usize = u64::BITS.div_ceil(WAY_BITS) as usize; // 11

/// What is in a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Slot {
    Empty,
    /// A node one level below, by its number.
    Node(u32),
    /// On the lowest level.
    Entry(Entry),
}

/// 64 slots. A slot is 8 bytes: 0 if it is empty, and whether it is a node's number plus one or an
/// entry is known from the level.
#[derive(Debug, Clone)]
struct Node {
    slots: [u64; WAYS],
    /// The key of the first slot's first entry.
    first: u64,
    /// Bits of the keys below a slot: 0 on the lowest level.
    shift: u32,
    used: u32,
}

const EMPTY: Node = Node { slots: [0; WAYS], first: 0, shift: 0, used: 0 };

impl Node {
    #[inline]
    fn place(&self, key: u64) -> usize {
        (key >> self.shift) as usize % WAYS
    }

    /// The slot's contents.
    #[inline]
    fn slot(&self, place: usize) -> Slot {
        match (self.slots[place], self.shift) {
            (0, _) => Slot::Empty,
            (word, 0) => Slot::Entry(entry(word)),
            (word, _) => Slot::Node((word - 1) as u32), // it is a number and one
        }
    }

    /// The first slot in use from `place` on.
    fn next_used(&self, place: usize) -> Option<usize> {
        (place..WAYS).find(|&place| self.slots[place] != 0)
    }

    /// The first key of a slot.
    fn key(&self, place: usize) -> u64 {
        self.first | (place as u64) << self.shift
    }
}

/// The first key of the node over `key` whose slots have keys of `shift` bits.
fn first_key(key: u64, shift: u32) -> u64 {
    match shift + WAY_BITS {
        bits @ ..u64::BITS => key >> bits << bits,
        _ => 0,
    }
}

fn entry(word: u64) -> Entry {
    Entry(word.try_into().expect("a slot in use is not 0"))
}

/// The index as a radix tree.
pub struct XArray {
    nodes: NodeArena<Node>,
    root: u32,
    levels: usize,
    count: usize,
}

impl XArray {
    /// An empty index whose memory is charged to `budget`.
    pub fn on(budget: &Arc<Budget>) -> XArray {
        XArray { nodes: NodeArena::new(budget), root: 0, levels: 0, count: 0 }
    }

    /// Whether the tree is high enough for a key.
    #[inline]
    fn spans(&self, key: u64) -> bool {
        self.levels >= LEVELS_MAX || key >> (self.levels as u32 * WAY_BITS) == 0
    }

    /// The lowest node over a key.
    #[inline]
    fn leaf_of(&self, key: u64) -> Option<u32> {
        if self.levels == 0 || !self.spans(key) {
            return None;
        }
        let mut id = self.root;
        for _ in 1..self.levels {
            let node = self.nodes.get(id);
            id = node.slots[node.place(key)].checked_sub(1)? as u32; // a node's number and one
        }
        Some(id)
    }

    /// The lowest node over the first key from `from` on, and the key's place in it.
    fn next(&self, mut from: u64) -> Option<(u32, usize)> {
        if self.levels == 0 {
            return None;
        }
        'root: while self.spans(from) {
            let mut id = self.root;
            loop {
                let node = self.nodes.get(id);
                let start = node.place(from);
                let Some(place) = node.next_used(start) else {
                    // Nothing from here to the end of this node.
                    let span = (WAYS as u64).checked_shl(node.shift).filter(|span| *span != 0);
                    from = node.first.checked_add(span?)?;
                    continue 'root;
                };
                if place > start {
                    from = node.key(place);
                }
                match node.slot(place) {
                    Slot::Node(child) => id = child,
                    _ => return Some((id, place)),
                }
            }
        }
        None
    }

    /// Adds the nodes that lead to a key; the lowest of them.
    #[cold]
    fn grow(&mut self, key: u64) -> Result<u32, IndexError> {
        let bits = u64::BITS - key.leading_zeros();
        let needed = bits.div_ceil(WAY_BITS).max(1) as usize;
        // First all the memory, then the nodes.
        let above = if self.count == 0 { 0 } else { needed.saturating_sub(self.levels) };
        let below = match self.count {
            0 => needed,
            _ if above > 0 => needed - 1,
            _ => self.missing(key),
        };
        self.nodes.reserve(above + below, &EMPTY)?;
        if self.count == 0 {
            self.levels = needed;
            let shift = (needed - 1) as u32 * WAY_BITS;
            self.root = self.nodes.add(Node { shift, ..EMPTY });
        }
        for _ in 0..above {
            let shift = self.levels as u32 * WAY_BITS;
            let mut root = Node { shift, used: 1, ..EMPTY };
            root.slots[0] = u64::from(self.root) + 1;
            self.root = self.nodes.add(root);
            self.levels += 1;
        }
        let mut id = self.root;
        for _ in 1..self.levels {
            let node = self.nodes.get(id);
            let place = node.place(key);
            id = match node.slot(place) {
                Slot::Node(child) => child,
                _ => {
                    let shift = node.shift - WAY_BITS;
                    let first = first_key(key, shift);
                    let child = self.nodes.add(Node { first, shift, ..EMPTY });
                    let node = self.nodes.get_mut(id);
                    node.slots[place] = u64::from(child) + 1;
                    node.used += 1;
                    child
                }
            };
        }
        Ok(id)
    }

    /// Nodes that are not there on the way to a key within the span of the tree.
    fn missing(&self, key: u64) -> usize {
        let mut id = self.root;
        for level in 1..self.levels {
            let node = self.nodes.get(id);
            match node.slot(node.place(key)) {
                Slot::Node(child) => id = child,
                _ => return self.levels - level,
            }
        }
        0
    }

    /// Gives nodes back that are not needed any more, after removals below the lowest node over
    /// `key`.
    #[cold]
    fn prune(&mut self, key: u64) {
        loop {
            // The lowest node over the key that is there, and the one above it.
            let (mut id, mut parent) = (self.root, None);
            while let Slot::Node(child) = self.nodes.get(id).slot(self.nodes.get(id).place(key)) {
                (parent, id) = (Some(id), child);
            }
            if self.nodes.get(id).used > 0 {
                break;
            }
            if let Some(parent) = parent {
                let node = self.nodes.get_mut(parent);
                let place = node.place(key);
                node.slots[place] = 0;
                node.used -= 1;
                self.remove_node(id);
            } else {
                self.nodes.remove(id);
                self.levels = 0;
                return;
            }
        }
        loop {
            let root = self.nodes.get(self.root);
            match root.slot(0) {
                Slot::Node(child) if root.used == 1 => {
                    let old = std::mem::replace(&mut self.root, child);
                    self.levels -= 1;
                    self.remove_node(old);
                }
                _ => return,
            }
        }
    }

    /// Removes a node that nothing leads to, and leads to the one that got its number.
    fn remove_node(&mut self, id: u32) {
        let Some(moved) = self.nodes.remove(id) else { return };
        if self.root == moved {
            self.root = id;
            return;
        }
        let Node { first, shift, .. } = *self.nodes.get(id);
        let mut parent = self.root;
        loop {
            let node = self.nodes.get_mut(parent);
            let place = node.place(first);
            if node.shift == shift + WAY_BITS {
                node.slots[place] = u64::from(id) + 1;
                return;
            }
            parent = (node.slots[place] - 1) as u32; // X2: a node's number and one
        }
    }
}

impl fmt::Debug for XArray {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("XArray")
            .field("count", &self.count)
            .field("levels", &self.levels)
            .finish_non_exhaustive()
    }
}

impl Index for XArray {
    fn name(&self) -> &'static str {
        "xarray"
    }

    fn insert_or_replace(&mut self, key: PageKey, entry: Entry) -> Replaced {
        let id = match self.leaf_of(key.0) {
            Some(id) => id,
            None => self.grow(key.0)?,
        };
        let node = self.nodes.get_mut(id);
        let old = std::mem::replace(&mut node.slots[key.0 as usize % WAYS], entry.0.get());
        if old != 0 {
            return Ok(Some(self::entry(old)));
        }
        node.used += 1;
        self.count += 1;
        Ok(None)
    }

    fn get(&self, key: PageKey) -> Option<Entry> {
        let word = self.nodes.get(self.leaf_of(key.0)?).slots[key.0 as usize % WAYS];
        (word != 0).then(|| entry(word))
    }

    fn remove(&mut self, key: PageKey, only: Option<Entry>) -> Option<Entry> {
        let id = self.leaf_of(key.0)?;
        let node = self.nodes.get_mut(id);
        let slot = &mut node.slots[key.0 as usize % WAYS];
        let held = Some(*slot).filter(|word| *word != 0).map(entry)?;
        if only.is_some_and(|only| only != held) {
            return None;
        }
        *slot = 0;
        node.used -= 1;
        self.count -= 1;
        if node.used == 0 {
            self.prune(key.0);
        }
        Some(held)
    }

    fn take_range(&mut self, range: KeyRange, max: usize, taken: Visit<'_>) -> usize {
        let end = range.end().0;
        let mut from = Some(range.start().0).filter(|from| *from <= end);
        let mut count = 0;
        while count < max
            && let Some((id, first)) = from.and_then(|from| self.next(from))
        {
            let node = self.nodes.get_mut(id);
            // A copy, so that the tree is whole when entries are handed out.
            let copy = node.clone();
            let room = max - count;
            let places = (first..WAYS).filter(|&place| copy.slots[place] != 0);
            let places = places.take_while(|&place| copy.key(place) <= end).take(room);
            for place in places.clone() {
                node.slots[place] = 0;
                node.used -= 1;
                self.count -= 1;
                count += 1;
            }
            if node.used == 0 {
                self.prune(copy.first);
            }
            places.for_each(|place| taken(PageKey(copy.key(place)), entry(copy.slots[place])));
            from = copy.first.checked_add(WAYS as u64).filter(|from| *from <= end);
        }
        count
    }

    fn for_each(&self, range: KeyRange, visit: Visit<'_>) {
        let end = range.end().0;
        let mut from = Some(range.start().0).filter(|from| *from <= end);
        while let Some((id, first)) = from.and_then(|from| self.next(from)) {
            let node = self.nodes.get(id);
            for place in (first..WAYS).filter(|&place| node.slots[place] != 0) {
                if node.key(place) > end {
                    return;
                }
                visit(PageKey(node.key(place)), entry(node.slots[place]));
            }
            from = node.first.checked_add(WAYS as u64).filter(|from| *from <= end);
        }
    }

    fn count(&self) -> usize {
        self.count
    }

    fn bytes(&self) -> usize {
        self.nodes.bytes() + size_of::<Self>()
    }

    fn audit(&self) -> Result<(), AuditError> {
        self.nodes.audit()?;
        let (mut count, mut nodes) = (0, 0);
        let mut waiting = Vec::new();
        if self.levels > 0 {
            waiting.push((self.root, 0, (self.levels - 1) as u32 * WAY_BITS));
        }
        while let Some((id, first, shift)) = waiting.pop() {
            nodes += 1;
            if id as usize >= self.nodes.used() || nodes > self.nodes.used() {
                return Err(format!("X2: node {id} is no node, or not one of its own").into());
            }
            let node = self.nodes.get(id);
            let used = node.slots.iter().filter(|word| **word != 0).count();
            if used == 0 || used != node.used as usize {
                return Err(format!("X1: {used} slots in use, {} counted", node.used).into());
            }
            if (node.first, node.shift) != (first, shift) {
                return Err(format!(
                    "X2: a node from {:#x}, shift {}, where {first:#x} and {shift} lead",
                    node.first, node.shift
                )
                .into());
            }
            for place in 0..WAYS {
                match node.slot(place) {
                    Slot::Empty => {}
                    Slot::Entry(_) => count += 1,
                    Slot::Node(child) => waiting.push((child, node.key(place), shift - WAY_BITS)),
                }
            }
        }
        if self.levels > 1 && self.nodes.get(self.root).next_used(1).is_none() {
            return Err(format!("X3: {} levels, and the root has one slot", self.levels).into());
        }
        if (nodes, count) != (self.nodes.used(), self.count) {
            return Err(format!(
                "{nodes} nodes and {count} entries found; counted: {} and {}",
                self.nodes.used(),
                self.count
            )
            .into());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU64;

    use super::*;

    #[test]
    fn a_key_takes_no_chunk_of_nodes_that_it_does_not_need() {
        const CHUNK_NODES: usize = 16;
        for lowest in 1..=CHUNK_NODES as u64 {
            // Some nodes on the lowest level; one level more each time; nodes on all levels.
            let low = (0..lowest).map(|n| n << WAY_BITS);
            let levels = (2..LEVELS_MAX as u32).map(|level| 1 << (level * WAY_BITS));
            let others = (1..100).map(|n| n << 30 | n << 8);
            let mut index = XArray::on(&Arc::default());
            for key in low.chain(levels).chain(others) {
                assert_eq!(index.insert_or_replace(PageKey(key), Entry(NonZeroU64::MIN)), Ok(None));
                // Their table takes less than a chunk.
                let chunks = index.nodes.bytes() / size_of::<[Node; CHUNK_NODES]>();
                assert_eq!(chunks, index.nodes.used().div_ceil(CHUNK_NODES), "key {key:#x}");
                assert_eq!(index.audit(), Ok(()));
            }
        }
    }
}
