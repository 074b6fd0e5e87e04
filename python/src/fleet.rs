//! Replays of machines, for `uzswap.fleet`: of one machine anywhere, and their sum in one place.
//!
//! ```text
//!  files of a machine --> Machine.replay --> bytes --> sum_machines --> rows of the fleet,
//!                         any process                  one process      bytes of the table
//! ```
//!
//! The bytes are a JSON document for each setting: the outcome of the library, whole.

use std::path::PathBuf;
use std::sync::Once;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::PyBytes;
use uzswap::named_enum::UnknownName;
use uzswap_fleet::folder::{self, FolderError, SampleFiles};
use uzswap_fleet::table::{IntervalRow, PageRow, RunRow, Table, hush_decoding};
use uzswap_fleet::{Fleet, Lengths, Machine as MachineOfRust, Outcome, Parameters, Tried, replay};

use crate::error::{exceptions, sentence};

/// The parts of `intervals`, and the files `pages` and `runs` of a machine.
type Files = (Vec<PathBuf>, Option<PathBuf>, Option<PathBuf>);

/// Percentile, warm-up in seconds, objective in millionths, compressor.
type Setting = (u8, u64, u64, String);

fn fleet_error(error: &FolderError) -> PyErr {
    exceptions::FleetError::new_err(sentence(error))
}

/// Why settings are refused.
const OTHER_COMPRESSOR: &str = "settings must have the same compressor: replay each on its own";

fn lengths(compressor: &str) -> PyResult<Lengths> {
    compressor
        .parse()
        .map_err(|error: UnknownName| exceptions::OptionError::new_err(error.to_string()))
}

/// Settings of one compressor, one at least.
fn parameters(settings: Vec<Setting>) -> PyResult<Vec<Parameters>> {
    let wrong = exceptions::OptionError::new_err::<String>;
    let one = |(threshold_percentile, warm_up_seconds, slo_ppm, compressor): Setting| {
        if threshold_percentile > 100 {
            let told = format!("threshold_percentile must be 0 to 100, got {threshold_percentile}");
            return Err(wrong(told));
        }
        let lengths = lengths(&compressor)?;
        Ok(Parameters { threshold_percentile, warm_up_seconds, slo_ppm, lengths })
    };
    let all: Vec<Parameters> = settings.into_iter().map(one).collect::<PyResult<_>>()?;
    match all.first() {
        None => Err(wrong("there is no setting to replay".to_owned())),
        Some(first) if all.iter().any(|it| it.lengths != first.lengths) => {
            Err(wrong(OTHER_COMPRESSOR.to_owned()))
        }
        Some(_) => Ok(all),
    }
}

/// The names of the columns of a table.
#[pyfunction]
pub(crate) fn table_columns(table: &str) -> PyResult<Vec<&'static str>> {
    let columns = match table {
        PageRow::NAME => PageRow::COLUMNS,
        IntervalRow::NAME => IntervalRow::COLUMNS,
        RunRow::NAME => RunRow::COLUMNS,
        _ => {
            let told = format!("unknown table '{table}'; one of: pages, intervals, runs");
            return Err(exceptions::OptionError::new_err(told));
        }
    };
    Ok(columns.iter().map(|(name, _)| *name).collect())
}

/// The files of each sample in a folder, in the order of their names.
#[pyfunction]
pub(crate) fn fleet_samples(py: Python<'_>, folder: PathBuf) -> PyResult<Vec<Files>> {
    let samples = py.detach(|| folder::samples(&folder)).map_err(|error| fleet_error(&error))?;
    Ok(samples.into_iter().map(|it| (it.intervals, it.pages, it.run)).collect())
}

/// A machine in memory, with the lengths of one compressor.
#[pyclass(frozen)]
pub(crate) struct Machine {
    machine: MachineOfRust,
    lengths: Lengths,
}

#[pymethods]
impl Machine {
    /// Reads its files, without the GIL.
    #[new]
    fn read(py: Python<'_>, files: Files, compressor: &str) -> PyResult<Machine> {
        static HUSHED: Once = Once::new();
        HUSHED.call_once(hush_decoding);
        let lengths = lengths(compressor)?;
        let (intervals, pages, run) = files;
        let files = SampleFiles { intervals, pages, run };
        let machine = py.detach(|| MachineOfRust::read(&files, lengths));
        Ok(Machine { machine: machine.map_err(|error| fleet_error(&error))?, lengths })
    }

    /// Memory that it takes, in bytes.
    #[getter]
    fn memory_bytes(&self) -> usize {
        self.machine.memory_bytes()
    }

    /// Replays it under each setting, without the GIL. Returns bytes for `sum_machines`.
    fn replay<'py>(
        &self,
        py: Python<'py>,
        settings: Vec<Setting>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let settings = parameters(settings)?;
        if settings[0].lengths != self.lengths {
            return Err(exceptions::OptionError::new_err(OTHER_COMPRESSOR));
        }
        let mut bytes = Vec::new();
        py.detach(|| {
            for setting in &settings {
                let outcome = replay(&self.machine, setting);
                serde_json::to_writer(&mut bytes, &outcome).expect("numbers, to memory");
            }
        });
        Ok(PyBytes::new(py, &bytes))
    }
}

/// Sums what `Machine.replay` returned: an iterator of each machine's place in the order of files,
/// and bytes. Returns the rows of the fleet as JSON, the best setting first, and the bytes of the
/// file `replays`.
#[pyfunction]
pub(crate) fn sum_machines<'py>(
    py: Python<'py>,
    settings: Vec<Setting>,
    machines: &Bound<'py, PyAny>,
) -> PyResult<(String, Bound<'py, PyBytes>)> {
    let settings = parameters(settings)?;
    let mut fleet = Fleet::new(&settings);
    for machine in machines.try_iter()? {
        let (place, bytes): (usize, PyBackedBytes) = machine?.extract()?;
        let mut outcomes = serde_json::Deserializer::from_slice(&bytes).into_iter::<Outcome>();
        for number in 0..settings.len() {
            let outcome = outcomes.next().transpose();
            let outcome = outcome.map_err(|error| PyValueError::new_err(error.to_string()))?;
            let outcome = outcome.ok_or_else(|| {
                PyValueError::new_err(format!("machine {place} has no outcome {number}"))
            })?;
            fleet.add(place, number, &outcome);
        }
    }
    let (json, table) = py.detach(|| {
        let tried = fleet.tuned().settings;
        let rows: Vec<_> = tried.iter().map(|it| &it.fleet).collect();
        (serde_json::to_string(&rows).expect("numbers and names"), Tried::encode(&tried))
    });
    Ok((json, PyBytes::new(py, &table)))
}
