//! Torture: the real store in a simulated world where everything fails, against a slow model that
//! checks every answer and every counter.
//!
//! ```text
//!   seed -> plan ------> world: a backing that lies, a pool that gets no memory and rots,
//!             |          |      an index that gets none, a compressor that fails
//!             |        store
//!             '-> history | its answers
//!                        model: what each key holds, what went wrong, what the counters must be
//! ```
//!
//! With one thread a seed has one history. A second thread works in turn with the first, at points
//! where it reads, writes, compresses or holds an object; so races happen on purpose and can be
//! repeated. By several threads the store meets real races: each thread knows what its own keys
//! hold, and pages of shared keys tell whose they are.

mod checks;
mod concurrent;
mod faults;
mod history;
mod pages;
mod plan;
mod planted_bugs;
mod snapshots;
mod world;

use std::collections::BTreeMap;

use serde::Serialize;

pub use faults::{Fault, FaultSet};
pub use plan::Summary;
pub use planted_bugs::PlantedBug;

use uzswap::zswap::Counters;

/// Work for each seed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Torture {
    /// Operations, of each thread.
    pub operations: u64,
    /// Threads, 1 to 64; with more than one histories are not the same each time.
    pub threads: usize,
    /// What may fail.
    pub faults: FaultSet,
    /// A bug that is put in.
    pub plant: Option<PlantedBug>,
}

impl Default for Torture {
    /// One thread and all faults.
    fn default() -> Self {
        Torture { operations: 20_000, threads: 1, faults: FaultSet::ALL, plant: None }
    }
}

/// What became of a seed.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// Operations done.
    pub operations: u64,
    /// A hash of all answers.
    pub digest: u64,
    /// How often the store answered what.
    pub tally: BTreeMap<&'static str, u64>,
    /// How often what failed, in the order of [`Fault::ALL`].
    pub fired: [u64; Fault::ALL.len()],
    /// The store's counters at the end.
    pub counters: Counters,
    /// What was wrong.
    pub failure: Option<Failure>,
}

/// What was wrong.
#[derive(Debug, Clone, Serialize)]
pub struct Failure {
    /// The seed.
    pub seed: u64,
    /// What was expected and found.
    pub what: String,
    /// The command that does it again.
    pub replay: String,
    /// The store.
    pub plan: Summary,
    /// The last operations on that key, oldest first.
    pub steps: Vec<String>,
}

impl Torture {
    /// Runs one seed.
    pub fn run(&self, seed: u64) -> Outcome {
        match self.threads {
            0 | 1 => history::run(self, seed),
            _ => concurrent::run(self, seed),
        }
    }

    fn replay(&self, seed: u64, operations: u64) -> String {
        let Torture { threads, faults, plant, .. } = self;
        let plant = plant.map_or(String::new(), |plant| format!(" --plant {plant}"));
        format!(
            "cargo run --release -p uzswap-torture -- --seed {seed} --seeds 1 --ops {operations} \
             --threads {threads} --faults {faults}{plant}"
        )
    }
}

impl Outcome {
    fn failed(failure: Failure) -> Outcome {
        Outcome {
            operations: 0,
            digest: 0,
            tally: BTreeMap::new(),
            fired: [0; Fault::ALL.len()],
            counters: Counters::default(),
            failure: Some(failure),
        }
    }
}

impl Failure {
    fn early(torture: &Torture, seed: u64, what: String) -> Failure {
        let plan = plan::Plan::new(seed, torture.faults, torture.plant).summary();
        Failure { seed, what, replay: torture.replay(seed, 1), plan, steps: Vec::new() }
    }
}
