//! The pages of the studies of single parts.

use std::fmt::Display;

use super::charts::bars::{Bar, Group, bars};
use super::figure::Figure;
use super::section::{Part, Section};
use super::unit::Unit;
use crate::measure::study::{Spread, index, object_mapping, same_filled, swapload};
use crate::report::format::counted;
use uzswap::index::IndexKind;

/// How to read the figures of all studies.
const RANGE: &str = "A bar is the median of the rounds, the thin line its range. Less is better.";

/// The same of rates.
const MEAN: &str = "A bar is the mean of the runs, the thin line their range. More is better.";

/// A bar with its range, where that has ends.
fn ranged(name: impl Display, Spread { median, min, max }: Spread) -> Bar {
    let has_ends = min.is_finite() && max.is_finite();
    Bar { range: has_ends.then_some((min, max)), ..Bar::new(name, median) }
}

/// A group with a bar for each of some things.
fn group<T>(name: impl Display, things: &[T], bar: impl Fn(&T) -> Bar) -> Group {
    Group { name: name.to_string(), bars: things.iter().map(bar).collect() }
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

/// The page: a verdict, if there is one, and the other sections.
fn with_verdict(
    sentences: Vec<String>,
    sections: impl IntoIterator<Item = Section>,
) -> Vec<Section> {
    let has_verdict = !sentences.is_empty();
    let verdict = Section { heading: "Verdict", parts: vec![Part::List(sentences)] };
    has_verdict.then_some(verdict).into_iter().chain(sections).collect()
}

/// Sections of the study of indexes: a figure for each number and order of keys.
pub(super) fn of_index(findings: &index::Findings) -> Vec<Section> {
    let (mut times, mut bytes, mut lookups) = (Vec::new(), Vec::new(), Vec::new());
    for cells in findings.cells.chunk_by(|a, b| (a.keys, a.order) == (b.keys, b.order)) {
        let title = format!("{} keys, {}", Unit::Count.text(cells[0].keys as f64), cells[0].order);
        times.push(index_times(&title, cells));
        lookups.push(group(&title, cells, |cell| ranged(cell.index, cell.lookup.ns)));
        bytes.push(group(&title, cells, |it| ranged(it.index, it.resident_bytes_per_entry)));
    }
    let mut sentences = verdict("fastest lookup", Unit::Nanoseconds, Better::Less, &lookups);
    sentences.extend(verdict("smallest", Unit::Bytes, Better::Less, &bytes));
    let caption = format!("What the process grew by, over the number of keys. {RANGE}");
    let memory = bars("Bytes an entry", &caption, Unit::Bytes, ("bytes", None), &bytes);
    let times = Section::of_figures("Times", times, "There is no cell.");
    let memory = Section { heading: "Memory", parts: vec![Part::Figure(memory)] };
    with_verdict(sentences, [times, memory])
}

fn index_times(title: &str, cells: &[index::Figures]) -> Figure {
    let names = ["insert", "lookup", "lookup, each waits for the one before", "replace", "remove"];
    let of = |(place, name): (usize, &str)| {
        group(name, cells, |cell| ranged(cell.index, cell.operations()[place].ns))
    };
    let groups: Vec<Group> = names.into_iter().enumerate().map(of).collect();
    let caption = format!("Nanoseconds an operation. {RANGE}");
    bars(title, &caption, Unit::Nanoseconds, ("time", None), &groups)
}

/// Sections of the study of ways to an object in two pages.
pub(super) fn of_map(findings: &object_mapping::Findings) -> Vec<Section> {
    let groups = |bar: fn(&object_mapping::Method) -> Bar| {
        object_mapping::Mode::ALL.map(|mode| {
            let methods = findings.methods.iter().filter(|method| method.mode == mode);
            Group { name: mode.to_string(), bars: methods.map(bar).collect() }
        })
    };
    let cycles_of = groups(|method| ranged(method.mapping, method.cycles_per_map));
    let sentences = verdict("fewest cycles", Unit::Count, Better::Less, &cycles_of);
    let cycles = format!("RO reads, WO writes, RW does both; {}. {RANGE}", findings.cycles);
    let figures = vec![
        bars("Cycles a mapping", &cycles, Unit::Count, ("cycles", None), &cycles_of),
        bars(
            "Cycles against those of copy",
            RANGE,
            Unit::Ratio,
            ("times copy", None),
            &groups(|method| ranged(method.mapping, method.over_copy)),
        ),
        bars(
            "Mappings a second",
            "All workers together. More is better.",
            Unit::Count,
            ("mappings", None),
            &groups(|method| Bar::new(method.mapping, method.mappings_per_second)),
        ),
    ];
    with_verdict(sentences, [Section::of_figures("Times", figures, "")])
}

/// The figures of a check in one setting, if the study has it.
type FiguresOf = fn(&same_filled::CheckFindings) -> Option<&same_filled::Figures>;

/// Sections of the study of checks for same-filled pages.
pub(super) fn of_same_filled(findings: &same_filled::Findings) -> Vec<Section> {
    let settings: [(&str, FiguresOf); 3] = [
        ("all pages, not in cache", |check| Some(&check.all)),
        ("same-filled pages, not in cache", |check| check.same_filled.as_ref()),
        ("one zero page, in cache", |check| Some(&check.in_cache)),
    ];
    let mut groups = Vec::new();
    for (name, of) in settings {
        let bar = |it: &same_filled::CheckFindings| Some(ranged(it.check, of(it)?.ns_per_page));
        let bars: Vec<Bar> = findings.checks.iter().filter_map(bar).collect();
        if !bars.is_empty() {
            groups.push(Group { name: name.to_owned(), bars });
        }
    }
    let times = bars("Nanoseconds a page", RANGE, Unit::Nanoseconds, ("time", None), &groups);
    let sentences = verdict("fastest", Unit::Nanoseconds, Better::Less, &groups);
    let census = findings.census;
    let kinds = [
        ("all", census.pages),
        ("same-filled", census.same_filled_pages),
        ("zero", census.zero_pages),
        ("duplicates", census.duplicate_pages),
    ];
    let census = bars(
        "Pages by kind",
        "Zero pages count as same-filled too. A duplicate equals a page before it.",
        Unit::Count,
        ("pages", None),
        &[group("", &kinds, |&(name, count)| Bar::new(name, count as f64))],
    );
    let figures = Section::of_figures("Times and pages", vec![times, census], "");
    with_verdict(sentences, [figures])
}

/// Sections of the study of a machine that swaps.
pub(super) fn of_swapload(findings: &swapload::Findings) -> Vec<Section> {
    let groups = |bar: fn(&swapload::Figures) -> Bar| -> Vec<Group> {
        let of = |cells: &[swapload::Figures]| group(counted(cells[0].shards, "shard"), cells, bar);
        findings.cells.chunk_by(|a, b| a.shards == b.shards).map(of).collect()
    };
    fn rate(index: IndexKind, &swapload::Rate { mean, min, max, .. }: &swapload::Rate) -> Bar {
        ranged(index, Spread { median: mean, min, max })
    }
    let io = groups(|cell| rate(cell.index, &cell.io));
    let vm = groups(|cell| rate(cell.index, &cell.vm));
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
            &groups(|cell| ranged(cell.index, cell.index_ns)),
        ),
    ];
    with_verdict(sentences, [Section::of_figures("Rates", figures, "")])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A name, a value, and the range of its rounds.
    type Measured<'a> = (&'a str, f64, Option<(f64, f64)>);

    fn of(values: &[Measured<'_>]) -> Group {
        group("RO", values, |&(name, value, range)| Bar { range, ..Bar::new(name, value) })
    }

    #[test]
    fn the_best_is_named_where_the_rounds_show_it() {
        let words = |better, values: &[Measured<'_>]| {
            best("fastest", Unit::Count, better, &of(values)).unwrap()
        };
        let apart = [("a", 3.0, Some((2.5, 3.5))), ("b", 1.0, Some((0.5, 1.5)))];
        assert_eq!(words(Better::Less, &apart), "RO: fastest: b (1); next is a (3).");
        assert_eq!(words(Better::More, &apart), "RO: fastest: a (3); next is b (1).");
        let near = [("a", 3.0, Some((1.5, 3.5))), ("b", 1.0, Some((0.5, 1.5)))];
        assert!(words(Better::Less, &near).contains("no difference between b (1) and a (3)"));
        let unknown = [("a", 3.0, None), ("b", 1.0, None), ("c", f64::NAN, None)];
        assert!(words(Better::Less, &unknown).contains("no difference"));
        assert_eq!(best("x", Unit::Count, Better::Less, &of(&apart[..1])), None);
    }
}
