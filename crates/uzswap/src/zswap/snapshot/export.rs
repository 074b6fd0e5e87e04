//! Writes a store to a snapshot.

use std::collections::TryReserveError;
use std::io::Write;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use super::atomic_file::PartFile;
use super::writer::SnapshotWriter;
use super::{
    PageForm, SnapshotError, SnapshotHeader, SnapshotOptions, SnapshotPage, SnapshotSummary,
};
use crate::backing::Block;
use crate::page::{PAGE_SIZE, Page, PageKey};
use crate::zswap::entry::Content;
use crate::zswap::tenant::Places;
use crate::zswap::{Effort, LoadError, Packed, Zswap, with_scratch};

/// Pages of one list that came to its hot end in the same tick are ordered up to so many bits.
const PLACE_BITS: u32 = 20;

/// A page to write. A snapshot takes 16 bytes of memory for each page, and 290 KiB.
#[derive(Debug, Clone, Copy)]
struct Listed {
    /// The time when it came to the hot end of its list, and its place among pages of that time. 0
    /// for pages on no list: in the backing, or on their way there.
    age: u64,
    key: PageKey,
}

/// State of a page whose bytes were copied.
#[derive(Debug, Clone, Copy)]
struct Copied {
    /// Its number in the snapshot.
    tenant: usize,
    uses: u8,
    in_backing: bool,
    form: CopiedForm,
}

#[derive(Debug, Clone, Copy)]
enum CopiedForm {
    Word(u64),
    /// So many bytes of the room.
    Object(usize),
    AsIs,
}

/// Room for one page: its object, and the two blocks that a copy may lie in.
struct Room {
    page: Box<[u8; PAGE_SIZE]>,
    blocks: Box<[Block; 2]>,
}

impl Zswap {
    /// Writes all of the store to a file at `path`, which is replaced when the new one is complete:
    /// until then it has the name `.NAME.part` beside it. Other threads may use the store
    /// meanwhile. A corrupt page ends it.
    ///
    /// Takes 16 bytes of memory a page and 290 KiB. A limit of file sizes (`ulimit -f`) ends the
    /// process by the signal `SIGXFSZ`, if that is not ignored.
    ///
    /// # Errors
    ///
    /// [`SnapshotError`]: the store is as it was, and so is the snapshot that was there before.
    pub fn snapshot(&self, path: impl AsRef<Path>) -> Result<SnapshotSummary, SnapshotError> {
        self.snapshot_with(path, SnapshotOptions::default())
    }

    /// As [`Zswap::snapshot`], with options.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn snapshot_with(
        &self,
        path: impl AsRef<Path>,
        options: SnapshotOptions,
    ) -> Result<SnapshotSummary, SnapshotError> {
        let part = PartFile::create(path.as_ref())?;
        let summary = self.snapshot_to(&part.file, options)?;
        part.place()?;
        Ok(summary)
    }

    /// Writes all of the store to `out`, in large pieces, and flushes it: to a pipe or a socket.
    /// The caller must make sure that the written bytes are kept whole.
    ///
    /// # Errors
    ///
    /// As [`Zswap::snapshot`]; what was written is of no use.
    pub fn snapshot_to(
        &self,
        out: impl Write,
        options: SnapshotOptions,
    ) -> Result<SnapshotSummary, SnapshotError> {
        self.id.enter();
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        let mut stats = self.stats();
        let mut places = None;
        if let Some(order) = &self.order {
            let (tenants, told) = order.tenants.in_order();
            (stats.tenants, places) = (tenants, Some(told));
        }
        let header = SnapshotHeader {
            program: concat!("uzswap ", env!("CARGO_PKG_VERSION")).to_owned(),
            created_at: since.map_or(0, |since| since.as_secs()),
            object_format: Some(self.compressor.format().clone()),
            stats,
        };
        let listed = self.list_pages()?;
        let mut room =
            Room { page: Box::new([0; PAGE_SIZE]), blocks: Box::new([Block::ZERO, Block::ZERO]) };
        let mut writer = SnapshotWriter::new(out, &header)?;
        for Listed { key, .. } in listed {
            let copied = match self.copy_page(key, places.as_ref(), &mut room) {
                Ok(Some(copied)) => copied,
                Ok(None) => continue,
                Err(_) if options.skip_corrupt => {
                    writer.skip();
                    continue;
                }
                Err(source) => return Err(source.into()),
            };
            let Copied { tenant, uses, in_backing, form } = copied;
            let form = match form {
                CopiedForm::Word(word) => PageForm::Word(word),
                CopiedForm::Object(bytes) => PageForm::Object(&room.page[..bytes]),
                CopiedForm::AsIs => PageForm::AsIs(&room.page),
            };
            writer.push(&SnapshotPage { key, tenant, uses, in_backing, form })?;
        }
        writer.finish()
    }

    /// The keys of all pages: those in the backing alone and same-filled ones first, then coldest
    /// first.
    fn list_pages(&self) -> Result<Vec<Listed>, TryReserveError> {
        let mut listed: Vec<Listed> = Vec::new();
        let pages: u64 = self.shards.iter().map(|lock| lock.lock().pages()).sum();
        // Some more may come meanwhile.
        listed.try_reserve_exact(pages as usize + pages as usize / 64)?;
        for lock in self.shards.iter() {
            let shard = lock.lock();
            listed.try_reserve(shard.pages() as usize)?;
            let (mut time_before, mut place) = (0, 0);
            shard.for_each_by_age(&mut |key, time| {
                let age = time.map_or(0, |time| {
                    place = if time == time_before { place + 1 } else { 1 };
                    time_before = time;
                    time << PLACE_BITS | place.min((1 << PLACE_BITS) - 1)
                });
                listed.push(Listed { age, key });
            });
        }
        listed.sort_unstable_by_key(|page| (page.age, page.key));
        Ok(listed)
    }

    /// Copies the page of a key into `room`, as it is kept; `None` where there is none. Counts as
    /// no load. A page that is found corrupt counts as in a load.
    fn copy_page(
        &self,
        key: PageKey,
        places: Option<&Places>,
        room: &mut Room,
    ) -> Result<Option<Copied>, LoadError> {
        let lock = self.shards.of(key);
        loop {
            let mut shard = lock.lock();
            let Some((entry, held)) = shard.get(key) else { return Ok(None) };
            // A tenant that was made since is not in the header: one above it is.
            let order = self.order.as_ref().zip(places);
            let tenant =
                order.map_or(0, |(order, places)| order.tenants.place(held.tenant, places));
            let uses = shard.uses(entry);
            let copied = |form, in_backing| Ok(Some(Copied { tenant, uses, in_backing, form }));
            let handle = match held.content {
                Content::SameFilled(word) => return copied(CopiedForm::Word(word), false),
                Content::Compressed { handle, .. }
                | Content::AsIs { handle }
                | Content::InUnit { handle, .. } => handle,
                Content::LeftUnit { .. } => unreachable!("it is in no entry"),
                Content::WrittenBack => {
                    let tier = self.tier.as_ref().expect("S6: copies are in a backing");
                    let written = held.written.expect("S7: a page is in the pool or the backing");
                    tier.hold(written); // no other page is written there meanwhile
                    drop(shard);
                    let read = tier.read(written, &mut room.blocks).map(|copy| {
                        room.page[..copy.len()].copy_from_slice(copy);
                        self.check_sum(key, copy, written.checksum)
                    });
                    tier.release(written);
                    let mut shard = lock.lock();
                    // Where it is has changed: it may be newer.
                    if shard.current(entry).is_none_or(|now| now.written != Some(written)) {
                        continue;
                    }
                    match read {
                        Ok(Ok(())) if written.as_is => return copied(CopiedForm::AsIs, true),
                        Ok(Ok(())) => {
                            return copied(CopiedForm::Object(usize::from(written.bytes)), true);
                        }
                        Ok(Err(source)) => {
                            return Err(self.corrupt_copy(&mut shard, key, written, source));
                        }
                        Err(source) => {
                            return Err(self.unread_copy(&mut shard, key, written, source));
                        }
                    }
                }
            };
            let checked = self.zpool.read(handle, |slot| {
                drop(shard); // the pool pins the object from here on
                if matches!(held.content, Content::InUnit { .. }) {
                    self.restore(key, held, slot, &mut room.page)?;
                    return Ok(PAGE_SIZE);
                }
                self.check_slot(key, held, slot).map(|object| {
                    room.page[..object.len()].copy_from_slice(object);
                    object.len()
                })
            });
            let bytes = checked.flatten().map_err(|source| {
                lock.lock().counters.decompress_fail += 1;
                LoadError::Corrupt {
                    key,
                    place: self.zpool.name().to_owned(),
                    compressor: self.compressor.name(),
                    bytes: held.content.compressed_bytes() as usize,
                    source,
                }
            })?;
            let bytes = match held.content {
                Content::InUnit { .. } => self.compress_alone(key, &mut room.page),
                Content::AsIs { .. } => None,
                _ => Some(bytes),
            };
            return copied(bytes.map_or(CopiedForm::AsIs, CopiedForm::Object), false);
        }
    }

    /// Makes an object of a page of a unit, in its place, if that is shorter; its length.
    fn compress_alone(&self, key: PageKey, page: &mut Page) -> Option<usize> {
        with_scratch(|scratch| match self.compress(Effort::Fast, key, page, scratch) {
            Ok(Packed { bytes, as_is: false }) if bytes < PAGE_SIZE => {
                page[..bytes].copy_from_slice(&scratch.output()[..bytes]);
                Some(bytes)
            }
            _ => None,
        })
    }
}
