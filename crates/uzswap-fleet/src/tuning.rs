//! All machines of a folder under all settings, over threads.
//!
//! ```text
//!  files --> a thread takes the next --> Machine --> an outcome for each setting
//!                                                       |                   |
//!                              a row, in the order of the files     sums of the fleet
//! ```

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock};
use std::thread;

use crate::folder::{FolderError, SampleFiles};
use crate::replay::{Machine, Outcome, Parameters, replay};
use crate::table::ReplayRow;

/// A setting over all machines.
#[derive(Debug, Clone, PartialEq)]
pub struct Tried {
    /// The setting.
    pub parameters: Parameters,
    /// All machines as one row.
    pub fleet: ReplayRow,
    /// A row for each machine, in the order of the files.
    pub machines: Vec<ReplayRow>,
}

/// All settings over all machines.
#[derive(Debug, Clone, PartialEq)]
pub struct Tuned {
    /// The settings, the best first.
    pub settings: Vec<Tried>,
    /// Samples that nothing has ended: they go on, or were killed. Their rows count as far as they
    /// were written.
    pub samples_without_end: u64,
}

/// Replays the machines of these files under each setting, on so many threads. `progress` is called
/// with the number of machines that are done. All settings have the same compressor.
///
/// The settings within the objective come first, those of the largest coverage before others; then
/// the others, those of the lowest promotion rate first. Any number of threads gives the same.
///
/// # Errors
///
/// [`FolderError`] of the first file that cannot be read, in the order of the files.
pub fn tune(
    files: &[SampleFiles],
    settings: &[Parameters],
    threads: usize,
    progress: impl Fn(usize) + Sync,
) -> Result<Tuned, FolderError> {
    let results: Vec<OnceLock<Result<Replayed, FolderError>>> =
        files.iter().map(|_| OnceLock::new()).collect();
    // Sums do not depend on the order in which machines are added.
    let fleet: Mutex<Vec<Outcome>> = Mutex::new(settings.iter().map(|_| Outcome::new()).collect());
    let (next, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let work = || {
        while let Some((files, result)) = at(files, &results, next.fetch_add(1, Ordering::Relaxed))
        {
            // This thread alone has the place.
            let _ = result.set(replayed(files, settings, &fleet));
            progress(done.fetch_add(1, Ordering::Relaxed) + 1);
        }
    };
    thread::scope(|scope| (0..threads.max(1)).for_each(|_| drop(scope.spawn(work))));

    let mut machines: Vec<Vec<ReplayRow>> = settings.iter().map(|_| Vec::new()).collect();
    let mut samples_without_end = 0;
    for result in results {
        let (rows, has_end) = result.into_inner().expect("each place was taken")?;
        samples_without_end += u64::from(!has_end);
        machines.iter_mut().zip(rows).for_each(|(machines, row)| machines.push(row));
    }
    let fleet = fleet.into_inner().expect(NO_PANIC);
    let outcomes = fleet.into_iter().zip(machines);
    let tried = settings.iter().zip(outcomes).map(|(&parameters, (fleet, machines))| Tried {
        parameters,
        fleet: fleet.row(&parameters, None),
        machines,
    });
    let mut settings: Vec<Tried> = tried.collect();
    settings.sort_by(|one, other| order(&one.fleet, &other.fleet));
    Ok(Tuned { settings, samples_without_end })
}

/// Why the sums can be taken.
const NO_PANIC: &str = "no thread panics while it adds";

fn at<'a, F, R>(files: &'a [F], results: &'a [R], place: usize) -> Option<(&'a F, &'a R)> {
    files.get(place).zip(results.get(place))
}

/// The row of a machine for each setting, and whether its sample has an end.
type Replayed = (Vec<ReplayRow>, bool);

/// Replays one machine. Its outcomes are added to those of the fleet.
fn replayed(
    files: &SampleFiles,
    settings: &[Parameters],
    fleet: &Mutex<Vec<Outcome>>,
) -> Result<Replayed, FolderError> {
    let lengths = settings.first().map(|setting| setting.lengths).unwrap_or_default();
    let machine = Machine::read(files, lengths)?;
    let one = |(place, setting): (usize, &Parameters)| {
        let outcome = replay(&machine, setting);
        fleet.lock().expect(NO_PANIC)[place].add(&outcome);
        outcome.row(setting, Some(&machine))
    };
    Ok((settings.iter().enumerate().map(one).collect(), files.has_end()?))
}

/// Better settings first; equal ones stay in their order.
fn order(one: &ReplayRow, other: &ReplayRow) -> std::cmp::Ordering {
    other.within_slo.cmp(&one.within_slo).then_with(|| match one.within_slo {
        true => other.coverage.total_cmp(&one.coverage),
        false => one.p98_promotion_ppm.cmp(&other.p98_promotion_ppm),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SLO_PPM;
    use crate::folder::{prepare, samples, write};
    use crate::simulate::Source;
    use crate::table::{IntervalRow, RunRow, encode};

    /// Processes that touch more or less of what is cold.
    fn source() -> Source {
        let mut source = Source::default();
        let row = |process: u64, interval: u64| IntervalRow {
            process: Some(process),
            interval,
            seconds: 60.0,
            working_set_pages: Some(1000 * process),
            resident_pages: 5000,
            cold_pages: vec![4000, 3000, 2000],
            promoted_pages: vec![interval * process % 9, interval % 5, 0],
            ..IntervalRow::default()
        };
        let rows = (0..30).flat_map(|interval| (1..7).map(move |process| row(process, interval)));
        source.add(rows.collect(), Vec::new());
        source
    }

    #[test]
    fn any_number_of_threads_gives_the_same_and_the_best_comes_first() {
        let folder = tempfile::tempdir().unwrap();
        prepare(folder.path()).unwrap();
        let source = source();
        for number in 0..20 {
            let machine = source.machine(3, number);
            assert_eq!(machine, source.machine(3, number));
            assert_ne!(machine.intervals, source.machine(4, number).intervals);
            let name = format!("intervals-{number}.parquet");
            write(&folder.path().join(name), &encode(machine.intervals)).unwrap();
            if number < 10 {
                let ended_by = if number < 3 { "nothing" } else { "signal" }.to_owned();
                let run = RunRow { ended_by, ..machine.run };
                let name = format!("runs-{number}.parquet");
                write(&folder.path().join(name), &encode([run])).unwrap();
            }
        }
        let files = samples(folder.path()).unwrap();
        assert_eq!(files.len(), 20);
        let setting = |threshold_percentile, warm_up_seconds| Parameters {
            threshold_percentile,
            warm_up_seconds,
            slo_ppm: SLO_PPM,
            ..Parameters::default()
        };
        let settings = [setting(0, 0), setting(50, 600), setting(98, 0), setting(98, 100_000)];
        let one = tune(&files, &settings, 1, |_| {}).unwrap();
        for threads in [2, 7, 50] {
            let counted = AtomicUsize::new(0);
            let many = tune(&files, &settings, threads, |_| {
                counted.fetch_add(1, Ordering::Relaxed);
            });
            assert_eq!(many.unwrap(), one);
            assert_eq!(counted.into_inner(), 20);
        }
        assert_eq!(one.samples_without_end, 13, "no row of the run, or no end in it");
        let one = one.settings;
        let fleets: Vec<_> = one.iter().map(|tried| &tried.fleet).collect();
        assert!(fleets.is_sorted_by_key(|fleet| !fleet.within_slo), "{fleets:?}");
        let met = fleets.iter().filter(|fleet| fleet.within_slo);
        assert!(met.is_sorted_by(|one, other| one.coverage >= other.coverage), "{fleets:?}");
        assert!(fleets.iter().any(|fleet| fleet.coverage > 0.0), "{fleets:?}");
        let jobs: u64 = one[0].machines.iter().map(|row| row.jobs).sum();
        assert_eq!(one[0].fleet.jobs, jobs);

        std::fs::write(&files[7].intervals[0], b"PAR1 and not more").unwrap();
        let error = tune(&files, &settings, 3, |_| {}).unwrap_err();
        assert!(error.to_string().contains("intervals-15.parquet is not a table"), "{error}");
    }
}
