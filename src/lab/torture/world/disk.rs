//! A backing that lies. It knows what truly is on each block and what it said is there.

use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex};

use twox_hash::XxHash3_64;

use super::{Point, World, lock};
use crate::backing::{BLOCK_SIZE, Backing, Block, BlockWrite, block_bytes, block_bytes_mut};
use crate::lab::torture::faults::{Fault, Struck};
use crate::lab::torture::plants::Plant;

#[derive(Debug)]
pub(in crate::lab::torture) struct Disk {
    world: Arc<World>,
    platter: Mutex<Platter>,
    block_count: u32,
}

#[derive(Debug)]
struct Platter {
    blocks: Vec<Block>,
    /// The hash of what it said each block holds. `None` where nothing is known to be there: never
    /// written, discarded, or a write failed.
    said: Vec<Option<u64>>,
    /// Calls that fail yet.
    outage: u64,
}

/// What an errno of 5 is.
fn eio() -> io::Error {
    io::Error::from_raw_os_error(5)
}

/// How a write goes.
enum Fate {
    Done,
    /// Reported or not, only so many bytes arrived.
    Bytes(usize),
    /// At another block.
    Elsewhere(usize),
}

impl Disk {
    pub(in crate::lab::torture) fn new(world: Arc<World>, block_count: u32) -> Disk {
        let platter = Platter {
            blocks: vec![Block::ZERO; block_count as usize],
            said: vec![None; block_count as usize],
            outage: 0,
        };
        Disk { world, platter: Mutex::new(platter), block_count }
    }

    /// Whether the backing is away now.
    fn is_out(&self) -> bool {
        let mut platter = lock(&self.platter);
        if platter.outage == 0 && self.world.strikes(Fault::Outage) {
            platter.outage = 1 + self.world.draw() % 32;
        }
        if platter.outage == 0 || self.world.is_calm() {
            return false;
        }
        platter.outage -= 1;
        Struck::note(Fault::Outage);
        true
    }

    fn write_run(&self, write: &BlockWrite<'_>) -> (Fate, io::Result<()>) {
        let world = &self.world;
        let bytes = size_of_val(write.blocks);
        let some = |most: usize| (world.draw() % most as u64) as usize;
        if self.is_out() {
            return (Fate::Bytes(0), Err(eio()));
        }
        if world.strikes(Fault::NoSpace) {
            return (Fate::Bytes(0), Err(io::ErrorKind::StorageFull.into()));
        }
        if world.strikes(Fault::WriteError) {
            return (Fate::Bytes(some(bytes)), Err(eio()));
        }
        if world.strikes(Fault::ShortWrite) {
            return (Fate::Bytes(some(bytes)), Err(io::ErrorKind::WriteZero.into()));
        }
        if world.strikes(Fault::TornWrite) {
            return (Fate::Bytes(some(bytes)), Ok(()));
        }
        if world.strikes(Fault::LostWrite)
            || world.is_planted(Plant::EarlySuccess) && world.draw().is_multiple_of(64)
        {
            return (Fate::Bytes(0), Ok(()));
        }
        if world.strikes(Fault::MisdirectedWrite) {
            let places = self.block_count as usize - write.blocks.len() + 1;
            return (Fate::Elsewhere(some(places)), Ok(()));
        }
        (Fate::Done, Ok(()))
    }
}

impl Platter {
    /// Does a write; one that is `believed` is not taken for a lie later.
    fn put(&mut self, write: &BlockWrite<'_>, fate: &Fate, is_ok: bool, believed: bool) {
        let first = write.first as usize;
        let count = write.blocks.len();
        let (at, bytes) = match *fate {
            Fate::Done => (first, count * BLOCK_SIZE),
            Fate::Bytes(bytes) => (first, bytes),
            Fate::Elsewhere(at) => (at, count * BLOCK_SIZE),
        };
        let place = block_bytes_mut(&mut self.blocks[at..at + count]);
        place[..bytes].copy_from_slice(&block_bytes(write.blocks)[..bytes]);
        for (number, block) in write.blocks.iter().enumerate() {
            let true_one = if believed { &self.blocks[first + number] } else { block };
            self.said[first + number] = is_ok.then(|| XxHash3_64::oneshot(&true_one.0));
        }
    }

    fn rot(&mut self, drawn: u64) {
        let bit = drawn as usize % (self.blocks.len() * BLOCK_SIZE * 8);
        self.blocks[bit / 8 / BLOCK_SIZE].0[bit / 8 % BLOCK_SIZE] ^= 1 << (bit % 8);
    }
}

impl Backing for Disk {
    fn name(&self) -> String {
        "disk".to_owned()
    }

    fn block_count(&self) -> u32 {
        self.block_count
    }

    fn write(&self, writes: &mut [BlockWrite<'_>]) {
        let world = &self.world;
        let mut ranges: Vec<Range<usize>> = writes
            .iter()
            .map(|write| write.first as usize..write.first as usize + write.blocks.len())
            .collect();
        ranges.sort_by_key(|range| range.start);
        let apart = ranges.windows(2).all(|pair| pair[0].end <= pair[1].start);
        let inside = ranges.last().is_none_or(|range| range.end <= self.block_count as usize);
        if !apart || !inside || ranges.iter().any(Range::is_empty) {
            world.violated(|| format!("writes to blocks {ranges:?} of {}", self.block_count));
            return;
        }
        world.delay();
        let early = world.draw().is_multiple_of(2);
        if early {
            world.happen(Point::Writing);
        }
        for write in writes {
            let (fate, outcome) = self.write_run(write);
            let believed = world.is_planted(Plant::EarlySuccess);
            lock(&self.platter).put(write, &fate, outcome.is_ok(), believed);
            write.outcome = outcome;
        }
        if world.strikes(Fault::BitRot) {
            lock(&self.platter).rot(world.draw());
        }
        if !early {
            world.happen(Point::Writing);
        }
    }

    fn read(&self, first: u32, blocks: &mut [Block]) -> io::Result<()> {
        let world = &self.world;
        let start = first as usize;
        if start + blocks.len() > self.block_count as usize {
            world.violated(|| format!("a read of {} blocks at {first}", blocks.len()));
            return Err(io::ErrorKind::InvalidInput.into());
        }
        world.delay();
        let early = world.draw().is_multiple_of(2);
        if early {
            world.happen(Point::Free);
        }
        let outcome = if self.is_out() || world.strikes(Fault::ReadError) {
            blocks.iter_mut().for_each(|block| block.0.fill(0xee));
            Err(eio())
        } else {
            let platter = lock(&self.platter);
            let beside = world.is_planted(Plant::WrongBlock) && world.draw().is_multiple_of(16);
            for (number, block) in blocks.iter_mut().enumerate() {
                let at = start + number;
                let from = if beside { (at + 1) % platter.blocks.len() } else { at };
                block.0 = platter.blocks[from].0;
                match platter.said[at] {
                    Some(said) if said == XxHash3_64::oneshot(&platter.blocks[at].0) => {}
                    Some(_) => Struck::note_lie(),
                    None => world.violated(|| format!("a read of block {at}: nothing is there")),
                }
            }
            Ok(())
        };
        if !early {
            world.happen(Point::Free);
        }
        outcome
    }

    fn discard(&self, blocks: Range<u32>) -> io::Result<()> {
        if blocks.end > self.block_count || blocks.is_empty() {
            self.world.violated(|| format!("a discard of blocks {blocks:?}"));
            return Err(io::ErrorKind::InvalidInput.into());
        }
        self.world.delay();
        self.world.happen(Point::Writing);
        let failed = self.world.strikes(Fault::DiscardError);
        let mut platter = lock(&self.platter);
        for block in blocks {
            platter.said[block as usize] = None;
            if !failed {
                platter.blocks[block as usize].0.fill(0);
            }
        }
        if failed { Err(eio()) } else { Ok(()) }
    }
}
