//! Goal: the controller chooses as the paper says, and an outcome depends on nothing else (W1).
//! Method: hand-made intervals; machines from a seed against a slow twin that sorts.

use super::*;
use crate::table::encode;
use uzswap::random::SplitMix64;

fn interval(working_set: u64, cold: &[u64], promoted: &[u64]) -> IntervalRow {
    IntervalRow {
        process: Some(1),
        seconds: 60.0,
        working_set_pages: Some(working_set),
        cold_pages: cold.to_vec(),
        promoted_pages: promoted.to_vec(),
        ..IntervalRow::default()
    }
}

fn outcome(rows: Vec<IntervalRow>, parameters: Parameters) -> ReplayRow {
    let machine = Machine::new(rows, &[], Lengths::Lz4);
    replay(&machine, &parameters).row(&parameters)
}

const AT_ONCE: Parameters = Parameters {
    threshold_percentile: 50,
    warm_up_seconds: 0,
    slo_ppm: SLO_PPM,
    lengths: Lengths::Lz4,
};

#[test]
fn the_smallest_age_within_the_objective_is_compressed() {
    // 0.2 % of 10,000 pages a minute are 20: the second age is the first within.
    let row = interval(10_000, &[500, 300, 100], &[21, 20, 0]);
    let found = outcome(vec![row.clone(); 3], AT_ONCE);
    // The first interval is before any threshold.
    assert_eq!((found.cold_page_seconds, found.far_page_seconds), (500 * 180, 300 * 120));
    assert_eq!((found.active_intervals, found.promoted_pages), (2, 40));
    assert_eq!((found.p98_promotion_ppm, found.within_slo), (2000, true));
    // Half the time is twice the rate.
    let fast = IntervalRow { seconds: 30.0, ..row.clone() };
    assert_eq!(outcome(vec![fast; 3], AT_ONCE).far_page_seconds, 100 * 60);
    // Ages that nobody measured are not used.
    let unknown = interval(10_000, &[500], &[]);
    assert_eq!(outcome(vec![unknown; 3], AT_ONCE).active_intervals, 0);
    let busy = interval(10, &[500, 400], &[100, 100]);
    let found = outcome(vec![busy; 3], AT_ONCE);
    assert_eq!((found.active_intervals, found.coverage, found.within_slo), (0, 0.0, true));
}

#[test]
fn a_spike_raises_the_threshold_at_once_and_the_warm_up_keeps_it_off() {
    let calm = interval(10_000, &[500, 300], &[0, 0]);
    let spike = interval(10_000, &[500, 300], &[900, 0]);
    let rows = [vec![calm.clone(); 9], vec![spike], vec![calm.clone(); 2]].concat();
    let found = outcome(rows.clone(), AT_ONCE);
    // Eight calm ones, the spike itself, one of 300 after it, and calm again.
    assert_eq!(found.far_page_seconds, 60 * (8 * 500 + 500 + 300 + 500));
    assert_eq!(found.promoted_pages, 900);
    assert!(!found.within_slo, "{found:?}");
    let high = Parameters { threshold_percentile: 100, ..AT_ONCE };
    assert_eq!(outcome(rows.clone(), high).far_page_seconds, 60 * (9 * 500 + 2 * 300));
    let warm = Parameters { warm_up_seconds: 600, ..AT_ONCE };
    assert_eq!(outcome(rows.clone(), warm).far_page_seconds, 60 * (300 + 500));
    let never = Parameters { warm_up_seconds: u64::MAX, ..AT_ONCE };
    assert_eq!(outcome(rows, never).active_intervals, 0);
}

/// Intervals of some processes, by a seed; extreme figures too.
fn machine(seed: u64) -> (Vec<IntervalRow>, Vec<PageRow>) {
    let mut random = SplitMix64::new(seed);
    let mut below = |bound: u64| random.next_word() % bound;
    let (mut rows, mut pages) = (Vec::new(), Vec::new());
    for process in 0..1 + below(6) {
        let huge = below(40) == 0;
        for interval in 0..below(60) {
            let ages = below(6);
            let bound = if huge { u64::MAX } else { 100_000 };
            let mut list = || {
                let mut list: Vec<u64> = (0..ages).map(|_| below(bound) >> below(12)).collect();
                list.sort_by(|one, other| other.cmp(one));
                list
            };
            let (cold_pages, promoted_pages) = (list(), list());
            rows.push(IntervalRow {
                host: seed,
                run: 9,
                process: Some(process),
                interval,
                seconds: 1.0 + below(100) as f64,
                working_set_pages: Some(below(1_000_000)),
                cold_pages,
                promoted_pages,
                ..IntervalRow::default()
            });
        }
        for page in 0..below(20) {
            let lz4_bytes = (below(5) > 0).then(|| 1 + below(4096));
            pages.push(PageRow { process, page, lz4_bytes, ..PageRow::default() });
        }
    }
    (rows, pages)
}

/// The thresholds of a job, by sorting all that went before each time.
fn slow_thresholds(job: &[IntervalRow], parameters: &Parameters) -> Vec<Option<usize>> {
    let (mut best, mut thresholds, mut age) = (Vec::new(), Vec::new(), 0.0);
    for row in job {
        let mut sorted: Vec<usize> = best.clone();
        sorted.sort_unstable();
        let rank =
            (sorted.len() as f64 * f64::from(parameters.threshold_percentile) / 100.0).ceil();
        let kept = sorted.get((rank as usize).max(1) - 1);
        let chosen = kept.zip(best.last()).map(|(&kept, &last)| kept.max(last));
        thresholds.push(chosen.filter(|_| age >= parameters.warm_up_seconds as f64));
        if !row.promoted_pages.is_empty() {
            let set = row.working_set_pages.unwrap().max(1) as f64;
            let rate = |pages: u64| (pages as f64 * 60e6 / row.seconds / set).floor();
            let is_within = |pages: &u64| rate(*pages) <= parameters.slo_ppm as f64;
            best.push(row.promoted_pages.iter().position(is_within).unwrap_or(usize::MAX));
        }
        age += row.seconds;
    }
    thresholds
}

#[test]
fn a_slow_twin_chooses_the_same() {
    let mut active = 0;
    for seed in 0..300 {
        let (rows, pages) = machine(seed);
        let parameters = Parameters {
            threshold_percentile: (seed * 7 % 101) as u8,
            warm_up_seconds: seed % 4 * 150,
            ..AT_ONCE
        };
        let found = replay(&Machine::new(rows.clone(), &pages, Lengths::Lz4), &parameters);
        let (mut far_seconds, mut promoted, mut intervals) = (0_u128, 0_u128, 0);
        for process in 0..7 {
            let job: Vec<_> =
                rows.iter().filter(|row| row.process == Some(process)).cloned().collect();
            for (row, threshold) in job.iter().zip(slow_thresholds(&job, &parameters)) {
                let Some(place) = threshold.filter(|&place| place < row.cold_pages.len()) else {
                    continue;
                };
                intervals += 1;
                far_seconds += u128::from(row.cold_pages[place]) * row.seconds as u128;
                promoted += u128::from(row.promoted_pages[place]);
            }
        }
        let row = found.row(&parameters);
        assert_eq!(row.active_intervals, intervals, "seed {seed}");
        // Figures over 64 bits are cut there.
        if far_seconds < 1 << 50 && promoted < 1 << 50 {
            assert_eq!(u128::from(row.far_page_seconds), far_seconds, "seed {seed}");
            assert_eq!(u128::from(row.promoted_pages), promoted, "seed {seed}");
        }
        active += intervals;
    }
    assert!(active > 5000, "{active}");
}

#[test]
fn bytes_and_rows_and_any_order_of_machines_give_one_outcome() {
    let read = |seed| {
        let (rows, pages) = machine(seed);
        let (first, second) = rows.split_at(rows.len() / 2);
        let parts = [first, second].map(|rows| encode(rows.to_vec()));
        let made = Machine::from_parquet(parts, Some(encode(pages)), Lengths::Lz4);
        made.unwrap()
    };
    let rows = |order: &mut dyn Iterator<Item = u64>| {
        let mut fleet = Outcome::new();
        order.for_each(|seed| fleet.add(&replay(&read(seed), &AT_ONCE)));
        fleet.row(&AT_ONCE)
    };
    assert_eq!(rows(&mut (0..30)), rows(&mut (0..30).rev()));
    let (from_rows, pages) = machine(3);
    let machine = Machine::new(from_rows, &pages, Lengths::Lz4);
    let row = replay(&machine, &AT_ONCE).row(&AT_ONCE);
    assert_eq!(row, replay(&read(3), &AT_ONCE).row(&AT_ONCE));
    assert_eq!((row.host, row.run), (Some(3), Some(9)));
    Machine::from_parquet([vec![1, 2, 3]], None, Lengths::Lz4).unwrap_err();
}

#[test]
fn compressed_pages_save_what_sampled_ones_do() {
    let rows = vec![interval(10_000, &[500], &[0]); 5];
    // Half of the pages are same-filled, half do not shrink.
    let page = |lz4_bytes| PageRow { process: 1, lz4_bytes, ..PageRow::default() };
    let machine = Machine::new(rows, &[page(None), page(Some(4096))], Lengths::Lz4);
    let row = replay(&machine, &AT_ONCE).row(&AT_ONCE);
    assert_eq!(row.saved_bytes, Some(500 * 4096 / 2 * 4 / 5), "four of five intervals");
}

#[test]
fn stores_and_loads_take_time() {
    let rows = vec![interval(10_000, &[500], &[10]); 5];
    let row = outcome(rows, AT_ONCE);
    let (store_ns, load_ns) = Lengths::Lz4.costs();
    // All that is cold once, and what was promoted again in each of four intervals.
    let ns = (500 + 4 * 10) * store_ns + 4 * 10 * load_ns;
    let percent = 100.0 * ns as f64 / (5.0 * 60e9);
    assert!((row.cpu_percent / percent - 1.0).abs() < 1e-9, "{} and {percent}", row.cpu_percent);
}

/// Another process sums the outcome that a machine sent as JSON: each field, and each rate with its
/// count.
#[test]
fn an_outcome_is_the_same_after_a_way_as_json() {
    let mut random = SplitMix64::new(7);
    let mut here = Outcome::new();
    let mut there = Outcome::new();
    for number in 0..50 {
        let mut any = || random.next_word() >> (random.next_word() % 64);
        let mut outcome = Outcome {
            sample: (number % 3 > 0).then(|| (any(), any())),
            samples_without_end: any(),
            machines: any(),
            jobs: any(),
            active_intervals: any(),
            cold_page_ms: any(),
            far_page_ms: any(),
            promoted_pages: any(),
            cpu_ns: any(),
            machine_ms: any(),
            saved_byte_ms: (number % 4 > 0).then(|| (u128::from(any()) << 64) | u128::from(any())),
            promotion_ppm: no_rates(),
        };
        for _ in 0..number {
            outcome.promotion_ppm.record_n(any() % (PPM_MAX + 1), 1 + any() % 1000).unwrap();
        }
        let json = serde_json::to_string(&outcome).unwrap();
        let back: Outcome = serde_json::from_str(&json).unwrap();
        assert_eq!(back, outcome);
        here.add(&outcome);
        there.add(&back);
    }
    // Sums of such numbers end at the largest one.
    assert_eq!(there, here);
    assert_eq!(there.row(&AT_ONCE), here.row(&AT_ONCE));

    // The rates of a hostile process end in an error.
    let json = serde_json::to_string(&Outcome::new()).unwrap();
    let far = json.replace("[]", &format!("[[{},1]]", PPM_MAX * 10));
    assert_ne!(far, json);
    assert!(serde_json::from_str::<Outcome>(&far).is_err());
}
