//! The ids of tenants, and the numbers that records have of them.

use std::fmt;

use super::parts::StoreId;

/// The most tenants of a store, the root included.
pub const TENANTS_MAX: usize = 1 << 10; // 1024

/// A tenant of one store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TenantId {
    /// The store that it is of; the root is of any.
    pub(super) store: Option<StoreId>,
    pub(super) number: TenantNumber,
    /// Of the number's lives, the one it is of: odd.
    pub(super) life: u32,
}

impl TenantId {
    /// The tenant whose pages are all those that no other one's are.
    pub const ROOT: TenantId = TenantId { store: None, number: TenantNumber::ROOT, life: 1 };

    /// Its number without its life.
    pub(super) fn as_number(self) -> TenantNumber {
        self.number
    }

    /// Its number, 0 to [`TENANTS_MAX`] - 1: no other tenant has it until it has been removed.
    pub fn number(self) -> usize {
        self.number.number()
    }
}

impl fmt::Display for TenantId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.number.fmt(f)
    }
}

/// A tenant's number, as a record has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct TenantNumber(pub(super) u16);

impl TenantNumber {
    pub(super) const ROOT: TenantNumber = TenantNumber(0);

    /// The number that a record kept.
    pub(super) const fn from_bits(number: u16) -> TenantNumber {
        TenantNumber(number)
    }

    pub(super) fn number(self) -> usize {
        usize::from(self.0)
    }
}

impl fmt::Display for TenantNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
