"""The checksum of a file: its size, the CRC-32C of its bytes and, for a signed list, their SHA-256.

A mirror notes those of the files that it copies, so that its list reads none of them again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from spark_segments.errors import CorruptBatchError, MissingFileError, SegmentsError
from spark_segments.execution import in_bins, run_tasks
from spark_segments.format.kernels.crc32c import crc32c
from spark_segments.storage import Storage
from spark_segments.storage.fetch import read_file

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

READ_BYTES = 8 << 20
_TASK_BYTES = 256 << 20
_TASK_FILES = 200

ListedPath: TypeAlias = tuple[str, int | None]
"""(path, how many of its first bytes belong to the log; None: all)"""


@dataclass(frozen=True, slots=True)
class FileChecksum:
    """A file of a log directory: its path there, its size in bytes, and the CRC-32C of all of its bytes; in a signed
    list their SHA-256, too. `next_offset`: the offset behind the last of a .log, as the manifest has it; None of other
    files, of a shared object, and in a list of a version up to 0.3.0.
    """

    path: str
    size: int
    crc32c: int
    sha256: str = ""
    next_offset: int | None = field(default=None, compare=False)

    def __str__(self) -> str:
        text = f"{self.size} bytes, CRC-32C {self.crc32c:08x}"
        return f"{text}, SHA-256 {self.sha256}" if self.sha256 else text


def checksums_of(
    storage: Storage, files: Iterable[ListedPath], spark: SparkSession | None, *, with_sha256: bool = False
) -> Iterator[FileChecksum | SegmentsError]:
    """The checksums of the files in their order; where a file cannot be read, its error in place of the checksum."""

    def begins(several: list[Any], total: int, _: object) -> bool:
        return total > _TASK_BYTES or len(several) >= _TASK_FILES

    tasks = list(in_bins(files, lambda file: file[1] or READ_BYTES, begins))
    for several in run_tasks(partial(_read_checksums, storage, with_sha256), tasks, spark):
        yield from several


def _read_checksums(
    storage: Storage, with_sha256: bool, files: Sequence[ListedPath]
) -> list[FileChecksum | SegmentsError]:
    """Task function: the checksums of several files."""
    return [_checksum(storage, path, size, with_sha256) for path, size in files]


def _checksum(storage: Storage, path: str, size: int | None, with_sha256: bool) -> FileChecksum | SegmentsError:
    """The checksum of a file, of its first `size` bytes (None: of all), or the error."""
    try:
        size = storage.size(path) if size is None else size
        sha256 = hashlib.sha256() if with_sha256 else None
        crc = crc_of_file(storage, path, size, sha256)
        return FileChecksum(path, size, crc, sha256.hexdigest() if sha256 else "")
    except SegmentsError as error:
        return error
    except FileNotFoundError:
        return MissingFileError.gone(storage.location(path))


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
