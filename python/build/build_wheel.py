"""Builds the wheel: the command `uzswap` first, which the package carries, then maturin's part.

UZSWAP_BINARY names a command that is built already. MATURIN_PEP517_ARGS goes to maturin, as
`--profile dev`.
"""

import os
import shutil
import subprocess
from pathlib import Path

import maturin
from maturin import get_requires_for_build_wheel, prepare_metadata_for_build_wheel

__all__ = ["build_wheel", "get_requires_for_build_wheel", "prepare_metadata_for_build_wheel"]

PACKAGE = Path(__file__).parent.parent


def built_command():
    """The path of the command, which cargo builds unless it is given."""
    given = os.environ.get("UZSWAP_BINARY")
    if given:
        return Path(given)
    workspace = PACKAGE.parent
    build = ["cargo", "build", "--release", "--locked", "--package", "uzswap-cli"]
    build += ["--features", "fleet"]  # as the package's own extension has
    subprocess.run(build, cwd=workspace, check=True)
    return workspace / os.environ.get("CARGO_TARGET_DIR", "target") / "release" / "uzswap"


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    command = PACKAGE / "package" / "uzswap" / "bin" / "uzswap"
    command.parent.mkdir(exist_ok=True)
    shutil.copy(built_command(), command)
    return maturin.build_wheel(wheel_directory, config_settings, metadata_directory)


def build_sdist(sdist_directory, config_settings=None):
    raise NotImplementedError("the package needs the whole repository: build its wheel in a clone")
