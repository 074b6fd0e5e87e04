//! Formats tables, numbers and histograms of all reports.

use crate::human_size::amount;
use comfy_table::{
    CellAlignment, ColumnConstraint, ContentArrangement, ContentLineStyle, LineStyle, Table,
    TableStyle,
};

use crate::measure::histogram::{Bucket, draw_row};
use crate::measure::stats::Stats;
use uzswap_sys::escape::one_line;

/// Columns that every terminal has: text is wrapped there.
const COLUMNS: usize = 80;

/// The widest line of a report.
const COLUMNS_MAX: usize = 120;

/// Characters of a command that a line of a summary shows.
const BRIEF_CHARACTERS: usize = 120;

/// Columns of a histogram's row beside its bar.
const ROW_COLUMNS: usize = 27;

/// The screen that a report is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Screen {
    columns: usize,
    details: bool,
}

impl Screen {
    /// Of so many columns, taken as 80 to 120; `details` asks for histograms, all times and
    /// settings.
    pub fn new(columns: usize, details: bool) -> Screen {
        Screen { columns: columns.clamp(COLUMNS, COLUMNS_MAX), details }
    }

    /// Columns of a line.
    pub(crate) fn columns(self) -> usize {
        self.columns
    }

    /// Whether details are asked for.
    pub(crate) fn has_details(self) -> bool {
        self.details
    }

    /// Columns of the left one of two pictures.
    fn half(self) -> usize {
        self.columns / 2 + 1
    }
}

/// Columns as the linux-mm study prints them, with bars between.
const STYLE: TableStyle = TableStyle::new()
    .header_lines(ContentLineStyle::none().junction('|'))
    .header_separator(LineStyle::none().fill('-').junction('+'))
    .content_lines(ContentLineStyle::none().junction('|'));

/// The values in their order, each once.
pub(crate) fn once_each<T: PartialEq>(values: impl IntoIterator<Item = T>) -> Vec<T> {
    let mut once = Vec::new();
    for value in values {
        if !once.contains(&value) {
            once.push(value);
        }
    }
    once
}

/// A count and its noun, in the plural if need be.
pub(crate) fn counted(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

/// Two histograms side by side under their titles.
pub(crate) fn histograms([left, right]: [(String, Vec<Bucket>); 2], screen: Screen) -> String {
    let titles = beside(&left.0, &right.0, screen);
    format!("{titles}{}\n", pictures(&left.1, &right.1, screen))
}

/// Two histograms, rows of the same bounds on the same line.
fn pictures(left: &[Bucket], right: &[Bucket], screen: Screen) -> String {
    let bar_columns = screen.half() - 2 - ROW_COLUMNS;
    let all = || left.iter().chain(right);
    let (Some(from), Some(to)) =
        (all().map(|bucket| bucket.from_ns).min(), all().map(|bucket| bucket.to_ns).max())
    else {
        return "none\n".to_owned();
    };
    let row = |buckets: &[Bucket], from_ns: u64| {
        let count_max = buckets.iter().map(|bucket| bucket.count).max().unwrap_or(0);
        let bucket = buckets.iter().find(|bucket| bucket.from_ns == from_ns);
        bucket.map_or(String::new(), |bucket| draw_row(bucket, count_max, bar_columns))
    };
    let mut text = String::new();
    let mut bound = from;
    while bound < to {
        text += &beside(&row(left, bound), &row(right, bound), screen);
        bound = (bound * 2).max(2);
    }
    text
}

/// Two texts in the columns of two pictures; on two lines where the left one is too long.
fn beside(left: &str, right: &str, screen: Screen) -> String {
    if left.len() >= screen.half() {
        return format!("{left}\n{right}\n");
    }
    let line = format!("{left:<width$}{right}", width = screen.half());
    format!("{}\n", line.trim_end())
}

/// A part in percent of the whole.
pub(crate) fn share(part: u64, whole: u64) -> String {
    if part > 0 && part < whole / 2000 {
        return "under 0.1%".to_owned();
    }
    format!("{:.1}%", part as f64 / whole.max(1) as f64 * 100.0)
}

/// An empty table; its first column is of words, the others of numbers.
pub(crate) fn table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(STYLE).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(header.iter().copied());
    for (place, column) in table.column_iter_mut().enumerate() {
        column.set_padding((u16::from(place > 0), 1));
        column.set_cell_alignment(if place == 0 {
            CellAlignment::Left
        } else {
            CellAlignment::Right
        });
    }
    table
}

/// A column of a table: its head, and the cell of each row.
pub(crate) type Column<'a, T> = (&'a str, &'a dyn Fn(&T) -> String);

/// A table with a line for each row.
pub(crate) fn listed<T>(rows: impl IntoIterator<Item = T>, columns: &[Column<'_, T>]) -> Table {
    let head: Vec<&str> = columns.iter().map(|(head, _)| *head).collect();
    let mut table = table(&head);
    for row in rows {
        table.add_row(columns.iter().map(|(_, cell)| cell(&row)));
    }
    table
}

/// A table of figures that vary from run to run: a label, statistics, and what `more` names.
pub(crate) fn statistics<M: IntoIterator<Item = String>>(
    label: &str,
    more: &[&str],
    text: impl Fn(f64) -> String,
    rows: impl IntoIterator<Item = (String, Stats, M)>,
) -> Table {
    let mut table = table(&[&[label, "MIN", "MAX", "MEAN", "MEDIAN", "STDDEV"], more].concat());
    for (label, Stats { min, max, mean, median, stddev }, more) in rows {
        let figures = [min, max, mean, median, stddev].map(&text);
        table.add_row([label].into_iter().chain(figures).chain(more));
    }
    table
}

/// A change against the base, for a cell.
pub(crate) fn against(is_base: bool, percent: Option<f64>) -> String {
    match percent {
        _ if is_base => "base".to_owned(),
        Some(percent) => format!("{percent:+.1}%"),
        None => "-".to_owned(),
    }
}

/// A line of a report's head: what it was made of or with.
pub(crate) fn fact(name: &str, words: &str) -> String {
    wrapped(&format!("{name:<10}"), "          ", words)
}

/// A table under its title, with a legend below it.
pub(crate) fn explained(title: &str, caption: &str, table: &str, legend: &str) -> String {
    let section = section(title, caption, table);
    format!("{}\n{}", section.trim_end(), wrapped("", "", legend))
}

/// A table under its title.
pub(crate) fn section(title: &str, caption: &str, table: &str) -> String {
    format!("{}\n{table}\n\n", wrapped("", "  ", &format!("{title}: {caption}")))
}

/// The lines of a table, without blanks at their ends.
pub(crate) fn trimmed(table: &Table) -> String {
    let lines: Vec<String> = table.lines().map(|line| line.trim_end().to_owned()).collect();
    // The rule goes on below the last column's padding.
    let widest = lines.iter().filter(|line| !line.ends_with('-')).map(String::len).max();
    let trim = |line: String| match (line.ends_with('-'), widest) {
        (true, Some(widest)) if line.len() == widest + 1 => line[..widest].to_owned(),
        _ => line,
    };
    lines.into_iter().map(trim).collect::<Vec<String>>().join("\n")
}

/// The lines of a table that fits the screen: columns go in the order of `least_needed` until it
/// does.
pub(crate) fn fitted(mut table: Table, least_needed: &[usize], screen: Screen) -> String {
    let mut next = least_needed.iter();
    loop {
        let text = trimmed(&table);
        if text.lines().all(|line| line.len() <= screen.columns) {
            return text;
        }
        let Some(&place) = next.next() else { return text };
        if let Some(column) = table.column_mut(place) {
            column.set_constraint(ColumnConstraint::Hidden);
        }
    }
}

/// Words in lines of at most [`COLUMNS`].
pub(crate) fn wrapped(first: &str, rest: &str, words: &str) -> String {
    let mut text = String::new();
    let mut line = first.to_owned();
    let mut empty = true;
    for word in words.split_whitespace() {
        if !empty && line.len() + 1 + word.len() > COLUMNS {
            text += &line;
            text.push('\n');
            line = rest.to_owned();
            empty = true;
        }
        if !empty {
            line.push(' ');
        }
        line += word;
        empty = false;
    }
    text + &line + "\n"
}

/// Text that may be long, as a command with a script in it, in one line of at most
/// [`BRIEF_CHARACTERS`].
pub(crate) fn in_brief(text: &str) -> String {
    let line = one_line(text);
    match line.char_indices().nth(BRIEF_CHARACTERS) {
        None => line.into_owned(),
        Some(_) => line.chars().take(BRIEF_CHARACTERS - 3).chain("...".chars()).collect(),
    }
}

/// A number with commas.
pub(crate) fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A value to three digits: `8.24`, `82.4`, `824`.
pub(crate) fn three_digits(value: f64) -> String {
    match value.abs() {
        ..9.995 => format!("{value:.2}"),
        9.995..99.95 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}

/// Bytes in MiB: for columns.
pub(crate) fn mib(bytes: u64) -> String {
    amount(bytes as f64 / (1 << 20) as f64, "MiB")
}

/// Nanoseconds to three digits, in at most 7 columns below 1000 s.
pub(crate) fn nanoseconds(ns: u64) -> String {
    if ns < 1_000 {
        return format!("{ns} ns");
    }
    // Rounded before the unit is chosen: 9996 ns are 10.0 us, not 10.00.
    let step = 10_u64.pow(ns.ilog10() - 2);
    let rounded = ns.saturating_add(step / 2) / step * step;
    let power = rounded.ilog10() as usize;
    let unit = (power / 3).min(3);
    let decimals = (unit * 3 + 2).saturating_sub(power);
    format!(
        "{:.decimals$} {}",
        rounded as f64 / 1e3_f64.powi(unit as i32),
        ["ns", "us", "ms", "s"][unit]
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_readable() {
        let texts = [0, 999, 1000, 144_822_272].map(thousands);
        assert_eq!(texts, ["0", "999", "1,000", "144,822,272"]);
        let texts = [7, 2310, 23_100, 231_000, 2_310_000, 2_310_000_000].map(nanoseconds);
        assert_eq!(texts, ["7 ns", "2.31 us", "23.1 us", "231 us", "2.31 ms", "2.31 s"]);
        let texts = [9_994, 9_995, 99_949, 99_950, 999_499, 999_500].map(nanoseconds);
        assert_eq!(texts, ["9.99 us", "10.0 us", "99.9 us", "100 us", "999 us", "1.00 ms"]);
        assert_eq!(
            [999, 1_000, 10_000_000_000_000].map(nanoseconds),
            ["999 ns", "1.00 us", "10000 s"]
        );
        let widest = (0..12).flat_map(|power| {
            let from = 10_u64.pow(power);
            (0..1_000).map(move |step| nanoseconds(from + from * step / 111))
        });
        assert_eq!(widest.map(|text| text.len()).max(), Some(7));
        let texts = [1 << 20, (100 << 20) - 100, 300 << 20].map(mib);
        assert_eq!(texts, ["1.0 MiB", "100 MiB", "300 MiB"]);
        let texts = [0, 17, 4096, 400 << 10, 3 << 29, u64::MAX].map(crate::human_size::human_size);
        assert_eq!(texts, ["0 bytes", "17 bytes", "4.0 KiB", "400 KiB", "1.5 GiB", "16777216 TiB"]);
    }

    #[test]
    fn long_commands_are_cut() {
        assert_eq!(in_brief("cc -o a\tb"), "cc -o a\\u0009b");
        let of = |count| "\u{e4}".repeat(count);
        assert_eq!(in_brief(&of(BRIEF_CHARACTERS)), of(BRIEF_CHARACTERS));
        assert_eq!(in_brief(&of(BRIEF_CHARACTERS + 1)), of(BRIEF_CHARACTERS - 3) + "...");
    }

    #[test]
    fn long_sentences_are_wrapped() {
        let text = wrapped("- ", "  ", &"word ".repeat(50));
        assert!(text.lines().all(|line| line.len() <= COLUMNS));
        assert!(text.lines().skip(1).all(|line| line.starts_with("  word")));
        assert_eq!(text.matches("word").count(), 50);
    }

    #[test]
    fn histograms_share_their_rows() {
        let bucket = |from_ns, count| Bucket { from_ns, to_ns: from_ns * 2, count };
        let screen = Screen::new(100, true);
        let text = pictures(&[bucket(1024, 5), bucket(2048, 10)], &[bucket(512, 7)], screen);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 3);
        assert!(lines[0].trim_start().starts_with("[512, 1K)") && lines[0].len() < 100);
        assert!(lines[1].starts_with("[1K, 2K)             5 |@@@@@@@@@@@           |"));
        assert_eq!(pictures(&[], &[], screen), "none\n");
        let narrow = pictures(&[bucket(1024, 5)], &[bucket(1024, 7)], Screen::new(80, true));
        assert!(narrow.lines().all(|line| line.len() <= 80), "{narrow}");
    }

    #[test]
    fn a_narrow_screen_has_fewer_columns() {
        let made = || {
            let mut table = table(&["NAME", "ONE", "TWO", "THREE"]);
            table.add_row(["a name", &"1".repeat(30), &"2".repeat(30), &"3".repeat(30)]);
            table
        };
        let head = |columns| {
            let text = fitted(made(), &[2, 1], Screen::new(columns, false));
            text.lines().next().unwrap().split_whitespace().collect::<String>()
        };
        assert_eq!(head(120), "NAME|ONE|TWO|THREE");
        assert_eq!(head(100), "NAME|ONE|THREE");
        assert_eq!(head(0), "NAME|ONE|THREE");
    }
}
