"""Logs that delta-rs commits to, so that what it wrote reaches the disk before it is a commit."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from spark_segments.storage import FileInfo, Storage


@dataclass(frozen=True, slots=True)
class ScratchLog:
    """A table in a temporary directory: its log has links to files of another table's log, and what delta-rs adds."""

    directory: str

    def read(self, name: str) -> bytes:
        """A file of the log."""
        with open(os.path.join(self.directory, "_delta_log", name), "rb") as file:
            return file.read()


@contextlib.contextmanager
def scratch_log(storage: Storage, files: Sequence[FileInfo]) -> Iterator[ScratchLog]:
    """A scratch log of these files of a table's log. It is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="spark-segments-") as directory:
        log = os.path.join(directory, "_delta_log")
        os.mkdir(log)
        for file in files:
            os.symlink(storage.location(file.path), os.path.join(log, os.path.basename(file.path)))
        yield ScratchLog(directory)
