//! Counts each memory once: several processes may have one (vfork, CLONE_VM).

use std::cmp::Ordering::{self, Equal, Greater, Less};
use std::io;

/// Threads of processes, one for each address space.
pub(super) struct AddressSpaces<C> {
    compare: C,
    /// In the order that this compares by.
    threads: Vec<u32>,
}

impl<C: FnMut(u32, u32) -> io::Result<Ordering>> AddressSpaces<C> {
    pub(super) fn new(compare: C) -> Self {
        AddressSpaces { compare, threads: Vec::new() }
    }

    /// Adds that of a thread; `false` where it is there already. One that cannot be compared is
    /// taken to be new.
    pub(super) fn add(&mut self, thread: u32) -> bool {
        let (mut from, mut to) = (0, self.threads.len());
        while from < to {
            let middle = from + (to - from) / 2;
            match (self.compare)(self.threads[middle], thread) {
                Ok(Equal) => return false,
                Ok(Less) => from = middle + 1,
                Ok(Greater) => to = middle,
                Err(_) if (self.compare)(thread, thread).is_err() => return true,
                Err(_) => {
                    self.threads.remove(middle); // it has ended
                    to -= 1;
                }
            }
        }
        self.threads.insert(from, thread);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_space_counts_once() {
        // Of ten threads each has that of its last digit; some end while they are compared.
        for gone in [0, 3, 7] {
            let mut asked = 0;
            let compare = |one: u32, other: u32| {
                asked += 1;
                let is_gone = |thread: u32| asked > 400 && thread % 10 < gone && thread < 100;
                match is_gone(one) || is_gone(other) {
                    true => Err(io::ErrorKind::NotFound.into()),
                    false => Ok((one % 10 * 7 % 10).cmp(&(other % 10 * 7 % 10))),
                }
            };
            let mut spaces = AddressSpaces::new(compare);
            let new = (0..1000_u32).filter(|thread| spaces.add(*thread)).count();
            assert!(new >= 10 && new <= 10 + gone as usize * 11, "{new} of 10");
            assert!(gone > 0 || new == 10);
            assert!(asked < 10_000, "{asked}: each is compared with some");
        }
        let mut none = AddressSpaces::new(|_, _| Err(io::ErrorKind::Unsupported.into()));
        assert!((0..5).all(|thread| none.add(thread)), "a kernel without it");
    }
}
