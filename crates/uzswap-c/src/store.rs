//! The store: its life, pages in and out, snapshots.

use std::ffi::OsStr;
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use uzswap::backing::{Backing, FileBacking};
use uzswap::page::PageKey;
use uzswap::zswap::{Shrinker, Zswap};

use crate::boundary::{Input, NewHandle, Output, Owned, Place, Shared, Text};
use crate::call::{Failure, call, found};
use crate::options::{Choices, Options};
use crate::status::{HasStatus, Status};

/// A store. uz_zswap_new() or uz_zswap_restore() makes one; threads share it.
#[derive(Debug)]
pub struct Store {
    // Dropped first: its thread uses the store.
    _shrinker: Option<Shrinker>,
    zswap: Arc<Zswap>,
}

impl Store {
    pub(crate) fn zswap(&self) -> &Zswap {
        &self.zswap
    }

    /// Another handle of the same store.
    pub(crate) fn of(zswap: Arc<Zswap>) -> Store {
        Store { _shrinker: None, zswap }
    }

    /// A handle of a new store, with its shrinker.
    pub(crate) fn new(zswap: Arc<Zswap>, choices: &Choices) -> Result<Store, Failure> {
        let shrinker = match choices.has_shrinker {
            true => Some(Shrinker::start(Arc::clone(&zswap), choices.shrinker)?),
            false => None,
        };
        Ok(Store { _shrinker: shrinker, zswap })
    }
}

/// The file behind a store, if one was chosen.
fn backing(choices: &Choices) -> Result<Option<Box<dyn Backing>>, Failure> {
    match choices.has_file() {
        true => Ok(Some(Box::new(FileBacking::open(&choices.file)?))),
        false => Ok(None),
    }
}

/// An empty store.
pub(crate) fn empty(choices: &Choices) -> Result<Zswap, Failure> {
    Ok(match backing(choices)? {
        Some(backing) => Zswap::with_backing(choices.store(), backing)?,
        None => Zswap::new(choices.store())?,
    })
}

/// The path of a file, which need not be UTF-8.
fn path(bytes: &[u8]) -> &Path {
    Path::new(OsStr::from_bytes(bytes))
}

/// Makes an empty store and writes its handle to `*zswap`, which is NULL after a failure. The
/// options may be NULL, for the defaults, and are not needed afterwards.
///
/// Errors: UZ_VALUE, UZ_IO (the file, or the thread of the shrinker), UZ_NO_MEMORY, UZ_ARGUMENT.
#[unsafe(no_mangle)]
pub extern "C" fn uz_zswap_new(options: Shared<Options>, zswap: NewHandle<Store>) -> Status {
    call(|| {
        zswap.fill("zswap", || {
            let choices = Options::of(&options)?;
            Store::new(Arc::new(empty(&choices)?), &choices)
        })
    })
}

/// Makes a store with the pages, tenants and counters of the snapshot at `path`, and writes its
/// handle to `*zswap`, which is NULL after a failure. Options as for uz_zswap_new(). Pages that do
/// not fit below the limit go to the file behind the store, the coldest first. The snapshot stays
/// as it is.
///
/// Errors: UZ_SNAPSHOT, UZ_IO, UZ_LIMIT (some pages fit nowhere), and those of uz_zswap_new().
#[unsafe(no_mangle)]
pub extern "C" fn uz_zswap_restore(
    options: Shared<Options>,
    path: Text,
    zswap: NewHandle<Store>,
) -> Status {
    call(|| {
        zswap.fill("zswap", || {
            let choices = Options::of(&options)?;
            let path = self::path(path.bytes("path")?);
            let (zswap, _) = Zswap::from_snapshot(choices.store(), backing(&choices)?, path)?;
            Store::new(Arc::new(zswap), &choices)
        })
    })
}

/// Ends a store and frees its memory; NULL is allowed. Waits for its shrinker. The file behind the
/// store is removed if the store made it, unless `file.keep` is set. Every other call with this
/// handle has returned, and none follows.
#[unsafe(no_mangle)]
pub extern "C" fn uz_zswap_free(zswap: Owned<Store>) {
    call(|| zswap.take("zswap").map(|_| Status::UzOk));
}

/// Keeps a copy of the UZ_PAGE_SIZE bytes at `page` under `key`, which may be any number.
/// Neighbouring pages should have neighbouring keys: the index is small then. The key's earlier
/// page is gone, also if the new one is refused. `page` needs no alignment.
///
/// Errors: UZ_LIMIT, UZ_TENANT_LIMIT (the root's limit), UZ_INCOMPRESSIBLE, UZ_COMPRESSOR,
/// UZ_NO_MEMORY, UZ_FILE_FULL, UZ_IO, UZ_ARGUMENT.
#[unsafe(no_mangle)]
pub extern "C" fn uz_store(zswap: Shared<Store>, key: u64, page: Input) -> Status {
    call(|| {
        let (zswap, page) = (zswap.get("zswap")?.zswap(), page.page("page")?);
        zswap.store(PageKey(key), page)?;
        Ok(Status::UzOk)
    })
}

/// Keeps copies of `count` pages, one after the other from `pages` on, under the keys `first`,
/// `first` + 1 and so on. Pages of one unit (the option unit_pages, aligned) are compressed
/// together: they take less room, and a load of one decompresses its unit.
///
/// A `count` of 0 stores nothing, with any `pages`.
///
/// `statuses` is NULL or has room for `count` codes: the one that uz_store() would return for each
/// page. The result is UZ_OK if all pages were stored, or else the code of the first that was not;
/// the others were tried all the same.
///
/// Errors: those of uz_store(). UZ_ARGUMENT also if the last key would exceed 2^64 - 1; no page was
/// stored then, and no code was written.
#[unsafe(no_mangle)]
pub extern "C" fn uz_store_all(
    zswap: Shared<Store>,
    first: u64,
    pages: Input,
    count: usize,
    mut statuses: Place<Status>,
) -> Status {
    call(|| {
        let zswap = zswap.get("zswap")?.zswap();
        let statuses = statuses.array(count, "statuses")?;
        if count == 0 {
            return Ok(Status::UzOk);
        }
        let pages = pages.pages(count, "pages")?;
        if first.checked_add(count as u64 - 1).is_none() {
            let message = format!("{count} keys from {first:#x} on exceed 2^64 - 1");
            return Err(Failure::new(Status::UzArgument, message));
        }
        let (mut at, mut failure) = (statuses.iter_mut(), None);
        zswap.store_all(PageKey(first), pages, |_, stored| {
            let status = stored.as_ref().map_or_else(HasStatus::status, |_| Status::UzOk);
            at.next().map(|place| place.write(status));
            if let (Err(error), None) = (stored, &failure) {
                failure = Some(Failure::from(error));
            }
        });
        failure.map_or(Ok(Status::UzOk), Err)
    })
}

/// Fills the UZ_PAGE_SIZE bytes at `page` with the page of `key`, and keeps it.
///
/// Returns UZ_NOT_FOUND if the key has no page; `page` is as it was, unless another thread removed
/// the key's page meanwhile. After an error the content of `page` is not defined.
///
/// Errors: UZ_CORRUPT, UZ_IO (the file behind the store), UZ_ARGUMENT.
#[unsafe(no_mangle)]
pub extern "C" fn uz_load(zswap: Shared<Store>, key: u64, mut page: Output) -> Status {
    call(|| {
        let (zswap, page) = (zswap.get("zswap")?.zswap(), page.page("page")?);
        Ok(found(zswap.load(PageKey(key), page)?))
    })
}

/// As uz_load(), and drops the page from the store. Of several threads that ask for one page, one
/// gets it. After an error the page is still in the store.
#[unsafe(no_mangle)]
pub extern "C" fn uz_load_exclusive(zswap: Shared<Store>, key: u64, mut page: Output) -> Status {
    call(|| {
        let (zswap, page) = (zswap.get("zswap")?.zswap(), page.page("page")?);
        Ok(found(zswap.load_exclusive(PageKey(key), page)?))
    })
}

/// UZ_OK if the key has a page, in memory or in the file, or UZ_NOT_FOUND. This is no use of the
/// page.
#[unsafe(no_mangle)]
pub extern "C" fn uz_contains(zswap: Shared<Store>, key: u64) -> Status {
    call(|| Ok(found(zswap.get("zswap")?.zswap().contains(PageKey(key)))))
}

/// Forgets the page of `key`, unread. Returns UZ_NOT_FOUND if there was none.
#[unsafe(no_mangle)]
pub extern "C" fn uz_invalidate(zswap: Shared<Store>, key: u64) -> Status {
    call(|| Ok(found(zswap.get("zswap")?.zswap().invalidate(PageKey(key)))))
}

/// Forgets every page with a key from `first` to `last`, both included. Writes the number of pages
/// to `*count`, unless that is NULL.
#[unsafe(no_mangle)]
pub extern "C" fn uz_invalidate_range(
    zswap: Shared<Store>,
    first: u64,
    last: u64,
    mut count: Place<u64>,
) -> Status {
    call(|| {
        let (zswap, place) = (zswap.get("zswap")?.zswap(), count.optional("count")?);
        write(place, zswap.invalidate_range(PageKey(first)..=PageKey(last)));
        Ok(Status::UzOk)
    })
}

/// As uz_store(), and takes more time so that the page takes less room. The compressor is that of
/// the option `dense`, or without that option the ordinary one at its densest. A load takes the
/// time of that compressor.
#[unsafe(no_mangle)]
pub extern "C" fn uz_store_dense(zswap: Shared<Store>, key: u64, page: Input) -> Status {
    call(|| {
        let (zswap, page) = (zswap.get("zswap")?.zswap(), page.page("page")?);
        zswap.store_densely(PageKey(key), page)?;
        Ok(Status::UzOk)
    })
}

/// Compresses the page of `key` as uz_store_dense() would, and keeps the result if that is smaller.
/// Writes the bytes saved to `*bytes`, unless that is NULL: 0 if nothing was, or if the pool has no
/// page of the key.
///
/// Errors: UZ_CORRUPT; the page stays in the store. UZ_ARGUMENT.
#[unsafe(no_mangle)]
pub extern "C" fn uz_recompress(zswap: Shared<Store>, key: u64, mut bytes: Place<u64>) -> Status {
    call(|| {
        let (zswap, place) = (zswap.get("zswap")?.zswap(), bytes.optional("bytes")?);
        write(place, zswap.recompress(PageKey(key))?);
        Ok(Status::UzOk)
    })
}

/// Packs the objects of the pool together and gives the pages of memory that come free back to the
/// kernel. Writes their number to `*pages`, unless that is NULL.
#[unsafe(no_mangle)]
pub extern "C" fn uz_compact(zswap: Shared<Store>, mut pages: Place<u64>) -> Status {
    call(|| {
        let (zswap, place) = (zswap.get("zswap")?.zswap(), pages.optional("pages")?);
        write(place, zswap.compact());
        Ok(Status::UzOk)
    })
}

/// Writes the whole store to a file at `path`, which is replaced when the new one is complete.
/// Other threads may use the store meanwhile. Needs 16 bytes of memory a page and 290 KiB. A limit
/// of file sizes ends the process by SIGXFSZ, unless that is ignored.
///
/// Errors: UZ_IO, UZ_CORRUPT, UZ_NO_MEMORY, UZ_ARGUMENT. The snapshot that was there before stays.
#[unsafe(no_mangle)]
pub extern "C" fn uz_snapshot(zswap: Shared<Store>, path: Text) -> Status {
    call(|| {
        zswap.get("zswap")?.zswap().snapshot(self::path(path.bytes("path")?))?;
        Ok(Status::UzOk)
    })
}

/// Writes a count where C asked for it.
pub(crate) fn write(place: Option<&mut MaybeUninit<u64>>, count: usize) {
    place.map(|place| place.write(count as u64));
}
