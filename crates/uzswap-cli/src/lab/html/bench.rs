//! The pages of the studies of single parts.

use serde::Deserialize;

use super::charts::bars::{Bar, Group, bars};
use super::figure::Figure;
use super::section::{Part, Section};
use super::unit::Unit;

/// How to read the figures of all studies.
const RANGE: &str = "A bar is the median of the rounds, the thin line its range. Less is better.";

/// The median of some rounds and their range; a ratio may have none.
#[derive(Debug, Clone, Copy, Deserialize)]
struct Spread {
    median: Option<f64>,
    min: Option<f64>,
    max: Option<f64>,
}

impl Spread {
    fn bar(self, name: &str) -> Bar {
        Bar {
            name: name.to_owned(),
            value: self.median.unwrap_or(f64::NAN),
            range: self.min.zip(self.max),
            ..Bar::default()
        }
    }
}

/// Which end of the values is better.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Better {
    Less,
    More,
}

/// The verdict of a study: the best bar of each group, by `words` in front of it, and the next one.
fn verdict(words: &str, unit: Unit, better: Better, groups: &[Group]) -> Vec<String> {
    groups.iter().filter_map(|group| best(words, unit, better, group)).collect()
}

fn best(words: &str, unit: Unit, better: Better, group: &Group) -> Option<String> {
    let mut order: Vec<&Bar> = group.bars.iter().filter(|bar| bar.value.is_finite()).collect();
    order.sort_by(|one, other| match better {
        Better::Less => one.value.total_cmp(&other.value),
        Better::More => other.value.total_cmp(&one.value),
    });
    let [first, next, ..] = order[..] else { return None };
    let of = if group.name.is_empty() { String::new() } else { format!("{}: ", group.name) };
    let value = |bar: &Bar| format!("{} ({})", bar.name, unit.text(bar.value));
    let meet = |(low, high): (f64, f64), (other_low, other_high): (f64, f64)| {
        low <= other_high && other_low <= high
    };
    let is_noise = first.range.zip(next.range).is_none_or(|(one, other)| meet(one, other));
    Some(match is_noise {
        true => format!(
            "{of}{words}: no difference between {} and {} that these rounds show.",
            value(first),
            value(next)
        ),
        false => format!("{of}{words}: {}; next is {}.", value(first), value(next)),
    })
}

/// The section that a page begins with.
fn verdict_section(sentences: Vec<String>) -> Option<Section> {
    let parts = vec![Part::List(sentences.clone())];
    (!sentences.is_empty()).then_some(Section { heading: "Verdict", parts })
}

/// A section per size and order of keys, from the study of indexes.
#[derive(Debug, Deserialize)]
pub(super) struct Index {
    cells: Vec<IndexCell>,
}

#[derive(Debug, Deserialize)]
struct IndexCell {
    keys: u64,
    order: String,
    index: String,
    insert: Times,
    lookup: Times,
    lookup_chain: Times,
    replace: Times,
    remove: Times,
    resident_bytes_per_entry: Spread,
}

/// The times of one operation.
type TimesOf = fn(&IndexCell) -> &Times;

#[derive(Debug, Deserialize)]
struct Times {
    ns: Spread,
}

impl Index {
    pub(super) fn sections(&self) -> Vec<Section> {
        let cells = self.cells.chunk_by(|a, b| (a.keys, &a.order) == (b.keys, &b.order));
        let (mut times, mut bytes, mut lookups) = (Vec::new(), Vec::new(), Vec::new());
        for cells in cells {
            let title =
                format!("{} keys, {}", Unit::Count.text(cells[0].keys as f64), cells[0].order);
            times.push(index_times(&title, cells));
            let all = cells.iter().map(|cell| cell.resident_bytes_per_entry.bar(&cell.index));
            let fast = cells.iter().map(|cell| cell.lookup.ns.bar(&cell.index));
            lookups.push(Group { name: title.clone(), bars: fast.collect() });
            bytes.push(Group { name: title, bars: all.collect() });
        }
        let mut sentences = verdict("fastest lookup", Unit::Nanoseconds, Better::Less, &lookups);
        sentences.extend(verdict("smallest", Unit::Bytes, Better::Less, &bytes));
        let caption = format!("What the process grew by, over the number of keys. {RANGE}");
        let memory = bars("Bytes an entry", &caption, Unit::Bytes, ("bytes", None), &bytes);
        let figures = [
            Section::of_figures("Times", times, "There is no cell."),
            Section { heading: "Memory", parts: vec![Part::Figure(memory)] },
        ];
        verdict_section(sentences).into_iter().chain(figures).collect()
    }
}

fn index_times(title: &str, cells: &[IndexCell]) -> Figure {
    let operations: [(&str, TimesOf); 5] = [
        ("insert", |cell| &cell.insert),
        ("lookup", |cell| &cell.lookup),
        ("lookup, each waits for the one before", |cell| &cell.lookup_chain),
        ("replace", |cell| &cell.replace),
        ("remove", |cell| &cell.remove),
    ];
    let groups = operations.map(|(name, of)| Group {
        name: name.to_owned(),
        bars: cells.iter().map(|cell| of(cell).ns.bar(&cell.index)).collect(),
    });
    let caption = format!("Nanoseconds an operation. {RANGE}");
    bars(title, &caption, Unit::Nanoseconds, ("time", None), &groups)
}

/// The study of ways to an object in two pages.
#[derive(Debug, Deserialize)]
pub(super) struct Map {
    cycles: String,
    methods: Vec<Method>,
}

#[derive(Debug, Deserialize)]
struct Method {
    mapping: String,
    mode: String,
    mappings_per_second: Option<f64>,
    cycles_per_map: Spread,
    over_copy: Spread,
}

impl Map {
    pub(super) fn sections(&self) -> Vec<Section> {
        let mut modes: Vec<&str> = Vec::new();
        for method in &self.methods {
            if !modes.contains(&method.mode.as_str()) {
                modes.push(&method.mode);
            }
        }
        let groups = |bar: fn(&Method) -> Bar| -> Vec<Group> {
            let of = |mode: &&str| Group {
                name: (*mode).to_owned(),
                bars: self.methods.iter().filter(|it| it.mode == *mode).map(bar).collect(),
            };
            modes.iter().map(of).collect()
        };
        let cycles_of = groups(|method| method.cycles_per_map.bar(&method.mapping));
        let sentences = verdict("fewest cycles", Unit::Count, Better::Less, &cycles_of);
        let cycles = format!("RO reads, WO writes, RW does both; {}. {RANGE}", self.cycles);
        let figures = vec![
            bars("Cycles a mapping", &cycles, Unit::Count, ("cycles", None), &cycles_of),
            bars(
                "Cycles against those of copy",
                RANGE,
                Unit::Ratio,
                ("times copy", None),
                &groups(|method| method.over_copy.bar(&method.mapping)),
            ),
            bars(
                "Mappings a second",
                "All workers together. More is better.",
                Unit::Count,
                ("mappings", None),
                &groups(|method| Bar {
                    name: method.mapping.clone(),
                    value: method.mappings_per_second.unwrap_or(f64::NAN),
                    ..Bar::default()
                }),
            ),
        ];
        let figures = Section::of_figures("Times", figures, "");
        verdict_section(sentences).into_iter().chain([figures]).collect()
    }
}

/// The study of checks for same-filled pages.
#[derive(Debug, Deserialize)]
pub(super) struct SameFilled {
    census: Census,
    checks: Vec<Check>,
}

#[derive(Debug, Deserialize)]
struct Census {
    pages: u64,
    zero_pages: u64,
    same_filled_pages: u64,
    duplicate_pages: u64,
}

#[derive(Debug, Deserialize)]
struct Check {
    check: String,
    all: CheckTimes,
    same_filled: Option<CheckTimes>,
    in_cache: CheckTimes,
}

/// The times in one setting, if the study has it.
type CheckTimesOf = fn(&Check) -> Option<&CheckTimes>;

#[derive(Debug, Deserialize)]
struct CheckTimes {
    ns_per_page: Spread,
}

impl SameFilled {
    pub(super) fn sections(&self) -> Vec<Section> {
        let settings: [(&str, CheckTimesOf); 3] = [
            ("all pages, not in cache", |check| Some(&check.all)),
            ("same-filled pages, not in cache", |check| check.same_filled.as_ref()),
            ("one zero page, in cache", |check| Some(&check.in_cache)),
        ];
        let group = |(name, of): (&str, CheckTimesOf)| Group {
            name: name.to_owned(),
            bars: self
                .checks
                .iter()
                .filter_map(|check| Some(of(check)?.ns_per_page.bar(&check.check)))
                .collect(),
        };
        let groups: Vec<Group> = settings.map(group).into_iter().collect();
        let groups: Vec<Group> = groups.into_iter().filter(|it| !it.bars.is_empty()).collect();
        let times = bars("Nanoseconds a page", RANGE, Unit::Nanoseconds, ("time", None), &groups);
        let sentences = verdict("fastest", Unit::Nanoseconds, Better::Less, &groups);
        let Census { pages, zero_pages, same_filled_pages, duplicate_pages } = self.census;
        let counts = [
            ("all", pages),
            ("same-filled", same_filled_pages),
            ("zero", zero_pages),
            ("duplicates", duplicate_pages),
        ];
        let counts = counts.map(|(name, count)| Bar {
            name: name.to_owned(),
            value: count as f64,
            ..Bar::default()
        });
        let census = bars(
            "Pages by kind",
            "Zero pages count as same-filled too. A duplicate equals a page before it.",
            Unit::Count,
            ("pages", None),
            &[Group { name: String::new(), bars: counts.to_vec() }],
        );
        let figures = Section::of_figures("Times and pages", vec![times, census], "");
        verdict_section(sentences).into_iter().chain([figures]).collect()
    }
}

/// The study of a machine that swaps.
#[derive(Debug, Deserialize)]
pub(super) struct Swapload {
    cells: Vec<LoadCell>,
}

#[derive(Debug, Deserialize)]
struct LoadCell {
    shards: u64,
    index: String,
    io: Rate,
    vm: Rate,
    index_ns: Spread,
}

#[derive(Debug, Deserialize)]
struct Rate {
    mean: Option<f64>,
    min: Option<f64>,
    max: Option<f64>,
}

impl Swapload {
    pub(super) fn sections(&self) -> Vec<Section> {
        let groups = |bar: fn(&LoadCell) -> Bar| -> Vec<Group> {
            let by_shards = self.cells.chunk_by(|a, b| a.shards == b.shards);
            let of = |cells: &[LoadCell]| Group {
                name: match cells[0].shards {
                    1 => "1 shard".to_owned(),
                    shards => format!("{shards} shards"),
                },
                bars: cells.iter().map(bar).collect(),
            };
            by_shards.map(of).collect()
        };
        fn rate(of: &Rate, name: &str) -> Bar {
            let Rate { mean, min, max } = *of;
            Spread { median: mean, min, max }.bar(name)
        }
        const MEAN: &str = "A bar is the mean of the runs, the thin line their range. More is \
                            better.";
        let io = groups(|cell| rate(&cell.io, &cell.index));
        let vm = groups(|cell| rate(&cell.vm, &cell.index));
        let mut sentences = verdict("most io-like operations", Unit::Count, Better::More, &io);
        sentences.extend(verdict("most vm-like operations", Unit::Count, Better::More, &vm));
        let figures = vec![
            bars("io-like operations a second", MEAN, Unit::Count, ("operations", None), &io),
            bars("vm-like operations a second", MEAN, Unit::Count, ("operations", None), &vm),
            bars(
                "Time of an operation of the index",
                RANGE,
                Unit::Nanoseconds,
                ("time", None),
                &groups(|cell| cell.index_ns.bar(&cell.index)),
            ),
        ];
        let figures = Section::of_figures("Rates", figures, "");
        verdict_section(sentences).into_iter().chain([figures]).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A name, a value, and the range of its rounds.
    type Measured<'a> = (&'a str, f64, Option<(f64, f64)>);

    fn group(values: &[Measured<'_>]) -> Group {
        let bar = |&(name, value, range): &Measured<'_>| Bar {
            name: name.to_owned(),
            value,
            range,
            ..Bar::default()
        };
        Group { name: "RO".to_owned(), bars: values.iter().map(bar).collect() }
    }

    #[test]
    fn the_best_is_named_where_the_rounds_show_it() {
        let words = |better, values: &[Measured<'_>]| {
            best("fastest", Unit::Count, better, &group(values)).unwrap()
        };
        let apart = [("a", 3.0, Some((2.5, 3.5))), ("b", 1.0, Some((0.5, 1.5)))];
        assert_eq!(words(Better::Less, &apart), "RO: fastest: b (1); next is a (3).");
        assert_eq!(words(Better::More, &apart), "RO: fastest: a (3); next is b (1).");
        let near = [("a", 3.0, Some((1.5, 3.5))), ("b", 1.0, Some((0.5, 1.5)))];
        assert!(words(Better::Less, &near).contains("no difference between b (1) and a (3)"));
        let unknown = [("a", 3.0, None), ("b", 1.0, None), ("c", f64::NAN, None)];
        assert!(words(Better::Less, &unknown).contains("no difference"));
        assert_eq!(best("x", Unit::Count, Better::Less, &group(&apart[..1])), None);
    }
}
