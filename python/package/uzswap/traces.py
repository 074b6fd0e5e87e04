"""Traces: the stores, loads and frees of a run in their order, as columns."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from uzswap import _uzswap
from uzswap.page_sets import as_pages

if TYPE_CHECKING:
    import pyarrow

#: The kinds of events, by their number in `Trace.kinds`.
EVENT_KINDS = ("store", "store-same-filled", "load", "free")


@dataclass(frozen=True, kw_only=True, slots=True)
class Trace:
    """A trace. Columns have an item an event; `numpy.asarray` takes them without a copy."""

    #: The command that was recorded, in words.
    origin: str
    #: When it started: RFC 3339, UTC.
    recorded_at: str
    #: False where the file was cut off: these are the events up to there.
    is_complete: bool
    #: The kind of each event, 8 bits: a number in EVENT_KINDS.
    kinds: memoryview
    #: When it ended, in nanoseconds since the start, 64 bits.
    ns: memoryview
    #: Its key, 64 bits.
    keys: memoryview
    #: Of a store, 64 bits: the row in `pages`, or the word that a same-filled page repeats. Else 0.
    contents: memoryview
    #: The distinct pages: unsigned bytes, rows of 4096. None where there are none, and
    #: where they were not asked for.
    pages: memoryview | None

    def to_arrow(self) -> pyarrow.Table:
        """The events as an Arrow table, without a copy. Needs pyarrow."""
        import pyarrow

        kinds = pyarrow.DictionaryArray.from_arrays(_array(pyarrow.int8(), self.kinds), EVENT_KINDS)
        columns = {"ns": self.ns, "key": self.keys, "content": self.contents}
        arrays = {name: _array(pyarrow.uint64(), column) for name, column in columns.items()}
        return pyarrow.table({"kind": kinds, **arrays})


def read_trace(path: str | os.PathLike[str], *, pages: bool = True) -> Trace:
    """Reads a trace of `uzswap run --record`, or of a TraceRecorder, into memory.

    Without `pages` the events alone are kept, 25 bytes each.

    Raises TraceError where the file is no trace or is damaged other than by a cut.
    """
    about, (kinds, ns, keys, contents, data) = _uzswap.read_trace(os.fspath(path), pages)
    origin, recorded_at, is_complete = about
    return Trace(
        origin=origin,
        recorded_at=recorded_at,
        is_complete=is_complete,
        kinds=memoryview(kinds),
        ns=memoryview(ns).cast("Q"),
        keys=memoryview(keys).cast("Q"),
        contents=memoryview(contents).cast("Q"),
        pages=as_pages(data) if pages and data else None,
    )


def _array(kind: pyarrow.DataType, column: memoryview) -> pyarrow.Array:
    import pyarrow

    return pyarrow.Array.from_buffers(kind, len(column), [None, pyarrow.py_buffer(column)])
