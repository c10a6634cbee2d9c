"""The files of a partition directory as they were at one moment, and whether they are that still.

A running broker appends to the last segment, rolls it, replaces segments by cleaned ones, and deletes segments: it
renames their files to `.deleted` first. What is read of a directory is put together from many reads, so it is true only
if every file was the listed one throughout.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from spark_segments.errors import LogDirError
from spark_segments.kafka.leftovers import DELETED_SUFFIX, base_offset, file_name, is_log_name
from spark_segments.storage import FileInfo, Storage


class ChangingPartitionError(LogDirError):
    """The files of a partition change faster than they can be read."""


@dataclass(frozen=True, slots=True)
class Listing:
    """The files of a directory that are the segments of a log. `passed_over`: the paths of its other files."""

    directory: str
    files: tuple[FileInfo, ...]
    passed_over: frozenset[str]

    def changed_file(self, storage: Storage, from_offset: int = 0, *, was_read: bool = True) -> str | None:
        """The path of a file that is not what it was when it was listed, or that is new among the segments; None where
        all is as it was. Segments with base offsets below `from_offset` are not looked at.

        Where all was read (`was_read`), a file that was deleted since, and that a broker keeps under another name for a
        while, is what it was. The last segment may have grown, and its indexes may have been cut to their entries.
        """
        now = {info.path: info for info in storage.list(self.directory)}
        bases = {info.path: base_offset(file_name(info)) or 0 for info in self.files}
        last = max(bases.values(), default=-1)
        for info in self.files:
            if bases[info.path] < from_offset:
                continue
            found = now.get(info.path) or (now.get(info.path + DELETED_SUFFIX) if was_read else None)
            if found is None or not _is_same(info, found, is_last=bases[info.path] == last):
                return info.path
        known = bases.keys() | self.passed_over
        return next((path for path in _logs(now.values(), from_offset, last) if path not in known), None)


def _is_same(info: FileInfo, later: FileInfo, *, is_last: bool) -> bool:
    if later.version != info.version:
        return False
    is_log = is_log_name(file_name(info))
    if is_last and info.version:
        return later.size >= info.size or not is_log
    # The modification time of an index says little: a broker writes it through memory, and flushes it later.
    return later.size == info.size and (later.mtime_ms == info.mtime_ms or not is_log)


def _logs(files: Iterable[FileInfo], first: int, last: int) -> list[str]:
    names = ((info.path, file_name(info)) for info in files)
    return [path for path, name in names if is_log_name(name) and first <= (base_offset(name) or 0) <= last]
