//! Accesses to a pool with a limit: pages are loaded by Zipf's law, and each answer is compared.
//!
//! An access to a page that the store refused is a miss: the page is stored then, as after a fetch
//! from elsewhere.

use std::sync::Arc;
use std::time::Instant;

use serde::{Deserialize, Serialize};

use super::{Buffers, ReplayError, Run, Spent, check};
use crate::corpus::zipf::Zipf;
use crate::measure::histogram::Latencies;
use crate::measure::limited_pool::{AccessSettings, Meter};
use uzswap::page::PageKey;
use uzswap::random::SplitMix64;
use uzswap::zswap::{LatencyCounts, ShrinkerOptions, Zswap};
use uzswap_sys::process::cpu_time;

/// Work beside a replay without limits.
#[derive(Debug)]
pub struct Accesses {
    zipf: Zipf,
    words: SplitMix64,
    settings: AccessSettings,
    meter: Arc<Meter>,
    /// The thread that runs meanwhile.
    pub(super) shrinker: Option<ShrinkerOptions>,
}

impl Accesses {
    /// Accesses to `pages` pages of a store whose backing has this meter.
    pub fn new(
        pages: usize,
        settings: AccessSettings,
        meter: Arc<Meter>,
        shrinker: Option<ShrinkerOptions>,
    ) -> Accesses {
        let mut words = SplitMix64::new(settings.seed);
        let zipf = Zipf::new(pages, settings.skew, &mut words);
        Accesses { zipf, words, settings, meter, shrinker }
    }
}

/// Results of the accesses, and the pages written back until their end.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Accessed {
    /// Accesses.
    pub accesses: u64,
    /// Of these, loads from the pool.
    pub pool_hits: u64,
    /// Of these, loads from the backing.
    pub backing_hits: u64,
    /// Of these, to pages that had been refused.
    pub misses: u64,
    /// Of the pages stored first, those that were refused.
    pub refused_pages: u64,
    /// Stores of the accesses that were refused.
    pub refused_stores: u64,
    /// Time in loads and stores.
    pub spent: Spent,
    /// Pages written back.
    pub written_back_pages: u64,
    /// Pages that left the pool without a write, as the backing still had them.
    pub dropped_clean_pages: u64,
    /// Pages that a load brought back from the backing into the pool.
    pub promoted_pages: u64,
    /// Pages that the pool refused and the backing took.
    pub written_through_pages: u64,
    /// Writebacks that failed.
    pub reject_reclaim_fail: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Batches that were written back, from their choice on.
    pub writeback: LatencyCounts,
    /// The most the pool had.
    pub pool_peak_bytes: u64,
    /// Loads from the pool.
    pub pool_load_ns: Latencies,
    /// Loads from the backing, with bringing back.
    pub backing_load_ns: Latencies,
    /// Stores.
    pub store_ns: Latencies,
}

/// What an operation was.
#[derive(Debug, Clone, Copy)]
enum Done {
    FromPool,
    FromBacking,
    Store,
}

impl Accessed {
    /// Notes what the store counted.
    fn note(&mut self, zswap: &Zswap, meter: &Meter) {
        let counters = zswap.counters();
        self.written_back_pages = counters.written_back_pages;
        self.dropped_clean_pages = counters.dropped_clean_pages;
        self.promoted_pages = counters.promoted_pages;
        self.written_through_pages = counters.written_through_pages;
        self.reject_reclaim_fail = counters.reject_reclaim_fail;
        self.written_bytes = meter.written_bytes();
        self.writeback = zswap.latencies().writeback;
        self.pool_peak_bytes = zswap.memory().pool_peak_bytes;
    }
}

impl Run<'_> {
    /// Does the accesses.
    pub(super) fn access(
        &mut self,
        plan: &mut Accesses,
        accessed: &mut Accessed,
    ) -> Result<(), ReplayError> {
        const WHEN: &str = "accessed";
        let Accesses { zipf, words, settings, meter, .. } = plan;
        accessed.accesses = settings.count;
        accessed.refused_pages = self.buffers.held.iter().filter(|&&held| !held).count() as u64;
        let Buffers { made, loaded, held, .. } = &mut *self.buffers;
        let mut numbers = vec![0; made.len()];
        let mut was_loaded = vec![false; made.len()];
        let mut done: Vec<(Done, Instant)> = Vec::with_capacity(2 * made.len());
        let mut left = settings.count;
        while left > 0 {
            let count = numbers.len().min(usize::try_from(left).unwrap_or(usize::MAX));
            left -= count as u64;
            for (number, room) in numbers[..count].iter_mut().zip(made.iter_mut()) {
                *number = zipf.draw(words) as usize;
                // Now, as making it up takes time.
                self.corpus.copy_page(*number, room);
            }
            done.clear();
            let before = cpu_time();
            let start = Instant::now();
            for (place, &number) in numbers[..count].iter().enumerate() {
                let key = PageKey(number as u64);
                was_loaded[place] = held[number];
                let mut stored = &made[place];
                if held[number] {
                    let reads = meter.reads();
                    let found = match settings.exclusive {
                        true => self.zswap.load_exclusive(key, &mut loaded[place]),
                        false => self.zswap.load(key, &mut loaded[place]),
                    }
                    .map_err(|source| ReplayError::Load {
                        number,
                        when: WHEN,
                        source,
                    })?;
                    let from =
                        if meter.reads() == reads { Done::FromPool } else { Done::FromBacking };
                    done.push((from, Instant::now()));
                    if !found {
                        let zpool = self.zswap.zpool().name();
                        return Err(ReplayError::Presence {
                            number,
                            held: false,
                            zpool,
                            when: WHEN,
                        });
                    }
                    if !settings.exclusive {
                        continue;
                    }
                    stored = &loaded[place];
                } else {
                    accessed.misses += 1;
                }
                held[number] = self.zswap.store(key, stored).is_ok();
                accessed.refused_stores += u64::from(!held[number]);
                done.push((Done::Store, Instant::now()));
            }
            accessed.spent.add(start.elapsed(), before, cpu_time());
            let mut from = start;
            for &(what, end) in &done {
                let latencies = match what {
                    Done::FromPool => {
                        accessed.pool_hits += 1;
                        &mut accessed.pool_load_ns
                    }
                    Done::FromBacking => {
                        accessed.backing_hits += 1;
                        &mut accessed.backing_load_ns
                    }
                    Done::Store => &mut accessed.store_ns,
                };
                let ns = end.duration_since(from).as_nanos();
                latencies.record(ns.try_into().unwrap_or(u64::MAX));
                from = end;
            }
            for (place, &number) in numbers[..count].iter().enumerate() {
                if was_loaded[place] {
                    let (zpool, compressor) = (self.zswap.zpool().name(), self.compressor);
                    check(number, &made[place], &loaded[place], zpool, compressor, WHEN)?;
                }
            }
        }
        accessed.note(self.zswap, meter);
        Ok(())
    }
}
