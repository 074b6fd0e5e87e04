//! Goal: a header of any length identifies an object of another page.
//! Method: a pool that swaps two objects of one length on request; without checksums, so that the
//! header is all there is.
//! Blind to: objects of another length, which the decompressor refuses.

use std::sync::Arc;
use std::sync::Mutex;

use uzswap::AuditError;
use uzswap::page::{PAGE_SIZE, Page, PageKey};
use uzswap::zpool::{Handle, UnknownHandle, Zpool, ZpoolError, ZpoolStats};
use uzswap::zswap::{LoadError, OBJECT_HEADER_MAX, Zswap, ZswapOptions, ZswapParts};

/// The first two handles, and whether each stands for the other.
#[derive(Debug, Default)]
struct Pair {
    handles: Vec<Handle>,
    is_swapped: bool,
}

#[derive(Debug)]
struct Swapping(Box<dyn Zpool>, Arc<Mutex<Pair>>);

impl Zpool for Swapping {
    fn name(&self) -> &'static str {
        "swapping"
    }

    fn object_size_max(&self) -> usize {
        self.0.object_size_max()
    }

    fn insert(&self, object: &[u8]) -> Result<Handle, ZpoolError> {
        self.0.insert(object).inspect(|&handle| self.1.lock().unwrap().handles.push(handle))
    }

    fn read(&self, handle: Handle, reader: &mut dyn FnMut(&[u8])) -> Result<(), UnknownHandle> {
        let pair = self.1.lock().unwrap();
        let other = match pair.is_swapped {
            true => pair.handles.iter().copied().find(|&other| other != handle),
            false => None,
        };
        self.0.read(other.unwrap_or(handle), reader)
    }

    fn remove(&self, handle: Handle) -> Result<(), UnknownHandle> {
        self.0.remove(handle)
    }

    fn compact(&self) -> usize {
        self.0.compact()
    }

    fn stats(&self) -> ZpoolStats {
        self.0.stats()
    }

    fn audit(&self) -> Result<(), AuditError> {
        self.0.audit()
    }
}

/// Pages of different keys have objects of one length.
fn page_of(key: u64) -> Page {
    let mut page = [0; PAGE_SIZE];
    page[8..16].copy_from_slice(&(key | 1 << 60).to_le_bytes());
    page
}

#[test]
fn a_header_identifies_an_object_of_another_page() {
    const KEYS: [u64; 2] = [0x0102_0304_0506_0708, 0x0102_0304_0506_0709];
    for header_bytes in [0, 1, 2, 7, 8, 9, OBJECT_HEADER_MAX] {
        let options = ZswapOptions::bare().object_header_bytes(header_bytes);
        let pair = Arc::new(Mutex::new(Pair::default()));
        let parts = ZswapParts::of(options).unwrap();
        let zpool = Box::new(Swapping(parts.zpool, Arc::clone(&pair)));
        let parts = ZswapParts { zpool, ..parts };
        let zswap = Zswap::from_parts(options, parts, |budget| options.index.build_on(budget));
        let zswap = zswap.unwrap();
        for key in KEYS {
            zswap.store(PageKey(key), &page_of(key)).unwrap();
        }
        let mut page = [0; PAGE_SIZE];
        for key in KEYS {
            assert!(zswap.load(PageKey(key), &mut page).unwrap() && page == page_of(key));
        }
        zswap.audit_objects().unwrap();

        pair.lock().unwrap().is_swapped = true;
        for (key, other) in [(KEYS[0], KEYS[1]), (KEYS[1], KEYS[0])] {
            let loaded = zswap.load(PageKey(key), &mut page);
            if header_bytes == 0 {
                assert!(loaded.unwrap() && page == page_of(other), "nothing tells it");
                continue;
            }
            let error = loaded.unwrap_err();
            let LoadError::Corrupt { source, .. } = &error else { panic!("{error:?}") };
            assert!(source.0.contains("header of the object names another page"), "{source}");
            let error = zswap.load_exclusive(PageKey(key), &mut page).unwrap_err();
            assert!(matches!(error, LoadError::Corrupt { .. }), "{error:?}");
        }
        let found = zswap.audit_objects();
        assert_eq!(found.is_err(), header_bytes > 0, "{header_bytes}: {found:?}");
        assert_eq!(zswap.len(), 2, "what is corrupt stays");
    }
}
