"""The document of `Store.stats`.

make_documents.py wrote it from stat-1.json.
"""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """Options of the store, by name."""

    #: Allocator.
    zpool: str
    #: Compressor.
    compressor: str
    #: Index.
    index: str
    #: Shards.
    shards: int
    #: Policy for pages that do not shrink.
    incompressible: str
    #: Bytes before each object.
    object_header_bytes: int
    #: Limit of the pool, in bytes; null without one.
    max_pool_bytes: int | None
    #: Percent of the limit below which a full pool takes pages again.
    accept_threshold_percent: int
    #: Action of a full pool.
    when_full: str
    #: Size of host pages.
    host_pages: str
    #: Check for same-filled pages.
    same_filled_check: str
    #: Whether only zero pages are kept as a word.
    same_filled_zero_only: bool
    #: Eviction order; null without records.
    lru: str | None
    #: Whether objects have checksums.
    checksum: bool
    #: Form of pages in the backing.
    written_as: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Counters:
    """Counters of the store."""

    #: Bytes of host pages that the pool owns, now.
    pool_total_size: int
    #: Pages in memory, same-filled ones included, now.
    stored_pages: int
    #: Pages kept as one repeated word, now.
    same_filled_pages: int
    #: Pages kept as they were, 4096 bytes, now.
    stored_incompressible_pages: int
    #: Pages in units, compressed together with their neighbours, now.
    unit_pages: int
    #: Pages in the backing alone, now.
    backing_pages: int
    #: Pages in the pool that the backing has too, now.
    clean_pages: int
    #: Stores that kept the page, in memory or in the backing.
    zswpout: int
    #: Loads from memory.
    zswpin: int
    #: Loads from the backing.
    backing_loads: int
    #: Pages that a load from the backing brought back into the pool.
    promoted_pages: int
    #: Loads that took the page out of the store.
    exclusive_loads: int
    #: Pages that were invalidated.
    invalidated_pages: int
    #: Stores that found the key taken.
    duplicate_entry: int
    #: Stores that found the pool at its limit.
    pool_limit_hit: int
    #: Stores that were refused: the pool could not get memory.
    reject_alloc_fail: int
    #: Stores that were refused: no memory for an index entry.
    reject_kmemcache_fail: int
    #: Stores that were refused: the compressor failed.
    reject_compress_fail: int
    #: Stores that were refused: too large for the pool once compressed.
    reject_compress_poor: int
    #: Stores that were refused: the tenant was at its limit.
    reject_tenant_limit: int
    #: Writebacks that failed; the page stays in memory.
    reject_reclaim_fail: int
    #: Pages written back from the pool.
    written_back_pages: int
    #: Pages that left the pool without a write.
    dropped_clean_pages: int
    #: Pages that the pool refused and the backing took.
    written_through_pages: int
    #: Pages that the pool refused and keeps as they are until the backing takes them.
    staged_pages: int
    #: Pages compressed once more, to take less room.
    recompressed_pages: int
    #: Units of pages compressed together.
    stored_units: int
    #: Decompressions of a unit.
    opened_units: int
    #: Decompressions of a unit for one page.
    units_opened_for_one: int
    #: Units that recompression made of stored pages.
    joined_units: int
    #: Units of which few pages were left, split into single pages.
    split_units: int
    #: Loads and writebacks of a corrupt object.
    decompress_fail: int
    #: Loads that the backing failed.
    backing_read_fail: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Memory:
    """Memory of the store, in bytes."""

    #: Host pages of the pool.
    pool_bytes: int
    #: The largest pool.
    pool_peak_bytes: int
    #: Sum of the compressed sizes.
    compressed_bytes: int
    #: Nodes of the index, shards and records.
    index_bytes: int
    #: Blocks of the backing, batch, tenants, counts of times.
    policy_bytes: int
    #: Tables of the allocator.
    zpool_metadata_bytes: int
    #: Host pages kept for the next store.
    reserve_bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Tenant:
    """One tenant."""

    #: Its number.
    number: int
    #: Number of its parent; null for the root.
    parent: int | None
    #: Its name.
    name: str
    #: Limit of its compressed bytes; 18446744073709551615 without one.
    max_bytes: int
    #: Whether its pages may go to the backing.
    writeback: bool
    #: Compressed bytes of it and its children.
    current_bytes: int
    #: The most there were at once.
    peak_bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Bucket:
    """One bucket."""

    #: Its end, in nanoseconds: a multiple of a sixteenth of a power of two.
    below_ns: int
    #: Operations in it.
    count: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Times:
    """Counts of times. Each operation is in the first bucket that it is below."""

    #: Operations.
    count: int
    #: Sum of their times, in nanoseconds.
    sum_ns: int
    #: The buckets that are not empty, in the order of their ends.
    buckets: list[Bucket]


@dataclass(frozen=True, kw_only=True, slots=True)
class Latencies:
    """Times of the store. One operation in 16 is timed."""

    #: Stores.
    store: Times
    #: Loads from the pool.
    load: Times
    #: Loads from the backing.
    backing_load: Times
    #: Batches that were written back.
    writeback: Times


@dataclass(frozen=True, kw_only=True, slots=True)
class Backing:
    """A backing."""

    #: Its path.
    name: str
    #: Its size, in blocks of 4096 bytes.
    blocks: int
    #: Blocks in use.
    used_blocks: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Stats:
    """The store at the start of the snapshot."""

    #: Options of the store, by name.
    options: Options
    #: Counters.
    counters: Counters
    #: Memory of the store, in bytes.
    memory: Memory
    #: The tenants, the root first; empty without records.
    tenants: list[Tenant]
    #: Times, if they were measured.
    latencies: Latencies
    #: The backing; null without one.
    backing: Backing | None
