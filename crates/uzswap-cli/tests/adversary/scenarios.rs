//! Programs that do one odd thing, while the limit keeps their memory moving.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Read};
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use super::raw::{self, PAGE};
use super::rights;
use uzswap::random::SplitMix64;

const PAGES: usize = 8192;

/// What a page holds here.
fn word(page: usize) -> u64 {
    0x0123_4567_89ab_cdef ^ (page as u64) << 20
}

/// 32 MiB that compress, each page another.
fn filled() -> usize {
    filled_in_order(0..PAGES)
}

fn filled_in_order(pages: impl Iterator<Item = usize>) -> usize {
    let at = raw::map(0, PAGES * PAGE, raw::READ_WRITE, raw::PRIVATE, -1).expect("mmap");
    fill_in_order(at, pages);
    at
}

fn fill_in_order(at: usize, pages: impl Iterator<Item = usize>) {
    for page in pages {
        let words = raw::page(at + page * PAGE);
        words[..64].fill(word(page));
        words[511] = page as u64;
    }
}

/// 64 MiB that the kernel fills in one call, in each of two ways.
fn fills_at_once() {
    const BYTES: usize = 2 * PAGES * PAGE;
    for flag in [libc::MAP_POPULATE, 0] {
        let at = raw::map(0, BYTES, raw::READ_WRITE, raw::PRIVATE | flag, -1).expect("mmap");
        if flag == 0 {
            raw::advise(at, BYTES, libc::MADV_POPULATE_WRITE).expect("MADV_POPULATE_WRITE");
        }
        for half in 0..2 {
            fill_in_order(at + half * PAGES * PAGE, 0..PAGES);
        }
        (0..2).for_each(|half| check(at + half * PAGES * PAGE));
        raw::unmap(at, BYTES).expect("munmap");
    }
    // A range that ends beyond the mapping is filled up to there, and that is an error.
    let at = raw::map(0, BYTES, raw::READ_WRITE, raw::PRIVATE, -1).expect("mmap");
    raw::unmap(at + BYTES / 2, BYTES / 2).expect("munmap");
    assert_eq!(raw::advise(at, BYTES, libc::MADV_POPULATE_READ), Err(libc::ENOMEM));
}

/// Memory that no compressor shrinks, freed lazily before it is registered, four times as much as
/// is used at any time. The kernel may have dropped each page since, or not. Half of the last round
/// is written again, and stays.
fn freed_lazily() {
    let mut words = SplitMix64::new(7);
    let mut last = 0;
    for _ in 0..4 {
        last = raw::map(0, PAGES * PAGE, raw::READ_WRITE, raw::PRIVATE, -1).expect("mmap");
        for page in 0..PAGES {
            raw::page(last + page * PAGE).fill_with(|| words.next_word());
        }
        raw::advise(last, PAGES * PAGE, libc::MADV_FREE).expect("MADV_FREE");
        thread::sleep(Duration::from_millis(200));
    }
    fill_in_order(last, 0..PAGES / 2);
    let other = filled();
    for _ in 0..3 {
        check_in_order(last, 0..PAGES / 2);
        check(other);
    }
}

/// Half of the memory is of a private mapping of a file: its written pages are never evicted.
fn private_file() {
    let file = tempfile::tempfile().unwrap();
    file.set_len((PAGES * PAGE) as u64).unwrap();
    let of_file = raw::map(0, PAGES * PAGE, raw::READ_WRITE, raw::PRIVATE_FILE, file.as_raw_fd());
    let of_file = of_file.expect("mmap");
    fill_in_order(of_file, 0..PAGES);
    let anonymous = filled();
    for _ in 0..3 {
        check(of_file);
        check(anonymous);
    }
}

/// Waits until an eighth of the memory was evicted. A scenario fills and checks it in 30 ms, in
/// which the supervisor may get no processor.
fn await_leaving() {
    let start = Instant::now();
    while resident_pages() > PAGES * 7 / 8 {
        if start.elapsed() > Duration::from_secs(60) {
            super::wrong(&format!("{} pages of {PAGES} are resident", resident_pages()));
        }
        thread::sleep(Duration::from_millis(1));
    }
}

fn check(at: usize) {
    check_in_order(at, 0..PAGES);
}

fn check_in_order(at: usize, pages: impl Iterator<Item = usize>) {
    for page in pages {
        let words = raw::page(at + page * PAGE);
        let is_right = words[..64].iter().all(|&found| found == word(page));
        if !is_right || words[511] != page as u64 || words[64] != 0 {
            super::wrong(&format!("page {page} of {PAGES} is wrong: {:#x}", words[0]));
        }
    }
}

/// As many pages in the midst of 16 TiB, and in three more such mappings, as sanitizers have;
/// dense where there are any.
fn huge_maps() {
    const TIB: usize = 1 << 40;
    let starts: Vec<usize> = [16 * TIB, TIB, 4 * TIB, 8 * TIB]
        .map(|bytes| (raw::map(0, bytes, raw::READ_WRITE, raw::PRIVATE, -1).expect("mmap"), bytes))
        .map(|(at, bytes)| at + bytes / 2)
        .to_vec();
    let part = PAGES / starts.len();
    fill_and_check(|page| starts[page / part] + page % part * PAGE);
}

/// As many pages, each so many after the last one.
fn spread(step: usize) {
    let bytes = PAGES * step * PAGE;
    let at = raw::map(0, bytes, raw::READ_WRITE, raw::PRIVATE, -1).expect("mmap");
    fill_and_check(|page| at + page * step * PAGE);
    // What lies between was never touched.
    for page in 0..PAGES {
        let found = raw::page(at + (page * step + 1) * PAGE)[0];
        if found != 0 {
            super::wrong(&format!("the page after page {page} is {found:#x}"));
        }
    }
}

/// As many pages, in twos between guards.
fn many_small_maps() {
    const PART: usize = 2;
    let bytes = PAGES / PART * (PART + 1) * PAGE;
    let at = raw::map(0, bytes, raw::READ_WRITE, raw::PRIVATE, -1).expect("mmap");
    for part in 0..PAGES / PART {
        raw::protect(at + (part * (PART + 1) + PART) * PAGE, PAGE, 0).expect("mprotect");
    }
    fill_and_check(|page| at + (page / PART * (PART + 1) + page % PART) * PAGE);
}

/// 32 MiB that compress, where this tells: filled once, and checked three times.
fn fill_and_check(at: impl Fn(usize) -> usize) {
    for page in 0..PAGES {
        let words = raw::page(at(page));
        words[..64].fill(word(page));
        words[511] = page as u64;
    }
    await_leaving();
    for page in (0..3).flat_map(|_| 0..PAGES) {
        let words = raw::page(at(page));
        let is_right = words[..64].iter().all(|&found| found == word(page));
        if !is_right || words[511] != page as u64 || words[64] != 0 {
            super::wrong(&format!("page {page} of {PAGES} is wrong: {:#x}", words[0]));
        }
    }
}

/// Runs one by its name.
pub(crate) fn run(name: &str) -> ! {
    match name {
        "fill" => check(filled()),
        "fill-and-leave" => {
            let at = filled();
            await_leaving();
            check(at);
        }
        "down" => {
            let at = filled_in_order((0..PAGES).rev());
            await_leaving();
            (0..3).for_each(|_| check_in_order(at, (0..PAGES).rev()));
        }
        "huge-maps" => huge_maps(),
        "every-16th" => spread(16),
        "one-in-3400-kib" => spread(850),
        "many-small-maps" => many_small_maps(),
        "code-7" => {
            check(filled());
            raw::exit(7);
        }
        "abort" => {
            let at = filled();
            await_leaving();
            check(at);
            std::process::abort();
        }
        "close-all" => {
            let at = filled();
            raw::close_all_from(3);
            check(at);
            check(at);
        }
        "thread-execs" => {
            let at = filled();
            thread::spawn(move || {
                check(at);
                let error = Command::new("/bin/sh").args(["-c", "echo from sh; exit 6"]).exec();
                super::wrong(&error.to_string());
            });
            check(at);
            thread::sleep(Duration::from_secs(20));
        }
        "own-userfaultfd" => own_userfaultfd(),
        "limits" => {
            let at = filled();
            raw::limit(libc::RLIMIT_NOFILE, 3);
            raw::limit(libc::RLIMIT_STACK, 1 << 20);
            raw::limit(libc::RLIMIT_NPROC, 1);
            check(at);
            check(at);
        }
        // A process of its own that outlives this one.
        "background" => {
            let at = filled();
            if raw::fork() == 0 {
                thread::sleep(Duration::from_millis(300));
                check(at);
                check(at);
                println!("background done");
                raw::exit(0);
            }
        }
        "threads-end" => threads_end(),
        "stacks-come" => stacks_come(),
        "threads-end-in-forks" => threads_end_in_forks(),
        "advice-beside-forks" => advice_beside_forks(),
        "advice-after-forks" => advice_after_forks(),
        "moves-before-forks" => moves_before_forks(),
        "fills-at-once" => fills_at_once(),
        "unmaps-after-forks" => unmaps_after_forks(),
        "words-of-threads" => words_of_threads(),
        "owners-end" => owners_end(),
        "both-write" => both_write(),
        "writes-to-stderr" => writes_to_stderr(),
        "many-read" => many_read(),
        "many-small" => many_small(),
        "killed-children" => killed_children(),
        "many-write" => many_write(),
        "workers" => workers(),
        // Registered memory must not split the mapping that the kernel reports it by.
        "stack-is-told" => {
            let before = raw::stack_bytes();
            check(filled());
            if raw::stack_bytes() != before {
                super::wrong(&format!("a stack of {before} bytes, {} now", raw::stack_bytes()));
            }
        }
        "stopped" => stopped(),
        "forks-in-forks" => forks_in_forks(),
        "forks-at-once" => forks_at_once(),
        "forks-in-turn" => forks_in_turn(),
        "parents-end" => parents_end(),
        "child-changes" => child_changes(),
        "unfit" => unfit(),
        "private-file" => private_file(),
        "freed-lazily" => freed_lazily(),
        "processors-stay" => processors_stay(),
        "moves-take-long" => moves_take_long(),
        "moves-over-moves" => moves_over_moves(),
        "grows-over" => grows_over(),
        "cannot-unmap" => cannot_unmap(),
        "guards-stay" => guards_stay(),
        "executable" => rights::executable(),
        "read-only" => rights::read_only(),
        "no-access" => rights::unreadable(libc::PROT_NONE),
        "execute-only" => rights::unreadable(libc::PROT_EXEC),
        "write-only" => rights::write_only(),
        "code" => rights::code(),
        "pinned" => rights::pinned(libc::PROT_EXEC | raw::READ_WRITE),
        "pinned-read-only" => rights::pinned(raw::READ),
        "pinned-after-read-only" => rights::pinned_after_read_only(),
        "no-more-mappings" => rights::no_more_mappings(),
        "write-barrier" => rights::write_barrier(),
        "grow-beside-barriers" => rights::grow_beside_barriers(),
        "grow-below-mappings" => rights::grow_beside_unknown(true),
        "grow-above-mappings" => rights::grow_beside_unknown(false),
        "rights-change" => rights::rights_change(),
        "read-only-forked" => rights::forked(),
        // The helper's memory for pages that leave was locked, too, and is filled since.
        "locked-all" => {
            thread::sleep(Duration::from_millis(100));
            raw::lock_all_and_unlock().expect("mlockall");
            check(filled());
        }
        // As the only thread of its own may.
        "enters-namespace" => {
            let at = filled();
            let namespace = File::open("/proc/self/ns/mnt").unwrap();
            match raw::enter_mounts(namespace.as_raw_fd()) {
                Ok(()) | Err(libc::EPERM) => check(at),
                Err(errno) => super::wrong(&format!("setns: {errno}")),
            }
        }
        "threads-end-one-by-one" => {
            let at = filled();
            thread::spawn(move || {
                thread::sleep(Duration::from_millis(100));
                check(at);
                raw::end_thread(5);
            });
            raw::end_thread(5);
        }
        "outlived" => {
            OUTLIVING.store(filled(), Ordering::Relaxed);
            filled();
            await_leaving();
            OUTLIVED.store(std::process::id() as i32, Ordering::Relaxed);
            raw::share_memory(outlive);
        }
        // Until they are ended.
        "stay" | "stay-shared" | "stay-forked-directly" => {
            let at = filled();
            match name {
                "stay-shared" => _ = raw::fork(),
                "stay-forked-directly" => _ = raw::fork_directly(),
                _ => {}
            }
            println!("ready");
            loop {
                check(at);
            }
        }
        "signals-while-waiting" => signals_while_waiting(),
        "stay-a-while" => {
            let at = filled();
            println!("ready");
            thread::sleep(Duration::from_millis(1500));
            check(at);
        }
        // Where memory is locked, the kernel fills what grows before it tells of the move.
        "grow-locked" => {
            let at = filled();
            let small = raw::map(0, 4 * PAGE, raw::READ_WRITE, raw::PRIVATE, -1).expect("mmap");
            raw::page(small)[0] = 1;
            check(at);
            raw::lock(small, 4 * PAGE).expect("mlock");
            let flags = libc::MREMAP_MAYMOVE;
            let small = raw::remap(small, 4 * PAGE, 4096 * PAGE, flags, 0).expect("mremap");
            if raw::page(small)[0] != 1 {
                super::wrong("what was locked is wrong");
            }
            check(at);
        }
        _ => super::wrong("no such scenario"),
    }
    std::process::exit(0)
}

/// A thread waits for pages in the kernel, and for room, as a program without a helper has all of
/// it; signals come in the meantime.
fn signals_while_waiting() {
    extern "C" fn nothing(_: i32) {}
    let at = filled();
    let mut other = Command::new(std::env::current_exe().unwrap());
    other.args(["--scenario", "stay-a-while"]).env("UZSWAP_SOCKET", "");
    let mut other = other.stdout(Stdio::piped()).spawn().unwrap();
    other.stdout.as_mut().unwrap().read_exact(&mut [0; 6]).unwrap(); // "ready\n"
    raw::handle(libc::SIGUSR1, nothing);
    let (file, is_over) = (tempfile::tempfile().unwrap(), AtomicBool::new(false));
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                raw::signal(std::process::id() as i32, libc::SIGUSR1);
                thread::sleep(Duration::from_micros(100));
            }
        });
        // The other program alone takes nearly the limit. The supervisor would end it after 3 s.
        let start = Instant::now();
        for page in (0..PAGES).step_by(97).cycle() {
            if start.elapsed() > Duration::from_millis(1500) {
                break;
            }
            if raw::write_at(file.as_raw_fd(), at + page * PAGE, 8, 0) != 8 {
                super::wrong("cannot write to a file");
            }
        }
        is_over.store(true, Ordering::Relaxed);
    });
    if !other.wait().unwrap().success() {
        super::wrong("the other program has failed");
    }
    check(at);
}

/// Writes its memory to the pipe that its supervisor has, too. The kernel locks the pipe while it
/// waits for a page.
fn writes_to_stderr() {
    let at = filled();
    for _ in 0..6 {
        let (mut from, end) = (at, at + PAGES * PAGE);
        while from < end {
            match raw::write(2, from, (end - from).min(16 * PAGE)) {
                ..=0 => super::wrong("cannot write to the pipe"),
                written => from += written as usize,
            }
        }
    }
    check(at);
}

/// Memory that the program registers itself stays its own; if the supervisor has registered it
/// already, the program gets an error.
fn own_userfaultfd() {
    let at = filled();
    let own = match raw::userfaultfd() {
        Ok(own) => own,
        Err(errno) => {
            println!("no userfaultfd: {errno}");
            return;
        }
    };
    raw::ioctl(own, 0xc018_aa3f, &mut [0xaa, 0, 0]).expect("UFFDIO_API");
    let mine = raw::map(0, 16 * PAGE, raw::READ_WRITE, raw::PRIVATE, -1).expect("mmap");
    let mut order = [mine as u64, 16 * PAGE as u64, 1, 0];
    match raw::ioctl(own, 0xc020_aa00, &mut order) {
        Err(libc::EBUSY) => println!("refused: busy"),
        Err(errno) => super::wrong(&format!("UFFDIO_REGISTER: {errno}")),
        Ok(()) => {
            let filler = thread::spawn(move || {
                for page in 0..16 {
                    let from = at + page * PAGE; // in memory that may be elsewhere
                    let to = mine + page * PAGE;
                    let mut order = [to as u64, from as u64, PAGE as u64, 0, 0];
                    thread::sleep(Duration::from_millis(5));
                    while raw::ioctl(own, 0xc028_aa03, &mut order) == Err(libc::EAGAIN) {}
                }
            });
            for page in 0..16 {
                if raw::page(mine + page * PAGE)[0] != word(page) {
                    super::wrong("a page that the program filled itself is wrong");
                }
            }
            let _ = filler.join();
        }
    }
    check(at);
    check(at);
}

/// Many threads that end and are joined, while memory moves: the kernel writes to a thread's
/// memory at its end.
fn threads_end() {
    let at = filled();
    await_leaving();
    let checker = thread::spawn(move || {
        for _ in 0..6 {
            check(at);
        }
    });
    while !checker.is_finished() {
        let threads: Vec<_> = (0..8)
            .map(|number| thread::Builder::new().spawn(move || number).expect("a thread"))
            .collect();
        for (number, thread) in threads.into_iter().enumerate() {
            assert_eq!(thread.join().expect("a thread that ends"), number);
        }
    }
    checker.join().expect("all pages are right");
}

/// Stacks are mapped as by glibc, without rights at first. None is registered, or each thread that
/// ends would be held up.
fn stacks_come() {
    const BYTES: usize = 2 << 20;
    const STACKS: usize = 24;
    let at = filled();
    await_leaving();
    for _ in 0..250 {
        let stacks = [(); STACKS].map(|()| {
            let stack = raw::map(0, BYTES, libc::PROT_NONE, raw::STACK, -1).expect("mmap");
            raw::protect(stack + PAGE, BYTES - PAGE, raw::READ_WRITE).expect("mprotect");
            for page in [1, 2] {
                raw::page(stack + BYTES - page * PAGE)[0] = 1;
            }
            stack
        });
        let mappings = fs::read_to_string("/proc/self/smaps").expect("smaps");
        let mut start = 0;
        for line in mappings.lines() {
            let first = line.split('-').next().unwrap_or_default();
            if let Ok(address) = usize::from_str_radix(first, 16) {
                start = address;
            } else if line.starts_with("VmFlags:") && line.contains(" um ") {
                let is_stack = stacks.contains(&(start - PAGE));
                assert!(!is_stack, "the stack at {start:x} is registered:\n{mappings}");
            }
        }
        for stack in stacks {
            raw::unmap(stack, BYTES).expect("munmap");
        }
    }
    check(at);
}

/// A thread ends with mutexes that it has held for long. A waiter of them is woken, in private
/// memory whose pages are evicted, and in shared memory.
fn owners_end() {
    let shared = raw::map(0, PAGE, raw::READ_WRITE, raw::SHARED, -1).expect("mmap");
    let private = raw::map(0, 64 * PAGE, raw::READ_WRITE, raw::PRIVATE, -1).expect("mmap");
    let mutexes = [shared, private + 20 * PAGE, private + 40 * PAGE];
    mutexes.into_iter().for_each(raw::make_robust_mutex);
    (0..64).for_each(|page| raw::page(private + page * PAGE)[100] = 1);
    let owner = thread::spawn(move || {
        for mutex in mutexes {
            assert_eq!(raw::lock_robust_mutex(mutex), 0);
        }
        thread::park();
    });
    let at = filled();
    (0..3).for_each(|_| check(at));
    let resident = (0..64).filter(|page| is_resident(private + page * PAGE)).count();
    if resident > 32 {
        super::wrong(&format!("{resident} pages of 64 beside the mutexes are resident"));
    }
    owner.thread().unpark();
    owner.join().expect("it ends");
    for mutex in mutexes {
        let told = raw::lock_robust_mutex(mutex);
        if told != libc::EOWNERDEAD {
            super::wrong(&format!("who waits for a mutex is told {told}"));
        }
    }
}

/// At the end of an idle thread, the kernel finds the word that it clears, although the rest of the
/// thread's stack was evicted.
fn words_of_threads() {
    const USED: usize = 64;
    let (tell, told) = mpsc::channel();
    let threads: Vec<_> = (0..8)
        .map(|_| {
            let tell = tell.clone();
            thread::spawn(move || {
                let used = [1_u8; USED * PAGE];
                let lowest = std::hint::black_box(&used).as_ptr().expose_provenance();
                tell.send((raw::robust_list(), lowest)).expect("the first thread is there");
                thread::park();
                assert!(used.iter().all(|&byte| byte == 1));
            })
        })
        .collect();
    let stacks: Vec<(usize, usize)> = told.iter().take(threads.len()).collect();
    let liars: Vec<_> = [1, 16, usize::MAX]
        .map(|address| {
            thread::spawn(move || {
                raw::name_robust_list(address);
                thread::park();
            })
        })
        .into();
    check(filled());
    for &(word, used) in &stacks {
        if !is_resident(word) {
            super::wrong("the kernel would not find the word that it clears");
        }
        let resident = (0..USED).filter(|page| is_resident(used + page * PAGE)).count();
        if resident > USED / 2 {
            super::wrong(&format!("{resident} pages of {USED} of a stack are resident"));
        }
    }
    for thread in threads.into_iter().chain(liars) {
        thread.thread().unpark();
        thread.join().expect("a thread that ends");
    }
}

fn is_resident(address: usize) -> bool {
    let pagemap = File::open("/proc/self/pagemap").expect("pagemap");
    let mut entry = [0; 8];
    pagemap.read_exact_at(&mut entry, (address / PAGE * 8) as u64).expect("pagemap");
    u64::from_ne_bytes(entry) >> 63 == 1
}

/// The same, while the process forks.
fn threads_end_in_forks() {
    let at = filled();
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    thread::spawn(|| ()).join().expect("a thread that ends");
                }
            });
        }
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(2) {
            match raw::fork() {
                0 => raw::exit(0),
                child => assert_eq!(raw::wait(child), 0),
            }
            raw::page(at)[65] += 1;
        }
        is_over.store(true, Ordering::Relaxed);
    });
    check(at);
}

/// A thread decides anew and anew whether children get some evicted pages. Children that get them
/// get all of them.
fn advice_beside_forks() {
    const FEW: usize = 256;
    // Between two pages that no child lacks: in a child without the memory, the kernel has the
    // helper's mappings elsewhere, which need more room.
    let guard = raw::map(0, (FEW + 2) * PAGE, 0, raw::PRIVATE, -1).expect("mmap");
    let few = guard + PAGE;
    raw::protect(few, FEW * PAGE, raw::READ_WRITE).expect("mprotect");
    fill_in_order(few, 0..FEW);
    let at = filled();
    let is_over = AtomicBool::new(false);
    let mut copied = 0;
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                raw::advise(few, FEW * PAGE, libc::MADV_DONTFORK).expect("madvise");
                thread::sleep(Duration::from_micros(20));
                raw::advise(few, FEW * PAGE, libc::MADV_DOFORK).expect("madvise");
                thread::sleep(Duration::from_micros(200));
            }
        });
        let start = Instant::now();
        let is_time_left = |seconds| start.elapsed() < Duration::from_secs(seconds);
        while is_time_left(2) || copied < 6 && is_time_left(60) {
            match raw::fork() {
                0 => {
                    // Advice that changes nothing fails where some of it is not mapped.
                    if raw::advise_directly(few, FEW * PAGE, libc::MADV_KEEPONFORK).is_err() {
                        raw::exit(3);
                    }
                    check_in_order(few, 0..FEW);
                    raw::exit(0);
                }
                child => match raw::wait(child) {
                    0 => copied += 1,
                    status if status == 3 << 8 => {}
                    status => raw::exit(status >> 8),
                },
            }
            // The next child finds none of them resident.
            check(at);
        }
        is_over.store(true, Ordering::Relaxed);
    });
    assert!(copied >= 6, "{copied} children had the pages");
}

/// A process with two threads changes its advice right after each fork, by the C library or by the
/// system call alone. A child has what held at the fork, or gets SIGBUS.
fn advice_after_forks() {
    // The supervisor takes long to read so many mappings.
    const MAPPINGS: usize = 1000;
    let many = raw::map(0, MAPPINGS * 2 * PAGE, 0, raw::PRIVATE, -1).expect("mmap");
    for at in 0..MAPPINGS {
        raw::protect(many + at * 2 * PAGE, PAGE, raw::READ).expect("mprotect");
    }
    let at = filled();
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                thread::sleep(Duration::from_millis(1));
            }
        });
        for (before, after) in [
            (libc::MADV_KEEPONFORK, libc::MADV_WIPEONFORK),
            (libc::MADV_WIPEONFORK, libc::MADV_KEEPONFORK),
            (libc::MADV_DOFORK, libc::MADV_DONTFORK),
            (libc::MADV_DONTFORK, libc::MADV_DOFORK),
        ] {
            for is_direct in [false, true, false, false] {
                fork_between(at, before, after, is_direct);
            }
            raw::advise(at, PAGES * PAGE, libc::MADV_DOFORK).expect("madvise");
            raw::advise(at, PAGES * PAGE, libc::MADV_KEEPONFORK).expect("madvise");
        }
        is_over.store(true, Ordering::Relaxed);
    });
    check(at);
}

/// Forks after one advice for some memory, before another.
fn fork_between(at: usize, before: i32, after: i32, is_direct: bool) {
    raw::advise(at, PAGES * PAGE, before).expect("madvise");
    match if is_direct { raw::fork_directly() } else { raw::fork() } {
        0 => {
            // The child's own advice is not that of the fork. After a fork by system call alone,
            // the library sees the advice alone.
            let advise = if is_direct { raw::advise } else { raw::advise_directly };
            let is_there = advise(at, PAGES * PAGE, after).is_ok();
            if !is_there {
                let mapped = raw::map(at, PAGES * PAGE, raw::READ_WRITE, raw::PRIVATE, -1);
                assert_eq!(mapped, Ok(at));
            }
            if before == libc::MADV_WIPEONFORK || !is_there {
                let is_zero = |page| raw::page(at + page * PAGE).iter().all(|&word| word == 0);
                raw::exit(if (0..PAGES).step_by(7).all(is_zero) { 0 } else { super::WRONG });
            }
            check_in_order(at, (0..PAGES).step_by(7));
            raw::exit(0);
        }
        child => {
            raw::advise(at, PAGES * PAGE, after).expect("madvise");
            match raw::wait(child) {
                0 => {}
                status if is_direct && status & 0x7f == libc::SIGBUS => {}
                status => super::wrong(&format!("a child ended so: {status:#x}")),
            }
        }
    }
    check(at);
}

/// A process moves evicted memory over other evicted memory, and forks by the system call alone. So
/// does its child, before it touches anything. Each has the moved pages, or gets SIGBUS.
fn moves_before_forks() {
    const MOVED: usize = 64;
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
    let is_expected = |status: i32| status == 0 || status & 0x7f == libc::SIGBUS;
    for _ in 0..6 {
        let onto = raw::map(0, MOVED * PAGE, raw::READ_WRITE, raw::PRIVATE, -1).expect("mmap");
        (0..MOVED).for_each(|page| raw::page(onto + page * PAGE)[..64].fill(word(page + 1)));
        let from = filled();
        await_leaving();
        let moved = raw::remap(from, MOVED * PAGE, MOVED * PAGE, flags, onto);
        let child = raw::fork_directly();
        if child == 0 {
            let grandchild = raw::fork_directly();
            if grandchild == 0 {
                check_in_order(onto, 0..MOVED);
                raw::exit(0);
            }
            let status = raw::wait(grandchild);
            raw::exit(if is_expected(status) { 0 } else { status >> 8 });
        }
        assert_eq!(moved, Ok(onto));
        match raw::wait(child) {
            status if is_expected(status) => {}
            status => super::wrong(&format!("a child ended so: {status:#x}")),
        }
        check_in_order(onto, 0..MOVED);
        raw::unmap(onto, MOVED * PAGE).expect("munmap");
        raw::unmap(from + MOVED * PAGE, (PAGES - MOVED) * PAGE).expect("munmap");
    }
}

/// A process unmaps or moves memory right after each fork that did not copy the first pages, while
/// another thread changes mappings all the time. The child has the rest of it.
fn unmaps_after_forks() {
    const SKIPPED: usize = 7;
    const CHURN: usize = 64;
    let churn = raw::map(0, CHURN * PAGE, raw::READ_WRITE, raw::PRIVATE, -1).expect("mmap");
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                raw::page(churn)[0] = 1;
                raw::advise(churn, CHURN * PAGE, libc::MADV_DONTNEED).expect("madvise");
            }
        });
        for round in 0..24 {
            let at = filled();
            await_leaving();
            raw::advise(at, SKIPPED * PAGE, libc::MADV_DONTFORK).expect("madvise");
            let child = raw::fork();
            if child == 0 {
                thread::sleep(Duration::from_millis(20));
                check_in_order(at, (SKIPPED..PAGES).step_by(61));
                raw::exit(0);
            }
            if round % 2 == 0 {
                raw::unmap(at, PAGES * PAGE).expect("munmap");
            } else {
                let to = raw::map(0, SKIPPED * PAGE, raw::READ_WRITE, raw::PRIVATE, -1);
                let to = to.expect("mmap");
                let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
                raw::remap(at, SKIPPED * PAGE, SKIPPED * PAGE, flags, to).expect("mremap");
                check_in_order(to, 0..SKIPPED);
                raw::unmap(to, SKIPPED * PAGE).expect("munmap");
                raw::unmap(at + SKIPPED * PAGE, (PAGES - SKIPPED) * PAGE).expect("munmap");
            }
            match raw::wait(child) {
                0 => {}
                status => super::wrong(&format!("a child ended so: {status:#x}")),
            }
        }
        is_over.store(true, Ordering::Relaxed);
    });
}

/// Children that end before the next one comes.
fn forks_in_turn() {
    let at = filled();
    thread::sleep(Duration::from_millis(200));
    for _ in 0..400 {
        match raw::fork() {
            0 => raw::exit(0),
            child => assert_eq!(raw::wait(child), 0),
        }
    }
    check(at);
}

/// A child drops pages as the first that it does, and for long. Its other pages leave all the same.
fn child_changes() {
    let small = raw::map(0, 64 * PAGE, raw::READ_WRITE, raw::PRIVATE, -1).expect("mmap");
    (0..64).for_each(|page| raw::page(small + page * PAGE)[0] = 1);
    let at = filled();
    let child = raw::fork();
    if child != 0 {
        assert_eq!(raw::wait(child), 0);
        return check(at);
    }
    for round in 0..2000 {
        raw::advise(small + round % 64 * PAGE, PAGE, libc::MADV_DONTNEED).expect("madvise");
    }
    (0..PAGES).for_each(|page| raw::page(at + page * PAGE)[65] = 1);
    await_leaving();
    if (0..PAGES).any(|page| raw::page(at + page * PAGE)[65] != 1) {
        super::wrong("what was written is not there");
    }
}

/// Pages of memory of its own that this process has resident.
fn resident_pages() -> usize {
    let text = std::fs::read_to_string("/proc/self/statm").expect("statm");
    let numbers: Vec<usize> = text.split(' ').map_while(|number| number.parse().ok()).collect();
    numbers[1] - numbers[2]
}

/// A page moved a moment ago is gone if a growing page is moved over it.
fn moves_over_moves() {
    const LONG: usize = 32;
    let at = filled();
    check(at);
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
    for first in (0..PAGES - LONG).step_by(LONG + 1) {
        let to = raw::map(0, LONG * PAGE, libc::PROT_NONE, raw::PRIVATE, -1).expect("mmap");
        let (long, one) = (at + first * PAGE, at + (first + LONG) * PAGE);
        raw::remap(long, LONG * PAGE, LONG * PAGE, flags, to).expect("mremap");
        raw::remap(one, PAGE, LONG * PAGE, flags, to).expect("mremap");
        let is_right = |page: usize| match page {
            0 => raw::page(to)[0] == word(first + LONG),
            _ => raw::page(to + page * PAGE).iter().all(|&word| word == 0),
        };
        if let Some(page) = (0..LONG).find(|&page| !is_right(page)) {
            super::wrong(&format!("page {page} is wrong after moves from page {first}"));
        }
    }
}

/// A mapping that grows to addresses which another thread has just unmapped after a move has zeros
/// there. The other thread seldom gets to report it before.
fn grows_over() {
    const PART: usize = 8;
    const BYTES: usize = PART * PAGE;
    let at = filled();
    check(at);
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
    let (ask, asked) = mpsc::channel();
    let (tell, told) = mpsc::channel();
    thread::spawn(move || {
        raw::run_little();
        for there in asked {
            raw::remap(there + BYTES, BYTES, BYTES, flags, there).expect("mremap");
            raw::unmap(there, BYTES).expect("munmap");
            tell.send(()).expect("who asked");
        }
    });
    for first in (0..PAGES - 3 * PART).step_by(3 * PART) {
        let below = at + first * PAGE;
        ask.send(below + BYTES).expect("who does it");
        while raw::remap(below, BYTES, 2 * BYTES, 0, 0).is_err() {
            thread::sleep(Duration::from_micros(2));
        }
        for page in PART..2 * PART {
            if raw::page(below + page * PAGE).iter().any(|&word| word != 0) {
                super::wrong(&format!("page {} is not zeros", first + page));
            }
        }
        told.recv().expect("who did it");
    }
}

/// Where the kernel has begun to unmap, and then cannot, all is as before.
fn cannot_unmap() {
    let at = filled();
    check(at);
    raw::limit(libc::RLIMIT_AS, 2 << 30);
    let flags = raw::PRIVATE | libc::MAP_FIXED;
    let errno = raw::map(at, 1 << 32, raw::READ_WRITE, flags, -1).expect_err("above the limit");
    assert_eq!(errno, libc::ENOMEM);
    check(at);
}

/// Guards within a mapping (Linux 6.13), as glibc 2.42 has them below stacks: what is filled along
/// with a page that was touched leaves them.
fn guards_stay() {
    const GUARD_INSTALL: i32 = 102;
    const APART: usize = 64;
    let at = filled();
    let guards = || (0..PAGES).skip(APART - 1).step_by(APART);
    for guard in guards() {
        match raw::advise(at + guard * PAGE, PAGE, GUARD_INSTALL) {
            Err(libc::EINVAL) => return println!("this kernel has no guards"),
            done => done.expect("MADV_GUARD_INSTALL"),
        }
    }
    let zeros = File::open("/dev/zero").unwrap();
    let check_guards = || {
        let is_guard = |guard: usize| raw::read(zeros.as_raw_fd(), at + guard * PAGE, 1) == -1;
        let gone = guards().filter(|guard| !is_guard(*guard)).count();
        if gone > 0 {
            super::wrong(&format!("{gone} guards are gone"));
        }
    };
    check_guards();
    let others = || (0..PAGES).filter(|page| page % APART != APART - 1);
    check_in_order(at, others());
    check_guards();
    for page in others() {
        raw::advise(at + page * PAGE, PAGE, libc::MADV_DONTNEED).expect("MADV_DONTNEED");
    }
    others().for_each(|page| raw::page(at + page * PAGE)[0] = 1);
    check_guards();
}

/// Where its memory is, and the process that it has it from.
static OUTLIVING: AtomicUsize = AtomicUsize::new(0);
static OUTLIVED: AtomicI32 = AtomicI32::new(0);

/// Reads memory whose process has ended.
extern "C" fn outlive(_: *mut libc::c_void) -> i32 {
    while raw::parent() == OUTLIVED.load(Ordering::Relaxed) {}
    thread::sleep(Duration::from_millis(600));
    let at = OUTLIVING.load(Ordering::Relaxed);
    let read = (0..PAGES).filter(|page| raw::page(at + page * PAGE)[0] != word(*page)).count();
    raw::write(1, if read > 0 { b"zeros" } else { b"right" }.as_ptr().addr(), 5);
    raw::exit(0)
}

/// A thread that runs little moves memory, and is held up in the middle of it, while others
/// touch new memory just below.
fn moves_take_long() {
    const NEW: usize = 1024;
    let room = raw::map(0, (NEW + PAGES) * PAGE, libc::PROT_NONE, raw::PRIVATE, -1).expect("mmap");
    let (new, to) = (room, room + NEW * PAGE);
    raw::protect(new, NEW * PAGE, raw::READ_WRITE).expect("mprotect");
    let at = filled();
    let is_over = AtomicBool::new(false);
    let is_over = &is_over;
    let spinning = raw::processors() as usize * 3;
    // A thread that starts maps memory, and nobody may where this is moved back to.
    let have_started = &Barrier::new(spinning + 2);
    thread::scope(|scope| {
        for _ in 0..spinning {
            scope.spawn(move || {
                have_started.wait();
                while !is_over.load(Ordering::Relaxed) {}
            });
        }
        scope.spawn(move || {
            have_started.wait();
            while !is_over.load(Ordering::Relaxed) {
                for page in 0..NEW {
                    raw::page(new + page * PAGE)[0] = 1;
                    thread::sleep(Duration::from_micros(500));
                }
                raw::advise(new, NEW * PAGE, libc::MADV_DONTNEED).expect("madvise");
            }
        });
        scope.spawn(move || {
            raw::run_little();
            have_started.wait();
            let fixed = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
            for _ in 0..8 {
                raw::remap(at, PAGES * PAGE, PAGES * PAGE, fixed, to).expect("mremap");
                check_in_order(to, (0..PAGES).step_by(97));
                raw::remap(to, PAGES * PAGE, PAGES * PAGE, fixed, at).expect("mremap");
            }
            is_over.store(true, Ordering::Relaxed);
        });
    });
    check(at);
}

/// A child of a system call, without what the C library does at a fork, forks by the library.
fn forks_in_forks() {
    let at = filled();
    (0..10).for_each(|_| check_in_grandchild(raw::fork_directly, at));
    check(at);
}

/// A child by this fork forks at once; the grandchild checks the memory that was filled.
fn check_in_grandchild(fork: fn() -> i32, at: usize) {
    let child = fork();
    if child == 0 {
        let grandchild = raw::fork();
        if grandchild == 0 {
            check(at);
            raw::exit(0);
        }
        raw::exit(raw::wait(grandchild));
    }
    let status = raw::wait(child);
    if status != 0 {
        super::wrong(&format!("a child that forks: {status:#x}"));
    }
}

/// Children that fork at once, while another thread of their parent changes mappings.
fn forks_at_once() {
    let at = filled();
    let is_over = AtomicBool::new(false);
    let change = || {
        let few = raw::map(0, 64 * PAGE, raw::READ_WRITE, raw::PRIVATE, -1).expect("mmap");
        (0..64).for_each(|page| raw::page(few + page * PAGE)[0] = 1);
        raw::unmap(few, 64 * PAGE).expect("munmap");
    };
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                change()
            }
        });
        (0..20).for_each(|_| check_in_grandchild(raw::fork, at));
        is_over.store(true, Ordering::Relaxed);
    });
}

/// Parents that end as soon as they have forked: what they have is their children's.
fn parents_end() {
    let at = filled();
    let ends = raw::pipe();
    for generation in 0..20_u64 {
        if raw::fork() != 0 {
            if generation > 0 {
                raw::exit(0);
            }
            // Of the first, the last child: nobody else can wait for that.
            raw::close(ends[1]);
            let mut said = 0_u64;
            raw::read(ends[0], (&raw mut said).expose_provenance(), 8);
            if said != 20 {
                super::wrong(&format!("{said} of the last child"));
            }
            return check(at);
        }
    }
    check(at);
    let said = 20_u64;
    raw::write(ends[1], (&raw const said).expose_provenance(), 8);
    raw::exit(0);
}

/// One page of eight does not shrink, which a pool may not take: it stays, and children of each
/// kind of fork have it. (Of one by system call alone, nothing leaves that has come back.)
fn unfit() {
    let at = raw::map(0, PAGES * PAGE, raw::READ_WRITE, raw::PRIVATE, -1).expect("mmap");
    let content = |page: usize| {
        let mut random = super::Random(page as u64);
        let count = if page.is_multiple_of(8) { raw::WORDS } else { 40 };
        (0..count).map(move |_| random.next())
    };
    for page in 0..PAGES {
        let words = raw::page(at + page * PAGE);
        words.iter_mut().zip(content(page)).for_each(|(word, content)| *word = content);
    }
    let check = |pages: Range<usize>| {
        for page in pages {
            let words = raw::page(at + page * PAGE);
            if !content(page).zip(&*words).all(|(content, word)| content == *word) {
                super::wrong(&format!("page {page} of {PAGES} is wrong"));
            }
        }
    };
    await_leaving();
    check(0..PAGES);
    for (fork, pages) in [(raw::fork as fn() -> i32, 0..PAGES), (raw::fork_directly, 0..512)] {
        for _ in 0..2 {
            let child = fork();
            check(pages.clone());
            match child {
                0 => raw::exit(0),
                _ if raw::wait(child) != 0 => super::wrong("a child failed"),
                _ => check(0..PAGES),
            }
        }
    }
}

/// A process and its child write to all memory that they share.
fn both_write() {
    let at = filled();
    let child = raw::fork();
    for round in 1..3 {
        (0..PAGES).for_each(|page| raw::page(at + page * PAGE)[65] = round);
        check(at);
    }
    let is_right = (0..PAGES).all(|page| raw::page(at + page * PAGE)[65] == 2);
    if !is_right {
        super::wrong("what was written is not there");
    }
    if child != 0 {
        assert_eq!(raw::wait(child), 0);
    }
}

/// Two processes that share nothing and fault in turn are answered by two threads.
fn workers() {
    let shared = raw::map(0, PAGE, raw::READ_WRITE, raw::SHARED, -1).expect("mmap");
    let is_over = raw::flag(shared);
    let child = raw::fork();
    let at = filled();
    let mut round = 0;
    let mut read_all = || {
        check_in_order(at, (0..PAGES).map(|at| (at * 4099 + round) % PAGES));
        round += 1;
    };
    if child == 0 {
        while !is_over.load(Ordering::Relaxed) {
            read_all();
        }
        raw::exit(0);
    }
    let tasks = format!("/proc/{}/task", std::os::unix::process::parent_id());
    let told = |task: &Path, name| fs::read_to_string(task.join(name)).unwrap_or_default();
    let is_at_work = |task: &Path| {
        let turns = told(task, "schedstat");
        let turns = turns.split_ascii_whitespace().nth(2).and_then(|turns| turns.parse().ok());
        told(task, "comm") == "uzswap-server\n" && turns.is_some_and(|turns: u64| turns > 100)
    };
    let processors = thread::available_parallelism().map_or(1, usize::from);
    let start = Instant::now();
    loop {
        read_all();
        let tasks = fs::read_dir(&tasks).expect("those of the supervisor");
        let at_work = tasks.filter(|task| is_at_work(&task.as_ref().unwrap().path())).count();
        if at_work >= processors.min(2) {
            break;
        }
        assert!(start.elapsed() < Duration::from_secs(60), "{at_work} are at work");
    }
    is_over.store(true, Ordering::Relaxed);
    assert_eq!(raw::wait(child), 0);
}

/// Children that read what they have of their parent take no memory for it.
fn many_read() {
    let at = filled();
    let children: Vec<i32> = (0..30)
        .map(|_| {
            let child = raw::fork();
            if child == 0 {
                for _ in 0..10 {
                    check(at);
                    thread::sleep(Duration::from_millis(20));
                }
                raw::exit(0);
            }
            child
        })
        .collect();
    children.into_iter().for_each(|child| assert_eq!(raw::wait(child), 0));
}

/// Children of a small process, which fill some memory of their own.
fn many_small() {
    const COUNT: usize = 512;
    const OWN: usize = 64;
    let content = |page: usize| word(page).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let fill = |count: usize| {
        let at = raw::map(0, count * PAGE, raw::READ_WRITE, raw::PRIVATE, -1).expect("mmap");
        (0..count).for_each(|page| raw::page(at + page * PAGE)[..64].fill(content(page)));
        at
    };
    let is_right = |at: usize, count: usize| {
        (0..count)
            .all(|page| raw::page(at + page * PAGE)[..64].iter().all(|&it| it == content(page)))
    };
    let at = fill(COUNT);
    let children = [(); 60].map(|()| {
        let child = raw::fork();
        if child == 0 {
            let own = fill(OWN);
            for _ in 0..20 {
                if !is_right(at, COUNT) || !is_right(own, OWN) {
                    super::wrong("a page of a small process is wrong");
                }
                thread::sleep(Duration::from_millis(50));
            }
            raw::exit(0);
        }
        child
    });
    children.into_iter().for_each(|child| assert_eq!(raw::wait(child), 0));
}

/// Children that make all their own that they have of their parent, and then cannot be compressed
/// to less than a third. They end, or are ended.
fn many_write() {
    const NOISE: usize = 512 / 3;
    let at = filled();
    let children = [1_u64, 2, 3, 4].map(|seed| {
        let child = raw::fork();
        if child == 0 {
            let mut words = SplitMix64::new(seed);
            for page in 0..PAGES {
                for word in &mut raw::page(at + page * PAGE)[..NOISE] {
                    *word = words.next_word();
                }
            }
            await_leaving();
            raw::exit(0);
        }
        child
    });
    children.into_iter().for_each(|child| assert!([0, 9].contains(&raw::wait(child))));
    check(at);
}

/// Children that are killed while their helpers are stopped: these have all that was shared.
fn killed_children() {
    let at = filled();
    let supervisor = raw::parent();
    let helpers = || -> BTreeSet<i32> {
        let tasks = fs::read_dir(format!("/proc/{supervisor}/task")).expect("/proc");
        let of_task = |task: io::Result<fs::DirEntry>| {
            fs::read_to_string(task.expect("a thread").path().join("children")).unwrap_or_default()
        };
        let children: String = tasks.map(of_task).collect();
        children.split_ascii_whitespace().map(|pid| pid.parse().expect("a number")).collect()
    };
    for _ in 0..6 {
        let before = helpers();
        let child = raw::fork();
        if child == 0 {
            loop {
                thread::park();
            }
        }
        let start = Instant::now();
        let helper = loop {
            if let Some(&helper) = helpers().difference(&before).next() {
                break helper;
            }
            assert!(start.elapsed() < Duration::from_secs(10), "the child has no helper");
        };
        raw::signal(helper, libc::SIGSTOP);
        raw::signal(child, libc::SIGKILL);
        assert_eq!(raw::wait(child), libc::SIGKILL);
        // Scans of the tree find it several times.
        thread::sleep(Duration::from_millis(400));
        raw::signal(helper, libc::SIGCONT);
    }
    check(at);
}

/// A child that is stopped now and then, while its pages leave: what it has stays for that time,
/// and is read by others.
fn stopped() {
    const STOPS: usize = 40;
    let ends = raw::pipe();
    let child = raw::fork();
    if child == 0 {
        let at = filled();
        raw::write(ends[1], (&raw const at).expose_provenance(), size_of::<usize>());
        loop {
            check(at);
        }
    }
    let mut there = 0_usize;
    raw::read(ends[0], (&raw mut there).expose_provenance(), size_of::<usize>());
    let at = filled();
    for stop in 0..STOPS {
        raw::signal(child, libc::SIGSTOP);
        raw::wait_stopped(child);
        check(at);
        let mut words = [0_u64; 64];
        for page in (stop..PAGES).step_by(STOPS) {
            let mut bytes = [0; 512];
            let read = raw::read_remote(child, there + page * PAGE, &mut bytes);
            assert_eq!(read, Ok(bytes.len()), "page {page} of what is stopped");
            for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(8)) {
                *word = u64::from_ne_bytes(bytes.try_into().expect("8 bytes"));
            }
            if words != [word(page); 64] {
                super::wrong(&format!("page {page} of what is stopped: {:#x}", words[0]));
            }
        }
        raw::signal(child, libc::SIGCONT);
        check(at);
    }
    raw::signal(child, libc::SIGKILL);
    assert_eq!(raw::wait(child), libc::SIGKILL);
}

/// One thread that faults all the time finds the processors that it may run on as they were.
fn processors_stay() {
    let at = filled();
    let before = raw::processors();
    for round in 0..40_000 {
        let page = round * 7919 % PAGES;
        if raw::page(at + page * PAGE)[0] != word(page) {
            super::wrong(&format!("page {page} is wrong"));
        }
        if raw::processors() != before {
            super::wrong(&format!("after {round} touches it may run elsewhere"));
        }
    }
}
