//! The changes since an earlier comparison, where `--baseline` names one.

use serde::Deserialize;

use super::figure::{Cell, DataTable};
use super::section::{Part, Section};
use super::unit::Unit;

/// The comparison with an older document.
#[derive(Debug, Deserialize)]
pub(super) struct Baseline {
    path: String,
    created_at: String,
    notes: Vec<String>,
    changes: Vec<Change>,
    broken_bounds: Vec<String>,
}

#[derive(Debug, Deserialize)]
struct Change {
    label: String,
    figure: String,
    old: Option<f64>,
    new: Option<f64>,
    percent: Option<f64>,
    low_percent: Option<f64>,
    high_percent: Option<f64>,
}

impl Baseline {
    /// Broken bounds, remarks, and each figure then and now.
    pub(super) fn section(&self) -> Section {
        let mut table =
            DataTable::new(&["", "figure", "then", "now", "change in %", "from %", "to %"]);
        for change in &self.changes {
            let [old, new] = [change.old, change.new].map(|value| Cell::some(value, Unit::Count));
            let percents = [change.percent, change.low_percent, change.high_percent];
            let [percent, low, high] = percents.map(|value| Cell::some(value, Unit::Ratio));
            let figure = Cell::Text(change.figure.clone());
            table.row(&change.label, [figure, old, new, percent, low, high]);
        }
        let Baseline { path, created_at, .. } = self;
        let mut sentences = vec![format!("The baseline is {path} of {created_at}.")];
        sentences.extend(self.broken_bounds.iter().map(|bound| format!("Does not hold: {bound}.")));
        sentences.extend(self.notes.iter().cloned());
        let parts = vec![Part::List(sentences), Part::Table(table)];
        Section { heading: "Changes since the baseline", parts }
    }
}
