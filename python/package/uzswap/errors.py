"""The exceptions of the package, each with the message of the library or of the command."""

from __future__ import annotations


class Error(Exception):
    """Every exception of this package. Wrong types and lengths are Python's own exceptions."""


class OptionError(Error, ValueError):
    """An option is out of its range, or an unknown name."""


class BackingError(Error):
    """The file or device for cold pages cannot be used."""


class SnapshotError(Error):
    """A snapshot was not written or not restored."""


class TenantError(Error):
    """A tenant was not made or not removed."""


class TraceError(Error):
    """A trace was not written or not read."""


class PageSetError(Error):
    """A page set was not written or not read."""


class FleetError(Error):
    """A file of a fleet was not read or not written; the message names it."""


class PageError(Error):
    """One page was not stored or not loaded; `key` names it."""

    key: int

    def __init__(self, message: str, key: int) -> None:
        super().__init__(message, key)
        self.key = key

    def __str__(self) -> str:
        return str(self.args[0])


class StoreError(PageError):
    """The store refused a page; it holds nothing under the key now."""


class PoolLimitError(StoreError):
    """The store refused a page because of its limit, `max_pool_bytes`."""


class RefusedPagesError(StoreError):
    """The store refused some pages of a batch; it stored all others.

    `errors` has the error of each, in the order of their keys; `key` is the first key.
    """

    errors: list[StoreError]

    def __init__(self, pages: int, errors: list[StoreError]) -> None:
        super().__init__("", errors[0].key)
        self.args = (pages, errors)  # what a pickle is made of
        self.errors = errors

    def __str__(self) -> str:
        pages, errors = self.args
        return f"{len(errors)} of {pages} pages are refused; first: {errors[0]}"


class LoadError(PageError):
    """The store has a page, and cannot restore it: it is corrupt, or the backing failed."""


class CommandError(Error):
    """The command `uzswap` failed.

    `exit_code` is that of docs/reference/exit-codes.md, or the negative number of the signal that
    ended it; `stderr` is all that the command printed.
    """

    exit_code: int
    stderr: str

    def __init__(self, message: str, exit_code: int, stderr: str) -> None:
        super().__init__(message, exit_code, stderr)
        self.exit_code = exit_code
        self.stderr = stderr

    def __str__(self) -> str:
        return str(self.args[0])
