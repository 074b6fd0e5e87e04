//! Goal: pages that are stored densely, or compressed once more, stay what they are, whatever else
//! happens to them, and take less room.
//! Method: seeded histories against a map, for each allocator, with and without records; a thread
//! that compresses all the time beside others; a pair of compressors, by itself.
//! Blind to: failing parts, which torture has.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use uzswap::compressor::{CompressError, Compressor, CompressorKind, Corrupt, Dual, OUTPUT_BYTES};
use uzswap::page::{PAGE_SIZE, Page, PageKey};
use uzswap::random::SplitMix64;
use uzswap::zpool::ZpoolKind;
use uzswap::zswap::{
    Incompressible, LoadError, RecordOptions, StoreError, Stored, Zswap, ZswapOptions,
};

const DENSE: CompressorKind = CompressorKind::Zstd(1);

fn pair() -> Box<Dual> {
    Box::new(Dual::new(CompressorKind::Lz4.build(), DENSE.build()))
}

/// A page of words; of random bytes, where `kind` is 0, and of nothing but zeros, where it is 1.
fn page_of(seed: u64, kind: u64) -> Page {
    let mut random = SplitMix64::new(seed);
    let mut page = [0; PAGE_SIZE];
    match kind {
        0 => page.fill_with(|| random.next_word() as u8),
        1 => {}
        _ => {
            let text = b"all the pages that leave are made of words such as these and no others";
            let words: Vec<&[u8]> = text.split(|&byte| byte == b' ').collect();
            let mut at = 0;
            while at < PAGE_SIZE {
                let word = words[random.next_word() as usize % words.len()];
                let end = PAGE_SIZE.min(at + word.len());
                page[at..end].copy_from_slice(&word[..end - at]);
                at = end + 1;
            }
        }
    }
    page
}

fn options() -> impl Iterator<Item = ZswapOptions> {
    ZpoolKind::ALL.into_iter().flat_map(|zpool| {
        [None, Some(RecordOptions::default())].map(|records| {
            ZswapOptions::default()
                .zpool(zpool)
                .records(records)
                .incompressible(Incompressible::StoreAsIs)
                .shards(4)
        })
    })
}

/// Random bytes and many short matches: zstd makes more of it than lz4.
fn page_of_matches(seed: u64) -> Page {
    let mut random = SplitMix64::new(seed);
    let (mut page, word) = ([0; PAGE_SIZE], random.next_word());
    for (at, part) in page.chunks_exact_mut(8).enumerate() {
        let repeated = word.wrapping_add(at as u64 % 8);
        let value = if at < PAGE_SIZE / 32 { random.next_word() } else { repeated };
        part.copy_from_slice(&value.to_le_bytes());
    }
    page
}

#[test]
fn a_page_that_the_dense_compressor_makes_longer_stays_short() {
    const PAGES: u64 = 2000;
    let pool_bytes = |compressor: CompressorKind, dense: Option<CompressorKind>| {
        let options = ZswapOptions::default().compressor(compressor).dense(dense);
        let zswap = Zswap::new(options).unwrap();
        for index in 0..PAGES {
            zswap.store_densely(PageKey(index), &page_of_matches(index)).unwrap();
        }
        zswap.budget().pool_bytes()
    };
    let [lz4, zstd] = [CompressorKind::Lz4, DENSE].map(|alone| pool_bytes(alone, None));
    assert!(zstd > lz4 * 5 / 4, "zstd takes {zstd} bytes, lz4 {lz4}");
    let both = pool_bytes(CompressorKind::Lz4, Some(DENSE));
    assert!(both < lz4 * 101 / 100, "both take {both} bytes, lz4 {lz4}");
}

#[test]
fn a_pair_gives_back_what_either_made() {
    let pair = pair();
    let (mut out, mut page) = ([0; OUTPUT_BYTES], [0; PAGE_SIZE]);
    for seed in 0..200 {
        let original = page_of(seed, 2 + seed % 2);
        let fast = pair.compress(&original, &mut out).unwrap();
        assert!(!pair.is_dense(&out[..fast]));
        pair.decompress(&out[..fast], &mut page).unwrap();
        assert!(page == original, "seed {seed}, fast");
        page.fill(0);
        let dense = pair.compress_densely(&original, &mut out).unwrap();
        assert!(pair.is_dense(&out[..dense]) && dense < fast);
        pair.decompress(&out[..dense], &mut page).unwrap();
        assert!(page == original, "seed {seed}, densely");
        // The last byte names the compressor.
        out[dense - 1] = 3;
        let error = pair.decompress(&out[..dense], &mut page).unwrap_err();
        assert!(error.to_string().contains("names compressor 3; expected 0, 1 or 2"), "{error}");
        out[dense - 1] = 0;
        assert!(pair.decompress(&out[..dense], &mut page).is_err());
        assert!(pair.decompress(&[], &mut page).is_err());
    }
    // One that makes a page of a page has no room for more.
    let none = || CompressorKind::None.build();
    assert!(Dual::new(none(), none()).compress(&page, &mut out).is_err());
    assert_eq!(pair.name(), "lz4+zstd:1");
}

/// The page of a key after a store; zbud takes no incompressible page.
fn note(map: &mut HashMap<u64, Page>, key: u64, page: Page, stored: Result<Stored, StoreError>) {
    match stored {
        Ok(_) => map.insert(key, page),
        Err(StoreError::CompressPoor { .. }) => map.remove(&key),
        Err(error) => panic!("{error}"),
    };
}

#[test]
fn histories_agree_with_a_map() {
    for (number, options) in options().enumerate() {
        let zswap = Zswap::with_compressor(options, pair()).unwrap();
        let mut map: HashMap<u64, Page> = HashMap::new();
        let mut random = SplitMix64::new(number as u64);
        let mut below = |bound: u64| random.next_word() % bound;
        let mut saved = 0;
        for step in 0..20_000 {
            let number = below(100);
            let key = PageKey(number);
            match below(8) {
                0 | 1 => {
                    let page = page_of(below(1 << 40), below(12));
                    note(&mut map, number, page, zswap.store(key, &page));
                }
                2 => {
                    let page = page_of(below(1 << 40), below(12));
                    note(&mut map, number, page, zswap.store_densely(key, &page));
                }
                3 | 4 => {
                    let before = zswap.memory().compressed_bytes;
                    let less = zswap.recompress(key).unwrap() as u64;
                    assert_eq!(zswap.memory().compressed_bytes, before - less, "step {step}");
                    assert_eq!(zswap.recompress(key).unwrap(), 0, "it is dense now");
                    saved += u64::from(less > 0);
                }
                5 => assert_eq!(zswap.invalidate(key), map.remove(&number).is_some()),
                6 => {
                    let mut page = [0xa5; PAGE_SIZE];
                    let found = zswap.load_exclusive(key, &mut page).unwrap();
                    assert_eq!(found.then_some(page), map.remove(&number), "step {step}");
                }
                _ => {
                    let mut page = [0xa5; PAGE_SIZE];
                    let found = zswap.load(key, &mut page).unwrap();
                    assert_eq!(found.then_some(&page), map.get(&number), "step {step}");
                }
            }
            if step % 1000 == 0 {
                zswap.audit().unwrap();
            }
        }
        zswap.audit().unwrap();
        assert!(saved > 1000, "{saved}");
        assert_eq!(zswap.counters().recompressed_pages, saved);
    }
}

#[test]
fn what_is_compressed_once_more_takes_the_room_of_what_was_dense_at_once() {
    let bytes_of = |fill: &dyn Fn(&Zswap)| {
        let zswap = Zswap::with_compressor(options().next().unwrap(), pair()).unwrap();
        fill(&zswap);
        zswap.compact();
        (zswap.memory().pool_bytes, zswap.memory().compressed_bytes)
    };
    let keys = || (0..2000).map(PageKey);
    let fast = bytes_of(&|zswap| {
        keys().for_each(|key| assert!(zswap.store(key, &page_of(key.0, 2)).is_ok()));
    });
    let dense = bytes_of(&|zswap| {
        keys().for_each(|key| assert!(zswap.store_densely(key, &page_of(key.0, 2)).is_ok()));
    });
    let again = bytes_of(&|zswap| {
        keys().for_each(|key| assert!(zswap.store(key, &page_of(key.0, 2)).is_ok()));
        keys().for_each(|key| assert!(zswap.recompress(key).unwrap() > 0));
    });
    assert_eq!(dense, again);
    assert!(dense.0 < fast.0 * 4 / 5, "{dense:?} of {fast:?}");
}

/// A pair whose fast compressor reports its own objects as corrupt, on request.
#[derive(Debug)]
struct Rotten(Box<Dual>, Arc<AtomicBool>);

impl Compressor for Rotten {
    fn name(&self) -> String {
        self.0.name()
    }

    fn compress(&self, page: &Page, out: &mut [u8; OUTPUT_BYTES]) -> Result<usize, CompressError> {
        self.0.compress(page, out)
    }

    fn is_dense(&self, object: &[u8]) -> bool {
        self.0.is_dense(object)
    }

    fn decompress(&self, object: &[u8], page: &mut Page) -> Result<(), Corrupt> {
        let end = if self.1.load(Ordering::Relaxed) { object.len() / 2 } else { object.len() };
        self.0.decompress(&object[..end], page)
    }
}

#[test]
fn what_is_corrupt_is_told_and_stays() {
    let is_rotten = Arc::new(AtomicBool::new(true));
    let compressor = Box::new(Rotten(pair(), Arc::clone(&is_rotten)));
    let zswap = Zswap::with_compressor(options().next().unwrap(), compressor).unwrap();
    let (key, original) = (PageKey(7), page_of(7, 2));
    zswap.store(key, &original).unwrap();
    let error = zswap.recompress(key).unwrap_err();
    assert!(matches!(error, LoadError::Corrupt { .. }), "{error}");
    assert_eq!((zswap.counters().decompress_fail, zswap.counters().recompressed_pages), (1, 0));
    is_rotten.store(false, Ordering::Relaxed);
    let mut page = [0; PAGE_SIZE];
    assert!(zswap.load(key, &mut page).unwrap() && page == original);
    zswap.audit().unwrap();
}

/// Two threads store, load and remove pages of keys of their own; a third compresses all of them
/// again and again.
#[test]
fn nothing_is_lost_beside_a_thread_that_compresses_all_once_more() {
    for options in options() {
        let zswap = Zswap::with_compressor(options, pair()).unwrap();
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let (zswap, is_over) = (&zswap, &is_over);
            let workers = [0, 1].map(|thread| {
                scope.spawn(move || {
                    let mut random = SplitMix64::new(thread);
                    let mut held: HashMap<u64, u64> = HashMap::new();
                    for step in 0..15_000_u64 {
                        let number = random.next_word() % 8 * 2 + thread;
                        let key = PageKey(number);
                        let mut page = [0; PAGE_SIZE];
                        match random.next_word() % 4 {
                            0 | 1 => {
                                zswap.store(key, &page_of(step, 2)).unwrap();
                                held.insert(number, step);
                                continue;
                            }
                            2 => {
                                let found = zswap.load_exclusive(key, &mut page).unwrap();
                                let expected = held.remove(&number);
                                assert_eq!(found, expected.is_some());
                                assert!(expected.is_none_or(|seed| page == page_of(seed, 2)));
                            }
                            _ => {
                                let found = zswap.load(key, &mut page).unwrap();
                                let expected = held.get(&number);
                                assert_eq!(found, expected.is_some());
                                assert!(expected.is_none_or(|&seed| page == page_of(seed, 2)));
                            }
                        }
                    }
                })
            });
            scope.spawn(move || {
                while !is_over.load(Ordering::Relaxed) {
                    (0..16).for_each(|number| assert!(zswap.recompress(PageKey(number)).is_ok()));
                }
            });
            let ended = workers.map(|worker| worker.join());
            is_over.store(true, Ordering::Relaxed);
            ended.into_iter().for_each(|ended| ended.unwrap());
        });
        zswap.audit().unwrap();
        assert!(zswap.counters().recompressed_pages > 100);
    }
}
