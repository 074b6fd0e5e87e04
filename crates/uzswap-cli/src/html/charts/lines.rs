//! Lines over time.

use super::super::figure::Figure;
use super::super::scale::Scale;
use super::super::svg::{Anchor, Svg};
use super::{axis_across, axis_up, up};

/// Pixels of the picture without its labels.
const HEIGHT: f64 = 150.0;
const TOP: f64 = 8.0;

/// Lines of one class.
#[derive(Debug, Clone)]
pub(in super::super) struct Lines {
    /// Its class in the style sheet.
    pub(in super::super) class: &'static str,
    /// The points of each: across and up.
    pub(in super::super) runs: Vec<Vec<(f64, f64)>>,
}

/// Lines over two axes. `level` is a value up with a name, drawn all the way across.
pub(in super::super) fn lines(
    title: &str,
    across: &Scale,
    upward: &Scale,
    level: Option<(f64, &str)>,
    lines: &[Lines],
) -> Figure {
    let mut svg = Svg::default();
    let bottom = TOP + HEIGHT;
    axis_across(&mut svg, across, TOP, bottom);
    axis_up(&mut svg, upward, TOP, bottom);
    let place = |(x, y): (f64, f64)| (across.at(x), up(upward.at(y), TOP, bottom));
    if let Some((value, name)) = level {
        let y = up(upward.at(value), TOP, bottom);
        svg.line("level", (0.0, y), (100.0, y));
        svg.text("value", Anchor::End, (100.0, y + 13.0), -4.0, name);
    }
    for Lines { class, runs } in lines {
        let run = |run: &Vec<(f64, f64)>| run.iter().copied().map(place).collect();
        svg.polylines(class, &runs.iter().map(run).collect::<Vec<_>>());
    }
    Figure { title: title.to_owned(), room: "axis", picture: Some(svg), ..Figure::default() }
}

/// At most `most` of some samples, evenly spaced, the first and the last of them included.
pub(in super::super) fn thinned<T: Clone>(samples: &[T], most: usize) -> Vec<T> {
    if samples.len() <= most || most < 2 {
        return samples.iter().take(most.max(1)).cloned().collect();
    }
    (0..most).map(|at| samples[at * (samples.len() - 1) / (most - 1)].clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::html::unit::Unit;

    #[test]
    fn samples_are_thinned_evenly() {
        let samples: Vec<u32> = (0..=100).collect();
        assert_eq!(thinned(&samples, 5), [0, 25, 50, 75, 100]);
        assert_eq!(thinned(&samples, 1), [0]);
        assert_eq!(thinned(&samples[..3], 5), [0, 1, 2]);
        assert_eq!(thinned::<u32>(&[], 5), [0_u32; 0]);
    }

    #[test]
    fn a_line_goes_through_its_points() {
        let across = Scale::linear(Unit::Seconds, [0.0, 10.0]);
        let upward = Scale::linear(Unit::Ratio, [0.0, 4.0]);
        let line = Lines { class: "pool", runs: vec![vec![(0.0, 0.0), (5.0, 4.0), (10.0, 2.0)]] };
        let text = lines("t", &across, &upward, None, &[line]).html(1);
        assert!(text.contains("d=\"M0 158L500 8L1000 83\""), "{text}");
    }
}
