"""The files of a partition directory that Kafka wrote: which of them are its log, and whether they have changed since.

Kafka may have crashed at any moment. The rules come from Kafka's LogLoader, before it opens any segment. LogLoader
deletes and renames files; this module only chooses.

A running broker appends to the last segment, rolls it, replaces segments by cleaned ones, and deletes segments: it
renames their files to `.deleted` first. What is read of a directory is put together from many reads, so it is true only
if every file was the listed one throughout.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from spark_segments.errors import LogDirError
from spark_segments.format.file_names import LOG_SUFFIX
from spark_segments.storage import FileInfo, Storage

DELETED_SUFFIX = ".deleted"
CLEANED_SUFFIX = ".cleaned"
SWAP_SUFFIX = ".swap"

# `<base offset>.log`, in tiered storage `<base offset>-<segment id>.log`. Files of other kinds have other names.
_SEGMENT_FILE = re.compile(r"(?P<base>\d{20})(?P<id>-[A-Za-z0-9_-]{22})?(?P<suffix>\.[a-z_]+)(?P<state>\.[a-z]+)?")


@dataclass(frozen=True, slots=True)
class ChosenFiles:
    """The .log files of a partition by base offset, its files by name, and the files that were left out and why."""

    logs: tuple[tuple[int, FileInfo], ...]
    files: dict[str, FileInfo]  # by file name, without the files that were left out
    passed_over: tuple[tuple[FileInfo, str], ...]


def file_name(info: FileInfo) -> str:
    """The last part of a file's path."""
    return info.path.rpartition("/")[2]


def base_offset(name: str) -> int | None:
    """The base offset in the name of a segment's file, None for a file of another kind."""
    match = _SEGMENT_FILE.fullmatch(name)
    return int(match["base"]) if match else None


def is_log_name(name: str) -> bool:
    """Whether a file of this name is a segment's .log, or a .log that the cleaner was about to put in place."""
    match = _SEGMENT_FILE.fullmatch(name)
    return match is not None and match["suffix"] == LOG_SUFFIX and match["state"] in (None, SWAP_SUFFIX)


def is_tiered_name(name: str) -> bool:
    """Whether this is the name of a segment's file in tiered storage."""
    match = _SEGMENT_FILE.fullmatch(name)
    return match is not None and match["id"] is not None


def choose_files(listing: Iterable[FileInfo], next_offset: Callable[[FileInfo], int]) -> ChosenFiles:
    """The log among the files of a partition directory.

    `.deleted` and `.cleaned` files are left out. A `.swap` is left out where a `.cleaned` file with a base offset at or
    below the `.swap`'s shows that the swap was not complete; else it replaces all segments in its offset range.
    `next_offset` gives the offset after the last offset of a `.log.swap`.
    """
    names = {file_name(info): info for info in listing}
    passed_over: list[tuple[FileInfo, str]] = []

    def drop(chosen: list[str], reason: str) -> None:
        passed_over.extend((names.pop(name), reason) for name in sorted(chosen))

    drop([name for name in names if name.endswith(DELETED_SUFFIX)], "deleted before the broker stopped")
    offsets = {name: base_offset(name) for name in names}
    bases = {name: base for name, base in offsets.items() if base is not None}
    cleaned = {name: base for name, base in bases.items() if name.endswith(CLEANED_SUFFIX)}
    swaps = {name: base for name, base in bases.items() if name.endswith(SWAP_SUFFIX)}
    lowest_cleaned = min(cleaned.values(), default=None)
    if lowest_cleaned is not None:
        unfinished = [name for name, base in swaps.items() if base >= lowest_cleaned]
        drop(unfinished, "part of a split that did not come to its end")
        drop(list(cleaned), "the cleaner did not come to its end")
        swaps = {name: base for name, base in swaps.items() if name in names}
    swapped_logs = [name for name in swaps if is_log_name(name)]
    # A killed cleaner leaves the segments that the .swap files replace beside them: both would be read.
    if swapped_logs:
        first = min(swaps[name] for name in swapped_logs)
        end = max(next_offset(names[name]) for name in swapped_logs)
        replaced = [name for name in names if name in bases and name not in swaps and first <= bases[name] < end]
        drop(replaced, "compacted into a .swap file")
    drop([name for name in names if name + SWAP_SUFFIX in swaps], "replaced by a .swap file")
    logs = [(bases[name], info) for name, info in names.items() if is_log_name(name)]
    return ChosenFiles(tuple(sorted(logs, key=lambda log: (log[0], log[1].path))), names, tuple(passed_over))


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
            current = now.get(info.path)
            if current is None and was_read:
                current = now.get(info.path + DELETED_SUFFIX)
            if current is None or not _is_same(info, current, is_last=bases[info.path] == last):
                return info.path
        listed = bases.keys() | self.passed_over
        return next((path for path in _logs(now.values(), from_offset, last) if path not in listed), None)


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
