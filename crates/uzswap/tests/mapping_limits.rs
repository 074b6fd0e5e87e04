//! Goal: with the mapping `vm`, a machine that refuses mappings, files or their size, and a fork,
//! lose no object.
//! Method: real limits of this process, set and lifted again around the accesses; contents after
//! each. One test a process: the limits are everybody's.

#![allow(unsafe_code, reason = "limits and fork are not in the standard library")]

use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread;

use uzswap::zpool::zsmalloc::{MappedPages, WriteMode, Zsmalloc, ZsmallocOptions};
use uzswap::zpool::{Arena, ArenaError, Handle, Zpool, ZpoolError};

/// A limit of this process; as before when it is dropped.
struct Limit {
    resource: libc::__rlimit_resource_t,
    before: libc::rlimit,
}

impl Limit {
    fn set(resource: libc::__rlimit_resource_t, value: u64) -> Limit {
        let mut before = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: the pointer is to a structure of our own.
        assert_eq!(unsafe { libc::getrlimit(resource, &raw mut before) }, 0);
        let limit = libc::rlimit { rlim_cur: value, ..before };
        // SAFETY: as above; the call reads it.
        assert_eq!(unsafe { libc::setrlimit(resource, &raw const limit) }, 0);
        Limit { resource, before }
    }
}

impl Drop for Limit {
    fn drop(&mut self) {
        // SAFETY: the pointer is to a structure of our own, which the call reads.
        assert_eq!(unsafe { libc::setrlimit(self.resource, &raw const self.before) }, 0);
    }
}

/// Mappings of one page that are all there may be; unmapped when dropped.
struct AllMappings(Vec<*mut libc::c_void>);

impl AllMappings {
    fn take() -> AllMappings {
        let mut taken = Vec::with_capacity(1 << 20);
        while taken.len() < taken.capacity() {
            // Neighbours of unlike protection are not merged.
            let protection = if taken.len() % 2 == 0 { libc::PROT_NONE } else { libc::PROT_READ };
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            // SAFETY: a new mapping at an address of the kernel's choosing.
            let page = unsafe { libc::mmap(std::ptr::null_mut(), 4096, protection, flags, -1, 0) };
            if page == libc::MAP_FAILED {
                break;
            }
            taken.push(page);
        }
        AllMappings(taken)
    }

    /// Makes room for one more.
    fn give_one(&mut self) {
        if let Some(page) = self.0.pop() {
            // SAFETY: the page is one of ours and nobody uses it.
            assert_eq!(unsafe { libc::munmap(page, 4096) }, 0);
        }
    }
}

impl Drop for AllMappings {
    fn drop(&mut self) {
        while !self.0.is_empty() {
            self.give_one();
        }
    }
}

/// A thread that has not had a window yet, and accesses an object on request.
struct Accessor {
    tell: Sender<()>,
    thread: thread::JoinHandle<bool>,
}

impl Accessor {
    fn start(pool: &Arc<Zsmalloc<MappedPages>>, [handle, other]: [Handle; 2]) -> Accessor {
        let (tell, told) = channel();
        let (ready, is_ready) = channel();
        let pool = Arc::clone(pool);
        let thread = thread::spawn(move || {
            ready.send(()).unwrap();
            told.recv().unwrap();
            let mut same = false;
            pool.read(handle, |slot| same = slot[..1632] == [3; 1632]).unwrap();
            // The next access must not see the bytes copied for this one.
            pool.read(other, |slot| same &= slot[..1632] == [5; 1632]).unwrap();
            pool.write(handle, WriteMode::ReadWrite, |slot| slot[700..800].fill(4)).unwrap();
            let mut changed = false;
            pool.read(handle, |slot| {
                changed = slot[..1632]
                    .iter()
                    .enumerate()
                    .all(|(place, &byte)| byte == if (700..800).contains(&place) { 4 } else { 3 });
            })
            .unwrap();
            pool.write(handle, WriteMode::WriteOnly, |slot| slot[..1632].fill(3)).unwrap();
            same && changed
        });
        is_ready.recv().unwrap();
        Accessor { tell, thread }
    }

    /// Whether all accesses saw what they should.
    fn finish(self) -> bool {
        self.thread.join().unwrap()
    }
}

fn address_space_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split_whitespace().next().unwrap().parse::<u64>().unwrap() * 4096
}

#[test]
fn what_the_machine_refuses_loses_no_object() {
    let arena = Arc::new(Arena::new());
    let pool = Arc::new(Zsmalloc::<MappedPages>::new(arena, ZsmallocOptions::default()));
    let [_, _, third, _, fifth] = [1, 2, 3, 4, 5].map(|n| pool.insert(&[n; 1632]).unwrap());
    let crossing = [third, fifth];
    assert!(crossing.iter().all(|&handle| pool.crosses_pages(handle) == Ok(true)));
    let holds = || {
        let mut same = false;
        pool.read(third, |slot| same = slot[..1632] == [3; 1632]).unwrap();
        same
    };

    // No address space: a thread without a window copies.
    let accessor = Accessor::start(&pool, crossing);
    let limit = Limit::set(libc::RLIMIT_AS, address_space_bytes());
    accessor.tell.send(()).unwrap();
    thread::sleep(std::time::Duration::from_millis(50));
    drop(limit);
    assert!(accessor.finish() && holds());

    // No mappings, and then one: it is enough for a window, but not for two pages in it.
    for spare in 0..4 {
        let accessor = Accessor::start(&pool, crossing);
        let mut all = AllMappings::take();
        (0..spare).for_each(|_| all.give_one());
        accessor.tell.send(()).unwrap();
        thread::sleep(std::time::Duration::from_millis(20));
        drop(all);
        assert!(accessor.finish() && holds(), "with {spare} mappings to spare");
    }

    // No memory for a pool: refused, and taken once there is.
    for (resource, value) in [
        (libc::RLIMIT_FSIZE, 1 << 20),
        (libc::RLIMIT_NOFILE, 0),
        (libc::RLIMIT_AS, address_space_bytes() + 65536),
    ] {
        let arena = Arc::new(Arena::new());
        let pool = Zsmalloc::<MappedPages>::new(Arc::clone(&arena), ZsmallocOptions::default());
        let limit = Limit::set(resource, value);
        let refused = pool.insert(&[7; 1632]);
        drop(limit);
        assert!(
            matches!(refused, Err(ZpoolError::NoPages(ArenaError::Os { pages: 7, .. }))),
            "{refused:?} with limit {resource} at {value}"
        );
        assert_eq!((pool.stats().pool_pages, arena.stats().used_pages), (0, 0));
        pool.audit().unwrap();
        let handle = pool.insert(&[7; 1632]).unwrap();
        pool.read(handle, |slot| assert!(slot[..1632] == [7; 1632])).unwrap();
    }

    // A forked child that ends the pool does not end its parent's.
    // SAFETY: the child drops a pool of its own copy, and ends.
    match unsafe { libc::fork() } {
        0 => {
            drop(Arc::into_inner(pool));
            // SAFETY: ends the process at once.
            unsafe { libc::_exit(0) };
        }
        child => {
            let mut status = 0;
            // SAFETY: the child is ours; the pointer is to an integer of our own.
            assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
            assert_eq!(status, 0, "the child's end");
        }
    }
    assert!(holds());
    pool.audit().unwrap();
}
