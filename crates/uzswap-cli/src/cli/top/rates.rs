//! Rates: changes from one sample to the next.

use std::collections::BTreeMap;

use serde::Serialize;

use super::trend::Trend;
use uzswap::zswap::LatencyCounts;
use uzswap_pager::RunStatus;

/// A run at one look.
#[derive(Debug, Serialize)]
pub(super) struct TopRun {
    #[serde(flatten)]
    pub(super) status: RunStatus,
    pub(super) interval: Interval,
    /// Faults a second of each process.
    #[serde(skip)]
    pub(super) process_rates: Vec<f64>,
    /// This sample and those before it.
    #[serde(skip)]
    pub(super) trend: Trend,
}

/// Changes since the previous sample; in the first one since the start of the run.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(super) struct Interval {
    pub(super) seconds: f64,
    pub(super) faults: u64,
    pub(super) faults_per_s: f64,
    /// Half of them took less than that, to a sixteenth; 0 without faults.
    pub(super) p50_ns: u64,
    /// 99 of 100 did.
    pub(super) p99_ns: u64,
}

/// The sample before, and the trends up to it.
#[derive(Debug, Default)]
pub(super) struct History(BTreeMap<u32, (RunStatus, Trend)>);

impl History {
    /// The next look.
    pub(super) fn next(&mut self, statuses: Vec<RunStatus>) -> Vec<TopRun> {
        let before = std::mem::take(&mut self.0);
        let mut runs = Vec::new();
        for mut status in statuses {
            status.processes.sort_by_key(|process| std::cmp::Reverse(process.resident_bytes));
            let earlier = before
                .get(&status.pid)
                // Another run may have its number now.
                .filter(|(earlier, _)| earlier.elapsed_s <= status.elapsed_s);
            let mut trend = earlier.map_or_else(Trend::default, |(_, trend)| trend.clone());
            let earlier = earlier.map(|(status, _)| status);
            let interval = interval(&status, earlier);
            trend.add(interval.faults_per_s, status.pool_bytes);
            runs.push(TopRun {
                interval,
                process_rates: process_rates(&status, earlier),
                status: status.clone(),
                trend: trend.clone(),
            });
            self.0.insert(status.pid, (status, trend));
        }
        runs
    }
}

fn seconds(status: &RunStatus, earlier: Option<&RunStatus>) -> f64 {
    status.elapsed_s - earlier.map_or(0.0, |earlier| earlier.elapsed_s)
}

fn per_second(count: u64, seconds: f64) -> f64 {
    if seconds > 0.0 { count as f64 / seconds } else { 0.0 }
}

fn interval(status: &RunStatus, earlier: Option<&RunStatus>) -> Interval {
    let seconds = seconds(status, earlier);
    let nothing = LatencyCounts::default();
    let times = status.fault_times.since(earlier.map_or(&nothing, |earlier| &earlier.fault_times));
    Interval {
        seconds,
        faults: times.count,
        faults_per_s: per_second(times.count, seconds),
        p50_ns: times.percentile_ns(50.0),
        p99_ns: times.percentile_ns(99.0),
    }
}

fn process_rates(status: &RunStatus, earlier: Option<&RunStatus>) -> Vec<f64> {
    let seconds = seconds(status, earlier);
    let before = |pid: u32| {
        let processes = earlier.map(|earlier| &earlier.processes)?;
        processes.iter().find(|process| process.pid == pid).map(|process| process.faults)
    };
    let rate = |process: &uzswap_pager::ProcessStatus| {
        let faults = process.faults.checked_sub(before(process.pid).unwrap_or(0));
        per_second(faults.unwrap_or(process.faults), seconds)
    };
    status.processes.iter().map(rate).collect()
}

/// A run for tests of what shows it.
#[cfg(test)]
pub(super) fn sample_run(pid: u32, processes: u32) -> TopRun {
    use uzswap_pager::{HeldBack, ProcessStatus};
    let processes: Vec<ProcessStatus> = (0..processes)
        .map(|number| ProcessStatus {
            pid: pid + number,
            name: "a name \x1b[31m".to_owned(),
            resident_bytes: 60 << 20,
            stored_pages: 77_000,
            ..ProcessStatus::default()
        })
        .collect();
    let interval =
        Interval { seconds: 1.0, faults: 9, faults_per_s: 12_345.4, p50_ns: 5888, p99_ns: 39_000 };
    let process_rates = processes.iter().map(|_| 2.0).collect();
    let status = RunStatus {
        pid,
        command: vec!["python3".to_owned(), "a long name of a job.py\n".to_owned()],
        limit_bytes: 117 << 20,
        used_bytes: 115 << 20,
        resident_bytes: 60 << 20,
        pool_bytes: 53 << 20,
        held_back: HeldBack {
            margin_bytes: 2400 << 10,
            staging_bytes: 3 << 20,
            ..HeldBack::default()
        },
        ratio: Some(2.912),
        processes,
        ..RunStatus::default()
    };
    let mut trend = Trend::default();
    trend.add(1000.0, 1 << 20);
    trend.add(interval.faults_per_s, status.pool_bytes);
    TopRun { status, interval, process_rates, trend }
}

#[cfg(test)]
mod tests {
    use super::*;
    use uzswap::zswap::LatencyBucket;
    use uzswap_pager::ProcessStatus;

    fn status(elapsed_s: f64, buckets: &[(u64, u64)], faults: &[(u32, u64)]) -> RunStatus {
        let buckets: Vec<LatencyBucket> =
            buckets.iter().map(|&(below_ns, count)| LatencyBucket { below_ns, count }).collect();
        let count = buckets.iter().map(|bucket| bucket.count).sum();
        let processes = faults
            .iter()
            .map(|&(pid, faults)| ProcessStatus {
                pid,
                faults,
                resident_bytes: u64::from(pid),
                ..ProcessStatus::default()
            })
            .collect();
        let fault_times = LatencyCounts { count, sum_ns: 0, buckets };
        RunStatus { pid: 7, elapsed_s, fault_times, processes, ..RunStatus::default() }
    }

    #[test]
    fn an_interval_is_the_difference_of_two_looks() {
        let mut history = History::default();
        let first = history.next(vec![status(4.0, &[(1000, 90), (5000, 10)], &[(1, 60), (2, 40)])]);
        let TopRun { interval, process_rates, status: shown, .. } = &first[0];
        let all =
            Interval { seconds: 4.0, faults: 100, faults_per_s: 25.0, p50_ns: 1000, p99_ns: 5000 };
        assert_eq!(*interval, all);
        // The largest first.
        assert_eq!((shown.processes[0].pid, &process_rates[..]), (2, &[10.0, 15.0][..]));

        let later = status(6.0, &[(1000, 91), (5000, 10), (9000, 3)], &[(1, 62), (3, 6), (2, 4)]);
        let second = history.next(vec![later.clone()]);
        let TopRun { interval, process_rates, .. } = &second[0];
        let last =
            Interval { seconds: 2.0, faults: 4, faults_per_s: 2.0, p50_ns: 9000, p99_ns: 9000 };
        assert_eq!(*interval, last);
        // 3 is new, and so is another process 2.
        assert_eq!(process_rates[..], [3.0, 2.0, 1.0]);

        let third = history.next(vec![later]);
        let none = Interval { seconds: 0.0, faults: 0, faults_per_s: 0.0, p50_ns: 0, p99_ns: 0 };
        assert_eq!(third[0].interval, none);

        // Another run with the same number.
        let other = history.next(vec![status(1.0, &[(1000, 5)], &[])]);
        assert_eq!((other[0].interval.faults, other[0].interval.seconds), (5, 1.0));
        assert!(history.next(Vec::new()).is_empty());
        let again = history.next(vec![status(2.0, &[(1000, 5)], &[])]);
        assert_eq!(again[0].interval.faults, 5);
    }
}
