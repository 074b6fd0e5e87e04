//! The ids of tenants, and the numbers that records have of them.

use std::fmt;

use super::parts::StoreId;

/// The most tenants of a store, the root included.
pub const TENANTS_MAX: usize = 1 << 10; // 1024

/// In [`TenantId::to_bits`], from the lowest bit on: the number, the life, and as many bits of the
/// store as are left, 22. So an id of another store is known as that, but for one in 4 million.
const NUMBER_BITS: u32 = TENANTS_MAX.ilog2();
const STORE_SHIFT: u32 = NUMBER_BITS + u32::BITS;

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

    /// The id as one number, for callers whose language has no such type; 0 for the root.
    /// [`Zswap::tenant_of_bits`](super::Zswap::tenant_of_bits) reads it.
    pub fn to_bits(self) -> u64 {
        let Some(store) = self.store else { return 0 };
        let life = u64::from(self.life) << NUMBER_BITS;
        store.number() << STORE_SHIFT | life | self.number() as u64
    }

    /// The id of one store that has these bits; `None` if they name another store.
    pub(super) fn of_bits(store: StoreId, bits: u64) -> Option<TenantId> {
        if bits == 0 {
            return Some(TenantId::ROOT);
        }
        let number = TenantNumber((bits % TENANTS_MAX as u64) as u16); // < 2^10
        let life = (bits >> NUMBER_BITS) as u32; // the lower 32 bits of it
        let id = TenantId { store: Some(store), number, life };
        (number != TenantNumber::ROOT && id.to_bits() == bits).then_some(id)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_name_the_tenant_of_one_store() {
        let (store, other) = (StoreId::new(), StoreId::new());
        for (number, life) in [(1, 1), (1023, u32::MAX), (5, 0x8000_0001)] {
            let id = TenantId { store: Some(store), number: TenantNumber(number), life };
            assert_eq!(TenantId::of_bits(store, id.to_bits()), Some(id));
            assert_eq!(TenantId::of_bits(other, id.to_bits()), None);
        }
        assert_eq!(TenantId::of_bits(store, TenantId::ROOT.to_bits()), Some(TenantId::ROOT));
        assert_eq!(TenantId::of_bits(store, 1), None);
        let second_root = TenantId { store: Some(store), ..TenantId::ROOT }.to_bits();
        assert_eq!(TenantId::of_bits(store, second_root), None, "the root has one id");
    }
}
