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
from dataclasses import dataclass, field

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
    files = _Files({file_name(info): info for info in listing})
    deleted = [name for name in files.names if name.endswith(DELETED_SUFFIX)]
    files.leave_out(deleted, "deleted before the broker stopped")
    _leave_out_unfinished(files)
    _leave_out_replaced(files, next_offset)
    logs = [(base, files.names[name]) for name, base in files.base_offsets().items() if is_log_name(name)]
    logs.sort(key=lambda log: (log[0], log[1].path))
    return ChosenFiles(tuple(logs), files.names, tuple(files.passed_over))


@dataclass(slots=True)
class _Files:
    """The files of a directory by name, and those that were left out of them so far and why."""

    names: dict[str, FileInfo]
    passed_over: list[tuple[FileInfo, str]] = field(default_factory=list)

    def base_offsets(self, suffix: str = "") -> dict[str, int]:
        """{name: base offset} of the segments' files whose names end with `suffix`."""
        offsets = {name: base_offset(name) for name in self.names if name.endswith(suffix)}
        return {name: base for name, base in offsets.items() if base is not None}

    def leave_out(self, names: Iterable[str], reason: str) -> None:
        self.passed_over.extend((self.names.pop(name), reason) for name in sorted(names))


def _leave_out_unfinished(files: _Files) -> None:
    """Leaves out what a killed cleaner had not finished: `.cleaned` files, and each `.swap` of the same split.

    A cleaner renames the parts of a split one by one, the last part first:

        0.cleaned   100.cleaned   200.swap      killed in between: the segments that they replace still count
        0.swap      100.swap      200.swap      all are renamed: from here on the .swap files count
    """
    cleaned = files.base_offsets(CLEANED_SUFFIX)
    if not cleaned:
        return
    lowest_cleaned = min(cleaned.values())
    unfinished = [name for name, base in files.base_offsets(SWAP_SUFFIX).items() if base >= lowest_cleaned]
    files.leave_out(unfinished, "part of a split that did not come to its end")
    files.leave_out(cleaned, "the cleaner did not come to its end")


def _leave_out_replaced(files: _Files, next_offset: Callable[[FileInfo], int]) -> None:
    """Leaves out what the remaining `.swap` files replace: the segments in their range, and files of their names."""
    swaps = files.base_offsets(SWAP_SUFFIX)
    swapped_logs = [name for name in swaps if is_log_name(name)]
    # A killed cleaner leaves the segments that the .swap files replace beside them: both would be read.
    if swapped_logs:
        first = min(swaps[name] for name in swapped_logs)
        end = max(next_offset(files.names[name]) for name in swapped_logs)
        bases = files.base_offsets()
        replaced = [name for name, base in bases.items() if name not in swaps and first <= base < end]
        files.leave_out(replaced, "compacted into a .swap file")
    files.leave_out([name for name in files.names if name + SWAP_SUFFIX in swaps], "replaced by a .swap file")


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
