//! `--json`: a document on standard output, or in a file beside the text.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Error, anyhow};
use serde::Serialize;

use super::{Failure, print};
use crate::report::{Envelope, Schema};
use uzswap::files::{Contents, open_output};
use uzswap_sys::escape::escaped;

/// A file of figures. A command opens it before its work, so that a wrong path is an early error.
#[derive(Debug)]
pub struct ReportFile {
    flag: &'static str,
    path: PathBuf,
    file: File,
}

impl ReportFile {
    /// Opens it for the option that names it.
    pub(super) fn open(flag: &'static str, path: &Path) -> Result<ReportFile, Failure> {
        match open_output(path, Contents::Report) {
            Ok(file) => Ok(ReportFile { flag, path: path.to_owned(), file }),
            Err(error) => Err(Failure::of(!is_usage(&error), cannot(flag, path, &error))),
        }
    }

    /// Writes to its end.
    pub(super) fn write(&mut self, text: &str) -> Result<(), Failure> {
        let written = self.file.write_all(text.as_bytes());
        written.map_err(|error| Failure::Check(cannot(self.flag, &self.path, &error)))
    }
}

fn cannot(flag: &str, path: &Path, error: &io::Error) -> Error {
    anyhow!("cannot write {flag} {}: {error}", path.display())
}

/// Whether nobody could make a file at the path: the mistake is the user's.
pub(super) fn is_usage(error: &io::Error) -> bool {
    use io::ErrorKind::{AlreadyExists, InvalidInput, IsADirectory, NotADirectory, NotFound};
    [AlreadyExists, InvalidInput, IsADirectory, NotADirectory, NotFound].contains(&error.kind())
}

/// Refuses a program as the file of a flag: someone forgot the `--` before a command.
pub(super) fn refuse_program(flag: &str, path: &Path) -> Result<(), Failure> {
    match path.metadata() {
        Ok(found) if found.is_file() && found.mode() & 0o111 != 0 => Err(Failure::Usage(anyhow!(
            "cannot write {flag} {}: it is a program; put -- before a command to run",
            path.display()
        ))),
        _ => Ok(()),
    }
}

/// The place for the document of `--json`.
#[derive(Debug)]
pub enum JsonOutput {
    /// None: the text is enough.
    None,
    /// Standard output, in place of the text.
    Standard,
    /// In a file; the text goes to standard output.
    File(ReportFile),
}

impl JsonOutput {
    /// Takes the value of the option (absent, without a file, with one), and opens the file.
    ///
    /// # Errors
    ///
    /// The file cannot be written, or is a program.
    pub fn open(option: Option<&Option<PathBuf>>) -> Result<JsonOutput, Failure> {
        match option {
            None => Ok(JsonOutput::None),
            Some(None) => Ok(JsonOutput::Standard),
            Some(Some(path)) => {
                refuse_program("--json", path)?;
                ReportFile::open("--json", path).map(JsonOutput::File)
            }
        }
    }

    /// Whether the document takes the place of the text.
    pub(super) fn is_standard(&self) -> bool {
        matches!(self, JsonOutput::Standard)
    }

    /// Prints a result as text, or in an envelope as JSON.
    ///
    /// # Errors
    ///
    /// Standard output or the file does not take it.
    pub fn print(
        &mut self,
        schema: Schema,
        result: &impl Serialize,
        text: impl FnOnce() -> String,
    ) -> Result<(), Failure> {
        self.print_by(print, schema, result, text)
    }

    /// The same through `print`, which takes the place of standard output.
    pub(super) fn print_by(
        &mut self,
        print: fn(&str) -> Result<(), Failure>,
        schema: Schema,
        result: &impl Serialize,
        text: impl FnOnce() -> String,
    ) -> Result<(), Failure> {
        self.deliver(print, || json(&Envelope::new(schema).around(result)), text)
    }

    /// Prints a result that holds its envelope.
    pub(super) fn print_document(
        &mut self,
        document: &impl Serialize,
        text: impl FnOnce() -> String,
    ) -> Result<(), Failure> {
        self.deliver(print, || json(document), text)
    }

    fn deliver(
        &mut self,
        print: fn(&str) -> Result<(), Failure>,
        document: impl FnOnce() -> String,
        text: impl FnOnce() -> String,
    ) -> Result<(), Failure> {
        match self {
            JsonOutput::None => print(&text()),
            JsonOutput::Standard => print(&document()),
            JsonOutput::File(file) => {
                // An error of the file does not keep the text back.
                let written = file.write(&document());
                print(&text()).and(written)
            }
        }
    }
}

/// A document on one line.
pub(super) fn json_line(document: &impl Serialize) -> String {
    plain(serde_json::to_string(document))
}

/// A document for people, too.
pub(super) fn json(document: &impl Serialize) -> String {
    plain(serde_json::to_string_pretty(document))
}

/// JSON without raw control characters: a terminal may show it.
fn plain(document: serde_json::Result<String>) -> String {
    escaped(&document.expect("strings and numbers")).into_owned() + "\n"
}
