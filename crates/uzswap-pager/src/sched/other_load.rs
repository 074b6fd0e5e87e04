//! Whether others than the run keep the processors busy.

use std::fs;
use std::time::{Duration, Instant};

use uzswap_sys::process;

/// Others are there if they took one part in so many of a processor. More than the error of
/// clock ticks, and less than a loop keeps beside a supervisor at raised priority.
const PART: u32 = 8;

/// Processor time since the machine, or the run, began.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Used {
    pub(crate) at: Instant,
    /// In which no processor of the machine had work for this machine, of all of them.
    idle: Duration,
    processors: u32,
    own: Duration,
    /// Of the run's processes, and of those that they have waited for.
    pub(crate) programs: Duration,
}

impl Used {
    /// `processes` are those of the run. `None` where the kernel does not say.
    pub(crate) fn now(processes: &[u32]) -> Option<Used> {
        let at = Instant::now();
        let (idle, processors) = idle(&fs::read_to_string("/proc/stat").ok()?)?;
        let times = [process::cpu_time(), process::cpu_time_of_children()];
        let [own, ended] = times.map(|used| used.user + used.sys);
        let ticks = processes.iter().filter_map(|pid| process::cpu_ticks(*pid)).sum();
        Some(Used { at, idle, processors, own, programs: ended + process::time_of_ticks(ticks) })
    }

    /// The processor time of others since then.
    fn by_others_since(&self, before: &Used) -> Duration {
        let all = (self.at - before.at) * self.processors;
        let idle = self.idle.saturating_sub(before.idle);
        // Less than before, if a process has ended that nobody waits for: its time is others'.
        let run = (self.own + self.programs).saturating_sub(before.own + before.programs);
        all.saturating_sub(idle + run)
    }
}

/// Samples whether other programs had processors since the last sample.
#[derive(Debug, Default)]
pub(crate) struct OtherLoad {
    before: Option<Used>,
}

impl OtherLoad {
    /// Whether others had a part of a processor since the last sample, by this one. `false` at the
    /// first sample, and `true` where the kernel does not say.
    pub(crate) fn see(&mut self, now: Option<Used>) -> bool {
        let before = std::mem::replace(&mut self.before, now);
        match (before, now) {
            (Some(before), Some(now)) => now.by_others_since(&before) * PART >= now.at - before.at,
            (_, now) => now.is_none(),
        }
    }
}

/// Of `/proc/stat`: the time in which processors were idle, waited for a disk, or were another
/// machine's (steal); and how many processors there are.
fn idle(stat: &str) -> Option<(Duration, u32)> {
    let all = stat.lines().find_map(|line| line.strip_prefix("cpu "))?;
    let ticks = |field: usize| all.split_ascii_whitespace().nth(field)?.parse::<u64>().ok();
    let idle = ticks(3)? + ticks(4)? + ticks(7).unwrap_or(0);
    let processors = stat.lines().filter(|line| line.starts_with("cpu")).count() as u32 - 1;
    Some((process::time_of_ticks(idle), processors))
}

#[cfg(test)]
mod tests {
    use super::*;

    const STAT: &str = "cpu  50 5 20 700 40 9 8 60 1 0\ncpu0 25 2 10 350 20 4 4 30 1 0\n\
                        cpu1 25 3 10 350 20 5 4 30 0 0\nintr 12 0 3\nctxt 3\n";

    #[test]
    fn idle_time_is_read() {
        let second = process::time_of_ticks(100);
        assert_eq!(idle(STAT), Some((second * 8, 2)));
        assert_eq!(idle("cpu  50 5 20 700 40\ncpu0 1 2\n"), Some((second * 74 / 10, 1)));
        for cut in ["", "cpu  50 5 20 700", "cpu  50 5 20 x 40 9", "cpu0 50 5 20 700 40"] {
            assert_eq!(idle(cut), None);
        }
    }

    #[test]
    fn others_have_neither_idle_time_nor_that_of_the_run() {
        let start = Instant::now();
        let at = |ms: u64, idle: u64, run: u64| {
            let [idle, run] = [idle, run].map(Duration::from_millis);
            let [own, programs] = [run / 2; 2];
            Some(Used { at: start + Duration::from_millis(ms), idle, processors: 2, own, programs })
        };
        let mut load = OtherLoad::default();
        assert!(!load.see(at(0, 5000, 700)), "the first look");
        assert!(!load.see(at(500, 6000, 700)), "an idle machine");
        assert!(!load.see(at(1000, 6000, 1700)), "all of it is the run's");
        assert!(!load.see(at(1500, 6500, 2150)), "50 ms are others'");
        assert!(load.see(at(2000, 7000, 2580)), "70 ms are");
        assert!(load.see(at(2500, 7000, 1000)), "a process of the run was not waited for");
        assert!(!load.see(at(3000, 8100, 1000)), "ticks are late");
        assert!(load.see(None), "the kernel does not say");
        assert!(!load.see(at(4000, 8100, 1000)), "a first look again");
    }

    #[test]
    fn the_time_of_this_process_is_not_others() {
        let before = Used::now(&[]).unwrap();
        while before.at.elapsed() < Duration::from_millis(50) {
            std::hint::spin_loop();
        }
        let now = Used::now(&[]).unwrap();
        assert!(now.own > before.own && now.processors == before.processors);
        let beside = Used { own: before.own, ..now }.by_others_since(&before);
        assert!(now.by_others_since(&before) < beside || beside.is_zero());
    }
}
