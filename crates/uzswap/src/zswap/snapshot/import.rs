//! Restores a store from a snapshot.

use std::io::Read;
use std::path::Path;

use serde::Serialize;

use super::{
    PageForm, RestoreError, SnapshotBlock, SnapshotHeader, SnapshotPage, SnapshotReader,
    SnapshotSummary,
};
use crate::backing::Backing;
use crate::compressor::Compressor;
use crate::index::IndexError;
use crate::page::{PAGE_SIZE, Page};
use crate::zswap::batch::BATCH_PAGES;
use crate::zswap::entry::{Content, Held, Written};
use crate::zswap::{
    BuildError, Effort, Packed, RECLAIM_TRIES, TenantError, TenantId, TenantNumber, TenantOptions,
    Zswap, ZswapOptions, ZswapParts, with_scratch,
};

/// Where the pages of a snapshot went.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct RestoreSummary {
    /// What was in the snapshot.
    pub snapshot: SnapshotSummary,
    /// Pages in memory now.
    pub memory_pages: u64,
    /// Pages in the backing alone now.
    pub backing_pages: u64,
}

/// Makes objects of the snapshot those of the store.
enum Objects {
    /// They are: both have one format.
    Same,
    /// By way of pages.
    Of {
        /// Reads them.
        decoder: Box<dyn Compressor>,
        /// Some of them are dense, and its [`Compressor::is_dense`] tells which.
        is_pair: bool,
    },
}

/// A restore under way.
struct Restoring<'a> {
    zswap: &'a Zswap,
    objects: Objects,
    /// Pages that found no place, and their bytes.
    missing: (u64, u64),
}

impl Zswap {
    /// A store of `options` with the pages of the snapshot at `path`, its tenants, the order of
    /// eviction and how often each page was used, counters and times. Pages that were in the
    /// backing go to `backing`, if there is one; so do pages that do not fit into the pool, the
    /// coldest first. Objects of the same format ([`Compressor::format`]) are taken as they are;
    /// others are decompressed and compressed, dense ones densely.
    ///
    /// Bytes above a tenant's limit stay until they go by themselves, as after
    /// [`Zswap::set_tenant`].
    ///
    /// # Errors
    ///
    /// [`RestoreError`]. The file is as it was.
    pub fn from_snapshot(
        options: ZswapOptions,
        backing: Option<Box<dyn Backing>>,
        path: impl AsRef<Path>,
    ) -> Result<(Zswap, RestoreSummary), RestoreError> {
        let parts = ZswapParts::of(options).map_err(BuildError::from)?;
        let snapshot = SnapshotReader::open(path.as_ref())?;
        let parts = ZswapParts { backing, ..parts };
        Zswap::of(options, parts)?.restore_from(snapshot)
    }

    /// Restores a snapshot into this store, which must be a new one. As [`Zswap::from_snapshot`].
    ///
    /// # Errors
    ///
    /// As there; the store is gone, and what it wrote to its backing is worth nothing.
    pub fn restore_from<R: Read>(
        self,
        mut snapshot: SnapshotReader<R>,
    ) -> Result<(Zswap, RestoreSummary), RestoreError> {
        if self.counters().list().any(|counter| counter.value > 0) || self.tenants().len() > 1 {
            return Err(RestoreError::Used);
        }
        let header = snapshot.header().clone();
        let tenants = self.restore_tenants(&header)?;
        let objects = self.objects_of(&header)?;
        let mut restoring = Restoring { zswap: &self, objects, missing: (0, 0) };
        loop {
            let result = match snapshot.next_block()? {
                None => break,
                Some(block) => restoring.block(block, &tenants),
            };
            match result {
                Ok(()) => {}
                Err(BlockError::Restore(error)) => return Err(error),
                Err(BlockError::Twice(found)) => {
                    return Err(snapshot.wrong_page("each page once", found).into());
                }
            }
        }
        let (pages, bytes) = restoring.missing;
        let summary = *snapshot.summary().expect("all of it was read");
        if pages > 0 {
            return Err(RestoreError::DoesNotFit {
                pages,
                of_pages: summary.pages(),
                bytes,
                max_pool_bytes: self.hysteresis.max_bytes,
                backing: match &self.tier {
                    None => "a backing (there is none)".to_owned(),
                    Some(tier) => tier.backing().name(),
                },
            });
        }
        if let Some(order) = &self.order {
            // Only now: a limit that was lowered must not refuse what was kept above it.
            for (&id, stats) in tenants.iter().zip(&header.stats.tenants) {
                order.tenants.set(id, stats.options.clone())?;
                order.tenants.note_peak(id, stats.peak_bytes);
            }
        }
        self.shards.number(0).lock().counters.add_totals(&header.stats.counters);
        self.latencies.add(&header.stats.latencies);
        let counters = self.counters();
        let summary = RestoreSummary {
            snapshot: summary,
            memory_pages: counters.stored_pages,
            backing_pages: counters.backing_pages,
        };
        Ok((self, summary))
    }

    /// Makes the tenants of a snapshot, without limits; by their numbers there.
    fn restore_tenants(&self, header: &SnapshotHeader) -> Result<Vec<TenantId>, RestoreError> {
        let mut made = vec![TenantId::ROOT];
        let Some(order) = &self.order else {
            return match header.stats.tenants.len() {
                0 | 1 => Ok(made),
                _ => Err(TenantError::NoRecords.into()),
            };
        };
        for stats in &header.stats.tenants {
            let options = TenantOptions { max_bytes: u64::MAX, ..stats.options.clone() };
            match stats.parent {
                None => order.tenants.set(TenantId::ROOT, options)?,
                Some(parent) => made.push(order.tenants.add(made[parent], options)?),
            }
        }
        Ok(made)
    }

    /// Whether a tenant's pages may go to the backing, if there is one.
    fn may_write_back(&self, tenant: TenantNumber) -> bool {
        let order = self.order.as_ref().filter(|_| self.tier.is_some());
        order.is_some_and(|order| order.tenants.may_write_back(tenant))
    }

    /// How objects of a snapshot are taken.
    fn objects_of(&self, header: &SnapshotHeader) -> Result<Objects, RestoreError> {
        let theirs = header.objects();
        if theirs == *self.compressor.format() {
            return Ok(Objects::Same);
        }
        match theirs.decoder() {
            Some(decoder) => Ok(Objects::Of { decoder, is_pair: theirs.is_pair() }),
            None => Err(RestoreError::Compressor {
                name: header.stats.options.compressor.clone(),
                format: theirs,
                store: self.compressor.name(),
            }),
        }
    }
}

/// Why a block was not restored.
enum BlockError {
    Restore(RestoreError),
    /// A page that is there already.
    Twice(String),
}

impl<E: Into<RestoreError>> From<E> for BlockError {
    fn from(error: E) -> Self {
        BlockError::Restore(error.into())
    }
}

/// Whose a page is here.
fn number_of(tenants: &[TenantId], page: SnapshotPage<'_>) -> TenantNumber {
    tenants.get(page.tenant).map_or(TenantNumber::ROOT, |id| id.as_number())
}

impl Restoring<'_> {
    fn block(&mut self, block: SnapshotBlock<'_>, tenants: &[TenantId]) -> Result<(), BlockError> {
        let zswap = self.zswap;
        let mut to_backing: Vec<SnapshotPage<'_>> = Vec::new();
        to_backing.try_reserve_exact(BATCH_PAGES)?;
        for page in block.pages() {
            let tenant = number_of(tenants, page);
            if let PageForm::Word(word) = page.form {
                let held = Held { tenant, ..Held::of_root(Content::SameFilled(word)) };
                self.put(page, held)?;
                continue;
            }
            if !(page.in_backing && zswap.tier.is_some()) {
                if let Some(held) = self.keep(page, tenant)? {
                    self.put(page, held)?;
                    continue;
                }
                if !zswap.may_write_back(tenant) {
                    self.miss(page);
                    continue;
                }
            }
            to_backing.push(page);
            if to_backing.len() == BATCH_PAGES {
                self.write(&to_backing, tenants)?;
                to_backing.clear();
            }
        }
        self.write(&to_backing, tenants)
    }

    /// Brings a page into the pool; `None` where it does not take it.
    fn keep(
        &self,
        page: SnapshotPage<'_>,
        tenant: TenantNumber,
    ) -> Result<Option<Held>, RestoreError> {
        let zswap = self.zswap;
        with_scratch(|scratch| {
            let packed = match (page.form, &self.objects) {
                (PageForm::Object(object), Objects::Same) => scratch.pack(object),
                // One from the backing was written so; in the pool it is compressed again.
                (PageForm::AsIs(bytes), Objects::Same) if !page.in_backing => {
                    Packed { as_is: true, ..scratch.pack(bytes) }
                }
                _ => {
                    let mut room = [0; PAGE_SIZE];
                    self.page_of(page, &mut room)?;
                    // Incompressible pages are kept, whatever the policy for new pages is.
                    match zswap.compress(self.effort(page), page.key, &room, scratch) {
                        Ok(packed) => packed,
                        Err(_) => Packed { as_is: true, ..scratch.pack(&room) },
                    }
                }
            };
            let reclaim = || zswap.reclaim();
            Ok(zswap.insert_packed(tenant, page.key, packed, scratch, reclaim).ok())
        })
    }

    /// How a page is compressed again: densely, if it was.
    fn effort(&self, page: SnapshotPage<'_>) -> Effort {
        match (page.form, &self.objects) {
            (PageForm::Object(object), Objects::Of { decoder, is_pair: true })
                if decoder.is_dense(object) =>
            {
                Effort::Dense
            }
            _ => Effort::Fast,
        }
    }

    /// Writes pages to the backing; those that it does not take go to the pool, if they have not
    /// been there.
    fn write(
        &mut self,
        pages: &[SnapshotPage<'_>],
        tenants: &[TenantId],
    ) -> Result<(), BlockError> {
        let Some(tier) = &self.zswap.tier else { return Ok(()) };
        if pages.is_empty() {
            return Ok(());
        }
        let as_is = |page: &SnapshotPage<'_>| {
            !matches!((page.form, &self.objects), (PageForm::Object(_), Objects::Same))
        };
        let mut lengths = [0; BATCH_PAGES];
        let mut checksums = [0; BATCH_PAGES];
        for (page, bytes) in pages.iter().zip(&mut lengths) {
            *bytes = if as_is(page) { PAGE_SIZE } else { page.form.bytes() };
        }
        let mut failed = Ok(());
        let outcomes = tier.write_copies(&lengths[..pages.len()], &mut |number, room| {
            let page = pages[number];
            let filled = match page.form {
                PageForm::Object(object) if !as_is(&page) => {
                    room.copy_from_slice(object);
                    Ok(())
                }
                _ => self.page_of(page, room.try_into().expect("a page's length")),
            };
            checksums[number] = self.zswap.checksum_of(page.key, room);
            let is_filled = filled.is_ok();
            failed = std::mem::replace(&mut failed, Ok(())).and(filled);
            is_filled
        });
        let forms: [bool; BATCH_PAGES] =
            std::array::from_fn(|number| pages.get(number).is_some_and(as_is));
        let mut result = failed.map_err(BlockError::from);
        for (number, (&page, outcome)) in pages.iter().zip(outcomes).enumerate() {
            let tenant = number_of(tenants, page);
            let held = match outcome {
                None => continue,
                Some(Ok(at)) => {
                    let written = Written {
                        at,
                        bytes: lengths[number] as u16, // <= 4096
                        as_is: forms[number],
                        checksum: checksums[number],
                    };
                    let written = Some(written);
                    Some(Held { content: Content::WrittenBack, checksum: 0, written, tenant })
                }
                Some(Err(_)) if page.in_backing => self.keep(page, tenant)?,
                Some(Err(_)) => None,
            };
            match held {
                Some(held) => result = result.and(self.put(page, held)),
                None => self.miss(page),
            }
        }
        result
    }

    /// Turns a page of the snapshot into a page.
    fn page_of(&self, page: SnapshotPage<'_>, room: &mut Page) -> Result<(), RestoreError> {
        match page.form {
            PageForm::AsIs(page) => room.copy_from_slice(page),
            PageForm::Object(object) => {
                let ours = &self.zswap.compressor;
                let (done, theirs) = match &self.objects {
                    Objects::Same => (ours.decompress(object, room), None),
                    Objects::Of { decoder, .. } => {
                        (decoder.decompress(object, room), Some(decoder))
                    }
                };
                done.map_err(|source| RestoreError::Corrupt {
                    key: page.key,
                    compressor: theirs.map_or_else(|| ours.name(), |theirs| theirs.name()),
                    source,
                })?;
            }
            PageForm::Word(word) => crate::page::fill_with_word(room, word),
        }
        Ok(())
    }

    /// Puts a page into the index. Where that is in the budget, other pages give way to it.
    fn put(&self, page: SnapshotPage<'_>, held: Held) -> Result<(), BlockError> {
        let key = page.key;
        let mut tries = RECLAIM_TRIES;
        let (mut shard, replaced) = loop {
            let mut shard = self.zswap.shards.of(key).lock();
            match shard.put(key, held) {
                Ok(replaced) => break (shard, replaced),
                Err(source) => {
                    drop(shard);
                    let is_limit = matches!(source, IndexError::OverBudget(_));
                    if is_limit && tries > 0 && self.zswap.reclaim() {
                        tries -= 1;
                        continue;
                    }
                    self.zswap.release(held);
                    return Err(RestoreError::Index { key, source }.into());
                }
            }
        };
        if let Some(stale) = replaced {
            drop(shard);
            self.zswap.release(stale);
            return Err(BlockError::Twice(format!("page {key} twice")));
        }
        if let Some((entry, _)) = shard.get(key) {
            shard.set_uses(entry, page.uses);
        }
        Ok(())
    }

    fn miss(&mut self, page: SnapshotPage<'_>) {
        self.missing.0 += 1;
        self.missing.1 += page.form.bytes() as u64;
    }
}
