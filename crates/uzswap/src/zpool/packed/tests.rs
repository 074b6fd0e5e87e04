//! Tests of what a caller does not see: places, the collector's steps, and the audit.

use super::collector::Moves;
use super::item::{Item, Links, write_filler, write_header, write_hole};
use super::victim::Victim;
use super::*;
use crate::zpool::{ArenaError, HostPages};

const REGION_BYTES: usize = REGION_PAGES_MIN * HOST_PAGE_SIZE;

fn pool_with(lengths: &[usize]) -> (Packed, Vec<Handle>) {
    let pool = Packed::new(Arc::new(Arena::new()));
    let insert = |(n, &bytes): (usize, &usize)| pool.insert(&vec![n as u8; bytes]).unwrap();
    let handles = lengths.iter().enumerate().map(insert).collect();
    pool.audit().unwrap();
    (pool, handles)
}

/// Region and offset of an object.
fn place_of(pool: &Packed, handle: Handle) -> (u32, usize) {
    let at = pool.logs[0].read().handles.get(handle).unwrap();
    (region_of(at), offset_of(at))
}

#[test]
fn an_object_goes_to_the_hole_that_fits_it_best() {
    let (pool, handles) = pool_with(&[1000, 10, 500, 10, 700, 10]);
    for gone in [0, 2, 4] {
        pool.remove(handles[gone]).unwrap();
    }
    let places = [0, 2, 4].map(|n| [0, 1006, 1022, 1528, 1544][n]);
    let insert = |bytes| place_of(&pool, pool.insert(&vec![9; bytes]).unwrap());
    assert_eq!(insert(690), (0, places[2])); // 10 bytes left: a filler
    assert_eq!(insert(500), (0, places[1]));
    assert_eq!(insert(100), (0, places[0])); // the rest is a hole again
    assert_eq!(insert(890), (0, places[0] + 106));
    assert_eq!(insert(700), (0, 2266));
    pool.audit().unwrap();
}

#[test]
fn a_hole_joins_the_free_bytes_behind_it() {
    let (pool, handles) = pool_with(&[100, 100, 100, 100]);
    for gone in [2, 1, 0] {
        pool.remove(handles[gone]).unwrap();
    }
    let log = pool.logs[0].read();
    assert_eq!(log.regions.item(0), Item::Hole { bytes: 318, is_listed: true });
}

#[test]
fn the_largest_object_has_a_region_of_its_own() {
    let (pool, handles) = pool_with(&[OBJECT_BYTES_MAX, 1, OBJECT_BYTES_MAX]);
    let pages = 2 * REGION_PAGES_MAX + REGION_PAGES_MIN;
    assert_eq!(pool.stats().pool_pages, pages);
    for (n, handle) in handles.into_iter().enumerate() {
        let same = |object: &[u8]| object.iter().all(|&byte| usize::from(byte) == n);
        pool.read(handle, &mut |object| assert!(same(object))).unwrap();
        pool.remove(handle).unwrap();
    }
    assert_eq!(pool.stats().pool_pages, 0);
}

/// Two regions of 16 objects, every other one gone from the first: what is left fits the second
/// only in part.
fn half_emptied() -> (Packed, Vec<Handle>) {
    let (pool, handles) = pool_with(&[1000; 32]);
    for gone in (0..16).step_by(2).chain([17, 19, 31]) {
        pool.remove(handles[gone]).unwrap();
    }
    let left = (1..16).step_by(2).chain((16..31).filter(|n| ![17, 19].contains(n)));
    let left = left.map(|n| handles[n]).collect();
    (pool, left)
}

fn check(pool: &Packed, handles: &[Handle]) {
    pool.audit().unwrap();
    for &handle in handles {
        let is_whole =
            |object: &[u8]| object.len() == 1000 && object.iter().all(|b| *b == object[0]);
        pool.read(handle, &mut |object| assert!(is_whole(object))).unwrap();
    }
}

#[test]
fn the_victim_keeps_together_objects_that_find_no_hole() {
    let (pool, handles) = half_emptied();
    pool.logs[0].write().collector.victim = Some(Victim { region: 0, read: 0, write: 0 });
    // A step with each call: an audit finds the victim in all its states.
    while pool.logs[0].read().collector.victim.is_some() {
        assert!(pool.logs[0].write().step(Moves::ToHoles).1.is_none());
        check(&pool, &handles);
    }
    // The holes of the second region have taken 3 of 8.
    let places: Vec<(u32, usize)> = handles.iter().map(|&h| place_of(&pool, h)).collect();
    let stayed: Vec<usize> =
        places.iter().filter(|place| place.0 == 0).map(|place| place.1).collect();
    assert_eq!(stayed, [0, 1006, 2012, 3018, 4024]);
    let log = pool.logs[0].read();
    let bytes = REGION_BYTES - 5 * 1006;
    assert_eq!(log.regions.item(5 * 1006), Item::Hole { bytes, is_listed: true });
}

#[test]
fn objects_come_and_go_while_their_region_is_the_victim() {
    for steps in 0..30 {
        for gone in 0..20 {
            let (pool, mut handles) = half_emptied();
            {
                let mut log = pool.logs[0].write();
                log.collector.victim = Some(Victim { region: 0, read: 0, write: 0 });
                for _ in 0..steps {
                    if log.collector.victim.is_some() {
                        assert!(log.step(Moves::ToHoles).1.is_none());
                    }
                }
                log.remove(handles.remove(gone)).unwrap();
                // No hole is left where all of them are ahead.
                handles.extend(log.insert(&[7; 1000]));
            }
            check(&pool, &handles);
            let freed = pool.compact();
            check(&pool, &handles);
            assert_eq!((freed, pool.compact()), (0, 0)); // 20 objects need both regions
            for handle in handles {
                pool.remove(handle).unwrap();
                pool.audit().unwrap();
            }
            assert_eq!(pool.stats().pool_pages, 0);
        }
    }
}

#[test]
fn bytes_that_are_free_apart_are_used_before_an_insert_fails() {
    let arena = Arc::new(Arena::with_limit(2 * REGION_PAGES_MIN, HostPages::Small));
    let pool = Packed::new(Arc::clone(&arena));
    let mut handles: Vec<Handle> =
        (0..64).map(|n| pool.insert(&[n; REGION_BYTES / 32 - HEADER_BYTES]).unwrap()).collect();
    for gone in [62, 40, 38, 3] {
        pool.remove(handles.remove(gone)).unwrap();
    }
    let before = pool.stats();
    // 4 times 512 bytes are free, 3 of them in one region.
    let refused = pool.insert(&[99; 3 * 512 + 1 - HEADER_BYTES]).unwrap_err();
    assert!(matches!(refused, ZpoolError::NoPages(ArenaError::Limit { pages: 1, .. })));
    assert_eq!(pool.stats(), before);
    pool.audit().unwrap();
    handles.push(pool.insert(&[99; 3 * 512 - HEADER_BYTES]).unwrap());
    pool.audit().unwrap();
    assert_eq!(arena.stats().used_pages, 2 * REGION_PAGES_MIN);
}

type Fault = (fn(&mut Log), &'static str);

/// Cells 0, 2 and 4 name objects of 100 bytes. Between them are holes of 206 and of 9442 bytes; the
/// last hole is behind them.
const FAULTS: [Fault; 15] = [
    (
        |log| log.collector.victim = Some(Victim { region: 0, read: 0, write: 7 }),
        "H1: the gap 7..0",
    ),
    (
        |log| log.collector.victim = Some(Victim { region: 0, read: 108, write: 107 }),
        "H1: the items of region 0 miss its gap",
    ),
    (|log| write_filler(log.regions.at_mut(106), 0), "H1: Filler { bytes: 0 } at 106"),
    (|log| write_header(log.regions.at_mut(0), REGION_BYTES + 1, 0), "H1: Object { bytes: 16385"),
    (|log| log.regions.fill(0, 1), "H2: region 0 counts"),
    (|log| log.regions.free_bytes -= 1, "H2: 16384 bytes, "),
    (|log| write_hole(log.regions.at_mut(106), 206, None), "H3: the hole at 0x6a is not listed"),
    (
        |log| {
            let item = log.regions.item(106);
            log.unlist(106, item);
        },
        "H3: the hole at 0x6a is on no list",
    ),
    (
        |log| {
            let item = log.regions.item(106);
            log.unlist(106, item);
            log.regions.at_mut(106)[..206].fill(1 << 2);
            write_filler(log.regions.at_mut(106), 63);
            write_filler(log.regions.at_mut(169), 63);
            write_hole(log.regions.at_mut(232), 80, None);
        },
        "H3: the hole at 0xe8 is not listed",
    ),
    (|log| log.holes.nonempty[1] ^= 1, "H3: the bit of list 64 is wrong"),
    (
        |log| {
            let links = Links::of(log.regions.at(106));
            let previous = 5;
            write_hole(log.regions.at_mut(106), 206, Some(Links { previous, ..links }));
        },
        "H3: the hole at 0x6a is on list 12, wrongly",
    ),
    (
        |log| {
            let links = Links::of(log.regions.at(106));
            write_hole(log.regions.at_mut(106), 106, Some(links));
            write_hole(log.regions.at_mut(212), 50, None);
            write_hole(log.regions.at_mut(262), 50, None);
        },
        "H3: the hole at 0x6a is on list 12, wrongly",
    ),
    (|log| log.handles.relocate(2, 7), "H4: cell 2 does not lead to 0x138"),
    (|log| write_header(log.regions.at_mut(0), 106, 2), "H4: cell 2 does not lead to 0x0"),
    (
        |log| {
            log.handles.reserve().unwrap();
            log.handles.insert(0);
        },
        "H4: 3 objects, 4 handles",
    ),
];

#[test]
fn an_audit_tells_each_fault() {
    for (plant, told) in FAULTS {
        let (pool, handles) = pool_with(&[100, 200, 100, 9436, 100, 100]);
        for gone in [1, 3, 5] {
            pool.remove(handles[gone]).unwrap();
        }
        pool.audit().unwrap();
        plant(&mut pool.logs[0].write());
        let error = pool.audit().expect_err(told).to_string();
        assert!(error.contains(told), "no '{told}' in: {error}");
        // Its tables are not to be trusted.
        std::mem::forget(pool);
    }
    let (pool, _) = pool_with(&[100]);
    pool.pool_pages.store(5, Ordering::Relaxed);
    assert_eq!(pool.audit().unwrap_err().to_string(), "regions own 4 host pages, 5 are counted");
}
