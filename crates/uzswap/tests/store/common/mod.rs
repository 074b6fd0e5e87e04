//! Code that the tests of the allocators share: a list of them, and the slow model that each of
//! them is held against.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use uzswap::budget::{Budget, Counted, GrowError, OverBudget};
use uzswap::page::PAGE_SIZE;
use uzswap::zpool::zsmalloc::{ChainRule, HandleHeader, ObjectMapping, ZsmallocOptions};
use uzswap::zpool::{Arena, ArenaError, Handle, UnknownHandle, Zpool, ZpoolError, ZpoolKind};

/// An allocator with its options.
#[derive(Clone, Copy)]
pub(crate) struct Subject {
    pub(crate) name: &'static str,
    pub(crate) build: fn(Arc<Arena>) -> Box<dyn Zpool>,
}

/// A new allocator, or a new option of one, is tested by a line here.
pub(crate) const SUBJECTS: [Subject; 12] = [
    Subject { name: "zbud", build: |arena| kind(ZpoolKind::Zbud, arena) },
    Subject { name: "z3fold", build: |arena| kind(ZpoolKind::Z3fold, arena) },
    Subject { name: "zsmalloc", build: |arena| zsmalloc(arena, 8, true, false) },
    Subject { name: "zsmalloc-4-used", build: |arena| zsmalloc(arena, 4, false, false) },
    Subject { name: "zsmalloc-16-used", build: |arena| zsmalloc(arena, 16, false, false) },
    Subject { name: "zsmalloc-16-beside", build: |arena| zsmalloc(arena, 16, true, true) },
    Subject { name: "zsmalloc-4-beside", build: |arena| zsmalloc(arena, 4, true, true) },
    Subject { name: "zsmalloc-copy", build: |arena| mapped(arena, ObjectMapping::Copy, false) },
    Subject {
        name: "zsmalloc-copy-beside",
        build: |arena| mapped(arena, ObjectMapping::Copy, true),
    },
    Subject { name: "zsmalloc-vm", build: |arena| mapped(arena, ObjectMapping::Vm, false) },
    Subject { name: "zblock", build: |arena| kind(ZpoolKind::Zblock, arena) },
    Subject { name: "packed", build: |arena| kind(ZpoolKind::Packed, arena) },
];

/// Those whose names begin like this.
pub(crate) fn subjects(prefix: &str) -> Vec<Subject> {
    SUBJECTS.into_iter().filter(|subject| subject.name.starts_with(prefix)).collect()
}

fn kind(kind: ZpoolKind, arena: Arc<Arena>) -> Box<dyn Zpool> {
    kind.build(arena, ZsmallocOptions::default())
}

fn zsmalloc(arena: Arc<Arena>, chain_size: usize, least: bool, beside: bool) -> Box<dyn Zpool> {
    let chain_rule = if least { ChainRule::LeastWaste } else { ChainRule::UsedPercent };
    let handle_header = if beside { HandleHeader::Beside } else { HandleHeader::InObject };
    let options = ZsmallocOptions::default()
        .chain_size(chain_size)
        .chain_rule(chain_rule)
        .handle_header(handle_header);
    uzswap::zpool::zsmalloc::build(arena, options)
}

fn mapped(arena: Arc<Arena>, mapping: ObjectMapping, beside: bool) -> Box<dyn Zpool> {
    let handle_header = if beside { HandleHeader::Beside } else { HandleHeader::InObject };
    let options = ZsmallocOptions::default().handle_header(handle_header).mapping(mapping);
    uzswap::zpool::zsmalloc::build(arena, options)
}

/// A pool and what must be in it.
pub(crate) struct Modelled {
    pub(crate) pool: Box<dyn Zpool>,
    pub(crate) arena: Arc<Arena>,
    /// By handle bits.
    objects: HashMap<u64, Vec<u8>>,
    /// Live handles, oldest first.
    pub(crate) live: Vec<Handle>,
    /// Handles that were removed; none of them may come again.
    removed: HashSet<u64>,
    /// Metadata of the pool and the arena while they are empty, which is not charged.
    fixed_bytes: usize,
}

impl Modelled {
    pub(crate) fn new(subject: Subject, arena: Arc<Arena>) -> Modelled {
        let pool = (subject.build)(Arc::clone(&arena));
        let metadata_bytes = pool.stats().metadata_bytes + arena.stats().metadata_bytes;
        Modelled {
            // An arena that was used before has lists, which are charged.
            fixed_bytes: metadata_bytes - arena.budget().metadata_bytes() as usize,
            pool,
            arena,
            objects: HashMap::new(),
            live: Vec::new(),
            removed: HashSet::new(),
        }
    }

    /// Inserts; the error must be the one that the length or the arena's limit calls for, and must
    /// change nothing.
    pub(crate) fn insert(&mut self, object: Vec<u8>) -> Result<Handle, ZpoolError> {
        let before = self.pool.stats();
        let result = self.pool.insert(&object);
        match (&result, object.len()) {
            (Err(ZpoolError::Empty), 0) => {}
            (Err(ZpoolError::TooBig { zpool, bytes, max }), len) => {
                assert_eq!((*zpool, *bytes), (self.pool.name(), len));
                assert_eq!(*max, self.pool.object_size_max());
                assert!(len > *max, "an object of {len} bytes refused");
            }
            (
                Err(
                    ZpoolError::NoPages(ArenaError::Limit { source: over, .. })
                    | ZpoolError::NoTables(GrowError::OverBudget(over)),
                ),
                _,
            ) => {
                let OverBudget { asked_bytes, used_bytes, max_bytes, counted } = *over;
                assert!(asked_bytes + used_bytes > max_bytes, "refused below the limit");
                if counted == Counted::Pool {
                    assert_eq!(used_bytes, (before.pool_pages * PAGE_SIZE) as u64);
                }
            }
            (Err(error), len) => panic!("an object of {len} bytes: {error}"),
            (Ok(handle), len) => {
                assert!((1..=self.pool.object_size_max()).contains(&len), "{len} bytes taken");
                assert!(!self.removed.contains(&handle.to_bits()), "{handle:?} given again");
                let twice = self.objects.insert(handle.to_bits(), object);
                assert!(twice.is_none(), "{handle:?} given twice");
                self.live.push(*handle);
            }
        }
        if result.is_err() {
            // Tables may have grown, so that the next attempt finds room in them.
            let mut after = self.pool.stats();
            after.metadata_bytes = before.metadata_bytes;
            assert_eq!(after, before, "a failed insert changed the pool");
        }
        result
    }

    /// Reads an object and compares it.
    pub(crate) fn read(&self, handle: Handle) {
        let object = &self.objects[&handle.to_bits()];
        let mut calls = 0;
        let result = self.pool.read(handle, &mut |slot| {
            calls += 1;
            let longest = object.len().max(PAGE_SIZE);
            assert!((object.len()..=longest).contains(&slot.len()), "{handle:?}: slot");
            let same = slot[..object.len()] == object[..];
            assert!(same, "{handle:?}: an object of {} bytes has changed", object.len());
        });
        assert_eq!((result, calls), (Ok(()), 1), "{handle:?}");
    }

    /// Removes the `n`th oldest object.
    pub(crate) fn remove(&mut self, n: usize) {
        let handle = self.live.remove(n);
        self.read(handle);
        self.objects.remove(&handle.to_bits());
        self.removed.insert(handle.to_bits());
        assert_eq!(self.pool.remove(handle), Ok(()));
        self.check_unknown(handle);
    }

    /// No call may take this handle for an object.
    pub(crate) fn check_unknown(&self, handle: Handle) {
        let mut called = false;
        let result = self.pool.read(handle, &mut |_| called = true);
        assert_eq!((result, called), (Err(UnknownHandle(handle)), false));
        assert_eq!(self.pool.remove(handle), Err(UnknownHandle(handle)));
    }

    /// Compacts; the pages freed must be those that are gone.
    pub(crate) fn compact(&mut self) {
        let before = self.pool.stats();
        let freed = self.pool.compact();
        let after = self.pool.stats();
        assert_eq!(after.pool_pages + freed, before.pool_pages, "pages freed by compaction");
        assert_eq!(after.pages_compacted, before.pages_compacted + freed);
        let freeable: usize =
            self.pool.class_stats().iter().map(|class| class.freeable_pages).sum();
        assert_eq!(freeable, 0, "compaction left something to gain");
        assert_eq!(self.pool.compact(), 0, "compaction was not done");
    }

    /// Audit, contents and counts.
    pub(crate) fn check(&self) {
        self.pool.audit().unwrap();
        self.live.iter().for_each(|&handle| self.read(handle));
        let stats = self.pool.stats();
        assert_eq!(stats.objects, self.live.len(), "objects");
        assert_eq!(stats.pool_pages, self.arena.stats().used_pages, "pages");
        self.check_budget();
        assert_eq!(stats.objects == 0, stats.pool_pages == 0, "an empty pool has no pages");
        let bytes: usize = self.objects.values().map(Vec::len).sum();
        assert!(bytes <= stats.pool_pages * PAGE_SIZE, "{bytes} bytes in {stats:?}");
        match self.pool.name() {
            "zbud" => {
                assert!((stats.objects.div_ceil(2)..=stats.objects).contains(&stats.pool_pages))
            }
            "z3fold" => {
                assert!((stats.objects.div_ceil(3)..=stats.objects).contains(&stats.pool_pages));
            }
            "packed" => {
                // Each object has a header of 6 bytes; a region has 4 pages or more.
                assert!(bytes + 6 * stats.objects <= stats.pool_pages * PAGE_SIZE, "{stats:?}");
            }
            _ => {
                let sum = |field: fn(&uzswap::zpool::zsmalloc::ClassStats) -> usize| -> usize {
                    self.pool.class_stats().iter().map(field).sum()
                };
                assert_eq!(sum(|class| class.pool_pages), stats.pool_pages);
                assert_eq!(sum(|class| class.slots_used), stats.objects);
                assert!(sum(|class| class.slots_allocated) >= stats.objects);
            }
        }
    }

    /// The budget has what the pool and the arena say they have.
    fn check_budget(&self) {
        let (pool, arena, budget) = (self.pool.stats(), self.arena.stats(), self.arena.budget());
        assert_eq!(budget.pool_bytes(), (pool.pool_pages * PAGE_SIZE) as u64);
        assert_eq!(budget.reserve_bytes(), (arena.reserve_pages * PAGE_SIZE) as u64);
        let metadata_bytes = pool.metadata_bytes + arena.metadata_bytes - self.fixed_bytes;
        assert_eq!(budget.metadata_bytes(), metadata_bytes as u64);
        check_sum(budget);
    }

    /// Ends the pool, full or not: every page must go back.
    pub(crate) fn finish(self) {
        let arena = Arc::clone(&self.arena);
        drop(self);
        assert_eq!(arena.stats().used_pages, 0, "pages lost with the pool");
        let budget = Arc::clone(arena.budget());
        assert_eq!(budget.pool_bytes(), 0);
        let is_last = Arc::into_inner(arena).is_some();
        check_sum(&budget);
        if is_last {
            assert_eq!((budget.reserve_bytes(), budget.metadata_bytes()), (0, 0));
        }
    }
}

/// A budget limits the sum of its counted parts.
fn check_sum(budget: &Budget) {
    let beside = budget.reserve_bytes() + budget.metadata_bytes();
    let used_bytes = match budget.counted() {
        Counted::Pool => budget.pool_bytes(),
        Counted::PoolAndMetadata => budget.pool_bytes() + beside,
    };
    assert_eq!(budget.used_bytes(), used_bytes);
    assert!(budget.peak_bytes() <= budget.max_bytes() && used_bytes <= budget.peak_bytes());
}
