//! Tests of the page table.

use super::*;

/// The memory of a table, chunk by chunk.
fn bytes_of(table: &PageTable) -> usize {
    let chunks: usize = table.chunks.values().map(Chunk::bytes).sum();
    let lone = PageTable {
        chunks: BTreeMap::from([(0, Chunk::One((0, Packed::NOTHING)))]),
        ..PageTable::default()
    };
    chunks + table.chunks.len() * lone.bytes()
}

#[test]
fn a_table_takes_memory_for_pages_and_not_for_what_is_between_them() {
    for shift in 0..=20 {
        const COUNT: u64 = 40_000;
        for step in [1 << shift, (1 << shift) + 3] {
            let mut table = PageTable::default();
            let entry = Entry { place: Place::Stored(1), ..UNKNOWN };
            (0..COUNT).for_each(|at| table.set(at * step, entry));
            assert_eq!(table.bytes(), bytes_of(&table));
            let each = table.bytes() as u64 / COUNT;
            // In the first case some 4 bytes, as all of a chunk is there; 60 for a lone page.
            let most = match CHUNK_PAGES / step {
                0..=1 => 64,
                2..=8 => 48,
                9..=128 => 24,
                listed => 5 * CHUNK_PAGES / listed,
            };
            assert!((4..=most).contains(&each), "{each} bytes for one in {step} pages");
            assert!(step < CHUNK_PAGES || each >= 32, "{each} bytes for a lone page");
            // And none for what has gone, one by one.
            (0..COUNT).rev().for_each(|at| table.set(at * step, UNKNOWN));
            assert_eq!((table.bytes(), table.places), (0, [0; PLACES]));
        }
    }
}

#[test]
fn chunks_that_become_sparse_are_listed_again() {
    let mut table = PageTable::default();
    let entry = Entry { place: Place::Stored(1), ..UNKNOWN };
    (0..CHUNK_PAGES).for_each(|page| table.set(page, entry));
    let full = table.bytes();
    (10..CHUNK_PAGES).for_each(|page| table.set(page, UNKNOWN));
    assert!(table.bytes() * 4 < full, "{} of {full}", table.bytes());
    assert_eq!(
        table.known(0..u64::MAX).map(|(page, _)| page).collect::<Vec<_>>(),
        Vec::from_iter(0..10)
    );
}

/// `cargo test --release -p uzswap-pager --lib dense_table -- --ignored --nocapture`
#[test]
#[ignore = "it measures"]
fn dense_table_time() {
    const COUNT: u64 = 1 << 21;
    let entry = |at: u64| Entry { place: Place::Stored(at as u32), ..UNKNOWN };
    let mut seed = 1_u64;
    let mut random = move || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % COUNT
    };
    for _ in 0..3 {
        let mut table = PageTable::default();
        let start = std::time::Instant::now();
        (0..COUNT).for_each(|at| table.set(at, entry(at)));
        let filled = start.elapsed();
        let start = std::time::Instant::now();
        let sum: u64 = (0..COUNT).map(|_| u64::from(table.get(random()) != UNKNOWN)).sum();
        let got = start.elapsed();
        let start = std::time::Instant::now();
        (0..COUNT).for_each(|at| table.set(random(), entry(at)));
        let set = start.elapsed();
        let ns = |time: std::time::Duration| time.as_nanos() as u64 / COUNT;
        println!("{sum}: {} ns in order, {} ns a get, {} ns a set", ns(filled), ns(got), ns(set));
    }
}

/// Compares stretches of the table with those of a map.
fn check_stretches(table: &PageTable, twin: &BTreeMap<u64, Entry>) {
    for page in [0, 5, 511, 512, 1700] {
        for end in [page + 1, page + 700, 4000] {
            let (known_to, known) = table.known_stretch(page, end, usize::MAX);
            let is_known = |page: u64| {
                let first = page / CHUNK_PAGES * CHUNK_PAGES;
                (first..first + CHUNK_PAGES).all(|page| twin.contains_key(&page))
            };
            assert!((page..known_to).all(|page| is_known(page) == known));
            assert!(known_to == end || is_known(known_to) != known, "{page} to {known_to}");
            let (short, _) = table.known_stretch(page, end, 1);
            assert!(page < short && short <= known_to, "{page} to {short}");
            let found: Vec<(u64, Entry)> = table.known(page..end).collect();
            let expected = twin.range(page..end).map(|(&page, &entry)| (page, entry));
            assert_eq!(found, Vec::from_iter(expected));
            let all = table.entries(page..end).filter(|(_, entry)| *entry != UNKNOWN);
            assert_eq!(all.collect::<Vec<_>>(), found);
        }
    }
}

#[test]
fn a_table_is_a_map() {
    let mut table = PageTable::default();
    let mut twin = BTreeMap::new();
    let mut seed = 1_u64;
    let mut random = |below: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % below
    };
    for _ in 0..100_000 {
        let page = random(3000);
        let place = match random(3) {
            0 => Place::Program,
            1 => Place::Staged(random(1 << 26) as u32),
            _ => Place::Stored(random(1 << 26) as u32),
        };
        let returned = place == Place::Program && random(2) == 0;
        let ahead = random(4) == 0;
        let entry = Entry { place, returned, heat: random(6) as u8, ahead };
        match random(20) {
            0 => {
                let pages = page..page + random(1200);
                let mut taken = Vec::new();
                table.take_range(pages.clone(), &mut |page, entry| taken.push((page, entry)));
                let expected: Vec<(u64, Entry)> =
                    twin.range(pages.clone()).map(|(&page, &entry)| (page, entry)).collect();
                assert_eq!(taken, expected);
                twin.retain(|page, _| !pages.contains(page));
            }
            _ if entry == UNKNOWN => {
                table.set(page, entry);
                twin.remove(&page);
            }
            _ => {
                table.set(page, entry);
                twin.insert(page, entry);
            }
        }
        assert_eq!(table.get(page), twin.get(&page).copied().unwrap_or(UNKNOWN));
        if page % 64 == 0 {
            let count = |like: fn(Place) -> bool| {
                twin.values().filter(|entry| like(entry.place)).count() as u64
            };
            assert_eq!(table.staged_pages(), count(|place| matches!(place, Place::Staged(_))));
            assert_eq!(table.stored_pages(), count(|place| matches!(place, Place::Stored(_))));
        }
    }
    check_stretches(&table, &twin);
    assert_eq!(table.bytes(), bytes_of(&table));
    let mut all = Vec::new();
    table.for_each(&mut |page, entry| all.push((page, entry)));
    assert_eq!(all, twin.into_iter().collect::<Vec<_>>());
    table.take_range(0..u64::MAX, &mut |_, _| ());
    assert_eq!((table.bytes(), table.places), (0, [0; PLACES]));
}
