//! Charts: values in, a picture and its table out. The same values always make the same picture.

pub(super) mod bars;
pub(super) mod box_plot;
pub(super) mod histogram;
pub(super) mod lines;
pub(super) mod scatter;

use std::mem;

use super::scale::Scale;
use super::svg::{Anchor, Svg};

/// Columns of a name above its row, on a phone.
const NAME_COLUMNS: usize = 40;

/// Pixels of a line of text.
const LINE: f64 = 16.0;

/// Draws rows one below the other over an axis. `draw` draws one from a place on, and returns its
/// end.
fn stacked<T>(scale: &Scale, rows: &[T], draw: impl Fn(&mut Svg, &T, f64) -> f64) -> Svg {
    let all = |svg: &mut Svg| rows.iter().fold(0.0, |top, row| draw(svg, row, top));
    let mut svg = Svg::default();
    // The grid is below the rows: their end is found first.
    let bottom = all(&mut Svg::default());
    axis_across(&mut svg, scale, 0.0, bottom);
    all(&mut svg);
    svg
}

/// Draws the ticks of the axis across: lines from `top` to `bottom`, labels below.
fn axis_across(svg: &mut Svg, scale: &Scale, top: f64, bottom: f64) {
    for tick in &scale.ticks {
        svg.line("grid", (tick.at, top), (tick.at, bottom));
        svg.text("tick", Anchor::Middle, (tick.at, bottom + LINE), 0.0, &tick.label);
    }
}

/// Draws the ticks of the axis up, of a picture from `top` to `bottom`.
fn axis_up(svg: &mut Svg, scale: &Scale, top: f64, bottom: f64) {
    for tick in &scale.ticks {
        let y = up(tick.at, top, bottom);
        svg.line("grid", (0.0, y), (100.0, y));
        svg.text("tick", Anchor::End, (0.0, y + 4.0), -6.0, &tick.label);
    }
}

/// The pixel of a place in percent on an axis up.
fn up(at: f64, top: f64, bottom: f64) -> f64 {
    bottom - at / 100.0 * (bottom - top)
}

/// Writes the name of a row and words on it, `shift` pixels to the right, on as many lines as a
/// phone needs. Returns where the row begins.
fn heading(svg: &mut Svg, top: f64, shift: f64, name: &str, words: &str) -> f64 {
    let mut y = top + 12.0;
    let text = match (name, words) {
        ("", text) | (text, "") => text.to_owned(),
        _ => format!("{name}: {words}"),
    };
    if name.is_empty() || text.chars().count() <= NAME_COLUMNS {
        svg.text("name", Anchor::Start, (0.0, y), shift, &text);
        return y + 4.0;
    }
    for (class, text) in [("name", name), ("words", words)] {
        for line in broken(text).iter().filter(|line| !line.is_empty()) {
            svg.text(class, Anchor::Start, (0.0, y), shift, line);
            y += LINE;
        }
    }
    y - LINE + 4.0
}

/// A name in lines of at most [`NAME_COLUMNS`], broken between words where it has them.
fn broken(name: &str) -> Vec<String> {
    let columns = |text: &str| text.chars().count();
    let (mut lines, mut line) = (Vec::new(), String::new());
    for word in name.split_inclusive(' ') {
        if !line.is_empty() && columns(&line) + columns(word) > NAME_COLUMNS + 1 {
            lines.push(mem::take(&mut line));
        }
        for c in word.chars() {
            if columns(&line) > NAME_COLUMNS {
                lines.push(mem::take(&mut line));
            }
            line.push(c);
        }
    }
    lines.push(line);
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_names_are_broken() {
        assert_eq!(broken("zsmalloc lz4"), ["zsmalloc lz4"]);
        let lines = broken(&"word ".repeat(20));
        assert!(lines.len() == 3 && lines.iter().all(|line| line.len() <= NAME_COLUMNS + 1));
        assert!(broken(&"x".repeat(200)).iter().all(|line| line.len() <= NAME_COLUMNS + 1));
        assert_eq!(broken("").len(), 1);
    }
}
