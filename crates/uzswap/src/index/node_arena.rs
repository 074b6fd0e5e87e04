//! Nodes in chunks of sixteen, numbered without gaps.
//!
//! A node is one array access away from a small table of chunks. Growth takes one chunk more and
//! copies nothing. The last node takes the number of a removed one. So the chunks stay full in any
//! order of inserts and removals, and free chunks at the end go back to the heap.

use std::sync::Arc;

use crate::AuditError;
use crate::budget::{Budget, GrowError};
use crate::budgeted_vec::BudgetedVec;

/// Nodes in a chunk: the low bits of a node's number.
const CHUNK_BITS: u32 = 4;
const CHUNK_NODES: usize = 1 << CHUNK_BITS; // 16

/// The most chunks: a node's number has 32 bits.
const CHUNKS_MAX: usize = (u32::MAX >> CHUNK_BITS) as usize;

/// The nodes. Chunks and their table are charged to the budget.
#[derive(Debug)]
pub(super) struct NodeArena<T> {
    chunks: BudgetedVec<Box<[T; CHUNK_NODES]>>,
    /// Nodes in use: those with the numbers below.
    used: usize,
}

const fn split(id: u32) -> (usize, usize) {
    ((id >> CHUNK_BITS) as usize, id as usize % CHUNK_NODES)
}

impl<T> NodeArena<T> {
    const CHUNK_BYTES: usize = size_of::<[T; CHUNK_NODES]>();

    pub(super) fn new(budget: &Arc<Budget>) -> NodeArena<T> {
        NodeArena { chunks: BudgetedVec::new(budget), used: 0 }
    }

    /// Frees the chunks from the `kept`th on.
    fn truncate(&mut self, kept: usize) {
        let freed = self.chunks.len().saturating_sub(kept);
        self.chunks.truncate(kept);
        self.chunks.budget().uncharge_metadata((freed * Self::CHUNK_BYTES) as u64);
    }
}

impl<T> Drop for NodeArena<T> {
    fn drop(&mut self) {
        self.truncate(0);
    }
}

impl<T: Clone> NodeArena<T> {
    #[inline]
    pub(super) fn get(&self, id: u32) -> &T {
        let (chunk, place) = split(id);
        &self.chunks[chunk][place]
    }

    #[inline]
    pub(super) fn get_mut(&mut self, id: u32) -> &mut T {
        let (chunk, place) = split(id);
        &mut self.chunks[chunk][place]
    }

    /// Two different nodes at once.
    pub(super) fn pair_mut(&mut self, a: u32, b: u32) -> (&mut T, &mut T) {
        let ((chunk_a, a), (chunk_b, b)) = (split(a), split(b));
        if chunk_a == chunk_b {
            let nodes = self.chunks[chunk_a].get_disjoint_mut([a, b]);
            let [a, b] = nodes.expect("two different nodes");
            return (a, b);
        }
        let chunks = self.chunks.get_disjoint_mut([chunk_a, chunk_b]);
        let [chunk_a, chunk_b] = chunks.expect("two different chunks");
        (&mut chunk_a[a], &mut chunk_b[b])
    }

    /// Makes sure that `count` more nodes can be added. `filler` is what nodes not in use are.
    pub(super) fn reserve(&mut self, count: usize, filler: &T) -> Result<(), GrowError> {
        while self.used + count > self.chunks.len() * CHUNK_NODES {
            self.add_chunk(filler).inspect_err(|_| self.trim())?;
        }
        Ok(())
    }

    fn add_chunk(&mut self, filler: &T) -> Result<(), GrowError> {
        self.chunks.reserve_one(CHUNKS_MAX)?;
        let bytes = Self::CHUNK_BYTES as u64;
        self.chunks.budget().charge_metadata(bytes)?;
        let mut nodes = Vec::new();
        if nodes.try_reserve_exact(CHUNK_NODES).is_err() {
            self.chunks.budget().uncharge_metadata(bytes);
            return Err(GrowError::NoMemory { bytes });
        }
        nodes.resize(CHUNK_NODES, filler.clone());
        let nodes = nodes.into_boxed_slice().try_into();
        self.chunks.push(nodes.unwrap_or_else(|_| unreachable!("made with this length")));
        Ok(())
    }

    /// Adds a node, for which there must be room; its number.
    pub(super) fn add(&mut self, node: T) -> u32 {
        let id = self.used as u32; // a chunk has been added for it
        self.used += 1;
        *self.get_mut(id) = node;
        id
    }

    /// Removes a node. The last one takes its number, unless it was the last itself: the number
    /// that one had.
    pub(super) fn remove(&mut self, id: u32) -> Option<u32> {
        self.used -= 1;
        let last = self.used as u32; // it is a node's number
        if id != last {
            let (node, last) = self.pair_mut(id, last);
            std::mem::swap(node, last);
        }
        self.trim();
        (id != last).then_some(last)
    }

    /// Frees unused chunks, except for one after the last one in use: adding and removing a node in
    /// turn need not ask the heap each time.
    pub(super) fn trim(&mut self) {
        if self.used == 0 {
            self.truncate(0);
            self.chunks.release();
            return;
        }
        self.truncate(self.used.div_ceil(CHUNK_NODES) + 1);
        if self.chunks.len() < self.chunks.capacity() / 2 {
            self.chunks.shrink(4);
        }
    }

    /// Nodes in use.
    pub(super) fn used(&self) -> usize {
        self.used
    }

    /// Bytes of all chunks and of their table.
    pub(super) fn bytes(&self) -> usize {
        self.chunks.len() * Self::CHUNK_BYTES + self.chunks.bytes()
    }

    /// Checks that there are as many chunks as nodes need.
    pub(super) fn audit(&self) -> Result<(), AuditError> {
        let needed = self.used.div_ceil(CHUNK_NODES);
        let most = if needed == 0 { 0 } else { needed + 1 };
        if !(needed..=most).contains(&self.chunks.len()) {
            return Err(format!("{} chunks for {} nodes", self.chunks.len(), self.used).into());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_no_gaps_and_chunks_go_back() {
        let mut chunks: NodeArena<u64> = NodeArena::new(&Arc::default());
        for n in 0..100 {
            chunks.reserve(1, &7).unwrap();
            assert_eq!(chunks.add(n), n as u32);
            chunks.audit().unwrap();
        }
        let (a, b) = chunks.pair_mut(19, 16);
        assert_eq!((*a, *b), (19, 16));
        let (a, b) = chunks.pair_mut(19, 99);
        assert_eq!((*a, *b), (19, 99));
        assert_eq!(chunks.remove(99), None);
        assert_eq!((chunks.remove(3), *chunks.get(3)), (Some(98), 98));
        chunks.reserve(200, &7).unwrap();
        assert_eq!((chunks.chunks.len(), chunks.used()), (19, 98));
        chunks.trim();
        chunks.audit().unwrap();
        let mut bytes = chunks.bytes();
        for left in (0..98).rev() {
            chunks.remove(left / 2);
            chunks.audit().unwrap();
            assert!(chunks.bytes() <= bytes);
            bytes = chunks.bytes();
        }
        assert_eq!((chunks.used(), bytes), (0, 0));
    }

    #[test]
    fn a_chunk_stays_beside_those_in_use_and_the_table_until_it_is_half_empty() {
        let mut nodes: NodeArena<u64> = NodeArena::new(&Arc::default());
        nodes.reserve(20 * CHUNK_NODES, &0).unwrap();
        (0..20 * CHUNK_NODES as u64).for_each(|n| _ = nodes.add(n));
        let full = nodes.chunks.capacity();
        for used in (1..20 * CHUNK_NODES).rev() {
            nodes.remove(used as u32);
            let chunks = (used.div_ceil(CHUNK_NODES) + 1).min(20);
            assert_eq!(nodes.chunks.len(), chunks, "{used} nodes");
            let capacity = nodes.chunks.capacity();
            if chunks >= full / 2 {
                assert_eq!(capacity, full, "{used} nodes");
            } else {
                assert!((chunks..=2 * chunks + 4).contains(&capacity), "{used}: {capacity}");
            }
        }
    }

    #[test]
    fn what_was_charged_goes_back_with_the_nodes() {
        let budget: Arc<Budget> = Arc::default();
        let mut nodes: NodeArena<u64> = NodeArena::new(&budget);
        nodes.reserve(100, &0).unwrap();
        assert_eq!(budget.metadata_bytes(), nodes.bytes() as u64);
        assert!(nodes.bytes() >= 100 * size_of::<u64>());
        drop(nodes);
        assert_eq!(budget.metadata_bytes(), 0);
    }
}
