//! Objects side by side, to the byte: logs of regions that a collector keeps dense.
//!
//! ```text
//!  region of 4 to 17 host pages
//!  | header | object | header | object | hole           | header | object | filler | ...
//!
//!  object -> the hole that fits best, else a new region, which is one hole
//!  handle -> cell -> region, offset             the collector rewrites the cell
//! ```
//!
//! An object lies in one region, and so in one piece, behind a header of 6 bytes. A free leaves a
//! hole, which joins the free bytes behind it and is listed by length. A call that inserts or
//! removes also collects, in proportion to its bytes and at most 64 KiB
//! ([`collector`]).
//!
//! A log has its own lock, handles and regions. A pool has one log for each 16 MiB, up to 8.
//!
//! Bounds, for objects much smaller than a region: a pool that only grew has 1.010 times the bytes
//! of its objects, and any other at most 1.06 times. A log below 4 MiB has up to 64 KiB more.
//!
//! - H1: the items of a region follow each other up to its end; only the victim has a gap.
//! - H2: the free bytes of a region and of a log are those of no object, and no region is all free.
//! - H3: a hole of 64 bytes or more is on the list of its length, unless it is ahead of the
//!   collector. No other item is on a list.
//! - H4: an object's cell leads to it, and every cell in use leads to an object of its log.

mod audit;
mod collector;
mod holes;
mod item;
mod log;
mod regions;
#[cfg(test)]
mod tests;
mod victim;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::handle::Location;
use super::lock::{PoolLock, PoolPart};
use super::{Arena, Handle, UnknownHandle, Zpool, ZpoolError, ZpoolStats, check_object};
use crate::AuditError;
use collector::Pass;
use item::HEADER_BYTES;
use log::Log;
use uzswap_sys::pages::{HOST_PAGE_SIZE, PageRun};

const NAME: &str = "packed";

/// Pages of a region: those of a small log are short, so that it is dense too.
const REGION_PAGES_MIN: usize = 4;
/// An object of 64 KiB and some bytes fits the longest.
const REGION_PAGES_MAX: usize = 17;
const REGION_BYTES_MAX: usize = REGION_PAGES_MAX * HOST_PAGE_SIZE; // 69,632

/// The largest object, in bytes.
const OBJECT_BYTES_MAX: usize = REGION_BYTES_MAX - HEADER_BYTES; // 69,626

/// The most logs; and the host pages of the pool for each that is in use. A log costs half a region
/// on average, which 16 MiB have to spare.
const LOGS_MAX: usize = 8;
const PAGES_A_LOG: usize = 4096;

/// The first log's mark of handles: above those of zsmalloc's size classes, and the eight below
/// those of zblock's types.
pub(super) const HANDLE_SET: u8 = 208;

/// Where an item is: a region's number and an offset, in bytes.
type Place = Location;

const OFFSET_BITS: u32 = 17;
const REGION_BITS: u32 = 22;
const PLACE_BITS: u32 = OFFSET_BITS + REGION_BITS; // 39, as a handle's cell takes

const _: () = assert!(REGION_BYTES_MAX <= 1 << OFFSET_BITS);

fn place(region: u32, offset: usize) -> Place {
    Place::from(region) << OFFSET_BITS | offset as Place
}

fn region_of(at: Place) -> u32 {
    (at >> OFFSET_BITS) as u32
}

fn offset_of(at: Place) -> usize {
    at as usize & ((1 << OFFSET_BITS) - 1)
}

/// The allocator of packed objects.
#[derive(Debug)]
pub(super) struct Packed {
    arena: Arc<Arena>,
    logs: [PoolLock<Log>; LOGS_MAX],
    /// Host pages of all logs.
    pool_pages: AtomicUsize,
    /// Counts inserts, which take the logs in turn.
    turn: AtomicUsize,
    compacting: AtomicBool,
}

impl Packed {
    /// An empty pool.
    pub(super) fn new(arena: Arc<Arena>) -> Packed {
        let log = |number| PoolLock::new(Log::new(HANDLE_SET + number as u8, arena.budget()));
        Packed {
            logs: std::array::from_fn(log),
            arena,
            pool_pages: AtomicUsize::new(0),
            turn: AtomicUsize::new(0),
            compacting: AtomicBool::new(false),
        }
    }

    /// The log that the next object goes to.
    fn next_log(&self) -> &PoolLock<Log> {
        let logs = (1 + self.pool_pages.load(Ordering::Relaxed) / PAGES_A_LOG).min(LOGS_MAX);
        &self.logs[self.turn.fetch_add(1, Ordering::Relaxed) % logs]
    }

    fn log_of(&self, handle: Handle) -> Result<&PoolLock<Log>, UnknownHandle> {
        let number = handle.set().checked_sub(usize::from(HANDLE_SET));
        number.and_then(|number| self.logs.get(number)).ok_or(UnknownHandle(handle))
    }

    /// Inserts into a new region of so many pages.
    fn insert_into_new(
        &self,
        log: &PoolLock<Log>,
        pages: usize,
        object: &[u8],
    ) -> Result<Handle, ZpoolError> {
        let run = self.arena.alloc(pages)?;
        let (mut log, run) = log.write_with(run, |run| self.arena.free(run))?;
        self.pool_pages.fetch_add(pages, Ordering::Relaxed);
        log.add_region(run);
        Ok(log.insert(object).expect("a new region has room"))
    }

    /// Inserts into bytes that are free, but apart; into any log.
    fn insert_apart(&self, object: &[u8]) -> Option<Handle> {
        self.logs.iter().find_map(|log| {
            let mut log = log.write();
            if !log.make_hole(HEADER_BYTES + object.len()) {
                return None;
            }
            log.reserve().ok()?;
            log.insert(object)
        })
    }

    fn give_back(&self, run: Option<PageRun>) -> usize {
        let Some(run) = run else { return 0 };
        let pages = run.page_count();
        self.pool_pages.fetch_sub(pages, Ordering::Relaxed);
        self.arena.free(run);
        pages
    }

    fn compact_log(&self, log: &PoolLock<Log>) -> usize {
        let (mut freed, mut pass) = (0, Pass::default());
        // The lock is let go after each region.
        loop {
            let step = log.write().compact_step(&mut pass);
            let Some(emptied) = step else { break };
            freed += self.give_back(emptied);
        }
        let mut log = log.write();
        log.handles.release_if_empty();
        log.regions.release_if_empty();
        freed
    }
}

impl Zpool for Packed {
    fn name(&self) -> &'static str {
        NAME
    }

    fn object_size_max(&self) -> usize {
        OBJECT_BYTES_MAX
    }

    fn insert(&self, object: &[u8]) -> Result<Handle, ZpoolError> {
        check_object(NAME, object.len(), OBJECT_BYTES_MAX)?;
        let item_bytes = HEADER_BYTES + object.len();
        let lock = self.next_log();
        let mut log = lock.write_reserved()?;
        if let Some(handle) = log.insert(object) {
            let emptied = log.collect(item_bytes);
            drop(log);
            self.give_back(emptied);
            return Ok(handle);
        }
        let least_pages = item_bytes.div_ceil(HOST_PAGE_SIZE);
        let pages = log.region_pages().max(least_pages);
        drop(log);
        match self.insert_into_new(lock, pages, object) {
            Err(ZpoolError::NoPages(_)) => match self.insert_apart(object) {
                Some(handle) => Ok(handle),
                None => self.insert_into_new(lock, least_pages, object),
            },
            result => result,
        }
    }

    fn read(&self, handle: Handle, reader: &mut dyn FnMut(&[u8])) -> Result<(), UnknownHandle> {
        let log = self.log_of(handle)?.read();
        reader(log.object(handle).ok_or(UnknownHandle(handle))?);
        Ok(())
    }

    fn remove(&self, handle: Handle) -> Result<(), UnknownHandle> {
        let mut log = self.log_of(handle)?.write();
        let (item_bytes, emptied) = log.remove(handle).ok_or(UnknownHandle(handle))?;
        let collected = log.collect(item_bytes);
        drop(log);
        self.give_back(emptied);
        self.give_back(collected);
        Ok(())
    }

    fn compact(&self) -> usize {
        if self.compacting.swap(true, Ordering::Acquire) {
            return 0;
        }
        let freed = self.logs.iter().map(|log| self.compact_log(log)).sum();
        self.compacting.store(false, Ordering::Release);
        freed
    }

    fn stats(&self) -> ZpoolStats {
        let mut stats = ZpoolStats {
            pool_pages: self.pool_pages.load(Ordering::Relaxed),
            metadata_bytes: size_of::<Self>(),
            ..ZpoolStats::default()
        };
        for log in &self.logs {
            let log = log.read();
            stats.objects += log.handles.used();
            stats.metadata_bytes += log.table_bytes();
            stats.pages_compacted += log.compacted;
        }
        stats
    }

    fn audit(&self) -> Result<(), AuditError> {
        let mut pages = 0;
        for (number, log) in self.logs.iter().enumerate() {
            let log = log.read();
            log.audit().map_err(|error| format!("log {number}: {error}"))?;
            pages += log.regions.pages();
        }
        let counted = self.pool_pages.load(Ordering::Relaxed);
        if pages != counted {
            return Err(format!("regions own {pages} host pages, {counted} are counted").into());
        }
        Ok(())
    }
}

impl Drop for Packed {
    fn drop(&mut self) {
        // The arena may outlive the pool; its count of used pages must not.
        for log in &self.logs {
            log.write().regions.take_runs().for_each(|run| self.arena.free(run));
        }
    }
}
