"""Page sets: files of whole pages, each with a JSON side file that describes them."""

from __future__ import annotations

import datetime
import hashlib
import json
import os
import stat
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from uzswap.documents import from_json
from uzswap.documents.capture import Range, Sample
from uzswap.errors import PageSetError

if TYPE_CHECKING:
    from typing_extensions import Buffer

#: Bytes of a page.
PAGE_SIZE = 4096

# The side file's format.
_FORMAT = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class SideFile:
    """What the side file says of the pages."""

    #: Version of its format: 1.
    format: int = _FORMAT
    #: Source of the pages, in words: a process, a command, a file.
    origin: str
    #: When, as RFC 3339 in UTC.
    captured_at: str
    #: Pages in the file.
    page_count: int
    #: SHA-256 of the file, in hexadecimal.
    sha256: str
    #: Where the pages were, in the order of the file. Empty without a side file.
    ranges: list[Range]
    #: Remarks.
    notes: list[str]
    #: The whole of which the pages are a sample; None where they are all.
    sample: Sample | None = None
    #: The most resident pages that a command had; None where that is unknown.
    peak_pages: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class PageSet:
    """Pages in memory, and where they are from."""

    #: The pages: unsigned bytes, as many rows of 4096 as there are pages, read-only.
    #: `numpy.asarray` takes it without a copy.
    pages: memoryview
    #: The side file, or what stands for it.
    about: SideFile


def read_page_set(path: str | os.PathLike[str]) -> PageSet:
    """Reads a page set, and checks the pages against the side file, if there is one.

    Raises PageSetError: no file of whole pages; a side file that is malformed or of another file.

    >>> import os, tempfile, uzswap
    >>> path = os.path.join(tempfile.mkdtemp(), "example.pages")
    >>> _ = uzswap.write_page_set(path, bytes(3 * 4096), origin="zeros")
    >>> page_set = uzswap.read_page_set(path)
    >>> page_set.pages.shape, page_set.about.origin
    ((3, 4096), 'zeros')
    """
    path = Path(path)
    try:
        with open(path, "rb") as file:
            status = os.fstat(file.fileno())
            if not (stat.S_ISREG(status.st_mode) or stat.S_ISFIFO(status.st_mode)):
                raise PageSetError(f"{path} is not a regular file")
            data = file.read()
    except OSError as error:
        raise PageSetError(f"cannot read {path}: {error.strerror}") from error
    pages, over = divmod(len(data), PAGE_SIZE)
    if over or not pages:
        raise PageSetError(
            f"{path} has {pages} pages and {over} bytes; a page set has whole pages of {PAGE_SIZE} "
            "bytes, one at least"
        )
    sha256 = hashlib.sha256(data).hexdigest()
    about = _read_side_file(path, pages, sha256) or SideFile(
        origin=str(path),
        captured_at=_rfc3339(status.st_mtime),
        page_count=pages,
        sha256=sha256,
        ranges=[],
        notes=[],
    )
    return PageSet(pages=as_pages(data), about=about)


def write_page_set(
    path: str | os.PathLike[str],
    pages: Buffer,
    *,
    origin: str,
    ranges: Sequence[Range] = (),
    notes: Sequence[str] = (),
) -> SideFile:
    """Writes the pages of a contiguous buffer, and their side file.

    Both are readable by their owner alone. They appear once they are complete and replace a page
    set of the same name. Without `ranges` there is one range, from 0 on, with the name `origin`.

    Raises PageSetError, and ValueError where buffer or ranges do not have the same whole pages.
    """
    path = Path(path)
    view = memoryview(pages).cast("B")
    count, over = divmod(len(view), PAGE_SIZE)
    if over or not count:
        raise ValueError(f"the buffer has {len(view)} bytes; pass whole pages, one at least")
    ranges = ranges or [Range(pid=None, start=0, pages=count, name=origin)]
    in_ranges = sum(one.pages for one in ranges)
    if in_ranges != count:
        raise ValueError(f"the ranges have {in_ranges} pages, the buffer {count}")
    about = SideFile(
        origin=origin,
        captured_at=rfc3339_now(),
        page_count=count,
        sha256=hashlib.sha256(view).hexdigest(),
        ranges=list(ranges),
        notes=list(notes),
    )
    side = _side_path(path)
    for taken in (path, side):
        if taken.exists() and not taken.is_file():
            raise PageSetError(f"{taken} is not a regular file")
    # A side file may be replaced, and no other file of that name.
    _parse_side_file(side)
    fields = {name: value for name, value in asdict(about).items() if value is not None}
    try:
        _publish(path, view, json.dumps(fields, indent=2).encode() + b"\n")
    except OSError as error:
        raise PageSetError(f"cannot write {path}: {error.strerror}; nothing was kept") from error
    return about


def as_pages(data: bytes) -> memoryview:
    """A view of one page or more, in rows of 4096 bytes."""
    return memoryview(data).cast("B", (len(data) // PAGE_SIZE, PAGE_SIZE))


def rfc3339_now() -> str:
    """The time now: `2026-01-31T08:15:00Z`."""
    return _rfc3339(datetime.datetime.now(datetime.UTC).timestamp())


def _rfc3339(timestamp: float) -> str:
    time = datetime.datetime.fromtimestamp(timestamp, datetime.UTC)
    return time.strftime("%Y-%m-%dT%H:%M:%SZ")


def _side_path(path: Path) -> Path:
    return path.with_name(path.name + ".json")


def _parse_side_file(side: Path) -> SideFile | None:
    try:
        text = side.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise PageSetError(f"cannot read {side}: {error.strerror}") from error
    try:
        about = from_json(SideFile, json.loads(text))
    except (AttributeError, TypeError, ValueError) as error:
        raise PageSetError(
            f"{side} is not the side file of a page set: {error}; choose another name for the "
            "pages, or move this file"
        ) from error
    if about.format != _FORMAT:
        raise PageSetError(f"{side} has format {about.format}; this version reads {_FORMAT}")
    return about


def _read_side_file(path: Path, pages: int, sha256: str) -> SideFile | None:
    side = _side_path(path)
    about = _parse_side_file(side)
    if about is None:
        return None
    in_ranges = sum(one.pages for one in about.ranges) if about.ranges else pages
    for name, given, found in [
        ("page_count", about.page_count, pages),
        ("sum of the ranges", in_ranges, pages),
        ("sha256", about.sha256.lower(), sha256),
    ]:
        if given != found:
            raise PageSetError(
                f"{side} does not belong to {path}: its {name} is {given}, that of the pages is "
                f"{found}; delete the side file to use the pages without it"
            )
    return about


def _publish(path: Path, pages: memoryview, side_file: bytes) -> None:
    """Puts both files under their names. Between the two, the pages have no side file."""
    side = _side_path(path)
    written: list[str] = []
    try:
        for name, data in ((path, pages), (side, side_file)):
            # mkstemp makes it with mode 0600.
            file, part = tempfile.mkstemp(".part", f".{name.name}.", name.parent)
            written.append(part)
            with open(file, "wb") as out:
                out.write(data)
                out.flush()
                os.fsync(file)
        side.unlink(missing_ok=True)
        os.replace(written[0], path)
        os.replace(written[1], side)
        written.clear()
    finally:
        for part in written:
            Path(part).unlink(missing_ok=True)
