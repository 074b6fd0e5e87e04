//! The report of a run at its end.

use serde::{Deserialize, Serialize};

use super::Pager;
use crate::account::held_back::HeldBack;
use crate::account::peaks::AtPeak;
use crate::account::timeline::RunSample;
use crate::account::uncounted::Uncounted;
use crate::program::procfs::size_of;
use crate::store::writeback::WriteBackReport;
use crate::telemetry::counters::{FaultTimes, FreeTimes, PagerCounts};
use uzswap::page::PAGE_SIZE;
use uzswap::trace::RecordReport;
use uzswap::zswap::{Counters, LatencyCounts, LatencyStats};
use uzswap_sys::process;

/// What a run used and did.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RunReport {
    /// In bytes.
    pub limit_bytes: u64,
    /// The most that programs, pool and what is known of pages took at once, as it was sampled.
    pub peak_bytes: u64,
    /// Its parts. Each may have had its own peak at another time. 0 for runs that ended before.
    #[serde(default)]
    pub at_peak: AtPeak,
    /// The memory that was held back from programs at that time. 0 for runs that ended before.
    #[serde(default)]
    pub held_back: HeldBack,
    /// The most resident anonymous memory of all programs together, as it was sampled.
    pub resident_peak_bytes: u64,
    /// The most host pages of the pool.
    pub pool_peak_bytes: u64,
    /// Pages in the store then, uncompressed.
    pub pages_at_pool_peak: u64,
    /// Their bytes to those of the pool; none where nothing was stored.
    pub ratio: Option<f64>,
    /// The most that was known of pages: index, tables, descriptors.
    pub metadata_peak_bytes: u64,
    /// The most that the kernel's page tables of all programs took (`VmPTE`), as they were sampled
    /// twice a second; beside the limit. 0 for runs that ended before.
    #[serde(default)]
    pub page_tables_peak_bytes: u64,
    /// Pages in and out.
    pub counts: PagerCounts,
    /// Of faults of registered memory.
    pub faults: FaultTimes,
    /// Memory of the supervisor and its guard at their end: `RssAnon`.
    pub own_bytes: u64,
    /// Processor time of the supervisor, in nanoseconds: of all threads, in user mode and in the
    /// kernel.
    pub own_cpu_ns: u64,
    /// How long its threads ran at ordinary priority because others waited for a processor, and its
    /// share was used up or its work in vain, in nanoseconds. 0 for runs that ended before.
    #[serde(default)]
    pub ordinary_priority_ns: u64,
    /// What the store did.
    pub store: Counters,
    /// How long stores and loads took; one in 16 is timed, and none without `--stats`.
    pub latencies: LatencyStats,
    /// How long each fault took, from when the supervisor read it to when the page was there.
    pub fault_latencies: LatencyCounts,
    /// Freeing what is not needed any more.
    pub frees: FreeTimes,
    /// Processes that were ended because programs needed more than the limit.
    pub out_of_memory_kills: u64,
    /// The most memory that did not count, as it was sampled.
    #[serde(default)]
    pub uncounted: Uncounted,
    /// Memory over time.
    pub timeline: Vec<RunSample>,
    /// Writeback, where there is a file for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backing: Option<WriteBackReport>,
    /// The trace, where one was recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace: Option<RecordReport>,
}

impl RunReport {
    /// Whether the page tables of programs are worth a word: 1/16 of the limit or more.
    pub fn has_large_page_tables(&self) -> bool {
        are_page_tables_large(self.page_tables_peak_bytes, self.limit_bytes)
    }
}

/// Whether page tables are much, for this limit: 1/16 of it. Dense memory has 1/512 of its size.
pub(super) fn are_page_tables_large(bytes: u64, limit_bytes: u64) -> bool {
    bytes >= limit_bytes / 16 && bytes >= 1 << 20
}

impl Pager {
    pub(super) fn report(&self, trace: Option<RecordReport>) -> RunReport {
        let own = [Some(std::process::id()), self.guard_pid()].into_iter().flatten();
        let own_pages: u64 = own.filter_map(size_of).map(|size| size.anonymous).sum();
        let peak = self.account.peak();
        let cpu = process::cpu_time();
        let (at_peak, held_back, timeline) = self.account.begin_sample().into_history();
        let (faults, fault_latencies) = self.meter.times_and_counts();
        RunReport {
            limit_bytes: self.account.limit_bytes(),
            peak_bytes: peak.total,
            at_peak,
            held_back,
            resident_peak_bytes: peak.resident,
            pool_peak_bytes: peak.pool,
            pages_at_pool_peak: peak.stored_pages,
            ratio: ratio(peak.stored_pages, peak.pool),
            metadata_peak_bytes: peak.metadata,
            page_tables_peak_bytes: peak.page_tables,
            counts: self.meter.counts(),
            faults,
            own_bytes: own_pages * PAGE_SIZE as u64,
            own_cpu_ns: (cpu.user + cpu.sys).as_nanos() as u64,
            ordinary_priority_ns: self.sched.ordinary_ns(),
            store: self.store.zswap().counters(),
            latencies: self.store.zswap().latencies(),
            fault_latencies,
            frees: self.meter.frees(),
            out_of_memory_kills: self.meter.kills(),
            uncounted: self.account.uncounted().get(),
            timeline,
            backing: self.store.write_back_report(),
            trace,
        }
    }
}

/// Stored pages, uncompressed, to the pool; none where it is empty.
pub(super) fn ratio(stored_pages: u64, pool_bytes: u64) -> Option<f64> {
    (pool_bytes > 0).then(|| (stored_pages * PAGE_SIZE as u64) as f64 / pool_bytes as f64)
}
