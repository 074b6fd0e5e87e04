//! Options: a setter for each, and the error of one that is out of its range.

use thiserror::Error;

/// An option out of its range.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{option} must be {range}, got {given}")]
pub struct OptionError {
    /// The option's name.
    pub option: &'static str,
    /// Its range, in words.
    pub range: &'static str,
    /// The value given.
    pub given: u64,
}

impl OptionError {
    /// Checks an option; `is_valid` says whether `given` is in its range.
    pub(crate) fn check(
        is_valid: bool,
        option: &'static str,
        range: &'static str,
        given: usize,
    ) -> Result<(), OptionError> {
        match is_valid {
            true => Ok(()),
            false => Err(OptionError { option, range, given: given as u64 }),
        }
    }
}

/// Gives options a setter for each field, of the same name: `Options::default().shards(4)`.
macro_rules! setters {
    ($type:ident, $($field:ident: $value:ty),+ $(,)?) => {
        impl $type {
            $(
                #[doc = concat!(
                    "The same options with another [`", stringify!($field), "`](field@",
                    stringify!($type), "::", stringify!($field), ")."
                )]
                #[must_use]
                pub fn $field(mut self, $field: $value) -> $type {
                    self.$field = $field;
                    self
                }
            )+
        }
    };
}

pub(crate) use setters;
