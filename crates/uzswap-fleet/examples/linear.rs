//! The time to replay 10, 100 and 1,000 machines: `cargo run --release --example linear [DIR]`.
//!
//! The machines are made of the samples in DIR, or of six processes that are made up here.

use std::error::Error;
use std::path::Path;
use std::thread;
use std::time::Instant;

use uzswap_fleet::folder::{file_name, prepare, samples, write};
use uzswap_fleet::simulate::Source;
use uzswap_fleet::table::{IntervalRow, PageRow, encode};
use uzswap_fleet::{Parameters, tune};

fn main() -> Result<(), Box<dyn Error>> {
    let mut source = Source::default();
    match std::env::args().nth(1) {
        Some(folder) => {
            for files in samples(Path::new(&folder))? {
                let (intervals, pages) = files.rows()?;
                source.add(intervals, pages);
            }
        }
        None => source.add(made_up(), Vec::new()),
    }
    if source.processes() == 0 {
        return Err("no process in the folder has known ages".into());
    }
    let settings: Vec<Parameters> = [50, 90, 98]
        .map(|threshold_percentile| Parameters { threshold_percentile, ..Parameters::default() })
        .into();
    let threads = thread::available_parallelism()?.get();
    println!("{:>8} {:>9} {:>13}", "machines", "seconds", "ms a machine");
    for machines in [10, 100, 1000] {
        let folder = tempfile::tempdir()?;
        prepare(folder.path())?;
        for number in 0..machines {
            let machine = source.machine(1, number);
            let path = |name| folder.path().join(name);
            let (run, pages) = (machine.run.run, encode(machine.pages));
            write(&path(file_name::<PageRow>(run, 0)), &pages)?;
            write(&path(file_name::<IntervalRow>(run, 0)), &encode(machine.intervals))?;
        }
        let files = samples(folder.path())?;
        let start = Instant::now();
        tune(&files, &settings, threads, |_| {})?;
        let seconds = start.elapsed().as_secs_f64();
        println!("{machines:>8} {seconds:>9.3} {:>13.3}", seconds * 1000.0 / machines as f64);
    }
    Ok(())
}

/// An hour of minutes: some processes touch more of what is cold than others.
fn made_up() -> Vec<IntervalRow> {
    let row = |process: u64, interval: u64| IntervalRow {
        process: Some(process),
        interval,
        seconds: 60.0,
        working_set_pages: Some(1000 * process),
        resident_pages: 5000,
        cold_pages: vec![4000, 3000, 2000, 1500, 1000],
        promoted_pages: vec![interval * process % 9, interval % 5, 1, 0, 0],
        ..IntervalRow::default()
    };
    (0..60).flat_map(|interval| (1..7).map(move |process| row(process, interval))).collect()
}
