"""A broker's log directory below its replication-offset-checkpoint: what all in-sync replicas have.

A broker writes the high watermark of each partition to that file every few seconds. Records above it may be replaced
when another broker takes over the partition. The view below it never has to take anything back, and a running broker
may write on behind it.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import pyarrow as pa

from spark_segments.errors import InvalidOptionError, LogDirError
from spark_segments.format.legacy.message_sets import with_first_offsets
from spark_segments.format.sidecars.checkpoints import REPLICATION_OFFSETS_FILE, parse_offsets
from spark_segments.log.kafka.leftovers import base_offset, file_name
from spark_segments.log.manifest.rows import INDEX_SUFFIX, LOG_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX
from spark_segments.log.segment.files import read_file
from spark_segments.log.segment.walk import walk
from spark_segments.storage import FileInfo, Storage
from spark_segments.storage.filesystem import Found
from spark_segments.storage.local import LocalFiles

_SIDECARS = (INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX)
"""What lies beside a .log and speaks of what is behind its end, too. Recovery makes it anew."""


class CommittedFiles(LocalFiles):
    """Local files, some of which end at a size of long ago, and some of which are not there. Paths are full paths."""

    def __init__(self) -> None:
        self.sizes: dict[str, int] = {}
        self.hidden: set[str] = set()

    def read(self, path: str, offset: int, length: int | None) -> pa.Buffer:
        self._check(path)
        if path in self.sizes:
            rest = max(0, self.sizes[path] - offset)
            length = rest if length is None else min(length, rest)
        return super().read(path, offset, length)

    def size(self, path: str) -> int:
        self._check(path)
        size = super().size(path)
        return min(size, self.sizes.get(path, size))

    def exists(self, path: str) -> bool:
        return path not in self.hidden and super().exists(path)

    def list(self, path: str, recursive: bool) -> Found:
        found = []
        for name, size, mtime_ms, version in super().list(path, recursive):
            full = f"{path.rstrip('/')}/{name}"
            if full not in self.hidden:
                found.append((name, min(size, self.sizes.get(full, size)), mtime_ms, version))
        return found

    def _check(self, path: str) -> None:
        if path in self.hidden:
            raise FileNotFoundError(path)


def committed_storage(storage: Storage) -> tuple[Storage, list[str]]:
    """(the directory below its high watermarks, the topics that have any, sorted).

    A partition without a high watermark is one that the broker has just begun: it is empty. Raises LogDirError where
    there is no replication-offset-checkpoint, InvalidOptionError for a directory that is not local.
    """
    if not storage.is_local:
        raise InvalidOptionError("A broker's disk is local", path=storage.uri, expected="a directory of this machine")
    try:
        offsets = parse_offsets(storage.read(REPLICATION_OFFSETS_FILE), path=REPLICATION_OFFSETS_FILE)
    except FileNotFoundError as error:
        raise LogDirError(
            f"The directory has no {REPLICATION_OFFSETS_FILE}: nobody can tell what all replicas have",
            path=storage.uri,
            hint="Name the log.dirs of a broker, or import it: segments import takes all that is there",
        ) from error
    files = CommittedFiles()
    topics = {topic for topic, _ in offsets}
    for directory in storage.directories():
        topic, _, number = directory.rpartition("-")
        if topic in topics and number.isdecimal():
            _limit(storage, directory, offsets.get((topic, int(number)), 0), files)
    return Storage(storage.uri, dict(storage.storage_options), filesystem=files), sorted(topics)


def _limit(storage: Storage, directory: str, high_watermark: int, files: CommittedFiles) -> None:
    """Ends a partition's files at the high watermark."""
    listing = storage.list(directory)
    logs = {info.path: info for info in listing if info.path.endswith(LOG_SUFFIX)}
    bases = {path: base_offset(file_name(info)) for path, info in logs.items()}
    below = [base for base in bases.values() if base is not None and base <= high_watermark]
    last = max(below, default=None)
    for info in listing:
        base, full = base_offset(file_name(info)), storage.location(info.path)
        if base is None:
            continue
        if base > high_watermark or last is None:
            files.hidden.add(full)
        elif info.path in logs:
            size = _size_below(storage, info, high_watermark) if base == last else info.size
            files.sizes[full] = size
            if base == last and size < info.size:
                files.hidden |= {full.removesuffix(LOG_SUFFIX) + suffix for suffix in _SIDECARS}


def _size_below(storage: Storage, info: FileInfo, offset: int) -> int:
    """The size of a .log up to its first batch that reaches an offset.

    Where the log ends below the offset, it is the size of the file: what is damaged there is for recovery to find.
    """
    for step in walk(partial(read_file, storage, info.path), info.path, info.size, check_crc=False):
        batches = with_first_offsets(step.window)
        beyond = np.flatnonzero(batches.last_offset >= offset)
        if len(beyond):
            return int(batches.position[beyond[0]])
        if len(batches) and int(batches.last_offset[-1]) + 1 >= offset:
            return step.end_position  # a running broker may be in the midst of the next batch
    return info.size
