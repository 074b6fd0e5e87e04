//! A backing double that fails and lies. The disk knows the true content of each block and the
//! content that it reported. Where a seed has a file too, all of that is in the file as well, and
//! what is read comes from there.

use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex};

use tempfile::TempDir;
use twox_hash::XxHash3_64;

use super::{Point, World, lock};
use crate::faults::{Fault, Struck};
use crate::planted_bugs::PlantedBug;
use uzswap::backing::{
    BLOCK_SIZE, Backing, Block, BlockWrite, FileBacking, FileBackingOptions, Submission,
    block_bytes, block_bytes_mut,
};

#[derive(Debug)]
pub(crate) struct Disk {
    world: Arc<World>,
    platter: Mutex<Platter>,
    block_count: u32,
    file: Option<OnFile>,
}

/// A file of its own, removed in the end.
#[derive(Debug)]
struct OnFile {
    backing: FileBacking,
    _directory: TempDir,
}

impl OnFile {
    fn new(blocks: u32, submission: Submission) -> io::Result<OnFile> {
        let directory = tempfile::tempdir()?;
        let bytes = (u64::from(blocks) + 1) * BLOCK_SIZE as u64; // and a header
        let options = FileBackingOptions::new(directory.path().join("disk"), Some(bytes))
            .submission(Some(submission))
            .in_flight(4);
        let backing = FileBacking::open(&options).map_err(io::Error::other)?;
        Ok(OnFile { backing, _directory: directory })
    }

    /// Makes runs of the file as they are on the platter: all at once where they are `apart`.
    fn write(&self, platter: &Platter, runs: &[Range<usize>], apart: bool) -> io::Result<()> {
        let write =
            |run: &Range<usize>| BlockWrite::new(run.start as u32, &platter.blocks[run.clone()]);
        for part in runs.chunks(if apart { runs.len().max(1) } else { 1 }) {
            let mut writes: Vec<BlockWrite<'_>> = part.iter().map(write).collect();
            self.backing.write(&mut writes);
            writes.into_iter().try_for_each(|write| write.outcome)?;
        }
        Ok(())
    }
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
    pub(crate) fn new(
        world: Arc<World>,
        block_count: u32,
        file: Option<Submission>,
    ) -> io::Result<Disk> {
        let platter = Platter {
            blocks: vec![Block::ZERO; block_count as usize],
            said: vec![None; block_count as usize],
            outage: 0,
        };
        let file = file.map(|submission| OnFile::new(block_count, submission)).transpose()?;
        Ok(Disk { world, platter: Mutex::new(platter), block_count, file })
    }

    /// Counts one request of an outage, which may begin here; whether the backing is away.
    fn draw_outage(&self) -> bool {
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
        if self.draw_outage() {
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
            || world.is_planted(PlantedBug::EarlySuccess) && world.draw().is_multiple_of(64)
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

impl Disk {
    /// Does writes as their fates are, and lets a bit rot.
    fn put(
        &self,
        writes: &mut [BlockWrite<'_>],
        fates: Vec<(Fate, io::Result<()>)>,
        rot: Option<u64>,
    ) {
        let believed = self.world.is_planted(PlantedBug::EarlySuccess);
        let platter = &mut *lock(&self.platter);
        let (mut runs, mut apart) = (Vec::new(), true);
        for (write, (fate, outcome)) in writes.iter_mut().zip(fates) {
            platter.put(write, &fate, outcome.is_ok(), believed);
            write.outcome = outcome;
            let first = match fate {
                Fate::Done | Fate::Bytes(_) => write.first as usize,
                Fate::Elsewhere(at) => {
                    apart = false;
                    at
                }
            };
            runs.push(first..first + write.blocks.len());
        }
        if let Some(drawn) = rot {
            let block = platter.rot(drawn);
            runs.push(block..block + 1);
            apart = false;
        }
        let Some(file) = &self.file else { return };
        if let Err(error) = file.write(platter, &runs, apart) {
            self.world.violated(|| format!("the file did not take {runs:?}: {error}"));
        }
    }

    /// Reads blocks from the file, which must be those of the platter.
    fn read_file(&self, file: &OnFile, platter: &Platter, first: u32, blocks: &mut [Block]) {
        if let Err(error) = file.backing.read(first, blocks) {
            self.world.violated(|| format!("the file did not give block {first}: {error}"));
        }
        for (number, block) in (first as usize..).zip(blocks) {
            if platter.said[number].is_some() && block.0 != platter.blocks[number].0 {
                self.world.violated(|| format!("the file has another block {number}"));
            }
        }
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

    /// Changes a bit; of which block.
    fn rot(&mut self, drawn: u64) -> usize {
        let bit = drawn as usize % (self.blocks.len() * BLOCK_SIZE * 8);
        let block = bit / 8 / BLOCK_SIZE;
        self.blocks[block].0[bit / 8 % BLOCK_SIZE] ^= 1 << (bit % 8);
        block
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
        let fates: Vec<_> = writes.iter().map(|write| self.write_run(write)).collect();
        let rot = world.strikes(Fault::BitRot).then(|| world.draw());
        self.put(writes, fates, rot);
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
        let outcome = if self.draw_outage() || world.strikes(Fault::ReadError) {
            blocks.iter_mut().for_each(|block| block.0.fill(0xee));
            Err(eio())
        } else {
            let platter = lock(&self.platter);
            if let Some(file) = &self.file {
                self.read_file(file, &platter, first, blocks);
            }
            let beside =
                world.is_planted(PlantedBug::WrongBlock) && world.draw().is_multiple_of(16);
            for (number, block) in blocks.iter_mut().enumerate() {
                let at = start + number;
                let from = if beside { (at + 1) % platter.blocks.len() } else { at };
                if beside || self.file.is_none() {
                    block.0 = platter.blocks[from].0;
                }
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
        if let Some(file) = self.file.as_ref().filter(|_| !failed)
            && let Err(error) = file.backing.discard(blocks.clone())
        {
            self.world.violated(|| format!("the file did not discard {blocks:?}: {error}"));
        }
        for block in blocks {
            platter.said[block as usize] = None;
            if !failed {
                platter.blocks[block as usize].0.fill(0);
            }
        }
        if failed { Err(eio()) } else { Ok(()) }
    }
}
