//! Draws the view for a terminal: a state and the runs of a sample in, lines of ASCII out.

use std::collections::BTreeSet;
use std::time::Duration;

use super::figures::{bytes, percentiles, rate, ratio};
use super::rates::TopRun;
use super::state::{Page, State};
use crate::cli::stat::printable;
use uzswap::page::PAGE_SIZE;

/// Message if there is nothing to show.
pub(super) const NOTHING: &str = "no run of this user; start one with `uzswap run`";

/// The room on a terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Size {
    pub(super) columns: usize,
    pub(super) lines: usize,
}

impl Size {
    /// A terminal that does not tell.
    pub(super) const TERMINAL: Size = Size { columns: 80, lines: 24 };
}

/// The view beside its state and its runs.
#[derive(Debug)]
pub(super) struct About<'a> {
    /// From one sample to the next.
    pub(super) interval: Duration,
    /// Supervisors that did not answer.
    pub(super) silent: &'a BTreeSet<u32>,
    /// Whether standard input is a terminal.
    pub(super) has_keys: bool,
}

/// Columns of a run's line without its command and its spark lines, and those of what a wide
/// terminal shows beside.
const NARROW: usize = 48;
const WIDE_PART: usize = 20;

/// Columns of a command and of each of the two spark lines, on 80 columns and at most.
const COMMAND: (usize, usize) = (16, 40);
const SPARK: (usize, usize) = (8, 40);

/// Columns of a terminal that is wide.
const WIDE: usize = NARROW + WIDE_PART + COMMAND.0 + 2 * SPARK.0;

/// Columns beside the spark lines of a single run.
const SPARK_LABEL: usize = 25;

/// Keys by page.
const RUN_KEYS: &str =
    "f faults  m memory  p pool  r ratio  n PID  j/k select  Enter processes  q quit";
const PROCESS_KEYS: &str = "j/k scroll  Esc or q back to the runs";
const NO_KEYS: &str = "Ctrl-C ends it";

/// A line, and whether it shows the selected run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Line {
    pub(super) text: String,
    pub(super) is_selected: bool,
}

impl Line {
    fn plain(text: String) -> Line {
        Line { text, is_selected: false }
    }
}

/// The lines of the view: all of the terminal's but the last, which is for the cursor. `runs` are
/// arranged.
pub(super) fn picture(state: &State, runs: &[TopRun], about: &About<'_>, size: Size) -> Vec<Line> {
    let room = size.lines.saturating_sub(1);
    let mut end: Vec<Line> = note(about.silent).map(Line::plain).into_iter().collect();
    end.push(Line::plain(keys(state, about).to_owned()));
    let mut lines = vec![Line::plain(title(state, about))];
    let body = room.saturating_sub(lines.len() + end.len());
    match (state.page(), state.selected()) {
        (_, None) => lines.push(Line::plain(NOTHING.to_owned())),
        (Page::Runs, Some(selected)) => lines.extend(list(runs, selected, size.columns, body)),
        (Page::Processes { first }, Some(selected)) => {
            let text = processes(&runs[selected], first, size.columns, body);
            lines.extend(text.into_iter().map(Line::plain));
        }
    }
    let filled = room.saturating_sub(end.len());
    lines.resize(filled.max(1), Line::plain(String::new()));
    lines.extend(end);
    lines.truncate(room.max(1));
    for line in &mut lines {
        line.text.truncate(size.columns); // ASCII
        line.text.truncate(line.text.trim_end().len());
    }
    lines
}

fn title(state: &State, about: &About<'_>) -> String {
    let seconds = about.interval.as_secs_f64();
    format!("uzswap top, every {seconds} s, by {}", state.order().name())
}

fn keys(state: &State, about: &About<'_>) -> &'static str {
    match (about.has_keys, state.page()) {
        (false, _) => NO_KEYS,
        (true, Page::Runs) => RUN_KEYS,
        (true, Page::Processes { .. }) => PROCESS_KEYS,
    }
}

/// Names the supervisors that did not answer.
pub(super) fn note(silent: &BTreeSet<u32>) -> Option<String> {
    let pids: Vec<String> = silent.iter().map(u32::to_string).collect();
    match &pids[..] {
        [] => None,
        [pid] => Some(format!("run {pid} did not answer; it is busy or stopped")),
        _ => Some(format!("runs {} did not answer; they are busy or stopped", pids.join(", "))),
    }
}

/// Columns of a command and of a spark line.
fn widths(columns: usize) -> (usize, usize) {
    let fixed = if columns >= WIDE { NARROW + WIDE_PART } else { NARROW };
    let least = fixed + COMMAND.0 + 2 * SPARK.0;
    let spark = (SPARK.0 + columns.saturating_sub(least) / 3).min(SPARK.1);
    (columns.saturating_sub(fixed + 2 * spark).clamp(8, COMMAND.1), spark)
}

/// A header, and a line for each run, around the selected one where not all fit.
fn list(runs: &[TopRun], selected: usize, columns: usize, lines: usize) -> Vec<Line> {
    let rows = lines.saturating_sub(1).max(1);
    let mut shown = vec![Line::plain(header(columns))];
    let (first, count) = window(runs.len(), selected, rows);
    for (place, run) in runs.iter().enumerate().skip(first).take(count) {
        let is_selected = place == selected;
        shown.push(Line { text: line_of_run(run, is_selected, columns), is_selected });
    }
    if count < runs.len() && count < rows {
        shown.push(Line::plain(format!("{:>8} more", runs.len() - count)));
    }
    shown
}

/// The first of `count` rows to show in `room`, and how many. The last line counts the others.
fn window(count: usize, selected: usize, room: usize) -> (usize, usize) {
    if count <= room {
        return (0, count);
    }
    let rows = if room > 1 { room - 1 } else { room };
    ((selected + 1).saturating_sub(rows), rows)
}

fn line(cells: [&str; 13], columns: usize) -> String {
    let (command, spark) = widths(columns);
    let [mark, pid, name, limit, used, resident, pool, pools, ratio, faults, rates, p50, p99] =
        cells;
    let mut text = format!("{mark:1}{pid:>7} {name:<command$}{limit:>6}");
    let is_wide = columns >= WIDE;
    if is_wide {
        text += &format!("{used:>6}");
    }
    text += &format!("{resident:>9}{pool:>6} {pools:<spark$}{ratio:>7}{faults:>9} {rates:<spark$}");
    if is_wide {
        text += &format!("{p50:>7}{p99:>7}");
    }
    text
}

fn header(columns: usize) -> String {
    let cells = [
        "", "PID", "COMMAND", "LIMIT", "USED", "RESIDENT", "POOL", "", "RATIO", "FAULTS/s", "",
        "P50", "P99",
    ];
    line(cells, columns)
}

fn line_of_run(run: &TopRun, is_selected: bool, columns: usize) -> String {
    let TopRun { status, interval, trend, .. } = run;
    let (command, spark) = widths(columns);
    let [p50, p99] = percentiles(interval);
    let cells = [
        if is_selected { ">" } else { "" },
        &status.pid.to_string(),
        &printable(&status.command.join(" "), command),
        &bytes(status.limit_bytes),
        &bytes(status.used_bytes),
        &bytes(status.resident_bytes),
        &bytes(status.pool_bytes),
        &trend.pool(status.limit_bytes, spark),
        &ratio(status.ratio),
        &rate(interval.faults_per_s),
        &trend.faults(spark),
        &p50,
        &p99,
    ];
    line(cells, columns)
}

/// A run alone: its figures, its spark lines, and a line for each process from the `first` on.
fn processes(run: &TopRun, first: usize, columns: usize, lines: usize) -> Vec<String> {
    let mut text = about_run(run, columns);
    let name = columns.saturating_sub(8 + 5 * 10).clamp(8, 40);
    let row = |cells: [&str; 7]| {
        let [pid, process, resident, stored, staged, faults, rate] = cells;
        format!(
            "{pid:>8} {process:<name$}{resident:>9}{stored:>10}{staged:>10}{faults:>10}{rate:>10}"
        )
    };
    text.push(row(["PID", "PROCESS", "RESIDENT", "STORED", "STAGED", "FAULTS", "FAULTS/s"]));
    let all = run.status.processes.iter().zip(&run.process_rates).skip(first);
    let left = all.len();
    let room = lines.saturating_sub(text.len()).max(1);
    let shown = if left > room { room.saturating_sub(1).max(1) } else { left };
    for (process, &faults) in all.take(shown) {
        let pages = |count: u64| bytes(count.saturating_mul(PAGE_SIZE as u64));
        text.push(row([
            &process.pid.to_string(),
            &printable(&process.name, name),
            &bytes(process.resident_bytes),
            &pages(process.stored_pages),
            &pages(process.staged_pages),
            &process.faults.to_string(),
            &rate(faults),
        ]));
    }
    if left > shown {
        text.push(format!("{:>8} more", left - shown));
    }
    text
}

fn about_run(run: &TopRun, columns: usize) -> Vec<String> {
    let TopRun { status, interval, trend, .. } = run;
    let command = printable(&status.command.join(" "), columns.saturating_sub(22).max(8));
    let spark = columns.saturating_sub(SPARK_LABEL).max(1);
    let [p50, p99] = percentiles(interval);
    vec![
        format!("run {}: {command}", status.pid),
        format!(
            "limit {}  used {}  resident {}  ratio {}  P50 {p50}  P99 {p99}",
            bytes(status.limit_bytes),
            bytes(status.used_bytes),
            bytes(status.resident_bytes),
            ratio(status.ratio),
        ),
        format!(
            "held back: margin {}  growth {}  staging {}  tables {}",
            bytes(status.held_back.margin_bytes),
            bytes(status.held_back.growth_bytes),
            bytes(status.held_back.staging_bytes),
            bytes(status.held_back.tables_bytes),
        ),
        format!(
            "pool     {:>12} |{}|",
            bytes(status.pool_bytes),
            trend.pool(status.limit_bytes, spark)
        ),
        format!("faults/s {:>12} |{}|", rate(interval.faults_per_s), trend.faults(spark)),
        String::new(),
    ]
}

#[cfg(test)]
mod tests {
    use super::super::rates::sample_run;
    use super::super::state::Key;
    use super::*;

    /// The view of runs 4240, 4241, ... with so many processes, after keys.
    fn shown(counts: &[u32], keys: &[Key], size: Size) -> Vec<String> {
        let silent = BTreeSet::from([77]);
        let mut runs: Vec<TopRun> =
            (4240..).zip(counts).map(|(pid, &count)| sample_run(pid, count)).collect();
        let mut state = State::default();
        state.arrange(&mut runs);
        for &key in keys {
            state.press(key, &mut runs);
        }
        let about = About { interval: Duration::from_secs(1), silent: &silent, has_keys: true };
        let lines = picture(&state, &runs, &about, size);
        assert!(lines.iter().filter(|line| line.is_selected).count() <= 1);
        assert!(lines.iter().all(|line| line.is_selected == line.text.starts_with('>')));
        lines.into_iter().map(|line| line.text).collect()
    }

    fn at(columns: usize) -> Size {
        Size { columns, lines: 8 }
    }

    #[test]
    fn a_run_has_a_line_of_eighty_columns() {
        assert_eq!(
            shown(&[2, 0], &[Key::Down], at(80)),
            [
                "uzswap top, every 1 s, by PID",
                "     PID COMMAND          LIMIT RESIDENT  POOL           RATIO FAULTS/s",
                "    4240 python3 a lon...  117M    60.0M 53.0M       .+   2.91    12345       .@",
                ">   4241 python3 a lon...  117M    60.0M 53.0M       .+   2.91    12345       .@",
                "",
                "run 77 did not answer; it is busy or stopped",
                RUN_KEYS,
            ]
        );
    }

    #[test]
    fn a_wide_terminal_shows_more() {
        assert_eq!(
            shown(&[2, 0], &[Key::Down], at(120))[1..4],
            [
                "     PID COMMAND                  LIMIT  USED RESIDENT  POOL                 RATI\
                 O FAULTS/s                   P50    P99",
                "    4240 python3 a long name o...  117M  115M    60.0M 53.0M             .+   2.9\
                 1    12345             .@  5.9us 39.0us",
                ">   4241 python3 a long name o...  117M  115M    60.0M 53.0M             .+   2.9\
                 1    12345             .@  5.9us 39.0us",
            ]
        );
    }

    #[test]
    fn enter_shows_a_line_for_each_process() {
        let size = Size { columns: 80, lines: 13 };
        assert_eq!(
            shown(&[4], &[Key::Enter, Key::Down], size)[1..],
            [
                "run 4240: python3 a long name of a job.py?",
                "limit 117M  used 115M  resident 60.0M  ratio 2.91  P50 5.9us  P99 39.0us",
                "held back: margin 2.3M  growth 0  staging 3.0M  tables 0",
                "pool            53.0M |                                                     .+|",
                "faults/s        12345 |                                                     .@|",
                "",
                "     PID PROCESS                RESIDENT    STORED    STAGED    FAULTS  FAULTS/s",
                "    4241 a name ?[31m              60.0M      301M         0         0       2.0",
                "       2 more",
                "run 77 did not answer; it is busy or stopped",
                PROCESS_KEYS,
            ]
        );
    }

    #[test]
    fn lines_fit_any_terminal() {
        for columns in 1..130 {
            for lines in 1..30 {
                for counts in [&[][..], &[0], &[1], &[40], &[3, 0, 50], &[1; 35]] {
                    for keys in [&[][..], &[Key::Down; 33], &[Key::Enter], &[Key::Enter, Key::Down]]
                    {
                        let shown = shown(counts, keys, Size { columns, lines });
                        assert!(shown.len() == lines.max(2) - 1);
                        assert!(shown.iter().all(|line| line.len() <= columns));
                    }
                }
            }
        }
    }

    #[test]
    fn the_selected_run_is_in_view() {
        for (selected, first, more) in [(0, 4240, true), (12, 4240 + 12 - 1, true)] {
            let shown = shown(&[0; 30], &vec![Key::Down; selected], at(80));
            assert!(shown[2].contains(&first.to_string()), "{shown:?}");
            assert_eq!(shown[4] == "      28 more", more, "{shown:?}");
            let is_marked = |line: &&String| line.starts_with('>');
            assert!(shown.iter().any(|line| is_marked(&line)), "{shown:?}");
        }
        assert_eq!(window(3, 2, 3), (0, 3));
        assert_eq!(window(4, 3, 3), (2, 2));
        assert_eq!(window(4, 1, 1), (1, 1));
    }
}
