//! Counters of a process and of the machine, and what was added to them in an interval.

use std::fs;

use procfs::process::Process;
use procfs::{Current, CurrentSI, KernelStats, Meminfo, MemoryPressure};

use uzswap::page::PAGE_SIZE;
use uzswap_sys::process::time_of_ticks;

/// Counters that only grow, since the start of a process or of the machine.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Counters {
    pub(super) minor_faults: u64,
    pub(super) major_faults: u64,
    pub(super) cpu_us: u64,
    /// Of the machine, where the kernel tells.
    pub(super) stall_us: Option<u64>,
}

impl Counters {
    /// What was added since `before`.
    pub(super) fn since(self, before: Counters) -> Counters {
        let stall = |(now, before): (u64, u64)| now.saturating_sub(before);
        Counters {
            minor_faults: self.minor_faults.saturating_sub(before.minor_faults),
            major_faults: self.major_faults.saturating_sub(before.major_faults),
            cpu_us: self.cpu_us.saturating_sub(before.cpu_us),
            stall_us: self.stall_us.zip(before.stall_us).map(stall),
        }
    }
}

/// A process at a moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ProcessFacts {
    pub(super) name: String,
    /// Ticks from the start of the machine to that of the process: a PID is used again.
    pub(super) started: u64,
    pub(super) counters: Counters,
    pub(super) resident_pages: u64,
    pub(super) swapped_pages: u64,
}

impl ProcessFacts {
    /// Of a process that is there and may be read.
    pub(super) fn of(pid: i32) -> Option<ProcessFacts> {
        let process = Process::new(pid).ok()?;
        let (stat, status) = (process.stat().ok()?, process.status().ok()?);
        let pages = |kib: Option<u64>| kib.unwrap_or(0) * 1024 / PAGE_SIZE as u64;
        let counters = Counters {
            minor_faults: stat.minflt,
            major_faults: stat.majflt,
            cpu_us: micros_of_ticks(stat.utime + stat.stime),
            stall_us: None,
        };
        Some(ProcessFacts {
            name: stat.comm,
            started: stat.starttime,
            counters,
            resident_pages: pages(status.rssanon),
            swapped_pages: pages(status.vmswap),
        })
    }
}

/// The machine at a moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct MachineFacts {
    pub(super) memory_bytes: u64,
    pub(super) counters: Counters,
    pub(super) used_pages: u64,
    pub(super) swapped_pages: u64,
    /// zswap's pool and the memory of all zram devices; none without either.
    pub(super) pool_bytes: Option<u64>,
}

impl MachineFacts {
    /// Of this machine; a figure that the kernel does not give is 0.
    pub(super) fn now() -> MachineFacts {
        let Ok(meminfo) = Meminfo::current() else { return MachineFacts::default() };
        let available = meminfo.mem_available.unwrap_or(meminfo.mem_free);
        let vmstat = procfs::vmstat().unwrap_or_default();
        let count = |name: &str| vmstat.get(name).map_or(0, |&count| count.max(0) as u64);
        let major_faults = count("pgmajfault");
        let cpu = KernelStats::current().map_or(0, |stats| {
            let total = stats.total;
            let more = [total.irq, total.softirq, total.steal];
            total.user + total.nice + total.system + more.iter().flatten().sum::<u64>()
        });
        let zswap_bytes = meminfo.z_swap.filter(|&bytes| bytes > 0);
        let pools = [zswap_bytes, zram_bytes()];
        MachineFacts {
            memory_bytes: meminfo.mem_total,
            counters: Counters {
                minor_faults: count("pgfault").saturating_sub(major_faults),
                major_faults,
                cpu_us: micros_of_ticks(cpu),
                // Time in which some task waited for memory.
                stall_us: MemoryPressure::current().ok().map(|pressure| pressure.some.total),
            },
            used_pages: meminfo.mem_total.saturating_sub(available) / PAGE_SIZE as u64,
            swapped_pages: meminfo.swap_total.saturating_sub(meminfo.swap_free) / PAGE_SIZE as u64,
            pool_bytes: pools.into_iter().flatten().reduce(u64::saturating_add),
        }
    }
}

fn micros_of_ticks(ticks: u64) -> u64 {
    u64::try_from(time_of_ticks(ticks).as_micros()).unwrap_or(u64::MAX)
}

/// Memory of zram devices in use: the third figure of their `mm_stat`
/// (Documentation/admin-guide/blockdev/zram.rst).
fn zram_bytes() -> Option<u64> {
    let entries = fs::read_dir("/sys/block").ok()?.filter_map(Result::ok);
    let of_device = |entry: fs::DirEntry| {
        let text = fs::read_to_string(entry.path().join("mm_stat")).ok()?;
        text.split_whitespace().nth(2)?.parse().ok().filter(|&bytes: &u64| bytes > 0)
    };
    entries.filter_map(of_device).reduce(u64::saturating_add)
}
