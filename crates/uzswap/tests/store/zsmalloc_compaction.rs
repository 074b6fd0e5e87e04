//! Goal: compaction moves each object as it is, from and to every slot of every class.
//! Method: for each class of each option, fill some zspages, free objects in a pattern, compact.
//! Some patterns leave the last slots alone. Each object is compared, and the zspages are exactly
//! as many as the objects need. Then a whole store of small pages.
//! Blind to: threads (see `zpool_model`).

use std::sync::Arc;

use uzswap::compressor::CompressorKind;
use uzswap::page::{PAGE_SIZE, Page, PageKey};
use uzswap::random::mix;
use uzswap::zpool::zsmalloc::{
    self, CHAIN_SIZE_MAX, CHAIN_SIZE_MIN, ChainRule, ClassTable, HandleHeader, ObjectMapping,
    SizeClass, ZsmallocOptions,
};
use uzswap::zpool::{Arena, Handle, Zpool};
use uzswap::zswap::{Zswap, ZswapOptions};

/// Zspages of a class that are filled before some of its objects are freed.
const ZSPAGES: usize = 4;

/// Which objects stay, by zspage and slot.
type Stays = fn(zspage: usize, slot: usize, slots: usize) -> bool;

const PATTERNS: [(&str, Stays); 5] = [
    ("the last slots of all", |zspage, slot, slots| slot + slots / (zspage + 3) + 1 >= slots),
    ("the first slots of all", |zspage, slot, slots| slot <= slots / (zspage + 3)),
    ("each third slot", |zspage, slot, _| (slot + zspage).is_multiple_of(3)),
    ("all of the first zspage, but for its middle, and the last slot of the others", {
        |zspage, slot, slots| if zspage == 0 { slot != slots / 2 } else { slot + 1 == slots }
    }),
    ("half, by chance", |zspage, slot, _| mix((zspage as u64) << 32 | slot as u64) & 1 == 0),
];

/// Every chain size, rule, header and mapping; the mappings with the longest chains alone.
fn all_options() -> Vec<ZsmallocOptions> {
    let mut all = Vec::new();
    for chain_size in [CHAIN_SIZE_MIN, 8, CHAIN_SIZE_MAX] {
        for chain_rule in [ChainRule::LeastWaste, ChainRule::UsedPercent] {
            for handle_header in [HandleHeader::InObject, HandleHeader::Beside] {
                let mapping = ObjectMapping::Contiguous;
                all.push(
                    ZsmallocOptions::default()
                        .chain_size(chain_size)
                        .chain_rule(chain_rule)
                        .handle_header(handle_header)
                        .mapping(mapping),
                );
            }
        }
    }
    for mapping in [ObjectMapping::Copy, ObjectMapping::Vm] {
        all.push(all[0].chain_size(CHAIN_SIZE_MAX).mapping(mapping));
    }
    all
}

/// The largest object of a class, none of whose words another one has.
fn object_of(class: &SizeClass, header_bytes: usize, number: usize) -> Vec<u8> {
    let bytes = if class.is_huge() { PAGE_SIZE } else { class.slot_bytes - header_bytes };
    let word = |place: usize| mix((number as u64) << 20 | place as u64).to_le_bytes();
    (0..bytes.div_ceil(8)).flat_map(word).take(bytes).collect()
}

/// Fills zspages of a class, frees what does not stay, compacts; what is left.
fn compact_class(
    pool: &dyn Zpool,
    class: &SizeClass,
    header_bytes: usize,
    stays: Stays,
) -> Vec<(Handle, Vec<u8>)> {
    let objects: Vec<(Handle, Vec<u8>)> = (0..ZSPAGES * class.slots)
        .map(|number| object_of(class, header_bytes, number))
        .map(|object| (pool.insert(&object).unwrap(), object))
        .collect();
    let mut left = Vec::new();
    for (number, (handle, object)) in objects.into_iter().enumerate() {
        // A zspage is filled in order before there is another one.
        match stays(number / class.slots, number % class.slots, class.slots) {
            true => left.push((handle, object)),
            false => pool.remove(handle).unwrap(),
        }
    }
    pool.compact();
    left
}

#[test]
fn every_object_of_every_class_is_moved_as_it_is() {
    let (mut slots_most, mut freed) = (0, 0);
    for options in all_options() {
        let header_bytes = match options.handle_header {
            HandleHeader::InObject => zsmalloc::HANDLE_BYTES,
            HandleHeader::Beside => 0,
        };
        let pool = zsmalloc::build(Arc::new(Arena::new()), options);
        for class in ClassTable::new(options).classes() {
            slots_most = slots_most.max(class.slots);
            for (pattern, stays) in PATTERNS {
                let place = format!("{options:?}, {class:?}, {pattern}");
                let left = compact_class(&*pool, class, header_bytes, stays);
                pool.audit().unwrap_or_else(|error| panic!("{place}: {error}"));
                let stats = pool.stats();
                let zspages = left.len().div_ceil(class.slots);
                assert_eq!(stats.pool_pages, zspages * class.pages, "{place}: host pages");
                for (number, (handle, object)) in left.iter().enumerate() {
                    let check = &mut |slot: &[u8]| {
                        assert!(slot[..object.len()] == object[..], "{place}: object {number}");
                    };
                    pool.read(*handle, check).unwrap();
                }
                left.iter().for_each(|(handle, _)| pool.remove(*handle).unwrap());
                freed += stats.pages_compacted;
            }
        }
        assert_eq!((pool.stats().objects, pool.stats().pool_pages), (0, 0));
    }
    assert!(slots_most == 256 && freed > 10_000, "{slots_most} slots, {freed} pages");
}

/// A page that becomes an object of some 30 to 90 bytes.
fn small_page(number: u64) -> Page {
    let mut page = [0; PAGE_SIZE];
    for place in 0..2 + number as usize % 8 {
        page[place * 8..][..8].copy_from_slice(&mix(number << 8 | place as u64).to_le_bytes());
    }
    page
}

/// Objects of many slots a zspage, as a whole: 6667 pages, of which every other one goes.
#[test]
fn small_pages_come_back_after_a_compaction() {
    const PAGES: u64 = 6667;
    for compressor in [CompressorKind::Lz4, CompressorKind::Zstd(3)] {
        let zswap = Zswap::new(ZswapOptions::default().compressor(compressor)).unwrap();
        (0..PAGES).for_each(|key| _ = zswap.store(PageKey(key), &small_page(key)).unwrap());
        let goes = |key: &u64| mix(*key) & 1 == 0;
        (0..PAGES).filter(goes).for_each(|key| assert!(zswap.invalidate(PageKey(key))));
        assert!(zswap.compact() > 20);
        zswap.audit().unwrap();
        zswap.audit_objects().unwrap();
        let mut page = [0xa5; PAGE_SIZE];
        for key in (0..PAGES).filter(|key| !goes(key)) {
            assert!(zswap.load(PageKey(key), &mut page).unwrap());
            assert!(page == small_page(key), "page {key}, {compressor}");
        }
    }
}
