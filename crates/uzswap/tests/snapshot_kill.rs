//! Goal: whenever a process is killed, the snapshot has the last complete state of its store.
//! Method: a child changes a store, writes pages back to a file and takes snapshots, in rounds that
//! a seed determines; it tells each round on a pipe. The parent kills the child (`SIGKILL`) at a
//! random moment and compares the file with its own model of the round, page by page. Then it
//! starts the next child from that file. `UZSWAP_KILLS=N` kills N times (`tests/kill/run.sh`).
//! Blind to: power failures; what the kernel was given is there.

use uzswap_testing::varied_pages;

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tempfile::TempDir;
use uzswap::backing::{FileBacking, FileBackingOptions, Submission};
use uzswap::compressor::CompressorKind;
use uzswap::page::{PAGE_SIZE, Page, PageKey, fill_with_word};
use uzswap::zswap::snapshot::{PageForm, SnapshotReader};
use uzswap::zswap::{TenantId, WrittenAs, Zswap, ZswapOptions};
use varied_pages::Random;

/// The page that says which round a snapshot is of.
const ROUND: PageKey = PageKey(u64::MAX);
const KEYS: usize = 700;
const CHANGES: usize = 60;
const BACKING_BYTES: u64 = 4 << 20;

/// Changes of a round: keys, and the number of their new page, if they have one.
fn changes(round: u64) -> impl Iterator<Item = (PageKey, Option<u64>)> {
    let mut random = Random::new(round);
    (0..CHANGES).map(move |_| {
        let key = PageKey(random.below(KEYS) as u64);
        let number = random.word();
        (key, (!number.is_multiple_of(6)).then_some(number))
    })
}

fn page_of(number: u64) -> Page {
    let mut random = Random::new(number);
    let mut page = [0; PAGE_SIZE];
    if number.is_multiple_of(5) {
        fill_with_word(&mut page, number);
    } else {
        let bytes = random.below(3000) + 8;
        page[..bytes].copy_from_slice(&random.bytes(bytes));
    }
    page
}

/// Which pages there are after a round.
fn model(model: &mut BTreeMap<PageKey, u64>, round: u64) {
    for (key, number) in changes(round) {
        match number {
            Some(number) => model.insert(key, number),
            None => model.remove(&key),
        };
    }
}

fn options() -> ZswapOptions {
    ZswapOptions::default().max_pool_bytes(120 << 12).written_as(WrittenAs::Objects).shards(4)
}

/// What the child does, for ever.
#[test]
fn child() {
    let Some(directory) = std::env::var_os("UZSWAP_KILL_CHILD") else { return };
    let directory = Path::new(&directory);
    let path = directory.join("s");
    let backing = FileBackingOptions::new(directory.join("backing"), Some(BACKING_BYTES))
        .submission(Some(Submission::Sequential));
    let backing = Box::new(FileBacking::open(&backing).unwrap());
    let (zswap, mut round) = match path.exists() {
        false => (Zswap::with_backing(options(), backing).unwrap(), 0),
        true => {
            let (zswap, _) = Zswap::from_snapshot(options(), Some(backing), &path).unwrap();
            let mut page = [0; PAGE_SIZE];
            assert!(zswap.load(ROUND, &mut page).unwrap());
            (zswap, u64::from_le_bytes(page[..8].try_into().unwrap()))
        }
    };
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                zswap.shrink(TenantId::ROOT, 16);
                std::thread::sleep(Duration::from_micros(300));
            }
        });
        let mut out = std::io::stdout();
        writeln!(out).unwrap(); // ends the harness's line
        loop {
            round += 1;
            for (key, number) in changes(round) {
                match number {
                    Some(number) => {
                        zswap.store(key, &page_of(number)).unwrap();
                    }
                    None => {
                        zswap.invalidate(key);
                    }
                }
            }
            let mut page = [0; PAGE_SIZE];
            fill_with_word(&mut page, round.to_le());
            zswap.store(ROUND, &page).unwrap();
            writeln!(out, "begin {round}").unwrap();
            zswap.snapshot(&path).unwrap();
            writeln!(out, "done {round}").unwrap();
        }
    });
}

/// The pages of a snapshot; `None` where there is none.
fn pages_in(path: &Path) -> Option<BTreeMap<PageKey, Page>> {
    if !path.exists() {
        return None;
    }
    let mut reader = SnapshotReader::open(path).unwrap();
    let compressor = CompressorKind::Lz4.build();
    let mut pages = BTreeMap::new();
    while let Some(block) = reader.next_block().unwrap() {
        for entry in block.pages() {
            let mut page = [0; PAGE_SIZE];
            match entry.form {
                PageForm::Word(word) => fill_with_word(&mut page, word),
                PageForm::Object(object) => compressor.decompress(object, &mut page).unwrap(),
                PageForm::AsIs(bytes) => page = *bytes,
            }
            pages.insert(entry.key, page);
        }
    }
    Some(pages)
}

#[test]
fn killed_at_any_moment_the_last_state_is_there() {
    let kills = std::env::var("UZSWAP_KILLS").ok();
    let kills: usize = kills.map_or(16, |text| text.parse().expect("UZSWAP_KILLS"));
    // On a disk most of the time goes into syncing, in memory into the rest.
    kill_in(tempfile::tempdir().unwrap(), kills / 2);
    kill_in(
        tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap(),
        kills - kills / 2,
    );
}

fn kill_in(directory: TempDir, kills: usize) {
    let path = directory.path().join("s");
    let mut random = Random::new(std::process::id().into());
    let (mut expected, mut at) = (BTreeMap::new(), 0);
    let (mut during, mut placed, mut parts, mut snapshots) = (0, 0, 0, 0);
    for kill in 0..kills {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child", "--nocapture"])
            .env("UZSWAP_KILL_CHILD", directory.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .unwrap();
        std::thread::sleep(Duration::from_micros(5_000 + random.word() % 80_000));
        child.kill().unwrap();
        let mut told = String::new();
        child.stdout.take().unwrap().read_to_string(&mut told).unwrap();
        let status = child.wait().unwrap();
        assert_eq!(status.signal(), Some(9), "kill {kill}: it ended by itself: {told}");
        let last = |what: &str| {
            let rounds = told.lines().filter_map(|line| line.strip_prefix(what));
            rounds.filter_map(|number| number.trim().parse::<u64>().ok()).next_back()
        };
        // A reported round is whole in the pipe, but perhaps for its last line.
        let done = last("done ").unwrap_or(at);
        let begun = last("begin ").unwrap_or(done).max(done);
        assert!(begun <= done + 1, "kill {kill}: {told}");
        let found = pages_in(&path);
        let round = found
            .as_ref()
            .map_or(0, |pages| u64::from_le_bytes(pages[&ROUND][..8].try_into().unwrap()));
        assert!(
            round == done || round == begun,
            "kill {kill}: round {round} is there, {done} was done and {begun} begun"
        );
        during += u64::from(begun > done);
        placed += u64::from(round > done);
        parts += u64::from(directory.path().join(".s.part").exists());
        snapshots += round - at;
        (at + 1..=round).for_each(|round| model(&mut expected, round));
        at = round;
        let Some(mut found) = found else { continue };
        found.remove(&ROUND);
        assert_eq!(found.len(), expected.len(), "kill {kill}, round {round}");
        for (key, page) in found {
            assert!(page == page_of(expected[&key]), "kill {kill}, round {round}: page {key}");
        }
    }
    let mut names: Vec<_> = fs::read_dir(directory.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.retain(|name| name != "s" && name != "backing" && name != ".s.part");
    assert!(names.is_empty(), "{names:?}");
    println!(
        "{}: {kills} kills, {snapshots} snapshots: {during} kills during one, {placed} of those \
         after it was in place; {parts} left a part; every file was the last complete state",
        directory.path().display()
    );
}
