"""The document of `uzswap compare`.

make_documents.py wrote it from compare-1.json.
"""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True, slots=True)
class Machine:
    """The machine that made the document."""

    #: Release of the kernel.
    kernel: str
    #: Model of the processor.
    cpu: str
    #: Processors that the command may use.
    cpus: int


@dataclass(frozen=True, kw_only=True, slots=True)
class TraceInfo:
    """A trace."""

    #: The command that recorded it.
    origin: str
    #: Time of its start, in RFC 3339.
    recorded_at: str
    #: Blocks.
    blocks: int
    #: Stores, with those of same-filled pages.
    stores: int
    #: Stores of same-filled pages.
    same_filled_stores: int
    #: Loads.
    loads: int
    #: Frees.
    frees: int
    #: Distinct contents, in pages.
    contents: int
    #: End of the last event, in nanoseconds since the start.
    ns: int
    #: Whether the recording ended well. Otherwise its whole blocks are replayed.
    complete: bool
    #: Bytes of the file that were read.
    bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """The whole of which the pages are a sample."""

    #: Pages of the whole.
    of_pages: int
    #: Pages in the sample.
    pages: int
    #: The most pages in a unit, which is a run of adjacent pages.
    unit_pages: int
    #: Units in the sample.
    units: int
    #: Seed of the draw.
    seed: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Corpus:
    """The pages."""

    #: Their origin: a file, a process, a command or a workload.
    origin: str
    #: `sizes` if the contents were made from a list of sizes.
    kind: Literal["pages", "sizes", "trace"]
    #: Pages; of a trace, its stores.
    pages: int
    #: The trace. Present with --trace.
    trace: TraceInfo | None = None
    #: SHA-256 of the pages, of a sample its own; hexadecimal.
    sha256: str
    #: Time of the capture, in RFC 3339; empty if it is unknown.
    captured_at: str
    #: The whole. Present if the pages are a sample of it.
    sample: Sample | None = None
    #: Remarks.
    notes: list[str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Backing:
    """A file or a device."""

    #: Its path.
    path: str
    #: Bytes in use.
    bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Accesses:
    """The accesses after the stores."""

    #: Accesses of a run.
    count: int
    #: Exponent of Zipf's law.
    skew: float
    #: Start of the random numbers.
    seed: int
    #: Whether a load takes the page out of the store.
    exclusive: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """Settings of pools with a limit."""

    #: Percent of the limit below which a full pool takes pages again.
    accept_threshold_percent: int
    #: The backing; null without one.
    backing: Backing | None
    #: Whether objects have checksums.
    checksum: bool
    #: The accesses after the stores.
    accesses: Accesses


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """Settings of all combinations."""

    #: Runs of each combination.
    runs_each: int
    #: Longest zspage, in host pages.
    chain_size: int
    #: Rule by which a size class chooses its chain.
    chain_rule: str
    #: Place of the handle of an object.
    handle_header: str
    #: Size of host pages.
    host_pages: str
    #: Policy for pages that do not shrink.
    incompressible: str
    #: Pages to free: half (random) or odd.
    free: str
    #: Check for same-filled pages.
    same_filled: str
    #: Whether only zero pages are kept as a word.
    same_filled_zero_only: bool
    #: Settings of all limits. Present with --max-pool.
    limits: Limits | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class MaxPool:
    """A limit."""

    #: Bytes of host pages.
    bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Limit:
    """The limit of a pool, and the treatment of cold pages."""

    #: Limit of the pool.
    max_pool: Literal["none"] | MaxPool
    #: Eviction order.
    lru: str
    #: Form of pages in the backing.
    written_as: str
    #: Action of a full pool.
    when_full: str
    #: Mode of the shrinker.
    shrinker: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Spent:
    """Time of one phase."""

    #: Elapsed time, in seconds.
    real_s: float
    #: Processor time in user mode, in seconds.
    user_s: float
    #: Processor time in the kernel, in seconds.
    sys_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Phases:
    """The phases of one run."""

    #: Storing every page.
    store: Spent
    #: The accesses. Present with --max-pool.
    access: Spent | None = None
    #: The events. Present with --trace.
    trace: Spent | None = None
    #: Loading every page.
    load: Spent
    #: Freeing half of the pages.
    free: Spent
    #: Compaction.
    compact: Spent
    #: Storing the freed half again.
    refill: Spent


@dataclass(frozen=True, kw_only=True, slots=True)
class Bucket:
    """One bucket."""

    #: Its start, in nanoseconds: 0 or a power of two.
    from_ns: int
    #: Its end, in nanoseconds: a power of two.
    to_ns: int
    #: Operations in it.
    count: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Latency:
    """Times of all runs together, in nanoseconds."""

    #: Operations.
    count: int
    #: The mean.
    mean: float
    #: The shortest.
    min: int
    #: The median.
    p50: int
    #: 90 of 100 operations took at most this time.
    p90: int
    #: 99 of 100 operations took at most this time.
    p99: int
    #: The longest.
    max: int
    #: One bucket for each power of two.
    buckets: list[Bucket]


@dataclass(frozen=True, kw_only=True, slots=True)
class Percentiles:
    """Times of one run, in nanoseconds."""

    #: The median.
    p50: int
    #: 90 of 100 operations took at most this time.
    p90: int
    #: 99 of 100 operations took at most this time.
    p99: int
    #: The longest.
    max: int


@dataclass(frozen=True, kw_only=True, slots=True)
class TimesBucket:
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
    buckets: list[TimesBucket]


@dataclass(frozen=True, kw_only=True, slots=True)
class Access:
    """The accesses of all runs."""

    #: Accesses of all runs.
    accesses: int
    #: Share that the pool answered, 0 to 1.
    pool_hit_share: float
    #: The same share, one value a run.
    pool_hit_share_by_run: list[float]
    #: Share that the backing answered, 0 to 1.
    backing_hit_share: float
    #: Share to pages that the store had refused, 0 to 1.
    miss_share: float
    #: Accesses a second, one value a run.
    accesses_per_s: list[float]
    #: Pages that the first stores lost to a full pool, one value a run.
    refused_pages: list[int]
    #: Refused stores of the accesses, one value a run.
    refused_stores: list[int]
    #: Pages written back, one value a run.
    written_back_pages: list[int]
    #: Pages that left the pool without a write, one value a run.
    dropped_clean_pages: list[int]
    #: Pages brought back into the pool, one value a run.
    promoted_pages: list[int]
    #: Pages that the pool refused and the backing took, one value a run.
    written_through_pages: list[int]
    #: Failed writebacks, one value a run.
    reject_reclaim_fail: list[int]
    #: Bytes written, one value a run.
    written_bytes: list[int]
    #: Time in writeback, in seconds, one value a run.
    writeback_s: list[float]
    #: Times of the batches that were written back.
    writeback: Times
    #: Largest pool of all runs, in bytes.
    pool_peak_bytes: int
    #: Loads from the pool.
    pool_load_ns: Latency
    #: Loads from the backing.
    backing_load_ns: Latency
    #: Stores of the accesses.
    store_ns: Latency
    #: The same stores, one element a run.
    store_ns_by_run: list[Percentiles]


@dataclass(frozen=True, kw_only=True, slots=True)
class Trace:
    """The events of a trace."""

    #: Stores.
    stores: int
    #: Refused stores.
    refused_stores: int
    #: Refused pages that were missing at the largest pool.
    refused_at_peak: int
    #: Loads.
    loads: int
    #: Loads of refused pages, left out.
    missed_loads: int
    #: Frees.
    frees: int
    #: Pages in the store at the end.
    pages_left: int
    #: Time in stores, in seconds, one value a run.
    store_s: list[float]
    #: Time in loads, in seconds, one value a run.
    load_s: list[float]
    #: Time in frees, in seconds, one value a run.
    free_s: list[float]


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimate:
    """A total, and the interval in which it lies with 95 % confidence."""

    #: The estimate.
    estimate: int
    #: Lower end.
    low: int
    #: Upper end.
    high: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Whole:
    """Totals of all pages, estimated from a sample."""

    #: Host pages of the pool, in bytes, with each page stored.
    pool_bytes: Estimate
    #: Sum of the compressed lengths, in bytes.
    compressed_bytes: Estimate
    #: Pages that are kept as a word.
    same_filled_pages: Estimate
    #: Pages that the store refuses.
    rejected_pages: Estimate


@dataclass(frozen=True, kw_only=True, slots=True)
class Combination:
    """One combination. Counts and bytes are those of the first run."""

    #: Allocator.
    zpool: str
    #: Index.
    index: str
    #: The way to objects in two pages; null for other allocators than zsmalloc.
    mapping: str | None
    #: Pages that are compressed together. Absent where that is one page.
    unit_pages: int | None = None
    #: The limit. Present with --max-pool.
    limit: Limit | None = None
    #: Name of the combination, without its compressor.
    name: str
    #: Compressor.
    compressor: str
    #: Bytes before each object.
    object_header_bytes: int
    #: Pages given to the store.
    pages: int
    #: Pages that it took, with same-filled pages.
    stored_pages: int
    #: Pages kept as one repeated word.
    same_filled_pages: int
    #: Pages kept uncompressed.
    stored_incompressible_pages: int
    #: Pages refused: too large for the pool once compressed.
    reject_compress_poor: int
    #: Pages refused: the compressor failed.
    reject_compress_fail: int
    #: Pages refused: the pool could not get memory.
    reject_alloc_fail: int
    #: Pages refused: no memory for an index entry.
    reject_kmemcache_fail: int
    #: Sum of the compressed sizes, in bytes.
    compressed_bytes: int
    #: Pool with every page stored, in bytes.
    pool_total_size: int
    #: Largest pool until then, in bytes.
    pool_peak_bytes: int
    #: Nodes of the index and shards, in bytes.
    index_bytes: int
    #: Tables of the allocator, in bytes.
    zpool_metadata_bytes: int
    #: Host pages kept for the next store, in bytes.
    reserve_bytes: int
    #: Pages freed.
    freed_pages: int
    #: Sum of the compressed sizes of the other pages, in bytes.
    kept_compressed_bytes: int
    #: Pool after the frees, in bytes.
    pool_after_free_bytes: int
    #: Pool after compaction, in bytes.
    pool_after_compact_bytes: int
    #: Pool after the freed pages were stored again, in bytes.
    pool_after_refill_bytes: int
    #: Index and tables of the allocator, in bytes.
    metadata_bytes: int
    #: Pages refused for any reason.
    rejected_pages: int
    #: Bytes of the stored pages over pool and metadata.
    effective_ratio: float
    #: Pool, metadata and the refused pages uncompressed, in bytes.
    bytes_with_rejected: int
    #: Name of the combination that percentages refer to.
    base: str
    #: Its compressor: that of this element; of the first if all names are equal.
    base_compressor: str
    #: Pool in percent of the pool of the base; null if that is empty.
    pool_percent_of_base: float | None
    #: Resident memory with every page stored: the median run, in bytes.
    rss_bytes: int
    #: The same, in bytes, one value a run.
    rss_bytes_by_run: list[int]
    #: Resident memory after the frees, in bytes.
    rss_after_free_bytes: int
    #: Resident memory after compaction, in bytes.
    rss_after_compact_bytes: int
    #: Resident memory after the freed pages were stored again, in bytes.
    rss_after_refill_bytes: int
    #: Elapsed time, in seconds, one value a run.
    real_s: list[float]
    #: Processor time in the kernel, in seconds, one value a run.
    sys_s: list[float]
    #: Processor time in user mode, in seconds, one value a run.
    user_s: list[float]
    #: The phases, one element a run.
    phases: list[Phases]
    #: Stores of all runs.
    store_ns: Latency
    #: Loads of all runs.
    load_ns: Latency
    #: Stores, one element a run.
    store_ns_by_run: list[Percentiles]
    #: Loads, one element a run.
    load_ns_by_run: list[Percentiles]
    #: Pages that each run loaded and found equal.
    verified_pages: int
    #: The accesses. Present with --max-pool.
    access: Access | None = None
    #: The events. Present with --trace.
    trace: Trace | None = None
    #: Totals of all pages. Present if the pages are a sample, without limits.
    whole: Whole | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class KindLengths:
    """KindLengths."""

    #: Kind of the mapping: heap, stack, anonymous, file, other; all pages where ranges are
    #: unknown.
    kind: str
    #: Pages of this kind.
    pages: int
    #: Same-filled pages among them: they are not compressed.
    same_filled_pages: int
    #: Pages among them that equal one before, and are not same-filled.
    duplicate_pages: int
    #: Pages among them that the compressor does not make smaller.
    incompressible_pages: int
    #: Sum of the compressed lengths.
    compressed_bytes: int
    #: Pages of 1 to chunk_bytes bytes once compressed, and so on up to 4096.
    pages_by_length: list[int]


@dataclass(frozen=True, kw_only=True, slots=True)
class CompressedLengths:
    """CompressedLengths."""

    #: Name of the compressor.
    compressor: str
    #: Step of the lengths that are counted, in bytes.
    chunk_bytes: int
    #: One element a kind of page, in the order of the pages.
    kinds: list[KindLengths]


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """A figure then and now."""

    #: The combination.
    label: str
    #: Name of the figure, as in --fail-on.
    figure: str
    #: Mean of the older runs, in the unit of its field.
    old: float
    #: Mean of the runs now.
    new: float
    #: The change in percent of the older mean.
    percent: float
    #: Lower end of the 95 % interval; null below 3 runs.
    low_percent: float | None
    #: Upper end.
    high_percent: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Baseline:
    """The changes since the older document of --baseline."""

    #: The older document's file.
    path: str
    #: When it was made: RFC 3339, UTC.
    created_at: str
    #: Version of uzswap that made it.
    version: str
    #: Conditions that differ, and combinations of one side alone.
    notes: list[str]
    #: One element a figure of a combination that both have.
    changes: list[Change]
    #: The bounds of --fail-on that do not hold.
    broken_bounds: list[str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Compare:
    """The result of `uzswap compare --json` without --limit: replays of pages, sizes or a
    trace."""

    #: Name and version of this form.
    schema: Literal["uzswap-compare/1"]
    #: Version of uzswap.
    version: str
    #: The words of the command.
    command: Literal["compare"]
    #: Time at which the document was made: RFC 3339, UTC.
    created_at: str
    #: The machine.
    machine: Machine
    #: The pages.
    corpus: Corpus
    #: Settings of all combinations.
    settings: Settings
    #: One element a combination, in the order of the options.
    combinations: list[Combination]
    #: How the pages compress: one element a compressor, none for a trace.
    compressed_lengths: list[CompressedLengths]
    #: Remarks to read before any figure.
    notes: list[str]
    #: Which parts to use, their gain and their cost, and how sure that is: sentences.
    verdict: list[str]
    #: All figures in words, sentence by sentence.
    summary: list[str]
    #: The changes since the older document of --baseline, where it was given.
    baseline: Baseline | None = None
