"""The document of `uzswap advise`.

make_documents.py wrote it from advise-1.json.
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
class Uncounted:
    """Memory that `run` neither counts nor evicts: its peak."""

    #: Shared memory (memfd, tmpfs, shared mappings), in bytes.
    shared_bytes: int
    #: Huge pages of hugetlbfs, in bytes.
    huge_bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Unmanaged:
    """Unmanaged."""

    #: The name of its file.
    program: str
    #: The reason.
    why: str
    #: Its anonymous memory, in bytes.
    bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """The pages that the advice is for."""

    #: Their source, in words.
    origin: str
    #: The command line, as a shell takes it. Present with a command.
    command: str | None = None
    #: All of the pages, in bytes: of a command, at its peak.
    bytes: int
    #: Whether they are of all programs of the machine.
    is_machine: bool
    #: A runtime with a heap limit of its own: v8, jvm. Present where one was recognised.
    runtime: str | None = None
    #: Memory that `run` neither counts nor evicts: its peak.
    uncounted: Uncounted
    #: Programs that `run` cannot manage.
    unmanaged: list[Unmanaged]


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
    #: SHA-256 of the pages, of a sample its own; hexadecimal.
    sha256: str
    #: Time of the capture, in RFC 3339; empty if it is unknown.
    captured_at: str
    #: The whole. Present if the pages are a sample of it.
    sample: Sample | None = None
    #: Remarks.
    notes: list[str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimate:
    """A figure with its 95 % interval."""

    #: The figure.
    estimate: int
    #: Lower end.
    low: int
    #: Upper end.
    high: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """A compressor, as uzswap run or the kernel has it."""

    #: Its name and its filter; the kernel has none.
    compressor: str
    #: The allocator: zsmalloc of the kernel, or that of uzswap run.
    zpool: str
    #: Pages that were compressed.
    pages: int
    #: Memory that all pages take: pool, metadata, refused pages.
    bytes: Estimate
    #: All pages, in bytes.
    of_bytes: int
    #: The median store, in microseconds.
    store_us: float
    #: The median load, in microseconds.
    load_us: float


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkingSet:
    """Windows of time, and the anonymous pages that the program touched in each."""

    #: Their number.
    windows: int
    #: Their mean length in milliseconds.
    window_ms: float
    #: Bytes of touched pages that nine tenths of the windows do not pass.
    touched_bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Area:
    """A swap area."""

    #: Its device or file.
    path: str
    #: Its size.
    bytes: int
    #: Bytes of it in use.
    used_bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Zram:
    """Zram."""

    #: Its size in uncompressed bytes; 0 where it is not set up.
    disksize_bytes: int
    #: Compressors that it can use.
    compressors: list[str]
    #: Whether it can recompress cold pages.
    has_recompression: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Zswap:
    """Zswap."""

    #: Whether it is on.
    is_enabled: bool
    #: Its compressor.
    compressor: str
    #: The most of the memory that its pool may take.
    max_pool_percent: int
    #: Whether the kernel has a shrinker for it.
    has_shrinker: bool
    #: Its allocator; null where the kernel has no choice.
    zpool: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Swap:
    """Memory and swap of the machine."""

    #: Memory of the machine.
    memory_bytes: int
    #: Memory that programs can get without swapping.
    available_bytes: int
    #: The swap areas that are on.
    areas: list[Area]
    #: The first zram device; null without one.
    zram: Zram | None
    #: Settings of zswap; null without it.
    zswap: Zswap | None
    #: Pages swapped in and out since the machine started.
    swapped_pages: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """A form."""

    #: The place for it: a file, or a shell.
    place: str
    #: Its lines.
    lines: list[str]


@dataclass(frozen=True, kw_only=True, slots=True)
class LimitRange:
    """The limits that other runs of the program may lead to. Present with `run`."""

    #: The lowest; null if each run leads to none.
    low_bytes: int | None
    #: The highest; null if a run may lead to none.
    high_bytes: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Trial:
    """The command under the limit. Present with --try."""

    #: Seconds without a limit.
    alone_s: float
    #: Seconds of each run under the limit.
    real_s: list[float]
    #: The most memory of a run under the limit, in bytes.
    peak_bytes: int
    #: Why a run under the limit did not end well. Present if one did not.
    failure: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Advice:
    """Settings of one tool, and their worth."""

    #: The tool.
    tool: Literal["run", "zram", "zswap"]
    #: The compressor that the rule chose among those that the tool has.
    compressor: str
    #: Bytes of the pages over the memory that they take with it.
    ratio: float
    #: Forms of the settings, each ready to paste.
    settings: list[Setting]
    #: Bytes of the pages that the settings are about, uncompressed.
    pages_bytes: int
    #: Bytes of real memory that they take with the settings.
    takes_bytes: int
    #: The difference.
    saves_bytes: int
    #: The same in percent of pages_bytes.
    saves_percent: float
    #: The condition under which they save that.
    assumes: str
    #: Percent of a processor for 1,000 pages a second out and back.
    cpu_percent_per_1000_pages: float
    #: A lower bound, far from the time: one fault a touched page that is out. Absent if nothing
    #: shows it.
    least_time_factor: float | None = None
    #: The limits that other runs of the program may lead to. Present with `run`.
    limit_range: LimitRange | None = None
    #: The command under the limit. Present with --try.
    trial: Trial | None = None
    #: How sure the figures are.
    confidence: Literal["low", "medium", "high"]
    #: The reason.
    confidence_because: str
    #: The measurement behind it.
    because: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Outlook:
    """The program under one limit."""

    #: Bytes of pages that stay as they are.
    kept_bytes: int
    #: The limit: those pages, and the others compressed.
    limit_bytes: int
    #: A lower bound of the program's time over its time without the limit.
    least_time_factor: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Advise:
    """The result of `uzswap advise --json`: settings for a program or a machine."""

    #: Name and version of this form.
    schema: Literal["uzswap-advise/1"]
    #: Version of uzswap.
    version: str
    #: The words of the command.
    command: Literal["advise"]
    #: Time at which the document was made: RFC 3339, UTC.
    created_at: str
    #: The machine.
    machine: Machine
    #: The pages that the advice is for.
    target: Target
    #: The pages that were measured.
    corpus: Corpus
    #: The rule by which one compressor was chosen.
    goal: str
    #: One element a compressor, on zsmalloc.
    measured: list[Measured]
    #: The memory that the program touches. Absent if that was not sampled.
    working_set: WorkingSet | None = None
    #: Memory and swap of the machine.
    swap: Swap
    #: The answer, in sentences.
    verdict: list[str]
    #: One element a tool that can help here.
    advice: list[Advice]
    #: The program's time under some limits, the highest first. Empty without `working_set`.
    outlook: list[Outlook]
    #: States of the machine that are wrong, and lacks that are no lack of memory.
    warnings: list[str]
