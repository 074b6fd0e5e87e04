//! A comparison against an older one: the change of each figure, and the bounds that CI sets on it.
//!
//! Both sides are JSON documents, not our types: a document of an older version lacks fields that
//! were added since, and its other figures still count. Figures that are the same in each run
//! (sizes) have an interval of no width; times have that of Welch's test.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::format::{Screen, explained, fitted, table, wrapped};
use crate::measure::interval::Difference;
use crate::measure::stats::mean;
use uzswap::zswap::LatencyCounts;

/// Where a document has a figure.
enum Place {
    /// One value for all runs.
    Field(&'static str),
    /// A list with a value a run.
    List(&'static str),
    /// A list of percentiles, a run each.
    Percentile(&'static str, &'static str),
    /// A field of each run.
    EachRun(&'static str),
    /// A percentile of the counts of each run.
    EachCounts(&'static str, f64),
}

use Place::{EachCounts, EachRun, Field, List, Percentile};

/// The figures of a replay. The first ones are in the table.
const REPLAY: [(&str, Place); 14] = [
    ("pool", Field("pool_total_size")),
    ("all_in", Field("bytes_with_rejected")),
    ("store_p50", Percentile("store_ns_by_run", "p50")),
    ("load_p50", Percentile("load_ns_by_run", "p50")),
    ("real", List("real_s")),
    ("ratio", Field("effective_ratio")),
    ("metadata", Field("metadata_bytes")),
    ("refused", Field("rejected_pages")),
    ("rss", List("rss_bytes_by_run")),
    ("store_p99", Percentile("store_ns_by_run", "p99")),
    ("load_p99", Percentile("load_ns_by_run", "p99")),
    ("sys", List("sys_s")),
    ("user", List("user_s")),
    ("accesses", List("access/accesses_per_s")),
];

/// The figures of a live study.
const LIVE: [(&str, Place); 11] = [
    ("real", EachRun("real_s")),
    ("pool", EachRun("pool_peak_bytes")),
    ("peak", EachRun("peak_bytes")),
    ("fault_p50", EachCounts("fault_ns", 50.0)),
    ("engine_cpu", EachRun("engine_cpu_s")),
    ("fault_p99", EachCounts("fault_ns", 99.0)),
    ("store_p50", EachCounts("store_ns", 50.0)),
    ("load_p50", EachCounts("load_ns", 50.0)),
    ("sys", EachRun("sys_s")),
    ("user", EachRun("user_s")),
    ("stored", EachRun("stored_pages")),
];

/// Figures that the table has room for.
const TABLE_FIGURES: usize = 5;

/// A bound on a change: `pool>2%`.
#[derive(Debug, Clone, PartialEq)]
pub struct Bound {
    figure: String,
    is_upper: bool,
    percent: f64,
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}{}%", self.figure, if self.is_upper { '>' } else { '<' }, self.percent)
    }
}

impl FromStr for Bound {
    type Err = String;

    fn from_str(text: &str) -> Result<Bound, String> {
        let expected = || format!("'{text}' is not a bound; expected FIGURE>N%, such as pool>2%");
        let at = text.find(['>', '<']).ok_or_else(expected)?;
        let percent = text[at + 1..].trim().strip_suffix('%').and_then(|it| it.trim().parse().ok());
        let percent = percent.filter(|it: &f64| it.is_finite()).ok_or_else(expected)?;
        let figure = text[..at].trim().to_owned();
        if !figures().any(|name| name == figure) {
            let known: Vec<&str> = figures().collect();
            return Err(format!("no figure '{figure}'; one of: {}", known.join(", ")));
        }
        Ok(Bound { figure, is_upper: text[at..].starts_with('>'), percent })
    }
}

/// The names of all figures, each once.
fn figures() -> impl Iterator<Item = &'static str> {
    let replay = REPLAY.iter().map(|(name, _)| *name);
    let is_new = |name: &&str| !REPLAY.iter().any(|(other, _)| other == name);
    replay.chain(LIVE.iter().map(|(name, _)| *name).filter(is_new))
}

/// One figure of one combination, then and now.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Change {
    /// The combination.
    pub label: String,
    /// The figure's name in a bound.
    pub figure: String,
    /// Mean of the runs of the older document, in the unit of its field.
    pub old: f64,
    /// Mean of the runs now.
    pub new: f64,
    /// By how many percent it is larger, or smaller where negative.
    pub percent: f64,
    /// Lower end of its 95 % interval; `null` with too few runs.
    pub low_percent: Option<f64>,
    /// Upper end.
    pub high_percent: Option<f64>,
}

impl Change {
    fn of(label: &str, figure: &str, old: &[f64], new: &[f64]) -> Option<Change> {
        if old.is_empty() || new.is_empty() {
            return None;
        }
        let (before, now) = (mean(old), mean(new));
        if before <= 0.0 {
            return None;
        }
        let of_before = |value: f64| value / before * 100.0;
        let Difference { mean, low, high } = Difference::of_unpaired(new, old)?;
        Some(Change {
            label: label.to_owned(),
            figure: figure.to_owned(),
            old: before,
            new: now,
            percent: of_before(mean),
            low_percent: low.map(of_before),
            high_percent: high.map(of_before),
        })
    }

    /// Whether the runs leave no doubt about the sign.
    fn is_real(&self) -> bool {
        let Change { percent: mean, low_percent: low, high_percent: high, .. } = *self;
        Difference { mean, low, high }.is_real()
    }

    /// Whether it is over the bound. With too few runs for an interval, the means alone decide.
    fn breaks(&self, bound: &Bound) -> bool {
        let is_over = match bound.is_upper {
            true => self.percent > bound.percent,
            false => self.percent < bound.percent,
        };
        bound.figure == self.figure && is_over && (self.is_real() || self.low_percent.is_none())
    }
}

/// The older document, checked to be of the same form.
#[derive(Debug)]
pub struct Baseline {
    path: String,
    document: Value,
}

/// The changes since a baseline. Its JSON form is the document's `baseline`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Changes {
    /// The older document's file.
    pub path: String,
    /// When it was made.
    pub created_at: String,
    /// The version of uzswap that made it.
    pub version: String,
    /// Remarks: other pages, another machine, combinations of one side alone.
    pub notes: Vec<String>,
    /// One element a figure of a combination that both have.
    pub changes: Vec<Change>,
    /// The bounds that do not hold, in words.
    pub broken_bounds: Vec<String>,
}

impl Baseline {
    /// Parses the document of `path`, which must be a comparison of the form `schema`.
    ///
    /// # Errors
    ///
    /// In words: no JSON, or the document of another command or version.
    pub fn parse(path: &str, text: &str, schema: &str) -> Result<Baseline, String> {
        let document: Value = serde_json::from_str(text)
            .map_err(|error| format!("{path} is not a JSON document: {error}"))?;
        match document["schema"].as_str() {
            Some(found) if found == schema => Ok(Baseline { path: path.to_owned(), document }),
            Some(found) => Err(format!(
                "{path} has the form {found}; this comparison needs {schema}: compare the same way \
                 again"
            )),
            None => Err(format!("{path} is not a document of `uzswap compare --json`")),
        }
    }

    /// The changes of a new document since this one.
    pub fn changes(&self, new: &impl Serialize, bounds: &[Bound]) -> Changes {
        let new = serde_json::to_value(new).unwrap_or_default();
        let mut notes = self.differences(&new);
        let (old_rows, new_rows) = (rows(&self.document), rows(&new));
        let mut changes = Vec::new();
        for (label, row) in &new_rows {
            match old_rows.iter().find(|(other, _)| other == label) {
                Some((_, old)) => changes.extend(changes_of(label, old, row)),
                None => notes.push(format!("The baseline has no {label}.")),
            }
        }
        let gone = old_rows.iter().filter(|(label, _)| !new_rows.iter().any(|(it, _)| it == label));
        notes.extend(gone.map(|(label, _)| format!("Only the baseline has {label}.")));
        let broken_bounds = bounds.iter().flat_map(|bound| broken(bound, &changes)).collect();
        let text = |name: &str| self.document[name].as_str().unwrap_or_default().to_owned();
        Changes {
            path: self.path.clone(),
            created_at: text("created_at"),
            version: text("version"),
            notes,
            changes,
            broken_bounds,
        }
    }

    /// Conditions that differ, in words.
    fn differences(&self, new: &Value) -> Vec<String> {
        let mut notes = Vec::new();
        let old = &self.document;
        if old["corpus"]["sha256"] != new["corpus"]["sha256"] {
            notes.push("The pages are other ones (sha256): sizes change with them.".to_owned());
        }
        if old["program"] != new["program"] {
            notes.push("The command is another one.".to_owned());
        }
        if old["settings"] != new["settings"] {
            notes.push("The settings are other ones.".to_owned());
        }
        if old["machine"] != new["machine"] {
            notes
                .push("The machine or its kernel is another one: times change with it.".to_owned());
        }
        notes
    }
}

/// The combinations of a document, by label.
fn rows(document: &Value) -> Vec<(String, &Value)> {
    let all = document["combinations"].as_array().map_or(&[][..], Vec::as_slice);
    let label = |row: &Value| match row["label"].as_str() {
        Some(label) => label.to_owned(),
        None => {
            let text = |name: &str| row[name].as_str().unwrap_or_default();
            format!("{} {}", text("name"), text("compressor"))
        }
    };
    all.iter().map(|row| (label(row), row)).collect()
}

fn changes_of(label: &str, old: &Value, new: &Value) -> Vec<Change> {
    let places: &[(&'static str, Place)] = if new["label"].is_string() { &LIVE } else { &REPLAY };
    let change = |(figure, place): &(&'static str, Place)| {
        Change::of(label, figure, &place.values(old), &place.values(new))
    };
    places.iter().filter_map(change).collect()
}

impl Place {
    /// One value a run; one for all of them where they are the same; none where there is none.
    fn values(&self, row: &Value) -> Vec<f64> {
        let array = |value: &Value| value.as_array().cloned().unwrap_or_default();
        let numbers = |values: Vec<Value>| values.iter().filter_map(Value::as_f64).collect();
        match self {
            // As many as an interval needs: it is the same in each run.
            Field(name) => vec![row[*name].as_f64(); 3].into_iter().flatten().collect(),
            List(path) => numbers(array(path.split('/').fold(row, |value, name| &value[name]))),
            Percentile(name, percentile) => {
                numbers(array(&row[*name]).iter().map(|run| run[*percentile].clone()).collect())
            }
            EachRun(name) => {
                numbers(array(&row["runs"]).iter().map(|run| run[*name].clone()).collect())
            }
            EachCounts(name, percent) => array(&row["runs"])
                .into_iter()
                .filter_map(|mut run| serde_json::from_value(run[*name].take()).ok())
                .filter(|counts: &LatencyCounts| counts.count > 0)
                .map(|counts| counts.percentile_ns(*percent) as f64)
                .collect(),
        }
    }
}

/// The changes over a bound, or that there is none to hold against it.
fn broken(bound: &Bound, changes: &[Change]) -> Vec<String> {
    if !changes.iter().any(|change| change.figure == bound.figure) {
        return vec![format!("{bound}: no combination has this figure on both sides")];
    }
    let broken = changes.iter().filter(|change| change.breaks(bound));
    broken.map(|it| format!("{bound}: {} changed by {}", it.label, in_words(it))).collect()
}

fn in_words(change: &Change) -> String {
    let percent = format!("{:+.1}%", change.percent);
    match (change.low_percent, change.high_percent) {
        (Some(low), Some(high)) if high - low >= 0.05 => {
            format!("{percent} ({low:+.1} to {high:+.1}%)")
        }
        _ => percent,
    }
}

impl Changes {
    /// For a terminal.
    pub fn to_text(&self, screen: Screen) -> String {
        let mut labels: Vec<&str> = self.changes.iter().map(|it| it.label.as_str()).collect();
        labels.dedup();
        let of = |label: &str| -> Vec<&Change> {
            self.changes.iter().filter(|it| it.label == label).take(TABLE_FIGURES).collect()
        };
        let mut head = vec!["LABEL"];
        head.extend(
            labels
                .first()
                .map_or(Vec::new(), |label| of(label).iter().map(|it| &*it.figure).collect()),
        );
        let mut table = table(&head);
        for label in &labels {
            let mut row = vec![(*label).to_owned()];
            row.extend(of(label).iter().map(|it| {
                let sign = if it.is_real() || it.percent == 0.0 { ' ' } else { '~' };
                format!("{:+.1}% {sign}", it.percent)
            }));
            table.add_row(row);
        }
        let caption = format!("{}, made at {} by {}", self.path, self.created_at, self.version);
        let table = fitted(table, &[5, 4], screen);
        let legend = "~ the runs show no difference.";
        let mut text = explained("CHANGE SINCE THE BASELINE", &caption, &table, legend);
        for note in &self.notes {
            text += &wrapped("Note: ", "  ", note);
        }
        for bound in &self.broken_bounds {
            text += &wrapped("FAILED ", "  ", bound);
        }
        text + "\n"
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn document(pool: u64, store: [u64; 3], seconds: [f64; 3]) -> Value {
        let by_run: Vec<Value> = store.iter().map(|p50| json!({"p50": p50})).collect();
        json!({
            "schema": "uzswap-compare/1", "version": "0.1.0", "created_at": "then",
            "corpus": {"sha256": "1"},
            "combinations": [{
                "name": "zsmalloc", "compressor": "lz4", "pool_total_size": pool,
                "store_ns_by_run": by_run, "real_s": seconds,
            }],
        })
    }

    fn changes(new: &Value, bounds: &str) -> Changes {
        let old = document(1000, [100, 101, 102], [1.0, 1.1, 1.2]).to_string();
        let baseline = Baseline::parse("old.json", &old, "uzswap-compare/1").unwrap();
        let bounds: Vec<Bound> = bounds.split(',').map(|bound| bound.parse().unwrap()).collect();
        baseline.changes(new, &bounds)
    }

    #[test]
    fn a_bound_is_broken_by_a_change_that_is_larger_and_real() {
        let new = document(1030, [120, 121, 122], [1.1, 1.25, 1.4]);
        let found = changes(&new, "pool>2%,pool>3%,store_p50>10%,real>5%,store_p50<5%");
        let broken: Vec<&str> = found.broken_bounds.iter().map(String::as_str).collect();
        assert_eq!(broken.len(), 2, "{broken:?}");
        assert_eq!(broken[0], "pool>2%: zsmalloc lz4 changed by +3.0%");
        assert!(broken[1].starts_with("store_p50>10%: zsmalloc lz4 changed by +19.8% (+17"));
        // 13.6 % more time, but the runs vary as much.
        let real = found.changes.iter().find(|change| change.figure == "real").unwrap();
        assert!(real.percent > 10.0 && !real.is_real(), "{real:?}");
        let text = found.to_text(Screen::new(80, false));
        assert!(text.contains("+13.6% ~") && text.contains("FAILED pool>2%"), "{text}");
    }

    #[test]
    fn a_bound_without_a_figure_does_not_hold() {
        let found = changes(&document(1000, [100; 3], [1.0; 3]), "fault_p50>1%");
        assert_eq!(found.broken_bounds.len(), 1);
        assert!(found.broken_bounds[0].contains("no combination has this figure"));
    }

    #[test]
    fn one_run_is_held_against_a_bound_by_its_mean() {
        let mut new = document(1000, [100; 3], [1.0; 3]);
        new["combinations"][0]["real_s"] = json!([2.0]);
        assert_eq!(changes(&new, "real>10%").broken_bounds.len(), 1);
    }

    #[test]
    fn other_pages_and_other_rows_are_remarked() {
        let mut new = document(1000, [100; 3], [1.0; 3]);
        new["corpus"]["sha256"] = json!("2");
        new["combinations"][0]["compressor"] = json!("zstd");
        let found = changes(&new, "pool>2%");
        let notes = found.notes.join("\n");
        for part in ["sha256", "The baseline has no zsmalloc zstd", "Only the baseline has"] {
            assert!(notes.contains(part), "{notes}");
        }
    }

    #[test]
    fn wrong_bounds_and_documents_are_refused_in_words() {
        for (wrong, why) in [
            ("pool", "FIGURE>N%"),
            ("pool>2", "FIGURE>N%"),
            ("pool>x%", "FIGURE>N%"),
            ("pol>2%", "one of: pool, all_in,"),
            ("", "FIGURE>N%"),
        ] {
            let error = wrong.parse::<Bound>().unwrap_err();
            assert!(error.contains(why), "{error}");
        }
        assert_eq!("ratio < -1 %".parse::<Bound>().unwrap().to_string(), "ratio<-1%");
        for (text, why) in [
            ("{", "not a JSON document"),
            ("{}", "uzswap compare --json"),
            (r#"{"schema": "uzswap-run/1"}"#, "has the form uzswap-run/1"),
        ] {
            let error = Baseline::parse("old.json", text, "uzswap-compare/1").unwrap_err();
            assert!(error.contains(why), "{error}");
        }
    }
}
