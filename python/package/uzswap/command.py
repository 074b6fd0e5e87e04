"""The command `uzswap` from Python: `compare`, `capture` and `advise`."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeAlias, overload

from uzswap.documents import advise as advise_document
from uzswap.documents import capture as capture_document
from uzswap.documents import compare as compare_document
from uzswap.documents import compare_limit as compare_limit_document
from uzswap.documents import from_json
from uzswap.errors import CommandError

Option: TypeAlias = (
    str | int | float | bool | None | os.PathLike[str] | Iterable[str | int | float]
)
Command: TypeAlias = Iterable[str | os.PathLike[str]]

# How long a command that was asked to end may take to put things in order.
_PATIENCE_S = 10


def binary_path() -> Path:
    """The path of the command `uzswap` that this package carries."""
    return Path(__file__).parent / "bin" / "uzswap"


@overload
def compare(
    command: Command = (), /, *, limit: str | int, **options: Option
) -> compare_limit_document.CompareLimit: ...


@overload
def compare(
    command: Command = (), /, *, preset: str, **options: Option
) -> compare_limit_document.CompareLimit: ...


@overload
def compare(
    command: Command = (), /, *, limit: None = None, preset: None = None, **options: Option
) -> compare_document.Compare: ...


def compare(
    command: Command = (), /, **options: Option
) -> compare_document.Compare | compare_limit_document.CompareLimit:
    """Compares allocators and compressors on pages, as `uzswap compare`.

    The options are those of the command, with `_` for `-`: a list is joined by commas, True is
    an option without a value, None and False leave it out. docs/reference/commands.md has all.
    With `limit` or `preset`, the command runs in less memory and the result is a CompareLimit.

    >>> import uzswap
    >>> result = uzswap.compare(size="4M", zpool=["zsmalloc", "zbud"], compressor="lz4", runs=1)
    >>> [(it.zpool, it.stored_pages > 900) for it in result.combinations]
    [('zsmalloc', True), ('zbud', True)]

    Raises CommandError where the command fails. An exception in between, such as
    KeyboardInterrupt, ends it.
    """
    document = _run("compare", command, options)
    if document["schema"] == "uzswap-compare-limit/1":
        return from_json(compare_limit_document.CompareLimit, document)
    return from_json(compare_document.Compare, document)


def capture(
    command: Command = (), /, *, output: str | os.PathLike[str], **options: Option
) -> capture_document.Capture:
    """Writes the pages of a process, a command or a file to a page set, as `uzswap capture`.

    `read_page_set` reads it. Options and exceptions are as of `compare`.

    >>> import os, tempfile, uzswap
    >>> path = os.path.join(tempfile.mkdtemp(), "job.pages")
    >>> uzswap.capture(["sleep", "0.2"], output=path).page_count > 0
    True
    """
    return from_json(
        capture_document.Capture, _run("capture", command, {"output": output, **options})
    )


def advise(command: Command = (), /, **options: Option) -> advise_document.Advise:
    """Finds settings of `run`, zram and zswap for a program or this machine: `uzswap advise`.

    Options and exceptions are as of `compare`. `try_=True` is the option `--try`.
    """
    return from_json(advise_document.Advise, _run("advise", command, options))


def _arguments(options: dict[str, Option]) -> list[str]:
    """The options as a command line has them."""
    arguments = []
    for name, value in options.items():
        option = "--" + name.rstrip("_").replace("_", "-")
        if value is True:
            arguments.append(option)
        elif isinstance(value, (str, os.PathLike)):
            arguments.append(f"{option}={os.fspath(value)}")
        elif isinstance(value, (int, float)) and value is not False:
            arguments.append(f"{option}={value}")
        elif value:
            arguments.append(f"{option}={','.join(map(str, value))}")
    return arguments


def _run(name: str, command: Command, options: dict[str, Option]) -> dict[str, Any]:
    """Runs the command and reads its document."""
    if isinstance(command, (str, bytes)):
        raise TypeError(f"a command is a list of words; pass [{command!r}], or shlex.split of it")
    with tempfile.TemporaryDirectory(prefix="uzswap-") as folder:
        document = Path(folder) / "document.json"
        arguments = [name, f"--json={document}", *_arguments(options)]
        words = [os.fspath(word) for word in command]
        if words:
            arguments += ["--", *words]
        # Standard output has the text, and what a command of the caller prints.
        child = subprocess.Popen(
            [binary_path(), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        with child:
            try:
                _, stderr = child.communicate()
            except BaseException:
                _end(child)
                raise
        text = stderr.decode(errors="replace")
        if child.returncode != 0:
            raise CommandError(_message(name, child.returncode, text), child.returncode, text)
        read: dict[str, Any] = json.loads(document.read_bytes())
        return read


def _end(child: subprocess.Popen[bytes]) -> None:
    """Ends the command: it may put things in order first."""
    child.send_signal(signal.SIGTERM)
    try:
        child.wait(_PATIENCE_S)
    except subprocess.TimeoutExpired:
        child.kill()


def _message(name: str, exit_code: int, stderr: str) -> str:
    """The command's own last message, or how it ended."""
    told: list[str] = re.findall(r"^(?:uzswap|error): (.+(?:\n.+)*)", stderr, re.MULTILINE)
    if told:
        return told[-1]
    end = f"signal {-exit_code}" if exit_code < 0 else f"exit code {exit_code}"
    return f"uzswap {name} ended with {end}: {stderr.strip()}"
