//! The page of advice.

use super::charts::bars::{Bar, Group, bars};
use super::figure::Figure;
use super::section::{Part, Section};
use super::unit::Unit;
use crate::advise::{Advice, AdviceReport, Measured, Setting};

/// Its sections.
pub(super) fn sections(report: &AdviceReport) -> Vec<Section> {
    let answer = &report.recommendation;
    let list = |heading, sentences: &[String]| {
        let parts = vec![Part::List(sentences.to_vec())];
        (!sentences.is_empty()).then_some(Section { heading, parts })
    };
    let mut sections: Vec<Section> = list("Verdict", &answer.verdict).into_iter().collect();
    sections.extend(list("Warnings", &answer.warnings));
    if !answer.advice.is_empty() {
        let parts = answer.advice.iter().flat_map(parts).collect();
        sections.push(Section { heading: "Settings", parts });
    }
    let figures = if report.measured.is_empty() { Vec::new() } else { figures(report) };
    sections.push(Section::of_figures("Measured", figures, "No page was measured."));
    sections.extend(list("Notes", &report.corpus.notes));
    sections
}

fn figures(report: &AdviceReport) -> Vec<Figure> {
    let all = Bar::new("uncompressed", report.target.bytes as f64);
    let memory = report.measured.iter().map(|it| Bar {
        range: Some((it.bytes.low as f64, it.bytes.high as f64)),
        ..Bar::new(it.name(), it.bytes.estimate as f64)
    });
    let memory = Group { name: String::new(), bars: memory.chain([all]).collect() };
    let of = |name: &str, us: fn(&Measured) -> f64| {
        let bar = |it: &Measured| Bar::new(it.name(), us(it) * 1e3);
        Group { name: name.to_owned(), bars: report.measured.iter().map(bar).collect() }
    };
    let times = [of("store", |it| it.store_us), of("load", |it| it.load_us)];
    let reach = "All pages, as uzswap run keeps them and as the kernel does (zsmalloc). The thin \
                 line is the 95 % interval of a sample.";
    vec![
        bars("Memory of all pages", reach, Unit::Bytes, ("memory", None), &[memory]),
        bars(
            "Time of a page",
            "The medians. Less is better.",
            Unit::Nanoseconds,
            ("time", None),
            &times,
        ),
    ]
}

/// Its forms of settings, each ready to paste, and the reason.
fn parts(advice: &Advice) -> Vec<Part> {
    let form = |setting: &Setting| format!("# {}\n{}", setting.place, setting.lines.join("\n"));
    let mut parts = vec![Part::List(vec![
        format!("{}: because {}.", advice.tool, advice.because),
        format!("Confidence {}: {}.", advice.confidence, advice.confidence_because),
    ])];
    parts.extend(advice.settings.iter().map(form).map(Part::Code));
    parts
}
