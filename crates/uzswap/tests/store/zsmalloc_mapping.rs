//! Goal: an object in two host pages is read and written as one, however it is reached.
//! Method: every class with such objects, every mapping. Contents against a table after inserts,
//! changes in place and compaction; threads that read and write at once; nested accesses.
//! Blind to: a machine that refuses mappings (`tests/mapping_limits.rs`).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use uzswap::page::PAGE_SIZE;
use uzswap::zpool::zsmalloc::{
    ChainRule, ClassTable, Contiguous, CopiedPages, HandleHeader, MappedPages, SizeClass,
    WriteMode, Zsmalloc, ZsmallocOptions, ZspagePages,
};
use uzswap::zpool::{Arena, Handle, Zpool};

/// Bytes that depend on the place and on `seed`.
fn pattern(seed: usize, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|place| (place * 7 + place / 256 + seed * 31) as u8).collect()
}

fn check<P: ZspagePages>(pool: &Zsmalloc<P>, handle: Handle, expected: &[u8], what: &str) {
    let mut same = false;
    pool.read(handle, |slot| same = slot[..expected.len()] == *expected).unwrap();
    assert!(same, "{what}");
}

/// Lengths of objects that fill the slots of a class, or leave most of them empty.
fn lengths(class: &SizeClass, header: HandleHeader) -> [usize; 2] {
    let header = if header == HandleHeader::InObject && !class.is_huge() { 8 } else { 0 };
    let full = class.slot_bytes - header;
    [full, full - 15]
}

/// Two zspages of each class, full; every object changed in place.
fn every_class<P: ZspagePages>(options: ZsmallocOptions) -> usize {
    let arena = Arc::new(Arena::new());
    let pool = Zsmalloc::<P>::new(Arc::clone(&arena), options);
    // The next access must not see the bytes that this one leaves in the thread's buffer.
    let (scratch, in_scratch) = crossing_object::<P>(&Arc::new(Arena::new()));
    let mut crossing = 0;
    for class in ClassTable::new(options).classes() {
        for bytes in lengths(class, options.handle_header) {
            let what = format!("{options:?}, {bytes} bytes in slots of {}", class.slot_bytes);
            let mut objects: Vec<(Handle, Vec<u8>)> = (0..2 * class.slots)
                .map(|seed| (pool.insert(&pattern(seed, bytes)).unwrap(), pattern(seed, bytes)))
                .collect();
            for (slot, (handle, object)) in objects.iter_mut().enumerate() {
                let start = slot % class.slots * class.slot_bytes;
                let crosses = start / PAGE_SIZE != (start + class.slot_bytes - 1) / PAGE_SIZE;
                assert_eq!(pool.crosses_pages(*handle), Ok(crosses), "{what}");
                crossing += usize::from(crosses);
                check(&pool, *handle, object, &what);
                // A part of it, over the border if there is one.
                let border = (PAGE_SIZE - start % PAGE_SIZE).min(bytes / 2 + 2);
                let part = border - 1..(border + 1).min(bytes);
                scratch.write(in_scratch, WriteMode::WriteOnly, |slot| slot.fill(0x77)).unwrap();
                pool.write(*handle, WriteMode::ReadWrite, |slot| {
                    assert!(slot[..bytes] == **object, "{what}");
                    slot[part.clone()].fill(0xa5);
                })
                .unwrap();
                object[part].fill(0xa5);
                if slot % 2 == 0 {
                    *object = pattern(slot + 1000, bytes);
                    pool.write(*handle, WriteMode::WriteOnly, |slot| {
                        slot[..bytes].copy_from_slice(object);
                    })
                    .unwrap();
                }
            }
            pool.audit().expect(&what);
            objects.iter().for_each(|(handle, object)| check(&pool, *handle, object, &what));
            // Compaction copies slots to slots that cross elsewhere.
            let mut n = 0;
            objects.retain(|(handle, _)| {
                n += 1;
                n % 3 != 0 || pool.remove(*handle).is_err()
            });
            pool.compact();
            pool.audit().expect(&what);
            for (handle, object) in objects {
                check(&pool, handle, &object, &what);
                pool.remove(handle).unwrap();
            }
        }
    }
    assert_eq!((pool.stats().pool_pages, arena.stats().used_pages), (0, 0));
    crossing
}

#[test]
fn objects_in_two_pages_are_whole_in_every_class() {
    for (chain_size, chain_rule, handle_header) in [
        (8, ChainRule::LeastWaste, HandleHeader::InObject),
        (4, ChainRule::UsedPercent, HandleHeader::InObject),
        (16, ChainRule::LeastWaste, HandleHeader::Beside),
    ] {
        let options = ZsmallocOptions::default()
            .chain_size(chain_size)
            .chain_rule(chain_rule)
            .handle_header(handle_header);
        let counts = [
            every_class::<Contiguous>(options),
            every_class::<CopiedPages>(options),
            every_class::<MappedPages>(options),
        ];
        assert!(counts[0] > 200 && counts.iter().all(|&count| count == counts[0]), "{counts:?}");
    }
}

/// A pool and an object in it that crosses a border: the third of 1632 bytes.
fn crossing_object<P: ZspagePages>(arena: &Arc<Arena>) -> (Zsmalloc<P>, Handle) {
    let pool = Zsmalloc::<P>::new(Arc::clone(arena), ZsmallocOptions::default());
    let [_, _, third] = [1, 2, 3].map(|seed| pool.insert(&pattern(seed, 1632)).unwrap());
    assert_eq!(pool.crosses_pages(third), Ok(true));
    (pool, third)
}

/// An access inside another one's closure, to another pool: kernels forbid it.
fn nested<P: ZspagePages>() {
    let arena = Arc::new(Arena::new());
    let [(outer, a), (inner, b)] = [(); 2].map(|()| crossing_object::<P>(&arena));
    inner.write(b, WriteMode::WriteOnly, |slot| slot[..1632].fill(0xbb)).unwrap();
    let mut calls = 0;
    outer
        .read(a, |slot| {
            check(&inner, b, &[0xbb; 1632], "the inner object");
            inner.write(b, WriteMode::ReadWrite, |slot| slot[..1632].fill(0xcc)).unwrap();
            assert!(slot[..1632] == *pattern(3, 1632), "the outer object after the inner access");
            calls += 1;
        })
        .unwrap();
    assert_eq!(calls, 1);
    check(&inner, b, &[0xcc; 1632], "what was written inside");
    outer
        .write(a, WriteMode::ReadWrite, |slot| {
            inner.write(b, WriteMode::WriteOnly, |inner| inner[..1632].fill(0xdd)).unwrap();
            slot[0] = 9;
        })
        .unwrap();
    let mut expected = pattern(3, 1632);
    expected[0] = 9;
    check(&outer, a, &expected, "the outer object");
    check(&inner, b, &[0xdd; 1632], "the inner object");
}

#[test]
fn an_access_inside_another_is_as_good_as_any() {
    nested::<Contiguous>();
    nested::<CopiedPages>();
    nested::<MappedPages>();
}

/// A panic in an access; the next ones find the object whole.
fn panicking<P: ZspagePages>() {
    let arena = Arc::new(Arena::new());
    let (pool, handle) = crossing_object::<P>(&arena);
    let panicked = thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let access = || pool.read(handle, |_| panic!("on purpose"));
            let first = std::panic::catch_unwind(std::panic::AssertUnwindSafe(access));
            check(&pool, handle, &pattern(3, 1632), "after a panic, on the same thread");
            first.is_err()
        });
        thread.join().unwrap()
    });
    assert!(panicked);
    check(&pool, handle, &pattern(3, 1632), "after a panic, on another thread");
}

#[test]
fn a_panic_in_an_access_harms_no_later_one() {
    panicking::<Contiguous>();
    panicking::<CopiedPages>();
    panicking::<MappedPages>();
}

/// Threads change objects and read each other's: each is one number, repeated.
fn at_once<P: ZspagePages>() {
    const OBJECTS: usize = 34; // two zspages of 17
    let arena = Arc::new(Arena::new());
    let pool = Zsmalloc::<P>::new(Arc::clone(&arena), ZsmallocOptions::default());
    let handles: Vec<Handle> = (0..OBJECTS).map(|_| pool.insert(&[0; 1632]).unwrap()).collect();
    assert!(handles.iter().filter(|&&handle| pool.crosses_pages(handle) == Ok(true)).count() >= 12);
    let (done, changes) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        let writers: Vec<_> = [0, 1]
            .map(|thread| {
                let (pool, handles, changes) = (&pool, &handles, &changes);
                scope.spawn(move || {
                    for n in 0..4000_usize {
                        // Each thread has every other object, the other one reads them.
                        let own = handles[(n * 2 + thread) % OBJECTS];
                        let mode =
                            if n % 3 == 0 { WriteMode::WriteOnly } else { WriteMode::ReadWrite };
                        pool.write(own, mode, |slot| {
                            let value = n as u8;
                            let whole = slot[..1632].iter().all(|&byte| byte == slot[0]);
                            assert!(whole || mode == WriteMode::WriteOnly, "a torn object");
                            slot[..1632].fill(value);
                        })
                        .unwrap();
                        let other = handles[(n * 7 + 1 - thread) % OBJECTS];
                        pool.read(other, |slot| {
                            assert!(slot[..1632].iter().all(|&byte| byte == slot[0]), "torn");
                        })
                        .unwrap();
                        changes.fetch_add(1, Ordering::Relaxed);
                    }
                })
            })
            .into();
        let (pool, handles, done) = (&pool, &handles, &done);
        scope.spawn(move || {
            while !done.load(Ordering::Relaxed) {
                for &handle in handles {
                    pool.read(handle, |slot| {
                        assert!(slot[..1632].iter().all(|&byte| byte == slot[0]), "torn");
                    })
                    .unwrap();
                }
            }
        });
        let ended: Vec<_> = writers.into_iter().map(thread::ScopedJoinHandle::join).collect();
        done.store(true, Ordering::Relaxed);
        ended.into_iter().for_each(|end| end.unwrap());
    });
    assert_eq!(changes.into_inner(), 8000);
    pool.audit().unwrap();
}

#[test]
fn threads_read_and_write_objects_in_two_pages_at_once() {
    at_once::<Contiguous>();
    at_once::<CopiedPages>();
    at_once::<MappedPages>();
}
