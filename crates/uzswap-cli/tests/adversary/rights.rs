//! Programs with memory of other rights than to be read and written, which leaves all the same.

use std::io::Write;
use std::ops::Range;
use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use super::raw::{self, PAGE};
use super::{Random, wrong};

const PAGES: usize = 8192;
const THREADS: usize = 4;
const READ_EXECUTE: i32 = libc::PROT_READ | libc::PROT_EXEC;
const ALL: i32 = raw::READ_WRITE | libc::PROT_EXEC;

/// What a page holds after so many writes to it.
fn word(page: usize, version: usize) -> u64 {
    0x0123_4567_89ab_cdef ^ (page as u64) << 20 ^ (version as u64) << 50
}

fn fill(at: usize, page: usize, version: usize) {
    let words = raw::page(at + page * PAGE);
    words[..64].fill(word(page, version));
    words[511] = !word(page, version);
}

fn check(at: usize, page: usize, version: usize) {
    let words = raw::page(at + page * PAGE);
    let expected = word(page, version);
    let is_right = words[..64].iter().all(|&found| found == expected) && words[511] == !expected;
    if !is_right || words[64] != 0 {
        wrong(&format!("page {page}, version {version} is wrong: {:#x}", words[0]));
    }
}

fn map(rights: i32) -> usize {
    raw::map(0, PAGES * PAGE, rights, raw::PRIVATE, -1).expect("mmap")
}

fn protect(at: usize, pages: Range<usize>, rights: i32) {
    raw::protect(at + pages.start * PAGE, pages.len() * PAGE, rights).expect("mprotect");
}

/// Memory that can be written and executed.
pub(crate) fn executable() {
    let at = map(ALL);
    (0..PAGES).for_each(|page| fill(at, page, 0));
    for version in 0..3 {
        for page in 0..PAGES {
            check(at, page, version);
            fill(at, page, version + 1);
        }
    }
}

/// Data that is read-only from when it was filled; in the end it is written again.
pub(crate) fn read_only() {
    let at = map(raw::READ_WRITE);
    (0..PAGES).for_each(|page| fill(at, page, 0));
    protect(at, 0..PAGES, raw::READ);
    (0..2).for_each(|_| (0..PAGES).for_each(|page| check(at, page, 0)));
    protect(at, 0..PAGES, raw::READ_WRITE);
    (0..PAGES).for_each(|page| fill(at, page, 1));
    (0..PAGES).for_each(|page| check(at, page, 1));
}

/// Memory that can only be written, as far as its mapping says.
pub(crate) fn write_only() {
    let at = map(libc::PROT_WRITE);
    (0..PAGES).for_each(|page| fill(at, page, 0));
    (0..PAGES).for_each(|page| fill(at, page, 1));
    protect(at, 0..PAGES, raw::READ);
    (0..PAGES).for_each(|page| check(at, page, 1));
}

/// Data that cannot be read, with such rights, as soon as it was filled, and can be in the end.
pub(crate) fn unreadable(rights: i32) {
    const PART: usize = 256;
    let at = map(raw::READ_WRITE);
    for first in (0..PAGES).step_by(PART) {
        (first..first + PART).for_each(|page| fill(at, page, 0));
        protect(at, first..first + PART, rights);
    }
    protect(at, 0..PAGES, raw::READ);
    (0..PAGES).for_each(|page| check(at, page, 0));
}

/// Code that was written before it may be executed, as just-in-time compilers do it. Threads call
/// it, while others write it anew.
pub(crate) fn code() {
    const CODE_PAGES: usize = PAGES / 2;
    let at = map(raw::READ_WRITE);
    // mov eax, version; ret
    let write = |page: usize, version: usize| {
        fill(at, page, 0);
        let start = page * PAGE + 1024;
        let code = raw::bytes(at + start, 6);
        code[0] = 0xb8;
        code[1..5].copy_from_slice(&(version as u32).to_ne_bytes());
        code[5] = 0xc3;
    };
    (0..CODE_PAGES).for_each(|page| write(page, page));
    protect(at, 0..CODE_PAGES, READ_EXECUTE);
    thread::scope(|scope| {
        for number in 0..THREADS {
            scope.spawn(move || {
                let mut random = Random::new(number as u64);
                let mut versions = Vec::from_iter(0..CODE_PAGES);
                for step in 0..20_000 {
                    // Each writes pages of its own, and calls all of its own.
                    let page = random.below(CODE_PAGES / THREADS) * THREADS + number;
                    if step % 16 == 0 {
                        protect(at, page..page + 1, raw::READ_WRITE);
                        versions[page] = step;
                        write(page, step);
                        protect(at, page..page + 1, READ_EXECUTE);
                    }
                    let found = raw::call(at + page * PAGE + 1024);
                    if found as usize != versions[page] {
                        wrong(&format!("the code of page {page} returns {found}"));
                    }
                }
            });
        }
    });
}

/// Memory that the kernel writes to later, at the pages that it had at first. Some of it has such
/// rights by then. Ends at once where the kernel has no such buffers for this user.
pub(crate) fn pinned(rights: i32) {
    const PINNED: usize = 1024;
    let mut file = tempfile::tempfile().unwrap();
    let at = map(raw::READ_WRITE);
    (0..PINNED).for_each(|page| fill(at, page, 1));
    file.write_all(raw::bytes(at, PINNED * PAGE)).unwrap();
    (0..PAGES).for_each(|page| fill(at, page, 0));
    let Ok(pinned) = raw::Pinned::new(at, PINNED * PAGE) else { return };
    (0..PINNED).step_by(8).for_each(|page| protect(at, page..page + 1, rights));
    (0..2).for_each(|_| (PINNED..PAGES).for_each(|page| check(at, page, 0)));
    assert_eq!(pinned.read(&file).unwrap(), PINNED * PAGE);
    (0..PINNED).for_each(|page| check(at, page, 1));
    (PINNED..PAGES).for_each(|page| check(at, page, 0));
}

/// Memory that is read-only for moments. Right after, the kernel holds it for I/O, and restores
/// what the program has overwritten meanwhile.
pub(crate) fn pinned_after_read_only() {
    const EACH: usize = PAGES / THREADS;
    const PINNED: usize = EACH / 2;
    let at = map(raw::READ_WRITE);
    let of_thread = |thread: usize| {
        let at = at + thread * EACH * PAGE;
        let mut file = tempfile::tempfile().unwrap();
        (0..EACH).for_each(|page| fill(at, page, 1));
        file.write_all(raw::bytes(at, PINNED * PAGE)).unwrap();
        let mut random = Random::new(thread as u64);
        for _ in 0..60 {
            protect(at, 0..PINNED, raw::READ);
            (0..64).for_each(|_| check(at, PINNED + random.below(PINNED), 1));
            protect(at, 0..PINNED, raw::READ_WRITE);
            let Ok(pinned) = raw::Pinned::new(at, PINNED * PAGE) else { return };
            (0..64).for_each(|_| check(at, PINNED + random.below(PINNED), 1));
            (0..PINNED).for_each(|page| fill(at, page, 2));
            assert_eq!(pinned.read(&file).unwrap(), PINNED * PAGE);
            (0..PINNED).for_each(|page| check(at, page, 1));
        }
    };
    thread::scope(|scope| {
        (0..THREADS).for_each(|thread| drop(scope.spawn(move || of_thread(thread))))
    });
}

/// A program with as many mappings as the kernel allows by default, where that is so.
pub(crate) fn no_more_mappings() {
    const MAPPINGS: usize = 65_600;
    let at = map(raw::READ_WRITE);
    let many = raw::map(0, MAPPINGS * PAGE, raw::READ_WRITE, raw::PRIVATE, -1).expect("mmap");
    let _ = (0..MAPPINGS)
        .step_by(2)
        .try_for_each(|page| raw::protect(many + page * PAGE, PAGE, raw::READ));
    for version in 0..2 {
        (0..PAGES).for_each(|page| fill(at, page, version));
        (0..PAGES).for_each(|page| check(at, page, version));
    }
}

static BARRIER_AT: AtomicUsize = AtomicUsize::new(0);

/// The first write to a page that the collector has protected.
extern "C" fn first_write(_: i32, info: &libc::siginfo_t) {
    let (at, found) = (BARRIER_AT.load(Ordering::Relaxed), raw::fault_address(info));
    if !(at..at + PAGES * PAGE).contains(&found) {
        wrong(&format!("a fault at {found:#x}"));
    }
    if raw::protect(found / PAGE * PAGE, PAGE, raw::READ_WRITE).is_err() {
        wrong("mprotect in the handler");
    }
}

/// Protects all from writes again and again, while threads write, each to pages of its own.
pub(crate) fn write_barrier() {
    let at = map(raw::READ_WRITE);
    BARRIER_AT.store(at, Ordering::Relaxed);
    raw::handle_faults(first_write);
    (0..PAGES).for_each(|page| fill(at, page, 0));
    let round = Barrier::new(THREADS + 1);
    thread::scope(|scope| {
        for number in 0..THREADS {
            let round = &round;
            scope.spawn(move || {
                let own = || (0..PAGES).skip(number).step_by(THREADS);
                let mut random = Random::new(number as u64);
                let mut versions = vec![0; PAGES];
                for _ in 0..2 {
                    round.wait();
                    for _ in 0..PAGES / THREADS / 4 {
                        let page = random.below(PAGES / THREADS) * THREADS + number;
                        versions[page] += 1;
                        fill(at, page, versions[page]);
                    }
                    own().for_each(|page| check(at, page, versions[page]));
                }
            });
        }
        for _ in 0..2 {
            round.wait();
            // While they write: each has written some pages by then.
            protect(at, 0..PAGES, raw::READ);
        }
    });
}

/// Grows in steps, beside barriers that make each page a mapping of its own.
pub(crate) fn grow_beside_barriers() {
    const STEPS: usize = 8;
    let barriers = map(raw::READ_WRITE);
    (0..PAGES).for_each(|page| fill(barriers, page, 0));
    (0..PAGES).step_by(2).for_each(|page| protect(barriers, page..page + 1, raw::READ));
    let step = || {
        let at = raw::map(0, PAGES / 4 * PAGE, raw::READ_WRITE, raw::PRIVATE, -1).expect("mmap");
        (0..PAGES / 4).for_each(|page| fill(at, page, 1));
        at
    };
    let steps: Vec<usize> = (0..STEPS).map(|_| step()).collect();
    (0..PAGES).for_each(|page| check(barriers, page, 0));
    for at in steps {
        (0..PAGES / 4).for_each(|page| check(at, page, 1));
    }
}

/// Memory that is filled at once, below or above 16,384 mappings that nobody has looked at yet. The
/// kernel maps from the top down.
pub(crate) fn grow_beside_unknown(is_below: bool) {
    let large = || raw::map(0, 2 * PAGES * PAGE, raw::READ_WRITE, raw::PRIVATE, -1).expect("mmap");
    let above = (!is_below).then(large);
    for _ in 0..2 {
        let pieces = map(raw::READ);
        (0..PAGES).step_by(2).for_each(|page| protect(pieces, page..page + 1, raw::READ_WRITE));
    }
    let at = above.unwrap_or_else(large);
    (0..2 * PAGES).for_each(|page| fill(at, page, 1));
    (0..2 * PAGES).for_each(|page| check(at, page, 1));
}

/// Threads change the rights of their memory all the time, and map, unmap and move it: whatever
/// leaves at that moment.
pub(crate) fn rights_change() {
    thread::scope(|scope| {
        (0..THREADS).for_each(|number| drop(scope.spawn(move || Changing::new(number).run())));
    });
}

/// A thread's memory: what each page holds, and its rights.
struct Changing {
    random: Random,
    at: usize,
    versions: Vec<Option<usize>>,
    rights: Vec<i32>,
}

impl Changing {
    const PAGES: usize = PAGES / THREADS;

    fn new(number: usize) -> Changing {
        let at = raw::map(0, Changing::PAGES * PAGE, ALL, raw::PRIVATE, -1).expect("mmap");
        let mut new = Changing {
            random: Random::new(number as u64 + 100),
            at,
            versions: vec![None; Changing::PAGES],
            rights: vec![ALL; Changing::PAGES],
        };
        new.fill(0..Changing::PAGES);
        new
    }

    fn fill(&mut self, pages: Range<usize>) {
        for page in pages {
            let version = self.versions[page].map_or(0, |version| (version + 1) % 1000);
            fill(self.at, page, version);
            self.versions[page] = Some(version);
        }
    }

    fn check(&self, pages: Range<usize>) {
        for page in pages {
            match self.versions[page] {
                Some(version) => check(self.at, page, version),
                None if raw::page(self.at + page * PAGE).iter().all(|word| *word == 0) => {}
                None => wrong(&format!("page {page} is not zero")),
            }
        }
    }

    fn set(&mut self, pages: Range<usize>, rights: i32) {
        protect(self.at, pages.clone(), rights);
        self.rights[pages].fill(rights);
    }

    /// Makes readable what is not.
    fn read(&mut self, pages: Range<usize>) {
        for page in pages.clone() {
            if self.rights[page] & raw::READ == 0 {
                self.set(page..page + 1, raw::READ);
            }
        }
        self.check(pages);
    }

    fn run(mut self) {
        const KINDS: [i32; 5] = [raw::READ, READ_EXECUTE, libc::PROT_NONE, raw::READ_WRITE, ALL];
        for _ in 0..400 {
            let first = self.random.below(Changing::PAGES);
            let end = (first + 1 + self.random.below(64)).min(Changing::PAGES);
            let part = first..end;
            let place = self.at + first * PAGE;
            match self.random.below(64) {
                0..24 => self.read(part),
                24..44 => {
                    let rights = KINDS[self.random.below(KINDS.len())];
                    self.set(part, rights);
                }
                44..52 => {
                    self.set(part.clone(), raw::READ_WRITE);
                    self.fill(part);
                }
                // Something else is there at once, and is filled.
                52..56 => {
                    let flags = raw::PRIVATE | libc::MAP_FIXED;
                    raw::map(place, part.len() * PAGE, ALL, flags, -1).expect("mmap");
                    self.versions[part.clone()].fill(None);
                    self.rights[part.clone()].fill(ALL);
                    self.fill(part.start..part.start + part.len() / 2);
                }
                56..60 => {
                    self.versions[part.clone()].fill(None);
                    raw::advise(place, part.len() * PAGE, libc::MADV_DONTNEED).expect("madvise");
                }
                60..62 => self.renew(),
                _ => {
                    self.set(0..Changing::PAGES, raw::READ);
                    self.check(0..Changing::PAGES);
                }
            }
        }
        self.read(0..Changing::PAGES);
    }

    /// All of it is new, and moves to where nothing was.
    fn renew(&mut self) {
        let bytes = Changing::PAGES * PAGE;
        self.set(0..Changing::PAGES, raw::READ);
        raw::unmap(self.at, bytes).expect("munmap");
        // Another thread may map something there at once.
        self.at = raw::map(0, bytes, ALL, raw::PRIVATE, -1).expect("mmap");
        self.versions.fill(None);
        self.rights.fill(ALL);
        self.fill(0..Changing::PAGES);
        let rights = KEPT[self.random.below(KEPT.len())];
        self.set(0..Changing::PAGES, rights);
        self.check(0..Changing::PAGES);
        let to = raw::map(0, bytes, libc::PROT_NONE, raw::PRIVATE, -1).expect("mmap");
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        match raw::remap(self.at, bytes, bytes, flags, to) {
            Ok(to) => self.at = to,
            // It was joined with a neighbour and is registered in part.
            Err(libc::EFAULT) => raw::unmap(to, bytes).expect("munmap"),
            Err(errno) => wrong(&format!("mremap {errno}")),
        }
    }
}

const KEPT: [i32; 2] = [raw::READ, ALL];

/// Children of a fork have read-only memory in common with their parent, and change some of it.
pub(crate) fn forked() {
    let at = map(raw::READ_WRITE);
    (0..PAGES).for_each(|page| fill(at, page, 0));
    protect(at, 0..PAGES, raw::READ);
    let children: Vec<i32> = (1..=3)
        .map(|number| match raw::fork() {
            0 => {
                (0..PAGES).for_each(|page| check(at, page, 0));
                let own = number * 1000..number * 1000 + 500;
                protect(at, own.clone(), raw::READ_WRITE);
                own.clone().for_each(|page| fill(at, page, number));
                for page in 0..PAGES {
                    check(at, page, if own.contains(&page) { number } else { 0 });
                }
                raw::exit(0);
            }
            pid => pid,
        })
        .collect();
    (0..2).for_each(|_| (0..PAGES).for_each(|page| check(at, page, 0)));
    for pid in children {
        let status = raw::wait(pid);
        if status != 0 {
            wrong(&format!("a child ended with {status}"));
        }
    }
}
