//! All machines of a folder under all settings, over threads.
//!
//! ```text
//!  files --> a thread takes the next --> Machine --> an outcome for each setting
//!                                                       |                   |
//!                              a row, in the order of the files     sums of the fleet
//! ```

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use crate::folder::{FolderError, SampleFiles};
use crate::replay::{Machine, Outcome, Parameters, replay};
use crate::table::{ReplayRow, encode};

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

impl Tried {
    /// The bytes of the file `replays` with these settings, in their order.
    pub fn encode(tried: &[Tried]) -> Vec<u8> {
        let rows = tried.iter().flat_map(|it| std::iter::once(&it.fleet).chain(&it.machines));
        encode::<ReplayRow>(rows.cloned())
    }
}

/// The machines so far: their rows, and their sum for each setting. The order in which outcomes
/// come changes nothing.
#[derive(Debug)]
pub struct Fleet {
    parameters: Vec<Parameters>,
    /// Of each setting.
    sums: Vec<Outcome>,
    /// Of each setting, the rows by the places of the files.
    machines: Vec<BTreeMap<usize, ReplayRow>>,
}

impl Fleet {
    /// One without machines.
    pub fn new(settings: &[Parameters]) -> Fleet {
        Fleet {
            parameters: settings.to_vec(),
            sums: settings.iter().map(|_| Outcome::new()).collect(),
            machines: settings.iter().map(|_| BTreeMap::new()).collect(),
        }
    }

    /// Adds the outcome of a machine under the setting of this number. `place` is that of its files
    /// in their order.
    pub fn add(&mut self, place: usize, setting: usize, outcome: &Outcome) {
        self.sums[setting].add(outcome);
        self.machines[setting].insert(place, outcome.row(&self.parameters[setting]));
    }

    /// The settings, the best first as [`tune`] says.
    pub fn tuned(self) -> Tuned {
        let samples_without_end = self.sums.first().map_or(0, |sum| sum.samples_without_end);
        let all = self.parameters.into_iter().zip(self.sums).zip(self.machines);
        let mut settings: Vec<Tried> = all
            .map(|((parameters, sum), machines)| Tried {
                parameters,
                fleet: sum.row(&parameters),
                machines: machines.into_values().collect(),
            })
            .collect();
        settings.sort_by(|one, other| order(&one.fleet, &other.fleet));
        Tuned { settings, samples_without_end }
    }
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
    let lengths = settings.first().map(|setting| setting.lengths).unwrap_or_default();
    let fleet = Mutex::new(Fleet::new(settings));
    let failed: Mutex<BTreeMap<usize, FolderError>> = Mutex::default();
    let (next, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let work = || {
        loop {
            let place = next.fetch_add(1, Ordering::Relaxed);
            let Some(files) = files.get(place) else { break };
            match Machine::read(files, lengths) {
                Ok(machine) => {
                    for (number, setting) in settings.iter().enumerate() {
                        let outcome = replay(&machine, setting);
                        fleet.lock().expect(NO_PANIC).add(place, number, &outcome);
                    }
                }
                Err(error) => drop(failed.lock().expect(NO_PANIC).insert(place, error)),
            }
            progress(done.fetch_add(1, Ordering::Relaxed) + 1);
        }
    };
    thread::scope(|scope| (0..threads.max(1)).for_each(|_| drop(scope.spawn(work))));
    match failed.into_inner().expect(NO_PANIC).pop_first() {
        Some((_, error)) => Err(error),
        None => Ok(fleet.into_inner().expect(NO_PANIC).tuned()),
    }
}

/// Why the sums can be taken.
const NO_PANIC: &str = "no thread panics while it adds";

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
