"""Copies of a log directory: a module makes a log once, and each test changes a copy of its own."""

from __future__ import annotations

import shutil
from pathlib import Path

from spark_segments import LogDir


def copy_of(log: LogDir, directory: Path) -> LogDir:
    """A copy of a local log directory in `directory`, which does not exist yet."""
    shutil.copytree(log.uri, directory)
    return LogDir.open(str(directory))
