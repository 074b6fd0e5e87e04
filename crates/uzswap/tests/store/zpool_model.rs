//! Goal: every allocator keeps every object, whatever the history.
//! Method: seeded random histories with sizes on the edges of classes and chunks, each call held
//! against a table of the objects (`tests/common`), an audit every 64 steps.
//! Blind to: tables that cannot grow (nothing here makes the heap fail).

use crate::common;

use std::sync::{Arc, Mutex};
use std::thread;

use common::{Modelled, SUBJECTS, Subject, subjects};
use uzswap::budget::{Budget, Counted};
use uzswap::page::PAGE_SIZE;
use uzswap::random::SplitMix64;
use uzswap::zpool::{Arena, Handle, HostPages, ZpoolError};

const SEEDS: u64 = 32;
const STEPS: usize = 2000;
const AUDIT_STEPS: usize = 64;

struct Rng(SplitMix64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0.next_word()
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    fn object(&mut self, bytes: usize) -> Vec<u8> {
        let mut object = vec![0; bytes];
        for word in object.chunks_mut(8) {
            let random = self.next().to_le_bytes();
            word.copy_from_slice(&random[..word.len()]);
        }
        object
    }

    /// A length in bytes; one in 64 is none that any allocator takes.
    fn object_bytes(&mut self) -> usize {
        // Borders: one slot more or less a page, the huge thresholds of chains 4, 8 and 16, the
        // largest objects of zbud and of z3fold, a whole page; of zblock, the smallest slot, two
        // a page, the largest object.
        const EDGES: [usize; 17] = [
            1, 24, 40, 143, 192, 504, 1016, 2023, 2040, 2712, 3256, 3624, 3832, 3904, 3968, 4079,
            4088,
        ];
        match self.below(64) {
            0 => [0, PAGE_SIZE + 1][self.below(2)],
            1..16 => EDGES[self.below(EDGES.len())] + self.below(2),
            16..32 => (1 + self.below(62)) * 64 + self.below(2),
            32..40 => PAGE_SIZE - self.below(200),
            40..52 => 1 + self.below(400),
            _ => 1 + self.below(PAGE_SIZE),
        }
    }
}

/// Says how to repeat what failed.
struct Replay {
    test: &'static str,
    subject: &'static str,
    seed: u64,
    step: usize,
}

impl Drop for Replay {
    fn drop(&mut self) {
        if thread::panicking() {
            let Replay { test, subject, seed, step } = self;
            eprintln!("{subject}, seed {seed}, step {step}");
            eprintln!("  replay: UZSWAP_SEED={seed} cargo test --test zpool_model {test}");
        }
    }
}

/// All seeds, or the one to repeat.
fn seeds() -> Vec<u64> {
    match std::env::var("UZSWAP_SEED") {
        Ok(seed) => vec![seed.parse().expect("UZSWAP_SEED is a number")],
        Err(_) => (0..SEEDS).collect(),
    }
}

/// One random history; the inserts that the arena's limit refused.
fn history(subject: Subject, arena: Arena, replay: &mut Replay) -> usize {
    let mut rng = Rng(SplitMix64::new(replay.seed));
    let mut pool = Modelled::new(subject, Arc::new(arena));
    let mut refused = 0;
    for step in 0..STEPS {
        replay.step = step;
        // Tides: the pool fills for 200 steps, holds its level, and drains for 200.
        let inserts = [60, 45, 20][step / 200 % 3];
        match rng.below(100) {
            draw if draw < inserts => {
                let bytes = rng.object_bytes();
                let object = rng.object(bytes);
                if let Err(ZpoolError::NoPages(_) | ZpoolError::NoTables(_)) = pool.insert(object) {
                    refused += 1;
                    pool.check();
                }
            }
            99 => pool.compact(),
            _ if pool.live.is_empty() => {}
            draw if draw >= 90 => pool.read(pool.live[rng.below(pool.live.len())]),
            _ => pool.remove(rng.below(pool.live.len())),
        }
        if step % AUDIT_STEPS == 0 {
            pool.check();
        }
    }
    pool.check();
    pool.compact();
    pool.check();
    // Half of the histories leave their objects to the pool's end.
    if replay.seed.is_multiple_of(2) {
        while !pool.live.is_empty() {
            pool.remove(rng.below(pool.live.len()));
        }
        pool.check();
    }
    pool.finish();
    refused
}

fn histories(test: &'static str, subjects: &[Subject], arena: impl Fn(u64) -> Arena) {
    for &subject in subjects {
        let (mut refused, mut is_limited) = (0, false);
        for seed in seeds() {
            let mut replay = Replay { test, subject: subject.name, seed, step: 0 };
            let arena = arena(seed);
            is_limited |= arena.budget().max_bytes() < u64::MAX;
            refused += history(subject, arena, &mut replay);
        }
        assert_eq!(refused > 0, is_limited, "{}: {refused} refused", subject.name);
    }
}

#[test]
fn zbud_and_z3fold_keep_every_object() {
    histories("zbud_and_z3fold_keep_every_object", &SUBJECTS[..2], |_| Arena::new());
}

#[test]
fn zsmalloc_keeps_every_object_with_every_option() {
    let subjects = subjects("zsmalloc");
    histories("zsmalloc_keeps_every_object_with_every_option", &subjects, |_| Arena::new());
}

#[test]
fn zblock_keeps_every_object() {
    histories("zblock_keeps_every_object", &subjects("zblock"), |_| Arena::new());
}

#[test]
fn packed_keeps_every_object() {
    histories("packed_keeps_every_object", &subjects("packed"), |_| Arena::new());
}

#[test]
fn a_refused_insert_changes_nothing() {
    histories("a_refused_insert_changes_nothing", &SUBJECTS, |_| {
        Arena::with_limit(24, HostPages::Small)
    });
}

#[test]
fn a_budget_of_pages_and_tables_is_kept() {
    histories("a_budget_of_pages_and_tables_is_kept", &SUBJECTS, |seed| {
        // From less than a page to a hundred; a huge page takes 512 of them in one.
        let host_pages = HostPages::ALL[usize::from(seed % 4 == 3)];
        let pages = if host_pages == HostPages::Huge { 520 } else { 0 };
        let max_bytes = pages * PAGE_SIZE as u64 + 3000 + uzswap::random::mix(seed) % 400_000;
        let budget = Budget::new(max_bytes, Counted::PoolAndMetadata);
        Arena::on(Arc::new(budget), host_pages)
    });
}

#[test]
fn handles_that_name_nothing_are_told() {
    for subject in SUBJECTS {
        let mut pool = Modelled::new(subject, Arc::new(Arena::new()));
        for bits in [0, 1, u64::MAX, 1 << 31, 1 << 43, 254 << 43, 255 << 43, 1 << 51] {
            pool.check_unknown(Handle::from_bits(bits));
        }
        let mut rng = Rng(SplitMix64::new(1));
        let handle = pool.insert(rng.object(100)).unwrap();
        // Another cell, another generation, another table.
        for shift in [0, 30, 31, 42, 43, 50, 51, 63] {
            pool.check_unknown(Handle::from_bits(handle.to_bits() ^ 1 << shift));
        }
        // The cell is used again, and the old handle stays unknown.
        pool.remove(0);
        let again = pool.insert(rng.object(100)).unwrap();
        let cell = |handle: Handle| handle.to_bits() & ((1 << 31) - 1);
        assert_eq!(cell(again), cell(handle));
        pool.check_unknown(handle);
        // Handles of the other allocators.
        for other in SUBJECTS {
            let mut other = Modelled::new(other, Arc::new(Arena::new()));
            let foreign = other.insert(rng.object(100)).unwrap();
            if other.pool.name() != pool.pool.name() {
                pool.check_unknown(foreign);
            }
        }
        pool.check();
        pool.finish();
    }
}

#[test]
fn lengths_that_no_page_holds_are_told() {
    for subject in SUBJECTS {
        let mut pool = Modelled::new(subject, Arc::new(Arena::new()));
        let max = pool.pool.object_size_max();
        assert!(matches!(pool.insert(Vec::new()), Err(ZpoolError::Empty)));
        for bytes in [max + 1, max + PAGE_SIZE, 2 * max] {
            assert!(matches!(pool.insert(vec![1; bytes]), Err(ZpoolError::TooBig { .. })));
        }
        pool.check();
        // Beyond a page, some lengths stand for all.
        let beyond = (PAGE_SIZE + 1..max).step_by(997).chain([max]).filter(|&b| b > PAGE_SIZE);
        for bytes in (1..=max.min(PAGE_SIZE)).chain(beyond) {
            let handle = pool.insert(vec![bytes as u8; bytes]).unwrap();
            pool.read(handle);
            if bytes % 7 != 0 {
                pool.remove(0);
            }
        }
        pool.check();
        pool.finish();
    }
}

#[test]
fn two_threads_share_a_pool() {
    for subject in SUBJECTS {
        let arena = Arc::new(Arena::with_limit(400, HostPages::Small));
        let pool = (subject.build)(Arc::clone(&arena));
        // Objects change hands through here, so that each thread frees what the other made.
        let common: Mutex<Vec<(Handle, Vec<u8>)>> = Mutex::new(Vec::new());
        let worker = |seed: u64| {
            let mut rng = Rng(SplitMix64::new(seed));
            let mut own: Vec<(Handle, Vec<u8>)> = Vec::new();
            let check = |(handle, object): &(Handle, Vec<u8>)| {
                pool.read(*handle, &mut |slot| assert!(slot[..object.len()] == object[..]))
                    .unwrap();
            };
            for step in 0..20_000 {
                match rng.below(16) {
                    0..6 => {
                        let bytes = 1 + rng.below(pool.object_size_max());
                        let object = rng.object(bytes);
                        if let Ok(handle) = pool.insert(&object) {
                            own.push((handle, object));
                        }
                    }
                    6..9 if !own.is_empty() => check(&own[rng.below(own.len())]),
                    9..13 if !own.is_empty() => {
                        let object = own.swap_remove(rng.below(own.len()));
                        check(&object);
                        common.lock().unwrap().push(object);
                    }
                    _ => {
                        let object = common.lock().unwrap().pop();
                        if let Some(object) = object {
                            check(&object);
                            pool.remove(object.0).unwrap();
                            assert!(pool.read(object.0, &mut |_| ()).is_err());
                        }
                    }
                }
                if step % 500 == 0 {
                    pool.compact();
                    pool.audit().unwrap_or_else(|error| {
                        // The one figure that is summed while others change it.
                        assert!(
                            ["zspages own", "regions own", "blocks own"]
                                .iter()
                                .any(|part| error.to_string().starts_with(part)),
                            "{}: {error}",
                            subject.name
                        );
                    });
                }
            }
            own
        };
        let mut left: Vec<(Handle, Vec<u8>)> = thread::scope(|scope| {
            let threads = [1, 2].map(|seed| {
                scope.spawn({
                    let worker = &worker;
                    move || worker(seed)
                })
            });
            threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
        });
        pool.audit().unwrap();
        left.append(&mut common.into_inner().unwrap());
        assert_eq!(pool.stats().objects, left.len(), "{}", subject.name);
        assert_eq!(pool.stats().pool_pages, arena.stats().used_pages, "{}", subject.name);
        for (handle, object) in left {
            pool.read(handle, &mut |slot| assert!(slot[..object.len()] == object[..])).unwrap();
            pool.remove(handle).unwrap();
        }
        pool.audit().unwrap();
        assert_eq!(arena.stats().used_pages, 0, "{}", subject.name);
    }
}

/// The tables of handles and zspages grow with the objects, and go with the last.
#[test]
fn an_empty_pool_that_is_compacted_takes_what_a_new_one_does() {
    for subject in SUBJECTS {
        let arena = Arc::new(Arena::new());
        let pool = (subject.build)(Arc::clone(&arena));
        let new = pool.stats();
        let fixed_bytes = new.metadata_bytes + arena.stats().metadata_bytes;
        assert!(new.metadata_bytes < 128 << 10, "{}: {}", subject.name, new.metadata_bytes);
        for _ in 0..2 {
            let sizes = (0..2000).map(|number| 20 + number % 20 * 190);
            let handles: Vec<Handle> =
                sizes.map(|bytes| pool.insert(&vec![1; bytes]).unwrap()).collect();
            assert!(pool.stats().metadata_bytes > new.metadata_bytes + 8 * handles.len());
            // Each byte of a table is charged.
            let metadata_bytes = pool.stats().metadata_bytes + arena.stats().metadata_bytes;
            let grown_bytes = (metadata_bytes - fixed_bytes) as u64;
            assert_eq!(arena.budget().metadata_bytes(), grown_bytes, "{}", subject.name);
            handles.into_iter().for_each(|handle| pool.remove(handle).unwrap());
            pool.compact();
            let after = pool.stats();
            assert_eq!(after.metadata_bytes, new.metadata_bytes, "{}", subject.name);
            assert_eq!((after.objects, after.pool_pages), (0, 0), "{}", subject.name);
            assert_eq!(arena.budget().pool_bytes(), 0, "{}", subject.name);
            pool.audit().unwrap();
        }
    }
}
