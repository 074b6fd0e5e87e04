//! A B+-tree: entries in leaves, and inner nodes above them.
//!
//! ```text
//!           | bound  bound  ...   MAX |    inner node: the largest key that may be in each
//!           | child  child  ... child |    child, and the child's number
//!              |      |
//!     .--------'      '-------.
//!     | key   key   ... |  | key   key   ... |    leaves
//!     | entry entry ... |  | entry entry ... |
//! ```
//!
//! - N1: every leaf is as many levels below the root as the others.
//! - N2: the last bound of a node is the bound that its parent has for it, and MAX in the root.
//! - N3: every key is over the bound before its leaf and not over its leaf's own.
//! - N4: every node is at least a quarter full, but for the root, and for the first and the last
//!   leaf, which have at least one entry.
//!
//! Nodes are of whole cache lines, 512 bytes for both widths of keys, and found by 32-bit numbers
//! in chunks of sixteen (`index/node_arena.rs`). Every operation is one descent; a removal that
//! merges nodes descends once more for each node that gets another number. An insert takes whatever
//! memory it may need before it changes anything; a removal takes none.

mod node;
mod overflow;

use std::fmt;
use std::sync::Arc;

pub use self::node::Key;
use self::node::Node;
use self::overflow::{Overflow, Remedy, Run};
use super::node_arena::NodeArena;
use super::{Entry, Index, IndexError, KeyRange, Replaced, Visit};
use crate::AuditError;
use crate::budget::Budget;
use crate::page::PageKey;

/// The tree for all page keys: leaves of 31 entries, inner nodes of 42 children.
pub type BTree64 = BTree<u64, 31, 42>;

/// The tree for keys up to 2^32 - 1: leaves of 42 entries, inner nodes of 63 children. 32 bits of
/// pages are 16 TiB.
pub type BTree32 = BTree<u32, 42, 63>;

const _: () = assert!(size_of::<Leaf<u64, 31>>() == 512 && size_of::<Inner<u64, 42>>() == 512);
const _: () = assert!(size_of::<Leaf<u32, 42>>() == 512 && size_of::<Inner<u32, 63>>() == 512);

type Leaf<K, const LEAF: usize> = Node<K, Option<Entry>, LEAF>;
type Inner<K, const INNER: usize> = Node<K, u32, INNER>;

/// The most levels of inner nodes. By N4 each level has ten times the nodes of the one above, so
/// that eleven would lead to more leaves than there are numbers for them.
const LEVELS_MAX: usize = 16;

/// The index as a B+-tree with keys of type `K`, `LEAF` entries a leaf (from 2) and `INNER`
/// children an inner node (from 3). Neither is a multiple of 8.
pub struct BTree<K, const LEAF: usize, const INNER: usize> {
    leaves: NodeArena<Leaf<K, LEAF>>,
    inners: NodeArena<Inner<K, INNER>>,
    /// A leaf if there are no levels above them; of no meaning in an empty tree.
    root: u32,
    /// Levels of inner nodes.
    levels: usize,
    count: usize,
}

/// The inner nodes of a descent, the root first, and which child it went to.
struct Path {
    nodes: [u32; LEVELS_MAX],
    places: [u32; LEVELS_MAX],
}

impl Path {
    fn new() -> Path {
        Path { nodes: [0; LEVELS_MAX], places: [0; LEVELS_MAX] }
    }

    fn at(&self, level: usize) -> (u32, usize) {
        (self.nodes[level], self.places[level] as usize)
    }
}

impl<K: Key, const LEAF: usize, const INNER: usize> BTree<K, LEAF, INNER> {
    const EMPTY_LEAF: Leaf<K, LEAF> = Node::new(None);
    const EMPTY_INNER: Inner<K, INNER> = {
        assert!(INNER >= 3, "a full node and one child more make two nodes of two");
        Node::new(0)
    };

    /// N4.
    const LEAF_LEAST: usize = if LEAF >= 4 { LEAF / 4 } else { 1 };
    const INNER_LEAST: usize = if INNER >= 8 { INNER / 4 } else { 2 };

    /// A node with less merges with a neighbour if the two fit into one.
    const LEAF_LOW: usize = LEAF / 2;
    const INNER_LOW: usize = if INNER >= 4 { INNER / 2 } else { 2 };

    /// An empty index whose memory is charged to `budget`.
    pub fn on(budget: &Arc<Budget>) -> Self {
        let (leaves, inners) = (NodeArena::new(budget), NodeArena::new(budget));
        BTree { leaves, inners, root: 0, levels: 0, count: 0 }
    }

    /// The leaf that has the key if any has. The tree must not be empty.
    #[inline]
    fn leaf_of(&self, key: K) -> u32 {
        let mut id = self.root;
        for _ in 0..self.levels {
            let node = self.inners.get(id);
            id = node.value(node.count_below(key));
        }
        id
    }

    /// The same, noting the way.
    #[inline]
    fn descend(&self, key: K, path: &mut Path) -> u32 {
        let mut id = self.root;
        for level in 0..self.levels {
            let node = self.inners.get(id);
            let place = node.count_below(key);
            path.nodes[level] = id;
            path.places[level] = place as u32;
            id = node.value(place);
        }
        id
    }

    /// The bound of the leaf at the end of a path.
    fn bound(&self, path: &Path) -> K {
        match self.levels {
            0 => K::MAX,
            levels => {
                let (node, place) = path.at(levels - 1);
                self.inners.get(node).key(place)
            }
        }
    }

    /// The neighbours, below the same parent, of the node on `level`; leaves are on the last.
    fn neighbours(&self, path: &Path, level: usize) -> (Option<u32>, Option<u32>) {
        let Some(above) = level.checked_sub(1) else { return (None, None) };
        let (parent, place) = path.at(above);
        let parent = self.inners.get(parent);
        let left = place.checked_sub(1).map(|place| parent.value(place));
        let right = (place + 1 < parent.len()).then(|| parent.value(place + 1));
        (left, right)
    }

    /// Whether a path leads to the first leaf, and whether to the last.
    fn is_at_ends(&self, path: &Path) -> (bool, bool) {
        let mut ends = (true, true);
        for level in 0..self.levels {
            let (node, place) = path.at(level);
            ends.0 &= place == 0;
            ends.1 &= place + 1 == self.inners.get(node).len();
        }
        ends
    }

    /// Puts a new key into a full leaf.
    #[cold]
    fn insert_into_full(
        &mut self,
        path: &Path,
        leaf: u32,
        place: usize,
        key: K,
        entry: Entry,
    ) -> Result<(), IndexError> {
        let (left, right) = self.neighbours(path, self.levels);
        let pairs = |id| self.leaves.get(id).len();
        let (is_first, is_last) = self.is_at_ends(path);
        let fewest = |is_end| if is_end { 1 } else { Self::LEAF_LEAST };
        let overflow = Overflow {
            capacity: LEAF,
            fewest: (fewest(is_first), fewest(is_last)),
            place,
            last_insert: self.leaves.get(leaf).last_insert(),
            left: left.map(pairs),
            right: right.map(pairs),
        };
        let remedy = overflow.remedy();
        if let Remedy::Split(_) = remedy {
            self.reserve_for_split(path)?;
        }
        let (a, b, first) = both(&mut self.leaves, remedy, leaf, (left, right), Self::EMPTY_LEAF);
        let place = place + if a == leaf { 0 } else { self.leaves.get(a).len() };
        let (a_node, b_node) = self.leaves.pair_mut(a, b);
        share(a_node, b_node, first, Some((place, key, Some(entry))));
        // The next keys of an ascending run go to the first node as long as they fit.
        let bound = match overflow.run() {
            Run::Up => b_node.key(0).before(),
            _ => a_node.key(a_node.len() - 1),
        };
        self.shared(path, self.levels, remedy, bound, a, b);
        Ok(())
    }

    /// Makes sure of the nodes that splitting a leaf can take, all the way up.
    fn reserve_for_split(&mut self, path: &Path) -> Result<(), IndexError> {
        let is_full = |level: &usize| self.inners.get(path.nodes[*level]).len() == INNER;
        let full = (0..self.levels).rev().take_while(is_full).count();
        let inners = full + usize::from(full == self.levels);
        if full == self.levels && self.levels == LEVELS_MAX {
            return Err(IndexError::NoMemory);
        }
        self.leaves.reserve(1, &Self::EMPTY_LEAF)?;
        let reserved = self.inners.reserve(inners, &Self::EMPTY_INNER);
        Ok(reserved.inspect_err(|_| self.leaves.trim())?)
    }

    /// Tells the levels above that two nodes on `level` have shared their pairs, the first of them
    /// with keys up to `bound` now.
    fn shared(
        &mut self,
        path: &Path,
        mut level: usize,
        mut remedy: Remedy,
        mut bound: K,
        mut a: u32,
        mut b: u32,
    ) {
        loop {
            let Some(above) = level.checked_sub(1) else {
                return self.add_root(bound, a, b);
            };
            let (parent, place) = path.at(above);
            let node = self.inners.get_mut(parent);
            match remedy {
                Remedy::Left(_) => return node.set_key(place - 1, bound),
                Remedy::Right(_) => return node.set_key(place, bound),
                Remedy::Split(_) => *node.value_mut(place) = b,
            }
            if node.len() < INNER {
                return node.insert(place, bound, a);
            }
            let last_insert = node.last_insert();
            let (left, right) = self.neighbours(path, above);
            let pairs = |id| self.inners.get(id).len();
            let (left_pairs, right_pairs) = (left.map(pairs), right.map(pairs));
            remedy = Overflow {
                capacity: INNER,
                fewest: (Self::INNER_LEAST, Self::INNER_LEAST),
                place,
                last_insert,
                left: left_pairs,
                right: right_pairs,
            }
            .remedy();
            let (first, second, count) =
                both(&mut self.inners, remedy, parent, (left, right), Self::EMPTY_INNER);
            let place = place + if first == parent { 0 } else { self.inners.get(first).len() };
            let (first_node, second_node) = self.inners.pair_mut(first, second);
            share(first_node, second_node, count, Some((place, bound, a)));
            bound = first_node.key(first_node.len() - 1);
            (a, b, level) = (first, second, above);
        }
    }

    /// A root above the two halves of the old one.
    fn add_root(&mut self, bound: K, a: u32, b: u32) {
        let mut root = Self::EMPTY_INNER;
        root.insert(0, bound, a);
        root.insert(1, K::MAX, b);
        self.root = self.inners.add(root); // reserved
        self.levels += 1;
    }

    /// Restores N4 for a leaf that has become low, and gives back what can be merged away.
    #[cold]
    fn merge_leaf(&mut self, path: &mut Path, leaf: u32) {
        if self.count == 0 {
            self.leaves.remove(leaf);
            return;
        }
        let Some(above) = self.levels.checked_sub(1) else { return };
        loop {
            let (parent, place) = path.at(above);
            let parent = self.inners.get_mut(parent);
            let pairs = |id| self.leaves.get(id).len();
            let Some(place) = mergeable(parent, place, pairs, Self::LEAF_LOW, LEAF) else { break };
            let (left, right) = unlink(parent, place);
            path.places[above] = place as u32;
            let (a, b) = self.leaves.pair_mut(left, right);
            a.move_to_left(b, b.len());
            if let Some(moved) = self.leaves.remove(right) {
                self.leaf_moved(moved, right);
            }
        }
        let (parent, place) = path.at(above);
        let parent = self.inners.get_mut(parent);
        let nodes = &mut self.leaves;
        if nodes.get(parent.value(place)).len() < Self::LEAF_LEAST && parent.len() > 1 {
            balance(nodes, parent, place);
        }
        // The loss of children may leave too few in it, and so on upwards.
        for level in (1..=above).rev() {
            if self.inners.get(path.nodes[level]).len() >= Self::INNER_LOW {
                return;
            }
            self.merge_inner(path, level);
        }
        let root = self.inners.get(self.root);
        if root.len() == 1 {
            let old = std::mem::replace(&mut self.root, root.value(0));
            self.levels -= 1;
            self.remove_inner(path, old);
        }
    }

    /// Restores N4 for an inner node on a level below the root's.
    fn merge_inner(&mut self, path: &mut Path, level: usize) {
        let above = level - 1;
        loop {
            let (parent, place) = path.at(above);
            let node = self.inners.get(parent);
            let pairs = |id| self.inners.get(id).len();
            let Some(place) = mergeable(node, place, pairs, Self::INNER_LOW, INNER) else { break };
            let (left, right) = unlink(self.inners.get_mut(parent), place);
            path.places[above] = place as u32;
            path.nodes[level] = left;
            let (a, b) = self.inners.pair_mut(left, right);
            a.move_to_left(b, b.len());
            self.remove_inner(path, right);
        }
        let (parent, place) = path.at(above);
        let children = self.inners.get(path.nodes[level]).len();
        if children < Self::INNER_LEAST && self.inners.get(parent).len() > 1 {
            // The parent is worked on as a copy, as the children are beside it.
            let mut copy = self.inners.get(parent).clone();
            balance(&mut self.inners, &mut copy, place);
            *self.inners.get_mut(parent) = copy;
        }
    }

    /// Gives an inner node back that nothing leads to any more.
    fn remove_inner(&mut self, path: &mut Path, id: u32) {
        let Some(moved) = self.inners.remove(id) else { return };
        for node in &mut path.nodes[..self.levels] {
            if *node == moved {
                *node = id;
            }
        }
        if self.root == moved && self.levels > 0 {
            self.root = id;
            return;
        }
        // Any key below a node leads to it.
        let key = self.inners.get(id).key(0);
        let mut parent = self.root;
        for _ in 1..self.levels {
            let node = self.inners.get_mut(parent);
            let child = node.value_mut(node.count_below(key));
            if *child == moved {
                *child = id;
                return;
            }
            parent = *child;
        }
    }

    /// Leads to a leaf by its new number.
    fn leaf_moved(&mut self, moved: u32, id: u32) {
        let key = self.leaves.get(id).key(0);
        let mut path = Path::new();
        self.descend(key, &mut path);
        match self.levels.checked_sub(1) {
            None => self.root = id,
            Some(above) => {
                let (parent, place) = path.at(above);
                let child = self.inners.get_mut(parent).value_mut(place);
                debug_assert_eq!(*child, moved);
                *child = id;
            }
        }
    }

    /// Checks one inner node against the bound that its parent has for it.
    fn audit_inner(
        &self,
        node: &Inner<K, INNER>,
        bound: K,
        level: usize,
    ) -> Result<(), AuditError> {
        node.audit()?;
        let least = if level == 0 { 2 } else { Self::INNER_LEAST };
        if node.len() < least || node.key(node.len() - 1) != bound {
            return Err(format!(
                "N2, N4: {} children, the last up to {:#x} and not {bound:#x}",
                node.len(),
                node.key(node.len().saturating_sub(1)),
            )
            .into());
        }
        Ok(())
    }
}

/// The two nodes that share pairs by a remedy, and how many the first one gets.
fn both<K: Key, V: Copy, const N: usize>(
    nodes: &mut NodeArena<Node<K, V, N>>,
    remedy: Remedy,
    node: u32,
    (left, right): (Option<u32>, Option<u32>),
    empty: Node<K, V, N>,
) -> (u32, u32, usize) {
    match remedy {
        Remedy::Left(first) => (left.expect("it has room"), node, first),
        Remedy::Right(first) => (node, right.expect("it has room"), first),
        Remedy::Split(first) => (node, nodes.add(empty), first), // reserved
    }
}

/// Shares the pairs of two neighbours, so that `a` has the first `count` of them. A new pair is
/// among them if one is given with its place in both together.
fn share<K: Key, V: Copy, const N: usize>(
    a: &mut Node<K, V, N>,
    b: &mut Node<K, V, N>,
    count: usize,
    new: Option<(usize, K, V)>,
) {
    let is_in_a = new.as_ref().is_some_and(|(place, ..)| *place < count);
    let kept = count - usize::from(is_in_a);
    match a.len() {
        len if len > kept => a.move_to_right(b, len - kept),
        len => a.move_to_left(b, kept - len),
    }
    if let Some((place, key, value)) = new {
        if is_in_a {
            a.insert(place, key, value);
        } else {
            b.insert(place - kept, key, value);
        }
    }
}

/// Whether the child at `place` has less than `half` and fits into one node of `capacity` with a
/// neighbour; the place of the first of the two.
fn mergeable<K: Key, const INNER: usize>(
    parent: &Inner<K, INNER>,
    place: usize,
    pairs: impl Fn(u32) -> usize,
    half: usize,
    capacity: usize,
) -> Option<usize> {
    let own = pairs(parent.value(place));
    let fits = |place| own + pairs(parent.value(place)) <= capacity;
    if own >= half.max(1) {
        None
    } else if place > 0 && fits(place - 1) {
        Some(place - 1)
    } else {
        (place + 1 < parent.len() && fits(place + 1)).then_some(place)
    }
}

/// Shares the pairs of the child at `place` with a neighbour that is too full to merge with.
fn balance<K: Key, V: Copy, const N: usize, const INNER: usize>(
    nodes: &mut NodeArena<Node<K, V, N>>,
    parent: &mut Inner<K, INNER>,
    place: usize,
) {
    let first = place.saturating_sub(1);
    let (a, b) = nodes.pair_mut(parent.value(first), parent.value(first + 1));
    share(a, b, (a.len() + b.len()) / 2, None);
    parent.set_key(first, a.key(a.len() - 1));
}

/// Makes one child of those at `place` and behind it: the first, up to the bound of the second;
/// both of them.
fn unlink<K: Key, const INNER: usize>(parent: &mut Inner<K, INNER>, place: usize) -> (u32, u32) {
    let (left, right) = (parent.value(place), parent.value(place + 1));
    *parent.value_mut(place + 1) = left;
    parent.remove(place, place + 1);
    (left, right)
}

impl<K, const LEAF: usize, const INNER: usize> fmt::Debug for BTree<K, LEAF, INNER> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BTree")
            .field("count", &self.count)
            .field("levels", &self.levels)
            .finish_non_exhaustive()
    }
}

impl<K: Key, const LEAF: usize, const INNER: usize> Index for BTree<K, LEAF, INNER> {
    fn name(&self) -> &'static str {
        if size_of::<K>() == size_of::<u64>() { "btree" } else { "btree32" }
    }

    fn insert_or_replace(&mut self, key: PageKey, entry: Entry) -> Replaced {
        let max = K::MAX.page_key();
        let key = K::new(key).ok_or(IndexError::KeyTooLarge { max })?;
        if self.count == 0 {
            self.leaves.reserve(1, &Self::EMPTY_LEAF)?;
            self.root = self.leaves.add(Self::EMPTY_LEAF);
        }
        let mut path = Path::new();
        let id = self.descend(key, &mut path);
        let leaf = self.leaves.get_mut(id);
        let place = leaf.count_below(key);
        if leaf.has(place, key) {
            return Ok(leaf.value_mut(place).replace(entry));
        }
        if leaf.len() < LEAF {
            leaf.insert(place, key, Some(entry));
        } else {
            self.insert_into_full(&path, id, place, key, entry)?;
        }
        self.count += 1;
        Ok(None)
    }

    fn get(&self, key: PageKey) -> Option<Entry> {
        let key = K::new(key).filter(|_| self.count > 0)?;
        let leaf = self.leaves.get(self.leaf_of(key));
        leaf.find(key).and_then(|place| leaf.value(place))
    }

    fn remove(&mut self, key: PageKey, only: Option<Entry>) -> Option<Entry> {
        let key = K::new(key).filter(|_| self.count > 0)?;
        let mut path = Path::new();
        let id = self.descend(key, &mut path);
        let leaf = self.leaves.get_mut(id);
        let place = leaf.find(key)?;
        let entry = leaf.value(place).filter(|entry| only.is_none_or(|only| only == *entry))?;
        leaf.remove(place, place + 1);
        let is_low = leaf.len() < Self::LEAF_LOW.max(1);
        self.count -= 1;
        if is_low {
            self.merge_leaf(&mut path, id);
        }
        Some(entry)
    }

    fn take_range(&mut self, range: KeyRange, max: usize, taken: Visit<'_>) -> usize {
        let end = K::new(*range.end()).unwrap_or(K::MAX);
        let mut start = K::new(*range.start());
        let mut count = 0;
        while let Some(from) = start
            && from <= end
            && count < max
            && self.count > 0
        {
            let mut path = Path::new();
            let id = self.descend(from, &mut path);
            let bound = self.bound(&path);
            let leaf = self.leaves.get_mut(id);
            let (first, mut last) = (leaf.count_below(from), leaf.len());
            last = last.min(first.saturating_add(max - count));
            while last > first && leaf.key(last - 1) > end {
                last -= 1;
            }
            // A copy, so that the tree is whole when it is handed out.
            let copy = leaf.clone();
            leaf.remove(first, last);
            let is_low = leaf.len() < Self::LEAF_LOW.max(1);
            self.count -= last - first;
            count += last - first;
            if is_low {
                self.merge_leaf(&mut path, id);
            }
            for place in first..last {
                let entry = copy.value(place).expect("a place in use has an entry");
                taken(copy.key(place).page_key(), entry);
            }
            start = (bound < K::MAX).then(|| bound.after());
        }
        count
    }

    fn for_each(&self, range: KeyRange, visit: Visit<'_>) {
        let end = K::new(*range.end()).unwrap_or(K::MAX);
        let mut start = K::new(*range.start()).filter(|_| self.count > 0);
        while let Some(from) = start
            && from <= end
        {
            let mut path = Path::new();
            let leaf = self.leaves.get(self.descend(from, &mut path));
            for place in leaf.count_below(from)..leaf.len() {
                if leaf.key(place) > end {
                    return;
                }
                let entry = leaf.value(place).expect("a place in use has an entry");
                visit(leaf.key(place).page_key(), entry);
            }
            let bound = self.bound(&path);
            start = (bound < K::MAX).then(|| bound.after());
        }
    }

    fn count(&self) -> usize {
        self.count
    }

    fn bytes(&self) -> usize {
        self.leaves.bytes() + self.inners.bytes() + size_of::<Self>()
    }

    fn audit(&self) -> Result<(), AuditError> {
        self.leaves.audit().map_err(|error| format!("leaves: {error}"))?;
        self.inners.audit().map_err(|error| format!("inner nodes: {error}"))?;
        let (mut count, mut leaves, mut inners) = (0, 0, 0);
        // Nodes yet to look at, the left ones last in: the keys come in order.
        let mut waiting = Vec::new();
        if self.count > 0 {
            waiting.push((self.root, 0, K::MAX));
        }
        let mut over: Option<K> = None;
        while let Some((id, level, bound)) = waiting.pop() {
            let is_leaf = level == self.levels;
            let used = if is_leaf { self.leaves.used() } else { self.inners.used() };
            // A node in two places comes twice, and then there are more than in use.
            if id as usize >= used || leaves > self.leaves.used() || inners > self.inners.used() {
                return Err(format!("N1: node {id} on level {level} is no node of the tree").into());
            }
            if !is_leaf {
                inners += 1;
                let node = self.inners.get(id);
                self.audit_inner(node, bound, level)?;
                for place in (0..node.len()).rev() {
                    waiting.push((node.value(place), level + 1, node.key(place)));
                }
                continue;
            }
            leaves += 1;
            let leaf = self.leaves.get(id);
            leaf.audit()?;
            count += leaf.len();
            let is_end = over.is_none() || waiting.is_empty();
            if leaf.len() < if is_end { 1 } else { Self::LEAF_LEAST } {
                return Err(format!("N4: a leaf of {} entries", leaf.len()).into());
            }
            if (0..leaf.len()).any(|place| leaf.value(place).is_none()) {
                return Err("a key has no entry".into());
            }
            let (first, last) = (leaf.key(0), leaf.key(leaf.len() - 1));
            if over.is_some_and(|over| first <= over) || last > bound {
                return Err(
                    format!("N3: keys {first:#x} to {last:#x} in a leaf to {bound:#x}").into()
                );
            }
            over = Some(bound);
        }
        if (leaves, inners, count) != (self.leaves.used(), self.inners.used(), self.count) {
            return Err(format!(
                "{leaves} leaves, {inners} inner nodes and {count} entries found; counted: \
                 {}, {} and {}",
                self.leaves.used(),
                self.inners.used(),
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

    fn insert<const LEAF: usize, const INNER: usize>(tree: &mut BTree<u64, LEAF, INNER>, key: u64) {
        let put = tree.insert_or_replace(PageKey(key), Entry(NonZeroU64::MIN));
        assert_eq!((put, tree.audit()), (Ok(None), Ok(())), "key {key}");
    }

    fn filled<const LEAF: usize, const INNER: usize>(
        keys: impl Iterator<Item = u64>,
    ) -> BTree<u64, LEAF, INNER> {
        let mut tree = BTree::on(&Arc::default());
        keys.for_each(|key| insert(&mut tree, key));
        tree
    }

    #[test]
    fn a_run_of_keys_fills_its_leaves() {
        for (count, expected) in [(31, vec![31]), (32, vec![1, 31]), (100, vec![7, 31, 31, 31])] {
            let up: BTree64 = filled((0..count).map(|n| n * 2));
            let down: BTree64 = filled((0..count).rev().map(|n| n * 2));
            for tree in [up, down] {
                let leaves = 0..tree.leaves.used() as u32;
                let mut pairs: Vec<usize> = leaves.map(|id| tree.leaves.get(id).len()).collect();
                pairs.sort_unstable();
                assert_eq!(pairs, expected);
            }
        }
    }

    #[test]
    fn a_full_leaf_gives_to_the_one_beside_it() {
        // 31 keys in the first leaf and 9 in the second; and the other way round.
        let up: BTree64 = filled((0..40).map(|n| n * 2));
        let down: BTree64 = filled((0..40).rev().map(|n| n * 2));
        for (mut tree, key) in [(up, 21), (down, 61)] {
            insert(&mut tree, key);
            assert_eq!(tree.leaves.used(), 2, "key {key}");
        }
    }

    #[test]
    fn a_run_between_full_leaves_leaves_none_too_empty() {
        const STRIDE: u64 = 1000;
        for place in 0..31 {
            let before = (4 * 31 + place) * STRIDE;
            let up: Vec<u64> = (1..100).map(|n| before + n).collect();
            let down = up.iter().rev().copied().collect();
            for run in [up, down] {
                let mut tree: BTree64 = filled((0..310).map(|n| n * STRIDE));
                run.into_iter().for_each(|key| insert(&mut tree, key));
            }
        }
    }

    /// Fills and empties trees in several orders, the latter from the middle on.
    fn fill_and_empty<const LEAF: usize, const INNER: usize>() {
        const KEYS: u64 = 211; // a prime
        let strides = [1, 2, 40, KEYS - 1];
        for (a, b) in strides.into_iter().flat_map(|a| strides.map(|b| (a, b))) {
            let mut tree: BTree<u64, LEAF, INNER> = filled((0..KEYS).map(|n| n * a % KEYS));
            for key in (0..KEYS).map(|n| (n * b + KEYS / 2) % KEYS) {
                assert!(tree.take(PageKey(key)).is_some());
                assert_eq!(tree.audit(), Ok(()), "{LEAF}, {INNER}: strides {a}, {b}; {key} gone");
            }
            assert_eq!((tree.count(), tree.bytes()), (0, size_of_val(&tree)));
        }
    }

    #[test]
    fn nodes_that_lose_pairs_stay_full_enough() {
        fill_and_empty::<2, 3>();
        fill_and_empty::<3, 4>();
        fill_and_empty::<10, 3>();
        fill_and_empty::<9, 9>();
        fill_and_empty::<31, 42>();
    }
}
