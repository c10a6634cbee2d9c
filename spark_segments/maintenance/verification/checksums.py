"""Lists of checksums: a line of JSON for each topic and each file of a log directory, to verify a backup against.

A list names the files of the log as it was when the list was written. Files never change, so a file that is still in
the manifest must be what the list says; a file that has left it since says nothing. A topic may have gone on since,
and must not have gone back.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spark_segments.errors import CorruptBatchError, InvalidOptionError, MissingFileError, SegmentsError
from spark_segments.execution import in_bins, run_tasks
from spark_segments.format.file_names import LOG_SUFFIX
from spark_segments.format.kernels.crc32c import crc32c
from spark_segments.log.directory import LogDirectory
from spark_segments.log.findings import Findings
from spark_segments.log.manifest.rows import Segment
from spark_segments.log.manifest.state.snapshot import Snapshot, live_rows
from spark_segments.log.manifest.state.states import Hole
from spark_segments.maintenance.verification.listed_files import ListedFiles
from spark_segments.storage import Storage
from spark_segments.storage.fetch import read_file

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

READ_BYTES = 8 << 20
_TASK_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class FileChecksum:
    """A file of a log directory: its path there, its size in bytes, and the CRC-32C of all of its bytes; in a signed
    list their SHA-256, too.
    """

    path: str
    size: int
    crc32c: int
    sha256: str = ""

    def __str__(self) -> str:
        text = f"{self.size} bytes, CRC-32C {self.crc32c:08x}"
        return f"{text}, SHA-256 {self.sha256}" if self.sha256 else text


@dataclass(slots=True)
class ChecksumList:
    """What a list says. `topics`: {topic: {"topic_id", "version", "log_end_offsets"}}. `files`: by path."""

    topics: dict[str, dict[str, Any]] = field(default_factory=dict)
    files: dict[str, FileChecksum] = field(default_factory=dict)

    @staticmethod
    def read(path: Path) -> ChecksumList:
        """The list in a file. Raises InvalidOptionError for a line that is none of a list."""
        return ChecksumList.of_lines(path, path.read_text(encoding="utf-8").splitlines())

    @staticmethod
    def of_lines(path: Path, lines: Iterable[str], first_number: int = 1) -> ChecksumList:
        """The list that lines of a file say. Raises InvalidOptionError."""
        checksums = ChecksumList()
        for number, line in enumerate(lines, start=first_number):
            try:
                value = json.loads(line)
                if "topic" in value:
                    checksums.topics[value.pop("topic")] = value
                else:
                    size, crc, sha256 = int(value["size"]), int(value["crc32c"], 16), value.get("sha256", "")
                    file = FileChecksum(value["path"], size, crc, sha256)
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
            sha256 = {"sha256": file.sha256} if file.sha256 else {}
            lines.append(json.dumps({"path": file.path, "size": file.size, "crc32c": f"{file.crc32c:08x}", **sha256}))
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
    known: Mapping[str, FileChecksum],
    spark: SparkSession | None = None,
    *,
    with_sha256: bool = False,
) -> ChecksumList:
    """The list of some topics. `known`: what need not be read, because files never change. Raises MissingFileError."""
    checksums = ChecksumList()
    wanted: list[tuple[str, int | None]] = []
    for snapshot in snapshots:
        checksums.topics[snapshot.topic] = {
            "topic_id": snapshot.topic_id,
            "version": snapshot.version,
            "log_end_offsets": {str(number): end for number, (_, end) in snapshot.offset_bounds().items()},
        }
        for path, size in files_of(snapshot):
            file = known.get(path)
            if file is not None and size in (None, file.size):
                checksums.files[path] = file
            else:
                wanted.append((path, size))
    for read in _checksums(storage, wanted, spark, with_sha256):
        if isinstance(read, SegmentsError):
            raise read
        checksums.files[read.path] = read
    return checksums


def write_checksums(
    storage: Storage,
    snapshots: Sequence[Snapshot],
    path: Path,
    copied: Mapping[str, FileChecksum] | None = None,
    spark: SparkSession | None = None,
) -> None:
    """Writes the list of some topics. Files that the list in `path` has, or that `copied` has, are not read again."""
    known = ChecksumList.read(path).files if path.exists() else {}
    list_checksums(storage, snapshots, {**known, **(copied or {})}, spark).write(path)


def files_of(snapshot: Snapshot) -> Iterator[tuple[str, int | None]]:
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


def check_against(
    log: LogDirectory, listed: ChecksumList, topics: Sequence[str] | None = None, spark: SparkSession | None = None
) -> tuple[list[Findings], int, ListedFiles]:
    """(the findings of each listed topic, or of the selected ones; the bytes read; what became of the listed files).

    A file that is in the list and not in the manifest is only counted: it has left the log since.
    """
    became = ListedFiles()
    every: list[Findings] = []
    read_bytes = 0
    by_directory: dict[str, list[FileChecksum]] = defaultdict(list)
    for file in listed.files.values():
        by_directory[file.path.rpartition("/")[0]].append(file)
    wanted_topics = set(LogDirectory.selected(listed.topics, topics))
    for name, facts in sorted(listed.topics.items()):
        if name not in wanted_topics:
            continue
        findings = Findings(name)
        every.append(findings)
        try:
            snapshot = log.snapshot(name)
            rows = snapshot.segments
        except SegmentsError as error:
            findings.add("A topic of the list of checksums cannot be read", expected=facts["topic_id"], found=error)
            continue
        _check_topic(snapshot, facts, findings)
        named = live_rows(rows)
        stems = {path.removesuffix(LOG_SUFFIX) for path in named.column("path").to_pylist()}
        mine = [
            file
            for directory in sorted(by_directory)
            if _topic_of(directory) == name
            for file in by_directory[directory]
        ]
        listed_stems = [file.path.rpartition(".")[0] for file in mine]
        became.add(log.manifest(name), facts["version"], listed_stems, stems, findings)
        wanted = [file for file, stem in zip(mine, listed_stems, strict=True) if stem in stems]
        is_signed = any(file.sha256 for file in wanted)
        read = _checksums(log.storage, [(file.path, None) for file in wanted], spark, is_signed)
        for expected, found in zip(wanted, read, strict=True):
            add = partial(findings.add, path=expected.path, expected=str(expected))
            if isinstance(found, MissingFileError):
                add("The file is missing", found="no file")
                continue
            if isinstance(found, SegmentsError):
                add("The file cannot be read", found=found)
                continue
            read_bytes += found.size
            if found != expected:
                add("The file is not that of the list of checksums", found=str(found))
    return every, read_bytes, became


def _topic_of(directory: str) -> str:
    """The topic of a directory of a partition, or of shared objects: a topic's name may have dashes, too."""
    return directory.rpartition("-")[0]


def _check_topic(snapshot: Snapshot, facts: Mapping[str, Any], findings: Findings) -> None:
    if snapshot.topic_id != facts["topic_id"]:
        message = "The topic is not that of the list of checksums"
        findings.add(message, expected=facts["topic_id"], found=snapshot.topic_id)
        return
    if snapshot.version < facts["version"]:
        message, expected = "The topic went back to a version before the list of checksums", facts["version"]
        findings.add(message, expected=f"version {expected} or later", found=snapshot.version)
    if snapshot.version == facts["version"] and (listed := facts.get("partitions")):
        for number, found in partitions_of(snapshot).items():
            if found != listed.get(number):
                message = "The partition is not that of the signed list, of the same version"
                findings.add(message, partition=int(number), expected=listed.get(number), found=found)
    ends = {str(number): end for number, (_, end) in snapshot.offset_bounds().items()}
    for number, end in facts["log_end_offsets"].items():
        if ends.get(number, -1) < end:
            message, found = "The log end is below that of the list of checksums", ends.get(number, "no partition")
            findings.add(message, partition=int(number), expected=f"at least {end}", found=found)


def _checksum(storage: Storage, path: str, size: int | None, with_sha256: bool) -> FileChecksum | SegmentsError:
    """That of a file, of its first `size` bytes (None: of all), or the error."""
    try:
        size = storage.size(path) if size is None else size
        sha256 = hashlib.sha256() if with_sha256 else None
        crc = crc_of_file(storage, path, size, sha256)
        return FileChecksum(path, size, crc, sha256.hexdigest() if sha256 else "")
    except SegmentsError as error:
        return error
    except FileNotFoundError:
        return MissingFileError.gone(storage.location(path))


def _checksums_of(
    storage: Storage, with_sha256: bool, files: Sequence[tuple[str, int | None]]
) -> list[FileChecksum | SegmentsError]:
    """Task function: the checksums of several files."""
    return [_checksum(storage, path, size, with_sha256) for path, size in files]


def _checksums(
    storage: Storage, files: Iterable[tuple[str, int | None]], spark: SparkSession | None, with_sha256: bool = False
) -> Iterator[FileChecksum | SegmentsError]:
    """Those of all files, in their order."""

    def begins(several: list[Any], total: int, _: object) -> bool:
        return total > _TASK_BYTES or len(several) >= 200

    tasks = list(in_bins(files, lambda file: file[1] or READ_BYTES, begins))
    for several in run_tasks(partial(_checksums_of, storage, with_sha256), tasks, spark):
        yield from several


def crc_of_file(storage: Storage, path: str, size: int, also: hashlib._Hash | None = None) -> int:
    """The CRC-32C of the first `size` bytes of a file; `also`: a hash that is updated with them, too.

    Raises MissingFileError where it is gone, CorruptBatchError where it is shorter.
    """
    crc = 0
    for byte_position in range(0, size, READ_BYTES):
        data = read_file(storage, path, byte_position, min(READ_BYTES, size - byte_position))
        end = byte_position + data.size
        if end < min(byte_position + READ_BYTES, size):
            raise CorruptBatchError(
                "The file is shorter than the log says",
                path=storage.location(path),
                byte_position=end,
                expected=f"{size} bytes",
                found=f"{end} bytes",
                hint="Run segments verify",
            )
        crc = crc32c(data, crc)
        if also is not None:
            also.update(data)
    return crc
