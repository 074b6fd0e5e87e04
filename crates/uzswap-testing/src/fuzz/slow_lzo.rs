//! A decoder of LZO1X of a byte at a time, straight from the description of the format.

use uzswap::page::PAGE_SIZE;

/// The page or whatever a stream makes, a byte at a time; none where it is not valid. As
/// docs/reference/lzo-stream.md has it.
pub fn slow_twin(stream: &[u8]) -> Option<Vec<u8>> {
    let mut input = stream.iter().map(|&byte| usize::from(byte));
    let mut version = 0;
    if stream.len() >= 5 && stream[0] == 17 {
        version = input.nth(1)?;
        if version > 1 {
            return None;
        }
    }
    let mut out: Vec<u8> = Vec::new();
    let mut state = 0;
    let mut first = true;
    while out.len() <= PAGE_SIZE {
        let mut instruction = input.next()?;
        let mut literals = 0;
        if std::mem::take(&mut first) && instruction > 17 {
            literals = instruction - 17;
            state = literals.min(4);
        } else if instruction < 16 && state == 0 {
            literals = 3 + long(&mut input, instruction, 15)?;
            state = 4;
        }
        if literals == 0 {
            let (distance, length);
            if instruction >= 64 {
                length = if instruction >= 128 {
                    5 + (instruction >> 5 & 3)
                } else {
                    3 + (instruction >> 5 & 1)
                };
                distance = (input.next()? << 3) + (instruction >> 2 & 7) + 1;
            } else if instruction >= 32 {
                length = 2 + long(&mut input, instruction & 31, 31)?;
                (distance, instruction) = far(&mut input, 1)?;
            } else if instruction >= 16 {
                let mut ahead = input.clone();
                let (low, high) = (ahead.next()?, ahead.next()?);
                if version == 1 && instruction >= 24 && low >= 0xfc && high == 0xff {
                    input = ahead;
                    out.resize(out.len() + (input.next()? << 3) + (instruction & 7) + 4, 0);
                    (distance, length, instruction) = (0, 0, low);
                } else {
                    length = 2 + long(&mut input, instruction & 7, 7)?;
                    (distance, instruction) = far(&mut input, 16384 + (instruction & 8) * 2048)?;
                    if distance == 16384 {
                        return (length == 3 && input.next().is_none()).then_some(out);
                    }
                }
            } else {
                length = if state == 4 { 3 } else { 2 };
                let nearest = if state == 4 { 2049 } else { 1 };
                distance = (input.next()? << 2) + (instruction >> 2 & 3) + nearest;
            }
            for _ in 0..length {
                out.push(out[out.len().checked_sub(distance)?]);
            }
            literals = instruction & 3;
            state = literals;
        }
        for _ in 0..literals {
            out.push(input.next()? as u8);
        }
    }
    None
}

/// A length given in an instruction, or in the bytes after it.
fn long(input: &mut impl Iterator<Item = usize>, given: usize, base: usize) -> Option<usize> {
    if given > 0 {
        return Some(given);
    }
    let mut length = base;
    loop {
        match input.next()? {
            0 => length += 255,
            byte => return Some(length + byte),
        }
    }
}

/// A distance of two bytes, and the byte with the count of literals.
fn far(input: &mut impl Iterator<Item = usize>, nearest: usize) -> Option<(usize, usize)> {
    let (low, high) = (input.next()?, input.next()?);
    Some((nearest + (low >> 2) + (high << 6), low))
}
