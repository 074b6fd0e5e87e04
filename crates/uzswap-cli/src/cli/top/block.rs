//! Formats one sample of many in a file or a pipe: a line for each run and each process.

use super::figures::{bytes, percentiles, rate, ratio};
use super::rates::TopRun;
use crate::cli::stat::printable;
use uzswap::page::PAGE_SIZE;

/// Columns of a command. With the others they are 100.
const COMMAND: usize = 35;

/// A header, a line for each run, and below it one for each of its processes.
pub(super) fn block(runs: &[TopRun]) -> Vec<String> {
    let header = line([
        "PID", "COMMAND", "LIMIT", "USED", "RESIDENT", "POOL", "RATIO", "FAULTS/s", "P50", "P99",
    ]);
    let mut lines = vec![header];
    for run in runs {
        lines.push(line_of_run(run));
        lines.extend(lines_of_processes(run));
    }
    lines
}

fn line(cells: [&str; 10]) -> String {
    let [pid, command, limit, used, resident, pool, ratio, faults, p50, p99] = cells;
    format!(
        "{pid:>7} {command:<COMMAND$}{limit:>6}{used:>6}{resident:>9}{pool:>6}{ratio:>7}\
         {faults:>9}{p50:>7}{p99:>7}"
    )
}

fn line_of_run(run: &TopRun) -> String {
    let TopRun { status, interval, .. } = run;
    let [p50, p99] = percentiles(interval);
    line([
        &status.pid.to_string(),
        &printable(&status.command.join(" "), COMMAND),
        &bytes(status.limit_bytes),
        &bytes(status.used_bytes),
        &bytes(status.resident_bytes),
        &bytes(status.pool_bytes),
        &ratio(status.ratio),
        &rate(interval.faults_per_s),
        &p50,
        &p99,
    ])
}

fn lines_of_processes(run: &TopRun) -> impl Iterator<Item = String> {
    let processes = run.status.processes.iter().zip(&run.process_rates);
    processes.map(|(process, &faults)| {
        let stored = bytes(process.stored_pages.saturating_mul(PAGE_SIZE as u64));
        format!(
            "{:>7}   {:<name$}{:>9}{:>13}{:>9}",
            process.pid,
            printable(&process.name, COMMAND + 10),
            bytes(process.resident_bytes),
            format!("{stored} stored"),
            rate(faults),
            name = COMMAND + 10
        )
    })
}

#[cfg(test)]
mod tests {
    use super::super::rates::sample_run;
    use super::*;

    #[test]
    fn a_run_and_its_processes_have_a_line_each() {
        let process = |pid| {
            let blanks = " ".repeat(33);
            format!("   {pid}   a name ?[31m{blanks}    60.0M  301M stored      2.0")
        };
        let expected = [
            "    PID COMMAND                             LIMIT  USED RESIDENT  POOL  RATIO \
             FAULTS/s    P50    P99"
                .to_owned(),
            "   4240 python3 a long name of a job.py?     117M  115M    60.0M 53.0M   2.91    \
             12345  5.9us 39.0us"
                .to_owned(),
            process(4240),
            process(4241),
        ];
        assert_eq!(block(&[sample_run(4240, 2)]), expected);
        assert!(expected.iter().all(|line| line.len() <= 100));
        assert_eq!(block(&[]).len(), 1);
    }
}
