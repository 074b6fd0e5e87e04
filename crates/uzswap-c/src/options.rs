//! Options by name: those of the store, of the file behind it and of the shrinker.

use std::fmt::Display;
use std::sync::{Mutex, PoisonError};

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use uzswap::NoEffect;
use uzswap::backing::FileBackingOptions;
use uzswap::zswap::{RecordOptions, ShrinkerOptions, WrittenAs, ZswapOptions};

use crate::boundary::{Owned, Shared, Text};
use crate::call::{Failure, call};
use crate::status::Status;

/// Options of a store. uz_options_new() makes them; any number of stores can be made of them.
#[derive(Debug)]
pub struct Options(Mutex<Choices>);

/// The chosen values.
#[derive(Debug, Clone)]
pub(crate) struct Choices {
    /// Its records are those below.
    store: ZswapOptions,
    has_records: bool,
    records: RecordOptions,
    /// There is a file behind the store if this has a path.
    pub(crate) file: FileBackingOptions,
    pub(crate) has_shrinker: bool,
    pub(crate) shrinker: ShrinkerOptions,
}

impl Default for Choices {
    fn default() -> Choices {
        Choices {
            store: ZswapOptions::default(),
            has_records: true,
            records: RecordOptions::default(),
            file: FileBackingOptions::new("", None),
            has_shrinker: false,
            shrinker: ShrinkerOptions::default(),
        }
    }
}

impl Options {
    /// The chosen values, of which none would be ignored; the defaults for NULL.
    pub(crate) fn of(options: &Shared<Options>) -> Result<Choices, Failure> {
        let options = options.optional("options")?;
        let choices =
            |options: &Options| options.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let choices = options.map(choices).unwrap_or_default();
        choices.check_effects().map_err(|error| Failure::new(Status::UzValue, error))?;
        Ok(choices)
    }
}

impl Choices {
    fn set(&mut self, name: &str, value: &str) -> Result<(), Failure> {
        match name.split_once('.') {
            Some(("file", rest)) => self.file = changed(&self.file, name, rest, value)?,
            Some(("records", rest)) => {
                self.records = changed(&self.records, name, rest, value)?;
            }
            Some(("shrinker", rest)) => {
                self.shrinker = changed(&self.shrinker, name, rest, value)?;
            }
            None if name == "records" => {
                self.has_records = value != "null" && is_true(name, value)?;
            }
            None if name == "shrinker" => self.has_shrinker = is_true(name, value)?,
            _ => self.store = changed(&self.store, name, name, value)?,
        }
        Ok(())
    }

    /// Options of the store.
    pub(crate) fn store(&self) -> ZswapOptions {
        self.store.records(self.has_records.then_some(self.records))
    }

    /// Whether there is a file behind the store.
    pub(crate) fn has_file(&self) -> bool {
        !self.file.path.as_os_str().is_empty()
    }

    /// Checks that no option would be ignored.
    fn check_effects(&self) -> Result<(), NoEffect> {
        let Choices { records, file, shrinker, .. } = self;
        let (of_records, of_shrinker) = (RecordOptions::default(), ShrinkerOptions::default());
        NoEffect::check(
            self.has_records,
            "records true",
            &[
                ("records.lru", records.lru == of_records.lru),
                ("records.checksum", records.checksum == of_records.checksum),
            ],
        )?;
        let of_file = FileBackingOptions::new("", None);
        NoEffect::check(
            self.has_file(),
            "file.path",
            &[
                ("file.bytes", file.bytes.is_none()),
                ("file.preallocate", file.preallocate == of_file.preallocate),
                ("file.punch", file.punch == of_file.punch),
                ("file.direct", file.direct == of_file.direct),
                ("file.submission", file.submission == of_file.submission),
                ("file.in_flight", file.in_flight == of_file.in_flight),
                ("file.keep", file.keep == of_file.keep),
                ("file.overwrite", file.overwrite == of_file.overwrite),
                ("shrinker.dynamic", shrinker.dynamic == of_shrinker.dynamic),
                ("written_as", self.store.written_as == WrittenAs::default()),
            ],
        )?;
        let percent = shrinker.compact_percent;
        NoEffect::check(
            self.has_shrinker,
            "shrinker true",
            &[
                ("shrinker.dynamic", shrinker.dynamic == of_shrinker.dynamic),
                ("shrinker.compact_percent", percent == of_shrinker.compact_percent),
                ("shrinker.interval", shrinker.interval == of_shrinker.interval),
            ],
        )?;
        self.store.check_effects()
    }
}

/// The same options with another value at `path`: a name, or names with dots between them.
fn changed<T: Serialize + DeserializeOwned>(
    options: &T,
    name: &str,
    path: &str,
    value: &str,
) -> Result<T, Failure> {
    let document = serde_json::to_value(options).map_err(|error| refused(name, value, &error))?;
    let before = at(&mut document.clone(), path).ok_or_else(|| unknown(name))?.clone();
    let with = |value: Value| {
        let mut document = document.clone();
        let place = at(&mut document, path).expect("it was there before");
        *place = value;
        T::deserialize(document)
    };
    // A name, or else a number, true, false or null.
    let as_name = match with(Value::String(value.to_owned())) {
        Ok(changed) => return Ok(changed),
        Err(error) => error,
    };
    let literal = serde_json::from_str(value).ok().and_then(|literal| with(literal).ok());
    literal.ok_or_else(|| {
        let or_null = if with(Value::Null).is_ok() { ", or null" } else { "" };
        refused(name, value, &format_args!("{}{or_null}", allowed(name, &before, &as_name)))
    })
}

/// The place in a document.
fn at<'a>(document: &'a mut Value, path: &str) -> Option<&'a mut Value> {
    path.split('.').try_fold(document, |at, name| at.get_mut(name))
}

/// Options that are numbers, and the numbers that they take: uz_zswap_new() checks the ranges.
const NUMBERS: [(&str, &str); 11] = [
    ("accept_threshold_percent", "0 to 100"),
    ("file.bytes", "bytes, 8192 to 2^44"),
    ("file.in_flight", "1 to 4096"),
    ("max_pool_bytes", "bytes, 0 to 2^64 - 1"),
    ("object_header_bytes", "0 to 64"),
    ("shards", "a power of two, at most 65536"),
    ("shrinker.compact_percent", "0 to 100"),
    ("shrinker.interval.nanos", "0 to 999999999"),
    ("shrinker.interval.secs", "seconds, 0 to 2^64 - 1"),
    ("unit_pages", "1, 2, 4, 8 or 16"),
    ("zsmalloc.chain_size", "4 to 16"),
];

/// The values that an option takes, in words: by its value before, or by the error of a name.
fn allowed(name: &str, before: &Value, error: &serde_json::Error) -> String {
    let number = NUMBERS.iter().find(|(number, _)| *number == name);
    match (number, before) {
        (Some((_, range)), _) => format!("it takes {range}"),
        (_, Value::Bool(_)) => "it takes true or false".to_owned(),
        (_, Value::Object(parts)) => {
            let parts: Vec<_> = parts.keys().map(|part| format!("'{name}.{part}'")).collect();
            format!("set {}", parts.join(", "))
        }
        _ => error.to_string(), // has the names
    }
}

fn is_true(name: &str, value: &str) -> Result<bool, Failure> {
    value.parse().map_err(|_| refused(name, value, &"it takes true or false"))
}

fn unknown(name: &str) -> Failure {
    Failure::new(Status::UzName, format!("unknown option '{name}'"))
}

fn refused(name: &str, value: &str, allowed: &dyn Display) -> Failure {
    let message = format!("option '{name}' cannot be '{value}': {allowed}");
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
///   records                  false: no file, tenants and checksums, and 52 bytes a page less
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
/// Errors: UZ_NAME, UZ_VALUE, UZ_ARGUMENT. uz_zswap_new() reports a number out of its range, and
/// an option that it would ignore, such as `file.bytes` without `file.path`.
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
    use crate::last_error;
    use std::path::Path;
    use uzswap::zswap::{BuildError, Lru};

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
        assert_eq!(choices.store().records.map(|records| records.lru), Some(Lru::Frequency));
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
    /// The message of a failure.
    fn told(work: impl FnOnce() -> Result<(), Failure>) -> String {
        assert_eq!(call(|| work().map(|()| Status::UzOk)), Status::UzValue);
        last_error::message()
    }

    /// The names of all options that have no parts, and of those that have.
    fn names(prefix: &str, document: &Value, all: &mut Vec<String>) {
        for (name, value) in document.as_object().into_iter().flatten() {
            let name = format!("{prefix}{name}");
            names(&format!("{name}."), value, all);
            all.push(name);
        }
    }

    #[test]
    fn refusals_say_what_is_allowed() {
        let mut choices = Choices::default();
        let mut all = vec!["shrinker".to_owned()];
        for (prefix, document) in [
            ("", serde_json::to_value(choices.store)),
            ("records.", serde_json::to_value(choices.records)),
            ("file.", serde_json::to_value(&choices.file)),
            ("shrinker.", serde_json::to_value(choices.shrinker)),
        ] {
            names(prefix, &document.unwrap(), &mut all);
        }
        assert!(all.len() > 40, "{all:?}");
        for name in all.iter().filter(|name| *name != "file.path") {
            for value in ["-1", "1.5", "nothing", ""] {
                let told = told(|| choices.set(name, value));
                let start = format!("option '{name}' cannot be '{value}': ");
                let allowed = told.strip_prefix(&start).unwrap_or_else(|| panic!("{told}"));
                let starts = ["it takes ", "set '", "unknown "];
                assert!(starts.iter().any(|it| allowed.starts_with(it)), "{told}");
                let rust = ["invalid", "expected", "digit", "usize", "struct", " u8", " u64"];
                assert!(!rust.iter().any(|word| allowed.contains(word)), "{told}");
            }
        }
        for (name, value, allowed) in [
            ("shards", "many", "it takes a power of two, at most 65536"),
            ("file.bytes", "4K", "it takes bytes, 8192 to 2^44, or null"),
            ("latencies", "1", "it takes true or false"),
            (
                "file.submission",
                "x",
                "unknown submission 'x'; one of: uring, threads, sequential, or null",
            ),
            ("same_filled", "off", "set 'same_filled.check', 'same_filled.zero_only'"),
        ] {
            let told = told(|| choices.set(name, value));
            assert_eq!(told, format!("option '{name}' cannot be '{value}': {allowed}"));
        }
    }

    #[test]
    fn ranges_are_those_of_the_store() {
        let of_store = |name: &str| !name.starts_with(['f', 's']) || name == "shards";
        let mut checked = 0;
        for (name, words) in NUMBERS.iter().filter(|(name, _)| of_store(name)) {
            let mut choices = Choices::default();
            assert!(choices.set(name, "255").is_ok(), "{name}");
            if let Err(BuildError::Option(error)) = choices.store().build() {
                assert!(words.starts_with(error.range), "{name}: {error}");
                checked += 1;
            }
        }
        assert_eq!(checked, 5);
    }

    #[test]
    fn an_option_without_effect_is_refused() {
        for (given, told_of) in [
            (&["file.bytes=8192"][..], "file.bytes has no effect without file.path"),
            (&["file.path=x", "file.keep=true", "file.path="], "file.keep"),
            (&["written_as=objects"], "written_as has no effect without file.path"),
            (&["records.lru=plain", "records=null"], "records.lru has no effect without records"),
            (&["records=false", "records.checksum=false"], "records.checksum"),
            (&["shrinker.compact_percent=7"], "shrinker.compact_percent has no effect without shr"),
            (
                &["shrinker=true", "shrinker.dynamic=true"],
                "shrinker.dynamic has no effect without f",
            ),
            (
                &["zpool=zbud", "zsmalloc.chain_size=4"],
                "chain_size has no effect without zpool zsm",
            ),
            (&["same_filled.check=off", "same_filled.zero_only=true"], "same_filled_zero_only"),
            (&["when_full=bypass"], "when_full has no effect without max_pool_bytes"),
        ] {
            let mut choices = Choices::default();
            for one in given {
                let (name, value) = one.split_once('=').unwrap();
                assert!(choices.set(name, value).is_ok(), "{one}");
            }
            let error = choices.check_effects().unwrap_err().to_string();
            assert!(error.starts_with(told_of), "{error}");
        }
        let mut choices = Choices::default();
        assert!(choices.set("records", "false").is_ok() && choices.store().records.is_none());
        assert!(choices.set("records", "true").is_ok() && choices.store().records.is_some());
    }
}
