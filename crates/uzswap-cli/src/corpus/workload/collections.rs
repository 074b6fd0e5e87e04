//! Collections in the image of a heap, laid out as Rust's are on a machine of 64 bits.
//!
//! Each collection grows as a program's does: into a larger block, with the old one freed. So the
//! image has the remains of smaller tables and shorter strings, and room at the ends of blocks.

use std::collections::HashSet;

use serde_json::Value;

use super::heap::Heap;

/// Bytes of a string or a vector where it is held: capacity, address, length.
const VECTOR_BYTES: usize = 24;

/// Bytes of a JSON value where it is held.
const VALUE_BYTES: usize = 32;

/// Entries of a node of a B-tree.
const NODE_ENTRIES: usize = 11;

/// Slots that a probe of a hash table sees at a time.
const GROUP: usize = 16;

/// The three words of a vector.
type Vector = [u64; 3];

/// The words as bytes.
pub(super) fn bytes_of(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// A block with exactly these bytes.
pub(super) fn exact(heap: &mut Heap, bytes: &[u8]) -> u64 {
    if bytes.is_empty() {
        return 1; // an address without a block
    }
    let at = heap.allocate(bytes.len() as u64);
    heap.write(at, bytes);
    at
}

/// A string without room at its end.
pub(super) fn exact_string(heap: &mut Heap, text: &str) -> Vector {
    let at = exact(heap, text.as_bytes());
    [text.len() as u64, at, text.len() as u64]
}

/// A string that was put together piece by piece.
pub(super) fn grown_string(heap: &mut Heap, text: &str) -> Vector {
    let mut string = Growing::new(1, 8);
    string.push(heap, text.as_bytes());
    string.finish(heap)
}

/// A vector that grows by doubling.
pub(super) struct Growing {
    item_bytes: usize,
    /// Items of the first block.
    first: usize,
    data: Vec<u8>,
    block: Option<u64>,
    capacity: usize,
}

impl Growing {
    /// An empty one, of items of so many bytes.
    pub(super) fn new(item_bytes: usize, first: usize) -> Growing {
        Growing { item_bytes, first, data: Vec::new(), block: None, capacity: 0 }
    }

    /// Adds one item, or several.
    pub(super) fn push(&mut self, heap: &mut Heap, items: &[u8]) {
        let wanted = self.data.len() + items.len();
        while self.capacity * self.item_bytes < wanted {
            // The block takes the bytes that it has room for, and is then too small.
            let room = (self.capacity * self.item_bytes).saturating_sub(self.data.len());
            if let Some(block) = self.block.take() {
                heap.write(block, &self.data);
                heap.write(block + self.data.len() as u64, &items[..room.min(items.len())]);
                heap.free(block);
            }
            self.capacity = (self.capacity * 2).max(self.first);
            self.block = Some(heap.allocate((self.capacity * self.item_bytes) as u64));
        }
        self.data.extend_from_slice(items);
    }

    /// Writes the items; the words of the vector.
    pub(super) fn finish(self, heap: &mut Heap) -> Vector {
        let at = self.block.unwrap_or(8);
        if self.block.is_some() {
            heap.write(at, &self.data);
        }
        [self.capacity as u64, at, (self.data.len() / self.item_bytes) as u64]
    }
}

/// A hash table: entries from its control bytes downwards, groups of 16 control bytes, between 7/16
/// and 7/8 full.
pub(super) struct Table {
    entry_bytes: usize,
    hashes: Vec<u64>,
    known: HashSet<u64>,
    entries: Vec<u8>,
    buckets: usize,
    block: Option<u64>,
}

impl Table {
    /// An empty one.
    pub(super) fn new(entry_bytes: usize) -> Table {
        Table {
            entry_bytes,
            hashes: Vec::new(),
            known: HashSet::new(),
            entries: Vec::new(),
            buckets: 0,
            block: None,
        }
    }

    /// Whether a key of this hash is in it.
    pub(super) fn has(&self, hash: u64) -> bool {
        self.known.contains(&hash)
    }

    /// Adds an entry whose hash is not in it.
    pub(super) fn insert(&mut self, heap: &mut Heap, hash: u64, entry: &[u8]) {
        debug_assert_eq!(entry.len(), self.entry_bytes);
        let full = if self.buckets < 8 { self.buckets * 3 / 4 } else { self.buckets / 8 * 7 };
        if self.hashes.len() == full {
            self.grow(heap);
        }
        self.known.insert(hash);
        self.hashes.push(hash);
        self.entries.extend_from_slice(entry);
    }

    fn grow(&mut self, heap: &mut Heap) {
        self.lay(heap);
        if let Some(block) = self.block {
            heap.free(block);
        }
        self.buckets = (self.buckets * 2).max(4);
        let bytes = self.buckets * self.entry_bytes + self.buckets + GROUP;
        self.block = Some(heap.allocate(bytes as u64));
    }

    /// Writes the table into its block.
    fn lay(&self, heap: &mut Heap) {
        let Some(block) = self.block else { return };
        let (mask, mut control) = (self.buckets - 1, vec![0xff_u8; self.buckets + GROUP]);
        for (hash, entry) in self.hashes.iter().zip(self.entries.chunks_exact(self.entry_bytes)) {
            let (mut at, mut stride) = (*hash as usize & mask, 0);
            let slot = loop {
                let free = (0..GROUP).map(|step| (at + step) & mask);
                if let Some(slot) = free.into_iter().find(|slot| control[*slot] == 0xff) {
                    break slot;
                }
                stride += GROUP;
                at = (at + stride) & mask;
            };
            control[slot] = (hash >> 57) as u8;
            heap.write(block + ((mask - slot) * self.entry_bytes) as u64, entry);
        }
        // The first group once more, so that a probe at the end needs no second look.
        let first: Vec<u8> = control[..GROUP.min(self.buckets)].to_vec();
        control[self.buckets..self.buckets + first.len()].copy_from_slice(&first);
        heap.write(block + (self.buckets * self.entry_bytes) as u64, &control);
    }

    /// Writes the table for good.
    pub(super) fn finish(self, heap: &mut Heap) {
        self.lay(heap);
    }
}

/// Writes a JSON value and all below it; its bytes where it is held.
pub(super) fn json(heap: &mut Heap, value: &Value) -> [u8; VALUE_BYTES] {
    let (tag, words): (u64, Vector) = match value {
        Value::Null => (0, [0; 3]),
        Value::Bool(truth) => (1 | u64::from(*truth) << 8, [0; 3]),
        Value::Number(number) => match number.as_u64() {
            Some(whole) => (2, [0, whole, 0]),
            None => (2, [2, number.as_f64().unwrap_or(0.0).to_bits(), 0]),
        },
        Value::String(text) => (3, grown_string(heap, text)),
        Value::Array(values) => {
            let items: Vec<u8> = values.iter().flat_map(|value| json(heap, value)).collect();
            let at = exact(heap, &items);
            (4, [values.len() as u64, at, values.len() as u64])
        }
        Value::Object(map) => {
            // By key, whether or not serde_json keeps the order of insertion.
            let mut entries: Vec<(&String, &Value)> = map.iter().collect();
            entries.sort_by_key(|(key, _)| *key);
            (5, [object(heap, &entries), 0, entries.len() as u64])
        }
    };
    let mut bytes = [0; VALUE_BYTES];
    bytes[..8].copy_from_slice(&tag.to_le_bytes());
    bytes[8..].copy_from_slice(&bytes_of(&words));
    bytes
}

/// A leaf of a B-tree of strings and values: the parent's address, keys, values, two counts. Its
/// unused places keep what was there.
fn object(heap: &mut Heap, entries: &[(&String, &Value)]) -> u64 {
    let (keys_at, values_at) = (8, 8 + (NODE_ENTRIES * VECTOR_BYTES) as u64);
    let counts_at = values_at + (NODE_ENTRIES * VALUE_BYTES) as u64;
    let node = heap.allocate(counts_at + 8);
    heap.write_words(node, &[0]);
    for (place, (key, value)) in (0..).zip(&entries[..entries.len().min(NODE_ENTRIES)]) {
        let key = exact_string(heap, key);
        heap.write_words(node + keys_at + place * VECTOR_BYTES as u64, &key);
        let value = json(heap, value);
        heap.write(node + values_at + place * VALUE_BYTES as u64, &value);
    }
    heap.write_words(node + counts_at, &[(entries.len() as u64) << 16]);
    node
}

/// A B-tree of numbers, built from sorted entries of 8 bytes each: full nodes, level by level.
pub(super) fn number_tree(heap: &mut Heap, entries: &[(u64, u64)]) {
    // Each node is followed by the entry that goes to the level above.
    let mut level: Vec<(u64, Option<(u64, u64)>)> = entries
        .chunks(NODE_ENTRIES + 1)
        .map(|part| {
            let own = &part[..part.len().min(NODE_ENTRIES)];
            (tree_node(heap, own, &[]), part.get(NODE_ENTRIES).copied())
        })
        .collect();
    while level.len() > 1 {
        let above = level.chunks(NODE_ENTRIES + 1).map(|part| {
            let children: Vec<u64> = part.iter().map(|(node, _)| *node).collect();
            let (last, firsts) = part.split_last().expect("a chunk is not empty");
            let own: Vec<(u64, u64)> = firsts.iter().filter_map(|(_, entry)| *entry).collect();
            let node = tree_node(heap, &own, &children);
            for (place, child) in (0..).zip(&children) {
                heap.write_words(*child, &[node]);
                let count = heap.word(*child + COUNTS_AT);
                heap.write_words(*child + COUNTS_AT, &[count | place]);
            }
            (node, last.1)
        });
        level = above.collect();
    }
}

/// Where a node of a tree of numbers has its place among its siblings and its count of entries.
const COUNTS_AT: u64 = 8 + NODE_ENTRIES as u64 * 16;

fn tree_node(heap: &mut Heap, entries: &[(u64, u64)], children: &[u64]) -> u64 {
    let edges = if children.is_empty() { 0 } else { NODE_ENTRIES as u64 + 1 };
    let node = heap.allocate(COUNTS_AT + 8 + edges * 8);
    let (keys, values): (Vec<u64>, Vec<u64>) = entries.iter().copied().unzip();
    heap.write_words(node, &[0]);
    heap.write_words(node + 8, &keys);
    heap.write_words(node + 8 + NODE_ENTRIES as u64 * 8, &values);
    heap.write_words(node + COUNTS_AT, &[(entries.len() as u64) << 16]);
    heap.write_words(node + COUNTS_AT + 8, children);
    node
}
