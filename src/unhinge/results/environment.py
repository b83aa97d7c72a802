"""With what a result was made: versions, commit, platform."""

from __future__ import annotations

import platform
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TypedDict

__all__ = ["Environment", "commit", "environment"]


class Environment(TypedDict):
    """What is kept beside a result."""

    versions: dict[str, str]  # of Python and packages
    commit: str | None
    platform: str


def environment() -> Environment:
    """Versions, commit and platform, to be kept beside a result."""
    versions = {"python": platform.python_version()}
    for package in ("unhinge", "torch", "numpy", "matplotlib"):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = "not installed as a package"
    return {"versions": versions, "commit": commit(), "platform": f"{sys.platform} {platform.machine()}"}


def commit() -> str | None:
    """The commit of the source tree, with `+changes` if it was edited since; None outside a repository."""
    folder = Path(__file__).parent

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, check=True, timeout=20)
        return done.stdout.strip()

    try:
        if not git("ls-files", "--", "../__init__.py"):  # installed inside some other repository
            return None
        return git("rev-parse", "HEAD") + ("+changes" if git("status", "--porcelain", "--", "..") else "")
    except (OSError, subprocess.SubprocessError):
        return None
