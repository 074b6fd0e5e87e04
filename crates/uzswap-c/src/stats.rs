//! Statistics: one by its name, or all of them as a text.

use serde_json::Value;
use uzswap::zswap::Zswap;

use crate::boundary::{Output, Place, Shared, Text};
use crate::call::{Failure, call};
use crate::status::Status;
use crate::store::Store;
use crate::values::Values;

/// A number that a store says of itself, by its name.
fn number(zswap: &Zswap, name: &str) -> Option<u64> {
    let budget = zswap.budget();
    match name {
        "budget.used_bytes" => return Some(budget.used_bytes()),
        "budget.peak_bytes" => return Some(budget.peak_bytes()),
        "budget.max_bytes" => return Some(budget.max_bytes()),
        _ => {}
    }
    number_in(&serde_json::to_value(zswap.stats()).ok()?, name)
}

/// A number in a document, by names and numbers with dots between them.
fn number_in(document: &Value, name: &str) -> Option<u64> {
    let value = name.split('.').try_fold(document, |at, name| match at {
        Value::Array(values) => values.get(name.parse::<usize>().ok()?),
        at => at.get(name),
    });
    value?.as_u64()
}

/// Writes a number to `*value`, by its name. Each number of uz_stats_json() has one, such as
/// "counters.stored_pages", "memory.pool_bytes" or "tenants.0.current_bytes". Three others are
/// "budget.used_bytes", the bytes that the limit is on, their peak "budget.peak_bytes" and the
/// limit "budget.max_bytes". Takes some microseconds. Exact only while no other thread changes the
/// store.
///
/// Errors: UZ_NAME, UZ_ARGUMENT.
#[unsafe(no_mangle)]
pub extern "C" fn uz_stat(zswap: Shared<Store>, name: Text, mut value: Place<u64>) -> Status {
    call(|| {
        let (zswap, name) = (zswap.get("zswap")?.zswap(), name.utf8("name")?);
        let place = value.get("value")?;
        place.write(number(zswap, name).ok_or_else(|| unknown(name))?);
        Ok(Status::UzOk)
    })
}

fn unknown(name: &str) -> Failure {
    Failure::new(Status::UzName, format!("unknown statistic '{name}'"))
}

/// Writes a number of the values to `*value`, by its name: "values", their count; "value_bytes",
/// the sum of their lengths; "table_bytes", which count against the limit.
///
/// Errors: UZ_NAME, UZ_ARGUMENT.
#[unsafe(no_mangle)]
pub extern "C" fn uz_values_stat(
    values: Shared<Values>,
    name: Text,
    mut value: Place<u64>,
) -> Status {
    call(|| {
        let (values, name) = (values.get("values")?.values(), name.utf8("name")?);
        let place = value.get("value")?;
        let number = serde_json::to_value(values.stats()).ok();
        let number = number.and_then(|document| number_in(&document, name));
        place.write(number.ok_or_else(|| unknown(name))?);
        Ok(Status::UzOk)
    })
}

/// Writes a text and a NUL to a buffer, and the text's length to `*length`, unless that is NULL.
fn give(
    text: Result<String, Failure>,
    mut buffer: Output,
    size: usize,
    mut length: Place<usize>,
) -> Result<Status, Failure> {
    let (text, place) = (text?, length.optional("length")?);
    place.map(|place| place.write(text.len()));
    buffer.write_text(size, &text, "buffer").map(|()| Status::UzOk)
}

/// Writes all statistics as JSON and a NUL to the `size` bytes at `buffer`. Writes the length
/// without the NUL to `*length`, unless that is NULL. A call with size 0, and any buffer, writes
/// the length too and returns UZ_BUFFER. The text may be longer at the next call.
///
/// Errors: UZ_BUFFER (nothing was written to the buffer), UZ_ARGUMENT.
#[unsafe(no_mangle)]
pub extern "C" fn uz_stats_json(
    zswap: Shared<Store>,
    buffer: Output,
    size: usize,
    length: Place<usize>,
) -> Status {
    call(|| {
        let stats = zswap.get("zswap")?.zswap().stats();
        let text =
            serde_json::to_string(&stats).map_err(|error| Failure::new(Status::UzOther, error));
        give(text, buffer, size, length)
    })
}

/// As uz_stats_json(), in the text format of Prometheus.
#[unsafe(no_mangle)]
pub extern "C" fn uz_stats_prometheus(
    zswap: Shared<Store>,
    buffer: Output,
    size: usize,
    length: Place<usize>,
) -> Status {
    call(|| {
        let text = zswap.get("zswap")?.zswap().stats().prometheus();
        give(Ok(text), buffer, size, length)
    })
}
