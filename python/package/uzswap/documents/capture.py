"""The document of `uzswap capture`.

make_documents.py wrote it from capture-1.json.
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
class Range:
    """One range."""

    #: The process; null for pages of a file.
    pid: int | None
    #: Address of its first page, or offset in the file, in bytes.
    start: int
    #: Pages.
    pages: int
    #: Name of the mapping.
    name: str


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
class Capture:
    """The result of `uzswap capture --json`: the side file of the page set, in an envelope."""

    #: Name and version of this form.
    schema: Literal["uzswap-capture/1"]
    #: Version of uzswap.
    version: str
    #: The words of the command.
    command: Literal["capture"]
    #: Time at which the document was made: RFC 3339, UTC.
    created_at: str
    #: The machine.
    machine: Machine
    #: Version of the side file.
    format: int
    #: Origin of the pages: a process, a command or a file.
    origin: str
    #: Time of the capture, in RFC 3339.
    captured_at: str
    #: Pages in the file.
    page_count: int
    #: SHA-256 of the pages, of a sample its own; hexadecimal.
    sha256: str
    #: Adjacent pages of one mapping, in the order of the file.
    ranges: list[Range]
    #: Remarks: pages that are missing, or that were skipped.
    notes: list[str]
    #: The whole. Present if the pages are a sample of it.
    sample: Sample | None = None
    #: The most resident pages of a command. Present if its peak was captured.
    peak_pages: int | None = None
