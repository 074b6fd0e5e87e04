//! A reader gets the recorded events, of whole and of damaged files.

use std::fs;
use std::io::Read;

use super::*;
use crate::page::{PAGE_SIZE, Page};
use crate::random::SplitMix64;

/// Seeded choices.
struct Random(SplitMix64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0.next_word() % bound
    }
}

/// An expected event: key and content of a store, or neither.
#[derive(Debug, Clone, PartialEq)]
enum Expected {
    Store(u64, Box<Page>),
    Load(u64),
    Free(u64),
}

/// A page: repeated, of few kinds, or of its own.
fn page(random: &mut Random) -> Page {
    let mut page = [0; PAGE_SIZE];
    match random.below(4) {
        0 => page.as_chunks_mut::<8>().0.fill(random.below(3).to_ne_bytes()),
        1 => page[..500].fill(random.below(20) as u8 + 1),
        _ => page.iter_mut().step_by(3).for_each(|byte| *byte = random.below(200) as u8),
    }
    page
}

/// Records from a seed; the file, and what was done.
fn record(seed: u64, count: usize) -> (Vec<u8>, Vec<Expected>, RecordReport) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace");
    let about = TraceAbout { origin: format!("seed {seed}"), recorded_at: "now".to_owned() };
    let recorder = Recorder::create(&path, &about, |_| panic!("it can write")).unwrap();
    let mut random = Random(SplitMix64::new(seed));
    let mut done = Vec::new();
    for _ in 0..count {
        let bits = random.below(50);
        let key = random.below(1 << bits);
        done.push(match random.below(3) {
            0 => Expected::Load(key),
            1 => Expected::Free(key),
            _ => Expected::Store(key, Box::new(page(&mut random))),
        });
        match done.last().unwrap() {
            Expected::Store(key, page) => recorder.store(PageKey(*key), page),
            Expected::Load(key) => recorder.load(PageKey(*key)),
            Expected::Free(key) => recorder.free(PageKey(*key)),
        }
    }
    let report = recorder.finish();
    recorder.load(PageKey(0)); // too late
    assert!(!recorder.finish().complete);
    (fs::read(&path).unwrap(), done, report)
}

/// All that there is, and how it ends; the offsets at which blocks end.
fn read(bytes: &[u8]) -> Result<(Vec<Expected>, Ending, Vec<u64>), TraceError> {
    let mut reader = TraceReader::new("trace", bytes)?;
    let (mut pages, mut found, mut ends) = (Vec::new(), Vec::new(), vec![reader.offset()]);
    let mut before = 0;
    while let Some(block) = reader.next_block()? {
        pages.extend_from_slice(block.contents);
        for event in block.events {
            assert!(event.ns >= before);
            before = event.ns;
            let key = event.key.0;
            found.push(match event.operation {
                Operation::Load => Expected::Load(key),
                Operation::Free => Expected::Free(key),
                Operation::Store(Content::Page(number)) => {
                    Expected::Store(key, Box::new(pages[number as usize]))
                }
                Operation::Store(Content::Word(word)) => {
                    let mut page = [0; PAGE_SIZE];
                    page.as_chunks_mut::<8>().0.fill(word.to_ne_bytes());
                    Expected::Store(key, Box::new(page))
                }
            });
        }
        ends.push(reader.offset());
    }
    let totals = *reader.totals();
    assert_eq!((totals.events(), totals.contents), (found.len() as u64, pages.len() as u64));
    let ending = reader.ending().unwrap();
    assert!(reader.next_block().unwrap().is_none());
    Ok((found, ending, ends))
}

#[test]
fn what_is_recorded_is_read() {
    for (seed, count) in [(1, 0), (2, 1), (3, 1000), (4, 3000)] {
        let (bytes, done, report) = record(seed, count);
        let (found, ending, ends) = read(&bytes).unwrap();
        assert!(found == done, "seed {seed}");
        assert_eq!(ending, Ending::Whole);
        assert!(report.complete && report.error.is_none());
        assert_eq!((report.bytes, report.totals.events()), (bytes.len() as u64, count as u64));
        assert_eq!(report.totals.blocks + 1, ends.len() as u64);
        let stores = done.iter().filter(|done| matches!(done, Expected::Store(..))).count() as u64;
        let totals = report.totals;
        assert_eq!(totals.stores, stores);
        // Each content once.
        let mut distinct: Vec<&Page> = done
            .iter()
            .filter_map(|done| match done {
                Expected::Store(_, page) if page[8..] != page[..PAGE_SIZE - 8] => Some(&**page),
                _ => None,
            })
            .collect();
        let of_pages = distinct.len() as u64;
        distinct.sort_unstable();
        distinct.dedup();
        assert_eq!(totals.contents, distinct.len() as u64);
        assert_eq!(totals.same_filled_stores, stores - of_pages);
    }
}

#[test]
fn what_is_cut_off_is_right_up_to_its_last_block() {
    let (bytes, done, _) = record(5, 2400);
    let (_, _, ends) = read(&bytes).unwrap();
    assert!(ends.len() > 5, "{ends:?}");
    let mut random = Random(SplitMix64::new(6));
    let mut cuts: Vec<usize> =
        (0..300).map(|_| random.below(bytes.len() as u64) as usize).collect();
    let around = |&end: &u64| (end as usize - 1..end as usize + 30).collect::<Vec<usize>>();
    cuts.extend(ends.iter().flat_map(around));
    for cut in cuts {
        if cut < ends[0] as usize {
            assert!(read(&bytes[..cut]).is_err());
            continue;
        }
        let (found, ending, whole) = read(&bytes[..cut.min(bytes.len() - 1)]).unwrap();
        let last = *ends.iter().rfind(|&&end| end <= cut as u64).unwrap();
        assert_eq!(ending, Ending::Cut { at: last }, "{cut}");
        assert_eq!(whole, ends[..whole.len()]);
        assert!(found == done[..found.len()], "{cut}");
    }
}

#[test]
fn what_was_changed_is_an_error() {
    let (bytes, _, _) = record(7, 900);
    for at in (0..200).chain((200..bytes.len()).step_by(997)).chain(bytes.len() - 80..bytes.len()) {
        for bit in [0, 7] {
            let mut changed = bytes.clone();
            changed[at] ^= 1 << bit;
            let error = read(&changed).expect_err("it was changed").to_string();
            assert!(error.starts_with("trace is"), "{error}");
        }
    }
    let mut longer = bytes.clone();
    longer.push(0);
    assert!(read(&longer).unwrap_err().to_string().contains("data follows the end"));
    let (_, _, ends) = read(&bytes).unwrap();
    let part = |from: usize| &bytes[ends[from] as usize..ends[from + 1] as usize];
    let start = &bytes[..ends[0] as usize];
    for moved in [[start, part(1), part(0)], [start, part(0), part(0)], [start, part(1), part(2)]] {
        let error = read(&moved.concat()).unwrap_err().to_string();
        assert!(error.contains("checksum"), "{error}");
    }
    assert!(matches!(read(b"not a trace"), Err(TraceError::NotATrace { .. })));
    let mut newer = bytes;
    newer[8] = 9;
    assert!(matches!(read(&newer), Err(TraceError::Version { found: 9, .. })));
}

#[test]
fn a_full_disk_ends_the_recording_alone() {
    let (sender, warnings) = std::sync::mpsc::channel();
    let warn = move |text: &str| sender.send(text.to_owned()).unwrap();
    let about = TraceAbout::default();
    let error = Recorder::create("/dev/full".as_ref(), &about, warn.clone()).unwrap_err();
    assert!(error.is_machine() && error.to_string().contains("os error 28"), "{error}");
    // One that can take the header and no more: a pipe that nobody reads from any longer.
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pipe");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &path,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::from_raw_mode(0o600),
        0,
    )
    .unwrap();
    let reads = {
        let path = path.clone();
        std::thread::spawn(move || fs::File::open(path).unwrap().read(&mut [0; 64]).unwrap())
    };
    let recorder = Recorder::create(&path, &about, warn).unwrap();
    assert!(reads.join().unwrap() > 0);
    let mut random = Random(SplitMix64::new(8));
    for key in 0..5000 {
        recorder.store(PageKey(key), &page(&mut random));
    }
    let report = recorder.finish();
    assert!(!report.complete);
    assert!(report.error.unwrap().contains("os error 32"));
    assert_eq!(report.totals, TraceTotals::default());
    let warned: Vec<String> = warnings.iter().collect();
    assert_eq!(warned.len(), 1, "{warned:?}");
}

#[test]
fn threads_record_in_the_order_of_what_they_do() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace");
    let recorder = Recorder::create(&path, &TraceAbout::default(), |_| ()).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let recorder = &recorder;
            scope.spawn(move || {
                let mut page = [thread as u8; PAGE_SIZE];
                for round in 0..500 {
                    page[round] ^= 0x55;
                    recorder.store(PageKey(thread), &page);
                    recorder.load(PageKey(thread));
                    recorder.free(PageKey(thread));
                }
            });
        }
    });
    assert_eq!(recorder.finish().totals.events(), 6000);
    let (found, _, _) = read(&fs::read(&path).unwrap()).unwrap();
    for thread in 0..4 {
        let mut page = [thread as u8; PAGE_SIZE];
        let mut own = found.iter().filter(|found| match found {
            Expected::Store(key, _) | Expected::Load(key) | Expected::Free(key) => *key == thread,
        });
        for round in 0..500 {
            page[round] ^= 0x55;
            assert!(own.next() == Some(&Expected::Store(thread, Box::new(page))));
            assert_eq!(own.next(), Some(&Expected::Load(thread)));
            assert_eq!(own.next(), Some(&Expected::Free(thread)));
        }
        assert!(own.next().is_none());
    }
}
