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

/// An option that was set, and would be ignored without another one.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{option} has no effect without {needs}; set that too, or leave {option} at its default")]
pub struct NoEffect {
    /// The option's name.
    pub option: &'static str,
    /// The other option, with its value.
    pub needs: &'static str,
}

impl NoEffect {
    /// Checks options that need another one: each is a name, and whether the option is at its
    /// default.
    ///
    /// # Errors
    ///
    /// The first option that is not, unless `is_there`: the other one has that value.
    pub fn check(
        is_there: bool,
        needs: &'static str,
        options: &[(&'static str, bool)],
    ) -> Result<(), NoEffect> {
        match options.iter().find(|(_, is_default)| !is_there && !is_default) {
            Some(&(option, _)) => Err(NoEffect { option, needs }),
            None => Ok(()),
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
