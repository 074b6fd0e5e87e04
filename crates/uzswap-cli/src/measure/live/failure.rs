//! Failures of a run, in words and by kind.

use serde::{Deserialize, Serialize};

/// The cause of a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FailureKind {
    /// The programs needed more than the limit.
    DidNotFit,
    /// The command, or a command around it, failed.
    Command,
    /// It took longer than `--timeout`.
    TimedOut,
    /// `--check` printed something else than after the run without a limit, or pages of the probe
    /// came back from the kernel's swap with other contents.
    Wrong,
    /// The machine does not allow it.
    Machine,
    /// The study was interrupted.
    Interrupted,
}

/// Why a run did not end well.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// Of this kind.
    pub kind: FailureKind,
    /// In words.
    pub message: String,
    /// The end of the command's output; empty where there is none.
    pub output: String,
}

impl Failure {
    /// Without output.
    pub(super) fn new(kind: FailureKind, message: impl Into<String>) -> Failure {
        Failure { kind, message: message.into(), output: String::new() }
    }

    pub(super) fn command(message: String) -> Failure {
        Failure::new(FailureKind::Command, message)
    }

    pub(super) fn machine(message: String) -> Failure {
        Failure::new(FailureKind::Machine, message)
    }

    pub(super) fn interrupted() -> Failure {
        Failure::new(FailureKind::Interrupted, "interrupted")
    }

    /// The same, of the run that has no limit.
    pub(super) fn without_a_limit(self) -> Failure {
        match self.kind {
            FailureKind::Command | FailureKind::TimedOut => {
                let message = format!("without a limit the command {}", self.message);
                Failure { message, ..self }
            }
            _ => self,
        }
    }

    pub(super) fn with_output(self, output: String) -> Failure {
        Failure { output, ..self }
    }
}
