//! Writes SVG pictures that fill the width of their column: across in percent, down in pixels.
//!
//! A picture has no view box, so text has the same size on every screen. Plotters has one in each:
//! docs/experiments/2026-12-01-charts-library.md.

use super::escape::html;

/// The end of a text that is at its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Anchor {
    Start,
    Middle,
    End,
}

/// The shape of a point.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mark {
    Circle,
    Diamond,
}

/// A picture that is being drawn. Classes are names of the style sheet.
#[derive(Debug, Default)]
pub(super) struct Svg {
    body: String,
    height: f64,
}

impl Svg {
    /// Makes it so many pixels high, at least.
    fn reach(&mut self, height: f64) {
        self.height = self.height.max(height);
    }

    /// A straight line.
    pub(super) fn line(&mut self, class: &str, from: (f64, f64), to: (f64, f64)) {
        self.reach(from.1.max(to.1));
        let [x1, y1, x2, y2] = [from.0, from.1, to.0, to.1].map(number);
        self.body +=
            &format!("<line class=\"{class}\" x1=\"{x1}%\" y1=\"{y1}\" x2=\"{x2}%\" y2=\"{y2}\"/>");
    }

    /// A rectangle from one place across to another, `height` pixels high.
    pub(super) fn rect(&mut self, class: &str, across: (f64, f64), top: f64, height: f64) {
        self.reach(top + height);
        let (width, height) = ((across.1 - across.0).max(0.0), height.max(0.0));
        let [x, y, width, height] = [across.0, top, width, height].map(number);
        self.body += &format!(
            "<rect class=\"{class}\" x=\"{x}%\" y=\"{y}\" width=\"{width}%\" \
             height=\"{height}\"/>"
        );
    }

    /// A point of `radius` pixels.
    pub(super) fn point(&mut self, class: &str, mark: Mark, at: (f64, f64), radius: f64) {
        let (x, y, r) = (number(at.0), number(at.1), number(radius));
        self.reach(at.1 + radius);
        self.body += &match mark {
            Mark::Circle => format!("<circle class=\"{class}\" cx=\"{x}%\" cy=\"{y}\" r=\"{r}\"/>"),
            Mark::Diamond => format!(
                "<svg x=\"{x}%\" y=\"{y}\" overflow=\"visible\"><path class=\"{class}\" \
                 d=\"M0-{r}L{r} 0L0 {r}L-{r} 0z\"/></svg>"
            ),
        };
    }

    /// A text with its base line at `at`, moved by `shift` pixels to the right.
    pub(super) fn text(
        &mut self,
        class: &str,
        anchor: Anchor,
        at: (f64, f64),
        shift: f64,
        text: &str,
    ) {
        self.reach(at.1 + 4.0);
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        let ([x, y, dx], text) = ([at.0, at.1, shift].map(number), html(text));
        self.body += &format!(
            "<text class=\"{class}\" x=\"{x}%\" y=\"{y}\" dx=\"{dx}\" \
             text-anchor=\"{anchor}\">{text}</text>"
        );
    }

    /// Lines through points, all of one class.
    pub(super) fn polylines(&mut self, class: &str, lines: &[Vec<(f64, f64)>]) {
        let lowest = lines.iter().flatten().map(|(_, y)| *y).fold(1.0, f64::max);
        self.reach(lowest);
        let point = |(x, y): &(f64, f64)| format!("{} {}", number(x * 10.0), number(*y));
        let path = |line: &Vec<(f64, f64)>| {
            let points: Vec<String> = line.iter().map(point).collect();
            format!("M{}", points.join("L"))
        };
        let paths = lines.iter().filter(|line| !line.is_empty()).map(path);
        // A view box of its own stretches it; lines keep their width.
        self.body += &format!(
            "<svg width=\"100%\" height=\"{0}\" viewBox=\"0 0 1000 {0}\" \
             preserveAspectRatio=\"none\" overflow=\"visible\"><path class=\"through {class}\" \
             d=\"{1}\"/></svg>",
            number(lowest),
            paths.collect::<String>()
        );
    }

    /// The picture; `id` is the id of the element with its name.
    pub(super) fn finish(&self, id: &str, name: &str) -> String {
        format!(
            "<svg role=\"img\" aria-labelledby=\"{id}\" width=\"100%\" height=\"{}\">\
             <title id=\"{id}\">{}</title>{}</svg>",
            number(self.height),
            html(name),
            self.body
        )
    }
}

/// A finite number with at most two decimals; 0 for any other.
fn number(value: f64) -> String {
    if !value.is_finite() {
        return "0".to_owned();
    }
    let text = format!("{value:.2}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    if text == "-0" { "0".to_owned() } else { text.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short_and_finite() {
        assert_eq!([0.0, -0.001, 12.5, 3.456].map(number), ["0", "0", "12.5", "3.46"]);
        assert_eq!([f64::NAN, f64::INFINITY].map(number), ["0", "0"]);
    }

    #[test]
    fn names_and_texts_are_escaped() {
        let mut svg = Svg::default();
        svg.text("label", Anchor::End, (50.0, 12.0), -4.0, "a<b");
        let text = svg.finish("f1", "<x>");
        assert!(text.contains("a&lt;b") && text.contains("<title id=\"f1\">&lt;x&gt;"), "{text}");
        assert!(text.contains("height=\"16\""), "{text}");
    }
}
