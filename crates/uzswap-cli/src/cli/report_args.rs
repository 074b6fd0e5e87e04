//! `--report`: the result as a page of HTML with charts, beside the text.

use std::path::PathBuf;

use anyhow::Context;
use serde::Serialize;

use super::Failure;
use super::json::{ReportFile, refuse_program};
use crate::html::{page, shell_line};

/// The name of the flag.
const FLAG: &str = "--report";

/// The flag of commands whose results have a page.
#[derive(Debug, clap::Args)]
pub(super) struct ReportArgs {
    /// Write a page with charts to FILE as well, as HTML
    ///
    /// The file loads nothing from elsewhere, and holds the JSON document too.
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
}

/// The place for the page, if one is asked for.
#[derive(Debug)]
pub(super) struct ReportOutput(Option<ReportFile>);

impl ReportArgs {
    /// Whether a page is asked for.
    pub(super) fn is_given(&self) -> bool {
        self.report.is_some()
    }

    /// Opens the file. A command does so before its work, so that a wrong path is an early error.
    pub(super) fn open(&self) -> Result<ReportOutput, Failure> {
        let Some(path) = &self.report else { return Ok(ReportOutput(None)) };
        refuse_program(FLAG, path)?;
        Ok(ReportOutput(Some(ReportFile::open(FLAG, path)?)))
    }
}

impl ReportOutput {
    /// Writes the page of a document.
    pub(super) fn write(&mut self, document: &impl Serialize) -> Result<(), Failure> {
        let Some(file) = &mut self.0 else { return Ok(()) };
        let words: Vec<_> = std::env::args_os().collect();
        let page = serde_json::to_value(document)
            .and_then(|document| page(&document, &shell_line(&words)))
            .context("cannot make the page of --report")
            .map_err(Failure::Check)?;
        file.write(&page)
    }
}
