//! Machines that are made of sampled ones, from a seed.
//!
//! A machine gets some of the processes that were sampled anywhere. Each is scaled by half to twice
//! its pages, begins at another of its intervals and goes round, and has other hashes. The pages
//! that were sampled of it come along. So a simulated machine has the shapes of real ones: no curve
//! is made up.

use std::collections::BTreeMap;

use uzswap::random::SplitMix64;

use crate::table::{IntervalRow, PageRow, RunRow};

/// Processes of a machine.
const PROCESSES: std::ops::RangeInclusive<u64> = 5..=40;

/// Pages of a process that come along: enough for its mean length.
const PAGES_MAX: usize = 64;

/// Processes to make machines of.
#[derive(Debug, Clone, Default)]
pub struct Source {
    /// Of each, its intervals in the order of time, and pages.
    processes: Vec<(Vec<IntervalRow>, Vec<PageRow>)>,
    memory_bytes: u64,
}

/// The rows of a machine.
#[derive(Debug, Clone, PartialEq)]
pub struct Simulated {
    /// Its sample.
    pub run: RunRow,
    /// Its intervals.
    pub intervals: Vec<IntervalRow>,
    /// Its pages.
    pub pages: Vec<PageRow>,
}

impl Source {
    /// Adds the processes of a sample whose ages are known.
    pub fn add(&mut self, intervals: Vec<IntervalRow>, pages: Vec<PageRow>) {
        let mut processes: BTreeMap<u64, (Vec<IntervalRow>, Vec<PageRow>)> = BTreeMap::new();
        for row in intervals {
            match row.process {
                Some(process) if !row.cold_pages.is_empty() => {
                    processes.entry(process).or_default().0.push(row);
                }
                Some(_) => {}
                None => self.memory_bytes = self.memory_bytes.max(row.resident_pages << 12),
            }
        }
        for page in pages {
            if let Some((_, pages)) = processes.get_mut(&page.process)
                && pages.len() < PAGES_MAX
            {
                pages.push(page);
            }
        }
        self.processes.extend(processes.into_values());
    }

    /// Processes so far.
    pub fn processes(&self) -> usize {
        self.processes.len()
    }

    /// The machine of this number: the same for the same seed. There is at least one process.
    pub fn machine(&self, seed: u64, number: u64) -> Simulated {
        let mut random = SplitMix64::new(uzswap::random::mix(seed) ^ uzswap::random::mix(!number));
        let (run, host) = (random.next_word(), random.next_word());
        let count = PROCESSES.start() + random.next_word() % (PROCESSES.end() - PROCESSES.start());
        let (mut intervals, mut pages) = (Vec::new(), Vec::new());
        for _ in 0..count {
            let place = random.next_word() % self.processes.len() as u64;
            let (of, sampled) = &self.processes[place as usize];
            let process = random.next_word();
            let percent = 50 + random.next_word() % 151;
            let shift = random.next_word() as usize % of.len();
            for (at, row) in of.iter().enumerate() {
                let source = &of[(at + shift) % of.len()];
                let times = (row.interval, row.ended_at);
                intervals.push(scaled(source, percent, (run, host, process), times));
            }
            pages.extend(sampled.iter().map(|page| PageRow { run, host, process, ..page.clone() }));
        }
        intervals.sort_by_key(|row| (row.interval, row.process));
        let run = RunRow {
            run,
            host,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            ended_by: "plan".to_owned(),
            target: "simulated".to_owned(),
            intervals: intervals.last().map_or(0, |row| row.interval + 1),
            processes: count,
            sampled_pages: pages.len() as u64,
            age_source: "cleared-bits".to_owned(),
            memory_bytes: self.memory_bytes,
            notes: format!("simulated: machine {number} of seed {seed}"),
            ..RunRow::default()
        };
        Simulated { run, intervals, pages }
    }
}

/// A process's interval with so many percent of its pages.
fn scaled(
    row: &IntervalRow,
    percent: u64,
    (run, host, process): (u64, u64, u64),
    (interval, ended_at): (u64, crate::table::Micros),
) -> IntervalRow {
    let scale = |pages: u64| (u128::from(pages) * u128::from(percent) / 100) as u64;
    let list = |pages: &[u64]| pages.iter().map(|&pages| scale(pages)).collect();
    IntervalRow {
        run,
        host,
        process: Some(process),
        interval,
        ended_at,
        working_set_pages: row.working_set_pages.map(scale),
        resident_pages: scale(row.resident_pages),
        cold_pages: list(&row.cold_pages),
        promoted_pages: list(&row.promoted_pages),
        ..row.clone()
    }
}
