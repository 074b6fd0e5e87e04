//! Objects in size classes: slots of equal size in zspages of 1 to 16 host pages.
//!
//! ```text
//!  object of n bytes -> class of n + 8 -> fullest zspage with room -> a slot
//!                                          '-- none: a new zspage from the arena
//!  handle -> cell -> zspage, slot          compaction rewrites the cell
//! ```
//!
//! The classes, the choice of a zspage, the order of slots and the compaction are the kernel's: the
//! same sizes in the same order give the same number of host pages. The table of classes is in
//! `docs/reference/size-classes.md`. Two things differ:
//!
//! - a zspage is contiguous in the address space, so an object is read in place even where it
//!   crosses a page border; [`ObjectMapping`] has what kernels do instead;
//! - [`HandleHeader::Beside`], an option, keeps the handle out of the object.
//!
//! Each class has a lock of its own. An object stays in its class for life, and its handle says
//! which it is.

mod class;
mod mapping;
mod zspage;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

pub use class::{
    CHAIN_SIZE_MAX, CHAIN_SIZE_MIN, CLASS_INDEXES, ChainRule, ClassTable, FULLNESS_GROUPS,
    HANDLE_BYTES, HandleHeader, SizeClass, ZsmallocOptions, fullness_group,
};
pub use mapping::{
    Contiguous, CopiedPages, Crossing, MappedPages, ObjectMapping, SeparatePages, WriteMode,
    ZspagePages,
};
use zspage::ClassPages;

use super::lock::PoolLock;
use super::{Arena, Handle, UnknownHandle, Zpool, ZpoolError, ZpoolStats, check_object};
use crate::AuditError;
use crate::page::PAGE_SIZE;

/// The allocator of size classes. `P` is its [`ObjectMapping`], chosen when it is compiled;
/// [`build`] chooses by name.
#[derive(Debug)]
pub struct Zsmalloc<P: ZspagePages> {
    arena: Arc<Arena>,
    table: ClassTable,
    classes: Vec<PoolLock<ClassPages<P>>>,
    pool_pages: AtomicUsize,
    pages_compacted: AtomicUsize,
    compacting: AtomicBool,
}

/// State of one size class, as a line of the kernel's debug file. Of zblock: of one type, with its
/// blocks as zspages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClassStats {
    /// The class.
    pub class: SizeClass,
    /// Zspages per fullness group: empty, up to 10 %, ... up to 99 %, full.
    pub group_zspages: [usize; FULLNESS_GROUPS],
    /// Slots of all zspages.
    pub slots_allocated: usize,
    /// Slots in use.
    pub slots_used: usize,
    /// Host pages of all zspages.
    pub pool_pages: usize,
    /// Host pages that compaction would free.
    pub freeable_pages: usize,
}

/// An empty pool of these options.
///
/// # Panics
///
/// If the chain size is out of its range.
pub fn build(arena: Arc<Arena>, options: ZsmallocOptions) -> Box<dyn Zpool> {
    match options.mapping {
        ObjectMapping::Contiguous => Box::new(Zsmalloc::<Contiguous>::new(arena, options)),
        ObjectMapping::Copy => Box::new(Zsmalloc::<CopiedPages>::new(arena, options)),
        ObjectMapping::Vm => Box::new(Zsmalloc::<MappedPages>::new(arena, options)),
    }
}

impl<P: ZspagePages> Zsmalloc<P> {
    /// An empty pool. The mapping of `options` is not looked at: `P` is the mapping.
    ///
    /// # Panics
    ///
    /// If the chain size is out of its range.
    pub fn new(arena: Arc<Arena>, options: ZsmallocOptions) -> Zsmalloc<P> {
        let table = ClassTable::new(options);
        let in_slot = options.handle_header == HandleHeader::InObject;
        let classes = table.classes().iter().enumerate().map(|(place, &class)| {
            let header_in_slot = in_slot && !class.is_huge();
            PoolLock::new(ClassPages::new(place, class, header_in_slot, arena.budget()))
        });
        Zsmalloc {
            classes: classes.collect(),
            arena,
            table,
            pool_pages: AtomicUsize::new(0),
            pages_compacted: AtomicUsize::new(0),
            compacting: AtomicBool::new(false),
        }
    }

    /// The size classes.
    pub fn table(&self) -> &ClassTable {
        &self.table
    }

    /// [`Zpool::read`], compiled for its reader.
    ///
    /// # Errors
    ///
    /// [`UnknownHandle`]; `reader` was not called.
    #[inline]
    pub fn read(&self, handle: Handle, reader: impl FnOnce(&[u8])) -> Result<(), UnknownHandle> {
        let class = self.class_of(handle)?.read();
        class.read(handle, reader).ok_or(UnknownHandle(handle))
    }

    /// Calls `writer` once with the object's slot, to change the object: its bytes first, then the
    /// slack. Nobody else reads or writes the class meanwhile, and `writer` must not call the pool.
    ///
    /// With [`WriteMode::WriteOnly`] the bytes that `writer` finds may be of any object of the
    /// process, and those that it leaves alone become part of this one. Where `writer` panics,
    /// what it has changed may be lost.
    ///
    /// # Errors
    ///
    /// [`UnknownHandle`]; `writer` was not called.
    #[inline]
    pub fn write(
        &self,
        handle: Handle,
        mode: WriteMode,
        writer: impl FnOnce(&mut [u8]),
    ) -> Result<(), UnknownHandle> {
        let mut class = self.class_of(handle)?.write();
        class.write(handle, mode, writer).ok_or(UnknownHandle(handle))
    }

    /// Whether the slot of an object is in two host pages: an access has more to do then, unless
    /// the pages are contiguous.
    ///
    /// # Errors
    ///
    /// [`UnknownHandle`].
    pub fn crosses_pages(&self, handle: Handle) -> Result<bool, UnknownHandle> {
        self.class_of(handle)?.read().crosses_pages(handle).ok_or(UnknownHandle(handle))
    }

    fn class_of(&self, handle: Handle) -> Result<&PoolLock<ClassPages<P>>, UnknownHandle> {
        self.classes.get(handle.set()).ok_or(UnknownHandle(handle))
    }
}

impl<P: ZspagePages> Zpool for Zsmalloc<P> {
    fn name(&self) -> &'static str {
        "zsmalloc"
    }

    fn object_size_max(&self) -> usize {
        PAGE_SIZE
    }

    fn insert(&self, object: &[u8]) -> Result<Handle, ZpoolError> {
        check_object(self.name(), object.len(), self.object_size_max())?;
        let lock = &self.classes[self.table.place_of(object.len())];
        let mut class = lock.write_reserved()?;
        if let Some(zspage) = class.zspage_with_room() {
            return Ok(class.place(zspage, object));
        }
        let count = class.class().pages;
        drop(class);
        let pages = P::take(&self.arena, count)?;
        let (mut class, pages) = lock.write_with(pages, |pages| pages.give_back(&self.arena))?;
        self.pool_pages.fetch_add(count, Ordering::Relaxed);
        let zspage = class.add_zspage(pages);
        Ok(class.place(zspage, object))
    }

    fn read(&self, handle: Handle, reader: &mut dyn FnMut(&[u8])) -> Result<(), UnknownHandle> {
        self.read(handle, reader)
    }

    fn remove(&self, handle: Handle) -> Result<(), UnknownHandle> {
        let emptied = self.class_of(handle)?.write().remove(handle).ok_or(UnknownHandle(handle))?;
        if let Some(pages) = emptied {
            self.pool_pages.fetch_sub(pages.page_count(), Ordering::Relaxed);
            pages.give_back(&self.arena);
        }
        Ok(())
    }

    fn compact(&self) -> usize {
        if self.compacting.swap(true, Ordering::Acquire) {
            return 0;
        }
        let mut freed = 0;
        let mut emptied = Vec::new();
        for lock in self.classes.iter().rev() {
            // The lock is let go after each filled zspage.
            while lock.write().compact_step(&mut emptied) {}
            lock.write().release_if_empty();
            for pages in emptied.drain(..) {
                freed += pages.page_count();
                self.pool_pages.fetch_sub(pages.page_count(), Ordering::Relaxed);
                pages.give_back(&self.arena);
            }
        }
        self.pages_compacted.fetch_add(freed, Ordering::Relaxed);
        self.compacting.store(false, Ordering::Release);
        freed
    }

    fn stats(&self) -> ZpoolStats {
        let mut stats = ZpoolStats {
            pool_pages: self.pool_pages.load(Ordering::Relaxed),
            objects: 0,
            metadata_bytes: size_of::<Self>()
                + size_of_val(self.table.classes())
                + self.classes.len()
                    * (size_of::<PoolLock<ClassPages<P>>>() - size_of::<ClassPages<P>>()),
            pages_compacted: self.pages_compacted.load(Ordering::Relaxed),
        };
        for lock in &self.classes {
            let class = lock.read();
            stats.objects += class.objects();
            stats.metadata_bytes += class.metadata_bytes();
        }
        stats
    }

    fn class_stats(&self) -> Vec<ClassStats> {
        let stats = |lock: &PoolLock<ClassPages<P>>| {
            let pages = lock.read();
            let class = *pages.class();
            ClassStats {
                class,
                group_zspages: pages.group_counts(),
                slots_allocated: pages.zspage_count() * class.slots,
                slots_used: pages.objects(),
                pool_pages: pages.zspage_count() * class.pages,
                freeable_pages: pages.freeable_pages(),
            }
        };
        self.classes.iter().rev().map(stats).collect()
    }

    fn audit(&self) -> Result<(), AuditError> {
        let mut pages = 0;
        for lock in &self.classes {
            let class = lock.read();
            class.audit().map_err(|e| format!("class {}: {e}", class.class().slot_bytes))?;
            pages += class.zspage_count() * class.class().pages;
        }
        let counted = self.pool_pages.load(Ordering::Relaxed);
        if pages != counted {
            return Err(format!("zspages own {pages} host pages, {counted} are counted").into());
        }
        Ok(())
    }
}

impl<P: ZspagePages> Drop for Zsmalloc<P> {
    fn drop(&mut self) {
        // The arena may outlive the pool; its count of used pages must not.
        for lock in &self.classes {
            for pages in lock.write().take_pages() {
                pages.give_back(&self.arena);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Zspages of a class of 5 slots that have so many of them in use.
    fn pool_with<P: ZspagePages>(used: &[usize]) -> Zsmalloc<P> {
        let pool = Zsmalloc::<P>::new(Arc::new(Arena::new()), ZsmallocOptions::default());
        assert_eq!(pool.table().class_of(3200).slots, 5);
        let handles: Vec<Handle> =
            (0..used.len() * 5).map(|_| pool.insert(&[7; 3200]).unwrap()).collect();
        for (zspage, &used) in handles.chunks(5).zip(used) {
            zspage[used..].iter().for_each(|&handle| pool.remove(handle).unwrap());
        }
        pool
    }

    /// Slots in use of each zspage after compaction, from the fullness groups: 5 slots, 5 groups.
    fn compacted<P: ZspagePages>(used: &[usize]) -> Vec<usize> {
        let pool = pool_with::<P>(used);
        pool.compact();
        pool.audit().unwrap();
        let stats = pool.class_stats().into_iter().find(|class| class.slots_used > 0).unwrap();
        let used_of_group = |group| (0..=5).find(|&used| fullness_group(used, 5) == group);
        let groups = stats.group_zspages.into_iter().enumerate();
        groups.flat_map(|(group, count)| vec![used_of_group(group).unwrap_or(0); count]).collect()
    }

    #[test]
    fn compaction_fills_the_fullest_zspage_from_the_emptiest() {
        for compacted in
            [compacted::<Contiguous>, compacted::<CopiedPages>, compacted::<MappedPages>]
        {
            assert_eq!(compacted(&[4, 4, 4, 1]), [4, 4, 5]); // not 3, 5, 5: from the emptiest
            assert_eq!(compacted(&[4, 1, 1]), [1, 5]); // not 2, 4: into the fullest
            assert_eq!(compacted(&[4, 4, 3]), [3, 4, 4]); // not a page to gain: nothing moves
            assert_eq!(compacted(&[3, 2, 1]), [2, 4]); // not 1, 5: no more is moved than has to be
        }
    }

    #[test]
    fn a_class_counts_its_slots_and_pages() {
        let pool = pool_with::<Contiguous>(&[4, 1, 1]);
        let used_class = *pool.table().class_of(3200);
        let stats = pool.class_stats();
        assert!(stats.is_sorted_by(|a, b| a.class.slot_bytes > b.class.slot_bytes));
        for class in stats {
            let SizeClass { slots, pages, .. } = class.class;
            let zspages = class.group_zspages.iter().sum::<usize>();
            assert_eq!(class.slots_allocated, zspages * slots);
            assert_eq!(class.pool_pages, zspages * pages);
            let is_used = class.class == used_class;
            let (used, freeable) = if is_used { (6, pages) } else { (0, 0) };
            assert_eq!((class.slots_used, class.freeable_pages), (used, freeable));
            assert_eq!(zspages, if is_used { 3 } else { 0 });
        }
    }

    /// 5 slots of 3264 bytes in 4 pages: all but the first and the last are in two pages.
    #[test]
    fn an_object_in_two_pages_is_moved_whole() {
        fn move_two<P: ZspagePages>() {
            let pool = Zsmalloc::<P>::new(Arc::new(Arena::new()), ZsmallocOptions::default());
            let object = |n: usize| Vec::from_iter((0..3200).map(|at| (at / 16 + at + n) as u8));
            let handles = Vec::from_iter((0..10).map(|n| pool.insert(&object(n)).unwrap()));
            for gone in [0, 3, 4, 6, 8] {
                pool.remove(handles[gone]).unwrap();
            }
            assert_eq!(pool.compact(), 4);
            for n in [1, 2, 5, 7, 9] {
                pool.read(handles[n], |slot| assert!(slot[..3200] == object(n))).unwrap();
            }
        }
        move_two::<Contiguous>();
        move_two::<CopiedPages>();
        move_two::<MappedPages>();
    }

    #[test]
    fn an_object_crosses_pages_by_its_slot() {
        let pool = Zsmalloc::<CopiedPages>::new(Arc::new(Arena::new()), ZsmallocOptions::default());
        for (bytes, crosses) in [
            (3200, vec![false, true, true, true, false]),
            (2700, vec![false, true, false]),
            (2040, vec![false, false]), // each ends at a border or begins there
            (4096, vec![false]),
        ] {
            assert_eq!(pool.table().class_of(bytes).slots, crosses.len());
            for crosses in crosses {
                let handle = pool.insert(&vec![7; bytes]).unwrap();
                assert_eq!(pool.crosses_pages(handle), Ok(crosses), "{bytes} bytes");
            }
        }
        let gone = pool.insert(&[7; 64]).unwrap();
        pool.remove(gone).unwrap();
        assert_eq!(pool.crosses_pages(gone), Err(UnknownHandle(gone)));
    }

    #[test]
    fn an_empty_pool_counts_each_lock_and_each_class_once() {
        let pool = Zsmalloc::<Contiguous>::new(Arc::new(Arena::new()), ZsmallocOptions::default());
        let lock_bytes = size_of::<PoolLock<ClassPages<Contiguous>>>();
        // A group for each number of slots in use, from none to all.
        let class_bytes = |class: &SizeClass| lock_bytes + size_of_val(class) + class.slots + 1;
        let bytes = pool.table().classes().iter().map(class_bytes).sum::<usize>();
        let fixed_bytes = size_of::<Zsmalloc<Contiguous>>();
        assert_eq!(pool.stats().metadata_bytes, fixed_bytes + bytes);
    }

    #[test]
    fn an_audit_tells_a_class_and_a_count_that_are_wrong() {
        type Fault = (fn(&Zsmalloc<Contiguous>), &'static str);
        let faults: [Fault; 2] = [
            (
                |pool| pool.pool_pages.store(5, Ordering::Relaxed),
                "zspages own 4 host pages, 5 are counted",
            ),
            (
                |pool| {
                    for class in &pool.classes {
                        class.write().take_pages().for_each(|pages| pages.give_back(&pool.arena));
                    }
                },
                "class 3264: 0 slots in use for 2 handles",
            ),
        ];
        for (plant, told) in faults {
            let pool = pool_with::<Contiguous>(&[2]);
            pool.audit().unwrap();
            plant(&pool);
            assert_eq!(pool.audit().unwrap_err().to_string(), told);
        }
    }
}
