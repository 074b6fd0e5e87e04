//! From measurements and the state of the machine to settings: values in, values out.

use serde::{Deserialize, Serialize};

use super::for_run::{self, for_run};
use super::machine::{SwapState, ZramState, ZswapState};
use super::outlook::{Kept, LimitRange, Outlook, WorkingSet};
use super::setting::{Advice, Setting, Tool, advice};
use super::trial::Trial;
use super::{Confidence, Measured, Target};
use crate::human_size::human_size;
use crate::measure::recompression::{self, Timed};
use crate::report::choice::{RATIO_MIN, choose};

/// The kernel's part of a machine for compressed pages: a quarter of its memory.
const MACHINE_SHARE: f64 = 0.25;

/// Above the measured need, for pages that are not in the sample.
const RESERVE: f64 = 1.25;

/// Pages below which there is nothing to save.
const PAGES_MIN: u64 = 1 << 8; // 1 MiB

/// A target of so many times less than the available memory has no lack of it.
const ENOUGH_TIMES: u64 = 2;

const MIB: u64 = 1 << 20;

/// The advice for a target, and remarks that may be worth more than any setting.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Recommendation {
    /// The answer in one or two sentences.
    pub verdict: Vec<String>,
    /// One element a tool that can help here.
    pub advice: Vec<Advice>,
    /// The time of the program under some limits, the highest first. Empty where nothing shows it.
    pub outlook: Vec<Outlook>,
    /// Remarks: states of the machine that are wrong, and lacks that are no lack of memory.
    pub warnings: Vec<String>,
}

/// The advice.
pub fn recommend(
    target: &Target,
    measured: &[Measured],
    working_set: Option<&WorkingSet>,
    machine: &SwapState,
) -> Recommendation {
    let mut warnings = warnings(target, machine);
    warnings.extend(for_run::remarks(target));
    let none = |warnings, outlook, verdict| Recommendation {
        verdict: vec![verdict],
        advice: Vec::new(),
        outlook,
        warnings,
    };
    let Some(best) = for_run::best(measured) else {
        let verdict = "No page was measured: there is nothing to advise.".to_owned();
        return none(warnings, Vec::new(), verdict);
    };
    if best.pages < PAGES_MIN {
        let pages = best.pages;
        let verdict =
            format!("Do not bother: there are {pages} pages, too few to save memory with.");
        return none(warnings, Vec::new(), verdict);
    }
    if best.ratio() < RATIO_MIN {
        let verdict = format!(
            "Do not bother: these pages do not compress ({:.2} to 1 at best, with {}).",
            best.ratio(),
            best.compressor
        );
        return none(warnings, Vec::new(), verdict);
    }
    if let Some(verdict) = for_run::too_few(target) {
        return none(warnings, Vec::new(), verdict);
    }
    let unmanaged = for_run::unmanaged(target);
    let outlook = working_set.map_or(Vec::new(), |it| it.outlooks(target.bytes, best));
    if let (Kept::All(most), Some(set), None) =
        (Kept::of(target.bytes, best, working_set), working_set, &unmanaged)
    {
        let mut found = none(warnings, outlook, needs_all(target, set, most));
        let range = LimitRange::of(target.bytes, best, working_set);
        found.verdict.extend(for_run::range_in_words(LimitRange { high_bytes: None, ..range }));
        return found;
    }
    let advice: Vec<Advice> = [
        for_run(target, measured, working_set),
        for_zram(target, measured, working_set, machine),
        for_zswap(target, measured, working_set, machine),
    ]
    .into_iter()
    .flatten()
    .collect();
    let mut verdict: Vec<String> = unmanaged.into_iter().collect();
    let enough = enough(target, machine);
    let lead = if enough.is_some() { "If memory gets short: " } else { "Use: " };
    verdict.extend(enough);
    if let Some(first) = advice.first() {
        verdict.push(format!("{lead}{}", first.action()));
        verdict.push(first.effect());
        verdict.push(first.cost());
        verdict.extend(first.limit_range.and_then(for_run::range_in_words));
    }
    let of_kernel = best_of(measured, is_of_kernel);
    warnings.extend(advice.iter().filter_map(|it| denser_elsewhere(it, of_kernel?)));
    let timed: Vec<Timed<'_>> = measured.iter().filter(|it| it.is_of_kernel()).map(timed).collect();
    warnings.extend(recompression::answer(&timed, None));
    Recommendation { verdict, advice, outlook, warnings }
}

/// A sentence where the program works on all of its memory all the time.
fn needs_all(target: &Target, set: &WorkingSet, most: Outlook) -> String {
    format!(
        "Do not limit this program: it touches {} of its {} in {:.0} ms. In {} it waits for pages \
         all the time.",
        // More where it gave pages back in the window.
        human_size(set.touched_bytes.min(target.bytes)),
        human_size(target.bytes),
        set.window_ms,
        human_size(most.limit_bytes)
    )
}

/// A sentence where there is memory enough.
fn enough(target: &Target, machine: &SwapState) -> Option<String> {
    let has_room = match target.is_machine {
        true => machine.available_bytes > machine.memory_bytes / 2,
        false => target.bytes.saturating_mul(ENOUGH_TIMES) < machine.available_bytes,
    };
    let is_calm = machine.areas.iter().all(|area| area.used_bytes < area.bytes / 20);
    (has_room && is_calm).then(|| {
        format!(
            "Now: change nothing. You have enough memory: {} are available, and these pages take \
             {}.",
            human_size(machine.available_bytes),
            human_size(target.bytes)
        )
    })
}

fn timed(measured: &Measured) -> Timed<'_> {
    let Measured { compressor, bytes, store_us, load_us, .. } = measured;
    let bytes = bytes.estimate as f64;
    Timed { compressor, bytes, store_us: *store_us, load_us: *load_us }
}

/// A sentence where a tool of this kernel lacks the compressor that the rule would choose.
fn denser_elsewhere(advice: &Advice, best: &Measured) -> Option<String> {
    (advice.tool != Tool::Run && advice.compressor != best.compressor).then(|| {
        format!(
            "The {} of this kernel lacks {}, the best compressor for these pages ({:.1} to 1).",
            advice.tool,
            best.compressor,
            best.ratio()
        )
    })
}

impl Recommendation {
    /// The same with the outcome of a trial of the limit of `run`.
    pub(super) fn tried(mut self, trial: Trial) -> Recommendation {
        let Some(run) = self.advice.iter_mut().find(|it| it.tool == Tool::Run) else { return self };
        let sentence = trial.sentence(run.takes_bytes);
        match trial.failure {
            Some(_) => {
                self.verdict = vec![sentence];
                self.advice.retain(|it| it.tool != Tool::Run);
            }
            None => {
                "it was tried".clone_into(&mut run.confidence_because);
                run.confidence = Confidence::High;
                self.verdict.push(sentence);
                run.trial = Some(trial);
            }
        }
        self
    }
}

/// The measurement of the kernel's best compressor.
fn best_of(measured: &[Measured], is_there: impl Fn(&str) -> bool) -> Option<&Measured> {
    choose(measured.iter().filter(|one| one.is_of_kernel() && is_there(&one.compressor)))
}

/// Real memory for compressed pages, and the uncompressed pages that fit in it.
fn room(
    target: &Target,
    best: &Measured,
    working_set: Option<&WorkingSet>,
    machine: &SwapState,
) -> (u64, u64) {
    let real = match target.is_machine {
        true => machine.memory_bytes as f64 * MACHINE_SHARE,
        // For the pages of this program that do not stay.
        false => {
            let kept = Kept::of(target.bytes, best, working_set).bytes(target.bytes);
            (target.bytes - kept) as f64 / best.ratio() * RESERVE
        }
    };
    let real = (real as u64).next_multiple_of(MIB).max(MIB);
    let pages = (real as f64 * best.ratio() / RESERVE) as u64 / MIB * MIB;
    (real, pages.max(MIB))
}

fn for_zram(
    target: &Target,
    measured: &[Measured],
    working_set: Option<&WorkingSet>,
    machine: &SwapState,
) -> Option<Advice> {
    let zram: &ZramState = machine.zram.as_ref()?;
    let is_there = |name: &str| {
        is_of_kernel(name)
            && (zram.compressors.is_empty() || zram.compressors.iter().any(|it| it == name))
    };
    let best = best_of(measured, is_there)?;
    let (real, pages) = room(target, best, working_set, machine);
    let name = &best.compressor;
    let mut generator = vec![
        "[zram0]".to_owned(),
        format!("zram-size = {}", pages / MIB),
        format!("zram-resident-limit = {}", real / MIB),
        format!("compression-algorithm = {name}"),
    ];
    let mut sysfs = vec![
        format!("echo {name} > /sys/block/zram0/comp_algorithm"),
        format!("echo {}M > /sys/block/zram0/disksize", pages / MIB),
        format!("echo {}M > /sys/block/zram0/mem_limit", real / MIB),
        "mkswap /dev/zram0 && swapon -p 100 /dev/zram0".to_owned(),
    ];
    let dense = second(best, measured, is_there).filter(|_| zram.has_recompression);
    if let Some(dense) = dense {
        sysfs.insert(
            1,
            format!("echo 'algo={dense} priority=1' > /sys/block/zram0/recomp_algorithm"),
        );
        generator[3] = format!("compression-algorithm = {name} {dense} (type=idle)");
        sysfs.push("# now and then: mark pages that rest, and recompress them".to_owned());
        sysfs.push("echo all > /sys/block/zram0/idle".to_owned());
        sysfs.push("echo type=idle > /sys/block/zram0/recompress".to_owned());
    }
    if machine.swaps_to_zram() || zram.disksize_bytes > 0 {
        sysfs.insert(0, "swapoff /dev/zram0; echo 1 > /sys/block/zram0/reset".to_owned());
    }
    let settings = vec![
        Setting::new("in /etc/systemd/zram-generator.conf, which lasts", generator),
        Setting::new("in a shell as root, until the next start", sysfs),
    ];
    let takes = (pages as f64 / best.ratio()) as u64;
    Some(advice(Tool::Zram, best, settings, (pages, takes), assumption(target)))
}

/// The condition of a saving by the kernel's swap.
fn assumption(target: &Target) -> String {
    match target.is_machine {
        true => "once so many pages are swapped out, if they compress as those measured".to_owned(),
        false => "once these pages are swapped out; other programs need more".to_owned(),
    }
}

/// A compressor for cold pages: the densest, where it saves a tenth against the first.
fn second(
    best: &Measured,
    measured: &[Measured],
    is_there: impl Fn(&str) -> bool,
) -> Option<String> {
    let all = measured.iter().filter(|one| one.is_of_kernel() && is_there(&one.compressor));
    let densest = all.max_by(|one, other| one.ratio().total_cmp(&other.ratio()))?;
    (densest.ratio() > best.ratio() * 1.1).then(|| densest.compressor.clone())
}

fn for_zswap(
    target: &Target,
    measured: &[Measured],
    working_set: Option<&WorkingSet>,
    machine: &SwapState,
) -> Option<Advice> {
    let zswap: &ZswapState = machine.zswap.as_ref()?;
    if !machine.has_disk_swap() {
        return None; // a warning says so
    }
    let best = best_of(measured, is_of_kernel)?;
    let (real, pages) = room(target, best, working_set, machine);
    let percent = (real * 100).div_ceil(machine.memory_bytes.max(1)).clamp(1, 50);
    let mut lines = vec![
        format!("echo {} > /sys/module/zswap/parameters/compressor", best.compressor),
        format!("echo {percent} > /sys/module/zswap/parameters/max_pool_percent"),
    ];
    if zswap.zpool.is_some() {
        lines.push("echo zsmalloc > /sys/module/zswap/parameters/zpool".to_owned());
    }
    if zswap.has_shrinker {
        lines.push("echo Y > /sys/module/zswap/parameters/shrinker_enabled".to_owned());
    }
    lines.push("echo Y > /sys/module/zswap/parameters/enabled".to_owned());
    let settings = vec![Setting::new("in a shell as root", lines)];
    let takes = (pages as f64 / best.ratio()) as u64;
    Some(advice(Tool::Zswap, best, settings, (pages, takes), assumption(target)))
}

/// Whether the kernel has a compressor of this name. It has no levels.
fn is_of_kernel(name: &str) -> bool {
    ["lzo", "lzo-rle", "lz4", "zstd", "deflate"].contains(&name)
}

fn warnings(target: &Target, machine: &SwapState) -> Vec<String> {
    let mut warnings = Vec::new();
    let zswap_is_on = machine.zswap.as_ref().is_some_and(|zswap| zswap.is_enabled);
    if zswap_is_on && machine.swaps_to_zram() {
        warnings.push(
            "zswap is on in front of zram: pages are compressed twice. Turn one off: echo N > \
             /sys/module/zswap/parameters/enabled."
                .to_owned(),
        );
    }
    if machine.zswap.is_some() && !machine.has_disk_swap() {
        warnings.push(
            "No advice for zswap: it needs a swap area on a disk or in a file, and none is on."
                .to_owned(),
        );
    }
    if machine.zram.is_none() {
        warnings.push("This kernel has no zram device: modprobe zram makes one.".to_owned());
    }
    if let Some(runtime) = target.runtime {
        warnings.push(runtime.warning().to_owned());
    }
    warnings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::advise::Runtime;
    use crate::advise::machine::SwapArea;
    use crate::advise::outlook::tests::touching;
    use crate::corpus::sample::Estimate;
    use uzswap::zpool::ZpoolKind::{self, Packed, Zsmalloc};
    use uzswap_pager::Uncounted;

    const GIB: u64 = 1 << 30;

    fn measured(zpool: ZpoolKind, compressor: &str, ratio: f64, store_us: f64) -> Measured {
        let pages = 20_000;
        let bytes = (3.0 * GIB as f64 / ratio) as u64;
        Measured {
            compressor: compressor.to_owned(),
            zpool,
            pages,
            bytes: Estimate { estimate: bytes, low: bytes / 50 * 49, high: bytes / 50 * 51 },
            of_bytes: 3 * GIB,
            store_us,
            load_us: store_us / 3.0,
        }
    }

    /// Of `run`, and of the kernel.
    fn both() -> [Measured; 4] {
        [
            measured(Packed, "lz4~auto", 2.8, 3.0),
            measured(Packed, "zstd~auto", 4.0, 12.0),
            measured(Zsmalloc, "lz4", 2.5, 3.0),
            measured(Zsmalloc, "zstd", 3.5, 12.0),
        ]
    }

    fn program(bytes: u64) -> Target {
        Target {
            origin: "job".to_owned(),
            command: Some("python3 job.py".to_owned()),
            bytes,
            is_machine: false,
            runtime: None,
            uncounted: Uncounted::default(),
            unmanaged: Vec::new(),
        }
    }

    fn machine(available_bytes: u64) -> SwapState {
        SwapState {
            memory_bytes: 8 * GIB,
            available_bytes,
            zram: Some(ZramState {
                compressors: vec!["lz4".into(), "zstd".into()],
                ..ZramState::default()
            }),
            zswap: Some(ZswapState::default()),
            ..SwapState::default()
        }
    }

    fn tool(found: &Recommendation, tool: Tool) -> Option<&Advice> {
        found.advice.iter().find(|advice| advice.tool == tool)
    }

    #[test]
    fn a_program_gets_a_limit_with_room_for_its_compressed_pages() {
        let found = recommend(&program(3 * GIB), &both(), None, &machine(GIB));
        let run = tool(&found, Tool::Run).unwrap();
        // A half of 3 GiB, and the other at 4 to 1.
        assert_eq!(
            run.settings[0].lines[0],
            "uzswap run --limit 1920M --compressor zstd -- python3 job.py"
        );
        assert_eq!((run.saves_bytes, run.saves_percent), (9 * GIB / 8, 37.5));
        assert!((run.cpu_percent_per_1000_pages - 1.6).abs() < 1e-9);
        assert_eq!(run.confidence, Confidence::Medium);
        assert!(found.verdict[0].starts_with("Use: uzswap run --limit 1920M"), "{found:?}");
        assert!(found.verdict[1].starts_with("Effect: 1.9 GiB instead of 3.0 GiB (saves 1.1 GiB"));
        // 1.5 GiB at 3.5 to 1, and a quarter; their size is that of the uncompressed pages.
        let zram = tool(&found, Tool::Zram).unwrap();
        assert!(
            zram.settings[0].lines.contains(&"zram-resident-limit = 549".to_owned()),
            "{zram:?}"
        );
        assert!(zram.settings[0].lines.contains(&"zram-size = 1537".to_owned()), "{zram:?}");
        assert_eq!(tool(&found, Tool::Zswap), None);
        assert!(found.warnings.iter().any(|it| it.starts_with("No advice for zswap")));
    }

    #[test]
    fn a_program_that_touches_all_of_its_memory_gets_no_limit() {
        let target = program(100 * MIB);
        for touched in [100, 102] {
            let found = recommend(&target, &both(), Some(&touching(touched)), &machine(GIB));
            let starts = "Do not limit this program: it touches 100 MiB of its 100 MiB in 25 ms. ";
            assert!(found.verdict[0].starts_with(starts), "{found:?}");
            assert_eq!((found.advice, found.outlook.len()), (Vec::new(), 4));
        }

        // Its pages that it touches stay, those alone.
        let found = recommend(&target, &both(), Some(&touching(30)), &machine(GIB));
        let run = tool(&found, Tool::Run).unwrap();
        assert!((47 * MIB..50 * MIB).contains(&run.takes_bytes), "{run:?}");
        assert!(run.least_time_factor.unwrap() <= 1.1, "{run:?}");
        assert!(run.limit_range.is_some_and(|it| it.low_bytes < Some(run.takes_bytes)), "{run:?}");
        assert!(run.effect().contains("MiB as they are, the other pages compressed"), "{run:?}");
    }

    #[test]
    fn advice_for_far_more_pages_than_were_measured_is_a_guess() {
        let large = SwapState { memory_bytes: 100 * GIB, ..machine(GIB) };
        let target = Target { is_machine: true, ..program(3 * GIB) };
        let found = recommend(&target, &both(), None, &large);
        let zram = tool(&found, Tool::Zram).unwrap();
        assert_eq!(zram.confidence, Confidence::Low, "{zram:?}");
        assert!(zram.confidence_because.contains("3.0 GiB are there to measure"), "{zram:?}");
        assert!(found.verdict.iter().any(|it| it.starts_with("Cost: ")), "{found:?}");
    }

    #[test]
    fn pages_that_do_not_compress_get_no_setting() {
        let found =
            recommend(&program(GIB), &[measured(Packed, "lz4", 1.02, 3.0)], None, &machine(GIB));
        assert!(found.verdict[0].starts_with("Do not bother"), "{found:?}");
        assert_eq!(found.advice, []);
    }

    #[test]
    fn enough_memory_is_said_first() {
        let found = recommend(&program(GIB), &both(), None, &machine(5 * GIB));
        assert!(found.verdict[0].starts_with("Now: change nothing."), "{found:?}");
        let found = recommend(&program(3 * GIB), &both(), None, &machine(5 * GIB));
        assert!(found.verdict[0].starts_with("Use"), "{found:?}");
        let busy = SwapArea { path: "/swap".into(), bytes: GIB, used_bytes: GIB / 2 };
        let machine = SwapState { areas: vec![busy], ..machine(5 * GIB) };
        assert!(recommend(&program(GIB), &both(), None, &machine).verdict[0].starts_with("Use"));
    }

    #[test]
    fn settings_are_those_of_the_running_kernel() {
        let area = SwapArea { path: "/swap".into(), bytes: GIB, used_bytes: 0 };
        let mut old = machine(GIB);
        old.areas = vec![area];
        old.zswap = Some(ZswapState { zpool: Some("zbud".into()), ..ZswapState::default() });
        old.zram = Some(ZramState {
            compressors: vec!["lzo".into(), "lz4".into()],
            ..ZramState::default()
        });
        let target = Target { is_machine: true, ..program(3 * GIB) };
        let found = recommend(&target, &both(), None, &old);
        assert_eq!(tool(&found, Tool::Run), None);
        // It has no zstd.
        assert_eq!(tool(&found, Tool::Zram).unwrap().compressor, "lz4");
        let lines = &tool(&found, Tool::Zswap).unwrap().settings[0].lines;
        assert!(lines.contains(&"echo zsmalloc > /sys/module/zswap/parameters/zpool".to_owned()));
        assert!(
            lines.contains(&"echo 25 > /sys/module/zswap/parameters/max_pool_percent".to_owned())
        );
        old.zswap = Some(ZswapState { has_shrinker: true, ..ZswapState::default() });
        let found = recommend(&target, &both(), None, &old);
        let lines = tool(&found, Tool::Zswap).unwrap().settings[0].lines.join("\n");
        assert!(!lines.contains("/zpool") && lines.contains("shrinker_enabled"), "{lines}");
    }

    #[test]
    fn cold_pages_of_zram_are_recompressed_where_the_kernel_can() {
        // zstd is denser, and too slow for the rule.
        let slow = [Packed, Zsmalloc]
            .map(|zpool| [measured(zpool, "lz4", 2.5, 3.0), measured(zpool, "zstd", 3.0, 100.0)]);
        let slow = slow.as_flattened();
        let mut state = machine(GIB);
        let lines = |state: &SwapState| {
            let found = recommend(&program(3 * GIB), slow, None, state);
            let zram = tool(&found, Tool::Zram).unwrap();
            zram.settings.iter().flat_map(|it| it.lines.clone()).collect::<Vec<_>>().join("\n")
        };
        assert!(!lines(&state).contains("recompress"));
        state.zram.as_mut().unwrap().has_recompression = true;
        let lines = lines(&state);
        assert!(lines.contains("algo=zstd priority=1") && lines.contains("type=idle"), "{lines}");
    }

    #[test]
    fn states_that_cost_memory_or_are_no_lack_of_it_are_warned_of() {
        let mut state = machine(GIB);
        state.zswap.as_mut().unwrap().is_enabled = true;
        state.areas = vec![SwapArea { path: "/dev/zram0".into(), bytes: GIB, used_bytes: 0 }];
        let target = Target { runtime: Some(Runtime::V8), ..program(3 * GIB) };
        let warnings = recommend(&target, &both(), None, &state).warnings.join("\n");
        assert!(warnings.contains("compressed twice"), "{warnings}");
        assert!(warnings.contains("--max-old-space-size"), "{warnings}");
    }
}
