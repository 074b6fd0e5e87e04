//! Small blocks that point at each other: JSON trees, lists, trees, graphs.

use serde_json::{Map, Value, json};

use super::collections::{Growing, Table, bytes_of, exact, exact_string, json, number_tree};
use super::heap::Heap;
use super::rng::Rng;
use super::texts::{WORDS, hex_id, sentence, url};
use uzswap::random::mix;

/// Trees of parsed JSON, as services hold them: one array of records a document.
pub(super) fn json_trees(heap: &mut Heap, rng: &mut Rng, bytes: usize) {
    let end = heap.bytes() + bytes;
    while heap.bytes() < end {
        let target = (end - heap.bytes()).min(rng.between(1 << 16, 1 << 20));
        let document_end = heap.bytes() + target;
        let kind = rng.below(3);
        let mut records = Growing::new(32, 4);
        let mut count = 0;
        while heap.bytes() < document_end {
            let record = match kind {
                0 => order(rng, count),
                1 => article(rng),
                _ => event(rng),
            };
            let record = json(heap, &record);
            records.push(heap, &record);
            count += 1;
        }
        records.finish(heap);
        heap.parts.push("JSON tree");
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

/// Lists, trees and graphs of small nodes.
pub(super) fn pointers(heap: &mut Heap, rng: &mut Rng, bytes: usize) {
    let end = heap.bytes() + bytes;
    while heap.bytes() < end {
        let target = (end - heap.bytes()).min(rng.between(1 << 18, 1 << 21));
        let part = match rng.below(4) {
            0 => list(heap, rng, target / 32),
            1 => tree(heap, rng, target / 48),
            2 => graph(heap, rng, target / 125),
            _ => maps(heap, rng, target / 24),
        };
        heap.parts.push(part);
    }
}

/// A singly linked list: a key, flags and hits, the next node.
fn list(heap: &mut Heap, rng: &mut Rng, nodes: usize) -> &'static str {
    let mut head = 0;
    for number in 0..=nodes as u64 {
        let flags = if rng.chance(90) { 1 } else { 0x8001 };
        let hits = rng.next() >> 60;
        head = exact(heap, &bytes_of(&[number * 8, hits << 32 | flags, head]));
    }
    "linked list"
}

/// An unbalanced search tree of random keys, about 2 ln(n) deep. A node has a key, a value, a
/// count, and two children.
fn tree(heap: &mut Heap, rng: &mut Rng, nodes: usize) -> &'static str {
    // Keys, addresses, and the numbers of children; 0, the root, is the child of none.
    let mut all: Vec<(u64, u64, [usize; 2])> = Vec::new();
    for number in 0..=nodes {
        let key = rng.next() >> 32;
        let address = exact(heap, &bytes_of(&[key, number as u64 * 64, 0, 0, 0]));
        all.push((key, address, [0; 2]));
        if number > 0 {
            let (parent, side) = place_of(&all, key);
            all[parent].2[side] = number;
            heap.write_words(all[parent].1 + 24 + side as u64 * 8, &[address]);
        }
    }
    "search tree"
}

/// The node below which a key belongs, and on which side.
fn place_of(all: &[(u64, u64, [usize; 2])], key: u64) -> (usize, usize) {
    let mut place = 0;
    loop {
        let (node_key, _, children) = all[place];
        let side = usize::from(key > node_key);
        match children[side] {
            0 => return (place, side),
            child => place = child,
        }
    }
}

/// A graph in a vector of vertices: edges as indices, a label, a weight.
fn graph(heap: &mut Heap, rng: &mut Rng, vertices: usize) -> &'static str {
    let mut all = Growing::new(48, vertices + 1);
    for index in 0..=vertices {
        let edges: Vec<u8> = (0..rng.between(1, 12))
            .flat_map(|_| (index as u32).wrapping_add(rng.below(1 << 10) as u32).to_le_bytes())
            .collect();
        let weight = rng.below(100) as f32 / 10.0;
        let count = edges.len() as u64 / 4;
        let edges = exact(heap, &edges);
        let [_, label, length] = exact_string(heap, &format!("node-{index}"));
        let vertex = [count, edges, count, label, length, u64::from(weight.to_bits())];
        all.push(heap, &bytes_of(&vertex));
    }
    all.finish(heap);
    "graph"
}

/// Three quarters of the entries in a B-tree, a quarter in a hash table of numbers.
fn maps(heap: &mut Heap, rng: &mut Rng, entries: usize) -> &'static str {
    let (in_tree, in_table) = (entries as u64 * 3 / 4, entries as u64 / 4);
    let mut sorted: Vec<(u64, u64)> =
        (0..in_tree).map(|index| (rng.next() >> 24, 1 << 32 | index)).collect();
    sorted.sort_unstable();
    number_tree(heap, &sorted);
    let mut table = Table::new(16);
    for index in 0..=in_table {
        let entry = bytes_of(&[index * 3, rng.below(100) as u64]);
        table.insert(heap, mix(index * 3), &entry);
    }
    table.finish(heap);
    "B-tree"
}
