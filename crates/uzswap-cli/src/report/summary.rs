//! The conclusions of the report, each sentence computed from the figures.

use super::format::{against, mib, once_each, share, thousands};
use super::{Findings, Percentiles, access_section, base_of, trace_section};
use crate::measure::replay::FreedHalf;
use crate::measure::stats::{Stats, percent_change};

/// Conclusions from the figures, compressor by compressor.
pub(super) fn sentences(runs: &[Findings], freed: FreedHalf) -> Vec<String> {
    let mut sentences = Vec::new();
    let compressors = once_each(runs.iter().map(|findings| findings.compressor.as_str()));
    for &compressor in &compressors {
        let all: Vec<&Findings> =
            runs.iter().filter(|findings| findings.compressor == compressor).collect();
        // An allocator that took nothing has nothing to compare.
        let (some, none): (Vec<&Findings>, Vec<&Findings>) =
            all.iter().partition(|findings| findings.figures.compressed_bytes > 0);
        match all.iter().any(|findings| findings.trace.is_some()) {
            true => sentences.extend(trace_section::refusals(&of_each_zpool(&all), compressor)),
            false => sentences.extend(refusals(&of_each_zpool(&all))),
        }
        if some.len() > 1 {
            sentences.extend(fastest(&some, compressor));
            if !some.iter().any(|findings| findings.access.is_some()) {
                sentences.extend(medians(&some, compressor));
                sentences.push(densest(&some, compressor));
                sentences.extend(trade(&some));
            }
        }
        if !none.is_empty() {
            let names: Vec<&str> = none.iter().map(|findings| findings.name.as_str()).collect();
            sentences.push(format!(
                "{} kept no compressed page with {compressor}: there is nothing to compare.",
                names.join(" and ")
            ));
        }
        if !all.iter().any(|findings| findings.access.is_some() || findings.trace.is_some()) {
            sentences.extend(holes(&of_each_zpool(&some), freed));
        }
        sentences.extend(access_section::sentences(&all, compressor));
    }
    if compressors.len() > 1 && !runs.iter().any(|run| run.access.is_some()) {
        sentences.extend(overall(runs));
    }
    sentences
}

/// The first findings of each allocator and unit: what a pool holds does not depend on other parts.
fn of_each_zpool<'a>(all: &[&'a Findings]) -> Vec<&'a Findings> {
    let mut firsts: Vec<&Findings> = Vec::new();
    for findings in all {
        let stored_by = |it: &Findings| (it.parts.zpool, it.parts.unit_pages);
        if !firsts.iter().any(|first| stored_by(first) == stored_by(findings)) {
            firsts.push(findings);
        }
    }
    firsts
}

fn refusals(all: &[&Findings]) -> Option<String> {
    // A pool with a limit has reasons of its own.
    if all.iter().any(|findings| findings.access.is_some()) {
        return None;
    }
    let refusing: Vec<String> = all
        .iter()
        .filter(|findings| findings.rejected_pages > 0)
        .map(|findings| {
            let figures = &findings.figures;
            let why = if findings.rejected_pages == figures.reject_compress_poor {
                ""
            } else {
                ", not only as too large (see --json)"
            };
            format!(
                "{} {} ({}{why})",
                findings.parts.zpool,
                thousands(findings.rejected_pages),
                share(findings.rejected_pages, figures.pages),
            )
        })
        .collect();
    let first = all.iter().find(|findings| findings.rejected_pages > 0)?;
    Some(format!(
        "Refused with {}, as too large once compressed: {} of {} pages. A pool that refuses pages \
         looks smaller: they stay in memory or go to disk. ALL IN counts 4096 bytes for each.",
        first.compressor,
        refusing.join(", "),
        thousands(first.figures.pages),
    ))
}

fn fastest(all: &[&Findings], compressor: &str) -> Vec<String> {
    let mut order: Vec<(&Findings, Stats)> =
        all.iter().map(|findings| (*findings, Stats::of(&findings.real_s))).collect();
    order.sort_by(|one, other| one.1.mean.total_cmp(&other.1.mean));
    let [(first, best), rest @ ..] = &order[..] else { return Vec::new() };
    let (noise, clear): (Vec<_>, Vec<_>) =
        rest.iter().partition(|(_, stats)| best.overlaps(stats) || first.real_s.len() == 1);
    let mut text =
        format!("Fastest with {compressor}: {} by mean run time ({:.3} s)", first.name, best.mean);
    for (findings, stats) in &clear {
        let more = percent_change(stats.mean, best.mean).unwrap_or(0.0);
        text += &format!(", {} takes {more:.1}% more", findings.name);
    }
    text += ".";
    if !noise.is_empty() {
        let names: Vec<&str> = noise.iter().map(|(findings, _)| findings.name.as_str()).collect();
        let reason = if first.real_s.len() == 1 {
            "one run does not show noise"
        } else {
            "the ranges of their run times overlap"
        };
        text += &format!(
            " Against {} the difference is within the noise: {reason}.",
            names.join(" and ")
        );
    }
    let refused_least = all.iter().map(|findings| findings.rejected_pages).min().unwrap_or(0);
    if first.rejected_pages > refused_least {
        text += " It had less to do: it refused more pages than another.";
    }
    vec![text]
}

/// Median store and load against the base, run by run.
fn medians(all: &[&Findings], compressor: &str) -> Option<String> {
    let base = all.iter().find(|findings| findings.is_base())?;
    let against = |of: fn(&Findings) -> &[Percentiles]| {
        let p50s = |findings: &Findings| {
            let runs = of(findings).iter().map(|run| run.p50 as f64);
            Stats::of(&runs.collect::<Vec<f64>>())
        };
        let base_p50s = p50s(base);
        let others = all.iter().filter(|findings| !findings.is_base()).map(|findings| {
            let stats = p50s(findings);
            let change = percent_change(stats.mean, base_p50s.mean).unwrap_or(0.0);
            // One run tells nothing about noise.
            let unknown = findings.real_s.len() == 1;
            let noise = if unknown || stats.overlaps(&base_p50s) { " (noise)" } else { "" };
            format!("{} {change:+.1}%{noise}", findings.name)
        });
        others.collect::<Vec<String>>().join(", ")
    };
    Some(format!(
        "Median latencies with {compressor} against {}: store {}; load {}.",
        base.name,
        against(|findings| &findings.store_ns_by_run),
        against(|findings| &findings.load_ns_by_run),
    ))
}

/// The extremes over all compressors.
fn overall(runs: &[Findings]) -> Option<String> {
    let some = || runs.iter().filter(|findings| findings.figures.compressed_bytes > 0);
    let dense = some().min_by_key(|findings| findings.bytes_with_rejected)?;
    let fast = some().min_by(|one, other| one.mean_real_s().total_cmp(&other.mean_real_s()))?;
    Some(format!(
        "Over all compressors: {} is the densest ({}, {:.3} s), {} the fastest by mean ({:.3} s, \
         {}).",
        dense.label(),
        mib(dense.bytes_with_rejected),
        dense.mean_real_s(),
        fast.label(),
        fast.mean_real_s(),
        mib(fast.bytes_with_rejected),
    ))
}

/// By all the memory that the pages take, refused ones included.
fn densest(all: &[&Findings], compressor: &str) -> String {
    let mut order = all.to_vec();
    order.sort_by_key(|findings| findings.bytes_with_rejected);
    let best = order[0];
    let others: Vec<String> = order[1..]
        .iter()
        .map(|findings| {
            if findings.bytes_with_rejected == best.bytes_with_rejected {
                return format!("{} takes as much", findings.name);
            }
            let bytes = findings.bytes_with_rejected as f64;
            let more = percent_change(bytes, best.bytes_with_rejected as f64).unwrap_or(0.0);
            format!("{} takes {more:.1}% more", findings.name)
        })
        .collect();
    let refused = if order.iter().any(|findings| findings.rejected_pages > 0) {
        " and refused pages"
    } else {
        ""
    };
    format!(
        "Densest with {compressor}: {}, {} with metadata{refused}; {}.",
        best.name,
        mib(best.bytes_with_rejected),
        others.join(", ")
    )
}

/// Cost of the densest in time against the fastest.
fn trade(all: &[&Findings]) -> Option<String> {
    let fast = all.iter().min_by(|one, other| one.mean_real_s().total_cmp(&other.mean_real_s()))?;
    let dense = all.iter().min_by_key(|findings| findings.bytes_with_rejected)?;
    if fast.bytes_with_rejected == dense.bytes_with_rejected {
        return Some(format!(
            "The trade: none on these pages; {} is the densest, and by mean also the fastest.",
            fast.name
        ));
    }
    let bytes = fast.bytes_with_rejected - dense.bytes_with_rejected;
    let saves = format!(
        "{} saves {} ({}) against {}",
        dense.name,
        mib(bytes),
        share(bytes, fast.bytes_with_rejected),
        fast.name
    );
    if noisy(fast, dense) {
        return Some(format!(
            "The trade: none that these runs show; {saves}, and what it takes longer is within the \
             noise."
        ));
    }
    let time = percent_change(dense.mean_real_s(), fast.mean_real_s())?;
    Some(format!("The trade: {saves} and takes {time:.1}% more time."))
}

/// Whether the runs cannot tell which of the two is faster.
fn noisy(one: &Findings, other: &Findings) -> bool {
    one.real_s.len() == 1 || Stats::of(&one.real_s).overlaps(&Stats::of(&other.real_s))
}

/// What freeing leaves behind.
fn holes(all: &[&Findings], freed: FreedHalf) -> Option<String> {
    let half = match freed {
        FreedHalf::Random => "a random half of the pages",
        FreedHalf::Odd => "every other page",
    };
    let parts: Vec<String> = all
        .iter()
        .map(|findings| {
            let figures = &findings.figures;
            let full = figures.pool_total_size;
            let (free, compact) = (figures.pool_after_free_bytes, figures.pool_after_compact_bytes);
            let then = if compact < free {
                format!(", {} once compacted", share(compact, full))
            } else {
                ", and compaction frees nothing".to_owned()
            };
            format!("{} keeps {} of its pool{then}", findings.parts.zpool, share(free, full))
        })
        .collect();
    (!parts.is_empty()).then(|| format!("With {half} freed, {}.", parts.join("; ")))
}

/// The pool against the base's, in words for a table cell.
pub(super) fn against_base(
    runs: &[Findings],
    findings: &Findings,
    of: fn(&Findings) -> f64,
) -> String {
    let base = base_of(runs, findings);
    against(findings.is_base(), percent_change(of(findings), of(base)))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::measure::experiment::{Combination, Parts};
    use crate::measure::histogram::Latencies;
    use crate::measure::replay::{Figures, Phases, Rss, RunResult, Spent};
    use crate::report::Base;
    use uzswap::index::IndexKind;
    use uzswap::zpool::ZpoolKind;

    /// Three runs around a mean, with a pool of so many pages and so many pages refused.
    pub(in super::super) fn findings(
        zpool: ZpoolKind,
        seconds: [f64; 3],
        pool_pages: u64,
        refused: u64,
    ) -> Findings {
        let run = |real_s| {
            let mut store_ns = Latencies::new();
            store_ns.record((real_s * 1000.0) as u64);
            RunResult {
                figures: Figures {
                    pages: 1000,
                    stored_pages: 1000 - refused,
                    reject_compress_poor: refused,
                    compressed_bytes: pool_pages * 4000,
                    pool_total_size: pool_pages * 4096,
                    pool_after_free_bytes: pool_pages * 4096 * 3 / 4,
                    pool_after_compact_bytes: pool_pages * 4096 / 2,
                    ..Figures::default()
                },
                rss: Rss::default(),
                phases: Phases { store: Spent { real_s, ..Spent::default() }, ..Phases::default() },
                load_ns: store_ns.clone(),
                store_ns,
                verified_pages: 1000 - refused,
                accessed: None,
                traced: None,
                unit_sums: Vec::new(),
                open_bytes: 0,
            }
        };
        let runs = seconds.map(run).to_vec();
        let compressor = "lz4".to_owned();
        let parts =
            Parts { zpool, index: IndexKind::Radix, mapping: None, unit_pages: 1, limit: None };
        let name = zpool.to_string();
        let combination =
            Combination { parts, name, compressor, object_header_bytes: 0, runs, lengths: None };
        let base = Base { name: "zsmalloc", compressor: None };
        Findings::new(&combination, &base, None)
    }

    fn summary(runs: &[Findings]) -> String {
        sentences(runs, FreedHalf::Random).join("\n")
    }

    #[test]
    fn clear_differences_are_told_in_percent() {
        let text = summary(&[
            findings(ZpoolKind::Zsmalloc, [1.1, 1.1, 1.1], 300, 0),
            findings(ZpoolKind::Zbud, [1.0, 1.0, 1.0], 500, 0),
        ]);
        for part in [
            "Fastest with lz4: zbud by mean run time (1.000 s), zsmalloc takes 10.0% more.",
            "Median latencies with lz4 against zsmalloc: store zbud -9.1%; load zbud -9.1%.",
            "Densest with lz4: zsmalloc, 1.2 MiB with metadata; zbud takes 66.7% more.",
            "The trade: zsmalloc saves 0.8 MiB (40.0%) against zbud and takes 10.0% more time.",
            "zsmalloc keeps 75.0% of its pool, 50.0% once compacted",
        ] {
            assert!(text.contains(part), "'{part}' is not in:\n{text}");
        }
        assert!(!text.contains("noise") && !text.contains("Refused"), "{text}");
    }

    #[test]
    fn what_takes_as_much_memory_saves_none() {
        let text = summary(&[
            findings(ZpoolKind::Zsmalloc, [1.1, 1.1, 1.1], 300, 0),
            findings(ZpoolKind::Zbud, [1.0, 1.0, 1.0], 300, 0),
        ]);
        for part in [
            "Densest with lz4: zsmalloc, 1.2 MiB with metadata; zbud takes as much.",
            "The trade: none on these pages; zbud is the densest, and by mean also the fastest.",
        ] {
            assert!(text.contains(part), "'{part}' is not in:\n{text}");
        }
        assert!(!text.contains("saves"), "{text}");
    }

    #[test]
    fn overlapping_ranges_are_noise() {
        let text = summary(&[
            findings(ZpoolKind::Zsmalloc, [1.0, 1.2, 1.1], 300, 0),
            findings(ZpoolKind::Zbud, [0.9, 1.0, 1.1], 500, 0),
        ]);
        assert!(text.contains("Against zsmalloc the difference is within the noise"), "{text}");
        assert!(text.contains("The trade: none that these runs show"), "{text}");
        assert!(text.contains("store zbud -9.1% (noise)"), "{text}");
    }

    #[test]
    fn one_run_tells_nothing_about_noise() {
        let mut runs = [
            findings(ZpoolKind::Zsmalloc, [1.1; 3], 300, 0),
            findings(ZpoolKind::Zbud, [1.0; 3], 500, 0),
        ];
        for findings in &mut runs {
            findings.real_s.truncate(1);
            findings.store_ns_by_run.truncate(1);
            findings.load_ns_by_run.truncate(1);
        }
        let text = summary(&runs);
        assert!(text.contains("one run does not show noise"), "{text}");
        assert!(text.contains("store zbud -9.1% (noise); load zbud -9.1% (noise)"), "{text}");
    }

    #[test]
    fn a_pool_that_refuses_pages_is_not_denser_for_it() {
        let text = summary(&[
            findings(ZpoolKind::Zsmalloc, [1.0; 3], 300, 0),
            findings(ZpoolKind::Zbud, [0.5; 3], 200, 400),
        ]);
        assert!(text.contains("zbud 400 (40.0%) of 1,000 pages"), "{text}");
        assert!(text.contains("Densest with lz4: zsmalloc"), "{text}");
        assert!(text.contains("It had less to do"), "{text}");
    }

    #[test]
    fn a_pool_that_kept_nothing_is_not_compared() {
        let text = summary(&[
            findings(ZpoolKind::Zsmalloc, [1.0; 3], 300, 0),
            findings(ZpoolKind::Zbud, [0.1; 3], 0, 1000),
        ]);
        assert!(text.contains("zbud kept no compressed page with lz4"), "{text}");
        assert!(!text.contains("Fastest"), "{text}");
    }
}
