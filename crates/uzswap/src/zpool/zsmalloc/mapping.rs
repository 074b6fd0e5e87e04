//! The host pages of a zspage, and access to an object that lies in two of them.
//!
//! ```text
//!  contiguous   |  page  |  page  |   one run: the object is there
//!                     |object|
//!
//!  copy         |  page  | ... |  page  |
//!                     |obj|     |ect|
//!                        '---.---'
//!                         |object|        the thread's buffer: copied in, used, copied out
//!
//!  vm           |  page  | ... |  page  |
//!                     |obj|     |ect|
//!               |  page  |  page  |        the thread's window: the same two pages once more
//!                     |object|
//! ```
//!
//! Whether an object crosses a border is decided by its slot, as in kernels up to 6.14; what lies
//! in one page is reached in place. All of them take the same number of host pages.

use std::cell::RefCell;
use std::fmt;
use std::marker::PhantomData;
use std::ops::Range;

use crate::budget::GrowError;
use crate::named_enum::named;
use crate::page::PAGE_SIZE;
use crate::zpool::{Arena, Sharing, ZpoolError};
use uzswap_sys::pages::PageRun;
use uzswap_sys::window;

/// How an object that lies in two host pages is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum ObjectMapping {
    /// Through a buffer of the thread, as kernels do by default up to 6.14.
    Copy,
    /// By mapping the two pages side by side, as kernels from 3.10 to 5.9 could
    /// (`CONFIG_PGTABLE_MAPPING`). The pages are shared memory, which a forked child does not have:
    /// it must not use its parent's store.
    Vm,
    /// In place: the pages of a zspage are adjacent. No kernel does this.
    #[default]
    Contiguous,
}

named!(ObjectMapping, "mapping", Copy => "copy", Vm => "vm", Contiguous => "contiguous");

/// What an object is written for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriteMode {
    /// All of it is written anew: nothing is copied in.
    WriteOnly,
    /// A part of it is changed.
    ReadWrite,
}

/// The host pages of one zspage.
pub trait ZspagePages: Sized + fmt::Debug + Send + Sync {
    /// Bytes that the table of a zspage's pages takes for each of them.
    const TABLE_BYTES_A_PAGE: usize;

    /// Takes `count` host pages, all of them or none.
    ///
    /// # Errors
    ///
    /// `NoPages` or `NoTables`; nothing was taken.
    fn take(arena: &Arena, count: usize) -> Result<Self, ZpoolError>;

    /// Gives the pages back to the arena they came from.
    fn give_back(self, arena: &Arena);

    /// Host pages.
    fn page_count(&self) -> usize;

    /// The bytes from `start` on, to the end of what is adjacent.
    fn piece(&self, start: usize) -> &[u8];

    /// As [`ZspagePages::piece`].
    fn piece_mut(&mut self, start: usize) -> &mut [u8];

    /// Calls `reader` with the bytes `range`, in at most two pages.
    fn read<R>(&self, range: Range<usize>, reader: impl FnOnce(&[u8]) -> R) -> R;

    /// Calls `writer` with the bytes `range`, in at most two pages; with
    /// [`WriteMode::WriteOnly`], their old values may not be there.
    fn write<R>(
        &mut self,
        range: Range<usize>,
        mode: WriteMode,
        writer: impl FnOnce(&mut [u8]) -> R,
    ) -> R;
}

/// Adjacent pages.
#[derive(Debug)]
pub struct Contiguous(PageRun);

impl ZspagePages for Contiguous {
    const TABLE_BYTES_A_PAGE: usize = 0;

    fn take(arena: &Arena, count: usize) -> Result<Contiguous, ZpoolError> {
        Ok(Contiguous(arena.alloc(count)?))
    }

    fn give_back(self, arena: &Arena) {
        arena.free(self.0);
    }

    fn page_count(&self) -> usize {
        self.0.page_count()
    }

    #[inline]
    fn piece(&self, start: usize) -> &[u8] {
        &self.0[start..]
    }

    #[inline]
    fn piece_mut(&mut self, start: usize) -> &mut [u8] {
        &mut self.0[start..]
    }

    #[inline]
    fn read<R>(&self, range: Range<usize>, reader: impl FnOnce(&[u8]) -> R) -> R {
        reader(&self.0[range])
    }

    #[inline]
    fn write<R>(
        &mut self,
        range: Range<usize>,
        _mode: WriteMode,
        writer: impl FnOnce(&mut [u8]) -> R,
    ) -> R {
        writer(&mut self.0[range])
    }
}

/// Pages anywhere; `C` brings two of them together.
#[derive(Debug)]
pub struct SeparatePages<C> {
    pages: Box<[PageRun]>,
    crossing: PhantomData<C>,
}

/// Pages that are copied together: [`ObjectMapping::Copy`].
pub type CopiedPages = SeparatePages<ByCopy>;

/// Pages that are mapped together: [`ObjectMapping::Vm`].
pub type MappedPages = SeparatePages<ByWindow>;

/// Access to bytes in two pages. A range counts from the first byte of the first page, ends in the
/// second one, and is a page long at most.
pub trait Crossing: fmt::Debug + Send + Sync {
    /// The kind of pages that the method needs.
    const SHARING: Sharing;

    /// Calls `reader` with the bytes.
    fn read<R>(pages: [&PageRun; 2], range: Range<usize>, reader: impl FnOnce(&[u8]) -> R) -> R;

    /// Calls `writer` with the bytes, of their old values with [`WriteMode::ReadWrite`].
    fn write<R>(
        pages: [&mut PageRun; 2],
        range: Range<usize>,
        mode: WriteMode,
        writer: impl FnOnce(&mut [u8]) -> R,
    ) -> R;
}

impl<C: Crossing> SeparatePages<C> {
    /// The page that bytes start in, and where in it; whether they end in the next one.
    #[inline]
    fn split(range: &Range<usize>) -> (usize, Range<usize>, bool) {
        let page = range.start / PAGE_SIZE;
        let within = range.start % PAGE_SIZE..range.end - page * PAGE_SIZE;
        let crosses = within.end > PAGE_SIZE;
        (page, within, crosses)
    }
}

impl<C: Crossing> ZspagePages for SeparatePages<C> {
    const TABLE_BYTES_A_PAGE: usize = size_of::<PageRun>();

    fn take(arena: &Arena, count: usize) -> Result<SeparatePages<C>, ZpoolError> {
        let table_bytes = (count * Self::TABLE_BYTES_A_PAGE) as u64;
        arena.budget().charge_metadata(table_bytes).map_err(GrowError::from)?;
        let mut pages = Vec::new();
        pages
            .try_reserve_exact(count)
            .map_err(|_| GrowError::NoMemory { bytes: table_bytes }.into())
            .and_then(|()| arena.alloc_pages(&mut pages, count, C::SHARING).map_err(Into::into))
            .inspect_err(|_: &ZpoolError| arena.budget().uncharge_metadata(table_bytes))?;
        Ok(SeparatePages { pages: pages.into_boxed_slice(), crossing: PhantomData })
    }

    fn give_back(self, arena: &Arena) {
        let table_bytes = size_of_val(&*self.pages) as u64;
        self.pages.into_iter().for_each(|page| arena.free(page));
        arena.budget().uncharge_metadata(table_bytes);
    }

    fn page_count(&self) -> usize {
        self.pages.len()
    }

    #[inline]
    fn piece(&self, start: usize) -> &[u8] {
        &self.pages[start / PAGE_SIZE][start % PAGE_SIZE..]
    }

    #[inline]
    fn piece_mut(&mut self, start: usize) -> &mut [u8] {
        &mut self.pages[start / PAGE_SIZE][start % PAGE_SIZE..]
    }

    #[inline]
    fn read<R>(&self, range: Range<usize>, reader: impl FnOnce(&[u8]) -> R) -> R {
        let (page, within, crosses) = Self::split(&range);
        if crosses {
            C::read([&self.pages[page], &self.pages[page + 1]], within, reader)
        } else {
            reader(&self.pages[page][within])
        }
    }

    #[inline]
    fn write<R>(
        &mut self,
        range: Range<usize>,
        mode: WriteMode,
        writer: impl FnOnce(&mut [u8]) -> R,
    ) -> R {
        let (page, within, crosses) = Self::split(&range);
        if crosses {
            let pair = self.pages.get_disjoint_mut([page, page + 1]).expect("it is in two pages");
            C::write(pair, within, mode, writer)
        } else {
            writer(&mut self.pages[page][within])
        }
    }
}

/// Copies through the thread's buffer.
#[derive(Debug)]
pub enum ByCopy {}

/// A page's worth of bytes, on cache lines of its own.
#[repr(align(64))]
struct Buffer([u8; PAGE_SIZE]);

thread_local! {
    static BUFFER: RefCell<Buffer> = const { RefCell::new(Buffer([0; PAGE_SIZE])) };
}

impl ByCopy {
    /// Calls `access` with the thread's buffer. An access inside of another one, which the kernel
    /// forbids, has a buffer of its own.
    #[inline]
    fn with_buffer<R>(access: impl FnOnce(&mut [u8; PAGE_SIZE]) -> R) -> R {
        BUFFER.with(|buffer| match buffer.try_borrow_mut() {
            Ok(mut buffer) => access(&mut buffer.0),
            Err(_) => with_another_buffer(access),
        })
    }
}

#[cold]
#[inline(never)]
fn with_another_buffer<R>(access: impl FnOnce(&mut [u8; PAGE_SIZE]) -> R) -> R {
    access(&mut [0; PAGE_SIZE])
}

/// Copies bytes in two pages to one place.
#[inline]
fn copy_in(pages: [&PageRun; 2], range: &Range<usize>, bytes: &mut [u8]) {
    let (front, back) = bytes.split_at_mut(PAGE_SIZE - range.start);
    front.copy_from_slice(&pages[0][range.start..PAGE_SIZE]);
    back.copy_from_slice(&pages[1][..range.end - PAGE_SIZE]);
}

impl Crossing for ByCopy {
    const SHARING: Sharing = Sharing::Private;

    #[inline]
    fn read<R>(pages: [&PageRun; 2], range: Range<usize>, reader: impl FnOnce(&[u8]) -> R) -> R {
        ByCopy::with_buffer(|buffer| {
            let bytes = &mut buffer[..range.len()];
            copy_in(pages, &range, bytes);
            reader(bytes)
        })
    }

    #[inline]
    fn write<R>(
        pages: [&mut PageRun; 2],
        range: Range<usize>,
        mode: WriteMode,
        writer: impl FnOnce(&mut [u8]) -> R,
    ) -> R {
        ByCopy::with_buffer(|buffer| {
            let bytes = &mut buffer[..range.len()];
            let [first, second] = pages;
            if mode == WriteMode::ReadWrite {
                copy_in([first, second], &range, bytes);
            }
            let result = writer(bytes);
            let (front, back) = bytes.split_at(PAGE_SIZE - range.start);
            first[range.start..PAGE_SIZE].copy_from_slice(front);
            second[..range.end - PAGE_SIZE].copy_from_slice(back);
            result
        })
    }
}

/// Maps the pages into the thread's window, whatever the mode; copies where that cannot be had.
#[derive(Debug)]
pub enum ByWindow {}

impl Crossing for ByWindow {
    const SHARING: Sharing = Sharing::Shared;

    #[inline]
    fn read<R>(pages: [&PageRun; 2], range: Range<usize>, reader: impl FnOnce(&[u8]) -> R) -> R {
        window::read(pages, range.clone(), reader)
            .unwrap_or_else(|reader| ByCopy::read(pages, range, reader))
    }

    #[inline]
    fn write<R>(
        pages: [&mut PageRun; 2],
        range: Range<usize>,
        _mode: WriteMode,
        writer: impl FnOnce(&mut [u8]) -> R,
    ) -> R {
        let [first, second] = pages;
        window::write([first, second], range.clone(), writer).unwrap_or_else(|writer| {
            ByCopy::write([first, second], range, WriteMode::ReadWrite, writer)
        })
    }
}
