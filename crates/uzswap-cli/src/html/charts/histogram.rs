//! Histograms, one row below the other over one axis.

use super::super::figure::{Cell, DataTable, Figure};
use super::super::scale::Scale;
use super::super::svg::Svg;
use super::super::unit::Unit;
use super::{LINE, heading, stacked};

/// Pixels of the tallest bar.
const HEIGHT: f64 = 48.0;

/// Values from one bound up to another, and how many there are.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(in super::super) struct Bar {
    pub(in super::super) from: f64,
    pub(in super::super) to: f64,
    pub(in super::super) count: u64,
}

/// One row.
#[derive(Debug, Clone, Default)]
pub(in super::super) struct Row {
    /// Its name.
    pub(in super::super) name: String,
    /// Figures beside the name.
    pub(in super::super) words: String,
    /// The bars, lowest first.
    pub(in super::super) bars: Vec<Bar>,
    /// Values with a line: the median, solid, and others, dashed.
    pub(in super::super) marks: Vec<f64>,
    /// Whether the kernel made them.
    pub(in super::super) is_kernel: bool,
}

impl Row {
    fn total(&self) -> u64 {
        self.bars.iter().map(|bar| bar.count).sum()
    }

    fn largest_share(&self) -> f64 {
        let largest = self.bars.iter().map(|bar| bar.count).max().unwrap_or(0);
        largest as f64 / self.total().max(1) as f64
    }
}

/// Rows over an axis of `unit`. Heights are shares of each row's own count.
pub(in super::super) fn histogram(
    title: &str,
    things: &str,
    unit: Unit,
    scale: &Scale,
    rows: &[Row],
) -> Figure {
    let largest = rows.iter().map(Row::largest_share).fold(0.0, f64::max);
    let mut table = DataTable::new(&["", "from", "to", things]);
    for row in rows {
        for bar in row.bars.iter().filter(|bar| bar.count > 0) {
            let count = Cell::Value(bar.count as f64, Unit::Count);
            table.row(&row.name, [Cell::Value(bar.from, unit), Cell::Value(bar.to, unit), count]);
        }
    }
    Figure {
        title: title.to_owned(),
        caption: format!(
            "The height of a bar is its share of the {things} of its row. The tallest is {:.1}%.",
            largest * 100.0
        ),
        room: "plain",
        picture: Some(stacked(scale, rows, |svg, row, top| draw(svg, scale, row, largest, top))),
        table,
        ..Figure::default()
    }
}

/// Draws a row from `top` on, and returns its end.
fn draw(svg: &mut Svg, scale: &Scale, row: &Row, largest: f64, top: f64) -> f64 {
    if row.total() == 0 {
        return heading(svg, top, 0.0, &row.name, "none") + LINE;
    }
    let top = heading(svg, top, 0.0, &row.name, &row.words) + 4.0;
    let bottom = top + HEIGHT;
    let kind = if row.is_kernel { "bar kernel" } else { "bar ours" };
    for bar in row.bars.iter().filter(|bar| bar.count > 0) {
        let share = bar.count as f64 / row.total() as f64 / largest;
        let height = (share * HEIGHT).max(1.0);
        svg.rect(kind, (scale.at(bar.from), scale.at(bar.to)), bottom - height, height);
    }
    svg.line("base", (0.0, bottom), (100.0, bottom));
    for (place, mark) in row.marks.iter().enumerate() {
        let class = if place == 0 { "median" } else { "far" };
        svg.line(class, (scale.at(*mark), top), (scale.at(*mark), bottom));
    }
    bottom + 10.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_are_shares_of_their_row() {
        let bar = |from, count| Bar { from, to: from * 2.0, count };
        let row = |name: &str, bars| Row { name: name.to_owned(), bars, ..Row::default() };
        let rows = [row("a", vec![bar(512.0, 1), bar(1024.0, 3)]), row("b", vec![bar(512.0, 0)])];
        let scale = Scale::log_ns(512, 2048);
        let text = histogram("times", "stores", Unit::Nanoseconds, &scale, &rows).html(1);
        assert!(text.contains("x=\"0%\" y=\"52\" width=\"50%\" height=\"16\""), "{text}");
        assert!(text.contains("x=\"50%\" y=\"20\" width=\"50%\" height=\"48\""), "{text}");
        assert!(text.contains("b: none") && text.contains("The tallest is 75.0%"), "{text}");
    }
}
