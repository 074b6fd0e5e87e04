//! The page of advice.

use serde::Deserialize;

use super::charts::bars::{Bar, Group, bars};
use super::figure::Figure;
use super::section::{Part, Section};
use super::unit::Unit;

/// The fields of the document.
#[derive(Debug, Deserialize)]
pub(super) struct Advise {
    target: Target,
    corpus: Corpus,
    verdict: Vec<String>,
    warnings: Vec<String>,
    advice: Vec<Advice>,
    measured: Vec<Measured>,
}

#[derive(Debug, Deserialize)]
struct Target {
    origin: String,
    bytes: u64,
}

#[derive(Debug, Deserialize)]
struct Corpus {
    notes: Vec<String>,
}

#[derive(Debug, Deserialize)]
struct Advice {
    tool: String,
    settings: Vec<Setting>,
    confidence: String,
    confidence_because: String,
    because: String,
}

#[derive(Debug, Deserialize)]
struct Setting {
    place: String,
    lines: Vec<String>,
}

#[derive(Debug, Deserialize)]
struct Measured {
    compressor: String,
    bytes: Estimate,
    store_us: f64,
    load_us: f64,
}

#[derive(Debug, Deserialize)]
struct Estimate {
    estimate: u64,
    low: u64,
    high: u64,
}

impl Advise {
    /// The words of its title.
    pub(super) fn title(&self) -> String {
        self.target.origin.clone()
    }

    /// Its sections.
    pub(super) fn sections(&self) -> Vec<Section> {
        let list = |heading, sentences: &[String]| {
            let parts = vec![Part::List(sentences.to_vec())];
            (!sentences.is_empty()).then_some(Section { heading, parts })
        };
        let mut sections: Vec<Section> = list("Verdict", &self.verdict).into_iter().collect();
        sections.extend(list("Warnings", &self.warnings));
        if !self.advice.is_empty() {
            let parts = self.advice.iter().flat_map(Advice::parts).collect();
            sections.push(Section { heading: "Settings", parts });
        }
        let figures = if self.measured.is_empty() { Vec::new() } else { self.figures() };
        sections.push(Section::of_figures("Measured", figures, "No page was measured."));
        sections.extend(list("Notes", &self.corpus.notes));
        sections
    }

    fn figures(&self) -> Vec<Figure> {
        let all = Bar {
            name: "uncompressed".to_owned(),
            value: self.target.bytes as f64,
            ..Bar::default()
        };
        let memory = self.measured.iter().map(|it| Bar {
            name: it.compressor.clone(),
            value: it.bytes.estimate as f64,
            range: Some((it.bytes.low as f64, it.bytes.high as f64)),
            ..Bar::default()
        });
        let memory = Group { name: String::new(), bars: memory.chain([all]).collect() };
        let of = |name: &str, us: fn(&Measured) -> f64| {
            let bar = |it: &Measured| Bar {
                name: it.compressor.clone(),
                value: us(it) * 1e3,
                ..Bar::default()
            };
            Group { name: name.to_owned(), bars: self.measured.iter().map(bar).collect() }
        };
        let times = [of("store", |it| it.store_us), of("load", |it| it.load_us)];
        let reach = "All pages with zsmalloc. The thin line is the 95 % interval of a sample.";
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
}

impl Advice {
    /// Its forms of settings, each ready to paste, and the reason.
    fn parts(&self) -> Vec<Part> {
        let form = |setting: &Setting| format!("# {}\n{}", setting.place, setting.lines.join("\n"));
        let mut parts = vec![Part::List(vec![
            format!("{}: because {}.", self.tool, self.because),
            format!("Confidence {}: {}.", self.confidence, self.confidence_because),
        ])];
        parts.extend(self.settings.iter().map(form).map(Part::Code));
        parts
    }
}
