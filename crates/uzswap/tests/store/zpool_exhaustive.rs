//! Goal: no short history breaks an allocator.
//! Method: all histories of up to six or seven operations over object lengths on the borders of the
//! layout. An operation inserts one of them, removes the nth oldest object, or compacts. After
//! each: audit, contents and counts against the model (`tests/common`).
//! Blind to: what takes more.

use crate::common;

use std::sync::Arc;
use std::thread;

use common::{Modelled, SUBJECTS};
use uzswap::zpool::Arena;

#[derive(Debug, Clone, Copy)]
enum Operation {
    /// An object of so many bytes.
    Insert(usize),
    /// The nth oldest object.
    Remove(usize),
    Compact,
}

use Operation::{Compact, Insert, Remove};

/// The histories of one subject.
struct Walk {
    subject: common::Subject,
    lengths: &'static [usize],
    operations: usize,
    arena: Arc<Arena>,
    history: Vec<Operation>,
    histories: usize,
}

impl Walk {
    /// Runs the history, checks where it ends, goes on to all that are one operation longer.
    fn descend(&mut self) {
        let mut pool = Modelled::new(self.subject, Arc::clone(&self.arena));
        for (n, operation) in self.history.iter().enumerate() {
            match *operation {
                // Each object is filled with its number.
                Insert(bytes) => drop(pool.insert(vec![n as u8 + 1; bytes]).unwrap()),
                Remove(n) => pool.remove(n),
                Compact => pool.compact(),
            }
        }
        pool.check();
        let live = pool.live.len();
        pool.finish();
        self.histories += 1;
        if self.history.len() == self.operations {
            return;
        }
        let inserts = self.lengths.iter().map(|&bytes| Insert(bytes));
        for operation in inserts.chain((0..live).map(Remove)).chain([Compact]) {
            self.history.push(operation);
            self.descend();
            self.history.pop();
        }
    }
}

impl Drop for Walk {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("{}: {:?}", self.subject.name, self.history);
            eprintln!("  replay: the same test again, it has no randomness");
        }
    }
}

fn walk(name: &str, operations: usize, lengths: &'static [usize]) {
    let subject = SUBJECTS.into_iter().find(|subject| subject.name == name).unwrap();
    let arena = Arc::new(Arena::new());
    let mut walk = Walk { subject, lengths, operations, arena, history: Vec::new(), histories: 0 };
    walk.descend();
    println!("{name}: {} histories", walk.histories);
}

#[test]
fn zbud() {
    // 31 and 32 chunks fill a page, 32 and 32 do not fit, 62 leave one.
    walk("zbud", 6, &[64, 31 * 64, 32 * 64 - 1, 32 * 64 + 1, 62 * 64]);
}

#[test]
fn z3fold() {
    // Gaps of 2 and 3 chunks beside 20s, the largest shared object, the smallest headless one.
    walk("z3fold", 6, &[128, 20 * 64, 20 * 64 + 1, 39 * 64, 3904, 3905]);
}

#[test]
fn zblock() {
    // Two slots of 2024 bytes in a page, and four of 4080 in four: at the borders of the types.
    walk("zblock", 7, &[2023, 4079]);
    // Five types: objects of 144, 2024 and 3632 bytes are as long as a slot, and go one type up.
    walk("zblock", 5, &[1, 143, 144, 2023, 2024, 3632, 4079]);
}

#[test]
fn zsmalloc() {
    // Slots of 2048 bytes (2 in a page) and 2720 bytes (3 in 2 pages).
    walk("zsmalloc", 7, &[2000, 2700]);
}

#[test]
fn zsmalloc_with_separate_pages() {
    // The same slots; of 2720 bytes, the second crosses the border.
    walk("zsmalloc-copy", 6, &[2000, 2700]);
    walk("zsmalloc-vm", 6, &[2000, 2700]);
}

#[test]
fn zsmalloc_with_handles_beside() {
    // The same slots, and 4096 (alone in a page).
    walk("zsmalloc-4-beside", 6, &[2048, 2720, 4096]);
}

#[test]
fn packed() {
    // Regions of 16,384 bytes: the largest object with one, 10 bytes that leave a filler beside it,
    // half a region, and more than the rest of one.
    walk("packed", 6, &[16_378, 16_368, 8_186, 5_000, 10]);
}
