//! The red-black tree that zswap had until kernel 6.9: a node an entry, linked where it lies.
//!
//! The tree is the one of `intrusive-collections`, with parent, child and colour in 24 bytes as in
//! the kernel. The base of every comparison, so as good as possible: one descent for each
//! operation, one allocation for each new key, and none to replace an entry. Nodes are charged to
//! the budget in bundles, some of which are charged ahead.

use std::fmt;
use std::sync::Arc;

use intrusive_collections::rbtree;
use intrusive_collections::{Bound, RBTree};

use super::{Entry, Index, IndexError, KeyRange, Replaced, Visit};
use crate::AuditError;
use crate::budget::Budget;
use crate::page::PageKey;
use uzswap_sys::rb_node::{RbAdapter, RbNode};

/// Nodes that are charged, and later uncharged, at once.
const BUNDLE_NODES: usize = 32;

/// The index as a red-black tree.
pub struct RbTree {
    tree: RBTree<RbAdapter>,
    count: usize,
    budget: Arc<Budget>,
    /// Nodes that the budget has been charged for: never fewer than there are.
    charged_nodes: usize,
}

fn node_bytes(nodes: usize) -> u64 {
    (nodes * size_of::<RbNode>()) as u64
}

impl RbTree {
    /// An empty index whose memory is charged to `budget`.
    pub fn on(budget: &Arc<Budget>) -> RbTree {
        let budget = Arc::clone(budget);
        RbTree { tree: RBTree::new(RbAdapter::new()), count: 0, budget, charged_nodes: 0 }
    }

    /// Counts nodes that have been freed. A bundle stays charged beside the one that is not used
    /// up, until the tree is empty.
    fn removed(&mut self, nodes: usize) {
        self.count -= nodes;
        let kept = match self.count {
            0 => 0,
            count => (count.div_ceil(BUNDLE_NODES) + 1) * BUNDLE_NODES,
        };
        if kept < self.charged_nodes {
            self.budget.uncharge_metadata(node_bytes(self.charged_nodes - kept));
            self.charged_nodes = kept;
        }
    }
}

impl Drop for RbTree {
    fn drop(&mut self) {
        self.tree.clear();
        self.budget.uncharge_metadata(node_bytes(self.charged_nodes));
    }
}

impl fmt::Debug for RbTree {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RbTree").field("count", &self.count).finish_non_exhaustive()
    }
}

impl Index for RbTree {
    fn name(&self) -> &'static str {
        "rbtree"
    }

    fn insert_or_replace(&mut self, key: PageKey, entry: Entry) -> Replaced {
        match self.tree.entry(&key.0) {
            rbtree::Entry::Occupied(cursor) => {
                let node = cursor.get().expect("an occupied entry has a node");
                Ok(Some(Entry(node.value.replace(entry.0))))
            }
            rbtree::Entry::Vacant(place) => {
                if self.count == self.charged_nodes {
                    self.budget.charge_metadata(node_bytes(BUNDLE_NODES))?;
                    self.charged_nodes += BUNDLE_NODES;
                }
                let Some(node) = RbNode::new(key.0, entry.0) else {
                    self.removed(0);
                    return Err(IndexError::NoMemory);
                };
                place.insert(node);
                self.count += 1;
                Ok(None)
            }
        }
    }

    fn get(&self, key: PageKey) -> Option<Entry> {
        self.tree.find(&key.0).get().map(|node| Entry(node.value.get()))
    }

    fn remove(&mut self, key: PageKey, only: Option<Entry>) -> Option<Entry> {
        let mut cursor = self.tree.find_mut(&key.0);
        let entry = Entry(cursor.get()?.value.get());
        if only.is_some_and(|only| only != entry) {
            return None;
        }
        cursor.remove();
        self.removed(1);
        Some(entry)
    }

    fn take_range(&mut self, range: KeyRange, max: usize, taken: Visit<'_>) -> usize {
        let mut cursor = self.tree.lower_bound_mut(Bound::Included(&range.start().0));
        let mut count = 0;
        while count < max && cursor.get().is_some_and(|node| node.key() <= range.end().0) {
            let node = cursor.remove().expect("it was just looked at");
            taken(PageKey(node.key()), Entry(node.value.get()));
            count += 1;
        }
        self.removed(count);
        count
    }

    fn for_each(&self, range: KeyRange, visit: Visit<'_>) {
        let mut cursor = self.tree.lower_bound(Bound::Included(&range.start().0));
        while let Some(node) = cursor.get().filter(|node| node.key() <= range.end().0) {
            visit(PageKey(node.key()), Entry(node.value.get()));
            cursor.move_next();
        }
    }

    fn count(&self) -> usize {
        self.count
    }

    /// Of the nodes that are charged, each an allocation of its own: the C heap's 8 bytes for each
    /// come on top.
    fn bytes(&self) -> usize {
        self.charged_nodes * size_of::<RbNode>() + size_of::<Self>()
    }

    /// The order of keys, and the count. Colours and links are the crate's own.
    fn audit(&self) -> Result<(), AuditError> {
        let mut count = 0;
        let mut before: Option<u64> = None;
        for node in self.tree.iter() {
            if before.is_some_and(|before| before >= node.key()) {
                return Err(format!("key {:#x} is not after {before:#x?}", node.key()).into());
            }
            before = Some(node.key());
            count += 1;
        }
        if count != self.count {
            return Err(format!("{count} entries, {} counted", self.count).into());
        }
        if !(count..=count + 2 * BUNDLE_NODES).contains(&self.charged_nodes) {
            return Err(format!("{count} entries, {} nodes charged", self.charged_nodes).into());
        }
        Ok(())
    }
}
