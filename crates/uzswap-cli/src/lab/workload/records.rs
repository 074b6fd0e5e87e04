//! Small blocks that point at each other: JSON trees, lists, trees, graphs.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::rng::Rng;
use super::texts::{WORDS, hex_id, sentence, url};
use super::{Heap, Table};

/// Trees of parsed JSON, as services hold them: one array of records a document.
pub(super) fn json_trees(heap: &mut Heap, rng: &mut Rng, bytes: usize) {
    let mut left = bytes;
    while left > 0 {
        let target = left.min(rng.between(1 << 16, 1 << 20));
        let kind = rng.below(3);
        let mut records = Vec::new();
        let mut used = 0;
        while used < target {
            let record = match kind {
                0 => order(rng, records.len()),
                1 => article(rng),
                _ => event(rng),
            };
            used += heap_bytes(&record) + size_of::<Value>();
            records.push(record);
        }
        left = left.saturating_sub(used);
        heap.hold("JSON tree", Value::Array(records));
    }
}

fn order(rng: &mut Rng, number: usize) -> Value {
    let items: Vec<Value> = (0..rng.between(1, 4))
        .map(|_| {
            json!({
                "sku": format!("SKU-{:06}", rng.below(20_000)),
                "quantity": rng.between(1, 5),
                "price": rng.between(100, 20_000) as f64 / 100.0,
            })
        })
        .collect();
    json!({
        "id": number,
        "customer": {"id": rng.below(50_000), "name": sentence(rng, 2), "vip": rng.chance(10)},
        "items": items,
        "status": rng.pick_zipf(&["shipped", "paid", "open", "returned"]),
        "note": null,
    })
}

fn article(rng: &mut Rng) -> Value {
    let tags: Vec<Value> = (0..rng.between(1, 4)).map(|_| json!(rng.pick(&WORDS))).collect();
    let words = rng.between(8, 40);
    let summary = sentence(rng, words);
    json!({"url": url(rng), "title": sentence(rng, 6), "summary": summary, "tags": tags})
}

fn event(rng: &mut Rng) -> Value {
    let mut attributes = Map::new();
    for _ in 0..rng.between(2, 5) {
        attributes.insert((*rng.pick(&WORDS)).to_owned(), json!(rng.below(1000)));
    }
    let at = 1_769_846_400 + rng.below(86_400);
    json!({"trace": hex_id(rng, 16), "at": at, "attributes": attributes})
}

/// About what a value takes from the heap, headers of malloc included.
fn heap_bytes(value: &Value) -> usize {
    match value {
        Value::String(text) => block_bytes(text.capacity()),
        Value::Array(values) => {
            block_bytes(values.capacity() * size_of::<Value>())
                + values.iter().map(heap_bytes).sum::<usize>()
        }
        // serde_json's map is a B-tree: leaves of 11 keys and values, however few are used.
        Value::Object(map) => {
            let leaf = 11 * (size_of::<String>() + size_of::<Value>()) + 16;
            block_bytes(leaf) * map.len().div_ceil(11)
                + map
                    .iter()
                    .map(|(key, value)| block_bytes(key.len()) + heap_bytes(value))
                    .sum::<usize>()
        }
        _ => 0,
    }
}

/// What malloc takes for a block.
fn block_bytes(bytes: usize) -> usize {
    (bytes + 8).next_multiple_of(16).max(32)
}

/// A singly linked node.
struct ListNode {
    _key: u64,
    _flags: u32,
    _hits: u32,
    next: Option<Box<ListNode>>,
}

/// A list, dropped by a loop: a recursive drop of a long list overflows the stack.
struct List {
    head: Option<Box<ListNode>>,
}

impl Drop for List {
    fn drop(&mut self) {
        let mut node = self.head.take();
        while let Some(mut inner) = node {
            node = inner.next.take();
        }
    }
}

/// A node of an unbalanced search tree of random keys: about 2 ln(n) deep.
#[derive(Default)]
struct TreeNode {
    key: u64,
    _value: u64,
    _count: u32,
    children: [Option<Box<TreeNode>>; 2],
}

/// A vertex: edges are indices, as in a graph kept in a vector.
struct Vertex {
    _edges: Vec<u32>,
    _weight: f32,
    _label: Box<str>,
}

/// Lists, trees and graphs of small nodes.
pub(super) fn pointers(heap: &mut Heap, rng: &mut Rng, bytes: usize) {
    let mut left = bytes;
    while left > 0 {
        let target = left.min(rng.between(1 << 18, 1 << 21));
        left -= target;
        match rng.below(4) {
            0 => heap.hold("linked list", list(rng, target / block_bytes(size_of::<ListNode>()))),
            1 => heap.hold("search tree", tree(rng, target / block_bytes(size_of::<TreeNode>()))),
            2 => heap.hold("graph", graph(rng, target / 125)),
            _ => heap.hold("B-tree", btree(rng, target / 30)),
        }
    }
}

fn list(rng: &mut Rng, nodes: usize) -> List {
    let mut head = None;
    for index in 0..nodes {
        head = Some(Box::new(ListNode {
            _key: index as u64 * 8,
            _flags: if rng.chance(90) { 1 } else { 0x8001 },
            _hits: (rng.next() >> 60) as u32,
            next: head,
        }));
    }
    List { head }
}

fn tree(rng: &mut Rng, nodes: usize) -> Option<Box<TreeNode>> {
    let mut root: Option<Box<TreeNode>> = None;
    for index in 0..nodes {
        let key = rng.next() >> 32;
        let mut place = &mut root;
        while let Some(node) = place {
            place = &mut node.children[usize::from(key > node.key)];
        }
        let value = index as u64 * 64;
        *place = Some(Box::new(TreeNode { key, _value: value, ..TreeNode::default() }));
    }
    root
}

fn graph(rng: &mut Rng, vertices: usize) -> Vec<Vertex> {
    (0..vertices)
        .map(|index| Vertex {
            _edges: (0..rng.between(1, 12))
                .map(|_| (index as u32).wrapping_add(rng.below(1 << 10) as u32))
                .collect(),
            _weight: rng.below(100) as f32 / 10.0,
            _label: format!("node-{index}").into(),
        })
        .collect()
}

fn btree(rng: &mut Rng, entries: usize) -> (BTreeMap<u64, (u32, u32)>, Table<u64, u32>) {
    let (in_tree, in_table) = (entries * 3 / 4, entries / 4);
    let tree = (0..in_tree).map(|index| (rng.next() >> 24, (index as u32, 1))).collect();
    let table = (0..in_table).map(|index| (index as u64 * 3, rng.below(100) as u32)).collect();
    (tree, table)
}
