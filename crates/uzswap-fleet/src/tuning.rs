//! All machines of a folder under all settings, over threads.
//!
//! ```text
//!  files --> a thread takes the next --> Machine --> an outcome for each setting --> its place
//!                                                                                     |
//!                     rows: the settings, the best first; then the machines of each <-'
//! ```

use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
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
) -> Result<Vec<Tried>, FolderError> {
    let results: Vec<OnceLock<Result<Replayed, FolderError>>> =
        files.iter().map(|_| OnceLock::new()).collect();
    let (next, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let work = || {
        while let Some((files, result)) = at(files, &results, next.fetch_add(1, Ordering::Relaxed))
        {
            let _ = result.set(replayed(files, settings)); // this thread alone has the place
            progress(done.fetch_add(1, Ordering::Relaxed) + 1);
        }
    };
    thread::scope(|scope| (0..threads.max(1)).for_each(|_| drop(scope.spawn(work))));

    let mut outcomes: Vec<(Outcome, Vec<ReplayRow>)> =
        settings.iter().map(|_| (Outcome::new(), Vec::new())).collect();
    for result in results {
        let machine = result.into_inner().expect("each place was taken")?;
        for ((fleet, rows), (row, outcome)) in outcomes.iter_mut().zip(machine) {
            fleet.add(&outcome);
            rows.push(row);
        }
    }
    let tried = settings.iter().zip(outcomes).map(|(&parameters, (fleet, machines))| Tried {
        parameters,
        fleet: fleet.row(&parameters, None),
        machines,
    });
    let mut tried: Vec<Tried> = tried.collect();
    tried.sort_by(|one, other| order(&one.fleet, &other.fleet));
    Ok(tried)
}

/// A row and an outcome for each setting.
type Replayed = Vec<(ReplayRow, Outcome)>;

fn at<'a, F, R>(files: &'a [F], results: &'a [R], place: usize) -> Option<(&'a F, &'a R)> {
    files.get(place).zip(results.get(place))
}

fn replayed(files: &SampleFiles, settings: &[Parameters]) -> Result<Replayed, FolderError> {
    let lengths = settings.first().map(|setting| setting.lengths).unwrap_or_default();
    let machine = Machine::read(files, lengths)?;
    let one = |setting: &Parameters| {
        let outcome = replay(&machine, setting);
        (outcome.row(setting, Some(&machine)), outcome)
    };
    Ok(settings.iter().map(one).collect())
}

/// Better settings first; equal ones stay in their order.
fn order(one: &ReplayRow, other: &ReplayRow) -> std::cmp::Ordering {
    other.within_slo.cmp(&one.within_slo).then_with(|| match one.within_slo {
        true => other.coverage.total_cmp(&one.coverage),
        false => one.p98_promotion_ppm.cmp(&other.p98_promotion_ppm),
    })
}
