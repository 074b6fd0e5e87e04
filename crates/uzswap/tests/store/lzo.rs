//! Goal: lzo and lzo-rle give each page back, an independent codec agrees with ours, and the
//! decoder takes exactly the streams that the format allows.
//! Method: made-up pages of many kinds; `lzokay`, which knows bitstream version 0 alone. A decoder
//! of a byte at a time, straight from the description of the format, is the reference for fuzzing
//! with made-up, damaged and random streams (`UZSWAP_FUZZ_SECONDS=N` for longer).
//! Blind to: lengths of objects (see `golden_lzo`).

use uzswap_testing::fuzz;
use uzswap_testing::varied_pages;

use fuzz::slow_lzo::slow_twin;
use fuzz::{mutate, seeds};
use uzswap::compressor::{CompressError, Compressor, CompressorKind, OUTPUT_BYTES};
use uzswap::page::{PAGE_SIZE, Page};
use varied_pages::{Random, varied_page, varied_pages};

/// `lzo` and `lzo-rle`.
fn both() -> [Box<dyn Compressor>; 2] {
    [CompressorKind::Lzo, CompressorKind::LzoRle].map(CompressorKind::build)
}

/// The object of a page; none if it would be larger than the page.
fn object(compressor: &dyn Compressor, page: &Page) -> Option<Vec<u8>> {
    let mut out = [0xee; OUTPUT_BYTES];
    match compressor.compress(page, &mut out) {
        Ok(bytes) => Some(out[..bytes].to_vec()),
        Err(error) => {
            assert_eq!(error, CompressError::TooBig);
            None
        }
    }
}

fn decode(object: &[u8]) -> Result<Page, String> {
    let mut page = [0xee; PAGE_SIZE];
    let result = CompressorKind::Lzo.build().decompress(object, &mut page);
    result.map(|()| page).map_err(|corrupt| corrupt.0)
}

/// Compresses with both, decompresses with our decoder, the slow one and `lzokay`.
fn check(page: &Page, place: &str) {
    let [lzo, lzo_rle] = both();
    if let Some(object) = object(&*lzo, page) {
        assert!(decode(&object).as_ref() == Ok(page), "lzo, {place}");
        let mut theirs = [0; PAGE_SIZE];
        let bytes = lzokay::decompress::decompress(&object, &mut theirs);
        assert!(bytes == Ok(PAGE_SIZE) && theirs == *page, "lzo by lzokay, {place}");
    }
    if let Some(object) = object(&*lzo_rle, page) {
        assert_eq!(object[..2], [17, 1]);
        let mut back = [0; PAGE_SIZE];
        lzo_rle.decompress(&object, &mut back).unwrap();
        assert!(back == *page, "lzo-rle, {place}");
        let slow = slow_twin(&object);
        assert!(slow.as_deref() == Some(&page[..]), "lzo-rle by the slow twin, {place}");
    }
    let theirs = lzokay::compress::compress(page).unwrap();
    assert!(decode(&theirs).as_ref() == Ok(page), "lzokay by lzo, {place}");
}

#[test]
fn varied_pages_come_back_and_lzokay_agrees() {
    for (number, page) in varied_pages(3, 3000).enumerate() {
        check(&page, &format!("page {number} of seed 3"));
    }
}

/// Runs of zeros and repeated units of every length, with edges everywhere in the page.
#[test]
fn edges_of_runs_and_matches_come_back() {
    let mut random = Random::new(4);
    for length in (1..40).chain(250..300).chain(2030..2070).chain(4040..=4096) {
        for start in [0, 1, 4, 5, 6, 40, 2048, PAGE_SIZE - 21, PAGE_SIZE - length.min(PAGE_SIZE)] {
            let end = (start + length).min(PAGE_SIZE);
            let mut page: Page = *random.bytes(PAGE_SIZE).first_chunk().unwrap();
            // Only a page that shrinks has an object: half of it is one byte.
            if random.below(2) == 0 { &mut page[2100..] } else { &mut page[..2000] }.fill(3);
            page[start..end].fill(0);
            check(&page, &format!("{length} zeros at {start}"));
            let unit = length.min(70);
            for at in start + unit..end {
                page[at] = page[at - unit];
            }
            check(&page, &format!("{length} bytes of a unit of {unit} at {start}"));
        }
    }
}

/// The most that an encoder can lose: 19 literals and a run or match of 4, again and again.
#[test]
fn pages_that_do_not_shrink_are_told() {
    let mut random = Random::new(5);
    for literals in 0..48 {
        for zeros in [0, 4, 5, 8] {
            let mut bytes = Vec::new();
            while bytes.len() < PAGE_SIZE {
                bytes.extend((0..literals).map(|_| random.byte() | 1));
                bytes.resize(bytes.len() + zeros + usize::from(literals + zeros == 0), 0);
            }
            check(bytes.first_chunk().unwrap(), &format!("{literals} literals, {zeros} zeros"));
        }
    }
    let noise = *random.bytes(PAGE_SIZE).first_chunk().unwrap();
    for compressor in both() {
        assert_eq!(object(&*compressor, &noise), None);
    }
}

#[test]
fn runs_of_zeros_are_four_bytes() {
    let [lzo, lzo_rle] = both();
    let mut page = [0; PAGE_SIZE];
    page[..9].copy_from_slice(b"some text");
    // Header, 9 literals, a run of 2051 and one of 2016, 20 literals, the last instruction.
    assert_eq!(object(&*lzo_rle, &page).unwrap().len(), 2 + 10 + 4 + 4 + 22 + 3);
    let lzo_bytes = object(&*lzo, &page).unwrap().len();
    assert!(lzo_bytes < 60, "{lzo_bytes}");
}

/// A run ends 20 bytes before the end of the page, and no later than a run of 4 has to.
#[test]
fn runs_that_reach_the_end_of_the_page_are_cut_there() {
    let [_, lzo_rle] = both();
    for start in PAGE_SIZE - 40..PAGE_SIZE - 20 {
        let mut page = [1; PAGE_SIZE];
        page[start..].fill(0);
        // Header, 5 literals, a match of over 4000 bytes, the run, literals, the last instruction.
        let literals = PAGE_SIZE - (PAGE_SIZE - 20).max(start + 4);
        let literals = literals + if literals > 18 { 2 } else { 1 };
        assert_eq!(object(&*lzo_rle, &page).unwrap().len(), 2 + 6 + 19 + 4 + literals + 3);
        check(&page, &format!("zeros from {start} on"));
    }
}

/// The step to the next place that is looked at grows with the literals since the last match.
#[test]
fn a_match_close_behind_another_is_found_anywhere_in_the_page() {
    let [lzo, lzo_rle] = both();
    for start in [100, 1000, 2000, 3000] {
        let mut page = [1; PAGE_SIZE];
        page[start..start + 8].copy_from_slice(b"no match");
        for at in start + 8..PAGE_SIZE {
            page[at] = page[at - 8];
        }
        for compressor in [&lzo, &lzo_rle] {
            let bytes = object(&**compressor, &page).unwrap().len();
            assert!(bytes < 80, "{start}: {bytes} bytes");
        }
    }
}

#[test]
fn what_is_wrong_with_a_stream_is_told() {
    let literals = [&[0_u8; 17][..], &[1], &[7; 4099]].concat();
    let whole = |count: usize| -> Vec<u8> {
        // A first instruction of 200 literals, a long one of the rest.
        let mut stream = vec![217];
        stream.extend([7; 200]);
        stream.extend([0x20 | 1, 0, 0]); // 3 bytes more by a match
        let mut left = count - 203;
        stream.push(0);
        left -= 18;
        while left > 255 {
            stream.push(0);
            left -= 255;
        }
        stream.push(left as u8);
        stream.extend(vec![7; count - 203]);
        stream
    };
    let with = |count: usize, end: &[u8]| [&whole(count)[..], end].concat();
    for version in [&[][..], &[17, 0], &[17, 1]] {
        let stream = [version, &with(4096, &[17, 0, 0])].concat();
        assert!(decode(&stream) == Ok([7; PAGE_SIZE]), "{version:?}");
    }
    for (stream, words) in [
        (vec![], "ends before"),
        (vec![17, 0, 0], "to 0 bytes instead of 4096"),
        (vec![17, 2, 18, 7, 17, 0, 0], "bitstream version 2"),
        (vec![17, 1, 17, 0, 0], "to 0 bytes instead of 4096"),
        (vec![18, 7, 0x40 | 4, 0], "a match at byte 1 of the page starts 2 bytes before"),
        (literals, "more than 4096"),
        // After four literals and more, the short instructions reach far back.
        (vec![21, 7, 7, 7, 7, 1, 0, 0], "byte 4 of the page starts 2049 bytes before"),
        (vec![22, 7, 7, 7, 7, 7, 4, 0, 0], "byte 5 of the page starts 2050 bytes"),
        (with(4095, &[17, 0, 0]), "to 4095 bytes instead of 4096"),
        (with(4097, &[17, 0, 0]), "more than 4096"),
        (with(4096, &[17, 0]), "ends before"),
        (with(4096, &[]), "ends before"),
        (with(4096, &[17, 0, 0, 0]), "1 bytes follow"),
        (with(4096, &[18, 0, 0]), "does not have length 3"),
        (with(4096, &[25, 0, 0]), "starts 32768 bytes before"),
        (with(4000, &[31, 0xfc, 0xff, 11, 17, 0, 0]), "starts 49151 bytes before"),
    ] {
        let message = decode(&stream).unwrap_err();
        assert!(message.contains(words), "no '{words}' in: {message}");
    }
    // Only with all its marks is it a run in version 1, far from the end of a stream and near it.
    for (instruction, words) in [
        ([17, 0xfc, 0xff, 1], "4 of the page starts 32767 bytes before"),
        ([25, 0xf8, 0xff, 1], "4 of the page starts 49150 bytes before"),
        ([25, 0xfc, 0xfe, 1], "4 of the page starts 49087 bytes before"),
    ] {
        for rest in [0, 40] {
            let stream = [&[17, 1, 21, 7, 7, 7, 7][..], &instruction, &vec![0; rest]].concat();
            let message = decode(&stream).unwrap_err();
            assert!(message.contains(words), "no '{words}' in: {message}");
        }
    }
    // In version 1 the same is a run of 99 zeros.
    let run = [&[17, 1][..], &with(4000, &[31, 0xfc, 0xff, 11, 17, 0, 0])].concat();
    assert!(decode(&run).unwrap_err().contains("more than 4096"));
    let run = [&[17, 1][..], &with(3997, &[31, 0xfc, 0xff, 11, 17, 0, 0])].concat();
    let page = decode(&run).unwrap();
    assert!(page[..3997] == [7; 3997] && page[3997..] == [0; 99]);
}

#[test]
fn every_cut_of_a_stream_is_refused() {
    for page in varied_pages(6, 40) {
        for compressor in both() {
            let Some(object) = object(&*compressor, &page) else { continue };
            for bytes in 0..object.len() {
                assert!(decode(&object[..bytes]).is_err(), "{bytes} of {} bytes", object.len());
            }
        }
    }
}

/// Ours against the slow twin, and without a version against `lzokay`; whether the stream is valid.
fn compare(stream: &[u8], seed: u64) -> bool {
    let ours = decode(stream);
    let slow = slow_twin(stream).filter(|page| page.len() == PAGE_SIZE);
    assert!(
        ours.as_ref().ok().map(|page| &page[..]) == slow.as_deref(),
        "seed {seed}: {:?} by ours, {} by the slow twin: {stream:?}",
        ours.map(|_| "a page"),
        if slow.is_some() { "a page" } else { "none" },
    );
    if stream.first() != Some(&17) {
        let mut theirs = [0; PAGE_SIZE];
        let bytes = lzokay::decompress::decompress(stream, &mut theirs);
        let theirs = (bytes == Ok(PAGE_SIZE)).then_some(&theirs[..]);
        assert!(slow.as_deref() == theirs, "seed {seed}: lzokay says {bytes:?}: {stream:?}");
    }
    slow.is_some()
}

/// A stream of random instructions of every form, most often of exactly one page.
fn made_up_stream(random: &mut Random) -> Vec<u8> {
    let mut stream = [vec![], vec![17, 0], vec![17, 1]][random.below(3)].clone();
    let runs = stream.ends_with(&[1]);
    let (mut made, mut state) = (0, 0);
    if random.below(3) > 0 {
        let count = random.length(1, 238);
        stream.push(17 + count as u8);
        stream.extend(random.bytes(count));
        (made, state) = (count, count.min(4));
    }
    while made < PAGE_SIZE {
        let left = PAGE_SIZE - made;
        let back = |random: &mut Random, nearest: usize, most: usize| {
            random.length(0, (made.max(nearest) - nearest).min(most - 1))
        };
        // Length, and the byte of the stream that the count of literals goes to.
        let (length, count_at);
        let at = stream.len();
        match random.below(6) {
            0 | 1 if state == 0 => {
                let count = random.length(4, left.max(4));
                put_long(&mut stream, 0, count - 3, 15);
                stream.extend(random.bytes(count));
                (made, state) = (made + count, 4);
                continue;
            }
            0 if state != 0 => {
                let nearest = if state == 4 { 2049 } else { 1 };
                let back = back(random, nearest, 1024);
                stream.extend([(back as u8 & 3) << 2, (back >> 2) as u8]);
                (length, count_at) = (if state == 4 { 3 } else { 2 }, at);
            }
            1 | 2 => {
                length = random.length(3, 8.min(left.max(3)));
                let back = back(random, 1, 2048);
                stream.extend([((length - 1) << 5 | (back & 7) << 2) as u8, (back >> 3) as u8]);
                count_at = at;
            }
            3 if runs => {
                length = random.length(4, left.clamp(4, 2051));
                let (low, high) = ((length - 4) as u8 & 7, ((length - 4) >> 3) as u8);
                stream.extend([24 | low, 0xfc, 0xff, high]);
                count_at = at + 1;
            }
            _ => {
                length = random.length(3, left.max(3));
                put_long(&mut stream, 32, length - 2, 31);
                let back = back(random, 1, 16384);
                stream.extend([(back as u8) << 2, (back >> 6) as u8]);
                count_at = stream.len() - 2;
            }
        }
        made += length;
        state = random.below(4).min(PAGE_SIZE.saturating_sub(made));
        stream[count_at] |= state as u8;
        stream.extend(random.bytes(state));
        made += state;
    }
    stream.extend([17, random.byte() & 3, 0]);
    stream
}

/// An instruction with a length: in it, or after it where it does not fit.
fn put_long(stream: &mut Vec<u8>, base: u8, length: usize, most: usize) {
    if length <= most {
        return stream.push(base | length as u8);
    }
    stream.push(base);
    let mut left = length - most;
    while left > 255 {
        stream.push(0);
        left -= 255;
    }
    stream.push(left as u8);
}

#[test]
fn the_decoder_agrees_with_its_slow_twin() {
    let [lzo, lzo_rle] = both();
    let mut valid = [0; 3];
    let mut tried = 0;
    for seed in seeds(6000) {
        let mut random = Random::new(seed);
        let stream = match seed % 3 {
            0 => made_up_stream(&mut random),
            kind => {
                let page = varied_page(&mut random);
                let compressor = if kind == 1 { &lzo } else { &lzo_rle };
                object(&**compressor, &page).unwrap_or_else(|| random.bytes(40))
            }
        };
        valid[seed as usize % 3] += usize::from(compare(&stream, seed));
        for _ in 0..4 {
            let mut damaged = stream.clone();
            mutate(&mut random, &mut damaged);
            compare(&damaged, seed);
        }
        let count = random.length(0, 60);
        let mut noise = random.bytes(count);
        compare(&noise, seed);
        noise.splice(..0, [17, 1]);
        compare(&noise, seed);
        tried += 1;
    }
    for valid in valid {
        assert!(valid * 3 > tried / 2, "{valid} of {tried} streams are valid");
    }
}
