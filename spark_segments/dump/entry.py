"""The parts of every dump: the source of files, options, entries, and the complaints about a file."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from spark_segments.errors import CorruptBatchError

WINDOW_BYTES = 1 << 20
# Of each list of complaints about a file, the last so many are kept.
MOST_COMPLAINTS = 100_000

LEFTOVER_SUFFIXES = (".deleted", ".cleaned", ".swap")

Entry = dict[str, Any]


class DumpSource(Protocol):
    """The source of files: a Storage, or anything that reads like a Storage."""

    def read(self, path: str, offset: int = 0, length: int | None = None) -> Any:
        """Bytes of a file; fewer where it ends."""

    def size(self, path: str) -> int:
        """The size of a file in bytes; FileNotFoundError where there is none."""


@dataclass(frozen=True, slots=True)
class DumpOptions:
    """The options of DumpLogSegments that apply here, with their values under `--deep-iteration`."""

    deep_iteration: bool = True  # records, not only batches
    verify_index_only: bool = False  # of indexes, only their faults
    max_bytes: int | None = None  # of a .log, only so much from its start
    max_message_bytes: int = 5 << 20  # the largest batch that an index entry may point to
    decoder: str | None = None  # of records that Kafka keeps for itself: one of DECODERS


class Complaints:
    """Pairs of numbers that do not fit each other: the last MOST_COMPLAINTS of them, and how many there were."""

    def __init__(self, kind: str, path: str, names: tuple[str, str]) -> None:
        self._kind = kind
        self._path = path
        self._names = names
        self._pairs: deque[tuple[int, int]] = deque(maxlen=MOST_COMPLAINTS)
        self._count = 0

    def add(self, first: int, second: int) -> None:
        self._pairs.append((first, second))
        self._count += 1

    def entries(self, *, newest_first: bool = True) -> Iterator[Entry]:
        """A single entry, or none without complaints. Kafka's tool shows most complaints newest first."""
        if self._count:
            pairs = reversed(self._pairs) if newest_first else self._pairs
            yield {
                "kind": self._kind,
                "file": self._path,
                "count": self._count,
                "pairs": [dict(zip(self._names, pair, strict=True)) for pair in pairs],
            }


def error_entry(error: CorruptBatchError) -> Entry:
    """Damage as an entry of a dump."""
    return {"kind": "error", "file": error.path, "position": error.byte_position, "message": str(error)}


def plain_path(path: str) -> str:
    """A path without the suffix of a file that Kafka is about to delete or put in place."""
    for suffix in LEFTOVER_SUFFIXES:
        path = path.removesuffix(suffix)
    return path


def path_beside(path: str, suffix: str) -> str:
    """The file of another kind (`log`, `index`) of the same segment."""
    plain = plain_path(path)
    return f"{plain.rpartition('.')[0]}.{suffix}{path[len(plain) :]}"


def base_offset_of(path: str) -> int | None:
    """The number that the file's name begins with, None where it does not."""
    number = path.rsplit("/", 1)[-1].split(".")[0].split("-")[0]
    return int(number) if number.isascii() and number.isdigit() else None
