//! A document as one self-contained page of HTML: pictures, the tables of their numbers, and the
//! document itself.
//!
//! ```text
//!   document (JSON) -> advise, compare, live, run, bench: picks figures -> section -> page
//!                                                   |
//!                         charts: values -> figure = picture (svg, scale) + table (unit)
//! ```
//!
//! `verdict` and `changes` are sections of several documents; `embedded` is the document itself.
//!
//! A page loads nothing and runs no script. The same document and command line always make the same
//! page.

mod advise;
mod bench;
mod changes;
mod charts;
mod compare;
mod embedded;
mod escape;
mod figure;
mod live;
mod run;
mod scale;
mod section;
mod svg;
mod unit;
mod verdict;

use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::report::live::LiveReport;
use embedded::embedded;
use escape::html;
pub use escape::shell_line;
use figure::{Cell, DataTable};
use section::{Part, Section};
use unit::Unit;

use crate::advise::AdviceReport;
use crate::report::{Envelope, Report, Schema};

/// The most bytes of the document and the sections before the environment: a page stays below
/// 500 kB.
const BYTES_MAX: usize = 480_000;

const STYLE: &str = include_str!("style.css");

/// Patterns that fill what the kernel made: colours alone do not tell it from ours.
const PATTERNS: &str = "<svg class=\"patterns\" aria-hidden=\"true\" width=\"0\" height=\"0\">\
    <defs><pattern id=\"hatch\" width=\"6\" height=\"6\" patternUnits=\"userSpaceOnUse\" \
    patternTransform=\"rotate(45)\"><rect class=\"hatched\" width=\"6\" height=\"6\"/>\
    <line class=\"hatch\" x1=\"0\" y1=\"0\" x2=\"0\" y2=\"6\"/></pattern></defs></svg>";

/// The page of a document. `command_line` is the command that made it, as a shell takes it.
///
/// # Errors
///
/// Of a document that is not of a schema with a page: `advise`, `compare`, `compare --limit`,
/// `run`, `bench`.
pub fn page(document: &Value, command_line: &str) -> serde_json::Result<String> {
    let envelope: Envelope = view(document)?;
    let (title, mut sections) = content(envelope.schema, document, command_line)?;
    let (data, remark) = embedded(document);
    let mut remarks: Vec<String> = remark.into_iter().collect();
    let mut body = elements(&sections);
    if body.len() + data.len() > BYTES_MAX {
        sections.iter_mut().for_each(Section::clear_tables);
        body = elements(&sections);
        remarks.push("This page has no tables: they would make it too large.".to_owned());
    }
    body += &environment(&envelope, command_line, remarks).html(&mut 0);
    let heading = format!("uzswap {}", envelope.command);
    Ok(format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n\
         <title>{heading}: {title}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n{PATTERNS}\n\
         <header>\n<h1>{heading}</h1>\n<p class=\"origin\">{title}</p>\n\
         <p>{date}, uzswap {version}</p>\n</header>\n<main>\n{body}</main>\n\
         <script type=\"application/json\" id=\"data\">{data}</script>\n</body>\n</html>\n",
        heading = html(&heading),
        title = html(&title),
        date = html(&envelope.created_at),
        version = html(&envelope.version),
    ))
}

fn elements(sections: &[Section]) -> String {
    let mut number = 0;
    sections.iter().map(|section| section.html(&mut number)).collect()
}

fn view<T: DeserializeOwned>(document: &Value) -> serde_json::Result<T> {
    T::deserialize(document)
}

/// The words of the title, and the sections.
fn content(
    schema: Schema,
    document: &Value,
    command_line: &str,
) -> serde_json::Result<(String, Vec<Section>)> {
    let own = command_line.to_owned();
    Ok(match schema {
        Schema::Compare => {
            let report: Report = view(document)?;
            (report.corpus.origin.clone(), report.sections())
        }
        Schema::CompareLimit => {
            let live: LiveReport = view(document)?;
            (live.program.text(), live::sections(&live))
        }
        Schema::Advise => {
            let report: AdviceReport = view(document)?;
            (report.target.origin.clone(), advise::sections(&report))
        }
        Schema::Run => (own, run::sections(&view(document)?)),
        Schema::BenchIndex => (own, bench::of_index(&view(document)?)),
        Schema::BenchMap => (own, bench::of_map(&view(document)?)),
        Schema::BenchSameFilled => (own, bench::of_same_filled(&view(document)?)),
        Schema::BenchSwapload => (own, bench::of_swapload(&view(document)?)),
        other => return Err(serde::de::Error::custom(format!("{other} has no page"))),
    })
}

/// The machine and the command line, so that others can repeat it.
fn environment(envelope: &Envelope, command_line: &str, remarks: Vec<String>) -> Section {
    let Envelope { schema, version, created_at, machine, .. } = envelope;
    let mut table = DataTable::of_facts();
    let mut words = |name: &str, text: &str| table.row(name, [Cell::Text(text.to_owned())]);
    words("date", created_at);
    words("version", version);
    words("kernel", &machine.kernel);
    words("processor", &machine.cpu);
    words("form of the document", schema.name());
    table.row("processors", [Cell::Value(machine.cpus as f64, Unit::Count)]);
    let own = "This page holds its JSON document, in the script element with the id data.";
    let sentences = [own.to_owned()].into_iter().chain(remarks).collect();
    Section {
        heading: "Environment",
        parts: vec![Part::Code(command_line.to_owned()), Part::Table(table), Part::List(sentences)],
    }
}
