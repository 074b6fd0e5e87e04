//! The byte budget: the limit of memory, and its use.
//!
//! ```text
//!              charge          memory is taken     memory is given back     uncharge
//!   used  -----'==============================================================.-----
//! ```
//!
//! Memory is charged before it is taken and uncharged after it was returned. So the figures are
//! never below the truth, and a limit holds at every instant. The check is one compare-and-swap on
//! what the limit is on: two threads together cannot pass it.
//!
//! Counted is what grows with the pages stored. Not counted: the memory of a store from the start
//! (its shards, the size classes, a thread's scratch), and what malloc adds to each block.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use thiserror::Error;

use crate::named_enum::named;

/// What a budget's limit is on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Counted {
    /// The host pages that the pool owns: the kernel's `pool_total_size`. Everything else is
    /// counted, but not limited.
    Pool,
    /// The same, the resident pages that the arena keeps in reserve, and all metadata: indexes,
    /// handles, page descriptors, lists.
    #[default]
    PoolAndMetadata,
}

named!(Counted, "memory to count", Pool => "pool", PoolAndMetadata => "all");

/// A charge that would have passed the limit; nothing was charged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error(
    "{asked_bytes} more bytes exceed the budget of {max_bytes} bytes ({used_bytes} in use, \
     counted: {counted})"
)]
pub struct OverBudget {
    /// Bytes asked for.
    pub asked_bytes: u64,
    /// Counted bytes in use at that moment.
    pub used_bytes: u64,
    /// The limit.
    pub max_bytes: u64,
    /// What it is on.
    pub counted: Counted,
}

/// The kernel does not tell how much memory the machine has.
#[derive(Debug, Error)]
#[error("cannot read the size of this machine's memory from /proc/meminfo")]
pub struct UnknownMemory(#[from] io::Error);

/// So many percent of the machine's memory, in bytes: what `max_pool_percent` of the kernel is of.
///
/// # Errors
///
/// [`UnknownMemory`], where `/proc/meminfo` cannot be read.
pub fn percent_of_memory(percent: u8) -> Result<u64, UnknownMemory> {
    let text = std::fs::read_to_string("/proc/meminfo")?;
    let bytes = memory_total(&text)
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "no line MemTotal"))?;
    Ok(percent_of(percent, bytes))
}

/// Bytes by the line `MemTotal:  24617100 kB`, see proc_meminfo(5).
fn memory_total(text: &str) -> Option<u64> {
    let figure = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    figure.trim().strip_suffix(" kB")?.parse::<u64>().ok()?.checked_mul(1024)
}

fn percent_of(percent: u8, bytes: u64) -> u64 {
    let share = u128::from(bytes) * u128::from(percent) / 100;
    u64::try_from(share).unwrap_or(u64::MAX)
}

/// Why a table did not grow; it is as it was.
#[non_exhaustive]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum GrowError {
    /// The budget.
    #[error(transparent)]
    OverBudget(#[from] OverBudget),
    /// The heap gave no memory.
    #[error("cannot allocate {bytes} bytes")]
    NoMemory {
        /// Bytes asked for.
        bytes: u64,
    },
    /// Its elements are numbered, and the numbers are used up.
    #[error("the table is full: it holds at most {max} elements")]
    Full {
        /// The most elements it can have.
        max: usize,
    },
}

/// Bytes that may be taken, and that are. Shared by an arena, an allocator's tables and indexes.
#[derive(Debug)]
pub struct Budget {
    max_bytes: u64,
    counted: Counted,
    /// The counted usage, and its peak.
    used: AtomicU64,
    peak: AtomicU64,
    /// Its parts, and what is not limited.
    pool: AtomicU64,
    reserve: AtomicU64,
    metadata: AtomicU64,
}

impl Budget {
    /// A budget that counts and never refuses.
    pub fn unlimited() -> Budget {
        Budget::new(u64::MAX, Counted::Pool)
    }

    /// A budget of `max_bytes` of what is `counted`.
    pub fn new(max_bytes: u64, counted: Counted) -> Budget {
        Budget {
            max_bytes,
            counted,
            used: AtomicU64::new(0),
            peak: AtomicU64::new(0),
            pool: AtomicU64::new(0),
            reserve: AtomicU64::new(0),
            metadata: AtomicU64::new(0),
        }
    }

    /// Charges host pages that a pool is to own; the counted bytes in use then.
    ///
    /// # Errors
    ///
    /// [`OverBudget`].
    pub fn charge_pool(&self, bytes: u64) -> Result<u64, OverBudget> {
        let used = self.charge(bytes)?;
        self.pool.fetch_add(bytes, Ordering::Relaxed);
        Ok(used)
    }

    /// The pages have gone back to the kernel.
    pub fn uncharge_pool(&self, bytes: u64) {
        subtract(&self.pool, bytes, Ordering::Relaxed);
        subtract(&self.used, bytes, Ordering::Release);
    }

    /// Charges pages that become resident without an owner.
    ///
    /// # Errors
    ///
    /// [`OverBudget`]; never where the pool alone is counted.
    pub fn charge_reserve(&self, bytes: u64) -> Result<(), OverBudget> {
        self.charge_beside(&self.reserve, bytes)
    }

    /// Pages without an owner have gone back to the kernel.
    pub fn uncharge_reserve(&self, bytes: u64) {
        self.uncharge_beside(&self.reserve, bytes);
    }

    /// A pool is to own pages of the reserve.
    ///
    /// # Errors
    ///
    /// [`OverBudget`]; never where the reserve is counted too.
    pub fn move_to_pool(&self, bytes: u64) -> Result<(), OverBudget> {
        if self.counted == Counted::Pool {
            self.charge(bytes)?;
        }
        self.pool.fetch_add(bytes, Ordering::Relaxed);
        subtract(&self.reserve, bytes, Ordering::Relaxed);
        Ok(())
    }

    /// A pool has given pages up, which stay resident.
    pub fn move_to_reserve(&self, bytes: u64) {
        self.reserve.fetch_add(bytes, Ordering::Relaxed);
        subtract(&self.pool, bytes, Ordering::Relaxed);
        if self.counted == Counted::Pool {
            subtract(&self.used, bytes, Ordering::Release);
        }
    }

    /// Charges memory for tables and indexes.
    ///
    /// # Errors
    ///
    /// [`OverBudget`]; never where the pool alone is counted.
    pub fn charge_metadata(&self, bytes: u64) -> Result<(), OverBudget> {
        self.charge_beside(&self.metadata, bytes)
    }

    /// Memory of tables or indexes has been freed.
    pub fn uncharge_metadata(&self, bytes: u64) {
        self.uncharge_beside(&self.metadata, bytes);
    }

    /// The limit; `u64::MAX` for none.
    pub fn max_bytes(&self) -> u64 {
        self.max_bytes
    }

    /// What the limit is on.
    pub fn counted(&self) -> Counted {
        self.counted
    }

    /// Bytes in use of what the limit is on: never more than [`Budget::max_bytes`].
    pub fn used_bytes(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// The most that [`Budget::used_bytes`] has been.
    pub fn peak_bytes(&self) -> u64 {
        self.peak.load(Ordering::Relaxed)
    }

    /// Bytes of host pages that pools own.
    pub fn pool_bytes(&self) -> u64 {
        self.pool.load(Ordering::Relaxed)
    }

    /// Bytes of host pages that are resident and nobody's.
    pub fn reserve_bytes(&self) -> u64 {
        self.reserve.load(Ordering::Relaxed)
    }

    /// Bytes of tables and indexes.
    pub fn metadata_bytes(&self) -> u64 {
        self.metadata.load(Ordering::Relaxed)
    }

    /// The only way up for what the limit is on.
    fn charge(&self, asked_bytes: u64) -> Result<u64, OverBudget> {
        let Budget { max_bytes, counted, .. } = *self;
        // Acquire, and Release where it goes down: memory that made room has been given back.
        let charged = self.used.fetch_update(Ordering::Acquire, Ordering::Relaxed, |used| {
            used.checked_add(asked_bytes).filter(|&sum| sum <= max_bytes)
        });
        let used = charged.map_err(|used_bytes| OverBudget {
            asked_bytes,
            used_bytes,
            max_bytes,
            counted,
        })? + asked_bytes;
        if used > self.peak.load(Ordering::Relaxed) {
            self.peak.fetch_max(used, Ordering::Relaxed);
        }
        Ok(used)
    }

    /// Charges what is limited only beside the pool.
    fn charge_beside(&self, part: &AtomicU64, bytes: u64) -> Result<(), OverBudget> {
        if self.counted == Counted::PoolAndMetadata {
            self.charge(bytes)?;
        }
        part.fetch_add(bytes, Ordering::Relaxed);
        Ok(())
    }

    fn uncharge_beside(&self, part: &AtomicU64, bytes: u64) {
        subtract(part, bytes, Ordering::Relaxed);
        if self.counted == Counted::PoolAndMetadata {
            subtract(&self.used, bytes, Ordering::Release);
        }
    }
}

impl Default for Budget {
    fn default() -> Self {
        Budget::unlimited()
    }
}

fn subtract(figure: &AtomicU64, bytes: u64, ordering: Ordering) {
    let before = figure.fetch_sub(bytes, ordering);
    debug_assert!(before >= bytes, "{bytes} bytes of {before} are uncharged");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_of_any_memory() {
        assert_eq!(percent_of(20, 1 << 30), (1 << 30) / 5);
        assert_eq!(percent_of(100, u64::MAX), u64::MAX);
        assert_eq!(percent_of(u8::MAX, u64::MAX), u64::MAX);
        assert_eq!((percent_of(0, u64::MAX), percent_of(1, 99)), (0, 0));
        let all = percent_of_memory(100).unwrap();
        assert!(all > 0 && percent_of_memory(50).unwrap() == all / 2);
        let text = "HugePages_Total: 1\nMemTotal:       24617100 kB\nMemFree: 5 kB\n";
        assert_eq!(memory_total(text), Some(24_617_100 * 1024));
        for text in ["", "MemTotal: 5", "MemTotal: -1 kB", "MemTotal: 18446744073709551615 kB"] {
            assert_eq!(memory_total(text), None, "{text}");
        }
    }
}
