//! Traces: `uzswap.read_trace` and `uzswap.TraceRecorder`.

use std::fs::File;
use std::io::BufReader;
use std::path::PathBuf;

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use uzswap::page::PageKey;
use uzswap::trace::{
    Content, Ending, Event, Operation, Recorder, TraceAbout, TraceError, TraceReader,
};

use crate::buffer::Buffer;
use crate::error::{exceptions, sentence};

fn trace_error(error: &TraceError) -> PyErr {
    exceptions::TraceError::new_err(sentence(error))
}

/// The columns of a trace: a row an event.
#[derive(Default)]
struct Columns {
    origin: String,
    recorded_at: String,
    is_complete: bool,
    kinds: Vec<u8>,
    ns: Vec<u8>,
    keys: Vec<u8>,
    /// The number of the page, or the word.
    contents: Vec<u8>,
    pages: Vec<u8>,
}

impl Columns {
    /// Reads a trace to its end, or to where it was cut off.
    fn read(path: &PathBuf, with_pages: bool) -> Result<Columns, TraceError> {
        let file =
            File::open(path).map_err(|error| TraceError::Read { path: path.clone(), error })?;
        let mut reader = TraceReader::new(path, BufReader::new(file))?;
        let about = reader.about().clone();
        let mut columns =
            Columns { origin: about.origin, recorded_at: about.recorded_at, ..Columns::default() };
        while let Some(block) = reader.next_block()? {
            block.events.iter().for_each(|event| columns.push(event));
            if with_pages {
                columns.pages.extend_from_slice(block.contents.as_flattened());
            }
        }
        columns.is_complete = reader.ending() == Some(Ending::Whole);
        Ok(columns)
    }

    /// Adds an event; its kind is that of the file.
    fn push(&mut self, event: &Event) {
        let (kind, content) = match event.operation {
            Operation::Store(Content::Page(number)) => (0, number),
            Operation::Store(Content::Word(word)) => (1, word),
            Operation::Load => (2, 0),
            Operation::Free => (3, 0),
        };
        self.kinds.push(kind);
        self.ns.extend_from_slice(&event.ns.to_ne_bytes());
        self.keys.extend_from_slice(&event.key.0.to_ne_bytes());
        self.contents.extend_from_slice(&content.to_ne_bytes());
    }
}

/// Origin, time and completeness of a trace; its events and pages as columns of bytes.
type ColumnsOfPython<'py> = ((String, String, bool), [Bound<'py, PyBytes>; 5]);

/// Reads a trace for `uzswap.traces`.
#[pyfunction]
pub(crate) fn read_trace(
    py: Python<'_>,
    path: PathBuf,
    with_pages: bool,
) -> PyResult<ColumnsOfPython<'_>> {
    let columns = py.detach(|| Columns::read(&path, with_pages));
    let Columns { origin, recorded_at, is_complete, kinds, ns, keys, contents, pages } =
        columns.map_err(|error| trace_error(&error))?;
    let columns = [kinds, ns, keys, contents, pages].map(|column| PyBytes::new(py, &column));
    Ok(((origin, recorded_at, is_complete), columns))
}

/// Records stores, loads and frees of pages to a file, for `uzswap compare --trace`. Threads share
/// it. The file holds the pages; only its owner can read it.
///
/// >>> import os, tempfile, uzswap
/// >>> path = os.path.join(tempfile.mkdtemp(), "job.trace")
/// >>> with uzswap.TraceRecorder(path, "an example") as recorder:
/// ...     recorder.store(1, bytes(range(256)) * 16)
/// ...     recorder.load(1)
/// ...     recorder.free(1)
/// >>> list(uzswap.read_trace(path).kinds)
/// [0, 2, 3]
#[pyclass(module = "uzswap", frozen)]
pub(crate) struct TraceRecorder {
    recorder: Recorder,
}

#[pymethods]
impl TraceRecorder {
    #[new]
    #[pyo3(signature = (path, origin = ""))]
    fn create(py: Python<'_>, path: PathBuf, origin: &str) -> PyResult<TraceRecorder> {
        let recorded_at = py.import("uzswap.page_sets")?.call_method0("rfc3339_now")?.extract()?;
        let about = TraceAbout { origin: origin.to_owned(), recorded_at };
        // A failed write is in the report of the end.
        let recorder = py.detach(|| Recorder::create(&path, &about, |_| ()));
        Ok(TraceRecorder { recorder: recorder.map_err(|error| trace_error(&error))? })
    }

    /// Records that a page of 4096 bytes was stored under a key.
    fn store(&self, py: Python<'_>, key: u64, page: &Bound<'_, PyAny>) -> PyResult<()> {
        let page = Buffer::page(page)?;
        py.detach(|| self.recorder.store(PageKey(key), &page));
        Ok(())
    }

    /// Records that the page of a key was loaded.
    fn load(&self, py: Python<'_>, key: u64) {
        py.detach(|| self.recorder.load(PageKey(key)));
    }

    /// Records that the page of a key was forgotten.
    fn free(&self, py: Python<'_>, key: u64) {
        py.detach(|| self.recorder.free(PageKey(key)));
    }

    /// Ends the trace. Returns the events in it.
    ///
    /// Raises TraceError where the file does not have all of them: a full disk, or a second call.
    fn finish(&self, py: Python<'_>) -> PyResult<u64> {
        let report = py.detach(|| self.recorder.finish());
        match report.error {
            None => Ok(report.totals.events()),
            Some(error) => Err(exceptions::TraceError::new_err(error)),
        }
    }

    fn __enter__(slf: Bound<'_, TraceRecorder>) -> Bound<'_, TraceRecorder> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyAny>) -> PyResult<()> {
        self.finish(py).map(drop)
    }
}
