//! Enums whose values are chosen by name on a command line.

use thiserror::Error;

/// A name that is none of the known ones; the message lists those.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("unknown {what} '{name}'; one of: {known}")]
pub struct UnknownName {
    /// Kind of the name: "zpool", "compressor" ...
    pub what: &'static str,
    /// The name given.
    pub name: String,
    /// The names there are.
    pub known: String,
}

/// Gives an enum of plain variants its names: `ALL`, `name`, `Display` and `FromStr`.
#[doc(hidden)]
#[macro_export]
macro_rules! named {
    ($type:ident, $what:literal, $($variant:ident => $name:literal),+ $(,)?) => {
        impl $type {
            /// Every choice, in the order of documentation.
            pub const ALL: [$type; [$($name),+].len()] = [$($type::$variant),+];

            /// The name it is chosen by.
            pub const fn name(self) -> &'static str {
                match self {
                    $($type::$variant => $name),+
                }
            }
        }

        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.name())
            }
        }

        impl std::str::FromStr for $type {
            type Err = $crate::named_enum::UnknownName;

            fn from_str(name: &str) -> Result<Self, Self::Err> {
                $type::ALL.into_iter().find(|choice| choice.name() == name).ok_or_else(|| {
                    $crate::named_enum::UnknownName {
                        what: $what,
                        name: name.to_owned(),
                        known: $type::ALL.map($type::name).join(", "),
                    }
                })
            }
        }
    };
}

pub use named;
