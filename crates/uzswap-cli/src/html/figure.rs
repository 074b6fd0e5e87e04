//! A figure: a picture with its caption, and the table of its numbers.

use super::escape::html;
use super::svg::Svg;
use super::unit::Unit;

/// A cell of a table.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Cell {
    /// Words.
    Text(String),
    /// A number, which the page shows in its unit and has in full as well.
    Value(f64, Unit),
    /// Nothing.
    Empty,
}

impl Cell {
    /// A number of which there may be none.
    pub(super) fn some(value: Option<f64>, unit: Unit) -> Cell {
        value.map_or(Cell::Empty, |value| Cell::Value(value, unit))
    }

    fn html(&self) -> String {
        match self {
            Cell::Text(text) => html(text),
            Cell::Value(value, unit) if value.is_finite() => {
                format!("<data value=\"{value}\">{}</data>", html(&unit.text(*value)))
            }
            Cell::Value(..) | Cell::Empty => "-".to_owned(),
        }
    }
}

/// A table: the first cell of a row is its heading.
#[derive(Debug, Clone, Default)]
pub(super) struct DataTable {
    header: Vec<String>,
    rows: Vec<Vec<Cell>>,
}

impl DataTable {
    /// One without rows.
    pub(super) fn new(header: &[&str]) -> DataTable {
        DataTable { header: header.iter().map(|&name| name.to_owned()).collect(), rows: Vec::new() }
    }

    /// One of facts: a name and a value in each row.
    pub(super) fn of_facts() -> DataTable {
        DataTable::default()
    }

    /// Adds a row, with a cell for each column.
    pub(super) fn row(&mut self, heading: &str, cells: impl IntoIterator<Item = Cell>) {
        let mut row = vec![Cell::Text(heading.to_owned())];
        row.extend(cells);
        self.rows.push(row);
    }

    /// Whether there are no rows.
    pub(super) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// As an element.
    pub(super) fn html(&self) -> String {
        let header: Vec<String> = self
            .header
            .iter()
            .map(|name| format!("<th scope=\"col\">{}</th>", html(name)))
            .collect();
        let mut rows = String::new();
        for row in &self.rows {
            rows += "<tr>";
            for (at, cell) in row.iter().enumerate() {
                rows += &match (at, cell) {
                    (0, cell) => format!("<th scope=\"row\">{}</th>", cell.html()),
                    (_, Cell::Text(_)) => format!("<td class=\"words\">{}</td>", cell.html()),
                    _ => format!("<td>{}</td>", cell.html()),
                };
            }
            rows += "</tr>";
        }
        let table = match header.is_empty() {
            true => "<table class=\"facts\">".to_owned(),
            false => format!("<table><thead><tr>{}</tr></thead>", header.concat()),
        };
        format!("<div class=\"scroll\">{table}<tbody>{rows}</tbody></table></div>")
    }
}

/// A line or a filling of a picture, explained.
#[derive(Debug, Clone, Copy)]
pub(super) struct Key {
    /// Its class in the picture.
    pub(super) class: &'static str,
    /// Its meaning.
    pub(super) name: &'static str,
}

/// A picture with its words and its numbers.
#[derive(Debug, Default)]
pub(super) struct Figure {
    /// A few words: the heading.
    pub(super) title: String,
    /// How to read it.
    pub(super) caption: String,
    /// Lines and fillings.
    pub(super) keys: Vec<Key>,
    /// Class of the room around the picture: `labelled` leaves room for names on the left, `axis`
    /// for numbers.
    pub(super) room: &'static str,
    /// The picture; without one the caption says why.
    pub(super) picture: Option<Svg>,
    /// The numbers.
    pub(super) table: DataTable,
    /// A list under the picture: the names of numbered points.
    pub(super) list: Vec<String>,
}

impl Figure {
    /// A figure without a picture, for data that are not there.
    pub(super) fn missing(title: &str, why: &str) -> Figure {
        Figure { title: title.to_owned(), caption: why.to_owned(), ..Figure::default() }
    }

    /// Explains the fillings where the kernel's figures stand beside ours.
    pub(super) fn explain_kernel(&mut self, has_kernel: bool) {
        if has_kernel {
            self.keys.push(Key { class: "bar ours", name: "uzswap" });
            self.keys.push(Key { class: "bar kernel", name: "the kernel" });
        }
    }

    /// As an element. `number` distinguishes it from others of the page.
    pub(super) fn html(&self, number: usize) -> String {
        let keys: Vec<String> = self.keys.iter().map(key).collect();
        let legend = element("<p class=\"legend\">", &keys.join(" "), "</p>");
        let picture = self.picture.as_ref().map_or(String::new(), |picture| {
            let picture = picture.finish(&format!("figure-{number}"), &self.title);
            format!("<div class=\"room {}\">{picture}</div>", self.room)
        });
        let items: Vec<String> =
            self.list.iter().map(|item| format!("<li>{}</li>", html(item))).collect();
        let list = element("<ol>", &items.concat(), "</ol>");
        let numbers = if self.table.is_empty() {
            String::new()
        } else {
            format!("<details><summary>Numbers</summary>{}</details>", self.table.html())
        };
        format!(
            "<figure><figcaption><h3>{}</h3><p>{}</p></figcaption>{legend}{picture}{list}{numbers}\
             </figure>\n",
            html(&self.title),
            html(&self.caption)
        )
    }
}

/// An element, unless it would be empty.
fn element(start: &str, content: &str, end: &str) -> String {
    if content.is_empty() { String::new() } else { format!("{start}{content}{end}") }
}

fn key(key: &Key) -> String {
    let class = key.class;
    let sample = match class {
        _ if class.starts_with("bar") => {
            format!("<rect class=\"{class}\" x=\"1\" y=\"1\" width=\"26\" height=\"10\"/>")
        }
        "mark" => "<path class=\"mark\" d=\"M14 1L19 6L14 11L9 6z\"/>".to_owned(),
        _ => format!("<line class=\"{class}\" x1=\"0\" y1=\"6\" x2=\"28\" y2=\"6\"/>"),
    };
    format!(
        "<span><svg class=\"key\" aria-hidden=\"true\" width=\"28\" height=\"12\">{sample}</svg> \
         {}</span>",
        html(key.name)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_shown_and_kept_in_full() {
        let mut table = DataTable::new(&["name", "size"]);
        table.row("a<b", [Cell::Value(3_145_729.0, Unit::Bytes)]);
        table.row("none", [Cell::Value(f64::NAN, Unit::Bytes)]);
        let text = table.html();
        assert!(text.contains("<th scope=\"row\">a&lt;b</th>"), "{text}");
        assert!(text.contains("<td><data value=\"3145729\">3.0 MiB</data></td>"), "{text}");
        assert!(text.contains("<td>-</td>") && !text.contains("NaN"), "{text}");
    }
}
