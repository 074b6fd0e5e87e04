//! Charts: values in, a picture and its table out. The same values always make the same picture.

pub(super) mod bars;
pub(super) mod box_plot;
pub(super) mod histogram;
pub(super) mod lines;
pub(super) mod scatter;

use super::scale::Scale;
use super::svg::{Anchor, Svg};

/// Columns of a name above its row, on a phone.
const NAME_COLUMNS: usize = 40;

/// Pixels of a line of text.
const LINE: f64 = 16.0;

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

/// Writes the name of a row and words on it, on as many lines as a phone needs. Returns where the
/// row begins.
fn heading(svg: &mut Svg, top: f64, name: &str, words: &str) -> f64 {
    shifted_heading(svg, top, 0.0, name, words)
}

/// The same, `shift` pixels to the right.
fn shifted_heading(svg: &mut Svg, top: f64, shift: f64, name: &str, words: &str) -> f64 {
    let mut y = top + 12.0;
    if name.is_empty() {
        svg.text("name", Anchor::Start, (0.0, y), shift, words);
        return y + 4.0;
    }
    if name.chars().count() + 2 + words.chars().count() <= NAME_COLUMNS {
        let text = if words.is_empty() { name.to_owned() } else { format!("{name}: {words}") };
        svg.text("name", Anchor::Start, (0.0, y), shift, &text);
        return y + 4.0;
    }
    for line in broken(name) {
        svg.text("name", Anchor::Start, (0.0, y), shift, &line);
        y += LINE;
    }
    for line in broken(words).iter().filter(|line| !line.is_empty()) {
        svg.text("words", Anchor::Start, (0.0, y), shift, line);
        y += LINE;
    }
    y - LINE + 4.0
}

/// A name in lines of at most [`NAME_COLUMNS`], broken between words where it has them.
fn broken(name: &str) -> Vec<String> {
    let mut lines = vec![String::new()];
    let mut columns = 0;
    for word in name.split_inclusive(' ') {
        let length = word.chars().count();
        if columns > 0 && columns + length > NAME_COLUMNS + 1 {
            lines.push(String::new());
            columns = 0;
        }
        for c in word.chars() {
            if columns > NAME_COLUMNS {
                lines.push(String::new());
                columns = 0;
            }
            if let Some(line) = lines.last_mut() {
                line.push(c);
            }
            columns += 1;
        }
    }
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
