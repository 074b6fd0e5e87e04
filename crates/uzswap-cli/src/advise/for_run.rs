//! The advice for `uzswap run`: a limit that it can keep, or the reason for none.

use super::outlook::{Kept, LimitRange, WorkingSet, limit_bytes};
use super::setting::{Advice, Setting, Tool, advice};
use super::{Measured, Target};
use crate::human_size::human_size;
use crate::report::choice::choose;

const MIB: u64 = 1 << 20;

/// The lowest limit that is advised. Below it, the pages in constant use do not fit beside the
/// pool, and programs take more than 50 times as long (docs/reference/run.md).
const LIMIT_MIN: u64 = 16 * MIB;

/// A limit that leaves more than this share of the memory saves too little to be worth it.
const SHARE_MAX: f64 = 7.0 / 8.0;

/// With more than this share of the memory in programs that `run` cannot manage, a limit would end
/// them.
const UNMANAGED_SHARE: f64 = 1.0 / 4.0;

/// Limits that differ by more have their range in the verdict.
const NARROW: f64 = 1.1;

/// Why `run` is not for some pages, whatever they are used for.
pub(super) fn too_few(target: &Target) -> Option<String> {
    let is_small = (target.bytes as f64) * SHARE_MAX < LIMIT_MIN as f64;
    (is_small && !target.is_machine).then(|| {
        format!(
            "Do not bother: these pages take {}, and below {} a program waits for pages more than \
             it runs.",
            human_size(target.bytes),
            human_size(LIMIT_MIN)
        )
    })
}

/// The sentence where `run` cannot manage the program, or what has much of its memory.
pub(super) fn unmanaged(target: &Target) -> Option<String> {
    let bytes = target.unmanaged_bytes();
    if bytes as f64 <= target.bytes as f64 * UNMANAGED_SHARE {
        return None;
    }
    let names = target.unmanaged.iter().map(|it| format!("{} ({})", it.why, it.program));
    let names = names.collect::<Vec<String>>().join(", ");
    let all = human_size(target.bytes);
    Some(match bytes.saturating_mul(10) >= target.bytes.saturating_mul(9) {
        true => format!("uzswap run cannot manage this program: {names}."),
        false => format!(
            "uzswap run cannot manage this program: {} of its {all} are of programs that it cannot \
             evict: {names}.",
            human_size(bytes)
        ),
    })
}

/// Remarks on memory that `run` would neither count nor evict.
pub(super) fn remarks(target: &Target) -> Vec<String> {
    let mut remarks = Vec::new();
    if let Some(text) = target.uncounted.text(human_size) {
        remarks.push(format!(
            "Not counted: {text}. A limit of uzswap run is for the other pages alone, and these \
             stay."
        ));
    }
    let bytes = target.unmanaged_bytes();
    if bytes >= MIB && unmanaged(target).is_none() {
        let names = target.unmanaged.iter().map(|it| format!("{} ({})", it.program, it.why));
        remarks.push(format!(
            "{} are of programs that uzswap run cannot manage: {}. They stay as they are.",
            human_size(bytes),
            names.collect::<Vec<String>>().join(", ")
        ));
    }
    remarks
}

/// The measurement of the best compressor of `run`.
pub(super) fn best(measured: &[Measured]) -> Option<&Measured> {
    choose(measured.iter().filter(|one| !one.is_of_kernel()))
}

/// For one program: a limit that leaves its working set as it is.
pub(super) fn for_run(
    target: &Target,
    measured: &[Measured],
    working_set: Option<&WorkingSet>,
) -> Option<Advice> {
    if target.is_machine || unmanaged(target).is_some() {
        return None;
    }
    let best = best(measured)?;
    let kept = Kept::of(target.bytes, best, working_set);
    // Memory of programs that `run` cannot manage stays beside what the others need.
    let kept_bytes = (kept.bytes(target.bytes) + target.unmanaged_bytes()).min(target.bytes);
    let limit = limit_bytes(target.bytes, kept_bytes, best.ratio());
    let limit = limit.next_multiple_of(MIB).max(LIMIT_MIN);
    let command = target.command.as_deref().unwrap_or("COMMAND");
    let line = format!(
        "uzswap run --limit {}M --compressor {} -- {command}",
        limit / MIB,
        best.plain_compressor()
    );
    let settings = vec![Setting::new("in a shell", vec![line])];
    let assumes = match kept {
        Kept::Half => "half of the pages as they are, the others compressed".to_owned(),
        _ => format!("{} as they are, the other pages compressed", human_size(kept_bytes)),
    };
    let LimitRange { low_bytes, high_bytes } = LimitRange::of(target.bytes, best, working_set);
    let range = LimitRange {
        low_bytes: low_bytes.map(|low| low.clamp(LIMIT_MIN, limit)),
        high_bytes: high_bytes.map(|high| high.max(limit)),
    };
    let advice = advice(Tool::Run, best, settings, (target.bytes, limit), assumes);
    Some(Advice {
        compressor: best.plain_compressor().to_owned(),
        least_time_factor: kept.least_time_factor(),
        limit_range: Some(range),
        ..advice
    })
}

/// The limits of other runs in a sentence, where they are not about the same.
pub(super) fn range_in_words(range: LimitRange) -> Option<String> {
    let low = range.low_bytes?;
    match range.high_bytes {
        Some(high) if high as f64 <= low as f64 * NARROW => None,
        Some(high) => Some(format!(
            "Range: another run of it may lead to a limit from {} to {}.",
            human_size(low),
            human_size(high)
        )),
        None => Some(format!(
            "Range: another run of it may lead to a limit from {} on, or to none.",
            human_size(low)
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::advise::Runtime;
    use crate::corpus::observed::Unmanaged;
    use uzswap_pager::Uncounted;

    fn target(mib: u64, unmanaged_mib: u64) -> Target {
        let program = Unmanaged {
            program: "tool".to_owned(),
            why: "static".to_owned(),
            bytes: unmanaged_mib * MIB,
        };
        Target {
            origin: "job".to_owned(),
            command: Some("job".to_owned()),
            bytes: mib * MIB,
            is_machine: false,
            runtime: None::<Runtime>,
            uncounted: Uncounted::default(),
            unmanaged: if unmanaged_mib > 0 { vec![program] } else { Vec::new() },
        }
    }

    #[test]
    fn unmanaged_programs_are_named_with_the_reason() {
        assert_eq!(unmanaged(&target(100, 0)), None);
        assert_eq!(unmanaged(&target(100, 25)), None);
        let remarks = remarks(&target(100, 25));
        assert!(remarks[0].starts_with("25.0 MiB are of programs that uzswap run cannot manage"));
        assert_eq!(
            unmanaged(&target(100, 99)).unwrap(),
            "uzswap run cannot manage this program: static (tool)."
        );
        let part = unmanaged(&target(100, 40)).unwrap();
        assert!(part.contains("40.0 MiB of its 100 MiB"), "{part}");
    }

    #[test]
    fn shared_memory_is_named_as_run_does() {
        let uncounted = Uncounted { shared_bytes: 200 * MIB, huge_bytes: 0 };
        let remarks = remarks(&Target { uncounted, ..target(14, 0) });
        assert!(remarks[0].starts_with("Not counted: 200 MiB of shared memory (memfd, tmpfs"));
    }

    #[test]
    fn programs_that_fit_into_the_least_limit_get_none() {
        assert!(too_few(&target(10, 0)).unwrap().starts_with("Do not bother: these pages take 10"));
        assert!(too_few(&target(18, 0)).is_some());
        assert_eq!(too_few(&target(19, 0)), None);
        assert_eq!(too_few(&Target { is_machine: true, ..target(10, 0) }), None);
    }

    #[test]
    fn a_range_is_told_where_it_is_wide() {
        let words = |low: Option<u64>, high: Option<u64>| {
            let bytes = |it: Option<u64>| it.map(|mib| mib * MIB);
            range_in_words(LimitRange { low_bytes: bytes(low), high_bytes: bytes(high) })
        };
        assert_eq!(words(Some(100), Some(110)), None);
        assert_eq!(words(None, None), None);
        assert!(words(Some(100), Some(120)).unwrap().contains("from 100 MiB to 120 MiB"));
        assert!(words(Some(100), None).unwrap().ends_with("from 100 MiB on, or to none."));
    }
}
