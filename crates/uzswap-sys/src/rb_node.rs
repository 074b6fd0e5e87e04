//! The node of a red-black tree, with its links in it.

use std::alloc::{Layout, alloc};
use std::cell::Cell;
use std::num::NonZeroU64;

use intrusive_collections::{KeyAdapter, RBTreeLink, intrusive_adapter};

/// A key with its value and the links of the tree that it is in.
#[derive(Debug)]
pub struct RbNode {
    link: RBTreeLink,
    key: u64,
    /// May change while the node is in a tree: nothing is ordered by it.
    pub value: Cell<NonZeroU64>,
}

pub use adapter::RbAdapter;

mod adapter {
    #![allow(missing_docs, reason = "the macro writes items without any")]

    use super::{RBTreeLink, RbNode, intrusive_adapter};

    intrusive_adapter! {
        /// Where the links are, for a tree that owns its nodes.
        pub RbAdapter = Box<RbNode>: RbNode { link => RBTreeLink }
    }
}

impl KeyAdapter<'_> for RbAdapter {
    type Key = u64;

    fn get_key(&self, node: &RbNode) -> u64 {
        node.key
    }
}

impl RbNode {
    /// A node in no tree; `None` where the heap gives no memory.
    pub fn new(key: u64, value: NonZeroU64) -> Option<Box<RbNode>> {
        let layout = Layout::new::<RbNode>();
        // SAFETY: the layout is not of size zero.
        let place = unsafe { alloc(layout) };
        if place.is_null() {
            return None;
        }
        let place = place.cast::<RbNode>();
        let node = RbNode { link: RBTreeLink::new(), key, value: Cell::new(value) };
        // SAFETY: the place is of a node's size and alignment, and nobody else's.
        unsafe { place.write(node) };
        // SAFETY: it holds a node now, and its memory is what a box of one frees.
        Some(unsafe { Box::from_raw(place) })
    }

    /// Its key.
    pub fn key(&self) -> u64 {
        self.key
    }
}
