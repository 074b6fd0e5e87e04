//! Arrays: numbers, pictures, buffers.

use super::collections::exact;
use super::heap::Heap;
use super::rng::Rng;

/// Arrays of numbers, 32 KiB to 1 MiB each.
pub(super) fn numbers(heap: &mut Heap, rng: &mut Rng, bytes: usize) {
    let end = heap.bytes() + bytes;
    while heap.bytes() < end {
        let count = (end - heap.bytes()).min(rng.between(1 << 15, 1 << 20)).div_ceil(8);
        let (name, array) = match rng.below(5) {
            0 => ("series", le_bytes(&walk(rng, count), f64::to_le_bytes)),
            1 => ("sorted keys", le_bytes(&sorted(rng, count), i64::to_le_bytes)),
            2 => ("counters", le_bytes(&counters(rng, count * 2), u32::to_le_bytes)),
            3 => ("sparse matrix", le_bytes(&sparse(rng, count), f64::to_le_bytes)),
            _ => ("measurements", le_bytes(&measurements(rng, count), f64::to_le_bytes)),
        };
        hold(heap, name, &array);
    }
}

fn hold(heap: &mut Heap, name: &'static str, bytes: &[u8]) {
    exact(heap, bytes);
    heap.parts.push(name);
}

fn le_bytes<T: Copy, const N: usize>(numbers: &[T], bytes: fn(T) -> [u8; N]) -> Vec<u8> {
    numbers.iter().flat_map(|number| bytes(*number)).collect()
}

/// A price or a load: full precision, neighbours alike.
fn walk(rng: &mut Rng, count: usize) -> Vec<f64> {
    let mut value = 100.0;
    (0..count)
        .map(|_| {
            value += rng.normal() * 0.01;
            value
        })
        .collect()
}

/// Sensor readings: one or two decimals, so few values.
fn measurements(rng: &mut Rng, count: usize) -> Vec<f64> {
    let mut value = 20.0;
    (0..count)
        .map(|_| {
            value += rng.normal() * 0.05;
            (value * 10.0_f64).round() / 10.0
        })
        .collect()
}

/// Times or ids: 64 bits, growing by small steps.
fn sorted(rng: &mut Rng, count: usize) -> Vec<i64> {
    let mut key = 1_769_846_400_000;
    (0..count)
        .map(|_| {
            key += rng.below(5000) as i64;
            key
        })
        .collect()
}

/// Hit counts: most of them small, many zero.
fn counters(rng: &mut Rng, count: usize) -> Vec<u32> {
    (0..count).map(|_| if rng.chance(60) { 0 } else { (1 << rng.below(9)) as u32 }).collect()
}

/// Rows of a matrix with one value in sixteen: columns, then values.
fn sparse(rng: &mut Rng, count: usize) -> Vec<f64> {
    (0..count).map(|_| if rng.below(16) == 0 { rng.normal() } else { 0.0 }).collect()
}

/// Side of a picture tile in pixels.
const TILE_PIXELS: usize = 1 << 7; // 128: 64 KiB of RGBA

/// RGBA tiles and 8-bit masks.
pub(super) fn images(heap: &mut Heap, rng: &mut Rng, bytes: usize) {
    let tile_bytes = TILE_PIXELS * TILE_PIXELS * 4;
    for _ in 0..bytes / tile_bytes {
        match rng.below(10) {
            0..5 => hold(heap, "picture tile", &photo(rng)),
            5..8 => hold(heap, "drawing tile", &drawing(rng)),
            _ => {
                for _ in 0..4 {
                    exact(heap, &mask(rng));
                }
                heap.parts.push("masks");
            }
        }
    }
}

/// A gradient with the noise of a sensor.
fn photo(rng: &mut Rng) -> Vec<u8> {
    let base = [rng.below(128), rng.below(128), rng.below(128)];
    let (across, down) = (rng.below(100), rng.below(100));
    // Noise in the low bits, in patches: a sky has none, a lawn has much.
    let noise = *rng.pick(&[1, 2, 4, 16]);
    let mut pixels = Vec::with_capacity(TILE_PIXELS * TILE_PIXELS * 4);
    for y in 0..TILE_PIXELS {
        for x in 0..TILE_PIXELS {
            let shade = (x * across + y * down) / TILE_PIXELS;
            let noise = if (x / 32 + y / 32) % 3 == 0 { 1 } else { noise };
            pixels.extend(base.map(|channel| (channel + shade / 2 + rng.below(noise)) as u8));
            pixels.push(255);
        }
    }
    pixels
}

/// Rectangles of one colour, as a window's content.
fn drawing(rng: &mut Rng) -> Vec<u8> {
    let mut pixels = vec![[255_u8, 255, 255, 255]; TILE_PIXELS * TILE_PIXELS];
    for _ in 0..rng.between(10, 60) {
        let colour = [rng.below(256) as u8, rng.below(256) as u8, rng.below(256) as u8, 255];
        let (x, y) = (rng.below(TILE_PIXELS - 8), rng.below(TILE_PIXELS - 8));
        let (right, bottom) = (rng.between(x + 1, TILE_PIXELS), rng.between(y + 1, y + 8));
        for row in pixels.chunks_mut(TILE_PIXELS).take(bottom).skip(y) {
            row[x..right].fill(colour);
        }
    }
    pixels.into_flattened()
}

/// A disc: runs of 0 and 255.
fn mask(rng: &mut Rng) -> Vec<u8> {
    let (x0, y0) = (rng.below(TILE_PIXELS) as i64, rng.below(TILE_PIXELS) as i64);
    let radius = rng.between(20, 80) as i64;
    let side = TILE_PIXELS as i64;
    let inside = |x: i64, y: i64| (x - x0).pow(2) + (y - y0).pow(2) < radius * radius;
    (0..side * side).map(|at| if inside(at % side, at / side) { 255 } else { 0 }).collect()
}

/// Buffers that were cleared, with some use at their start: the rest of each is zero pages.
pub(super) fn zeroed_buffers(heap: &mut Heap, rng: &mut Rng, bytes: usize) {
    let mut left = bytes;
    while left > 0 {
        let length = left.min(rng.between(1 << 15, 1 << 17));
        left -= length;
        let mut buffer = vec![if rng.chance(10) { 0xff } else { 0 }; length];
        let used = rng.below(256).min(length);
        buffer[..used].fill_with(|| rng.next() as u8);
        hold(heap, "cleared buffer", &buffer);
    }
}

/// Keys, digests, compressed responses: bytes without any order.
pub(super) fn random_blobs(heap: &mut Heap, rng: &mut Rng, bytes: usize) {
    let mut left = bytes;
    while left > 0 {
        let length = left.min(rng.between(1 << 13, 1 << 16));
        left -= length;
        let blob: Vec<u64> = (0..length.div_ceil(8)).map(|_| rng.next()).collect();
        hold(heap, "compressed blob", &le_bytes(&blob, u64::to_le_bytes));
    }
}
