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
                Ok(rows) => assert!(size_of_val(&*rows) <= DECODED_BYTES_MAX),
                Err(_) => errors += 1,
            }
        }
        assert!(errors > 1000, "{errors}");
    });
}

/// Bytes of Thrift's compact protocol: a number of 32 bits that is not below 0.
fn zigzag(value: u32) -> Vec<u8> {
    let (mut left, mut bytes) = (u64::from(value) << 1, Vec::new());
    while left > 0x7f {
        bytes.push(left as u8 | 0x80);
        left >>= 7;
    }
    bytes.push(left as u8);
    bytes
}

/// A file whose last column has a dictionary that says it has so many bytes, or values.
fn lying(page_bytes: Option<u32>, values: Option<u32>) -> Vec<u8> {
    let file = encode(intervals(40, 3));
    let metadata =
        ParquetMetaDataReader::new().parse_and_finish(&Bytes::from(file.clone())).unwrap();
    let column = metadata.row_group(0).columns().last().unwrap();
    let at = column.dictionary_page_offset().unwrap() as usize;
    // 15 TYPE 15 SIZE 15 COMPRESSED 4c 15 VALUES ...
    let mut fields = file[at..].split_inclusive(|&byte| byte == 0x15);
    let lengths: Vec<usize> = fields.by_ref().take(5).map(<[u8]>::len).collect();
    let start_of = |field: usize| at + lengths[..field].iter().sum::<usize>();
    let mut lying = file.clone();
    // What comes after the column is found from the end of the file: it may move.
    if let Some(values) = values {
        let end = start_of(4) + file[start_of(4)..].iter().position(|byte| *byte < 0x80).unwrap();
        lying.splice(start_of(4)..=end, zigzag(values));
    }
    if let Some(bytes) = page_bytes {
        lying.splice(start_of(2)..start_of(3) - 1, zigzag(bytes));
    }
    lying
}

const CHILD: &str = "UZSWAP_TEST_DECODE";

/// A process with 256 MiB of memory, as it would be ended by a reservation of more.
#[test]
fn sizes_that_a_file_declares_reserve_no_memory() {
    let name = "table::tests::sizes_that_a_file_declares_reserve_no_memory";
    if std::env::var_os(CHILD).is_some() {
        let refused = |file: Vec<u8>, words: &str| {
            let error = quiet(|| decode::<IntervalRow>(file)).unwrap_err();
            assert!(error.to_string().contains(words), "{error}");
        };
        refused(lying(Some(u32::MAX >> 1), None), "a page of 2147483647 bytes");
        refused(lying(None, Some(1 << 30)), "its dictionary has more values than bytes");
        let many = |count| PageRow { kind: "heap".to_owned(), page: count, ..PageRow::default() };
        let mut footer = encode((0..9).map(many));
        let at = footer.len() - 8;
        footer[at..at + 4].copy_from_slice(&u32::MAX.to_le_bytes());
        refused(footer, "its footer has over");
        return;
    }
    let test = std::env::current_exe().unwrap();
    let mut shell = std::process::Command::new("bash");
    shell.args(["-c", "ulimit -v 262144; exec \"$0\" --exact \"$1\" --test-threads=1"]);
    let output = shell.arg(test).arg(name).env(CHILD, "1").output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
}

/// Rows of a small file can take much memory: equal ones take next to nothing in it.
#[test]
fn rows_over_the_budget_are_refused() {
    let budget = Budget::new(1 << 20);
    assert_eq!(budget.take(1 << 19, 2), Ok(()));
    assert_eq!(budget.take(1, 1).unwrap_err(), "its rows take over 1 MiB of memory");
    budget.take(usize::MAX, 2).unwrap_err();
    let row = |_| RunRow { notes: "n".repeat(4096), ..RunRow::default() };
    let file = encode((0..1000).map(row));
    assert!(file.len() < 10_000, "{} bytes", file.len());
    let refused = |most| decode_sound::<RunRow>(file.clone(), &Budget::new(most)).unwrap_err();
    assert_eq!(refused(8 << 20).to_string(), "column notes: its rows take over 8 MiB of memory");
    assert_eq!(refused(10).to_string(), "its rows take over 0 MiB of memory");
    assert_eq!(decode::<RunRow>(file).unwrap().len(), 1000);
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
