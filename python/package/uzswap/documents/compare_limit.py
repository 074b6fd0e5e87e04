"""The document of `uzswap compare --limit`.

make_documents.py wrote it from compare-limit-1.json.
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
class Program:
    """The command under the limit."""

    #: The command and its arguments.
    argv: list[str]
    #: Shell command before each run; null without one.
    prepare: str | None
    #: Shell command after each run; null without one.
    cleanup: str | None
    #: Shell command after each run whose output must be the same; null without one.
    check: str | None
    #: Size of the tmpfs of each run, in bytes; null without one.
    tmpfs_bytes: int | None
    #: Longest run, in seconds; null without --timeout.
    timeout_s: float | None
    #: The preset; null without one.
    preset: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class LimitBytes:
    """A size."""

    #: Bytes.
    bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class LimitPercent:
    """A share."""

    #: Percent of the command's own peak.
    percent: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """Settings of all combinations."""

    #: The limit as it was given.
    limit: LimitBytes | LimitPercent
    #: The limit, in bytes.
    limit_bytes: int
    #: Rounds; each has one run of each combination.
    rounds: int


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
class Sample:
    """Memory at one time."""

    #: Milliseconds since the start of the run.
    ms: int
    #: Resident anonymous memory of all programs, in bytes.
    resident_bytes: int
    #: Host pages of the pool, in bytes.
    pool_bytes: int
    #: Index, tables and descriptors, in bytes.
    metadata_bytes: int
    #: Pages in the store.
    stored_pages: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """One run."""

    #: Elapsed time of the command and its processes, in seconds.
    real_s: float
    #: Processor time of programs and engine in user mode, in seconds.
    user_s: float
    #: Processor time of both in the kernel, in seconds.
    sys_s: float
    #: Processor time of the engine, in seconds; of the kernel's, only outside of the programs.
    engine_cpu_s: float
    #: Largest usage at once (resident, pool, metadata), in bytes.
    peak_bytes: int
    #: Largest resident anonymous memory of all programs, in bytes.
    resident_peak_bytes: int
    #: Largest pool, in bytes.
    pool_peak_bytes: int
    #: Pages in the largest pool.
    pool_peak_pages: int
    #: Largest metadata, in bytes.
    metadata_peak_bytes: int
    #: Pages that left programs for the pool.
    stored_pages: int
    #: Pages that came back from the pool.
    loaded_pages: int
    #: Pages that the pool did not take.
    refused_pages: int
    #: Pages freed because no program needs them; null for the kernel.
    freed_pages: int | None
    #: Time of these frees, in milliseconds; null for the kernel.
    free_ms: float | None
    #: Stores, one in 16 of them.
    store_ns: Times
    #: Loads, one in 16 of them.
    load_ns: Times
    #: Faults, all of them.
    fault_ns: Times
    #: Counts of the preset: pairs of a name and a number.
    counts: list[list[str | float]]
    #: Memory over time; 512 samples at most.
    timeline: list[Sample]


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """A difference of means to the base, in seconds."""

    #: The difference.
    mean: float
    #: Lower end of the 95 % interval; null with fewer than 3 rounds.
    low: float | None
    #: Upper end of the 95 % interval; null with fewer than 3 rounds.
    high: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Differences:
    """Times without those of the base."""

    #: Elapsed time.
    real_s: Difference
    #: Processor time in the kernel.
    sys_s: Difference
    #: Processor time in user mode.
    user_s: Difference


@dataclass(frozen=True, kw_only=True, slots=True)
class Freeing:
    """A fall of the number of stored pages."""

    #: Pages before.
    pages_before: int
    #: Pages after.
    pages_after: int
    #: Pool before, in bytes.
    pool_before_bytes: int
    #: Pool after, in bytes.
    pool_after_bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Failure:
    """A run that did not end well."""

    #: The cause.
    kind: Literal["did_not_fit", "command", "timed_out", "wrong", "machine", "interrupted"]
    #: The cause in words.
    message: str
    #: End of the output of the command.
    output: str


@dataclass(frozen=True, kw_only=True, slots=True)
class SmallestLimit:
    """The bounds of the smallest limit."""

    #: A limit that was enough, in bytes.
    fits_bytes: int
    #: A limit that was not enough, in bytes.
    fails_bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Combination:
    """One combination. Figures are 0 if no run ended well."""

    #: Name of the combination.
    label: str
    #: The engine.
    engine: Literal["uzswap", "kernel"]
    #: The kernel's engine. Absent for uzswap.
    kernel: Literal["zswap", "zram"] | None = None
    #: Allocator; null if the kernel has no choice.
    zpool: str | None
    #: Compressor.
    compressor: str
    #: Index. Absent for the kernel's engine.
    index: str | None = None
    #: Pages that are compressed together; absent where there is one.
    unit_pages: int | None = None
    #: Name of the combination that differences refer to.
    base: str
    #: Times without those of the base; null for the base.
    differences: Differences | None
    #: Largest pool of the median run, in bytes.
    pool_peak_bytes: int
    #: Pages in that pool.
    pool_peak_pages: int
    #: That pool in percent of the pool of the base; null if one is empty.
    pool_percent_of_base: float | None
    #: Stores of all runs, one in 16 of them.
    store_ns: Times
    #: Loads of all runs, one in 16 of them.
    load_ns: Times
    #: Faults of all runs, all of them.
    fault_ns: Times
    #: Largest fall of the stored pages in the median run; null without a fall.
    largest_freeing: Freeing | None
    #: The runs that ended well, in the order of time.
    runs: list[Run]
    #: The reason that there are no more runs; null without a failure.
    failure: Failure | None
    #: The result of --find-limit; null without one.
    smallest_limit: SmallestLimit | None


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
class CompareLimit:
    """The result of `uzswap compare --limit --json`: a command under a limit."""

    #: Name and version of this form.
    schema: Literal["uzswap-compare-limit/1"]
    #: Version of uzswap.
    version: str
    #: The words of the command.
    command: Literal["compare"]
    #: Time at which the document was made: RFC 3339, UTC.
    created_at: str
    #: The machine.
    machine: Machine
    #: The command under the limit.
    program: Program
    #: Settings of all combinations.
    settings: Settings
    #: The run without a limit.
    warm_up: Run
    #: One element a combination, in the order of the options.
    combinations: list[Combination]
    #: Remarks to read before any figure.
    notes: list[str]
    #: Which parts to use, their gain and their cost, and how sure that is: sentences.
    verdict: list[str]
    #: All figures in words, sentence by sentence.
    summary: list[str]
    #: The changes since the older document of --baseline, where it was given.
    baseline: Baseline | None = None
