//! Nodes in chunks of sixteen, numbered without gaps.
//!
//! A node is one array access away from a small table of chunks. Growth takes one chunk more and
//! copies nothing. Where a node goes, the last one takes its number, so that the chunks are full
//! whatever the order in which nodes came and went, and those at the end go back to the heap.

/// Nodes in a chunk: the low bits of a node's number.
const CHUNK_BITS: u32 = 4;
const CHUNK_NODES: usize = 1 << CHUNK_BITS; // 16

/// The nodes.
#[derive(Debug)]
pub(super) struct Chunks<T> {
    chunks: Vec<Box<[T; CHUNK_NODES]>>,
    /// Nodes in use: those with the numbers below.
    used: usize,
}

const fn split(id: u32) -> (usize, usize) {
    ((id >> CHUNK_BITS) as usize, id as usize % CHUNK_NODES)
}

impl<T: Clone> Chunks<T> {
    pub(super) const fn new() -> Chunks<T> {
        Chunks { chunks: Vec::new(), used: 0 }
    }

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

    /// Makes sure that `count` more nodes can be added; whether they can. `filler` is what nodes
    /// not in use are.
    pub(super) fn reserve(&mut self, count: usize, filler: &T) -> bool {
        while self.used + count > self.chunks.len() * CHUNK_NODES {
            if self.add_chunk(filler).is_none() {
                self.trim();
                return false;
            }
        }
        true
    }

    fn add_chunk(&mut self, filler: &T) -> Option<()> {
        if self.chunks.len() >= (u32::MAX >> CHUNK_BITS) as usize {
            return None; // the numbers are used up
        }
        if self.chunks.len() == self.chunks.capacity() {
            // By an eighth: never half empty.
            self.chunks.try_reserve_exact((self.chunks.len() / 8).max(4)).ok()?;
        }
        let mut nodes = Vec::new();
        nodes.try_reserve_exact(CHUNK_NODES).ok()?;
        nodes.resize(CHUNK_NODES, filler.clone());
        self.chunks.push(nodes.into_boxed_slice().try_into().ok()?);
        Some(())
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

    /// Gives back what is not in use, but for one chunk beside the last one in use: whoever adds
    /// and removes a node in turn need not ask the heap each time.
    pub(super) fn trim(&mut self) {
        if self.used == 0 {
            self.chunks = Vec::new();
            return;
        }
        self.chunks.truncate(self.used.div_ceil(CHUNK_NODES) + 1);
        if self.chunks.len() < self.chunks.capacity() / 2 {
            // Where the heap has no memory for a smaller table, this one stays.
            let mut table = Vec::new();
            if table.try_reserve_exact(self.chunks.len() + 4).is_ok() {
                table.append(&mut self.chunks);
                self.chunks = table;
            }
        }
    }

    /// Nodes in use.
    pub(super) fn used(&self) -> usize {
        self.used
    }

    /// Bytes of all chunks and of their table.
    pub(super) fn bytes(&self) -> usize {
        self.chunks.len() * size_of::<[T; CHUNK_NODES]>()
            + self.chunks.capacity() * size_of::<Box<[T; CHUNK_NODES]>>()
    }

    /// Checks that there are as many chunks as nodes need.
    pub(super) fn audit(&self) -> Result<(), String> {
        let needed = self.used.div_ceil(CHUNK_NODES);
        let most = if needed == 0 { 0 } else { needed + 1 };
        if !(needed..=most).contains(&self.chunks.len()) {
            return Err(format!("{} chunks for {} nodes", self.chunks.len(), self.used));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_no_gaps_and_chunks_go_back() {
        let mut chunks: Chunks<u64> = Chunks::new();
        for n in 0..100 {
            assert!(chunks.reserve(1, &7));
            assert_eq!(chunks.add(n), n as u32);
            chunks.audit().unwrap();
        }
        let (a, b) = chunks.pair_mut(19, 16);
        assert_eq!((*a, *b), (19, 16));
        let (a, b) = chunks.pair_mut(19, 99);
        assert_eq!((*a, *b), (19, 99));
        assert_eq!(chunks.remove(99), None);
        assert_eq!((chunks.remove(3), *chunks.get(3)), (Some(98), 98));
        assert!(chunks.reserve(200, &7));
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
}
