//! All statistics of a store in one value: for people, JSON, Prometheus, snapshots.

#[cfg(feature = "serde")]
use serde::{Deserialize, Serialize};

use super::{Counters, LatencyCounts, LatencyStats, MemoryUse, TENANTS_MAX, TenantStats, Zswap};

/// Parts, work and content of a store. Taken part by part: exact only while no other thread changes
/// the store.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
#[cfg_attr(feature = "serde", serde(default))]
pub struct Stats {
    /// The options it was made with.
    pub options: OptionNames,
    /// The kernel's counters.
    pub counters: Counters,
    /// What its memory is used for.
    pub memory: MemoryUse,
    /// All tenants, the root first; none without records.
    pub tenants: Vec<TenantStats>,
    /// How long the verbs took, if that was measured.
    pub latencies: LatencyStats,
    /// The backing, if there is one.
    pub backing: Option<BackingStats>,
}

/// The backing of a store.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
#[cfg_attr(feature = "serde", serde(default))]
pub struct BackingStats {
    /// Its name: a path.
    pub name: String,
    /// Its capacity, in blocks of 4096 bytes.
    pub blocks: u64,
    /// Blocks that hold something.
    pub used_blocks: u64,
}

/// The options of a store, by the names that they are chosen by.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
#[cfg_attr(feature = "serde", serde(default))]
pub struct OptionNames {
    /// The allocator.
    pub zpool: String,
    /// The compressor, with its level where it was given one.
    pub compressor: String,
    /// The index of a shard.
    pub index: String,
    /// Shards.
    pub shards: u64,
    /// The policy for pages that do not shrink.
    pub incompressible: String,
    /// Bytes in front of each object.
    pub object_header_bytes: u64,
    /// The most bytes of host pages that the pool may own; none for as many as there are.
    pub max_pool_bytes: Option<u64>,
    /// Percent of that below which a full pool takes pages again.
    pub accept_threshold_percent: u64,
    /// Action of a store that finds the pool full.
    pub when_full: String,
    /// The size of host pages.
    pub host_pages: String,
    /// How same-filled pages are found.
    pub same_filled_check: String,
    /// Whether only zeros count as such.
    pub same_filled_zero_only: bool,
    /// The order of eviction; none without records.
    pub lru: Option<String>,
    /// Whether objects have checksums.
    pub checksum: bool,
    /// How pages are written to the backing.
    pub written_as: String,
}

impl Zswap {
    /// Everything that the store says of itself.
    pub fn stats(&self) -> Stats {
        self.id.enter();
        Stats {
            options: self.option_names(),
            counters: self.counters(),
            memory: self.memory(),
            tenants: self.tenants(),
            latencies: self.latencies(),
            backing: self.tier.as_ref().map(|tier| BackingStats {
                name: tier.backing().name(),
                blocks: u64::from(tier.backing().block_count()),
                used_blocks: tier.usage().0 as u64,
            }),
        }
    }

    fn option_names(&self) -> OptionNames {
        let options = &self.options;
        OptionNames {
            zpool: self.zpool.name().to_owned(),
            compressor: self.compressor.name(),
            index: options.index.name().to_owned(),
            shards: options.shards as u64,
            incompressible: options.incompressible.name().to_owned(),
            object_header_bytes: options.object_header_bytes as u64,
            max_pool_bytes: Some(self.hysteresis.max_bytes).filter(|&bytes| bytes < u64::MAX),
            accept_threshold_percent: u64::from(options.accept_threshold_percent),
            when_full: options.when_full.name().to_owned(),
            host_pages: options.host_pages.name().to_owned(),
            same_filled_check: options.same_filled.check.name().to_owned(),
            same_filled_zero_only: options.same_filled.zero_only,
            lru: options.records.map(|records| records.lru.name().to_owned()),
            checksum: self.has_checksums(),
            written_as: options.written_as.name().to_owned(),
        }
    }
}

/// No count of a store is larger: sums of a few of them have no overflow.
const COUNT_MAX: u64 = 1 << 56;

impl Stats {
    /// Checks what was read from somewhere: that numbers can be added up, and that the tenants make
    /// a tree.
    pub(super) fn check(&self) -> Result<(), String> {
        let counters = self.counters.list().map(|counter| (counter.name, counter.value));
        if let Some((name, value)) =
            counters.chain(self.memory.list()).find(|(_, value)| *value > COUNT_MAX)
        {
            return Err(format!("{name} is {value}, over the maximum of {COUNT_MAX}"));
        }
        for (name, counts) in self.latencies.verbs() {
            let LatencyCounts { count, sum_ns, buckets } = counts;
            let sum = buckets.iter().try_fold(0_u64, |sum, bucket| sum.checked_add(bucket.count));
            if *count > COUNT_MAX || *sum_ns > COUNT_MAX || sum != Some(*count) {
                return Err(format!(
                    "the latencies of {name} do not add up to their count {count}"
                ));
            }
            if !buckets.is_sorted_by(|a, b| a.below_ns < b.below_ns) {
                return Err(format!("the latencies of {name} are not in order"));
            }
        }
        if self.tenants.len() > TENANTS_MAX {
            return Err(format!(
                "{} tenants exceed the maximum of {TENANTS_MAX}",
                self.tenants.len()
            ));
        }
        for (number, tenant) in self.tenants.iter().enumerate() {
            let is_placed = match tenant.parent {
                None => number == 0,
                Some(parent) => parent < number,
            };
            if tenant.number != number || !is_placed {
                return Err(format!(
                    "tenant {number} has number {} and is below {:?}",
                    tenant.number, tenant.parent
                ));
            }
        }
        Ok(())
    }
}

impl MemoryUse {
    /// All of it, by name, in bytes.
    pub(super) fn list(&self) -> [(&'static str, u64); 7] {
        [
            ("pool_bytes", self.pool_bytes),
            ("pool_peak_bytes", self.pool_peak_bytes),
            ("compressed_bytes", self.compressed_bytes),
            ("index_bytes", self.index_bytes),
            ("policy_bytes", self.policy_bytes),
            ("zpool_metadata_bytes", self.zpool_metadata_bytes),
            ("reserve_bytes", self.reserve_bytes),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::zswap::{LatencyBucket, TenantOptions};

    fn with_loads(count: u64, sum_ns: u64, buckets: &[(u64, u64)]) -> Stats {
        let buckets = buckets.iter().map(|&(below_ns, count)| LatencyBucket { below_ns, count });
        let load = LatencyCounts { count, sum_ns, buckets: buckets.collect() };
        Stats { latencies: LatencyStats { load, ..Default::default() }, ..Default::default() }
    }

    fn with_pool(pool_bytes: u64) -> Stats {
        Stats { memory: MemoryUse { pool_bytes, ..Default::default() }, ..Default::default() }
    }

    #[test]
    fn numbers_that_cannot_be_are_told() {
        const MAX: u64 = COUNT_MAX;
        for stats in
            [with_pool(MAX), with_loads(MAX, MAX, &[(1, MAX)]), with_loads(3, 9, &[(2, 1), (8, 2)])]
        {
            assert_eq!(stats.check(), Ok(()));
        }
        for (stats, told) in [
            (with_pool(MAX + 1), "over the maximum"),
            (with_loads(MAX + 1, 0, &[(1, MAX + 1)]), "do not add up"),
            (with_loads(0, MAX + 1, &[]), "do not add up"),
            (with_loads(2, 0, &[(1, 1)]), "do not add up"),
            (with_loads(2, 0, &[(2, 1), (1, 1)]), "not in order"),
            (with_loads(2, 0, &[(1, 1), (1, 1)]), "not in order"),
        ] {
            let said = stats.check().unwrap_err();
            assert!(said.contains(told), "{said}");
        }
    }

    fn with_tenants(tenants: &[(usize, Option<usize>)]) -> Stats {
        let of = |&(number, parent)| TenantStats {
            number,
            parent,
            options: TenantOptions::default(),
            current_bytes: 0,
            peak_bytes: 0,
        };
        Stats { tenants: tenants.iter().map(of).collect(), ..Default::default() }
    }

    #[test]
    fn tenants_are_a_tree_in_the_order_of_their_numbers() {
        let many = |count| (0..count).map(|n| (n, (n > 0).then_some(n / 2))).collect::<Vec<_>>();
        for tenants in [&[][..], &[(0, None)], &[(0, None), (1, Some(0)), (2, Some(1))]] {
            assert_eq!(with_tenants(tenants).check(), Ok(()));
        }
        assert_eq!(with_tenants(&many(TENANTS_MAX)).check(), Ok(()));
        for (tenants, told) in [
            (&[(1, None)][..], "tenant 0 has number 1"),
            (&[(0, Some(0))], "tenant 0 has number 0 and is below Some(0)"),
            (&[(0, None), (1, None)], "tenant 1 has number 1 and is below None"),
            (&[(0, None), (1, Some(1))], "is below Some(1)"),
            (&[(0, None), (1, Some(2)), (2, Some(0))], "is below Some(2)"),
            (&[(0, None), (2, Some(0))], "tenant 1 has number 2"),
            (&many(TENANTS_MAX + 1), "1025 tenants exceed the maximum of 1024"),
        ] {
            let said = with_tenants(tenants).check().unwrap_err();
            assert!(said.contains(told), "{said}");
        }
    }

    #[test]
    fn memory_is_told_by_its_parts_and_their_sum() {
        let memory = MemoryUse {
            pool_bytes: 1,
            pool_peak_bytes: 2,
            compressed_bytes: 4,
            index_bytes: 8,
            policy_bytes: 16,
            zpool_metadata_bytes: 32,
            reserve_bytes: 64,
        };
        assert_eq!(memory.list().map(|(_, bytes)| bytes), [1, 2, 4, 8, 16, 32, 64]);
        assert_eq!(memory.metadata_bytes(), 8 + 16 + 32);
    }
}
