"""`python -m uzswap ...` is the command `uzswap ...`: this process becomes it."""

from __future__ import annotations

import os
import sys

from uzswap.command import binary_path


def main() -> None:
    """Replaces this process by the command, with all arguments."""
    # Python ignores SIGPIPE and SIGXFSZ. The command sets both anew, for its programs too.
    os.execv(binary_path(), ["uzswap", *sys.argv[1:]])


if __name__ == "__main__":
    main()
