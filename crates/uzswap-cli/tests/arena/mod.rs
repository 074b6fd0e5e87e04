//! An allocator on plain mmap, mremap, madvise and munmap, and a program that uses it heavily.

use std::alloc::{GlobalAlloc, Layout};
use std::collections::HashMap;
use std::process::ExitCode;
use std::ptr;
use std::sync::{Mutex, PoisonError};
use std::thread;

use uzswap::random::SplitMix64;

/// Small objects are 16 bytes to 16 KiB, by powers of two; all else are mappings.
const CLASSES: usize = 11;
const SMALLEST: usize = 16;
const CHUNK_BYTES: usize = 1 << 20;
const PAGE: usize = 4096;

/// Mappings that are free and have given back their memory, but not their addresses.
const SPARES: usize = 16;

pub(crate) struct Arena(Mutex<Inner>);

struct Inner {
    /// By class: the first free object, which holds the address of the next; 0 at the end.
    free: [usize; CLASSES],
    /// The unused rest of the newest chunk.
    chunk: (usize, usize),
    /// Address and bytes of each.
    spares: [(usize, usize); SPARES],
}

impl Arena {
    pub(crate) const fn new() -> Arena {
        Arena(Mutex::new(Inner { free: [0; CLASSES], chunk: (0, 0), spares: [(0, 0); SPARES] }))
    }

    fn with<T>(&self, work: impl FnOnce(&mut Inner) -> T) -> T {
        work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The class of a small object.
fn class(layout: Layout) -> Option<usize> {
    let bytes = layout.size().max(layout.align()).max(SMALLEST).next_power_of_two();
    let class = (bytes / SMALLEST).ilog2() as usize;
    (class < CLASSES).then_some(class)
}

/// Bytes of the mapping of a large one.
fn mapped_bytes(size: usize) -> usize {
    size.next_multiple_of(PAGE)
}

fn map(bytes: usize) -> usize {
    let (rights, flags) =
        (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping, where the kernel finds room.
    let at = unsafe { libc::mmap(ptr::null_mut(), bytes, rights, flags, -1, 0) };
    if at == libc::MAP_FAILED { 0 } else { at.expose_provenance() }
}

impl Inner {
    fn small(&mut self, class: usize) -> usize {
        let first = self.free[class];
        if first != 0 {
            // SAFETY: a free object holds the next one's address.
            self.free[class] = unsafe { ptr::with_exposed_provenance::<usize>(first).read() };
            return first;
        }
        let bytes = SMALLEST << class;
        let start = self.chunk.0.next_multiple_of(bytes);
        if start + bytes <= self.chunk.1 {
            self.chunk.0 = start + bytes;
            return start;
        }
        let chunk = map(CHUNK_BYTES);
        if chunk != 0 {
            self.chunk = (chunk + bytes, chunk + CHUNK_BYTES);
        }
        chunk
    }

    fn large(&mut self, bytes: usize) -> usize {
        match self.spares.iter_mut().find(|spare| spare.1 == bytes) {
            Some(spare) => std::mem::take(spare).0,
            None => map(bytes),
        }
    }

    fn free_large(&mut self, at: usize, bytes: usize) {
        let address = ptr::with_exposed_provenance_mut(at);
        match self.spares.iter_mut().find(|spare| spare.1 == 0) {
            Some(spare) => {
                // SAFETY: nobody uses the mapping any more.
                unsafe { libc::madvise(address, bytes, libc::MADV_DONTNEED) };
                *spare = (at, bytes);
            }
            None => {
                // SAFETY: as above.
                unsafe { libc::munmap(address, bytes) };
            }
        }
    }
}

// SAFETY: an object is given out once until it is freed, and is as large and aligned as its class
// or its mapping. Its content is kept when it grows.
unsafe impl GlobalAlloc for Arena {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        assert!(layout.align() <= PAGE);
        let at = self.with(|inner| match class(layout) {
            Some(class) => inner.small(class),
            None => inner.large(mapped_bytes(layout.size())),
        });
        ptr::with_exposed_provenance_mut(at)
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        self.with(|inner| match class(layout) {
            Some(class) => {
                // SAFETY: the object is free, and has room for an address.
                unsafe { at.cast::<usize>().write(inner.free[class]) };
                inner.free[class] = at.expose_provenance();
            }
            None => inner.free_large(at.expose_provenance(), mapped_bytes(layout.size())),
        });
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        let new = Layout::from_size_align(size, layout.align()).expect("the caller's promise");
        if class(layout).is_none() && class(new).is_none() {
            let (old, new) = (mapped_bytes(layout.size()), mapped_bytes(size));
            // SAFETY: the mapping of this object alone, which is known at its new place only.
            let moved = unsafe { libc::mremap(at.cast(), old, new, libc::MREMAP_MAYMOVE) };
            return if moved == libc::MAP_FAILED { ptr::null_mut() } else { moved.cast() };
        }
        // SAFETY: a layout with a size.
        let to = unsafe { self.alloc(new) };
        if !to.is_null() {
            // SAFETY: both are this large, and are not the same.
            unsafe { ptr::copy_nonoverlapping(at, to, layout.size().min(size)) };
            // SAFETY: the caller's object, which it does not use any more.
            unsafe { self.dealloc(at, layout) };
        }
        to
    }
}

/// Prints what two threads make of tables, and of buffers that grow and shrink.
pub(crate) fn run(scale: &str) -> ExitCode {
    let count = 12_000 * scale.parse::<u64>().expect("a number");
    let threads = [1, 2].map(|number| thread::spawn(move || work(number, count)));
    for thread in threads {
        println!("{:x?}", thread.join().expect("it does not panic"));
    }
    ExitCode::SUCCESS
}

fn work(number: u64, count: u64) -> Vec<u64> {
    let mut words = SplitMix64::new(number);
    let mut next = |below: u64| words.next_word() % below;
    let mut texts = HashMap::new();
    let mut buffers: Vec<Vec<u64>> = vec![Vec::new(); 64];
    let mut sums = Vec::new();
    for turn in 0..4_u64 {
        for _ in 0..count {
            let key = next(count * 2);
            match next(4) {
                0 => drop(texts.remove(&key)),
                _ => drop(texts.insert(key, format!("text {turn} of {key} ").repeat(8))),
            }
            let buffer = &mut buffers[next(64) as usize];
            match next(256) {
                0 => *buffer = Vec::new(),
                1 => buffer.shrink_to_fit(),
                _ => buffer.extend((0..16).map(|at| at + turn)),
            }
        }
        let mut sum = 0_u64;
        for (key, text) in &texts {
            let bytes = text.bytes().fold(*key, |sum, byte| sum * 31 % 65_521 + u64::from(byte));
            sum = sum.wrapping_add(bytes);
        }
        for number in buffers.iter().flatten() {
            sum = sum.wrapping_mul(31).wrapping_add(*number);
        }
        sums.push(sum);
    }
    sums
}
