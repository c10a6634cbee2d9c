"""Lists of checksums: a line of JSON for each topic and each file of a log directory, to verify a backup against.

A list names the files of the log as it was when the list was written. Files never change, so a file that is still in
the manifest must be what the list says; a file that has left it since says nothing. A topic may have gone on since,
and must not have gone back (comparison.py).
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spark_segments.errors import InvalidOptionError, SegmentsError
from spark_segments.log import Hole, Segment, Snapshot
from spark_segments.signed_lists.file_checksum import FileChecksum, ListedPath, checksums_of
from spark_segments.storage import Storage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(slots=True)
class ChecksumList:
    """What a list says. `topics`: {topic: {"topic_id", "version", "log_end_offsets"}}. `files`: by path."""

    topics: dict[str, dict[str, Any]] = field(default_factory=dict)
    files: dict[str, FileChecksum] = field(default_factory=dict)

    @staticmethod
    def read(path: Path) -> ChecksumList:
        """The list in a file. Raises InvalidOptionError for a line that is none of a list."""
        return ChecksumList.of_lines(path, path.read_text(encoding="utf-8").splitlines())

    @classmethod
    def of_lines(cls, path: Path, lines: Iterable[str], first_number: int = 1) -> ChecksumList:
        """The list that lines of a file say. Raises InvalidOptionError."""
        checksums = cls()
        for number, line in enumerate(lines, start=first_number):
            try:
                value = json.loads(line)
                if "topic" in value:
                    checksums.topics[value.pop("topic")] = value
                else:
                    size = int(value["size"])
                    crc = int(value["crc32c"], 16)
                    sha256 = value.get("sha256", "")
                    next_offset = value.get("next_offset")
                    next_offset = None if next_offset is None else int(next_offset)
                    file = FileChecksum(value["path"], size, crc, sha256, next_offset)
                    checksums.files[file.path] = file
            except (ValueError, KeyError, TypeError) as error:
                raise InvalidOptionError(
                    "The file is no list of checksums",
                    path=str(path),
                    expected="a line of JSON with path, size and crc32c, or with topic",
                    found=f"line {number}: {line[:80]!r}",
                    hint="segments mirror --once and import write a list with --checksums FILE",
                ) from error
        return checksums

    def lines(self) -> list[str]:
        """The lines of the list: topics, then files."""
        lines = [json.dumps({"topic": topic, **facts}) for topic, facts in sorted(self.topics.items())]
        for _, file in sorted(self.files.items()):
            line: dict[str, Any] = {"path": file.path, "size": file.size, "crc32c": f"{file.crc32c:08x}"}
            if file.sha256:
                line["sha256"] = file.sha256
            if file.next_offset is not None:
                line["next_offset"] = file.next_offset
            lines.append(json.dumps(line))
        return lines

    def write(self, path: Path) -> None:
        """Writes the list, in place of an existing file. A crash leaves the old list or the new one."""
        replace_text(path, "".join(f"{line}\n" for line in self.lines()))


def replace_text(path: Path, text: str) -> None:
    """Writes a file, in place of an existing one. A crash leaves the old file or the new one."""
    written = path.with_name(f"{path.name}.tmp")
    written.write_text(text)
    os.replace(written, path)


def list_checksums(
    storage: Storage,
    snapshots: Sequence[Snapshot],
    checksums_before: Mapping[str, FileChecksum],
    spark: SparkSession | None = None,
    *,
    with_sha256: bool = False,
) -> ChecksumList:
    """The list of some topics. `checksums_before`: of files that need not be read, because files never change.

    Raises MissingFileError.
    """
    checksums = ChecksumList()
    unread: list[ListedPath] = []
    for snapshot in snapshots:
        checksums.topics[snapshot.topic] = {
            "topic_id": snapshot.topic_id,
            "version": snapshot.version,
            "log_end_offsets": {str(number): end for number, (_, end) in snapshot.offset_bounds().items()},
        }
        for path, size in files_of(snapshot):
            file = checksums_before.get(path)
            if file is not None and size in (None, file.size):
                checksums.files[path] = file
            else:
                unread.append((path, size))
    for checksum in checksums_of(storage, unread, spark, with_sha256=with_sha256):
        if isinstance(checksum, SegmentsError):
            raise checksum
        checksums.files[checksum.path] = checksum
    for snapshot in snapshots:
        for row in Segment.of_table(snapshot.live):
            if not row.is_shared:
                checksums.files[row.path] = replace(checksums.files[row.path], next_offset=row.next_offset)
    return checksums


def write_checksums(
    storage: Storage,
    snapshots: Sequence[Snapshot],
    path: Path,
    copied: Mapping[str, FileChecksum] | None = None,
    spark: SparkSession | None = None,
) -> None:
    """Writes the list of some topics. Files that the list in `path` has, or that `copied` has, are not read again."""
    listed = ChecksumList.read(path).files if path.exists() else {}
    list_checksums(storage, snapshots, {**listed, **(copied or {})}, spark).write(path)


def files_of(snapshot: Snapshot) -> Iterator[ListedPath]:
    """(path, size) of each file that the live rows name; None as the size of a shared object, which no row says."""
    rows = Segment.of_table(snapshot.live)
    for row in rows:
        yield from () if row.is_shared else row.files()
    for path in sorted({row.path for row in rows if row.is_shared}):
        yield path, None


def partitions_of(snapshot: Snapshot) -> dict[str, Any]:
    """{partition: its offsets, records, segments and holes}"""
    described: dict[str, Any] = {}
    for number, (start, end) in snapshot.offset_bounds().items():
        rows = snapshot.live_table(number)
        described[str(number)] = {
            "log_start_offset": start,
            "log_end_offset": end,
            "records": sum(rows.column("records").to_pylist()),
            "segments": rows.num_rows,
            "holes": [
                [hole.start_offset, hole.end_offset] for hole in Hole.of(snapshot.states) if hole.partition == number
            ],
        }
    return described
