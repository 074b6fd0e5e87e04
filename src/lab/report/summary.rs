//! The figures in words, each sentence computed from them.

use super::stats::{Stats, percent_change};
use super::text::{mib, thousands};
use super::{Findings, base_of};
use crate::lab::replay::FreedHalf;

/// What the figures say, compressor by compressor.
pub(super) fn sentences(runs: &[Findings], freed: FreedHalf) -> Vec<String> {
    let mut sentences = Vec::new();
    let mut compressors: Vec<&str> = Vec::new();
    for findings in runs {
        if !compressors.contains(&findings.compressor.as_str()) {
            compressors.push(&findings.compressor);
        }
    }
    for compressor in compressors {
        let all: Vec<&Findings> =
            runs.iter().filter(|findings| findings.compressor == compressor).collect();
        // An allocator that took nothing has nothing to compare.
        let (some, none): (Vec<&Findings>, Vec<&Findings>) =
            all.iter().partition(|findings| findings.figures.compressed_bytes > 0);
        sentences.extend(refusals(&all));
        if some.len() > 1 {
            sentences.extend(fastest(&some, compressor));
            sentences.push(densest(&some, compressor));
            sentences.extend(trade(&some));
        }
        if !none.is_empty() {
            let names: Vec<&str> = none.iter().map(|findings| findings.zpool).collect();
            sentences.push(format!(
                "{} kept no compressed page with {compressor}: there is nothing to compare.",
                names.join(" and ")
            ));
        }
        sentences.extend(holes(&some, freed));
    }
    sentences
}

fn refusals(all: &[&Findings]) -> Vec<String> {
    let refusing = all.iter().filter(|findings| findings.rejected_pages > 0);
    refusing
        .map(|findings| {
            let figures = &findings.figures;
            let why = if findings.rejected_pages == figures.reject_compress_poor {
                "as too large once compressed"
            } else if findings.rejected_pages == figures.reject_alloc_fail {
                "for want of memory"
            } else {
                "for several reasons (see --json)"
            };
            format!(
                "{} refused {} of {} pages ({}) {why}: its pool looks smaller for that. Such \
                 pages stay in memory or go to disk; with 4096 bytes for each of them it comes to \
                 {}.",
                findings.label(),
                thousands(findings.rejected_pages),
                thousands(figures.pages),
                share(findings.rejected_pages, figures.pages),
                mib(findings.bytes_with_rejected),
            )
        })
        .collect()
}

fn fastest(all: &[&Findings], compressor: &str) -> Vec<String> {
    let mut order: Vec<(&Findings, Stats)> =
        all.iter().map(|findings| (*findings, Stats::of(&findings.real_s))).collect();
    order.sort_by(|one, other| one.1.mean.total_cmp(&other.1.mean));
    let [(first, best), rest @ ..] = &order[..] else { return Vec::new() };
    let (noise, clear): (Vec<_>, Vec<_>) =
        rest.iter().partition(|(_, stats)| best.overlaps(stats) || first.real_s.len() == 1);
    let mut text =
        format!("Fastest with {compressor}: {} by mean run time ({:.3} s)", first.zpool, best.mean);
    for (findings, stats) in &clear {
        let more = percent_change(stats.mean, best.mean).unwrap_or(0.0);
        text += &format!(", {} takes {more:.1} % more", findings.zpool);
    }
    text += ".";
    if !noise.is_empty() {
        let names: Vec<&str> = noise.iter().map(|(findings, _)| findings.zpool).collect();
        let reason = if first.real_s.len() == 1 {
            "one run tells nothing about noise"
        } else {
            "the ranges of their run times overlap"
        };
        text += &format!(
            " Against {} the difference is within the noise: {reason}.",
            names.join(" and ")
        );
    }
    if first.rejected_pages > 0 {
        text += &format!(" {} had less to do: it refused pages.", first.zpool);
    }
    vec![text]
}

/// By all the memory that the pages take, refused ones included.
fn densest(all: &[&Findings], compressor: &str) -> String {
    let mut order = all.to_vec();
    order.sort_by_key(|findings| findings.bytes_with_rejected);
    let best = order[0];
    let others: Vec<String> = order[1..]
        .iter()
        .map(|findings| {
            let bytes = findings.bytes_with_rejected as f64;
            let more = percent_change(bytes, best.bytes_with_rejected as f64).unwrap_or(0.0);
            format!("{} takes {more:.1} % more", findings.zpool)
        })
        .collect();
    let refused = if order.iter().any(|findings| findings.rejected_pages > 0) {
        " and refused pages"
    } else {
        ""
    };
    format!(
        "Densest with {compressor}: {}, {} with metadata{refused}; {}.",
        best.zpool,
        mib(best.bytes_with_rejected),
        others.join(", ")
    )
}

/// What the densest costs in time against the fastest.
fn trade(all: &[&Findings]) -> Option<String> {
    let mean = |findings: &Findings| Stats::of(&findings.real_s).mean;
    let fast = all.iter().min_by(|one, other| mean(one).total_cmp(&mean(other)))?;
    let dense = all.iter().min_by_key(|findings| findings.bytes_with_rejected)?;
    if fast.zpool == dense.zpool {
        return Some(format!(
            "The trade: none on these pages; {} is both the densest and the fastest by mean.",
            dense.zpool
        ));
    }
    let bytes = fast.bytes_with_rejected - dense.bytes_with_rejected;
    let time = percent_change(mean(dense), mean(fast))?;
    let noise = if Stats::of(&fast.real_s).overlaps(&Stats::of(&dense.real_s)) {
        ", which is within the noise"
    } else {
        ""
    };
    Some(format!(
        "The trade: {} saves {} ({}) against {} and takes {time:.1} % more time{noise}.",
        dense.zpool,
        mib(bytes),
        share(bytes, fast.bytes_with_rejected),
        fast.zpool,
    ))
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
            format!("{} keeps {} of its pool{then}", findings.zpool, share(free, full))
        })
        .collect();
    (!parts.is_empty()).then(|| format!("With {half} freed, {}.", parts.join("; ")))
}

fn share(part: u64, whole: u64) -> String {
    format!("{:.1} %", part as f64 / whole.max(1) as f64 * 100.0)
}

/// The pool against the base's, in words for a table cell.
pub(super) fn against_base(
    runs: &[Findings],
    findings: &Findings,
    of: fn(&Findings) -> f64,
) -> String {
    let base = base_of(runs, findings);
    if findings.is_base() {
        return "base".to_owned();
    }
    percent_change(of(findings), of(base))
        .map_or("-".to_owned(), |change| format!("{change:+.1} %"))
}
