"""Copying the files of a leader's rows: each to a new file here, compared with what was read there.

Every batch is checked by its CRC, so damage at the leader stops a mirror and does not travel. A copy that an
earlier run finished, and did not commit, is checked the same and used; what it left unfinished is vacuum's.
"""

from __future__ import annotations

import dataclasses
import itertools
import uuid
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow.compute as pc

from spark_segments.errors import CorruptBatchError, MissingFileError, SegmentsError
from spark_segments.execution import in_bins
from spark_segments.format.file_names import LOG_SUFFIX, PRODUCER_SNAPSHOT_SUFFIX
from spark_segments.format.kernels.crc32c import crc32c
from spark_segments.format.legacy import opened
from spark_segments.format.walk import WINDOW_BYTES
from spark_segments.log import Change, Segment, SegmentFile, Snapshot
from spark_segments.signed_lists.file_checksum import FileChecksum, crc_of_file
from spark_segments.storage import Storage
from spark_segments.storage.fetch import copy_file

TASK_BYTES = 256 << 20
"""About how many bytes a task on Spark copies. In this process each file is a task."""


@dataclass(frozen=True, slots=True)
class FileSet:
    """A .log with its sidecars, or a shared object, to be copied: the leader's rows that name it.

    `path_is_used`: the leader's path cannot be the path here. `has_producers`: a .snapshot may lie beside the .log.
    """

    rows: tuple[Segment, ...]
    path_is_used: bool = False
    has_producers: bool = False

    @property
    def path(self) -> str:
        return self.rows[0].path

    @property
    def log_bytes(self) -> int:
        """Bytes of the rows' batches."""
        return sum(row.log_bytes for row in self.rows)


@dataclass(frozen=True, slots=True)
class CopiedSet:
    """The copy of a FileSet: the leader's path of its .log or object, the path here, its files. `bytes_read` may be 0
    where an earlier run had copied them.
    """

    source_path: str
    path: str
    files: tuple[FileChecksum, ...]
    bytes_read: int


def file_sets(rows: Sequence[Segment], used: set[str], imported: set[int]) -> list[FileSet]:
    """The files of rows. `used`: the paths that cannot be the paths here. `imported`: the numbers of partitions whose
    segments may have a .snapshot.
    """
    by_path: dict[str, list[Segment]] = defaultdict(list)
    for row in rows:
        by_path[row.path].append(row)
    return [
        FileSet(tuple(several), path in used, not several[0].is_shared and several[0].partition in imported)
        for path, several in by_path.items()
    ]


def partitions_with_producers(snapshot: Snapshot) -> set[int]:
    """The numbers of the imported partitions whose segments may have a .snapshot beside them."""
    imported = snapshot.partitions.filter(pc.is_valid(snapshot.partitions.column("producer_snapshot")))
    return set(imported.column("partition").to_pylist())


def copy_tasks(sets: Sequence[FileSet], *, on_spark: bool) -> list[list[FileSet]]:
    """The copies of each task."""

    def begins(_: list[FileSet], total: int, files: FileSet) -> bool:
        return not on_spark or total + files.log_bytes > TASK_BYTES

    return list(in_bins(sets, lambda files: files.log_bytes, begins))


@dataclass(frozen=True, slots=True)
class Copier:
    """Task function: copies several sets of files from the leader's storage to the follower's.

    `forced`: the copies have reached the disk before a manifest names them.

    Raises MissingFileError for a file that the leader has no more, CorruptBatchError for a damaged file there.
    """

    source: Storage
    target: Storage
    forced: bool = False

    def __call__(self, sets: Sequence[FileSet]) -> list[CopiedSet]:
        copied = [self._copied(files) for files in sets]
        if self.forced:  # an earlier run may have died before it did
            self.target.force(file.path for done in copied for file in done.files)
        return copied

    def _copied(self, files: FileSet) -> CopiedSet:
        if not files.path_is_used:
            try:
                return self._copy(files, files.path)
            except FileExistsError:
                finished = self._finished(files)
                if finished is not None:
                    return finished
        return self._copy(files, _own_path(files.path))

    def _copy(self, files: FileSet, path: str) -> CopiedSet:
        """Copies to `path`. Raises FileExistsError where there is any of the files."""
        copied = []
        for source_path, target_path, size in self._files(files, path):
            try:
                if source_path == files.path and not files.rows[0].is_shared:
                    crc = self._copy_log(files.rows[0], target_path)
                else:
                    crc = copy_file(self.source, source_path, self.target, target_path, size)
                if source_path != files.path or not self.target.is_local:
                    self._compare(source_path, target_path, size, crc)
                if files.rows[0].is_shared:
                    self._checked(target_path, size, files.rows)
            except CorruptBatchError as error:
                error.path = self.source.location(source_path)
                error.hint = "The follower stays as it is. Run segments verify --deep on the leader"
                raise
            copied.append(FileChecksum(target_path, size, crc))
        return CopiedSet(files.path, path, tuple(copied), sum(file.size for file in copied))

    def _copy_log(self, row: Segment, target_path: str) -> int:
        """Copies a .log, every batch of which is checked before it is written. Returns the CRC-32C of what was read."""
        crc = 0
        pieces = SegmentFile(self.source, row).windows(first_window_bytes=WINDOW_BYTES, as_written=True)
        first = list(itertools.islice(pieces, 1))  # where the file is gone, none is made
        with self.target.stream(target_path) as stream:
            for window in itertools.chain(first, pieces):
                data = memoryview(window.data)[: int(window.batches.size.sum())]
                stream.write(data)
                crc = crc32c(data, crc)
            assert stream.bytes_written == row.log_bytes, "a walk goes through a .log to its end, or raises"
        return crc

    def _compare(self, source_path: str, target_path: str, size: int, read: int) -> None:
        """Reads a copy back and raises SegmentsError where it is not what was read.

        What a store has is known by reading it. A .log on this machine would come back from the memory of the operating
        system, which has what was written: its batches were checked before.
        """
        try:
            written = f"{crc_of_file(self.target, target_path, size):08x}"
        except CorruptBatchError:
            written = "a shorter file"
        if written != f"{read:08x}":
            raise SegmentsError(
                "A copy is not what was read",
                path=self.target.location(target_path),
                expected=f"CRC-32C {read:08x} of {self.source.location(source_path)}",
                found=written,
                hint="Run the mirror again: it copies the file to another path. The store or the machine that "
                "copied it may be at fault",
            )

    def _finished(self, files: FileSet) -> CopiedSet | None:
        """The copy that an earlier run has finished at the leader's path; None where it is not whole, or so old that
        vacuum may take it for a file that nobody names.
        """
        oldest_ms = self.target.now_ms() - Change.OLDEST_FILE_MS
        directory = files.path.rpartition("/")[0]
        existing = {info.path: info for info in self.target.list(directory)}
        copied = []
        for source_path, target_path, size in self._files(files, files.path):
            info = existing.get(target_path)
            # A file as old may be deleted by vacuum before the commit that names it.
            if info is None or info.size != size or info.mtime_ms < oldest_ms:
                return None
            try:
                crc = self._checked(target_path, size, files.rows, checks_counts=True)
            except (CorruptBatchError, FileNotFoundError):
                return None
            # Without batches, or with more than these: compared with the leader's.
            by_batches = target_path == files.path and not files.rows[0].is_shared
            if not by_batches and crc != crc_of_file(self.source, source_path, size):
                return None
            copied.append(FileChecksum(target_path, size, crc))
        return CopiedSet(files.path, files.path, tuple(copied), 0)

    def _files(self, files: FileSet, path: str) -> Iterator[tuple[str, str, int]]:
        """(path at the leader, path here, size) of each file of a set, the .log first."""
        row = files.rows[0]
        if row.is_shared:
            yield row.path, path, self._size(row.path)
            return
        here = dataclasses.replace(row, path=path)
        for (source_path, size), (target_path, _) in zip(row.files(), here.files(), strict=True):
            yield source_path, target_path, size
        producers = row.stem + PRODUCER_SNAPSHOT_SUFFIX
        if files.has_producers and self.source.exists(producers):
            yield producers, here.stem + PRODUCER_SNAPSHOT_SUFFIX, self._size(producers)

    def _size(self, path: str) -> int:
        try:
            return self.source.size(path)
        except FileNotFoundError as error:
            raise MissingFileError.gone(self.source.location(path)) from error

    def _checked(self, path: str, size: int, rows: Sequence[Segment], *, checks_counts: bool = False) -> int:
        """The CRC-32C of a file here. Raises CorruptBatchError where it has damaged batches or, if it
        `checks_counts`, other batches than its rows count.
        """
        if not path.endswith(LOG_SUFFIX):
            return crc_of_file(self.target, path, size)
        crc = crc_of_file(self.target, path, size) if rows[0].is_shared else 0
        for row in rows:
            here = dataclasses.replace(row, path=path)
            batches = 0
            records = 0
            for window in SegmentFile(self.target, here).windows(first_window_bytes=WINDOW_BYTES, as_written=True):
                batches += len(window.batches)
                records += sum(int(part.batches.count.sum()) for part in opened(window))
                if not row.is_shared:
                    crc = crc32c(memoryview(window.data)[: int(window.batches.size.sum())], crc)
            if checks_counts and (batches, records) != (row.batches, row.records):
                raise CorruptBatchError("Other batches than the row counts", path=path)
        return crc


def _own_path(path: str) -> str:
    """A path for a copy of a leader's file that cannot have the leader's path."""
    return f"{path.removesuffix(LOG_SUFFIX)}_{uuid.uuid4().hex}{LOG_SUFFIX}"
