//! Horizontal bars in groups, each with its name and its value.

use std::fmt::Display;

use super::super::figure::{Cell, DataTable, Figure};
use super::super::scale::Scale;
use super::super::svg::{Anchor, Mark, Svg};
use super::super::unit::Unit;
use super::{heading, stacked};

/// Pixels from one bar to the next.
const STEP: f64 = 20.0;

/// Pixels on the left for the names of bars.
const LABELS: f64 = 88.0;

/// A range ends at the edge of the picture where it goes beyond so many times the largest value:
/// one outlier would leave no room for the bars.
const RANGE_MAX: f64 = 3.0;

/// One bar.
#[derive(Debug, Clone, Default, PartialEq)]
pub(in super::super) struct Bar {
    /// A word or two.
    pub(in super::super) name: String,
    /// Its length.
    pub(in super::super) value: f64,
    /// The smallest and the largest of the values whose median or mean it is.
    pub(in super::super) range: Option<(f64, f64)>,
    /// A second value, drawn as a diamond.
    pub(in super::super) point: Option<f64>,
    /// Whether the kernel made it.
    pub(in super::super) is_kernel: bool,
}

/// Bars below a heading.
#[derive(Debug, Clone, Default)]
pub(in super::super) struct Group {
    pub(in super::super) name: String,
    pub(in super::super) bars: Vec<Bar>,
}

impl Bar {
    /// A value alone.
    pub(in super::super) fn new(name: impl Display, value: f64) -> Bar {
        Bar { name: name.to_string(), value, ..Bar::default() }
    }

    /// The values that the axis must hold, where the largest is `largest`.
    fn values(&self, largest: f64) -> impl Iterator<Item = f64> {
        let end = self.range.map(|(_, high)| high.min(largest * RANGE_MAX));
        [self.value].into_iter().chain(end).chain(self.point)
    }
}

/// Groups over one axis from zero. `value` and `point` name the values in the table.
pub(in super::super) fn bars(
    title: &str,
    caption: &str,
    unit: Unit,
    (value, point): (&str, Option<&str>),
    groups: &[Group],
) -> Figure {
    let all = || groups.iter().flat_map(|group| &group.bars);
    let values = || all().map(|bar| bar.value).filter(|value| value.is_finite());
    let largest = values().fold(0.0, f64::max);
    let scale = Scale::narrow(unit, all().flat_map(|bar| bar.values(largest)).chain([0.0]));
    let has_range = all().any(|bar| bar.range.is_some());
    let is_cut = all().filter_map(|bar| bar.range).any(|(_, high)| high > largest * RANGE_MAX);
    let cut = if is_cut { " A line that ends at the edge goes on." } else { "" };
    let mut header = vec!["", "", value];
    header.extend(has_range.then_some(["least", "most"]).into_iter().flatten());
    header.extend(point);
    let mut table = DataTable::new(&header);
    for group in groups {
        for bar in &group.bars {
            let mut cells = vec![Cell::Text(bar.name.clone()), Cell::Value(bar.value, unit)];
            if has_range {
                cells.push(Cell::some(bar.range.map(|range| range.0), unit));
                cells.push(Cell::some(bar.range.map(|range| range.1), unit));
            }
            if point.is_some() {
                cells.push(Cell::some(bar.point, unit));
            }
            table.row(&group.name, cells);
        }
    }
    Figure {
        title: title.to_owned(),
        caption: format!("{caption}{cut}"),
        room: "labelled",
        picture: Some(stacked(&scale, groups, |svg, group, top| {
            draw(svg, &scale, unit, group, top)
        })),
        table,
        ..Figure::default()
    }
}

/// Draws a group from `top` on, and returns its end.
fn draw(svg: &mut Svg, scale: &Scale, unit: Unit, group: &Group, top: f64) -> f64 {
    let mut top = match group.name.is_empty() {
        true => top,
        false => heading(svg, top, -LABELS, &group.name, "") + 2.0,
    };
    for bar in &group.bars {
        let (end, middle) = (scale.at(bar.value), top + STEP / 2.0);
        let kind = if bar.is_kernel { "bar kernel" } else { "bar ours" };
        svg.text("label", Anchor::End, (0.0, middle + 4.0), -6.0, &bar.name);
        svg.rect(kind, (0.0, end), top + 3.0, STEP - 6.0);
        let mut rightmost = end;
        if let Some((low, high)) = bar.range {
            svg.line("whisker", (scale.at(low), middle), (scale.at(high), middle));
            rightmost = rightmost.max(scale.at(high));
        }
        if let Some(point) = bar.point {
            svg.point("mark", Mark::Diamond, (scale.at(point), middle), 5.0);
            rightmost = rightmost.max(scale.at(point));
        }
        let text = unit.text(bar.value);
        svg.text("value", Anchor::Start, (rightmost, middle + 4.0), 8.0, &text);
        top += STEP;
    }
    top + 10.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_begin_at_zero() {
        let bars_of = vec![Bar::new("a", 2.0), Bar::new("b", 1.0)];
        let group = Group { name: "g".to_owned(), bars: bars_of };
        let text = bars("t", "c", Unit::Ratio, ("v", None), &[group]).html(1);
        assert!(text.contains("x=\"0%\" y=\"21\" width=\"100%\""), "{text}");
        assert!(text.contains("x=\"0%\" y=\"41\" width=\"50%\""), "{text}");
        let empty = bars("t", "c", Unit::Ratio, ("v", None), &[]).html(1);
        assert!(!empty.contains("NaN") && !empty.contains("inf"), "{empty}");
    }
}
