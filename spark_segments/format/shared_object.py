"""The footer of a shared object: which runs of record batches it holds, and where their index entries lie.

An object has the runs of several partitions one after another, then the index entries of each run, then the footer. A
reader that has the manifest's rows needs no footer: it serves verification, and a rebuild of lost rows. The layout is
that of docs/format/shared-objects.md.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

import numpy as np

from spark_segments.errors import RESTORE, CorruptBatchError
from spark_segments.format.kernels.crc32c import crc32c

FOOTER_VERSION = 1
MAGIC = b"SEGRUNS\n"

RUN_DTYPE = np.dtype(
    [
        ("partition", ">i4"),
        ("position", ">i8"),
        ("log_bytes", ">i8"),
        ("index_position", ">i8"),
        ("index_bytes", ">i4"),
        ("time_index_bytes", ">i4"),
        ("offsets", ">i8"),
        ("records", ">i8"),
        ("batches", ">i8"),
    ]
)
"""A run: where its batches and index entries begin, their sizes, and its numbers of offsets, records and batches."""

HEADER_STRUCT = struct.Struct(
    ">h"  # version
    "q"  # created_ms
    "i"  # number of runs
    "h"  # bytes of the topic id, which follows as UTF-8
)
TRAILER_STRUCT = struct.Struct(
    ">I"  # CRC-32C of the footer's content: header, topic id and runs
    "i"  # bytes of that content
    "8s"  # magic
)
TRAILER_BYTES = TRAILER_STRUCT.size


@dataclass(frozen=True, slots=True)
class Footer:
    """What a shared object says of itself. `runs`: RUN_DTYPE[n], by partition. The footer begins at `byte_position`."""

    topic_id: str
    created_ms: int
    runs: np.ndarray
    byte_position: int


def footer_bytes(topic_id: str, created_ms: int, runs: np.ndarray) -> bytes:
    """The last bytes of an object with these runs."""
    name = topic_id.encode()
    content = HEADER_STRUCT.pack(FOOTER_VERSION, created_ms, len(runs), len(name)) + name + runs.tobytes()
    return content + TRAILER_STRUCT.pack(crc32c(content), len(content), MAGIC)


def footer_size(trailer: Any, object_bytes: int, *, path: str) -> int:
    """Bytes of the footer, trailer included, by an object's last TRAILER_BYTES. Raises CorruptBatchError."""
    byte_position = max(0, object_bytes - TRAILER_BYTES)
    if len(trailer) != TRAILER_BYTES:
        raise _damaged("The file is too short for a shared object", path, 0, f"{TRAILER_BYTES} bytes", object_bytes)
    _, content_bytes, magic = TRAILER_STRUCT.unpack(trailer)
    if magic != MAGIC:
        raise _damaged("The file does not end as a shared object does", path, byte_position, MAGIC, magic)
    if not HEADER_STRUCT.size <= content_bytes <= byte_position:
        expected = f"{HEADER_STRUCT.size} to {byte_position} bytes of footer"
        raise _damaged("The footer of a shared object has a wrong size", path, byte_position, expected, content_bytes)
    return int(content_bytes) + TRAILER_BYTES


def parse_footer(footer: Any, object_bytes: int, *, path: str) -> Footer:
    """The footer, from its `footer_size` bytes. Raises CorruptBatchError where it is damaged or contradicts itself."""
    data = bytes(footer)
    byte_position = object_bytes - len(data)
    content = data[:-TRAILER_BYTES]
    crc, _, _ = TRAILER_STRUCT.unpack(data[-TRAILER_BYTES:])
    if crc32c(content) != crc:
        raise _damaged("The checksum of a shared object's footer is wrong", path, byte_position, crc, crc32c(content))
    version, created_ms, count, name_bytes = HEADER_STRUCT.unpack_from(content)
    if version != FOOTER_VERSION:
        raise _damaged("The footer has an unknown version", path, byte_position, FOOTER_VERSION, version)
    start = HEADER_STRUCT.size + name_bytes
    if len(content) != start + count * RUN_DTYPE.itemsize:
        expected = start + count * RUN_DTYPE.itemsize
        raise _damaged("The footer of a shared object has a wrong size", path, byte_position, expected, len(content))
    runs = np.frombuffer(content, RUN_DTYPE, count, start)
    _check_runs(runs, byte_position, path)
    try:
        topic_id = content[HEADER_STRUCT.size : start].decode()
    except UnicodeDecodeError as error:
        message = "The topic id in a shared object's footer is no text"
        raise _damaged(message, path, byte_position, "UTF-8", content[HEADER_STRUCT.size : start]) from error
    return Footer(topic_id, created_ms, runs, byte_position)


def _check_runs(runs: np.ndarray, footer_position: int, path: str) -> None:
    """Runs begin at 0 and follow one another, then their index entries do, up to the footer."""
    index_bytes = runs["index_bytes"].astype(np.int64) + runs["time_index_bytes"]
    starts = np.concatenate([runs["position"], runs["index_position"], [footer_position]]).astype(np.int64)
    ends = np.concatenate([[0], starts[:-1] + np.concatenate([runs["log_bytes"], index_bytes])])
    wrong = starts != ends
    if wrong.any():
        at = int(wrong.argmax())
        message = "The parts of a shared object overlap or leave a gap"
        raise _damaged(message, path, int(starts[at]), int(ends[at]), int(starts[at]))


def _damaged(message: str, path: str, byte_position: int, expected: object, found: object) -> CorruptBatchError:
    return CorruptBatchError(
        message, path=path, byte_position=byte_position, expected=expected, found=found, hint=RESTORE
    )
