//! Studies as commands make them: their progress, their failure, and the hidden commands, each of
//! which does one run.

use std::io::{self, StdinLock, StdoutLock};
use std::time::Duration;

use anyhow::Context;

use super::Failure;
use super::corpus::bar;
use crate::measure::turns::{Progress, StudyError};
use uzswap_sys::escape::escaped;

/// Makes a study with a bar on standard error, if that is a terminal.
pub(super) fn with_progress<T>(
    study: impl FnOnce(Progress<'_>) -> Result<T, StudyError>,
) -> Result<T, Failure> {
    with_bar(study).map_err(|error| match error {
        StudyError::Check { .. } => Failure::Check(error.into()),
        StudyError::Machine { .. } | StudyError::Interrupted => Failure::Machine(error.into()),
    })
}

/// The same, whatever the study comes to.
pub(super) fn with_bar<T>(study: impl FnOnce(Progress<'_>) -> T) -> T {
    let bar = bar(0, "{elapsed:>4} [{bar:30}] {pos}/{len}  {msg}");
    bar.enable_steady_tick(Duration::from_millis(250));
    let result = study(&mut |done, total, next| {
        bar.set_length(total as u64);
        bar.set_position(done as u64);
        bar.set_message(escaped(next).into_owned());
    });
    bar.finish_and_clear();
    result
}

/// Does one run, as `command` asks for it.
pub(super) fn answer(
    command: &str,
    child: impl FnOnce(StdinLock<'static>, StdoutLock<'static>) -> io::Result<()>,
) -> Result<(), Failure> {
    child(io::stdin().lock(), io::stdout().lock())
        .with_context(|| format!("this hidden command reads its task from `uzswap {command}`"))
        .map_err(Failure::Machine)
}
