//! The changes since an earlier comparison, where `--baseline` names one.

use super::figure::{Cell, DataTable};
use super::section::{Part, Section};
use super::unit::Unit;
use crate::report::Changes;

impl Changes {
    /// Broken bounds, remarks, and each figure then and now.
    pub(super) fn section(&self) -> Section {
        let mut table =
            DataTable::new(&["", "figure", "then", "now", "change in %", "from %", "to %"]);
        for change in &self.changes {
            let [old, new] = [change.old, change.new].map(|value| Cell::Value(value, Unit::Count));
            let percents = [Some(change.percent), change.low_percent, change.high_percent];
            let [percent, low, high] = percents.map(|value| Cell::some(value, Unit::Ratio));
            let figure = Cell::Text(change.figure.clone());
            table.row(&change.label, [figure, old, new, percent, low, high]);
        }
        let Changes { path, created_at, .. } = self;
        let mut sentences = vec![format!("The baseline is {path} of {created_at}.")];
        sentences.extend(self.broken_bounds.iter().map(|bound| format!("Does not hold: {bound}.")));
        sentences.extend(self.notes.iter().cloned());
        let parts = vec![Part::List(sentences), Part::Table(table)];
        Section { heading: "Changes since the baseline", parts }
    }
}
