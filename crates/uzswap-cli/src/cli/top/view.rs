//! Formats runs as lines of text.

use super::rates::TopRun;
use crate::cli::stat::printable;
use uzswap::page::PAGE_SIZE;

/// Room for text.
#[derive(Debug, Clone, Copy)]
pub(super) struct Size {
    pub(super) columns: usize,
    pub(super) lines: usize,
}

impl Size {
    /// A terminal that does not tell.
    pub(super) const TERMINAL: Size = Size { columns: 80, lines: 24 };
    /// A file, for which 100 columns are enough.
    pub(super) const FILE: Size = Size { columns: 100, lines: usize::MAX };
}

/// Columns of a command.
const COMMAND: std::ops::Range<usize> = 8..41;

/// Columns that a run takes without its command.
const OTHER: usize = 8 + 3 * 6 + 7 + 2 * 9 + 2 * 7;

/// A header, a line for each run, and below it one for each of its processes, as many as fit.
pub(super) fn frame(runs: &[TopRun], size: Size) -> Vec<String> {
    let width = size.columns.saturating_sub(OTHER).clamp(COMMAND.start, COMMAND.end - 1);
    let line = |cells: [&str; 10]| {
        let [pid, command, limit, used, resident, pool, ratio, faults, p50, p99] = cells;
        format!(
            "{pid:>7} {command:<width$}{limit:>6}{used:>6}{resident:>9}{pool:>6}{ratio:>7}\
             {faults:>9}{p50:>7}{p99:>7}"
        )
    };
    let header = line([
        "PID", "COMMAND", "LIMIT", "USED", "RESIDENT", "POOL", "RATIO", "FAULTS/s", "P50", "P99",
    ]);
    let groups = runs.iter().map(|run| {
        let TopRun { status, interval, process_rates } = run;
        let time = |ns: u64| if interval.faults > 0 { time(ns) } else { "-".to_owned() };
        let first = line([
            &status.pid.to_string(),
            &printable(&status.command.join(" "), width),
            &bytes(status.limit_bytes),
            &bytes(status.used_bytes),
            &bytes(status.resident_bytes),
            &bytes(status.pool_bytes),
            &status.ratio.map_or("-".to_owned(), ratio),
            &rate(interval.faults_per_s),
            &time(interval.p50_ns),
            &time(interval.p99_ns),
        ]);
        let processes = status.processes.iter().zip(process_rates).map(|(process, &faults)| {
            let stored = bytes(process.stored_pages.saturating_mul(PAGE_SIZE as u64));
            format!(
                "{:>7} {:<name$}{:>9}{:>13}{:>9}",
                process.pid,
                format!("  {}", printable(&process.name, width + 10)),
                bytes(process.resident_bytes),
                format!("{stored} stored"),
                rate(faults),
                name = width + 12
            )
        });
        (first, processes.collect())
    });
    let mut lines = vec![header];
    lines.extend(fit(groups.collect(), size.lines.saturating_sub(1)));
    for line in &mut lines {
        line.truncate(size.columns); // ASCII
        line.truncate(line.trim_end().len());
    }
    lines
}

/// At most so many lines: all runs if there is room for them, and processes in what is left, each
/// run as many as the others.
fn fit(groups: Vec<(String, Vec<String>)>, lines: usize) -> Vec<String> {
    let mut all = Vec::new();
    let count = groups.len();
    if count > lines {
        let shown = lines.saturating_sub(1);
        all.extend(groups.into_iter().take(shown).map(|(first, _)| first));
        all.push(format!("{:>7} more", count - shown));
        return all;
    }
    let mut left = lines - count;
    for (at, (first, mut processes)) in groups.into_iter().enumerate() {
        all.push(first);
        let room = left / (count - at);
        let hidden = processes.len().saturating_sub(room);
        if hidden > 0 {
            processes.truncate(room.saturating_sub(1));
            if room > 0 {
                processes.push(format!("{:>7} more", hidden + 1));
            }
        }
        left -= processes.len();
        all.append(&mut processes);
    }
    all
}

/// Bytes in at most 5 columns, with the units of `--limit`.
fn bytes(bytes: u64) -> String {
    let power = (bytes.max(1).ilog2() as usize / 10).min(4);
    let unit = ["", "K", "M", "G", "T"][power];
    let value = bytes as f64 / (1_u64 << (10 * power)) as f64;
    if power == 0 || value >= 99.95 {
        format!("{value:.0}{unit}")
    } else {
        format!("{value:.1}{unit}")
    }
}

/// A time in at most 6 columns.
fn time(ns: u64) -> String {
    let (value, unit) = match ns {
        0..1_000 => return format!("{ns}ns"),
        1_000..1_000_000 => (ns as f64 / 1e3, "us"),
        1_000_000..1_000_000_000 => (ns as f64 / 1e6, "ms"),
        _ => (ns as f64 / 1e9, "s"),
    };
    if value >= 99.95 { format!("{value:.0}{unit}") } else { format!("{value:.1}{unit}") }
}

fn rate(per_second: f64) -> String {
    if per_second < 9.95 { format!("{per_second:.1}") } else { format!("{per_second:.0}") }
}

fn ratio(ratio: f64) -> String {
    if ratio < 99.995 { format!("{ratio:.2}") } else { format!("{:.0}", ratio.min(99_999.0)) }
}

#[cfg(test)]
mod tests {
    use super::super::rates::Interval;
    use super::*;
    use uzswap_pager::{ProcessStatus, RunStatus};

    fn run(pid: u32, processes: u32) -> TopRun {
        let processes: Vec<ProcessStatus> = (0..processes)
            .map(|number| ProcessStatus {
                pid: pid + number,
                name: "a name \x1b[31m".to_owned(),
                resident_bytes: 60 << 20,
                stored_pages: 77_000,
                ..ProcessStatus::default()
            })
            .collect();
        let interval = Interval {
            seconds: 1.0,
            faults: 9,
            faults_per_s: 12_345.4,
            p50_ns: 5888,
            p99_ns: 39_000,
        };
        let process_rates = processes.iter().map(|_| 2.0).collect();
        let status = RunStatus {
            pid,
            command: vec!["python3".to_owned(), "a long name of a job.py\n".to_owned()],
            limit_bytes: 117 << 20,
            used_bytes: 115 << 20,
            resident_bytes: 60 << 20,
            pool_bytes: 53 << 20,
            ratio: Some(2.912),
            processes,
            ..RunStatus::default()
        };
        TopRun { status, interval, process_rates }
    }

    #[test]
    fn a_run_fits_eighty_columns() {
        let lines = frame(&[run(4240, 2)], Size::TERMINAL);
        assert_eq!(
            lines,
            [
                "    PID COMMAND         LIMIT  USED RESIDENT  POOL  RATIO FAULTS/s    P50    P99",
                "   4240 python3 a lo...  117M  115M    60.0M 53.0M   2.91    12345  5.9us 39.0us",
                "   4240   a name ?[31m                 60.0M  301M stored      2.0",
                "   4241   a name ?[31m                 60.0M  301M stored      2.0",
            ]
        );
        let none = frame(&[], Size::TERMINAL);
        assert_eq!(none.len(), 1);
    }

    #[test]
    fn lines_fit_any_terminal() {
        for columns in 1..120 {
            for lines in 1..30 {
                for counts in [&[][..], &[0], &[1], &[40], &[3, 0, 50], &[1; 35]] {
                    let runs: Vec<TopRun> = counts.iter().map(|&count| run(1, count)).collect();
                    let shown = frame(&runs, Size { columns, lines });
                    let most = 1 + counts.iter().map(|count| 1 + *count as usize).sum::<usize>();
                    // A header alone makes no sense.
                    assert!(shown.len() <= lines.max(2) && shown.len() <= most);
                    assert!(shown.iter().all(|line| line.len() <= columns));
                    if most <= lines {
                        assert_eq!(shown.len(), most, "{counts:?} in {lines}");
                    }
                }
            }
        }
    }

    #[test]
    fn what_does_not_fit_is_counted() {
        let group = |name: &str, count: usize| {
            (name.to_owned(), (0..count).map(|number| format!("{name}{number}")).collect())
        };
        let shown = fit(vec![group("a", 9), group("b", 1), group("c", 2)], 8);
        assert_eq!(shown, ["a", "      9 more", "b", "b0", "c", "c0", "c1"]);
        let shown = fit(vec![group("a", 0), group("b", 0), group("c", 2)], 2);
        assert_eq!(shown, ["a", "      2 more"]);
        assert_eq!(fit(vec![group("a", 2)], 1), ["a"]);
    }

    #[test]
    fn figures_fit_their_columns() {
        let sizes = [0, 1023, 4096, 100 << 10, (1 << 20) - 1, 84_306_000, 3 << 29, 5 << 40];
        let texts = ["0", "1023", "4.0K", "100K", "1024K", "80.4M", "1.5G", "5.0T"];
        assert_eq!(sizes.map(bytes), texts);
        let times = [0, 999, 1000, 39_700, 99_950, 1_500_000, 68_000_000_000];
        assert_eq!(times.map(time), ["0ns", "999ns", "1.0us", "39.7us", "100us", "1.5ms", "68.0s"]);
        assert_eq!([0.0, 9.94, 9.96, 123_456.0].map(rate), ["0.0", "9.9", "10", "123456"]);
        assert_eq!([1.0, 99.99, 150.2, 1e9].map(ratio), ["1.00", "99.99", "150", "99999"]);
    }
}
