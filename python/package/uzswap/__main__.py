"""`python -m uzswap ...` is the command `uzswap ...`: this process becomes it."""

from __future__ import annotations

import os
import signal
import sys

from uzswap.command import binary_path


def main() -> None:
    """Replaces this process by the command, with all arguments."""
    # Python ignores these two, and what is ignored stays so. The command gets what a shell gives.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    path = binary_path()
    os.execv(path, ["uzswap", *sys.argv[1:]])


if __name__ == "__main__":
    main()
