//! The byte shuffle of 8-byte words, and back: byte i of each word together, as Blosc's filter.
//!
//! ```text
//!  words   a0 a1 .. a7 | b0 b1 .. b7 | c0 ..
//!  lanes   a0 b0 c0 .. | a1 b1 c1 .. | ..      one lane a byte of the word
//! ```
//!
//! Pointers, lengths and small numbers share their upper bytes with their neighbours. A compressor
//! that matches strings of bytes finds these in the lanes, and hardly in the words.
//!
//! 16 words are eight vectors of 16 bytes. A round interleaves the bytes of pairs of vectors. Of a
//! byte's place, seven bits, it moves the highest bit inside the vector to the vector's number, and
//! one bit of that number to the lowest place:
//!
//! ```text
//!  number of the vector | place in it          number | place
//!        w3 w2 w1       | w0 b2 b1 b0   words  b2 b1 b0 | w3 w2 w1 w0   lanes
//! ```
//!
//! Four rounds shuffle, three rounds go back. AVX2 does the same in both halves of its vectors.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_storeu_si128};

/// Bytes that one step of the widest implementation takes: 32 words.
pub const STEP_BYTES: usize = 256;

const LANES: usize = 8;

/// Writes the lanes of `words` to `lanes`.
///
/// # Panics
///
/// If the lengths differ, or are no multiple of [`STEP_BYTES`].
#[inline]
pub fn shuffle(words: &[u8], lanes: &mut [u8]) {
    check(words, lanes);
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has the one feature that the function needs.
        return unsafe { avx2::shuffle(words, lanes) };
    }
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 has SSE2.
    unsafe {
        sse2::shuffle(words, lanes);
    }
    #[cfg(not(target_arch = "x86_64"))]
    portable::shuffle(words, lanes);
}

/// Writes the words of which [`shuffle`] made `lanes`.
///
/// # Panics
///
/// As [`shuffle`].
#[inline]
pub fn unshuffle(lanes: &[u8], words: &mut [u8]) {
    check(lanes, words);
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has the one feature that the function needs.
        return unsafe { avx2::unshuffle(lanes, words) };
    }
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 has SSE2.
    unsafe {
        sse2::unshuffle(lanes, words);
    }
    #[cfg(not(target_arch = "x86_64"))]
    portable::unshuffle(lanes, words);
}

/// Bytes and half words of a page that are the same as in the word before: what lanes gain, and
/// what a compressor finds without them. The first [`UNCOUNTED`] words do not count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Repeats {
    /// Bytes of each lane, 0 to 508.
    pub lanes: [u16; LANES],
    /// Half words, 0 to 1016.
    pub halves: u16,
    /// Half words that are zero, whatever is before them, 0 to 1016.
    pub zeros: u16,
}

/// Words at the start of a page that [`repeats`] leaves out: of one vector. With them a byte would
/// not hold the count of the narrower vectors.
pub const UNCOUNTED: usize = 4;

/// Counts the repeats of a page.
#[inline]
pub fn repeats(page: &[u8; 4096]) -> Repeats {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has the one feature that the function needs.
        return unsafe { avx2::repeats(page) };
    }
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 has SSE2.
    return unsafe { sse2::repeats(page) };
    #[cfg(not(target_arch = "x86_64"))]
    portable::repeats(page)
}

fn check(from: &[u8], to: &[u8]) {
    assert_eq!(from.len(), to.len(), "a shuffle keeps the length");
    assert!(from.len().is_multiple_of(STEP_BYTES), "{} bytes are no whole steps", from.len());
}

/// 16 bytes as a vector.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "sse2")]
fn load(bytes: &[u8; 16]) -> __m128i {
    // SAFETY: the array is as long as the vector; the load needs no alignment.
    unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) }
}

/// A vector as 16 bytes.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "sse2")]
fn store(vector: __m128i, bytes: &mut [u8; 16]) {
    // SAFETY: the array is as long as the vector; the store needs no alignment.
    unsafe { _mm_storeu_si128(bytes.as_mut_ptr().cast(), vector) }
}

/// A module of the rounds. A vector of this kind is `$halves` vectors of 16 bytes, which `$join`
/// and `$split` put together and take apart.
#[cfg(target_arch = "x86_64")]
macro_rules! with_vectors {
    ($module:ident, $feature:literal, $vector:ident, $halves:literal, $low:ident, $high:ident,
     $same_bytes:ident, $same_halves:ident, $minus_bytes:ident, $minus_halves:ident, $zero:ident,
     $join:expr, $split:expr) => {
        mod $module {
            use std::arch::x86_64::*;
            use std::array::from_fn;

            use super::{LANES, Repeats, UNCOUNTED, load, store};

            /// Interleaves each pair of vectors whose numbers differ in `BIT` alone.
            // A parameter: with a loop over the bits, the vectors would be in memory.
            #[target_feature(enable = $feature)]
            #[inline]
            fn round<const BIT: usize>(vectors: [$vector; LANES]) -> [$vector; LANES] {
                from_fn(|number| {
                    let (a, b) = (vectors[number & !BIT], vectors[number | BIT]);
                    if number & BIT == 0 { $low(a, b) } else { $high(a, b) }
                })
            }

            #[target_feature(enable = $feature)]
            pub(super) fn shuffle(words: &[u8], lanes: &mut [u8]) {
                let lane_halves = lanes.len() / LANES / 16;
                let ((words, _), (lanes, _)) = (words.as_chunks(), lanes.as_chunks_mut());
                for (step, words) in words.chunks_exact(LANES * $halves).enumerate() {
                    let half_of = |number, half| load(&words[LANES * half + number]);
                    let vectors = from_fn(|number| $join(from_fn(|half| half_of(number, half))));
                    // w3, w2, w1, and w0 where w3 was.
                    let vectors = round::<4>(round::<1>(round::<2>(round::<4>(vectors))));
                    for (number, vector) in vectors.into_iter().enumerate() {
                        let lane = number << 1 & 6 | number >> 2; // the bits are b0 b2 b1
                        let lane = &mut lanes[lane * lane_halves + step * $halves..][..$halves];
                        for (half, to) in $split(vector).into_iter().zip(lane) {
                            store(half, to);
                        }
                    }
                }
            }

            #[target_feature(enable = $feature)]
            pub(super) fn unshuffle(lanes: &[u8], words: &mut [u8]) {
                let lane_halves = lanes.len() / LANES / 16;
                let ((lanes, _), (words, _)) = (lanes.as_chunks(), words.as_chunks_mut());
                for (step, words) in words.chunks_exact_mut(LANES * $halves).enumerate() {
                    let half_of =
                        |lane, half| load(&lanes[lane * lane_halves + step * $halves + half]);
                    let vectors = from_fn(|lane| $join(from_fn(|half| half_of(lane, half))));
                    let vectors = round::<1>(round::<2>(round::<4>(vectors)));
                    for (number, vector) in vectors.into_iter().enumerate() {
                        for (place, half) in $split(vector).into_iter().enumerate() {
                            store(half, &mut words[LANES * place + number]);
                        }
                    }
                }
            }

            #[target_feature(enable = $feature)]
            pub(super) fn repeats(page: &[u8; 4096]) -> Repeats {
                let (mut bytes, mut halves, mut zeros) = ($zero(), $zero(), $zero());
                let ((these, _), (before, _)) = (
                    page[8 * UNCOUNTED..].as_chunks::<{ 16 * $halves }>(),
                    page[8 * (UNCOUNTED - 1)..].as_chunks::<{ 16 * $halves }>(),
                );
                let vector = |from: &[u8; 16 * $halves]| {
                    let (parts, _) = from.as_chunks::<16>();
                    $join(from_fn(|half| load(&parts[half])))
                };
                for (these, before) in these.iter().zip(before) {
                    let (these, before) = (vector(these), vector(before));
                    // A comparison makes -1 of what is the same.
                    bytes = $minus_bytes(bytes, $same_bytes(these, before));
                    halves = $minus_halves(halves, $same_halves(these, before));
                    zeros = $minus_halves(zeros, $same_halves(these, $zero()));
                }
                let parts = |vector| {
                    $split(vector).map(|half| {
                        let mut to = [0; 16];
                        store(half, &mut to);
                        to
                    })
                };
                let mut lanes = [0; LANES];
                for (place, &count) in parts(bytes).as_flattened().iter().enumerate() {
                    lanes[place % LANES] += u16::from(count);
                }
                let sum = |counts| {
                    // At most 254 each, in 4 bytes of which the lowest comes first.
                    parts(counts).as_flattened().iter().map(|&byte| u16::from(byte)).sum()
                };
                Repeats { lanes, halves: sum(halves), zeros: sum(zeros) }
            }
        }
    };
}

#[cfg(target_arch = "x86_64")]
with_vectors!(
    sse2,
    "sse2",
    __m128i,
    1,
    _mm_unpacklo_epi8,
    _mm_unpackhi_epi8,
    _mm_cmpeq_epi8,
    _mm_cmpeq_epi32,
    _mm_sub_epi8,
    _mm_sub_epi32,
    _mm_setzero_si128,
    |[all]: [__m128i; 1]| all,
    |all: __m128i| [all]
);

#[cfg(target_arch = "x86_64")]
with_vectors!(
    avx2,
    "avx2",
    __m256i,
    2,
    _mm256_unpacklo_epi8,
    _mm256_unpackhi_epi8,
    _mm256_cmpeq_epi8,
    _mm256_cmpeq_epi32,
    _mm256_sub_epi8,
    _mm256_sub_epi32,
    _mm256_setzero_si256,
    |[low, high]: [__m128i; 2]| _mm256_set_m128i(high, low),
    |all: __m256i| [_mm256_castsi256_si128(all), _mm256_extracti128_si256::<1>(all)]
);

/// For other processors, and the twin of the tests: byte by byte.
#[cfg(any(test, not(target_arch = "x86_64")))]
mod portable {
    use super::{LANES, Repeats, UNCOUNTED};

    pub(super) fn repeats(page: &[u8; 4096]) -> Repeats {
        let mut counts = Repeats { lanes: [0; LANES], halves: 0, zeros: 0 };
        let (words, _) = page.as_chunks::<LANES>();
        for pair in words[UNCOUNTED - 1..].windows(2) {
            for (lane, count) in counts.lanes.iter_mut().enumerate() {
                *count += u16::from(pair[0][lane] == pair[1][lane]);
            }
            for half in [0..4, 4..8] {
                counts.halves += u16::from(pair[0][half.clone()] == pair[1][half.clone()]);
                counts.zeros += u16::from(pair[1][half] == [0; 4]);
            }
        }
        counts
    }

    pub(super) fn shuffle(words: &[u8], lanes: &mut [u8]) {
        let (words, _) = words.as_chunks::<LANES>();
        for (byte, lane) in lanes.chunks_exact_mut(words.len().max(1)).enumerate() {
            lane.iter_mut().zip(words).for_each(|(to, word)| *to = word[byte]);
        }
    }

    pub(super) fn unshuffle(lanes: &[u8], words: &mut [u8]) {
        let (words, _) = words.as_chunks_mut::<LANES>();
        for (byte, lane) in lanes.chunks_exact(words.len().max(1)).enumerate() {
            lane.iter().zip(&mut *words).for_each(|(from, word)| word[byte] = *from);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: usize = 4096;

    type Way = fn(&[u8], &mut [u8]);
    type Count = fn(&[u8; PAGE]) -> Repeats;

    /// Implementations that this processor runs, with name, shuffle and way back.
    fn ways() -> Vec<(&'static str, Way, Way)> {
        let mut ways: Vec<(_, Way, Way)> = vec![
            ("portable", portable::shuffle, portable::unshuffle),
            ("chosen", shuffle, unshuffle),
        ];
        #[cfg(target_arch = "x86_64")]
        {
            ways.push((
                "sse2",
                // SAFETY: every x86-64 has SSE2.
                |from, to| unsafe { sse2::shuffle(from, to) },
                // SAFETY: every x86-64 has SSE2.
                |from, to| unsafe { sse2::unshuffle(from, to) },
            ));
            if is_x86_feature_detected!("avx2") {
                ways.push((
                    "avx2",
                    // SAFETY: looked at just above.
                    |from, to| unsafe { avx2::shuffle(from, to) },
                    // SAFETY: looked at just above.
                    |from, to| unsafe { avx2::unshuffle(from, to) },
                ));
            }
        }
        ways
    }

    /// Random bytes.
    fn random() -> impl FnMut() -> u8 {
        let mut state = 1_u64;
        move || {
            // Knuth's multiplier.
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 56) as u8
        }
    }

    /// Byte i of word j is in lane i, at j: of any length, and where both ways are the identity
    /// nothing would show.
    #[test]
    fn each_byte_alone_goes_to_its_lane_and_back() {
        for (name, shuffle, unshuffle) in ways() {
            for bytes in [STEP_BYTES, PAGE, 4 * PAGE] {
                let step = if bytes > PAGE { 61 } else { 1 }; // each lane, and each bit of a place
                let (mut words, mut lanes, mut back) =
                    (vec![0; bytes], vec![0xaa; bytes], vec![0xaa; bytes]);
                for place in (0..bytes).step_by(step) {
                    words[place] = 0xff;
                    shuffle(&words, &mut lanes);
                    let expected = place % 8 * (bytes / 8) + place / 8;
                    assert_eq!(lanes[expected], 0xff, "{name}: byte {place} of {bytes}");
                    assert_eq!(lanes.iter().filter(|&&byte| byte != 0).count(), 1, "{name}");
                    unshuffle(&lanes, &mut back);
                    assert!(back == words, "{name}: byte {place} of {bytes}");
                    words[place] = 0;
                }
            }
        }
    }

    #[test]
    fn all_ways_make_the_same_of_random_bytes() {
        let mut random = random();
        for round in 0..64 {
            let bytes = STEP_BYTES * (round % 33);
            let mut words = vec![0; bytes];
            words.fill_with(&mut random);
            let (mut expected, mut expected_back) = (vec![0; bytes], vec![0; bytes]);
            portable::shuffle(&words, &mut expected);
            portable::unshuffle(&words, &mut expected_back);
            for (name, shuffle, unshuffle) in ways() {
                let mut to = vec![0; bytes];
                shuffle(&words, &mut to);
                assert!(to == expected, "{name}: {bytes} bytes");
                // Any bytes are lanes.
                unshuffle(&words, &mut to);
                assert!(to == expected_back, "{name}: {bytes} bytes");
            }
        }
    }

    /// Pages of words that are the same as the one before, zero, or alike in some bytes.
    #[test]
    fn all_ways_count_the_same_repeats() {
        let mut ways: Vec<(_, Count)> = vec![("chosen", repeats)];
        #[cfg(target_arch = "x86_64")]
        {
            // SAFETY: every x86-64 has SSE2.
            ways.push(("sse2", |page| unsafe { sse2::repeats(page) }));
            if is_x86_feature_detected!("avx2") {
                // SAFETY: looked at just above.
                ways.push(("avx2", |page| unsafe { avx2::repeats(page) }));
            }
        }
        let mut random = random();
        for round in 0..200 {
            let mut page = [round as u8; PAGE];
            for at in (8..PAGE).step_by(4) {
                let draw = random();
                match (u64::from(draw) + round) % 4 {
                    0 => page[at..at + 4].fill(0),
                    1 => page.copy_within(at - 8..at - 4, at),
                    _ => page[at + usize::from(draw / 64)] = draw,
                }
            }
            for whole in [page, [0; PAGE], [1; PAGE]] {
                let expected = portable::repeats(&whole);
                for (name, repeats) in &ways {
                    assert_eq!(repeats(&whole), expected, "{name}");
                }
            }
        }
        let all = 512 - UNCOUNTED as u16;
        let same = |zeros| Repeats { lanes: [all; LANES], halves: 2 * all, zeros };
        assert_eq!(portable::repeats(&[1; PAGE]), same(0));
        assert_eq!(portable::repeats(&[0; PAGE]), same(2 * all));
    }

    #[test]
    #[should_panic(expected = "4095 bytes are no whole steps")]
    fn a_part_of_a_step_is_refused() {
        shuffle(&[0; PAGE - 1], &mut [0; PAGE - 1]);
    }

    #[test]
    #[should_panic(expected = "a shuffle keeps the length")]
    fn other_lengths_are_refused() {
        unshuffle(&[0; PAGE], &mut [0; 2 * PAGE]);
    }
}
