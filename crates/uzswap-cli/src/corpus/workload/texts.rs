//! Strings: maps of them, and long ones.

use std::fmt::Write;
use std::sync::LazyLock;

use super::collections::{Table, bytes_of, exact, exact_string, grown_string};
use super::heap::Heap;
use super::rng::Rng;
use uzswap::random::mix;

/// English words, about by frequency: `pick_zipf` takes the early ones most.
pub(super) static WORDS: LazyLock<Vec<&str>> = LazyLock::new(|| WORD_LIST.split(' ').collect());

const WORD_LIST: &str = "\
    the of and to in a is that for it as was with be by on not he his but at are this have from or \
    had an they which one you were all her she there would their we him been has when who will no \
    more if out so up said what its about than into them can only other time new some could these \
    two may first then do any like my now over such our man me even most made after also well did \
    many before must years back through much where your way down should because long each just \
    state people those too mister how little good world make very year still see own work men day \
    get here between both life being under three never know same last another while us off might \
    great states go come since against right came take used himself few house american use place \
    during high without again home around small however found system memory page process server \
    request garden window morning question company number general history letter problem river \
    evidence committee experience compression kernel allocator machine distance mountain pressure \
    temperature interest education government development particular several";

const HOSTS: [&str; 12] = [
    "www.example.com",
    "api.example.com",
    "cdn.example.net",
    "static.example.org",
    "shop.example",
    "img.example.net",
    "login.example.com",
    "news.example.org",
    "maps.example.com",
    "search.example.net",
    "mail.example.com",
    "metrics.internal.example",
];

const SECTIONS: [&str; 12] = [
    "products",
    "users",
    "articles",
    "search",
    "images",
    "assets",
    "orders",
    "sessions",
    "reviews",
    "categories",
    "static/js",
    "v2/events",
];

const AGENTS: [&str; 5] = [
    "Mozilla/5.0 (X11; Linux x86_64; rv:128.0) Gecko/20100101 Firefox/128.0",
    "Mozilla/5.0 (Windows NT 10.0; Win64; x64) AppleWebKit/537.36 Chrome/126.0.0.0 Safari/537.36",
    "Mozilla/5.0 (iPhone; CPU iPhone OS 17_5 like Mac OS X) AppleWebKit/605.1.15 Mobile/15E148",
    "curl/8.5.0",
    "okhttp/4.12.0",
];

const LEVELS: [&str; 4] = ["INFO", "DEBUG", "WARN", "ERROR"];

const IDENTIFIERS: [&str; 16] = [
    "count", "index", "page", "result", "buffer", "offset", "entry", "state", "length", "handle",
    "next", "cache", "request", "value", "size", "node",
];

/// Bytes a string of a collection costs beside its text: the `String` and malloc's header.
const STRING_BYTES: usize = 24 + 12;

pub(super) fn hex_id(rng: &mut Rng, digits: usize) -> String {
    let mut id = String::with_capacity(digits.next_multiple_of(16));
    while id.len() < digits {
        write!(id, "{:016x}", rng.next()).expect("a String takes everything");
    }
    id.truncate(digits);
    id
}

/// A signed token or a digest in base64: what an entropy coder shrinks by a quarter, and lz4 not.
fn token(rng: &mut Rng, characters: usize) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let mut token = String::with_capacity(characters + 9);
    token.push_str("eyJhbGci.");
    while token.len() < characters {
        let mut bits = rng.next();
        // Ten characters of 6 bits from one number of 64.
        for _ in 0..10 {
            token.push(char::from(ALPHABET[(bits & 63) as usize]));
            bits >>= 6;
        }
    }
    token
}

pub(super) fn url(rng: &mut Rng) -> String {
    let (host, section) = (rng.pick_zipf(&HOSTS), rng.pick_zipf(&SECTIONS));
    let number = rng.below(1_000_000);
    match rng.below(4) {
        0 => format!("https://{host}/{section}/{number}"),
        1 => {
            let (slug, word) = (rng.pick_zipf(&WORDS), rng.pick(&WORDS));
            format!("https://{host}/{section}/{slug}-{word}-{number}.html")
        }
        2 => format!("https://{host}/{section}?id={number}&page={}", rng.below(40)),
        _ => format!("https://{host}/{section}/{}/{}", rng.pick(&WORDS), hex_id(rng, 8)),
    }
}

pub(super) fn sentence(rng: &mut Rng, words: usize) -> String {
    let mut text = String::new();
    for _ in 0..words {
        if !text.is_empty() {
            text.push(' ');
        }
        text.push_str(rng.pick_zipf::<&str>(&WORDS));
    }
    text
}

/// Hash maps as caches and session stores have them.
pub(super) fn string_maps(heap: &mut Heap, rng: &mut Rng, bytes: usize) {
    let end = heap.bytes() + bytes;
    while heap.bytes() < end {
        let target = (end - heap.bytes()).min(rng.between(1 << 18, 1 << 22));
        let mut map = Table::new(48);
        let kind = rng.below(10);
        let mut used = 0;
        while used < target {
            let (key, value) = entry(rng, kind);
            // A table is between 7/16 and 7/8 full: 48 bytes an entry, and as much again.
            used += key.len() + value.len() + 2 * STRING_BYTES + 40;
            let hash = hash(&key);
            if !map.has(hash) {
                let mut words = Vec::from(grown_string(heap, &key));
                // Some programs copy what they keep, and then it has no room at its end.
                words.extend(match kind {
                    5 => exact_string(heap, &value),
                    _ => grown_string(heap, &value),
                });
                map.insert(heap, hash, &bytes_of(&words));
            }
        }
        map.finish(heap);
        heap.parts.push("hash map of strings");
    }
}

/// FNV-1a, mixed: each bit of a key changes the place and the control byte.
fn hash(key: &str) -> u64 {
    let fnv = key.bytes().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
    });
    mix(fnv)
}

/// A key and a value of a map of this kind.
fn entry(rng: &mut Rng, kind: usize) -> (String, String) {
    match kind {
        0..3 => (url(rng), sentence(rng, 12)),
        3..5 => {
            let user = rng.below(50_000);
            let words = rng.between(1, 4);
            let key = format!("session:{}", hex_id(rng, 24));
            let theme = rng.pick(&["dark", "light"]);
            let cart = sentence(rng, words);
            (key, format!("user={user};lang=en;theme={theme};cart={cart}"))
        }
        5 => {
            let user = rng.below(10_000_000);
            (format!("user:{user:08}:agent"), rng.pick_zipf(&AGENTS).to_string())
        }
        6..8 => {
            let characters = rng.between(40, 500);
            (format!("token:{:06}", rng.below(1_000_000)), token(rng, characters))
        }
        _ => (url(rng), url(rng)),
    }
}

/// Buffers of text, as editors, log shippers and compilers have them.
pub(super) fn texts(heap: &mut Heap, rng: &mut Rng, bytes: usize) {
    let end = heap.bytes() + bytes;
    while heap.bytes() < end {
        let target = (end - heap.bytes()).min(rng.between(1 << 14, 1 << 18));
        let mut text = String::with_capacity(target + 256);
        let kind = rng.below(3);
        let mut clock = rng.below(80_000_000);
        while text.len() < target {
            match kind {
                0 => prose_line(&mut text, rng),
                1 => {
                    clock += rng.below(400);
                    log_line(&mut text, rng, clock);
                }
                _ => source_line(&mut text, rng),
            }
        }
        exact(heap, text.as_bytes());
        heap.parts.push(["prose", "log", "source"][kind]);
    }
}

fn prose_line(text: &mut String, rng: &mut Rng) {
    let start = text.len();
    let words = rng.between(6, 16);
    text.push_str(&sentence(rng, words));
    text[start..=start].make_ascii_uppercase();
    text.push_str(if rng.chance(15) { ".\n\n" } else { ". " });
}

fn log_line(text: &mut String, rng: &mut Rng, clock: usize) {
    let (hour, minute) = (clock / 3_600_000 % 24, clock / 60_000 % 60);
    let (second, milli) = (clock / 1000 % 60, clock % 1000);
    let level = rng.pick_zipf(&LEVELS);
    let module = rng.pick_zipf(&SECTIONS);
    let thread = rng.below(16);
    let request = rng.next() >> 32;
    let micros = rng.below(90_000);
    writeln!(
        text,
        "2026-01-31T{hour:02}:{minute:02}:{second:02}.{milli:03}Z {level} [worker-{thread}] \
         {module}: request={request:08x} status={} took={micros}us {}",
        rng.pick_zipf(&[200, 304, 404, 500]),
        url(rng),
    )
    .expect("a String takes everything");
}

fn source_line(text: &mut String, rng: &mut Rng) {
    let indent = "    ".repeat(rng.between(1, 3));
    let (a, b, c) = (rng.pick(&IDENTIFIERS), rng.pick(&IDENTIFIERS), rng.pick(&IDENTIFIERS));
    let number = rng.below(256);
    match rng.below(6) {
        0 => writeln!(text, "{indent}let {a} = self.{b}.{c}({number});"),
        1 => writeln!(text, "{indent}if {a} < {b} {{\n{indent}    return {c};\n{indent}}}"),
        2 => writeln!(text, "{indent}// The {b} of the {a}: {}.", sentence(rng, 7)),
        3 => writeln!(text, "}}\n\nfn {a}_{b}({c}: usize) -> usize {{"),
        4 => writeln!(text, "{indent}{a}.push({b}[{c} + {number}]);"),
        _ => writeln!(text, "{indent}for {a} in 0..{b}.len() {{"),
    }
    .expect("a String takes everything");
}
