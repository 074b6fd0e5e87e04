//! The adversary: a program that changes its memory in every way a program may, and checks every
//! byte.
//!
//! Each thread has regions of its own; each page of a region has a tag, from which all its bytes
//! follow. A page that is not as it should be ends the program with code 99 and a line that says
//! which, and what the thread had done before.

pub(crate) mod raw;
mod rights;
pub(crate) mod scenarios;

use std::cell::RefCell;
use std::collections::VecDeque;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use raw::{PAGE, WORDS, Words};

/// What a failed check ends with.
pub(crate) const WRONG: i32 = 99;

/// What a page holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Content {
    Zeros,
    Tag(u64),
    /// Freed, but perhaps not yet.
    ZerosOr(u64),
}

/// Memory of one kind.
#[derive(Debug)]
struct Region {
    at: usize,
    pages: Vec<Content>,
    /// Memory that a forked child must see.
    in_child: InChild,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum InChild {
    Copy,
    Nothing,
    Zeros,
}

impl Region {
    fn bytes(&self) -> usize {
        self.pages.len() * PAGE
    }

    fn page(&self, number: usize) -> usize {
        self.at + number * PAGE
    }
}

/// Memory from malloc.
#[derive(Debug)]
struct Object {
    bytes: Vec<u8>,
    tag: u64,
}

/// Numbers that follow from a seed: splitmix64.
#[derive(Debug, Clone)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Random {
        Random(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    pub(crate) fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    fn one_in(&mut self, count: usize) -> bool {
        self.below(count) == 0
    }
}

fn mix(number: u64) -> u64 {
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

/// A word of the page of a tag: pages of one word, pages that compress, pages that do not.
fn word(tag: u64, at: usize) -> u64 {
    match tag % 8 {
        0 => mix(tag),
        1 if at >= WORDS / 2 => 0,
        2 => mix((tag << 10) | at as u64),
        _ => mix((tag << 10) | (at as u64 / 24)),
    }
}

/// Ends the process; nothing of it can be trusted any more.
fn wrong(text: &str) -> ! {
    let text = format!("adversary: {text}\n");
    raw::write(2, text.as_ptr().expose_provenance(), text.len());
    raw::exit(WRONG)
}

/// Operations to leave out, by name: to find out what a fault needs.
fn is_left_out(name: &str) -> bool {
    static LEFT_OUT: std::sync::OnceLock<String> = std::sync::OnceLock::new();
    let read = || std::env::var("UZSWAP_ADVERSARY_WITHOUT").unwrap_or_default();
    LEFT_OUT.get_or_init(read).split(',').any(|left_out| left_out == name)
}

static STEPS: AtomicU64 = AtomicU64::new(0);
static THREADS_ENDED: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// For the handler of signals: the address of a page and its tag.
    static FOR_HANDLER: std::cell::Cell<(usize, u64)> = const { std::cell::Cell::new((0, 0)) };

    /// What this thread has done last.
    static HISTORY: RefCell<VecDeque<String>> = const { RefCell::new(VecDeque::new()) };
}

fn history() -> String {
    let text = |history: &mut VecDeque<String>| history.make_contiguous().join("; ");
    HISTORY.with(|history| history.try_borrow_mut().map_or(String::new(), |mut had| text(&mut had)))
}

/// Memory that a thread takes for its own is not there.
extern "C" fn not_there(_: i32, info: &libc::siginfo_t) {
    let (process, address) = (std::process::id(), raw::fault_address(info));
    wrong(&format!("process {process}: nothing is at {address:#x}; before: {}", history()));
}

extern "C" fn handler(_: i32) {
    let (address, tag) = FOR_HANDLER.get();
    if address != 0 && first_difference(raw::page(address), Content::Tag(tag)).is_some() {
        wrong("a signal handler found a wrong page");
    }
}

/// The first word that is not as it should be.
fn first_difference(page: &Words, content: Content) -> Option<usize> {
    match content {
        Content::Zeros => page.iter().position(|&found| found != 0),
        Content::Tag(tag) => (0..WORDS).find(|&at| page[at] != word(tag, at)),
        Content::ZerosOr(tag) => {
            // The kernel may drop the page while this looks at it.
            let dropped = first_difference(page, Content::Tag(tag))?;
            (dropped..WORDS).find(|&at| page[at] != 0)
        }
    }
}

/// One thread of the adversary.
struct Thread {
    seed: u64,
    number: usize,
    random: Random,
    regions: Vec<Region>,
    shared: Vec<Region>,
    objects: Vec<Object>,
    file: i32,
    pages: usize,
    pages_max: usize,
    tag: u64,
    is_child: bool,
}

/// Runs the adversary: its arguments are seed, seconds, threads, and MiB in all.
pub(crate) fn run(arguments: &[String]) -> ! {
    let number = |at: usize| arguments[at].parse::<f64>().unwrap_or_else(|_| wrong("arguments"));
    let (seed, threads) = (number(0) as u64, number(2) as usize);
    let end = Instant::now() + Duration::from_secs_f64(number(1));
    let pages_max = (number(3) * 256.0) as usize / threads;
    raw::handle(libc::SIGUSR1, handler);
    raw::handle_faults(not_there);
    let workers: Vec<_> = (0..threads)
        .map(|number| {
            let work = move || {
                let mut thread = Thread::new(seed, number, pages_max);
                while Instant::now() < end {
                    thread.step();
                    STEPS.fetch_add(1, Ordering::Relaxed);
                }
                thread.check_all();
                raw::no_signal_stack();
                THREADS_ENDED.fetch_add(1, Ordering::Relaxed);
            };
            std::thread::Builder::new().stack_size(4 << 20).spawn(work).unwrap()
        })
        .collect();
    for worker in workers {
        if worker.join().is_err() {
            wrong("a thread panicked");
        }
    }
    println!("{} steps", STEPS.load(Ordering::Relaxed));
    std::process::exit(0)
}

impl Thread {
    fn new(seed: u64, number: usize, pages_max: usize) -> Thread {
        let random = Random(seed ^ (number as u64) << 32);
        let stack = raw::map(0, 16 * PAGE, raw::READ_WRITE, raw::PRIVATE, -1).unwrap();
        raw::signal_stack(stack, 16 * PAGE);
        Thread {
            seed,
            number,
            random,
            regions: Vec::new(),
            shared: Vec::new(),
            objects: Vec::new(),
            file: raw::file(),
            pages: 0,
            pages_max,
            tag: (number as u64) << 40,
            is_child: false,
        }
    }

    fn note(&self, text: String) {
        HISTORY.with_borrow_mut(|history| {
            if history.len() == 12 {
                history.pop_front();
            }
            history.push_back(text);
        });
    }

    fn fail(&self, text: &str) -> ! {
        wrong(&format!(
            "seed {} thread {} process {}{}: {text}; before: {}",
            self.seed,
            self.number,
            std::process::id(),
            if self.is_child { " (a child)" } else { "" },
            history()
        ))
    }

    fn check(&self, address: usize, content: Content, what: &str) {
        let page = raw::page(address);
        let Some(at) = first_difference(page, content) else { return };
        let expected = match content {
            Content::Zeros => 0,
            Content::Tag(tag) | Content::ZerosOr(tag) => word(tag, at),
        };
        let found = page[at];
        let later = first_difference(page, content).is_none();
        let zeros = first_difference(page, Content::Zeros).is_none();
        self.fail(&format!(
            "{what}: page {address:#x} word {at}: {found:#x} and not {expected:#x} ({content:?}); \
             all zeros: {zeros}; right when looked at again: {later}"
        ));
    }

    fn fill(&mut self, address: usize) -> Content {
        self.tag += 1;
        let tag = self.tag;
        for (at, room) in raw::page(address).iter_mut().enumerate() {
            *room = word(tag, at);
        }
        Content::Tag(tag)
    }

    /// A region and a part of it, as page numbers.
    fn part(&mut self, most: usize) -> Option<(usize, usize, usize)> {
        if self.regions.is_empty() {
            return None;
        }
        let region = self.random.below(self.regions.len());
        let pages = self.regions[region].pages.len();
        let first = self.random.below(pages);
        let count = 1 + self.random.below(most.min(pages - first));
        Some((region, first, first + count))
    }

    fn check_part(&mut self, region: usize, first: usize, end: usize, what: &str) {
        for number in first..end {
            let Region { pages, .. } = &self.regions[region];
            self.check(self.regions[region].page(number), pages[number], what);
        }
    }

    fn fill_part(&mut self, region: usize, first: usize, end: usize) {
        for number in first..end {
            let content = self.fill(self.regions[region].page(number));
            self.regions[region].pages[number] = content;
        }
    }

    fn check_all(&mut self) {
        for region in 0..self.regions.len() {
            self.check_part(region, 0, self.regions[region].pages.len(), "all");
        }
        for region in &self.shared {
            for (number, &content) in region.pages.iter().enumerate() {
                self.check(region.page(number), content, "shared");
            }
        }
        for object in 0..self.objects.len() {
            self.check_object(object);
        }
    }

    fn step(&mut self) {
        match self.random.below(100) {
            0..18 => self.touch(),
            18..30 => self.write(),
            30..42 => self.map(),
            42..47 => self.unmap(),
            47..50 => self.map_over(),
            50..58 => self.remap(),
            58..66 => self.advise(),
            66..70 => self.protect(),
            70..73 => self.lock(),
            73..80 => self.object(),
            80..86 => self.input_and_output(),
            86..88 => self.signal(),
            88..90 => self.recurse(),
            90..93 => self.short_thread(),
            93..95 => self.share(),
            95 => self.fork(0),
            96 => self.commands(),
            97 => self.remote(),
            98 => self.trace(),
            _ => self.walk(),
        }
    }

    /// Looks at pages here and there.
    fn touch(&mut self) {
        for _ in 0..8 {
            if let Some((region, first, end)) = self.part(8) {
                self.check_part(region, first, end, "touch");
            }
        }
    }

    /// Looks at a whole region.
    fn walk(&mut self) {
        if let Some((region, ..)) = self.part(1) {
            self.check_part(region, 0, self.regions[region].pages.len(), "walk");
        }
    }

    fn write(&mut self) {
        for _ in 0..4 {
            let Some((region, first, end)) = self.part(16) else { return };
            if self.random.one_in(2) {
                self.check_part(region, first, end, "before write");
            }
            self.fill_part(region, first, end);
        }
    }

    fn map(&mut self) {
        if self.pages >= self.pages_max {
            // The largest that is there goes.
            let whole = (0..self.regions.len()).max_by_key(|&at| self.regions[at].pages.len());
            let Some(region) = whole else { return };
            return self.unmap_part(region, 0, self.regions[region].pages.len());
        }
        let most = if self.random.one_in(4) { 1200 } else { 100 };
        let count = 1 + self.random.below(most);
        let at = match raw::map(0, count * PAGE, raw::READ_WRITE, raw::PRIVATE, -1) {
            Ok(at) => at,
            Err(errno) => self.fail(&format!("mmap {errno}")),
        };
        self.note(format!("map {at:#x}+{count:#x}"));
        if self.random.one_in(3) {
            let _ = raw::advise(at, count * PAGE, libc::MADV_HUGEPAGE);
        }
        self.pages += count;
        let pages = vec![Content::Zeros; count];
        self.regions.push(Region { at, pages, in_child: InChild::Copy });
        let region = self.regions.len() - 1;
        let filled = self.random.below(count + 1);
        self.fill_part(region, 0, filled);
    }

    fn unmap(&mut self) {
        let Some((region, first, end)) = self.part(64) else { return };
        match self.random.below(3) {
            0 => self.unmap_part(region, 0, self.regions[region].pages.len()),
            _ => self.unmap_part(region, first, end),
        }
    }

    fn unmap_part(&mut self, region: usize, first: usize, end: usize) {
        let (at, bytes) = (self.regions[region].page(first), (end - first) * PAGE);
        self.note(format!("unmap {at:#x}+{:#x}", end - first));
        if let Err(errno) = raw::unmap(at, bytes) {
            self.fail(&format!("munmap {errno}"));
        }
        self.cut(region, first, end);
        self.pages -= end - first;
    }

    /// Forgets a part of a region: what is left are two, one, or none. What is cut.
    fn cut(&mut self, region: usize, first: usize, end: usize) -> Vec<Content> {
        let Region { at, mut pages, in_child } = self.regions.swap_remove(region);
        let after = pages.split_off(end);
        let gone = pages.split_off(first);
        for (at, pages) in [(at, pages), (at + end * PAGE, after)] {
            if !pages.is_empty() {
                self.regions.push(Region { at, pages, in_child });
            }
        }
        gone
    }

    fn map_over(&mut self) {
        let Some((region, first, end)) = self.part(64) else { return };
        let at = self.regions[region].page(first);
        let flags = raw::PRIVATE | libc::MAP_FIXED;
        self.note(format!("map over {at:#x}+{:#x}", end - first));
        if let Err(errno) = raw::map(at, (end - first) * PAGE, raw::READ_WRITE, flags, -1) {
            self.fail(&format!("mmap over {errno}"));
        }
        // The part is as any other memory, for a fork.
        let in_child = self.regions[region].in_child;
        self.regions[region].pages[first..end].fill(Content::Zeros);
        if in_child != InChild::Copy {
            let pages = self.cut(region, first, end);
            self.regions.push(Region { at, pages, in_child: InChild::Copy });
            return;
        }
        self.check_part(region, first, end, "mapped over");
    }

    fn remap(&mut self) {
        if is_left_out("remap") {
            return;
        }
        let Some((region, ..)) = self.part(1) else { return };
        let (at, old) = (self.regions[region].at, self.regions[region].pages.len());
        // A part of a mapping can be moved as well as all of it; several cannot at once.
        let in_child = self.regions[region].in_child;
        if in_child != InChild::Copy {
            return;
        }
        let may_move = libc::MREMAP_MAYMOVE;
        let (bytes, kind) = (old * PAGE, self.random.below(5));
        let mut over = None;
        let moved = match kind {
            0 => {
                let new = old + 1 + self.random.below(64);
                raw::remap(at, bytes, new * PAGE, may_move, 0).map(|to| (to, new))
            }
            1 => {
                let new = 1 + self.random.below(old);
                raw::remap(at, bytes, new * PAGE, may_move, 0).map(|to| (to, new))
            }
            2 | 3 => {
                // To where something else is. Not as long as before: of several mappings at once,
                // the kernel would move the first ones and refuse the rest.
                let new = 1 + self.random.below(old + 16);
                let new = if new == old { new + 1 } else { new };
                over = (kind == 3).then(|| self.room_elsewhere(region, new)).flatten();
                let to = over.unwrap_or_else(|| {
                    let to = raw::map(0, new * PAGE, raw::READ_WRITE, raw::PRIVATE, -1).unwrap();
                    raw::page(to)[0] = 1;
                    raw::page(to + (new - 1) * PAGE)[7] = 1;
                    to
                });
                let flags = may_move | libc::MREMAP_FIXED;
                raw::remap(at, bytes, new * PAGE, flags, to).map(|to| (to, new))
            }
            _ => {
                let flags = may_move | libc::MREMAP_DONTUNMAP;
                raw::remap(at, bytes, bytes, flags, 0).map(|to| (to, old))
            }
        };
        match moved {
            Ok((to, new)) => {
                self.note(format!("remap {at:#x}+{old:#x} to {to:#x}+{new:#x} kind {kind}"));
                let mut pages = std::mem::take(&mut self.regions[region].pages);
                if kind == 4 {
                    let pages = vec![Content::Zeros; old];
                    self.regions.push(Region { at, pages, in_child });
                    self.pages += old;
                }
                pages.resize(new, Content::Zeros);
                self.pages = self.pages + new - old;
                self.regions[region].at = to;
                self.regions[region].pages = pages;
                let region = over.map_or(region, |over| self.moved_over(region, over, new));
                if self.random.one_in(2) {
                    self.check_part(region, 0, new, "remapped");
                    if kind == 4 {
                        self.check_part(self.regions.len() - 1, 0, old, "left by remap");
                    }
                }
            }
            // Several mappings at once.
            Err(errno) if errno == libc::EFAULT || errno == libc::EINVAL => {
                self.note(format!("remap {at:#x}+{old:#x} refused {errno}"));
                self.check_part(region, 0, old, "not remapped");
                self.unmap_part(region, 0, old);
            }
            Err(errno) => self.fail(&format!("mremap {at:#x}+{old:#x} kind {kind}: {errno}")),
        }
    }

    /// So many pages of another region, for this one to be moved over.
    fn room_elsewhere(&mut self, region: usize, count: usize) -> Option<usize> {
        let (other, first, _) = self.part(1)?;
        let Region { pages, in_child, .. } = &self.regions[other];
        let is_room = other != region && first + count <= pages.len();
        (is_room && *in_child == InChild::Copy).then(|| self.regions[other].page(first))
    }

    /// A region has been moved over a part of another, which is cut. Where the region is now.
    fn moved_over(&mut self, region: usize, to: usize, count: usize) -> usize {
        let is_under = |(at, other): &(usize, &Region)| {
            *at != region && (other.at..other.at + other.bytes()).contains(&to)
        };
        let found = self.regions.iter().enumerate().find(is_under).map(|(at, _)| at);
        let under = found.expect("room in a region");
        let first = (to - self.regions[under].at) / PAGE;
        self.cut(under, first, first + count);
        self.pages -= count;
        let is_moved = |region: &Region| region.at == to && region.pages.len() == count;
        self.regions.iter().position(is_moved).expect("what was moved")
    }

    fn advise(&mut self) {
        let Some((region, first, end)) = self.part(64) else { return };
        let (at, bytes) = (self.regions[region].page(first), (end - first) * PAGE);
        let is_direct = self.random.one_in(2);
        let advise = if is_direct { raw::advise_directly } else { raw::advise };
        let kind = self.random.below(14);
        self.note(format!("advise {at:#x}+{:#x} kind {kind} direct {is_direct}", end - first));
        let told = match kind {
            0..=3 => {
                let told = advise(at, bytes, libc::MADV_DONTNEED);
                if told.is_ok() {
                    self.regions[region].pages[first..end].fill(Content::Zeros);
                    if self.random.one_in(2) {
                        self.check_part(region, first, end, "dropped");
                    }
                }
                told
            }
            4 | 5 => {
                let told = advise(at, bytes, libc::MADV_FREE);
                if told.is_ok() {
                    for content in &mut self.regions[region].pages[first..end] {
                        if let Content::Tag(tag) = *content {
                            *content = Content::ZerosOr(tag);
                        }
                    }
                }
                told
            }
            6 => advise(at, bytes, libc::MADV_POPULATE_WRITE),
            7 => advise(at, bytes, libc::MADV_POPULATE_READ),
            8 => advise(at, bytes, libc::MADV_HUGEPAGE),
            9 => advise(at, bytes, libc::MADV_NOHUGEPAGE),
            10 => advise(at, bytes, libc::MADV_COLD),
            11 => advise(at, bytes, libc::MADV_PAGEOUT),
            12 => advise(at, bytes, 25), // MADV_COLLAPSE
            _ if is_left_out("dontfork") => Ok(()),
            _ => {
                // Of all of a region, so that it is easy to tell what a child has.
                let region = &mut self.regions[region];
                let (advice, then) = match region.in_child {
                    InChild::Copy if self.number.is_multiple_of(2) => {
                        (libc::MADV_DONTFORK, InChild::Nothing)
                    }
                    InChild::Copy => (libc::MADV_WIPEONFORK, InChild::Zeros),
                    InChild::Nothing => (libc::MADV_DOFORK, InChild::Copy),
                    InChild::Zeros => (libc::MADV_KEEPONFORK, InChild::Copy),
                };
                region.in_child = then;
                advise(region.at, region.bytes(), advice)
            }
        };
        match told {
            // Of locked memory, or with no huge page to be had.
            Ok(()) => {}
            Err(errno) if errno == libc::EINVAL && kind <= 5 => {
                let _ = raw::unlock(at, bytes);
                // Some parts may have been dropped before the locked one.
                for content in &mut self.regions[region].pages[first..end] {
                    if let Content::Tag(tag) = *content {
                        *content = Content::ZerosOr(tag);
                    }
                }
            }
            Err(_) if kind == 12 || kind == 10 || kind == 11 => {}
            Err(errno) => self.fail(&format!("madvise kind {kind}: {errno}")),
        }
    }

    fn protect(&mut self) {
        let Some((region, first, end)) = self.part(64) else { return };
        let (at, bytes) = (self.regions[region].page(first), (end - first) * PAGE);
        let rights = [raw::READ, libc::PROT_NONE][self.random.below(2)];
        self.note(format!("protect {at:#x}+{:#x} {rights}", end - first));
        if let Err(errno) = raw::protect(at, bytes, rights) {
            self.fail(&format!("mprotect {errno}"));
        }
        if rights == raw::READ {
            self.check_part(region, first, end, "read-only");
            // The kernel writes nothing there.
            let ends = raw::pipe();
            raw::write(ends[1], (&raw const self.tag).expose_provenance(), 8);
            if raw::read(ends[0], at, 8) != -1 {
                self.fail("the kernel wrote to memory that is read-only");
            }
            ends.into_iter().for_each(raw::close);
        } else {
            self.touch_other(region);
        }
        if let Err(errno) = raw::protect(at, bytes, raw::READ_WRITE) {
            self.fail(&format!("mprotect back {errno}"));
        }
        self.check_part(region, first, end, "writable again");
    }

    /// Looks at pages of regions that are not this one.
    fn touch_other(&mut self, not: usize) {
        for _ in 0..8 {
            if let Some((region, first, end)) = self.part(8).filter(|part| part.0 != not) {
                self.check_part(region, first, end, "touch");
            }
        }
    }

    fn lock(&mut self) {
        let Some((region, first, end)) = self.part(8) else { return };
        let (at, bytes) = (self.regions[region].page(first), (end - first) * PAGE);
        self.note(format!("lock {at:#x}+{:#x}", end - first));
        if let Err(errno) = raw::lock(at, bytes) {
            if errno == libc::ENOMEM || errno == libc::EPERM {
                return; // The limit of locked memory.
            }
            self.fail(&format!("mlock {errno}"));
        }
        self.check_part(region, first, end, "locked");
        self.fill_part(region, first, end);
        // The kernel waits for ever where watched memory grows that is locked: a scenario.
        let _ = raw::unlock(at, bytes);
        self.check_part(region, first, end, "unlocked");
    }

    /// malloc, realloc, free, of odd sizes: with that also brk.
    fn object(&mut self) {
        let size = |random: &mut Random| match random.below(8) {
            0 => 100_000 + random.below(300_000),
            1 => 4000 + random.below(200),
            _ => 1 + random.below(3000),
        };
        if self.objects.len() < 200 || self.random.one_in(3) {
            for _ in 0..10 {
                self.tag += 1;
                let (tag, size) = (self.tag, size(&mut self.random));
                let bytes = (0..size).map(|at| mix(tag ^ (at as u64 >> 6)) as u8).collect();
                self.objects.push(Object { bytes, tag });
            }
        }
        for _ in 0..8.min(self.objects.len()) {
            let at = self.random.below(self.objects.len());
            self.check_object(at);
            match self.random.below(3) {
                0 => {
                    self.objects.swap_remove(at);
                }
                1 => {
                    let size = size(&mut self.random);
                    let Object { bytes, tag } = &mut self.objects[at];
                    bytes.truncate(size);
                    bytes.shrink_to_fit();
                    let old = bytes.len();
                    bytes.reserve_exact(size - old);
                    bytes.extend((old..size).map(|at| mix(*tag ^ (at as u64 >> 6)) as u8));
                    self.check_object(at);
                }
                _ => {}
            }
            if self.objects.is_empty() {
                return;
            }
        }
        if self.objects.len() > 400 {
            self.objects.truncate(100);
        }
    }

    fn check_object(&self, at: usize) {
        let Object { bytes, tag } = &self.objects[at];
        let wrong = bytes
            .iter()
            .enumerate()
            .find(|(at, byte)| **byte != mix(tag ^ (*at as u64 >> 6)) as u8);
        if let Some((at, _)) = wrong {
            self.fail(&format!("object at {:p} of {} is wrong at {at}", bytes, bytes.len()));
        }
    }

    fn input_and_output(&mut self) {
        let Some((from, first, end)) = self.part(12) else { return };
        let count = end - first;
        let bytes = count * PAGE;
        let source = self.regions[from].page(first);
        let contents = self.regions[from].pages[first..end].to_vec();
        // A read settles pages that may be zeros or not; the kernel does not write there.
        if contents.iter().any(|content| matches!(content, Content::ZerosOr(_))) {
            return self.fill_part(from, first, end);
        }
        let kind = self.random.below(4);
        self.note(format!("input and output {source:#x}+{count:#x} kind {kind}"));
        match kind {
            0 => {
                let ends = raw::pipe();
                let wrote = raw::write(ends[1], source, bytes);
                if wrote != bytes as isize {
                    self.fail(&format!("write to a pipe: {wrote} {}", raw::errno()));
                }
                if let Some((to, place)) = self.room(count) {
                    self.read_all(ends[0], self.regions[to].page(place), bytes);
                    self.regions[to].pages[place..place + count].copy_from_slice(&contents);
                    self.check_part(to, place, place + count, "read from a pipe");
                }
                ends.into_iter().for_each(raw::close);
            }
            1 => {
                let wrote = raw::write_at(self.file, source, bytes, 0);
                if wrote != bytes as isize {
                    self.fail(&format!("pwrite: {wrote} {}", raw::errno()));
                }
                if let Some((to, place)) = self.room(count) {
                    let half = count / 2 * PAGE;
                    let at = self.regions[to].page(place);
                    let parts = [(at, half), (at + half, bytes - half)];
                    let read = raw::read_two(self.file, parts, 0);
                    if read != bytes as isize {
                        self.fail(&format!("preadv: {read} {}", raw::errno()));
                    }
                    self.regions[to].pages[place..place + count].copy_from_slice(&contents);
                    self.check_part(to, place, place + count, "preadv");
                }
            }
            2 => {
                let expected = match contents[0] {
                    Content::Tag(tag) => word(tag, 0) as u32,
                    _ => 0,
                };
                let same = raw::futex_wait(source, expected);
                let other = raw::futex_wait(source, expected ^ 1);
                if same != libc::ETIMEDOUT || other != libc::EAGAIN {
                    self.fail(&format!("futex at {source:#x}: {same} {other}"));
                }
            }
            _ => {
                let ends = raw::pipe();
                if raw::poll(source, ends[1]) != Some(libc::POLLOUT) {
                    self.fail(&format!("poll at {source:#x}: {}", raw::errno()));
                }
                ends.into_iter().for_each(raw::close);
                self.fill_part(from, first, first + 1);
            }
        }
    }

    /// A place for pages: region and first page.
    fn room(&mut self, count: usize) -> Option<(usize, usize)> {
        let region = self.random.below(self.regions.len());
        let pages = self.regions[region].pages.len();
        (pages >= count).then(|| (region, self.random.below(pages - count + 1)))
    }

    fn read_all(&self, fd: i32, to: usize, bytes: usize) {
        let mut done = 0;
        while done < bytes {
            let read = raw::read(fd, to + done, bytes - done);
            if read <= 0 {
                self.fail(&format!("read into {:#x}: {read} {}", to + done, raw::errno()));
            }
            done += read as usize;
        }
    }

    fn signal(&mut self) {
        let Some((region, first, _)) = self.part(1) else { return };
        if let Content::Tag(tag) = self.regions[region].pages[first] {
            FOR_HANDLER.set((self.regions[region].page(first), tag));
        }
        raw::raise(libc::SIGUSR1);
        FOR_HANDLER.set((0, 0));
    }

    fn recurse(&mut self) {
        let (depth, tag) = (1 + self.random.below(150), self.random.next());
        let sum = recursion(depth, tag);
        let expected =
            (1..=depth).fold(0, |sum: u64, depth| sum.wrapping_add(mix(tag ^ depth as u64)));
        if sum != expected {
            self.fail("a stack was wrong");
        }
    }

    /// Threads that come and go.
    fn short_thread(&mut self) {
        let tag = self.random.next();
        let workers: Vec<_> = (0..1 + self.random.below(4))
            .map(|_| {
                std::thread::Builder::new()
                    .stack_size(1 << 20)
                    .spawn(move || recursion(10, tag))
                    .unwrap_or_else(|error| wrong(&format!("a thread: {error}")))
            })
            .collect();
        for worker in workers {
            if worker.join().is_err() {
                self.fail("a short thread panicked");
            }
        }
    }

    /// Memory and files that are shared.
    fn share(&mut self) {
        if self.shared.len() > 3 {
            let gone = self.shared.swap_remove(0);
            for (number, &content) in gone.pages.iter().enumerate() {
                self.check(gone.page(number), content, "shared");
            }
            let _ = raw::unmap(gone.at, gone.bytes());
            return;
        }
        let count = 1 + self.random.below(40);
        let at = match self.random.below(3) {
            0 => raw::map(0, count * PAGE, raw::READ_WRITE, raw::SHARED, -1),
            kind => {
                let file = raw::file();
                let page = vec![0_u8; PAGE];
                for at in 0..count {
                    let at = (at * PAGE) as i64;
                    raw::write_at(file, page.as_ptr().expose_provenance(), PAGE, at);
                }
                let flags = [libc::MAP_SHARED, libc::MAP_PRIVATE][kind - 1];
                let mapped = raw::map(0, count * PAGE, raw::READ_WRITE, flags, file);
                raw::close(file);
                mapped
            }
        };
        let at = at.unwrap_or_else(|errno| self.fail(&format!("mmap shared {errno}")));
        let pages = (0..count)
            .map(|number| match number % 3 {
                0 => Content::Zeros,
                _ => self.fill(at + number * PAGE),
            })
            .collect();
        self.shared.push(Region { at, pages, in_child: InChild::Copy });
    }

    /// Children that check all and change all; theirs is not ours.
    fn fork(&mut self, depth: usize) {
        if is_left_out("fork") {
            return;
        }
        let count = 1 + self.random.below(3);
        let is_direct = depth == 0 && self.random.one_in(4) && !is_left_out("direct_fork");
        self.note(format!("fork of {count} direct {is_direct}"));
        let children: Vec<i32> = (0..count)
            .map(|child| {
                let pid = if is_direct { raw::fork_directly() } else { raw::fork() };
                if pid == 0 {
                    self.is_child = true;
                    self.random = Random(self.random.0 ^ (child as u64 + 1) << 48);
                    self.child(depth, is_direct);
                    raw::exit(40 + child as i32);
                }
                pid
            })
            .collect();
        // Meanwhile we change what they have, too.
        for _ in 0..20 {
            let Some((region, first, end)) = self.part(32) else { break };
            self.fill_part(region, first, end);
        }
        for (child, pid) in children.into_iter().enumerate() {
            if pid < 0 {
                self.fail("fork failed");
            }
            let status = raw::wait(pid);
            if status != (40 + child as i32) << 8 {
                self.fail(&format!("child {pid} ended with wait status {status:#x}"));
            }
        }
        if self.random.one_in(2) {
            self.check_all();
        }
    }

    fn child(&mut self, depth: usize, is_direct: bool) {
        for region in 0..self.regions.len() {
            let end = self.regions[region].pages.len();
            match self.regions[region].in_child {
                InChild::Copy => {}
                InChild::Zeros => self.regions[region].pages.fill(Content::Zeros),
                InChild::Nothing => {
                    let (at, bytes) = (self.regions[region].at, self.regions[region].bytes());
                    let flags = raw::PRIVATE | libc::MAP_FIXED_NOREPLACE;
                    if raw::map(at, bytes, raw::READ_WRITE, flags, -1) != Ok(at) {
                        // The C library or a helper may have taken it.
                        self.regions[region].pages.clear();
                        continue;
                    }
                    self.regions[region].pages.fill(Content::Zeros);
                }
            }
            self.check_part(region, 0, end, "in a child");
        }
        self.regions.retain(|region| !region.pages.is_empty());
        for object in 0..self.objects.len() {
            self.check_object(object);
        }
        for region in 0..self.regions.len() {
            let end = self.regions[region].pages.len();
            if self.random.one_in(2) {
                self.fill_part(region, 0, end);
            }
        }
        // Another thread may have had the lock of malloc, of which a direct fork does not know.
        for _ in 0..if is_direct || is_left_out("child_steps") { 0 } else { 10 } {
            self.map();
            self.unmap();
            self.advise();
            self.remap();
            self.touch();
        }
        if depth < 2 && self.random.one_in(3) && !is_direct && !is_left_out("grandchild") {
            for region in &mut self.regions {
                region.in_child = InChild::Copy;
                let _ = raw::advise(region.at, region.bytes(), libc::MADV_DOFORK);
                let _ = raw::advise(region.at, region.bytes(), libc::MADV_KEEPONFORK);
            }
            self.fork(depth + 1);
        }
        for region in 0..self.regions.len() {
            self.check_part(region, 0, self.regions[region].pages.len(), "at a child's end");
        }
    }

    /// Programs, and this one as such.
    fn commands(&mut self) {
        let mut command = if self.random.one_in(2) {
            Command::new("/bin/true")
        } else {
            let mut command = Command::new(std::env::current_exe().unwrap());
            let seed = self.random.next() >> 32;
            command.args(["--adversary", &seed.to_string(), "0.05", "1", "1"]);
            command
        };
        self.note("command".to_owned());
        match command.stdout(Stdio::null()).status() {
            Ok(status) if status.success() => {}
            other => self.fail(&format!("{command:?}: {other:?}")),
        }
    }

    /// Another process reads our memory.
    fn remote(&mut self) {
        let Some((region, first, _)) = self.part(1) else { return };
        let Content::Tag(tag) = self.regions[region].pages[first] else { return };
        let (address, parent) = (self.regions[region].page(first), std::process::id() as i32);
        self.note(format!("remote read of {address:#x}"));
        let child = raw::fork();
        if child == 0 {
            let mut words: Words = [0; WORDS];
            let to = words.as_mut_ptr().expose_provenance();
            let code = match raw::read_remote(parent, address, raw::bytes(to, PAGE)) {
                Ok(PAGE) if first_difference(&words, Content::Tag(tag)).is_none() => 0,
                Ok(PAGE) => 1,
                Ok(_) => 2,
                Err(libc::EPERM) => 0,
                Err(errno) => errno,
            };
            raw::exit(code);
        }
        let status = raw::wait(child);
        if status != 0 {
            self.fail(&format!("a read of page {address:#x} from outside: {status:#x}"));
        }
    }

    /// A debugger looks at a child's memory.
    fn trace(&mut self) {
        let Some((region, first, _)) = self.part(1) else { return };
        let Content::Tag(tag) = self.regions[region].pages[first] else { return };
        if self.regions[region].in_child != InChild::Copy || is_left_out("trace") {
            return;
        }
        let address = self.regions[region].page(first);
        let child = raw::fork();
        if child == 0 {
            raw::trace_me_and_stop();
            raw::exit(0);
        }
        raw::wait_stopped(child);
        match raw::peek(child, address + 8) {
            Ok(found) if found == word(tag, 1) => {}
            // The kernel does not wait for a userfaultfd there: no wrong answer, but none.
            Err(libc::EIO) => {}
            other => self.fail(&format!("a word of {address:#x} by ptrace: {other:x?}")),
        }
        raw::let_go(child);
        let status = raw::wait(child);
        if status != 0 {
            self.fail(&format!("a traced child: {status:#x}"));
        }
    }
}

/// Uses 4 KiB of stack at each level.
#[inline(never)]
fn recursion(depth: usize, tag: u64) -> u64 {
    let mut page: Words = [mix(tag ^ depth as u64); WORDS];
    std::hint::black_box(&mut page);
    let below = if depth > 1 { recursion(depth - 1, tag) } else { 0 };
    std::hint::black_box(&mut page);
    let first = page[0];
    if page.iter().any(|&word| word != first) {
        wrong("a stack was changed");
    }
    below.wrapping_add(first)
}
