//! The first lines of a comparison by replays: which parts to use, their gain, their cost, and how
//! sure that is.

use super::format::{counted, thousands};
use super::{Findings, Report};
use crate::measure::interval::Difference;
use crate::measure::recompression::{self, Timed};
use crate::measure::stats::{Stats, mean, percent_change};
use crate::report::choice::{Candidate, RATIO_MIN, choose};
use uzswap::page::PAGE_SIZE;

/// The verdict, one sentence an element. Empty for a comparison of limited pools without any.
pub(super) fn sentences(report: &Report) -> Vec<String> {
    if report.combinations.iter().any(|findings| findings.access.is_some()) {
        return of_limited(report);
    }
    let some = report.combinations.iter().filter(|findings| findings.figures.stored_pages > 0);
    let some: Vec<&Findings> = some.collect();
    let Some(densest) = some.iter().min_by_key(|findings| findings.bytes_with_rejected) else {
        return vec!["No combination kept a page: there is nothing to use.".to_owned()];
    };
    if ratio(densest) < RATIO_MIN {
        return vec![format!(
            "Do not compress these pages: {} makes {:.2} to 1 of them, the best of these \
             combinations.",
            name(densest),
            ratio(densest)
        )];
    }
    let Some(best) = choose(some.iter().copied()) else { return Vec::new() };
    let mut sentences = vec![advice(best, &some)];
    sentences.extend(other_allocators(best, &some));
    sentences.extend(denser(best, &some));
    let of_best = some.iter().filter(|findings| findings.name == best.name);
    let timed: Vec<Timed<'_>> = of_best.map(|findings| timed(findings)).collect();
    sentences.extend(recompression::answer(&timed, None));
    sentences.push(certainty(report));
    sentences
}

/// A combination in words: `zsmalloc + zstd`.
fn name(findings: &Findings) -> String {
    format!("{} + {}", findings.name, findings.compressor)
}

/// Bytes of all pages over the memory that they take, refused ones included.
fn ratio(findings: &Findings) -> f64 {
    let pages = findings.figures.stored_pages + findings.rejected_pages;
    (pages * PAGE_SIZE as u64) as f64 / findings.bytes_with_rejected.max(1) as f64
}

impl Candidate for &Findings {
    fn bytes(&self) -> u64 {
        self.bytes_with_rejected
    }

    fn us_per_page(&self) -> f64 {
        (self.typical_ns(&self.store_ns) + self.typical_ns(&self.load_ns)) as f64 / 1e3
    }
}

/// The combination to compare the advised one with: the cheapest of its allocator with another
/// compressor, or the cheapest of all others.
fn rival<'a>(best: &Findings, all: &[&'a Findings]) -> Option<&'a Findings> {
    let others = || all.iter().copied().filter(|other| name(other) != name(best));
    let cheapest =
        |one: &&Findings, other: &&Findings| one.us_per_page().total_cmp(&other.us_per_page());
    others().filter(|other| other.name == best.name).min_by(cheapest).or(others().min_by(cheapest))
}

fn advice(best: &Findings, all: &[&Findings]) -> String {
    let first = format!("Use {}: {:.1} to 1", name(best), ratio(best));
    let Some(rival) = rival(best, all) else { return format!("{first}.") };
    let memory = match best.saving(&rival) {
        saved @ 0.0.. => format!("{saved:.0}% less memory"),
        saved => format!("{:.0}% more memory", -saved),
    };
    let change = |of: fn(&Findings) -> u64| match (of(best) as f64 - of(rival) as f64) / 1e3 {
        us @ 0.0.. => format!("{us:.1} us more"),
        us => format!("{:.1} us less", -us),
    };
    format!(
        "{first}. It takes {memory} than {}; a store takes {}, a load {}; {}.",
        name(rival),
        change(|it| it.typical_ns(&it.store_ns)),
        change(|it| it.typical_ns(&it.load_ns)),
        run_time(best, rival)
    )
}

/// The run time against another's, as far as the runs show it.
fn run_time(one: &Findings, other: &Findings) -> String {
    let runs = one.real_s.len();
    match Difference::of_logarithms(&one.real_s, &other.real_s) {
        Some(difference) if difference.is_real() => {
            let times = difference.mean.exp();
            format!("the replay takes {times:.2} times as long")
        }
        _ => format!("no difference in run time that {} could show", counted(runs, "run")),
    }
}

fn timed(findings: &Findings) -> Timed<'_> {
    Timed {
        compressor: &findings.compressor,
        bytes: findings.bytes_with_rejected as f64,
        store_us: findings.typical_ns(&findings.store_ns) as f64 / 1e3,
        load_us: findings.typical_ns(&findings.load_ns) as f64 / 1e3,
    }
}

/// The other allocators with the same compressor.
fn other_allocators(best: &Findings, all: &[&Findings]) -> Option<String> {
    let others = all.iter().filter(|other| {
        other.compressor == best.compressor && other.parts.zpool != best.parts.zpool
    });
    let words: Vec<String> = others
        .map(|other| {
            let change =
                percent_change(other.bytes_with_rejected as f64, best.bytes_with_rejected as f64);
            let is_faster = Difference::of_logarithms(&other.real_s, &best.real_s)
                .is_some_and(|difference| difference.is_real() && difference.mean < 0.0);
            let memory = match change.unwrap_or(0.0) {
                more @ 0.0.. => format!("{} takes {more:.1}% more memory", other.name),
                less => format!("{} takes {:.1}% less memory", other.name, -less),
            };
            if is_faster { format!("{memory} ({})", run_time(other, best)) } else { memory }
        })
        .collect();
    (!words.is_empty()).then(|| format!("With {}, {}.", best.compressor, words.join(", ")))
}

/// A denser combination that costs too much.
fn denser(best: &Findings, all: &[&Findings]) -> Option<String> {
    let densest = *all.iter().min_by_key(|findings| findings.bytes_with_rejected)?;
    let saved = densest.saving(&best);
    (saved >= 0.1).then(|| {
        format!(
            "{} saves {saved:.1}% more and costs {:+.1} us a page (a store and a load).",
            name(densest),
            densest.us_per_page() - best.us_per_page()
        )
    })
}

fn certainty(report: &Report) -> String {
    let runs = report.settings.runs_each;
    let widest = report.combinations.iter().map(|findings| {
        let Stats { min, max, mean, .. } = Stats::of(&findings.real_s);
        (max - min) / mean.max(1e-9) * 100.0
    });
    let widest = widest.fold(0.0, f64::max);
    let pages = thousands(report.corpus.pages);
    let sizes = match (&report.corpus.trace, &report.corpus.sample) {
        (Some(_), _) => format!("Sizes are exact for this trace of {pages} stores"),
        (None, None) => format!("Sizes are exact for these {pages} pages"),
        (None, Some(sample)) => {
            let reaches = report.combinations.iter().filter_map(|it| it.whole);
            let reaches = reaches.filter_map(|whole| whole.pool_bytes.reach_percent());
            format!(
                "These are {pages} of {} pages, a sample: pools of all are known to +-{:.1}%",
                thousands(sample.of_pages),
                reaches.fold(0.0, f64::max)
            )
        }
    };
    match runs {
        1 => format!("{sizes}; one run does not show how much times vary."),
        _ => format!("{sizes}; run times of one combination differ by up to {widest:.0}%."),
    }
}

/// Pools with a limit: the most accesses a second.
fn of_limited(report: &Report) -> Vec<String> {
    let rates = |findings: &Findings| {
        findings.access.as_ref().map_or(Vec::new(), |access| access.accesses_per_s.clone())
    };
    let mean = |findings: &Findings| mean(&rates(findings));
    let limited = report.combinations.iter().filter(|findings| findings.access.is_some());
    let mut order: Vec<&Findings> = limited.collect();
    order.sort_by(|one, other| mean(other).total_cmp(&mean(one)));
    let [best, others @ ..] = &order[..] else { return Vec::new() };
    let hits = |findings: &Findings| {
        findings.access.as_ref().map_or(0.0, |access| access.pool_hit_share * 100.0)
    };
    let mut text = format!(
        "Most accesses a second: {}, {}, {:.1}% of them from the pool",
        name(best).trim_start_matches(" + "),
        thousands(mean(best) as u64),
        hits(best)
    );
    if let Some(next) = others.first() {
        let is_real = Difference::of_logarithms(&rates(best), &rates(next))
            .is_some_and(|difference| difference.is_real());
        text += &format!(
            "; {} has {} at {:.1}%{}",
            name(next).trim_start_matches(" + "),
            thousands(mean(next) as u64),
            hits(next),
            if is_real { "" } else { ", no difference that these runs could show" }
        );
    }
    vec![text + "."]
}

#[cfg(test)]
mod tests {
    use super::super::summary::tests::findings;
    use super::*;
    use uzswap::zpool::ZpoolKind;

    /// A combination with a compressor, so many pages of pool, and medians of store and load.
    fn with(compressor: &str, pool_pages: u64, store_us: u64, load_us: u64) -> Findings {
        let mut findings = findings(ZpoolKind::Zsmalloc, [1.0, 1.01, 1.02], pool_pages, 0);
        compressor.clone_into(&mut findings.compressor);
        findings.store_ns.p50 = store_us * 1000;
        findings.load_ns.p50 = load_us * 1000;
        findings
    }

    fn chosen(all: &[Findings]) -> String {
        name(choose(all).unwrap())
    }

    #[test]
    fn a_denser_compressor_is_advised_while_its_time_is_in_proportion() {
        let (lz4, zstd) = (with("lz4", 400, 2, 1), with("zstd", 240, 12, 4));
        let best = with("zstd:19", 232, 300, 4);
        assert_eq!(chosen(&[lz4.clone(), zstd.clone(), best.clone()]), "zsmalloc + zstd");
        // A third more memory for 1 us less is no gain; nor is 2 % less for nothing.
        assert_eq!(chosen(&[zstd.clone(), with("lz4", 236, 11, 4)]), "zsmalloc + lz4");
        assert_eq!(chosen(&[with("zstd", 236, 12, 4), with("lz4", 240, 11, 4)]), "zsmalloc + lz4");
        let all = [&lz4, &zstd, &best];
        let text = advice(&zstd, &all);
        assert!(text.starts_with("Use zsmalloc + zstd: "), "{text}");
        assert!(text.contains("40% less memory than zsmalloc + lz4"), "{text}");
        assert!(text.contains("a store takes 10.0 us more, a load 3.0 us more"), "{text}");
        assert!(text.contains("no difference in run time that 3 runs could show"), "{text}");
        let text = denser(&zstd, &all).unwrap();
        assert!(text.contains("zstd:19 saves 3.3% more and costs +288.0 us a page"), "{text}");
    }

    #[test]
    fn the_other_allocators_are_beside_the_advised_one() {
        let mut zbud = findings(ZpoolKind::Zbud, [0.5, 0.51, 0.52], 500, 0);
        let zsmalloc = findings(ZpoolKind::Zsmalloc, [1.0, 1.01, 1.02], 300, 0);
        zbud.store_ns.p50 = zsmalloc.store_ns.p50;
        let text = other_allocators(&zsmalloc, &[&zsmalloc, &zbud]).unwrap();
        assert_eq!(
            text,
            "With lz4, zbud takes 66.7% more memory (the replay takes 0.50 times as long)."
        );
        assert_eq!(other_allocators(&zsmalloc, &[&zsmalloc]), None);
    }
}
