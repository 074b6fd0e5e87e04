"""zswap in user space: a compressed page store, and the command `uzswap`.

`Store` keeps pages of 4096 bytes in less memory, and `Values` values of 1 byte to 1 MiB.
`compare`, `capture` and `advise` run the command that this package carries, and return its
documents as dataclasses. `read_page_set`, `write_page_set`, `read_trace` and `TraceRecorder` read
and write its files. The module `uzswap.fleet` replays the samples of many machines.
"""

from uzswap._uzswap import Store, Tenant, TraceRecorder, Values
from uzswap.command import advise, binary_path, capture, compare
from uzswap.errors import (
    BackingError,
    CommandError,
    Error,
    FleetError,
    LoadError,
    OptionError,
    PageError,
    PageSetError,
    PoolLimitError,
    RefusedPagesError,
    SnapshotError,
    StoreError,
    TenantError,
    TraceError,
)
from uzswap.page_sets import PAGE_SIZE, PageSet, SideFile, read_page_set, write_page_set
from uzswap.traces import EVENT_KINDS, Trace, read_trace

__all__ = [
    "EVENT_KINDS",
    "PAGE_SIZE",
    "BackingError",
    "CommandError",
    "Error",
    "FleetError",
    "LoadError",
    "OptionError",
    "PageError",
    "PageSet",
    "PageSetError",
    "PoolLimitError",
    "RefusedPagesError",
    "SideFile",
    "SnapshotError",
    "Store",
    "StoreError",
    "Tenant",
    "TenantError",
    "Trace",
    "TraceError",
    "TraceRecorder",
    "Values",
    "advise",
    "binary_path",
    "capture",
    "compare",
    "read_page_set",
    "read_trace",
    "write_page_set",
]
