//! Goal: rows come back as they were, and bytes that are no table are an error (L1).
//! Method: rows from a seed; every cut and thousands of flips of a file; files that say too much.

use super::*;
use uzswap::random::SplitMix64;

fn intervals(count: u64, seed: u64) -> Vec<IntervalRow> {
    let mut random = SplitMix64::new(seed);
    let mut below = |bound: u64| random.next_word() % bound;
    let row = |interval| IntervalRow {
        run: u64::MAX - interval,
        host: 1 << 63,
        process: (below(4) > 0).then(|| below(u64::MAX)),
        job: Some(below(9)),
        interval,
        ended_at: Micros(-1 + below(1 << 40) as i64),
        seconds: below(1000) as f64 / 7.0,
        working_set_pages: (below(3) > 0).then(|| below(1 << 50)),
        cold_pages: (0..below(6)).map(|age| 1000 >> age).collect(),
        promoted_pages: (0..below(6)).collect(),
        cpu_us: below(1 << 30),
        ..IntervalRow::default()
    };
    (0..count).map(row).collect()
}

fn pages(count: u64) -> Vec<PageRow> {
    let row = |page| PageRow {
        page,
        kind: ["heap", "", "anonymous"][page as usize % 3].to_owned(),
        same_filled: page % 5 == 0,
        lz4_bytes: (page % 5 > 0).then_some(page % 4097),
        ..PageRow::default()
    };
    (0..count).map(row).collect()
}

#[test]
fn rows_come_back_over_several_groups() {
    for count in [0, 1, 1000, GROUP_ROWS as u64, GROUP_ROWS as u64 + 77] {
        let rows = intervals(count, count);
        assert!(decode::<IntervalRow>(encode(rows.clone())).unwrap() == rows, "{count} rows");
    }
    let rows = pages(5000);
    let file = encode(rows.clone());
    assert!(decode::<PageRow>(file.clone()).unwrap() == rows);
    assert!(file.len() < 5000 * 8, "{} bytes are not compressed", file.len());
}

#[test]
fn another_table_is_refused_by_its_column() {
    let error = decode::<PageRow>(encode(intervals(3, 1))).unwrap_err();
    assert_eq!(error.to_string(), "column process: its type is not UBIGINT NOT NULL");
    let error = decode::<ReplayRow>(encode(pages(3))).unwrap_err();
    assert_eq!(error.to_string(), "column host: its type is not UBIGINT");
    let error = decode::<RunRow>(encode(pages(3))).unwrap_err();
    assert_eq!(error.to_string(), "column version: there is none, or it is a group of columns");
    for file in [Vec::new(), b"PAR1".to_vec(), vec![0; 5000], b"PAR1____PAR1".to_vec()] {
        decode::<PageRow>(file).unwrap_err();
    }
}

/// Quiet: the reader's panics on damaged files are caught, and their texts are of no use here.
fn quiet<T>(check: impl FnOnce() -> T) -> T {
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if !is_decoding() {
            hook(panic);
        }
    }));
    let result = check();
    assert!(!is_decoding());
    result
}

#[test]
fn every_cut_is_an_error_and_flips_are_errors_or_rows() {
    let rows = intervals(40, 3);
    let file = encode(rows);
    quiet(|| {
        for length in 0..file.len() {
            assert!(decode::<IntervalRow>(file[..length].to_vec()).is_err(), "{length} bytes");
        }
        let mut random = SplitMix64::new(7);
        let mut errors = 0;
        for _ in 0..6000 {
            let mut damaged = file.clone();
            for _ in 0..1 + random.next_word() % 3 {
                let at = random.next_word() as usize % damaged.len();
                damaged[at] ^= 1 << (random.next_word() % 8);
            }
            match decode::<IntervalRow>(damaged) {
                Ok(rows) => assert!(rows.len() <= ROWS_MAX),
                Err(_) => errors += 1,
            }
        }
        assert!(errors > 1000, "{errors}");
    });
}

/// The page for readers of the files has the columns that there are.
#[test]
fn the_reference_has_each_column_with_its_type() {
    fn lines<T: Table>() -> Vec<String> {
        let line = |(name, kind): &(&str, ColumnType)| {
            let null = if kind.is_optional { ", may be NULL" } else { "" };
            format!("| `{name}` | {}{null} | ", kind.sql)
        };
        T::COLUMNS.iter().map(line).collect()
    }
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/fleet-tables.md");
    let page = std::fs::read_to_string(path).unwrap();
    let tables = [
        (RunRow::NAME, lines::<RunRow>()),
        (PageRow::NAME, lines::<PageRow>()),
        (IntervalRow::NAME, lines::<IntervalRow>()),
        (ReplayRow::NAME, lines::<ReplayRow>()),
    ];
    for (name, columns) in tables {
        let (_, section) = page.split_once(&format!("\n## {name}\n")).unwrap();
        let section = section.split("\n## ").next().unwrap();
        let found: Vec<&str> = section.lines().filter(|line| line.starts_with("| `")).collect();
        assert_eq!(found.len(), columns.len(), "{name}");
        for (line, column) in found.iter().zip(&columns) {
            assert!(line.starts_with(column.as_str()), "{name}: '{line}', not '{column}'");
        }
    }
}
