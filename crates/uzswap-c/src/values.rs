//! Values: keys of 64 bits to 1 byte to 1 MiB, over the pages of a store.

use std::sync::Arc;

use uzswap::values::ValueError;

use crate::boundary::{Input, NewHandle, Output, Owned, Place, Shared};
use crate::call::{Failure, call, found};
use crate::options::Options;
use crate::status::Status;
use crate::store::{Store, empty};
use crate::tenants;

/// Values over a store of their own. uz_values_new() makes them; threads share them.
#[derive(Debug)]
pub struct Values {
    // Dropped first: its shrinker uses the store.
    _store: Store,
    values: uzswap::values::Values,
}

impl Values {
    pub(crate) fn values(&self) -> &uzswap::values::Values {
        &self.values
    }
}

/// Makes a store for values and writes its handle to `*values`, which is NULL after a failure. The
/// options are as for uz_zswap_new(). Two of them suit values: `unit_pages` of 4 with zstd saves
/// memory, and `incompressible` of store-as-is keeps what does not compress.
///
/// Errors: those of uz_zswap_new().
#[unsafe(no_mangle)]
pub extern "C" fn uz_values_new(options: Shared<Options>, values: NewHandle<Values>) -> Status {
    call(|| {
        values.fill("values", || {
            let choices = Options::of(&options)?;
            let values = uzswap::values::Values::new(empty(&choices)?)
                .map_err(|error| Failure::new(Status::UzOther, error))?;
            Ok(Values { _store: Store::new(Arc::clone(values.zswap()), &choices)?, values })
        })
    })
}

/// Ends values and their store; NULL is allowed. As uz_zswap_free(). The store stays until its own
/// handles, of uz_values_zswap(), are freed too.
#[unsafe(no_mangle)]
pub extern "C" fn uz_values_free(values: Owned<Values>) {
    call(|| values.take("values").map(|_| Status::UzOk));
}

/// Writes a handle of the store below to `*zswap`, or NULL after a failure: for uz_stat(), tenants,
/// uz_compact() and uz_shrink(). The caller gives it to uz_zswap_free(). Its pages are those of the
/// values: a caller that stores or removes pages damages values. A snapshot has no table of values.
#[unsafe(no_mangle)]
pub extern "C" fn uz_values_zswap(values: Shared<Values>, zswap: NewHandle<Store>) -> Status {
    call(|| {
        zswap.fill("zswap", || Ok(Store::of(Arc::clone(values.get("values")?.values().zswap()))))
    })
}

/// Keeps a copy of the `length` bytes at `value`, 1 to UZ_VALUE_BYTES_MAX, under `key`, which may
/// be any number. The key's earlier value is gone, also if the new one is refused. Each value has
/// pages of its own, so one of a few bytes takes the time of a page.
///
/// Errors: those of uz_store(). UZ_ARGUMENT also for a length that is out of its range.
#[unsafe(no_mangle)]
pub extern "C" fn uz_values_store(
    values: Shared<Values>,
    key: u64,
    value: Input,
    length: usize,
) -> Status {
    call(|| {
        let values = values.get("values")?.values();
        values.store(key, value.bytes(length, "value")?)?;
        Ok(Status::UzOk)
    })
}

/// As uz_values_store(), for a tenant of the store below. Its pages are compressed one by one.
///
/// Errors: those of uz_values_store(), and UZ_TENANT.
#[unsafe(no_mangle)]
pub extern "C" fn uz_values_store_for(
    values: Shared<Values>,
    tenant: u64,
    key: u64,
    value: Input,
    length: usize,
) -> Status {
    call(|| {
        let values = values.get("values")?.values();
        let id = tenants::id(values.zswap(), tenant)?;
        values.store_for(id, key, value.bytes(length, "value")?)?;
        Ok(Status::UzOk)
    })
}

/// Copies the value of `key` to the `size` bytes at `buffer`, and keeps it. Writes its length to
/// `*length`, unless that is NULL.
///
/// Returns UZ_NOT_FOUND if the key has no value; the buffer is as it was, unless another thread
/// removed the key's value meanwhile. UZ_BUFFER is the code for a value that is longer than `size`;
/// `*length` is its length then, and nothing was copied. After another error the content of the
/// buffer is not defined.
///
/// Errors: UZ_BUFFER, UZ_CORRUPT, UZ_IO, UZ_ARGUMENT.
#[unsafe(no_mangle)]
pub extern "C" fn uz_values_load(
    values: Shared<Values>,
    key: u64,
    buffer: Output,
    size: usize,
    length: Place<usize>,
) -> Status {
    call(|| {
        let values = values.get("values")?.values();
        give(|buffer| values.load_into(key, buffer), buffer, size, length)
    })
}

/// As uz_values_load(), and drops the value. Of several threads that ask for one value, one gets
/// it. After an error the value is still there.
#[unsafe(no_mangle)]
pub extern "C" fn uz_values_load_exclusive(
    values: Shared<Values>,
    key: u64,
    buffer: Output,
    size: usize,
    length: Place<usize>,
) -> Status {
    call(|| {
        let values = values.get("values")?.values();
        give(|buffer| values.load_exclusive_into(key, buffer), buffer, size, length)
    })
}

/// Writes the length of a value to `*length`, or returns UZ_NOT_FOUND. Another thread may change
/// the value before the next call. This is no use of the value.
#[unsafe(no_mangle)]
pub extern "C" fn uz_values_length(
    values: Shared<Values>,
    key: u64,
    mut length: Place<usize>,
) -> Status {
    call(|| {
        let (values, place) = (values.get("values")?.values(), length.get("length")?);
        let found_length = values.value_len(key);
        found_length.map(|length| place.write(length));
        Ok(found(found_length.is_some()))
    })
}

/// Forgets the value of `key`, unread. Returns UZ_NOT_FOUND if there was none.
#[unsafe(no_mangle)]
pub extern "C" fn uz_values_invalidate(values: Shared<Values>, key: u64) -> Status {
    call(|| Ok(found(values.get("values")?.values().invalidate(key))))
}

/// Has a value loaded to a buffer; C learns its length also if the buffer is too small.
fn give(
    load: impl FnOnce(&mut [u8]) -> Result<Option<usize>, ValueError>,
    mut buffer: Output,
    size: usize,
    mut length: Place<usize>,
) -> Result<Status, Failure> {
    let (buffer, place) = (buffer.bytes(size, "buffer")?, length.optional("length")?);
    let loaded = load(buffer);
    let length = match &loaded {
        Ok(length) => *length,
        Err(ValueError::NoRoom { len, .. }) => Some(*len),
        Err(_) => None,
    };
    place.zip(length).map(|(place, length)| place.write(length));
    Ok(found(loaded?.is_some()))
}
