//! Cost of a batch of writes by its way to the kernel; a read and a discard.
//!
//! All contenders take turns, batch by batch, each on a file of its own in the same folder. A
//! figure is the median of the batches; a ratio to `sequential` is the median of the turns' ratios,
//! with the range of the middle half of them. Each file was written all over before.
//!
//! `cargo bench --bench backing` measures in the folder for temporary files;
//! `UZSWAP_FOLDERS=/tmp,/dev/shm` in others, `UZSWAP_ROUNDS=N` with more batches than 100. Without
//! `--bench` it runs over a few batches, to see that it works.

mod common;

use std::path::Path;
use std::time::Instant;

use common::median;
use uzswap::backing::{
    Backing, Block, BlockWrite, Direct, FileBacking, FileBackingOptions, Submission, zeroed_blocks,
};
use uzswap::random::SplitMix64;

/// Runs of a batch, and blocks of each.
const SHAPES: [(usize, u32); 4] = [(64, 1), (16, 16), (1, 64), (1, 1)];

/// Submission and writes in flight; the first is the base.
const CONTENDERS: [(Submission, usize); 5] = [
    (Submission::Sequential, 1),
    (Submission::Threads, 4),
    (Submission::Threads, 8),
    (Submission::Uring, 16),
    (Submission::Uring, 64),
];

fn main() {
    let (blocks, rounds) = if common::is_full_run() { (1 << 14, 100) } else { (1 << 10, 3) };
    let rounds = common::number_from_env("UZSWAP_ROUNDS", rounds);
    let folders = std::env::var("UZSWAP_FOLDERS");
    let folders = folders.unwrap_or(std::env::temp_dir().display().to_string());
    for folder in folders.split(',') {
        for direct in [Direct::Auto, Direct::Never] {
            measure(Path::new(folder), direct, blocks, rounds);
        }
    }
}

fn open(folder: &Path, direct: Direct, blocks: u32, contender: (Submission, usize)) -> FileBacking {
    let name = format!("uzswap-bench-{}-{}-{}", contender.0, contender.1, std::process::id());
    let mut options =
        FileBackingOptions::new(folder.join(name), Some((u64::from(blocks) + 1) * 4096));
    (options.direct, options.submission) = (direct, Some(contender.0));
    options.in_flight = contender.1;
    let backing = FileBacking::open(&options).unwrap();
    let buffer = zeroed_blocks(256).unwrap();
    for first in (0..blocks).step_by(buffer.len()) {
        write(&backing, &mut [BlockWrite::new(first, &buffer)]);
    }
    backing
}

fn write(backing: &FileBacking, writes: &mut [BlockWrite<'_>]) {
    backing.write(writes);
    for write in writes {
        write.outcome.as_ref().unwrap();
    }
}

/// Starts of runs that do not overlap, all over the file, in no order.
fn scattered(random: &mut SplitMix64, runs: usize, length: u32, blocks: u32) -> Vec<u32> {
    let room = blocks / runs as u32;
    let place =
        |run: usize, word: u64| run as u32 * room + (word % u64::from(room - length)) as u32;
    common::shuffled(runs).into_iter().map(|run| place(run, random.next_word())).collect()
}

/// Of the turns' ratios: the median, and the range of the middle half.
fn ratio(mine: &[f64], base: &[f64]) -> String {
    let mut ratios: Vec<f64> = mine.iter().zip(base).map(|(mine, base)| mine / base).collect();
    ratios.sort_by(f64::total_cmp);
    let at = |quarter: usize| ratios[(ratios.len() - 1) * quarter / 4];
    format!("{:.2} ({:.2} to {:.2})", at(2), at(1), at(3))
}

fn micros(work: impl FnOnce()) -> f64 {
    let start = Instant::now();
    work();
    start.elapsed().as_secs_f64() * 1e6
}

fn measure(folder: &Path, direct: Direct, blocks: u32, rounds: usize) {
    let backings = CONTENDERS.map(|contender| open(folder, direct, blocks, contender));
    println!("\n{}, {}, us", folder.display(), backings[0].io_mode());
    let mut random = SplitMix64::new(1);
    let mut buffer: Box<[Block]> = zeroed_blocks(64).unwrap();
    for block in &mut buffer {
        block.0.fill(random.next_word() as u8);
    }
    for (runs, length) in SHAPES {
        let mut times: [Vec<f64>; CONTENDERS.len()] = Default::default();
        for _ in 0..rounds {
            for (backing, times) in backings.iter().zip(&mut times) {
                let starts = scattered(&mut random, runs, length, blocks);
                let run = &buffer[..length as usize];
                let mut writes: Vec<_> =
                    starts.iter().map(|&first| BlockWrite::new(first, run)).collect();
                times.push(micros(|| write(backing, &mut writes)));
            }
        }
        println!("{runs} writes of {} KiB", length * 4);
        for ((backing, (_, in_flight)), mine) in backings.iter().zip(CONTENDERS).zip(&times) {
            let name = format!("{} {in_flight}", backing.submission());
            println!("  {name:<14} {:>8.0}  x {}", median(mine), ratio(mine, &times[0]));
        }
    }
    let backing = &backings[0];
    let mut reads = Vec::new();
    let mut discards = Vec::new();
    for _ in 0..rounds {
        let first = scattered(&mut random, 1, 64, blocks)[0];
        reads.push(micros(|| backing.read(first, &mut buffer[..1]).unwrap()));
        discards.push(micros(|| backing.discard(first..first + 64).unwrap()));
    }
    println!("1 read of 4 KiB {:>9.0}", median(&reads));
    println!("1 discard of 256 KiB {:>4.0}", median(&discards));
}
