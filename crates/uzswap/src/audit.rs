//! The error of an audit: a walk through a structure that checks its invariants.

use std::fmt;

/// An invariant that does not hold, and where: a defect of this crate, or of a part of others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditError(String);

impl fmt::Display for AuditError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for AuditError {}

impl From<String> for AuditError {
    fn from(text: String) -> Self {
        AuditError(text)
    }
}

impl From<&str> for AuditError {
    fn from(text: &str) -> Self {
        AuditError(text.to_owned())
    }
}

impl From<AuditError> for String {
    fn from(error: AuditError) -> Self {
        error.0
    }
}
