//! The targets of coverage-guided fuzzing (`fuzz/`). Each takes any bytes, and panics where a
//! parser does not keep its promise. The test `fuzz_seeds` runs them on the inputs of `fuzz/seeds`.

use std::cell::OnceCell;
use std::fs;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};
use tempfile::TempDir;
use uzswap::compressor::{Compressor, CompressorKind, OUTPUT_BYTES};
use uzswap::page::{PAGE_SIZE, Page, PageKey};
use uzswap::trace::{Content, Ending, Event, Operation, TraceReader};
use uzswap::zswap::snapshot::{PageForm, SnapshotOptions, SnapshotReader};
use uzswap::zswap::{Zswap, ZswapOptions};
use uzswap_cli::corpus::capture::capture_file;
use uzswap_cli::corpus::page_set::{About, PageRange, PageSet, PageSetWriter, side_path};
use uzswap_cli::corpus::sample::SamplePlan;
use uzswap_cli::corpus::size_list::{SizeList, StripPadding};
use uzswap_cli::measure::replay::{Trace, replay_trace};
use uzswap_preload::protocol::{MAGIC, MESSAGE_BYTES, Message};

use crate::fuzz::forge::{forge_snapshot, forge_trace};
use crate::fuzz::slow_lzo::slow_twin;

/// A target: its name, and the check.
pub(crate) type Target = (&'static str, fn(&[u8]));

/// All of them.
pub(crate) const TARGETS: [Target; 8] = [
    ("core_dump", core_dump),
    ("lzo_page", lzo_page),
    ("lzo_stream", lzo_stream),
    ("message", message),
    ("page_set", page_set),
    ("size_list", size_list),
    ("snapshot", snapshot),
    ("trace", trace),
];

thread_local! {
    static FOLDER: OnceCell<TempDir> = const { OnceCell::new() };
}

/// A path of this thread.
fn path(name: &str) -> PathBuf {
    FOLDER.with(|folder| folder.get_or_init(|| tempfile::tempdir().unwrap()).path().join(name))
}

/// Splits the first `count` bytes off; zeros stand for those that are missing.
fn take<const COUNT: usize>(data: &mut &[u8]) -> [u8; COUNT] {
    let mut taken = [0; COUNT];
    let count = COUNT.min(data.len());
    taken[..count].copy_from_slice(&data[..count]);
    *data = &data[count..];
    taken
}

/// Page `number`, none of whose parts another one has.
fn page_of(number: usize) -> Page {
    let mut page = [0; PAGE_SIZE];
    for (place, word) in page.chunks_mut(8).enumerate() {
        let word_of = uzswap::random::mix((number as u64) << 32 | place as u64) | 1;
        word.copy_from_slice(&word_of.to_le_bytes());
    }
    page
}

/// A message is its bytes, and other bytes are none.
pub(crate) fn message(data: &[u8]) {
    let is_message = data.len() == MESSAGE_BYTES && data[..4] == MAGIC.to_ne_bytes();
    let parsed = Message::from_bytes(data);
    assert_eq!(parsed.is_some(), is_message);
    if let Some(parsed) = parsed {
        assert_eq!(parsed.to_bytes()[..], *data);
        assert_eq!(Message::new(parsed.kind, parsed.words), parsed);
    }
}

/// A list of sizes is read as a slow reader does, and makes pages of these sizes.
pub(crate) fn size_list(data: &[u8]) {
    let size_of_line = |line: &str| -> Option<Result<u16, ()>> {
        let number = line.split('#').next().unwrap_or_default().trim();
        let digits = number.strip_prefix('+').unwrap_or(number);
        let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
        let value = || {
            digits.bytes().fold(0_u32, |sum, byte| {
                sum.saturating_mul(10).saturating_add(u32::from(byte - b'0'))
            })
        };
        let size = Some(number).filter(|_| is_number).map(|_| value()).filter(|&size| size <= 4096);
        (!number.is_empty()).then(|| size.map(|size| size as u16).ok_or(()))
    };
    let text = String::from_utf8_lossy(data);
    let expected: Result<Vec<u16>, ()> = text.split('\n').filter_map(size_of_line).collect();
    let expected = expected.ok().filter(|sizes| !sizes.is_empty());
    let list = SizeList::parse(data, Path::new("list"));
    let message = list.as_ref().map_or_else(|error| error.to_string(), |_| String::new());
    assert!(message.len() < 400, "{message}");
    assert_eq!(list.is_ok(), expected.is_some(), "{message}");
    let (Ok(list), Some(expected)) = (list, expected) else { return };
    assert!(list == expected.iter().copied().collect());
    let (mut page, mut out) = ([0; PAGE_SIZE], [0; OUTPUT_BYTES]);
    for (number, &size) in expected.iter().enumerate().take(32) {
        list.make_page(number, &mut page);
        let made = StripPadding.compress(&page, &mut out).unwrap();
        assert_eq!(if page == [0; PAGE_SIZE] { 0 } else { made }, usize::from(size));
    }
}

/// A page of literals, zeros, copies and noise, as `data` says.
fn made_up_page(mut data: &[u8]) -> Page {
    let mut bytes: Vec<u8> = Vec::new();
    while !data.is_empty() && bytes.len() < PAGE_SIZE {
        let [first] = take(&mut data);
        let count = usize::from(first >> 2) + 1;
        match first & 3 {
            0 => {
                let (literals, rest) = data.split_at(count.min(data.len()));
                bytes.extend(literals);
                data = rest;
            }
            1 => {
                let [more] = take(&mut data);
                bytes.resize(bytes.len() + count + usize::from(more) * 16, 0);
            }
            2 => {
                let [low, high, more] = take(&mut data);
                let distance = usize::from(u16::from_le_bytes([low, high])) + 1;
                for _ in 0..count + usize::from(more) * 4 {
                    let from = bytes.len().checked_sub(distance);
                    bytes.push(from.map_or(low, |from| bytes[from]));
                }
            }
            _ => {
                let [number] = take(&mut data);
                bytes.extend(&page_of(usize::from(number))[..count]);
            }
        }
    }
    bytes.resize(PAGE_SIZE, 0);
    *bytes.first_chunk().expect("a page")
}

fn decode_lzo(object: &[u8]) -> Option<Page> {
    let mut page = [0xee; PAGE_SIZE];
    CompressorKind::Lzo.build().decompress(object, &mut page).is_ok().then_some(page)
}

/// A page comes back from both forms of LZO, and from and to `lzokay`.
pub(crate) fn lzo_page(data: &[u8]) {
    let page = made_up_page(data);
    let mut out = [0; OUTPUT_BYTES];
    let theirs = lzokay::compress::compress(&page).unwrap();
    assert!(decode_lzo(&theirs) == Some(page), "lzokay by lzo");
    if let Ok(bytes) = CompressorKind::Lzo.build().compress(&page, &mut out) {
        assert!(bytes <= PAGE_SIZE);
        assert!(decode_lzo(&out[..bytes]) == Some(page), "lzo");
        let mut back = [0; PAGE_SIZE];
        let decoded = lzokay::decompress::decompress(&out[..bytes], &mut back);
        assert!(decoded == Ok(PAGE_SIZE) && back == page, "lzo by lzokay");
    }
    if let Ok(bytes) = CompressorKind::LzoRle.build().compress(&page, &mut out) {
        assert!(bytes <= PAGE_SIZE);
        assert!(decode_lzo(&out[..bytes]) == Some(page), "lzo-rle");
        assert!(slow_twin(&out[..bytes]).as_deref() == Some(&page[..]), "lzo-rle, slowly");
    }
}

/// The decoder takes those streams that a slow one takes, and `lzokay` where it knows them.
pub(crate) fn lzo_stream(data: &[u8]) {
    let ours = decode_lzo(data);
    let slow = slow_twin(data).filter(|page| page.len() == PAGE_SIZE);
    assert!(ours.as_ref().map(|page| &page[..]) == slow.as_deref(), "by the slow twin");
    if data.first() != Some(&17) {
        let mut theirs = [0; PAGE_SIZE];
        let bytes = lzokay::decompress::decompress(data, &mut theirs);
        assert!(ours == (bytes == Ok(PAGE_SIZE)).then_some(theirs), "by lzokay: {bytes:?}");
    }
}

/// The pages of a snapshot, by key; none where it is not read to its end.
fn pages_of(bytes: &[u8]) -> Option<Vec<(u64, u64, Vec<u8>)>> {
    let mut reader = SnapshotReader::new("fuzz", bytes).ok()?;
    let mut pages = Vec::new();
    while let Some(block) = reader.next_block().ok()? {
        for page in block.pages() {
            assert!(page.form.bytes() <= PAGE_SIZE);
            let (word, form) = match page.form {
                PageForm::Word(word) => (word, &[][..]),
                PageForm::Object(object) => (0, object),
                PageForm::AsIs(page) => (0, &page[..]),
            };
            pages.push((page.key.0, word, form.to_vec()));
        }
    }
    reader.summary()?;
    pages.sort();
    Some(pages)
}

/// A restored store passes the audit, and its snapshot has the same pages.
pub(crate) fn snapshot(data: &[u8]) {
    let _ = pages_of(data);
    let mut bytes = data.to_vec();
    forge_snapshot(&mut bytes);
    let pages = pages_of(&bytes);
    let Ok(reader) = SnapshotReader::new("fuzz", &bytes[..]) else { return };
    drop(reader.header().stats.prometheus());
    let store = || Zswap::new(ZswapOptions::default().shards(1)).unwrap();
    let Ok((zswap, summary)) = store().restore_from(reader) else { return };
    let pages = pages.expect("what is restored is read to its end");
    zswap.audit().unwrap();
    drop((zswap.stats(), summary));
    let mut again = Vec::new();
    zswap.snapshot_to(&mut again, SnapshotOptions::default()).unwrap();
    let pages_again = pages_of(&again).expect("a snapshot of ours");
    assert!(pages_again == pages, "{} pages of {}", pages_again.len(), pages.len());
    let reader = SnapshotReader::new("again", &again[..]).unwrap();
    let (twin, _) = store().restore_from(reader).expect("a snapshot of ours is restored");
    let (mut page, mut twins) = ([0; PAGE_SIZE], [0; PAGE_SIZE]);
    for (key, ..) in pages {
        let found = zswap.load(PageKey(key), &mut page).ok();
        assert_eq!(found, twin.load(PageKey(key), &mut twins).ok(), "key {key}");
        assert!(found != Some(true) || page == twins, "key {key}");
    }
    twin.audit().unwrap();
}

/// The events of a trace, read without haste; none where they are not right.
fn slow_events(mut bytes: &[u8], contents: u64) -> Option<Vec<Event>> {
    fn number(bytes: &mut &[u8]) -> Option<u64> {
        let mut number = 0_u128;
        for place in 0..10 {
            let (&byte, rest) = bytes.split_first()?;
            *bytes = rest;
            number |= u128::from(byte & 127) << (7 * place);
            if byte < 128 {
                return number.try_into().ok();
            }
        }
        None
    }
    let (mut events, mut ns) = (Vec::new(), 0_u64);
    while let Some((&kind, rest)) = bytes.split_first() {
        bytes = rest;
        ns = ns.checked_add(number(&mut bytes)?)?;
        let key = PageKey(number(&mut bytes)?);
        let operation = match kind {
            0 => Operation::Store(Content::Page(number(&mut bytes)?)),
            1 => {
                let (word, rest) = bytes.split_first_chunk()?;
                bytes = rest;
                Operation::Store(Content::Word(u64::from_ne_bytes(*word)))
            }
            2 => Operation::Load,
            3 => Operation::Free,
            _ => return None,
        };
        if matches!(operation, Operation::Store(Content::Page(page)) if page >= contents) {
            return None;
        }
        events.push(Event { ns, key, operation });
    }
    Some(events)
}

/// Stores, of words, loads, frees, contents, nanoseconds.
fn totals_of(events: &[Event], contents: u64) -> [u64; 6] {
    let count = |of: fn(Operation) -> bool| {
        events.iter().filter(|event| of(event.operation)).count() as u64
    };
    [
        count(|operation| matches!(operation, Operation::Store(_))),
        count(|operation| matches!(operation, Operation::Store(Content::Word(_)))),
        count(|operation| operation == Operation::Load),
        count(|operation| operation == Operation::Free),
        contents,
        events.last().map_or(0, |event| event.ns),
    ]
}

/// Whether each load and free is of a key that is stored then.
fn is_consistent(events: &[Event]) -> bool {
    let mut stored = std::collections::HashSet::new();
    events.iter().all(|event| match event.operation {
        Operation::Store(_) => {
            stored.insert(event.key.0);
            true
        }
        Operation::Load => stored.contains(&event.key.0),
        Operation::Free => stored.remove(&event.key.0),
    })
}

/// A trace is read as it was written, and replays to what it says of itself. The first byte tells
/// what the rest is: the whole file, or the events of one block, with so many contents.
pub(crate) fn trace(mut data: &[u8]) {
    let [first] = take(&mut data);
    let (is_file, has_end, contents) = (first & 1 != 0, first & 2 == 0, usize::from(first >> 2));
    if is_file {
        if let Ok(mut reader) = TraceReader::new("fuzz", data) {
            while let Ok(Some(_)) = reader.next_block() {}
            assert!(reader.offset() <= data.len() as u64);
        }
        return;
    }
    // Less than what a block has at most.
    let raw_events = &data[..data.len().min(1 << 14)];
    let events = slow_events(raw_events, contents as u64);
    let totals = totals_of(events.as_deref().unwrap_or_default(), contents as u64);
    let pages: Vec<Page> = (0..contents).map(page_of).collect();
    let bytes = forge_trace(raw_events, pages.as_flattened(), has_end.then_some(totals), None);
    let mut reader = TraceReader::new("fuzz", &bytes[..]).expect("the header is right");
    match (reader.next_block(), &events) {
        (Ok(Some(block)), Some(events)) => {
            assert!(block.events == events && block.contents == pages);
        }
        (Err(_), None) => {}
        (block, events) => panic!("{block:?} is read, {events:?} slowly"),
    }
    if events.is_some() {
        assert!(reader.next_block().expect("the end is right, or there is none").is_none());
        let at = bytes.len() as u64;
        let ending = if has_end { Ending::Whole } else { Ending::Cut { at } };
        assert_eq!(reader.ending(), Some(ending));
    }
    let path = path("trace");
    fs::write(&path, &bytes).unwrap();
    let events = events.filter(|events| !events.is_empty() && is_consistent(events));
    match Trace::read(&path) {
        Ok(trace) => {
            let info = trace.info();
            let events = events.expect("a replay has events, of pages that are stored");
            assert_eq!((info.bytes, info.complete), (bytes.len() as u64, has_end));
            assert_eq!(info.totals.events(), events.len() as u64);
            let run = replay_trace(&trace, "none", || Zswap::new(ZswapOptions::bare()).unwrap());
            let traced = run.expect("the pages are right").traced.unwrap();
            let missed = traced.counts.loads + traced.counts.missed_loads;
            assert_eq!((traced.counts.stores, missed), (totals[0], totals[2]));
        }
        Err(error) => assert!(events.is_none() && !error.is_machine(), "{error}"),
    }
}

/// Pages, each with where it was.
fn places(about: &About) -> Vec<(Option<u32>, &str, u64)> {
    let of_range = |range: &PageRange, number: u64| {
        range.start.saturating_add(number.saturating_mul(PAGE_SIZE as u64))
    };
    let ranges = about.ranges.iter();
    ranges
        .flat_map(|range| {
            (0..range.pages).map(move |page| (range.pid, &*range.name, of_range(range, page)))
        })
        .collect()
}

/// A page set that is read is what was in its files, and is read again once it is written anew. The
/// first bytes of `data` give the number of pages, and whether the last one is cut off. The rest is
/// the side file, in which `@` stands for the right hash.
pub(crate) fn page_set(mut data: &[u8]) {
    let [pages, cut] = take(&mut data);
    let pages: Vec<Page> = (0..usize::from(pages % 8)).map(page_of).collect();
    let file = &pages.as_flattened()[usize::from(cut).min(pages.len())..];
    let hash: String = Sha256::digest(file).iter().map(|byte| format!("{byte:02x}")).collect();
    let side: Vec<u8> = data
        .iter()
        .flat_map(|byte| if *byte == b'@' { hash.as_bytes() } else { std::slice::from_ref(byte) })
        .copied()
        .collect();
    let (path, other) = (path("pages"), path("other"));
    fs::write(&path, file).unwrap();
    fs::write(side_path(&path), side).unwrap();
    let set = match PageSet::read(&path) {
        Ok(set) => set,
        Err(error) => {
            assert!(!error.is_machine() && error.to_string().len() > 20, "{error}");
            return;
        }
    };
    let about = &set.about;
    assert!(set.pages == pages && cut == 0 && about.page_count == pages.len() as u64);
    let mut writer = PageSetWriter::create(&other).unwrap();
    let mut left = &pages[..];
    for range in &about.ranges {
        let (of_range, rest) = left.split_at(range.pages as usize);
        writer.push(range.clone(), of_range).unwrap();
        left = rest;
    }
    if about.ranges.is_empty() {
        let range = PageRange { pid: None, start: 0, pages: 0, name: String::new() };
        writer.push(range, left).unwrap();
    } else {
        assert!(left.is_empty(), "the ranges cover the pages");
    }
    let written = writer.finish(about.origin.clone(), about.notes.clone()).unwrap();
    let again = PageSet::read(&other).unwrap();
    assert!(again.pages == pages && again.about == written);
    assert_eq!((&written.origin, &written.notes), (&about.origin, &about.notes));
    assert!(about.ranges.is_empty() || places(&written) == places(about));
    for path in [&path, &other] {
        fs::remove_file(path).unwrap();
        fs::remove_file(side_path(path)).unwrap();
    }
}

/// Whether `bytes` are somewhere in `file`.
fn is_part(bytes: &[u8], file: &[u8]) -> bool {
    bytes.is_empty() || file.windows(bytes.len()).any(|window| window == bytes)
}

/// All captured pages are in the core dump, and little is made of little. Of `data` the first byte
/// tells how many pages follow the first one, which has the rest.
pub(crate) fn core_dump(mut data: &[u8]) {
    let [pages] = take(&mut data);
    let mut core = data.to_vec();
    core.resize(data.len().next_multiple_of(PAGE_SIZE), 0);
    (0..usize::from(pages % 8)).for_each(|number| core.extend(page_of(number)));
    let (path, out) = (path("core"), path("captured"));
    fs::write(&path, &core).unwrap();
    match capture_file(&path, &out, SamplePlan::ALL) {
        Ok(about) => {
            let set = PageSet::read(&out).unwrap();
            assert_eq!(set.about, about);
            // Each range may begin and end inside a page.
            let most = (core.len() / PAGE_SIZE + 2) * about.ranges.len().max(1);
            assert!(set.pages.len() <= most, "{} pages", set.pages.len());
            for page in &set.pages {
                let end = page.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
                assert!(is_part(&page[..end], &core), "a page that is not in the file");
            }
            fs::remove_file(&out).unwrap();
            fs::remove_file(side_path(&out)).unwrap();
        }
        Err(error) => assert!(!error.is_machine(), "{error}"),
    }
    let folder = path.parent().expect("it is in a folder");
    let left = |path: &Path| path.file_name().is_some_and(|name| name != "core");
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let left: Vec<PathBuf> = entries.filter(|path| left(path)).collect();
    assert!(left.is_empty(), "{left:?} is left behind");
    fs::remove_file(path).unwrap();
}
