//! Box plots that show every point.

use super::super::figure::{Cell, DataTable, Figure};
use super::super::scale::Scale;
use super::super::svg::{Mark, Svg};
use super::super::unit::Unit;
use super::{LINE, heading, stacked};
use crate::report::format::counted;

/// The most points of a picture; a row with more than its part of them shows quantiles.
const POINTS_MAX: usize = 600;

/// Pixels of a box.
const BOX: f64 = 20.0;

/// One row.
#[derive(Debug, Clone)]
pub(in super::super) struct Row {
    /// Its name.
    pub(in super::super) name: String,
    /// One value a run, first to last.
    pub(in super::super) values: Vec<f64>,
    /// Whether the kernel made them.
    pub(in super::super) is_kernel: bool,
    /// Why there are none.
    pub(in super::super) why_none: String,
}

/// The smallest value, the quartiles and the largest, of sorted values.
fn quartiles(sorted: &[f64]) -> Option<[f64; 5]> {
    let last = sorted.len().checked_sub(1)?;
    let at = |share: f64| {
        let place = share * last as f64;
        let (low, high) = (sorted[place.floor() as usize], sorted[place.ceil() as usize]);
        low + (high - low) * place.fract()
    };
    Some([0.0, 0.25, 0.5, 0.75, 1.0].map(at))
}

/// Rows over one axis.
pub(in super::super) fn box_plot(title: &str, unit: Unit, rows: &[Row]) -> Figure {
    let scale = Scale::linear(unit, rows.iter().flat_map(|row| row.values.clone()));
    let most = (POINTS_MAX / rows.len().max(1)).max(5);
    let mut table = DataTable::new(&["", "run", title]);
    for row in rows {
        for (run, value) in row.values.iter().enumerate().take(most) {
            table.row(
                &row.name,
                [Cell::Value((run + 1) as f64, Unit::Count), Cell::Value(*value, unit)],
            );
        }
    }
    let fewer = if rows.iter().any(|row| row.values.len() > most) {
        format!(" Of more than {most} runs, {most} quantiles are points; the table has the first.")
    } else {
        String::new()
    };
    Figure {
        title: title.to_owned(),
        caption: format!(
            "A point is a run. The box holds the middle half of the runs, its line is the median; \
             the axis need not begin at zero.{fewer}"
        ),
        room: "plain",
        picture: Some(stacked(&scale, rows, |svg, row, top| {
            draw(svg, &scale, unit, row, most, top)
        })),
        table,
        ..Figure::default()
    }
}

/// Draws a row with at most `most` points from `top` on, and returns its end.
fn draw(svg: &mut Svg, scale: &Scale, unit: Unit, row: &Row, most: usize, top: f64) -> f64 {
    let mut sorted = row.values.clone();
    sorted.sort_by(f64::total_cmp);
    let Some(five) = quartiles(&sorted) else {
        return heading(svg, top, 0.0, &row.name, &row.why_none) + LINE;
    };
    let runs = counted(sorted.len(), "run");
    let words = match sorted.len() {
        1 => format!("{}, {runs}", unit.text(five[2])),
        _ => format!("median {}, {runs}", unit.text(five[2])),
    };
    let top = heading(svg, top, 0.0, &row.name, &words) + 4.0;
    let middle = top + BOX / 2.0;
    let [low, first, median, third, high] = five.map(|value| scale.at(value));
    let kind = if row.is_kernel { "kernel" } else { "ours" };
    if sorted.len() > 1 {
        svg.line("whisker", (low, middle), (high, middle));
        svg.rect(&format!("box {kind}"), (first, third), top, BOX);
        svg.line("median", (median, top), (median, top + BOX));
    }
    let drawn = sorted.len().min(most);
    for point in 0..drawn {
        let value = sorted[point * (sorted.len() - 1) / (drawn - 1).max(1)];
        // Side by side where they are close.
        let shift = [0.0, -5.0, 5.0][point % 3];
        svg.point(&format!("dot {kind}"), Mark::Circle, (scale.at(value), middle + shift), 3.0);
    }
    top + BOX + 10.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quartiles_are_between_values() {
        assert_eq!(quartiles(&[1.0, 2.0, 3.0, 4.0, 5.0]), Some([1.0, 2.0, 3.0, 4.0, 5.0]));
        assert_eq!(quartiles(&[1.0, 2.0]), Some([1.0, 1.25, 1.5, 1.75, 2.0]));
        assert_eq!((quartiles(&[7.0]), quartiles(&[])), (Some([7.0; 5]), None));
    }

    #[test]
    fn every_run_is_a_point() {
        let row = |values: &[f64]| Row {
            name: "a".to_owned(),
            values: values.to_vec(),
            is_kernel: false,
            why_none: "no run".to_owned(),
        };
        let figure =
            box_plot("time", Unit::Seconds, &[row(&[1.0, 1.1, 1.2]), row(&[]), row(&[2.0])]);
        let text = figure.html(1);
        assert_eq!(text.matches("<circle").count(), 4);
        assert!(text.contains("no run") && text.contains("<data value=\"1.1\">"), "{text}");
        let many = box_plot("time", Unit::Seconds, &[row(&[1.0; 1000])]).html(1);
        assert_eq!(many.matches("<circle").count(), POINTS_MAX);
    }
}
