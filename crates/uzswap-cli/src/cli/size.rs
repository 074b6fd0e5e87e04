//! Sizes on the command line: `512M`, `1.5G`, `64KiB`, `4096`.

use anyhow::anyhow;
use procfs::{Current, Meminfo};

use super::Failure;
use crate::human_size::human_size;
use crate::measure::limited_pool::MaxPool;
use uzswap::budget::{UnknownMemory, percent_of_memory};
use uzswap::compressor::UNIT_PAGES_MAX;
use uzswap::page::PAGE_SIZE;

/// Parses a size in bytes. Units are powers of 1024, with or without `iB` or `B`: `K`, `KiB` and
/// `KB` are all 1024. At least 1 byte.
///
/// # Errors
///
/// A sentence that says what is expected.
pub(super) fn parse_size(text: &str) -> Result<usize, String> {
    let expected = || "expected a size with K, M, G or T, such as 512M".to_owned();
    let at = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(at);
    let unit = unit.trim_start().to_ascii_uppercase();
    let letter = unit.strip_suffix("IB").or(unit.strip_suffix('B')).unwrap_or(&unit);
    let shift = match letter {
        "" if unit == "IB" => return Err(expected()),
        "" => 0,
        "K" => 10,
        "M" => 20,
        "G" => 30,
        "T" => 40,
        _ => return Err(expected()),
    };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if number.is_empty() || number == "." || fraction.contains('.') {
        return Err(expected());
    }
    let too_big = || format!("size {text} exceeds the address space of this machine");
    let whole: u64 = if whole.is_empty() { 0 } else { whole.parse().map_err(|_| too_big())? };
    let part =
        if fraction.is_empty() { 0.0 } else { format!("0.{fraction}").parse().unwrap_or(0.0) };
    // A fraction of a unit is far below 2^53: exact enough for bytes.
    let part = (part * (1_u64 << shift) as f64) as u64;
    let bytes = whole
        .checked_mul(1 << shift)
        .and_then(|bytes| bytes.checked_add(part))
        .and_then(|bytes| usize::try_from(bytes).ok())
        .filter(|&bytes| isize::try_from(bytes).is_ok())
        .ok_or_else(too_big)?;
    if bytes == 0 {
        return Err("size must be at least 1 byte".to_owned());
    }
    Ok(bytes)
}

/// Parses the size of a unit, 4K to 64K; its pages.
///
/// # Errors
///
/// A sentence that says what is expected.
pub(super) fn parse_unit(text: &str) -> Result<usize, String> {
    let pages = parse_size(text)? / PAGE_SIZE;
    let is_unit = pages.is_power_of_two() && pages <= UNIT_PAGES_MAX;
    let expected = || "expected 4K, 8K, 16K, 32K or 64K".to_owned();
    (is_unit && parse_size(text)? == pages * PAGE_SIZE).then_some(pages).ok_or_else(expected)
}

/// Parses the limit of a pool: `none`, a size (`512M`), or a percentage of the machine's memory
/// (`20%`), as the kernel's `max_pool_percent`. At least one page.
///
/// # Errors
///
/// A sentence that says what is expected.
pub(super) fn parse_max_pool(text: &str) -> Result<MaxPool, String> {
    parse_max_pool_of(text, percent_of_memory)
}

fn parse_max_pool_of(
    text: &str,
    percent_of_memory: impl Fn(u8) -> Result<u64, UnknownMemory>,
) -> Result<MaxPool, String> {
    if text == "none" {
        return Ok(MaxPool::None);
    }
    let bytes = match text.strip_suffix('%') {
        Some(number) => {
            let share = percent_of_memory(parse_percent(number)?);
            share.map_err(|error| format!("cannot convert '{text}' to bytes: {error}"))?
        }
        None => match parse_size(text) {
            Ok(bytes) => bytes as u64,
            Err(_) if is_zero(text) => 0,
            Err(_) => {
                return Err("expected a size such as 512M, a share of memory such as 20%, or none"
                    .to_owned());
            }
        },
    };
    if bytes < PAGE_SIZE as u64 {
        return Err("pool limit must be at least 4096 bytes".to_owned());
    }
    Ok(MaxPool::Bytes(bytes / PAGE_SIZE as u64 * PAGE_SIZE as u64))
}

/// Whether it is a 0 of whatever unit, which is no size.
fn is_zero(text: &str) -> bool {
    let number = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    number.parse() == Ok(0.0)
}

/// Parses a whole percentage, 0 to 100, with or without its sign.
///
/// # Errors
///
/// A sentence that says what is expected.
pub(super) fn parse_percent(text: &str) -> Result<u8, String> {
    let number = text.strip_suffix('%').unwrap_or(text);
    let is_number = !number.is_empty() && number.bytes().all(|digit| digit.is_ascii_digit());
    let percent = number.parse().ok().filter(|&percent: &u8| is_number && percent <= 100);
    percent.ok_or_else(|| "percentage must be a whole number from 0 to 100".to_owned())
}

/// Refuses a heap that this machine has no memory for, before it takes memory from others.
///
/// # Errors
///
/// [`Failure::Machine`], with what is available. A kernel that does not tell is not asked twice.
pub(super) fn check_available(bytes: usize) -> Result<(), Failure> {
    let Ok(memory) = Meminfo::current() else { return Ok(()) };
    let Some(available) = memory.mem_available.map(|bytes| bytes + memory.swap_free) else {
        return Ok(());
    };
    if bytes as u64 <= available {
        return Ok(());
    }
    Err(Failure::Machine(anyhow!(
        "{} does not fit in the {} available; use a smaller --size",
        human_size(bytes as u64),
        human_size(available)
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units_of_1024() {
        for (text, bytes) in [
            ("1", 1),
            ("4096", 4096),
            ("4k", 4096),
            ("64KiB", 64 << 10),
            ("512M", 512 << 20),
            ("1.5G", 3 << 29),
            ("1.5 GiB", 3 << 29),
            (".5K", 512),
            ("2T", 2 << 40),
            ("100B", 100),
            ("128MB", 128 << 20),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn what_is_no_size_is_refused() {
        for text in ["", "M", "-1", "1X", "1.2.3M", ".", "0", "0M", "1e9", "9999999T", "1iB", "1MM"]
        {
            assert!(parse_size(text).is_err(), "{text}");
        }
    }

    #[test]
    fn limits_of_pools_are_sizes_or_shares() {
        let of = |text| parse_max_pool_of(text, |percent| Ok((1 << 30) * u64::from(percent) / 100));
        let bytes = |bytes| Ok(MaxPool::Bytes(bytes));
        for (text, expected) in [
            ("none", Ok(MaxPool::None)),
            ("512M", bytes(512 << 20)),
            ("4096", bytes(4096)),
            ("10000", bytes(8192)),
            ("20%", bytes((1 << 30) / 5 / 4096 * 4096)),
            ("100%", bytes(1 << 30)),
        ] {
            assert_eq!(of(text), expected, "{text}");
        }
        for text in ["0", "0%", "0.0", "1", "4095", "0M"] {
            assert!(of(text).is_err_and(|error| error.contains("at least 4096 bytes")), "{text}");
        }
        for text in ["", "%", "101%", "-1%", "+5%", "1.5%", "half", "1e3", "20 %"] {
            assert!(of(text).is_err(), "{text}");
        }
        let unknown = |_| Err(std::io::Error::other("none").into());
        assert!(parse_max_pool_of("20%", unknown).is_err_and(|error| error.contains("20%")));
    }

    #[test]
    fn percentages_are_whole() {
        assert_eq!(["0", "90", "90%", "100"].map(parse_percent), [0, 90, 90, 100].map(Ok));
        assert!(
            ["", "%", "101", "-1", "9.5", "1%%"].into_iter().all(|t| parse_percent(t).is_err())
        );
    }
}
