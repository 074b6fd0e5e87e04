//! Options by name: those of the store, of the file behind it and of the shrinker.

use std::sync::{Mutex, PoisonError};

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use uzswap::backing::FileBackingOptions;
use uzswap::zswap::{ShrinkerOptions, ZswapOptions};

use crate::boundary::{Owned, Shared, Text};
use crate::call::{Failure, call};
use crate::status::Status;

/// Options of a store. uz_options_new() makes them; any number of stores can be made of them.
#[derive(Debug)]
pub struct Options(Mutex<Choices>);

/// The chosen values.
#[derive(Debug, Clone)]
pub(crate) struct Choices {
    pub(crate) store: ZswapOptions,
    /// There is a file behind the store if this has a path.
    pub(crate) file: FileBackingOptions,
    pub(crate) has_shrinker: bool,
    pub(crate) shrinker: ShrinkerOptions,
}

impl Default for Choices {
    fn default() -> Choices {
        Choices {
            store: ZswapOptions::default(),
            file: FileBackingOptions::new("", None),
            has_shrinker: false,
            shrinker: ShrinkerOptions::default(),
        }
    }
}

impl Options {
    /// The chosen values; the defaults for NULL.
    pub(crate) fn of(options: &Shared<Options>) -> Result<Choices, Failure> {
        let options = options.optional("options")?;
        let choices =
            |options: &Options| options.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Ok(options.map(choices).unwrap_or_default())
    }
}

impl Choices {
    fn set(&mut self, name: &str, value: &str) -> Result<(), Failure> {
        match name.split_once('.') {
            Some(("file", rest)) => self.file = changed(&self.file, name, rest, value)?,
            Some(("shrinker", rest)) => {
                self.shrinker = changed(&self.shrinker, name, rest, value)?;
            }
            None if name == "shrinker" => {
                self.has_shrinker = value.parse().map_err(|error| refused(name, value, error))?;
            }
            _ => self.store = changed(&self.store, name, name, value)?,
        }
        Ok(())
    }
}

/// The same options with another value at `path`: a name, or names with dots between them.
fn changed<T: Serialize + DeserializeOwned>(
    options: &T,
    name: &str,
    path: &str,
    value: &str,
) -> Result<T, Failure> {
    let refuse = |error| refused(name, value, error);
    let mut document = serde_json::to_value(options).map_err(refuse)?;
    let mut with = |value: Value| {
        let place = path.split('.').try_fold(&mut document, |at, name| at.get_mut(name));
        *place.ok_or_else(|| unknown(name))? = value;
        Ok::<_, Failure>(T::deserialize(&document))
    };
    // A name, or else a number, true, false or null.
    let as_name = with(Value::String(value.to_owned()))?;
    match serde_json::from_str(value) {
        Ok(literal) if as_name.is_err() => with(literal)?.map_err(refuse),
        _ => as_name.map_err(refuse),
    }
}

fn unknown(name: &str) -> Failure {
    Failure::new(Status::UzName, format!("unknown option '{name}'"))
}

fn refused(name: &str, value: &str, error: impl std::error::Error) -> Failure {
    let message = format!("option '{name}' cannot be '{value}': {error}");
    Failure::new(Status::UzValue, message)
}

/// New options, with the defaults. NULL after a defect of the library.
#[unsafe(no_mangle)]
pub extern "C" fn uz_options_new() -> Owned<Options> {
    let mut options = Owned::null();
    call(|| {
        options = Owned::new(Options(Mutex::new(Choices::default())));
        Ok(Status::UzOk)
    });
    options
}

/// Frees options; NULL is allowed. Stores that were made of them do not change.
#[unsafe(no_mangle)]
pub extern "C" fn uz_options_free(options: Owned<Options>) {
    call(|| options.take("options").map(|_| Status::UzOk));
}

/// Sets an option by its name. The value is a text: a name, a number in decimal, "true", "false",
/// or "null" for none. Bytes are plain numbers.
///
/// Options of the store have the names of the fields of `ZswapOptions`; some of them:
///
///   compressor               lz4, lzo, lzo-rle, zstd, zstd:LEVEL, deflate, deflate:LEVEL, none
///   zpool                    zsmalloc, zbud, z3fold, zblock, packed
///   max_pool_bytes           the limit, on the pool and all metadata; no limit by default
///   incompressible           reject, store-as-is
///   when_full                reclaim (a store writes cold pages to the file), bypass
///   records                  null: no file, tenants and checksums, and 52 bytes a page less
///   records.lru              second-chance, frequency, plain, protected
///   unit_pages               1, 2, 4, 8 or 16: pages that uz_store_all() compresses together
///   shards                   a power of two up to 65536
///
/// Options of the file behind the store, where cold pages are written:
///
///   file.path                the file or block device; it is scratch, and "" is none
///   file.bytes               the size of a new file
///   file.keep                true: the file stays there when the store ends
///   file.submission          uring, threads, sequential, or null: by the kind of file
///
/// The shrinker is a thread of the store that writes cold pages ahead of need:
///
///   shrinker                 true, false
///   shrinker.dynamic         true: it also writes long before the limit, by the pressure
///   shrinker.compact_percent 0 to 100: it compacts a pool of which more is unused
///
/// Errors: UZ_NAME, UZ_VALUE, UZ_ARGUMENT. uz_zswap_new() reports a number out of its range.
#[unsafe(no_mangle)]
pub extern "C" fn uz_options_set(options: Shared<Options>, name: Text, value: Text) -> Status {
    call(|| {
        let (name, value) = (name.utf8("name")?, value.utf8("value")?);
        let mut choices = options.get("options")?.0.lock().unwrap_or_else(PoisonError::into_inner);
        choices.set(name, value).map(|()| Status::UzOk)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;
    use uzswap::zswap::Lru;

    #[test]
    fn options_are_set_by_name() {
        let mut choices = Choices::default();
        for (name, value) in [
            ("compressor", "zstd:5"),
            ("dense", "zstd:19"),
            ("max_pool_bytes", "1048576"),
            ("records.lru", "frequency"),
            ("latencies", "false"),
            ("file.path", "17"),
            ("file.bytes", "8192"),
            ("shrinker", "true"),
            ("shrinker.compact_percent", "50"),
        ] {
            assert!(choices.set(name, value).is_ok(), "{name}");
        }
        assert_eq!(choices.store.compressor.to_string(), "zstd:5");
        assert_eq!(choices.store.max_pool_bytes, 1 << 20);
        assert_eq!(choices.store.records.map(|records| records.lru), Some(Lru::Frequency));
        assert!(!choices.store.latencies);
        assert_eq!((&*choices.file.path, choices.file.bytes), (Path::new("17"), Some(8192)));
        assert!(choices.has_shrinker && choices.shrinker.compact_percent == 50);
        assert!(choices.set("dense", "null").is_ok() && choices.store.dense.is_none());
    }

    #[test]
    fn what_is_refused_changes_nothing() {
        let mut choices = Choices::default();
        let before = format!("{choices:?}");
        for (name, value, expected) in [
            ("", "1", Status::UzName),
            ("compresor", "lz4", Status::UzName),
            ("records.", "1", Status::UzName),
            ("records.lru.x", "1", Status::UzName),
            ("file", "x", Status::UzName),
            ("file.paths", "x", Status::UzName),
            ("compressor", "lz5", Status::UzValue),
            ("compressor", "", Status::UzValue),
            ("shards", "-1", Status::UzValue),
            ("shards", "many", Status::UzValue),
            ("max_pool_bytes", "18446744073709551616", Status::UzValue),
            ("records", "{\"lru\": 1}", Status::UzValue),
            ("shrinker", "1", Status::UzValue),
        ] {
            let outcome = call(|| choices.set(name, value).map(|()| Status::UzOk));
            assert_eq!(outcome, expected, "{name}={value}");
            assert_eq!(format!("{choices:?}"), before);
        }
    }
}
