//! Loads: from memory, and from the backing.

use std::cell::RefCell;
use std::io;
use std::sync::MutexGuard;

use super::entry::{Content, Held, Written};
use super::shard::{Shard, ShardLock};
use super::{Corrupt, Effort, LoadError, Zswap, object_header, with_room, with_scratch};
use crate::backing::Block;
use crate::index::Entry;
use crate::page::{Page, PageKey, fill_with_word};

thread_local! {
    /// A thread's room for a copy in the backing, which lies in two blocks at most.
    static BLOCKS: RefCell<Box<[Block; 2]>> = RefCell::new(Box::new(two_blocks()));
}

/// The error for a slot that is too short.
pub(super) fn shown(slot: &[u8], bytes: usize) -> Corrupt {
    Corrupt(format!("the pool shows {} bytes of {bytes}", slot.len()))
}

fn two_blocks() -> [Block; 2] {
    [Block::ZERO, Block::ZERO]
}

impl Zswap {
    /// Fills `page` with the page of `key` and keeps it; `false` where the key holds none, and
    /// `page` is untouched, unless another thread removed the key's page meanwhile.
    ///
    /// # Errors
    ///
    /// [`LoadError`].
    pub fn load(&self, key: PageKey, page: &mut Page) -> Result<bool, LoadError> {
        self.load_and(key, page, true)
    }

    /// The same, but a page that is in the backing stays there: for those that are asked for once.
    ///
    /// # Errors
    ///
    /// [`LoadError`].
    pub fn load_in_place(&self, key: PageKey, page: &mut Page) -> Result<bool, LoadError> {
        self.load_and(key, page, false)
    }

    /// Whether the page of `key` is in the backing, so that to load it takes a read. The page may
    /// be there a moment later.
    pub fn is_written_back(&self, key: PageKey) -> bool {
        self.id.enter();
        let shard = self.shards.of(key).lock();
        shard.get(key).is_some_and(|(_, held)| held.content == Content::WrittenBack)
    }

    /// Fills `page`; what comes from the backing is brought back into the pool, if that is wanted.
    fn load_and(&self, key: PageKey, page: &mut Page, bring_back: bool) -> Result<bool, LoadError> {
        self.id.enter();
        let start = self.sample();
        let lock = self.shards.of(key);
        loop {
            let mut shard = lock.lock();
            let Some((entry, held)) = shard.get(key) else { return Ok(false) };
            shard.note_use(entry);
            let (content, written) = (held.content, held.written);
            if content != Content::WrittenBack {
                shard.counters.zswpin += 1;
                self.fetch(key, held, shard, page, || ())?;
                start.inspect(|start| self.latencies.load.record(start.elapsed()));
                return Ok(true);
            }
            if self.read_back(shard, key, entry, written, page, bring_back)?.is_some() {
                start.inspect(|start| self.latencies.backing_load.record(start.elapsed()));
                return Ok(true);
            }
        }
    }

    /// Fills `page` with the page of `key` and drops it from the store; `false` where the key holds
    /// none. Of several threads that ask for the same page, one gets it.
    ///
    /// # Errors
    ///
    /// [`LoadError`]; the entry stays.
    pub fn load_exclusive(&self, key: PageKey, page: &mut Page) -> Result<bool, LoadError> {
        self.id.enter();
        let start = self.sample();
        let lock = self.shards.of(key);
        loop {
            let mut shard = lock.lock();
            let Some((entry, held)) = shard.get(key) else { return Ok(false) };
            if let Content::SameFilled(word) = held.content {
                shard.take(key);
                shard.counters.zswpin += 1;
                shard.counters.exclusive_loads += 1;
                drop(shard);
                self.release(held);
                fill_with_word(page, word);
                start.inspect(|start| self.latencies.load.record(start.elapsed()));
                return Ok(true);
            }
            let mut removed = None;
            let is_in_pool = held.content.handle().is_some();
            if is_in_pool {
                // Removed only once it has been restored, and while it is pinned: its handle names
                // it and no later object. Whoever holds the shard may wait for the pin, so not for
                // long.
                self.fetch(key, held, shard, page, || {
                    removed = lock.lock_soon().and_then(|mut shard| {
                        let removed = shard.remove(key, entry)?;
                        shard.counters.zswpin += 1;
                        shard.counters.exclusive_loads += 1;
                        Some(removed)
                    });
                })?;
            } else {
                if let Some(mut shard) =
                    self.read_back(shard, key, entry, held.written, page, false)?
                {
                    removed = shard.remove(key, entry);
                    shard.counters.exclusive_loads += 1;
                }
            }
            if let Some(held) = removed {
                self.release(held);
                let latency = match is_in_pool {
                    true => &self.latencies.load,
                    false => &self.latencies.backing_load,
                };
                start.inspect(|start| latency.record(start.elapsed()));
                return Ok(true);
            }
            // The page is gone or changed, or the shard is busy: look up again.
            std::thread::yield_now();
        }
    }

    /// Restores the page of `key` from memory. The shard is let go as soon as the object is pinned;
    /// `restored` is called before the pin ends.
    fn fetch(
        &self,
        key: PageKey,
        held: Held,
        shard: MutexGuard<'_, Shard>,
        page: &mut Page,
        restored: impl FnOnce(),
    ) -> Result<(), LoadError> {
        if let Content::SameFilled(word) = held.content {
            drop(shard);
            fill_with_word(page, word);
            return Ok(());
        }
        self.with_slot(key, held, shard, |slot| {
            self.restore(key, held, slot, page)?;
            restored();
            Ok(())
        })
    }

    /// Has the object of `key`, which is in the pool, looked at while it is pinned. The shard is
    /// let go as soon as it is.
    pub(super) fn with_object<T>(
        &self,
        key: PageKey,
        held: Held,
        shard: MutexGuard<'_, Shard>,
        look: impl FnOnce(&[u8]) -> Result<T, Corrupt>,
    ) -> Result<T, LoadError> {
        self.with_slot(key, held, shard, |slot| self.check_slot(key, held, slot).and_then(look))
    }

    /// The same, with the slot that the object is in.
    pub(super) fn with_slot<T>(
        &self,
        key: PageKey,
        held: Held,
        shard: MutexGuard<'_, Shard>,
        look: impl FnOnce(&[u8]) -> Result<T, Corrupt>,
    ) -> Result<T, LoadError> {
        let handle = held.content.handle().expect("it is in the pool");
        let looked = self.zpool.read(handle, |slot| {
            // The pool pins the object from here on: the entry may go now.
            drop(shard);
            look(slot)
        });
        looked.flatten().map_err(|source| {
            self.shards.of(key).lock().counters.decompress_fail += 1;
            LoadError::Corrupt {
                key,
                place: self.zpool.name().to_owned(),
                compressor: self.compressor.name(),
                bytes: held.content.compressed_bytes() as usize,
                source,
            }
        })
    }

    /// The object in a slot of the pool, if its header and checksum are right.
    pub(super) fn check_slot<'a>(
        &self,
        key: PageKey,
        held: Held,
        slot: &'a [u8],
    ) -> Result<&'a [u8], Corrupt> {
        let bytes = held.content.compressed_bytes() as usize;
        let object = self.check_header(key, slot)?.get(..bytes);
        let object = object.ok_or_else(|| shown(slot, bytes))?;
        self.check_sum(key, object, held.checksum)?;
        Ok(object)
    }

    /// The bytes of a slot behind the header, if that is the header of `key`.
    pub(super) fn check_header<'a>(
        &self,
        key: PageKey,
        slot: &'a [u8],
    ) -> Result<&'a [u8], Corrupt> {
        let header_bytes = self.options.object_header_bytes;
        let split = slot.split_at_checked(header_bytes);
        let (header, object) = split.ok_or_else(|| shown(slot, header_bytes))?;
        if !header.is_empty() && header != &object_header(key)[..header.len()] {
            return Err(Corrupt("the header of the object names another page".to_owned()));
        }
        Ok(object)
    }

    /// Turns a slot of the pool back into the page.
    pub(super) fn restore(
        &self,
        key: PageKey,
        held: Held,
        slot: &[u8],
        page: &mut Page,
    ) -> Result<(), Corrupt> {
        match held.content {
            Content::InUnit { .. } => self.restore_of_unit(key, held, slot, page),
            _ => self.restore_object(held, self.check_slot(key, held, slot)?, page),
        }
    }

    /// Turns an object back into the page.
    pub(super) fn restore_object(
        &self,
        held: Held,
        object: &[u8],
        page: &mut Page,
    ) -> Result<(), Corrupt> {
        match held.content {
            Content::Compressed { .. } => self.compressor.decompress(object, page),
            _ => {
                page.copy_from_slice(object);
                Ok(())
            }
        }
    }

    /// Restores the page of `key` from the backing; the shard, locked, if its entry is the same
    /// still. `None` where it is not. The copy is held while it is read: else its blocks could be
    /// freed, be another page's, and be this one's again, and that would not be noticed.
    fn read_back<'a>(
        &'a self,
        shard: MutexGuard<'a, Shard>,
        key: PageKey,
        entry: Entry,
        written: Option<Written>,
        page: &mut Page,
        bring_back: bool,
    ) -> Result<Option<MutexGuard<'a, Shard>>, LoadError> {
        let lock = self.shards.of(key);
        let tier = self.tier.as_ref().expect("S6: copies are in a backing");
        let written = written.expect("S7: a page is in the pool or the backing");
        tier.hold(written);
        drop(shard);
        with_room(&BLOCKS, two_blocks, |blocks| {
            let read = tier.read(written, blocks);
            tier.release(written);
            let restored =
                read.map(|object| (self.restore_copy(key, written, object, page), object));
            let mut shard = lock.lock();
            // A record is about one page: what was read is right, whatever was done with it since.
            let Some(held) = shard.current(entry) else { return Ok(None) };
            if restored.as_ref().map_or(true, |(restored, _)| restored.is_err())
                && held.written != Some(written)
            {
                return Ok(None);
            }
            let object = match restored {
                Ok((Ok(()), object)) => object,
                Ok((Err(source), _)) => {
                    return Err(self.corrupt_copy(&mut shard, key, written, source));
                }
                Err(source) => return Err(self.unread_copy(&mut shard, key, written, source)),
            };
            shard.note_backing_load(held.tenant);
            // The page may have come back and gone to another place since, in another form.
            let is_as_read = held.content == Content::WrittenBack && held.written == Some(written);
            if !bring_back || !is_as_read {
                return Ok(Some(shard));
            }
            let uses = shard.uses(entry);
            let order = self.order.as_ref();
            let _holding = order.map(|order| order.tenants.hold_number(held.tenant));
            drop(shard);
            if !self.hysteresis.is_crowded(self.limited_bytes()) || self.displace(uses) {
                self.promote(lock, (key, entry, held), uses, object, page);
            }
            Ok(Some(lock.lock()))
        })
    }

    /// Counts a copy that is not what was written, and says so.
    pub(super) fn corrupt_copy(
        &self,
        shard: &mut Shard,
        key: PageKey,
        written: Written,
        source: Corrupt,
    ) -> LoadError {
        shard.counters.decompress_fail += 1;
        LoadError::Corrupt {
            key,
            place: self.backing_name(),
            compressor: self.compressor.name(),
            bytes: usize::from(written.bytes),
            source,
        }
    }

    /// Counts a copy that the backing did not give, and says so.
    pub(super) fn unread_copy(
        &self,
        shard: &mut Shard,
        key: PageKey,
        written: Written,
        source: io::Error,
    ) -> LoadError {
        shard.counters.backing_read_fail += 1;
        LoadError::Backing { key, backing: self.backing_name(), block: written.at.block(), source }
    }

    fn backing_name(&self) -> String {
        self.tier.as_ref().map_or_else(String::new, |tier| tier.backing().name())
    }

    fn restore_copy(
        &self,
        key: PageKey,
        written: Written,
        copy: &[u8],
        page: &mut Page,
    ) -> Result<(), Corrupt> {
        self.check_sum(key, copy, written.checksum)?;
        if written.as_is {
            page.copy_from_slice(copy);
            return Ok(());
        }
        self.compressor.decompress(copy, page)
    }

    /// Brings a page that was read from the backing into the pool again. Where there is no room it
    /// stays where it is.
    fn promote(
        &self,
        lock: &ShardLock,
        (key, entry, held): (PageKey, Entry, Held),
        uses: u8,
        copy: &[u8],
        page: &Page,
    ) {
        let (Some(tier), Some(written)) = (&self.tier, held.written) else { return };
        let brought = with_scratch(|scratch| {
            let packed = match written.as_is {
                true => self.compress(Effort::Fast, key, page, scratch).ok()?,
                false => scratch.pack(copy),
            };
            self.insert_packed(held.tenant, key, packed, scratch, || self.displace(uses)).ok()
        });
        let Some(brought) = brought else { return };
        // Asked before the shard is locked: nothing is lost if that changes.
        let keeps_copy = tier.keeps_copies();
        let mut shard = lock.lock();
        if shard.current(entry) != Some(held) {
            // The page is gone, or another thread was faster.
            drop(shard);
            self.release_object(brought);
            return;
        }
        shard.counters.promoted_pages += 1;
        if keeps_copy {
            shard.set(entry, Held { written: held.written, ..brought });
        } else {
            shard.set(entry, brought);
            drop(shard);
            tier.release(written);
        }
    }
}
