//! Whether processes descend from the supervisor, by walks that are short: a walk ends at a process
//! that is known to be of the run.
//!
//! A program can make a line of thousands of parents, and connect at its end again and again. Each
//! link costs two reads of /proc. So all of a line is known once it was walked. Walks that are long
//! all the same are few in a second, for each user and for all.

use std::collections::BTreeMap;
use std::time::Instant;

use crate::program::peer::{Peer, Walk, arrives};
use crate::program::procfs::user_of;
use crate::token_bucket::Bucket;
use uzswap_sys::process;

/// Generations of a walk at most. A process that is farther from all that are known runs unmanaged.
const GENERATIONS_MAX: usize = 512;

/// Generations of a walk that is not long.
const FEW_GENERATIONS: usize = 32;

/// Long walks at once and in a second: of one user, and of all.
const OF_USER: [u32; 2] = [8, 2];
const OF_ALL: [u32; 2] = [32, 8];

/// Processes that are known at most, and users: with one more, all are forgotten.
const KNOWN_MAX: usize = 16 << 10;
const USERS_MAX: usize = 1024;

/// The parent of a process, and when the process started. With its number, that names it.
type Link = (u32, u64);

/// Processes that are known to be of the run.
#[derive(Debug)]
pub(crate) struct Lineage {
    root: u32,
    /// When they started, by number. A number is another's once its process has ended.
    known: BTreeMap<u32, u64>,
    walks: BTreeMap<u32, Bucket>,
    walks_of_all: Bucket,
}

impl Lineage {
    /// Descendants of a process.
    pub(crate) fn of(root: u32) -> Lineage {
        let walks_of_all = Bucket::new(OF_ALL[0], OF_ALL[1]);
        Lineage { root, known: BTreeMap::new(), walks: BTreeMap::new(), walks_of_all }
    }

    /// Whether a process descends from the root. `false` also where it would take too long to find
    /// out.
    pub(crate) fn find(&mut self, peer: &Peer) -> bool {
        let user = || user_of(peer.pid()).unwrap_or(0);
        self.finds(peer.pid(), process::parent_and_start, user, Instant::now()) && peer.is_alive()
    }

    /// As [`Lineage::find`], by links that this tells; walks again where a parent ends meanwhile.
    fn finds(
        &mut self,
        pid: u32,
        mut link_of: impl FnMut(u32) -> Option<Link>,
        user: impl Fn() -> u32,
        now: Instant,
    ) -> bool {
        arrives(|| self.walk(pid, &mut link_of, &user, now))
    }

    /// The line is read upwards, and then once more downwards. A process that has the same parent,
    /// and has started at the same time, at two times was there all the time between.
    fn walk(
        &mut self,
        pid: u32,
        link_of: &mut impl FnMut(u32) -> Option<Link>,
        user: &impl Fn() -> u32,
        now: Instant,
    ) -> Walk {
        let mut line: Vec<(u32, Link)> = Vec::new();
        let mut at = pid;
        while at != self.root {
            if line.len() == FEW_GENERATIONS && !self.take_walk(user(), now) {
                return Walk::Strays;
            }
            let (parent, start) = match link_of(at) {
                Some(link @ (1.., _)) => link,
                None if at != pid => return Walk::Changes,
                _ => return Walk::Strays,
            };
            line.push((at, (parent, start)));
            if self.known.get(&at) == Some(&start) {
                break;
            }
            if line.len() >= GENERATIONS_MAX {
                return Walk::Strays;
            }
            at = parent;
        }
        if line.iter().rev().any(|(pid, link)| link_of(*pid) != Some(*link)) {
            return Walk::Changes;
        }
        if self.known.len() + line.len() > KNOWN_MAX {
            self.known.clear();
        }
        self.known.extend(line.into_iter().map(|(pid, (_, start))| (pid, start)));
        Walk::Arrives
    }

    /// Takes one long walk of a user; `false` where there is none left.
    fn take_walk(&mut self, user: u32, now: Instant) -> bool {
        if self.walks.len() >= USERS_MAX {
            self.walks.clear();
        }
        let full = || Bucket::new(OF_USER[0], OF_USER[1]);
        self.walks.entry(user).or_insert_with(full).take(1, now) && self.walks_of_all.take(1, now)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::process::Command;

    use super::*;

    /// Processes 10, 11 and so on, each the child of the one before, and 10 that of the root 7;
    /// 5 and 6 are others'.
    fn link_of(pid: u32) -> Option<Link> {
        match pid {
            10 => Some((7, 1)),
            11.. => Some((pid - 1, u64::from(pid))),
            6 => Some((5, 1)),
            5 => Some((1, 1)),
            1 => Some((0, 0)),
            _ => None,
        }
    }

    fn finds(lineage: &mut Lineage, pid: u32, user: u32) -> (bool, usize) {
        let reads = Cell::new(0);
        let counted = |pid| {
            reads.set(reads.get() + 1);
            link_of(pid)
        };
        let now = lineage.walks_of_all.start();
        (lineage.finds(pid, counted, || user, now), reads.get())
    }

    #[test]
    fn descent_is_found_and_known_from_then_on() {
        let mut lineage = Lineage::of(7);
        assert_eq!(finds(&mut lineage, 7, 0), (true, 0));
        assert_eq!(finds(&mut lineage, 14, 0), (true, 10));
        assert_eq!(finds(&mut lineage, 14, 0), (true, 2));
        assert_eq!(finds(&mut lineage, 12, 0), (true, 2));
        assert_eq!(finds(&mut lineage, 15, 0), (true, 4));
        assert_eq!(finds(&mut lineage, 6, 0), (false, 3), "the walk ends at the first process");
        assert!(!finds(&mut lineage, 2, 0).0);
        // Another process has the number of one that is known.
        let other = |pid| if pid == 14 { Some((5, 99)) } else { link_of(pid) };
        let now = lineage.walks_of_all.start();
        assert!(!lineage.finds(14, other, || 0, now));
        // A link changes while it is read.
        let asked = Cell::new(0);
        let changes = |pid| {
            asked.set(asked.get() + 1);
            if asked.get() > 2 { Some((5, 99)) } else { link_of(pid) }
        };
        assert!(!Lineage::of(7).finds(11, changes, || 0, now));
        let circle = |pid| Some((pid, 1));
        assert!(!lineage.finds(99, circle, || 0, now), "a circle ends");
    }

    #[test]
    fn descent_is_found_although_parents_end() {
        // 11 ends before it is asked for, or after.
        for ends_before in [true, false] {
            let mut asked = 0;
            let ends = |pid| {
                asked += 1;
                let has_ended = asked > if ends_before { 1 } else { 2 };
                match (pid, has_ended) {
                    (12, true) => Some((10, 12)),
                    (11, true) => None,
                    _ => link_of(pid),
                }
            };
            let mut lineage = Lineage::of(7);
            let now = lineage.walks_of_all.start();
            assert!(lineage.finds(12, ends, || 0, now), "{ends_before}");
        }
    }

    #[test]
    fn long_walks_are_bounded_and_few() {
        let mut lineage = Lineage::of(7);
        // 1500 generations, whose last one connects again and again.
        for _ in 0..1000 {
            let (is_found, reads) = finds(&mut lineage, 1510, 1);
            assert!(!is_found && reads <= GENERATIONS_MAX);
        }
        let mut reads = 0;
        (0..1000).for_each(|_| reads += finds(&mut lineage, 1510, 1).1);
        assert_eq!(reads, 1000 * FEW_GENERATIONS);
        // Others' long walks are done, and short ones in any case.
        assert!(finds(&mut lineage, 100, 2).0 && finds(&mut lineage, 101, 1).0);
        let mut lineage = Lineage::of(7);
        let long = (0..100).filter(|user| {
            lineage.known.clear();
            finds(&mut lineage, 100, *user).0
        });
        assert_eq!(long.count(), OF_ALL[0] as usize);
        assert!(finds(&mut lineage, 20, 1).0);
    }

    #[test]
    fn a_child_is_of_the_run_until_it_ends() {
        let mut lineage = Lineage::of(std::process::id());
        let mut child = Command::new("sleep").arg("100").spawn().unwrap();
        let peer = Peer::open(child.id()).unwrap();
        assert!(lineage.find(&peer) && lineage.find(&peer));
        assert!(!Lineage::of(2).find(&peer), "a kernel thread");
        peer.kill();
        child.wait().unwrap();
        assert!(!lineage.find(&peer));
    }

    #[test]
    fn a_walk_of_33_generations_is_long_and_one_of_512_too_long() {
        let walks = |pid| {
            let mut lineage = Lineage::of(7);
            let is_found = |_: &u32| {
                lineage.known.clear();
                finds(&mut lineage, pid, 1).0
            };
            (0..40).take_while(is_found).count()
        };
        assert_eq!([41, 42, 520, 521].map(walks), [40, 8, 8, 0]);
    }

    #[test]
    fn a_user_has_two_long_walks_a_second_and_all_have_eight() {
        let mut lineage = Lineage::of(7);
        let mut walks = |users: Vec<u32>, ms| {
            let now = Instant::now() + std::time::Duration::from_millis(ms);
            users.into_iter().filter(|user| lineage.take_walk(*user, now)).count()
        };
        assert_eq!([walks(vec![1; 40], 0), walks(vec![1; 40], 1100)], [8, 2]);
        assert_eq!(walks((2..100).collect(), 10_000), 32);
        assert_eq!(walks((100..200).collect(), 11_100), 8);
    }

    #[test]
    fn as_many_are_known_as_there_is_place_for() {
        let mut lineage = Lineage::of(7);
        lineage.known = (0..16_383).map(|at| (1_000_000 + at, 1)).collect();
        assert!(finds(&mut lineage, 10, 0).0);
        assert_eq!(lineage.known.len(), 16_384);
        assert!(finds(&mut lineage, 11, 0).0);
        assert_eq!(lineage.known.len(), 2);
        lineage.known = (0..6000).map(|at| (1_000_000 + at, 1)).collect();
        assert!(finds(&mut lineage, 12, 0).0);
        assert_eq!(lineage.known.len(), 6003);
        let now = Instant::now();
        for user in 0..1024 {
            lineage.take_walk(user, now);
            assert_eq!(lineage.walks.len(), user as usize + 1);
        }
        lineage.take_walk(1024, now);
        assert_eq!(lineage.walks.len(), 1);
    }
}
