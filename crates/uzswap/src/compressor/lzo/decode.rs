//! The decoder: every stream of either bitstream version that makes exactly one page.
//!
//! Two loops in one. The short loop takes the most frequent instructions, if both sides have space
//! to copy in wide steps that may go too far. The careful one takes any instruction, byte by byte.

use thiserror::Error;

use super::{FAR, FIRST_OF_LITERALS, FIRST_OF_VERSIONED, NEAR, SHORT};
use crate::page::{PAGE_SIZE, Page};

/// Why a stream does not make a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub(super) enum Fault {
    #[error("unknown bitstream version {0}; expected 0 or 1")]
    Version(u8),
    #[error("the stream ends before its last instruction")]
    Truncated,
    #[error("the stream decompresses to more than {PAGE_SIZE} bytes")]
    TooLong,
    #[error("the stream decompresses to {0} bytes instead of {PAGE_SIZE}")]
    TooShort(usize),
    #[error(
        "a match at byte {place} of the page starts {distance} bytes before, outside of the \
             page"
    )]
    Distance { distance: usize, place: usize },
    #[error("the last instruction does not have length 3")]
    End,
    #[error("{0} bytes follow the last instruction")]
    Trailing(usize),
}

/// Bytes of the stream that are looked at at once: an instruction and 16 literals fit.
const WINDOW: usize = 20;

/// Room in the page for any of the usual instructions, with what its steps write too much.
const ROOM: usize = 64;

/// Makes the page that `stream` stands for.
pub(super) fn decompress(stream: &[u8], page: &mut Page) -> Result<(), Fault> {
    let mut input = Input { stream, at: 0 };
    let mut output = Output { page, end: 0 };
    let runs = match stream {
        // Shorter ones are of version 0: this byte then starts the last instruction.
        [FIRST_OF_VERSIONED, version, _, _, _, ..] => {
            input.at = 2;
            match version {
                0 => false,
                1 => true,
                _ => return Err(Fault::Version(*version)),
            }
        }
        _ => false,
    };
    // Literals since the last match or run: 0 to 3, or 4 for more.
    let mut state = 0;
    if let Some(&first @ FIRST_OF_LITERALS..) = stream.get(input.at) {
        input.at += 1;
        let count = usize::from(first - FIRST_OF_LITERALS) + 1;
        output.literals(input.take(count)?)?;
        state = count.min(4);
    }
    loop {
        state = take_short(&mut input, &mut output, state, runs);
        let instruction = input.byte()?;
        // Its low bits count the literals that follow.
        let last = match instruction {
            0..FAR if state == 0 => {
                let count = input.length(instruction, 15)? + 3;
                output.literals(input.take(count)?)?;
                state = 4;
                continue;
            }
            0..FAR => {
                let back = usize::from(instruction >> 2) + usize::from(input.byte()?) * 4;
                let (nearest, length) = if state == 4 { (2049, 3) } else { (1, 2) };
                output.copy(nearest + back, length)?;
                instruction
            }
            FAR..NEAR => match input.stream[input.at..] {
                [low, 0xff, high, ..] if runs && instruction & 8 != 0 && low >= 0xfc => {
                    input.at += 3;
                    output.zeros(run_length(instruction, high))?;
                    low
                }
                _ => {
                    let length = input.length(instruction & 7, 7)? + 2;
                    let (back, low) = input.distance()?;
                    match usize::from(instruction & 8) << 11 | back {
                        0 => return finish(&input, &output, length),
                        back => output.copy(16384 + back, length)?,
                    }
                    low
                }
            },
            NEAR..SHORT => {
                let length = input.length(instruction & 31, 31)? + 2;
                let (back, low) = input.distance()?;
                output.copy(1 + back, length)?;
                low
            }
            SHORT.. => {
                output
                    .copy(short_distance(instruction, input.byte()?), short_length(instruction))?;
                instruction
            }
        };
        state = usize::from(last & 3);
        output.literals(input.take(state)?)?;
    }
}

fn short_distance(instruction: u8, high: u8) -> usize {
    1 + (usize::from(high) << 3 | usize::from(instruction >> 2 & 7))
}

fn short_length(instruction: u8) -> usize {
    1 + usize::from(instruction >> 5)
}

fn run_length(instruction: u8, high: u8) -> usize {
    4 + (usize::from(high) << 3 | usize::from(instruction & 7))
}

/// The verdict after the last instruction.
fn finish(input: &Input<'_>, output: &Output<'_>, length: usize) -> Result<(), Fault> {
    let rest = input.stream.len() - input.at;
    match () {
        () if length != 3 => Err(Fault::End),
        () if rest > 0 => Err(Fault::Trailing(rest)),
        () if output.end < PAGE_SIZE => Err(Fault::TooShort(output.end)),
        () => Ok(()),
    }
}

/// Takes instructions as long as they are of the usual kinds and far from both ends, and so has no
/// error to tell; the state after them.
#[inline(always)]
fn take_short(
    input: &mut Input<'_>,
    output: &mut Output<'_>,
    mut state: usize,
    runs: bool,
) -> usize {
    let (stream, page) = (input.stream, &mut *output.page);
    let (mut at, mut end) = (input.at, output.end);
    while end + ROOM <= PAGE_SIZE
        && let Some(window) = stream[at..].first_chunk::<WINDOW>()
    {
        let instruction = window[0];
        // Bytes of the instruction, and the one whose low bits count literals.
        let (bytes, last, length);
        match instruction {
            1..=13 if state == 0 => {
                let count = usize::from(instruction) + 3; // at most 16
                put::<16>(page, end, window[1..17].try_into().expect("16 bytes"));
                (at, end, state) = (at + 1 + count, end + count, 4);
                continue;
            }
            24..=31 if runs && window[1] >= 0xfc && window[2] == 0xff && window[3] < 7 => {
                (bytes, last, length) = (4, window[1], run_length(instruction, window[3]));
                page[end..end + 64].fill(0); // length is at most 59
            }
            33..=63 => {
                (bytes, last, length) = (3, window[1], 2 + usize::from(instruction & 31));
                let back = usize::from(u16::from_le_bytes([window[1], window[2]]) >> 2);
                let Some(from) = end.checked_sub(1 + back) else { break };
                copy_short(page, from, end, length);
            }
            SHORT.. => {
                (bytes, last, length) = (2, instruction, short_length(instruction));
                let distance = short_distance(instruction, window[1]);
                let Some(from) = end.checked_sub(distance) else { break };
                copy_short(page, from, end, length);
            }
            _ => break,
        }
        end += length;
        state = usize::from(last & 3);
        put::<4>(page, end, window[bytes..bytes + 4].try_into().expect("4 bytes"));
        end += state;
        at += bytes + state;
    }
    (input.at, output.end) = (at, end);
    state
}

/// Copies 2 to 33 bytes in steps; up to 40 bytes from `to` on are written.
#[inline(always)]
fn copy_short(page: &mut Page, from: usize, to: usize, length: usize) {
    let distance = to - from;
    let mut step = |at| put::<8>(page, to + at, get::<8>(page, from + at));
    if distance >= 8 {
        step(0);
        if length > 8 {
            step(8);
            if length > 16 {
                step(16);
                step(24);
                step(32);
            }
        }
        return;
    }
    let (factor, whole) = REPEAT[distance];
    let unit = u64::from_le_bytes(get(page, from)) & (u64::MAX >> (64 - 8 * distance));
    let pattern = unit.wrapping_mul(factor).to_le_bytes();
    for at in (0..length).step_by(whole) {
        put::<8>(page, to + at, pattern);
    }
}

/// For a distance of 1 to 7: what repeats that many bytes over a word, and how many bytes of the
/// word are a whole number of repetitions.
const REPEAT: [(u64, usize); 8] = {
    let mut table = [(0, 0); 8];
    let mut distance = 1;
    while distance < 8 {
        let mut shift = 0;
        while shift < 64 {
            table[distance].0 |= 1 << shift;
            shift += 8 * distance;
        }
        table[distance].1 = 8 / distance * distance;
        distance += 1;
    }
    table
};

#[inline(always)]
fn get<const N: usize>(page: &Page, at: usize) -> [u8; N] {
    *page[at..].first_chunk().expect("inside the page")
}

#[inline(always)]
fn put<const N: usize>(page: &mut Page, at: usize, bytes: [u8; N]) {
    *page[at..].first_chunk_mut().expect("inside the page") = bytes;
}

/// The stream, from what is not read yet.
struct Input<'a> {
    stream: &'a [u8],
    at: usize,
}

impl<'a> Input<'a> {
    fn byte(&mut self) -> Result<u8, Fault> {
        let byte = *self.stream.get(self.at).ok_or(Fault::Truncated)?;
        self.at += 1;
        Ok(byte)
    }

    /// 14 bits of distance, and the byte whose low bits count literals.
    fn distance(&mut self) -> Result<(usize, u8), Fault> {
        let (low, high) = (self.byte()?, self.byte()?);
        Ok((usize::from(high) << 6 | usize::from(low >> 2), low))
    }

    fn take(&mut self, count: usize) -> Result<&'a [u8], Fault> {
        let bytes = self.stream[self.at..].get(..count).ok_or(Fault::Truncated)?;
        self.at += count;
        Ok(bytes)
    }

    /// The length given in an instruction; where that is 0, `base` and what the next bytes add.
    fn length(&mut self, given: u8, base: usize) -> Result<usize, Fault> {
        if given > 0 {
            return Ok(usize::from(given));
        }
        let mut length = base;
        loop {
            match self.byte()? {
                0 => length += 255,
                byte => return Ok(length + usize::from(byte)),
            }
        }
    }
}

/// The page, as far as it is made.
struct Output<'a> {
    page: &'a mut Page,
    end: usize,
}

impl Output<'_> {
    fn room(&mut self, count: usize) -> Result<&mut [u8], Fault> {
        let room = self.page[self.end..].get_mut(..count).ok_or(Fault::TooLong)?;
        self.end += count;
        Ok(room)
    }

    fn literals(&mut self, bytes: &[u8]) -> Result<(), Fault> {
        self.room(bytes.len())?.copy_from_slice(bytes);
        Ok(())
    }

    fn zeros(&mut self, count: usize) -> Result<(), Fault> {
        self.room(count)?.fill(0);
        Ok(())
    }

    fn copy(&mut self, distance: usize, length: usize) -> Result<(), Fault> {
        let place = self.end;
        let from = place.checked_sub(distance).ok_or(Fault::Distance { distance, place })?;
        self.room(length)?;
        // What repeats doubles with each copy.
        let mut copied = 0;
        while copied < length {
            let count = (distance + copied).min(length - copied);
            self.page.copy_within(from..from + count, place + copied);
            copied += count;
        }
        Ok(())
    }
}
