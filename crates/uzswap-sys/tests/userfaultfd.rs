//! Goal: the face over userfaultfd does what its docs say, on the kernel that is here.
//! Method: threads touch, drop, move and fork memory of this process; the test serves them. A test
//! that cannot run here is counted as ignored, with the reason in brackets.
//! Blind to: descriptors sent by another program; those of forked children stand in for them.

use uzswap_testing::trials;

use std::fs;
use std::io;
use std::os::unix::fs::FileExt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use uzswap_sys::userfaultfd::{
    Event, Features, Message, MoveFlags, OwnMemory, Stopped, Userfaultfd, create,
};

const PAGE: u64 = 4096;
const PAGES: usize = 16;
const WAKE: bool = true;

const EAGAIN: i32 = 11;
const EFAULT: i32 = 14;
const EEXIST: i32 = 17;
const EINVAL: i32 = 22;
const ESRCH: i32 = 3;

/// A name, the features that it needs, and the test.
type Case = (&'static str, Features, fn(OwnMemory));

/// Every userfaultfd that asked gets an event of each fork of the process, so one test at a time
/// has one.
static FORKS: Mutex<()> = Mutex::new(());

fn main() -> ExitCode {
    let none = Features::NONE;
    let wp = Features::PAGEFAULT_FLAG_WP;
    let tests: [Case; 18] = [
        ("a_missing_page_is_copied_in", Features::THREAD_ID, a_missing_page_is_copied_in),
        ("a_missing_page_is_zero", none, a_missing_page_is_zero),
        ("a_copy_can_leave_sleepers", none, a_copy_can_leave_sleepers),
        ("a_copy_stops_at_a_page_that_is_there", none, a_copy_stops),
        ("addresses_are_exact", Features::EXACT_ADDRESS, addresses_are_exact),
        ("pages_move", Features::MOVE, pages_move),
        ("holes_move_if_allowed", Features::MOVE, holes_move_if_allowed),
        ("pages_that_change_move_once", Features(Features::MOVE.0 | wp.0), pages_that_change_move),
        ("a_write_is_told", wp, a_write_is_told),
        ("a_copied_page_is_protected", wp, a_copied_page_is_protected),
        ("a_write_is_let_through", Features::WP_ASYNC, a_write_is_let_through),
        ("a_poisoned_page_is_there", Features::POISON, a_poisoned_page_is_there),
        ("a_child_is_served", Features::EVENT_FORK, a_child_is_served),
        ("children_that_nobody_takes_go_on", Features::EVENT_FORK, children_nobody_takes),
        ("dropped_pages_are_told", Features::EVENT_REMOVE, dropped_pages_are_told),
        ("unmapped_pages_are_told", Features::EVENT_UNMAP, unmapped_pages_are_told),
        ("moved_memory_is_told", Features::EVENT_REMAP, moved_memory_is_told),
        ("own_memory_alone_is_reached", none, own_memory_alone_is_reached),
    ];
    let mut all = vec![trials::trial("features_have_names", None, features_have_names)];
    all.extend(tests.into_iter().map(|(name, features, test)| {
        let missing = memory(features).err();
        trials::trial(name, missing, move || {
            let _one = features.contains(Features::EVENT_FORK).then(|| FORKS.lock());
            test(memory(features).unwrap());
        })
    }));
    trials::run(all)
}

/// Memory with these features, not registered yet; or why there is none.
fn memory(features: Features) -> Result<OwnMemory, String> {
    let fd = create(false).map_err(|error| format!("no userfaultfd: {error}"))?;
    let memory = OwnMemory::new(fd, PAGES).unwrap();
    match memory.uffd().api(features) {
        Ok(has) => assert!(has.contains(features)),
        Err(error) => return Err(format!("no {features:?}: {error}")),
    }
    Ok(memory)
}

/// Waits for the next message.
fn next(uffd: &Userfaultfd) -> Event {
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        let mut room = [Message::EMPTY];
        match uffd.read(&mut room) {
            Ok(count) => {
                assert_eq!(count, 1);
                return room[0].take().unwrap();
            }
            Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock, "{error}"),
        }
        assert!(Instant::now() < deadline, "no message");
        thread::sleep(Duration::from_micros(100));
    }
}

fn none_is_left(uffd: &Userfaultfd) {
    let mut room = [Message::EMPTY];
    assert_eq!(uffd.read(&mut room).unwrap_err().kind(), io::ErrorKind::WouldBlock);
}

/// Serves a thread that touches the memory; what the thread returned.
fn serving<T: Send>(
    memory: &OwnMemory,
    touch: impl FnOnce() -> T + Send,
    serve: impl FnOnce(&Userfaultfd),
) -> T {
    thread::scope(|scope| {
        let thread = scope.spawn(touch);
        let served = catch_unwind(AssertUnwindSafe(|| serve(memory.uffd())));
        if let Err(panic) = served {
            // The thread must not wait for ever.
            while !thread.is_finished() {
                let _ = memory.uffd().read(&mut [Message::EMPTY]);
                let _ = memory.uffd().unregister(memory.range(0..PAGES));
                thread::sleep(Duration::from_millis(1));
            }
            resume_unwind(panic);
        }
        thread.join().unwrap()
    })
}

fn bytes(page: u8, count: usize) -> Vec<u8> {
    vec![page; count * PAGE as usize]
}

fn expect_fault(uffd: &Userfaultfd, expected: u64, is_write: bool, is_wp: bool) -> u32 {
    match next(uffd) {
        Event::PageFault { address, write, wp, thread } => {
            assert_eq!((address, write, wp), (expected, is_write, is_wp));
            thread
        }
        other => panic!("{other:?}"),
    }
}

fn features_have_names() {
    let all = Features((1 << 17) - 1);
    assert_eq!(all.names().count(), 17);
    for (bit, (feature, name)) in Features::NAMES.into_iter().enumerate() {
        assert_eq!(feature.0, 1 << bit);
        assert_eq!(feature.names().collect::<Vec<_>>(), [name]);
        assert!(!(all - feature).contains(feature));
    }
}

fn a_missing_page_is_copied_in(memory: OwnMemory) {
    memory.uffd().register(memory.range(0..PAGES), true, false).unwrap();
    let touch = || {
        let path = fs::read_link("/proc/thread-self").unwrap();
        let thread: u32 = path.file_name().unwrap().to_str().unwrap().parse().unwrap();
        (memory.load(3, 5), thread)
    };
    let mut told = 0;
    let (byte, thread) = serving(&memory, touch, |uffd| {
        told = expect_fault(uffd, memory.address(3), false, false);
        uffd.copy(memory.address(3), &bytes(7, 1), WAKE, false).unwrap();
    });
    assert_eq!((byte, thread), (7, told));
    // A write is a fault of the same kind.
    serving(
        &memory,
        || memory.store(4, 0, 1),
        |uffd| {
            expect_fault(uffd, memory.address(4), true, false);
            uffd.copy(memory.address(4), &bytes(8, 1), WAKE, false).unwrap();
        },
    );
    assert_eq!((memory.load(4, 0), memory.load(4, 1)), (1, 8));
    none_is_left(memory.uffd());
}

fn a_missing_page_is_zero(memory: OwnMemory) {
    memory.uffd().register(memory.range(0..PAGES), true, false).unwrap();
    let byte = serving(
        &memory,
        || memory.load(0, 0),
        |uffd| {
            expect_fault(uffd, memory.address(0), false, false);
            uffd.zeropage(memory.range(0..2), WAKE).unwrap();
        },
    );
    assert_eq!((byte, memory.load(1, 4095)), (0, 0));
    // Memory that is not registered any more is zero as well.
    let byte = serving(
        &memory,
        || memory.load(2, 0),
        |uffd| {
            expect_fault(uffd, memory.address(2), false, false);
            uffd.unregister(memory.range(0..PAGES)).unwrap();
        },
    );
    assert_eq!(byte, 0);
}

fn a_copy_can_leave_sleepers(memory: OwnMemory) {
    memory.uffd().register(memory.range(0..PAGES), true, false).unwrap();
    let touch = || {
        let byte = memory.load(0, 0);
        (byte, Instant::now())
    };
    let mut woken = None;
    let (byte, seen) = serving(&memory, touch, |uffd| {
        expect_fault(uffd, memory.address(0), false, false);
        uffd.copy(memory.address(0), &bytes(5, 1), !WAKE, false).unwrap();
        thread::sleep(Duration::from_millis(20));
        woken = Some(Instant::now());
        uffd.wake(memory.range(0..1)).unwrap();
    });
    assert_eq!(byte, 5);
    assert!(seen > woken.unwrap());
}

fn a_copy_stops(memory: OwnMemory) {
    let uffd = memory.uffd();
    uffd.register(memory.range(0..PAGES), true, false).unwrap();
    uffd.copy(memory.address(2), &bytes(2, 1), WAKE, false).unwrap();
    let partly = Err(Stopped { done: 2 * PAGE, errno: EAGAIN });
    assert_eq!(uffd.copy(memory.address(0), &bytes(1, 4), WAKE, false), partly);
    let there = Err(Stopped { done: 0, errno: EEXIST });
    assert_eq!(uffd.copy(memory.address(2), &bytes(1, 2), WAKE, false), there);
    assert_eq!([0, 1, 2].map(|page| memory.load(page, 9)), [1, 1, 2]);
    assert_eq!(uffd.zeropage(memory.range(2..3), WAKE), there);
    assert_eq!(
        uffd.zeropage(memory.range(3..PAGES), WAKE),
        Ok(()),
        "the pages after it are still missing"
    );
    // Half a page is none.
    let wrong = Err(Stopped { done: 0, errno: EINVAL });
    assert_eq!(uffd.copy(memory.address(3), &[0; 100], WAKE, false), wrong);
    assert_eq!(uffd.zeropage(memory.address(3)..memory.address(3) + 1, WAKE), wrong);
}

fn addresses_are_exact(memory: OwnMemory) {
    memory.uffd().register(memory.range(0..PAGES), true, false).unwrap();
    serving(
        &memory,
        || memory.load(1, 77),
        |uffd| {
            expect_fault(uffd, memory.address(1) + 77, false, false);
            uffd.zeropage(memory.range(1..2), WAKE).unwrap();
        },
    );
}

fn pages_move(memory: OwnMemory) {
    (0..4).for_each(|page| memory.store(page, 0, page as u8 + 10));
    memory.uffd().register(memory.range(8..PAGES), true, false).unwrap();
    let flags = MoveFlags { wake: WAKE, allow_holes: false };
    let byte = serving(
        &memory,
        || memory.load(9, 0),
        |uffd| {
            expect_fault(uffd, memory.address(9), false, false);
            uffd.move_pages(memory.address(8), memory.address(0), 4 * PAGE, flags).unwrap();
        },
    );
    assert_eq!(byte, 11);
    assert_eq!([8, 9, 10, 11].map(|page| memory.load(page, 0)), [10, 11, 12, 13]);
    assert_eq!([0, 1, 2, 3].map(|page| memory.load(page, 0)), [0; 4]);
}

fn holes_move_if_allowed(memory: OwnMemory) {
    memory.store(0, 0, 1);
    memory.store(2, 0, 3);
    let uffd = memory.uffd();
    uffd.register(memory.range(8..PAGES), true, false).unwrap();
    let flags = MoveFlags { wake: WAKE, allow_holes: false };
    let stopped = uffd.move_pages(memory.address(8), memory.address(0), 3 * PAGE, flags);
    assert_eq!(stopped, Err(Stopped { done: PAGE, errno: EAGAIN }));
    let flags = MoveFlags { allow_holes: true, ..flags };
    uffd.move_pages(memory.address(9), memory.address(1), 2 * PAGE, flags).unwrap();
    assert_eq!([8, 10].map(|page| memory.load(page, 0)), [1, 3]);
}

/// Tells a thread to end, also where the test fails.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The helper of `uzswap run` builds on this: a move stops at a page that is present at its
/// destination. Pages before it that are no longer at their source were moved, and Linux 6.18 has
/// not counted them.
fn pages_that_change_move(_: OwnMemory) {
    const COUNT: usize = 128;
    let _no_forks = FORKS.lock(); // with a child, pages do not move
    let fd = create(false).unwrap();
    let memory = OwnMemory::new(fd, COUNT * 2).unwrap();
    let uffd = memory.uffd();
    uffd.api(Features(Features::MOVE.0 | Features::PAGEFAULT_FLAG_WP.0)).unwrap();
    uffd.register(memory.range(0..COUNT * 2), true, true).unwrap();
    let pagemap = fs::File::open("/proc/self/pagemap").unwrap();
    let is_there = |page: usize| {
        let mut entry = [0; 8];
        pagemap.read_exact_at(&mut entry, memory.address(page) / PAGE * 8).unwrap();
        u64::from_ne_bytes(entry) >> 63 == 1
    };
    let (mut untold, is_over) = (0, AtomicBool::new(false));
    let is_over = &is_over;
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                let _ = uffd.write_protect(memory.range(0..COUNT));
                let _ = uffd.write_unprotect(memory.range(0..COUNT), WAKE);
            }
        });
        let _end = End(is_over);
        for round in 0..500 {
            (0..COUNT).for_each(|page| {
                uffd.copy(memory.address(page), &bytes(page as u8 ^ round as u8, 1), WAKE, false)
                    .unwrap();
            });
            let mut moved = 0;
            while moved < COUNT {
                let (to, from) = (memory.address(COUNT + moved), memory.address(moved));
                let flags = MoveFlags::default();
                // The first page of each call may change while it is looked at.
                let count = (COUNT - moved).min(2);
                match uffd.move_pages(to, from, count as u64 * PAGE, flags) {
                    Ok(()) => moved += count,
                    Err(Stopped { errno: EEXIST, done }) => {
                        moved += (done / PAGE) as usize;
                        let is_moved = |page: &usize| is_there(COUNT + page) && !is_there(*page);
                        let more = (moved..COUNT).take_while(is_moved).count();
                        assert!(more <= 2, "round {round}: page {moved}");
                        assert!(more > 0, "round {round}: page {moved} is there for no reason");
                        (moved, untold) = (moved + more, untold + more);
                    }
                    Err(stopped) => {
                        assert_eq!(stopped.errno, EAGAIN, "round {round}");
                        moved += (stopped.done / PAGE) as usize;
                    }
                }
            }
            for page in 0..COUNT {
                assert!(!is_there(page) && is_there(COUNT + page), "round {round}: page {page}");
                assert_eq!(memory.load(COUNT + page, 7), page as u8 ^ round as u8);
            }
            memory.discard(COUNT..COUNT * 2).unwrap();
        }
    });
    println!("{untold} pages were moved and not told");
}

fn a_write_is_told(memory: OwnMemory) {
    memory.store(0, 0, 1);
    let uffd = memory.uffd();
    uffd.register(memory.range(0..1), false, true).unwrap();
    uffd.write_protect(memory.range(0..1)).unwrap();
    assert_eq!(memory.load(0, 0), 1);
    none_is_left(uffd);
    serving(
        &memory,
        || memory.store(0, 0, 2),
        |uffd| {
            expect_fault(uffd, memory.address(0), true, true);
            assert_eq!(memory.load(0, 0), 1);
            uffd.write_unprotect(memory.range(0..1), true).unwrap();
        },
    );
    assert_eq!(memory.load(0, 0), 2);
}

fn a_copied_page_is_protected(memory: OwnMemory) {
    let uffd = memory.uffd();
    uffd.register(memory.range(0..1), true, true).unwrap();
    uffd.copy(memory.address(0), &bytes(3, 1), WAKE, true).unwrap();
    serving(
        &memory,
        || memory.store(0, 0, 4),
        |uffd| {
            expect_fault(uffd, memory.address(0), true, true);
            uffd.write_unprotect(memory.range(0..1), true).unwrap();
        },
    );
    assert_eq!((memory.load(0, 0), memory.load(0, 1)), (4, 3));
}

fn a_write_is_let_through(memory: OwnMemory) {
    memory.store(0, 0, 1);
    let uffd = memory.uffd();
    uffd.register(memory.range(0..1), false, true).unwrap();
    uffd.write_protect(memory.range(0..1)).unwrap();
    memory.store(0, 0, 2);
    assert_eq!(memory.load(0, 0), 2);
    none_is_left(uffd);
}

fn a_poisoned_page_is_there(memory: OwnMemory) {
    let uffd = memory.uffd();
    uffd.register(memory.range(0..2), true, false).unwrap();
    uffd.poison(memory.range(0..1), WAKE).unwrap();
    let there = Err(Stopped { done: 0, errno: EEXIST });
    assert_eq!(uffd.poison(memory.range(0..1), WAKE), there);
    // Until it is filled in.
    uffd.copy(memory.address(0), &bytes(1, 1), WAKE, false).unwrap();
    assert_eq!(memory.load(0, 0), 1);
}

fn a_child_is_served(memory: OwnMemory) {
    memory.uffd().register(memory.range(0..PAGES), true, false).unwrap();
    let mut kept = None;
    let seen = serving(
        &memory,
        || memory.load_in_fork(6).unwrap(),
        |uffd| {
            let Event::Fork { child } = next(uffd) else { panic!("no fork") };
            expect_fault(&child, memory.address(6), false, false);
            child.copy(memory.address(6), &bytes(9, 1), WAKE, false).unwrap();
            kept = Some(child);
        },
    );
    assert_eq!(seen, 9);
    // The child has ended, and its memory with it. The memory of the parent has not changed.
    let gone = Err(Stopped { done: 0, errno: ESRCH });
    let child = kept.unwrap();
    assert_eq!(child.copy(memory.address(7), &bytes(9, 1), WAKE, false), gone);
    memory.uffd().copy(memory.address(6), &bytes(1, 1), WAKE, false).unwrap();
    assert_eq!(memory.load(6, 0), 1);
}

/// The userfaultfd of a child that is in a message goes with the message: the child's missing pages
/// are zero then.
fn children_nobody_takes(memory: OwnMemory) {
    memory.uffd().register(memory.range(0..PAGES), true, false).unwrap();
    for again in [false, true] {
        let seen = serving(
            &memory,
            || memory.load_in_fork(6).unwrap(),
            |uffd| {
                let mut room = [Message::EMPTY, Message::EMPTY];
                while uffd.read(&mut room).is_err() {
                    thread::sleep(Duration::from_micros(100));
                }
                if again {
                    // Room that is used again loses what it held.
                    let nothing = uffd.read(&mut room).unwrap_err();
                    assert_eq!(nothing.kind(), io::ErrorKind::WouldBlock);
                    assert!(room[0].take().is_none());
                }
            },
        );
        assert_eq!(seen, 0);
    }
}

fn dropped_pages_are_told(memory: OwnMemory) {
    (0..4).for_each(|page| memory.store(page, 0, 1));
    memory.uffd().register(memory.range(0..PAGES), true, false).unwrap();
    let touch = || memory.discard(1..3).unwrap();
    serving(&memory, touch, |uffd| {
        // Until the message is read nothing can be filled in.
        let deadline = Instant::now() + Duration::from_secs(10);
        let busy = Err(Stopped { done: 0, errno: EAGAIN });
        let there = Err(Stopped { done: 0, errno: EEXIST });
        loop {
            match uffd.copy(memory.address(0), &bytes(2, 1), WAKE, false) {
                stopped if stopped == busy => break,
                stopped => assert_eq!(stopped, there),
            }
            assert!(Instant::now() < deadline, "nothing happens");
        }
        let Event::Remove { start, end } = next(uffd) else { panic!("no remove") };
        assert_eq!(start..end, memory.range(1..3));
    });
    memory.uffd().copy(memory.address(1), &bytes(5, 2), WAKE, false).unwrap();
    assert_eq!([0, 1, 2, 3].map(|page| memory.load(page, 0)), [1, 5, 5, 1]);
}

fn unmapped_pages_are_told(memory: OwnMemory) {
    (0..4).for_each(|page| memory.store(page, 0, 1));
    memory.uffd().register(memory.range(0..PAGES), true, false).unwrap();
    let touch = || memory.replace(1..3).unwrap();
    serving(&memory, touch, |uffd| {
        let Event::Unmap { start, end } = next(uffd) else { panic!("no unmap") };
        assert_eq!(start..end, memory.range(1..3));
    });
    assert_eq!([0, 1, 2, 3].map(|page| memory.load(page, 0)), [1, 0, 0, 1]);
    none_is_left(memory.uffd());
}

fn moved_memory_is_told(memory: OwnMemory) {
    memory.store(0, 0, 1);
    memory.uffd().register(memory.range(0..4), true, false).unwrap();
    let touch = || {
        memory.remap(0..4, 8).unwrap();
        (memory.load(8, 0), memory.load(9, 0))
    };
    let bytes = serving(&memory, touch, |uffd| {
        let Event::Remap { from, to, len } = next(uffd) else { panic!("no remap") };
        assert_eq!((from, to, len), (memory.address(0), memory.address(8), 4 * PAGE));
        // Registered memory stays registered at its new place.
        expect_fault(uffd, memory.address(9), false, false);
        uffd.copy(memory.address(9), &bytes(2, 1), WAKE, false).unwrap();
    });
    assert_eq!(bytes, (1, 2));
}

fn own_memory_alone_is_reached(memory: OwnMemory) {
    let uffd = memory.uffd();
    let inside = memory.range(0..PAGES);
    uffd.register(inside.clone(), true, false).unwrap();
    let outside = Err(Stopped { done: 0, errno: EFAULT });
    let flags = MoveFlags::default();
    for wrong in [inside.start - PAGE, inside.end, u64::MAX - 100] {
        assert_eq!(uffd.copy(wrong, &bytes(0, 1), WAKE, false), outside);
        assert_eq!(uffd.move_pages(inside.start, wrong, PAGE, flags), outside);
        assert_eq!(uffd.move_pages(wrong, inside.start, PAGE, flags), outside);
        let range = wrong..wrong.saturating_add(PAGE);
        assert_eq!(uffd.zeropage(range.clone(), WAKE), outside);
        assert_eq!(uffd.poison(range.clone(), WAKE), outside);
        for refused in [
            uffd.register(range.clone(), true, false),
            uffd.write_protect(range.clone()),
            uffd.unregister(range.clone()),
            uffd.wake(range),
        ] {
            assert_eq!(refused.unwrap_err().raw_os_error(), Some(EFAULT));
        }
    }
    let backwards = uffd.wake(inside.end..inside.start).unwrap_err();
    assert_eq!(backwards.raw_os_error(), Some(EINVAL));
    for refused in
        [memory.discard(0..PAGES + 1), memory.replace(PAGES..PAGES + 1), memory.remap(0..9, 8)]
    {
        assert_eq!(refused.unwrap_err().raw_os_error(), Some(EFAULT));
    }
    assert_eq!(uffd.api(Features::NONE).unwrap_err().raw_os_error(), Some(EINVAL));
}
