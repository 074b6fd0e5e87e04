//! Points over two axes of which less is better, and the frontier of those that no other point
//! beats in both.

use super::super::figure::{Cell, DataTable, Figure, Key};
use super::super::scale::Scale;
use super::super::svg::{Anchor, Mark, Svg};
use super::super::unit::Unit;
use super::{LINE, axis_across, axis_up, up};

/// Pixels of the picture without its labels.
const HEIGHT: f64 = 240.0;
const TOP: f64 = 24.0;

/// One point.
#[derive(Debug, Clone)]
pub(in super::super) struct Point {
    /// Its name.
    pub(in super::super) name: String,
    /// Across: a time.
    pub(in super::super) x: f64,
    /// Up: bytes.
    pub(in super::super) y: f64,
    /// Whether the kernel made it.
    pub(in super::super) is_kernel: bool,
}

/// An axis: the words of its label, and its unit.
#[derive(Debug, Clone, Copy)]
pub(in super::super) struct Axis<'a> {
    pub(in super::super) name: &'a str,
    pub(in super::super) unit: Unit,
}

/// The numbers of the points that no other point beats in one axis and equals in the other, left
/// to right.
fn frontier(points: &[Point]) -> Vec<usize> {
    let beats = |a: &Point, b: &Point| a.x <= b.x && a.y <= b.y && (a.x < b.x || a.y < b.y);
    let mut best: Vec<usize> = (0..points.len())
        .filter(|&at| !points.iter().any(|other| beats(other, &points[at])))
        .collect();
    best.sort_by(|&a, &b| points[a].x.total_cmp(&points[b].x));
    best
}

/// The points with their numbers; the list below the picture has their names.
pub(in super::super) fn scatter(
    title: &str,
    across: Axis<'_>,
    upward: Axis<'_>,
    points: &[Point],
) -> Figure {
    let x = Scale::linear(across.unit, points.iter().map(|point| point.x));
    let y = Scale::linear(upward.unit, points.iter().map(|point| point.y));
    let mut svg = Svg::default();
    let bottom = TOP + HEIGHT;
    svg.text("words", Anchor::Start, (0.0, 12.0), -50.0, upward.name);
    axis_across(&mut svg, &x, TOP, bottom);
    axis_up(&mut svg, &y, TOP, bottom);
    svg.text("words", Anchor::Middle, (50.0, bottom + 2.0 * LINE + 2.0), 0.0, across.name);
    let place = |point: &Point| (x.at(point.x), up(y.at(point.y), TOP, bottom));
    let best = frontier(points);
    svg.polylines(
        "frontier",
        &[steps(&best.iter().map(|&at| place(&points[at])).collect::<Vec<_>>())],
    );
    let mut table = DataTable::new(&["", across.name, upward.name, "on the frontier"]);
    let mut list = Vec::new();
    for (at, point) in points.iter().enumerate() {
        let is_best = best.contains(&at);
        let kind = if point.is_kernel { "kernel" } else { "ours" };
        let class = format!("{} {kind}", if is_best { "best" } else { "other" });
        svg.point(&class, Mark::Circle, place(point), 10.0);
        let class = if is_best { "number best" } else { "number" };
        let (x, y) = place(point);
        svg.text(class, Anchor::Middle, (x, y + 4.0), 0.0, &(at + 1).to_string());
        let frontier = if is_best { "yes" } else { "no" };
        table.row(
            &point.name,
            [
                Cell::Value(point.x, across.unit),
                Cell::Value(point.y, upward.unit),
                Cell::Text(frontier.to_owned()),
            ],
        );
        let (x, y) = (across.unit.text(point.x), upward.unit.text(point.y));
        let frontier = if is_best { ", on the frontier" } else { "" };
        list.push(format!("{}: {x}, {y}{frontier}", point.name));
    }
    Figure {
        title: title.to_owned(),
        caption: "Less is better in both directions. No other point beats one on the frontier in \
                  both. The axes need not begin at zero."
            .to_owned(),
        keys: vec![Key { class: "frontier", name: "the frontier" }],
        room: "axis",
        picture: Some(svg),
        table,
        list,
    }
}

/// The corners of a staircase through points, left to right.
fn steps(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let mut corners = Vec::new();
    for (at, &(x, y)) in points.iter().enumerate() {
        if let Some(&(_, before)) = at.checked_sub(1).and_then(|before| points.get(before)) {
            corners.push((x, before));
        }
        corners.push((x, y));
    }
    corners
}

#[cfg(test)]
mod tests {
    use super::*;

    fn points(places: &[(f64, f64)]) -> Vec<Point> {
        let point = |&(x, y): &(f64, f64)| Point { name: "p".to_owned(), x, y, is_kernel: false };
        places.iter().map(point).collect()
    }

    #[test]
    fn the_frontier_has_the_points_that_none_beats() {
        assert_eq!(frontier(&points(&[(2.0, 1.0), (1.0, 3.0), (3.0, 2.0), (1.0, 4.0)])), [1, 0]);
        assert_eq!(frontier(&points(&[(1.0, 1.0), (1.0, 1.0)])), [0, 1]);
        assert!(frontier(&[]).is_empty());
        // Against the definition, on a grid of small cases.
        for seed in 0_u32..2000 {
            let at = |n: u32| f64::from((seed * 7919 + n * 104_729) / 97 % 4);
            let some = points(&[(at(1), at(2)), (at(3), at(4)), (at(5), at(6))]);
            for (number, point) in some.iter().enumerate() {
                let is_beaten = some.iter().any(|other| {
                    other.x <= point.x
                        && other.y <= point.y
                        && (other.x, other.y) != (point.x, point.y)
                });
                assert_eq!(frontier(&some).contains(&number), !is_beaten);
            }
        }
    }

    #[test]
    fn steps_turn_at_each_point() {
        assert_eq!(steps(&[(0.0, 9.0), (5.0, 4.0)]), [(0.0, 9.0), (5.0, 9.0), (5.0, 4.0)]);
        assert!(steps(&[]).is_empty());
    }
}
