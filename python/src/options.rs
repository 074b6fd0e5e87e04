//! The keyword arguments of a store.

use std::fmt::Display;
use std::path::PathBuf;
use std::str::FromStr;

use pyo3::exceptions::{PyOverflowError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use uzswap::NoEffect;
use uzswap::backing::{Backing, FileBacking, FileBackingOptions};
use uzswap::zswap::{RecordOptions, WrittenAs, Zswap, ZswapOptions};

use crate::error::{exceptions, sentence};

/// Options of the store and of its backing.
pub(crate) struct StoreOptions {
    pub(crate) zswap: ZswapOptions,
    backing: Option<FileBackingOptions>,
}

impl StoreOptions {
    /// Reads keyword arguments; those that are not there have their default.
    ///
    /// # Errors
    ///
    /// An unknown option (TypeError); a value of another type or an unknown name; an option that
    /// would be ignored without another one (OptionError).
    pub(crate) fn read(arguments: Option<&Bound<'_, PyDict>>) -> PyResult<StoreOptions> {
        let mut options = StoreOptions { zswap: ZswapOptions::default(), backing: None };
        let mut records = RecordOptions::default();
        let mut has_records = true;
        let mut backing: Option<PathBuf> = None;
        let (mut bytes, mut keep) = (None, false);
        for (name, value) in arguments.into_iter().flatten() {
            let name: String = name.extract()?;
            let mut set = || {
                match name.as_str() {
                    "records" => has_records = value.extract()?,
                    "lru" => records.lru = named(&value)?,
                    "checksum" => records.checksum = value.extract()?,
                    "backing" => backing = value.extract()?,
                    "backing_bytes" => bytes = value.extract()?,
                    "keep_backing" => keep = value.extract()?,
                    _ => return options.set(&name, &value),
                }
                Ok(true)
            };
            if !set().map_err(|error| of_option(value.py(), &name, error))? {
                return Err(PyTypeError::new_err(format!(
                    "a store has no option '{name}'; help(uzswap.Store) lists them"
                )));
            }
        }
        let of_records = RecordOptions::default();
        NoEffect::check(
            has_records,
            "records=True",
            &[
                ("lru", records.lru == of_records.lru),
                ("checksum", records.checksum == of_records.checksum),
            ],
        )
        .and_then(|()| {
            let is_default = options.zswap.written_as == WrittenAs::default();
            NoEffect::check(
                backing.is_some(),
                "backing='PATH'",
                &[
                    ("backing_bytes", bytes.is_none()),
                    ("keep_backing", !keep),
                    ("written_as", is_default),
                ],
            )
        })
        .and_then(|()| options.zswap.check_effects())
        .map_err(|error| exceptions::OptionError::new_err(error.to_string()))?;
        options.zswap.records = has_records.then_some(records);
        options.backing = backing.map(|path| FileBackingOptions::new(path, bytes).keep(keep));
        Ok(options)
    }

    /// Sets an option of the store itself; whether there is one of this name.
    fn set(&mut self, name: &str, value: &Bound<'_, PyAny>) -> PyResult<bool> {
        let options = &mut self.zswap;
        match name {
            "zpool" => options.zpool = named(value)?,
            "chain_size" => options.zsmalloc.chain_size = value.extract()?,
            "chain_rule" => options.zsmalloc.chain_rule = named(value)?,
            "handle_header" => options.zsmalloc.handle_header = named(value)?,
            "mapping" => options.zsmalloc.mapping = named(value)?,
            "compressor" => options.compressor = named(value)?,
            "dense" if value.is_none() => options.dense = None,
            "dense" => options.dense = Some(named(value)?),
            "unit_pages" => options.unit_pages = value.extract()?,
            "filter" => options.filter = named(value)?,
            "index" => options.index = named(value)?,
            "shards" => options.shards = value.extract()?,
            "incompressible" => options.incompressible = named(value)?,
            "object_header_bytes" => options.object_header_bytes = value.extract()?,
            "max_pool_bytes" => {
                options.max_pool_bytes = value.extract::<Option<u64>>()?.unwrap_or(u64::MAX);
            }
            "counted" => options.counted = named(value)?,
            "accept_threshold_percent" => options.accept_threshold_percent = value.extract()?,
            "when_full" => options.when_full = named(value)?,
            "host_pages" => options.host_pages = named(value)?,
            "same_filled" => options.same_filled.check = named(value)?,
            "same_filled_zero_only" => options.same_filled.zero_only = value.extract()?,
            "written_as" => options.written_as = named(value)?,
            "latencies" => options.latencies = value.extract()?,
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// A new store.
    ///
    /// # Errors
    ///
    /// `BackingError`; `OptionError` where an option is out of its range.
    pub(crate) fn build(&self) -> PyResult<Zswap> {
        let zswap = match self.open_backing()? {
            None => Zswap::new(self.zswap),
            Some(backing) => Zswap::with_backing(self.zswap, backing),
        };
        zswap.map_err(|error| exceptions::OptionError::new_err(sentence(&error)))
    }

    /// Opens the backing, if the options name one.
    ///
    /// # Errors
    ///
    /// `BackingError`.
    pub(crate) fn open_backing(&self) -> PyResult<Option<Box<dyn Backing>>> {
        let Some(options) = &self.backing else { return Ok(None) };
        let backing = FileBacking::open(options)
            .map_err(|error| exceptions::BackingError::new_err(sentence(&error)))?;
        Ok(Some(Box::new(backing)))
    }
}

/// The error of a value that Python could not convert, with the option's name.
fn of_option(py: Python<'_>, name: &str, error: PyErr) -> PyErr {
    let told = || format!("option '{name}': {}", error.value(py));
    if error.is_instance_of::<PyTypeError>(py) {
        return PyTypeError::new_err(told());
    }
    if error.is_instance_of::<PyOverflowError>(py) {
        return PyOverflowError::new_err(told());
    }
    error
}

/// A choice by its name.
fn named<T: FromStr<Err: Display>>(name: &Bound<'_, PyAny>) -> PyResult<T> {
    let name: String = name.extract()?;
    name.parse().map_err(|error: T::Err| exceptions::OptionError::new_err(error.to_string()))
}
