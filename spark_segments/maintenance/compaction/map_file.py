"""An offset map that goes from task to task: its used slots in a file of the partition's directory.

No row ever names such a file, so vacuum deletes the files that a crash leaves.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from spark_segments.format.cleaner.layout import BYTES_PER_SLOT
from spark_segments.format.cleaner.offset_map import OffsetMap
from spark_segments.storage import Storage

SUFFIX = ".offsetmap"
PIECE_BYTES = (8 << 20) // BYTES_PER_SLOT * BYTES_PER_SLOT


@dataclass(frozen=True, slots=True)
class MapFile:
    """The file with the slots of a map, and the map's other attributes: see `OffsetMap`."""

    path: str
    start_offset: int
    end_offset: int
    entries: int
    full: bool
    seed: int

    def pieces(self, storage: Storage) -> Iterator[np.ndarray]:
        """The slots, as `OffsetMap.used_slots` gave them, a piece of the file at a time."""
        file_bytes = self.entries * BYTES_PER_SLOT
        for byte_position in range(0, file_bytes, PIECE_BYTES):
            data = storage.read(self.path, byte_position, min(PIECE_BYTES, file_bytes - byte_position))
            yield np.frombuffer(data, np.uint64).copy()  # the kernel takes writable arrays


def write_map(storage: Storage, topic: str, partition: int, offset_map: OffsetMap) -> MapFile:
    """Writes the slots of a map into a new file."""
    path = f"{topic}-{partition}/{uuid.uuid4().hex}{SUFFIX}"
    with storage.stream(path, unique=True) as stream:
        for used in offset_map.used_slots(PIECE_BYTES):
            stream.write(used)
    return MapFile(
        path,
        offset_map.start_offset,
        offset_map.end_offset,
        offset_map.entries,
        offset_map.full,
        offset_map.seed,
    )


def merge_file(storage: Storage, offset_map: OffsetMap, file: MapFile) -> bool:
    """As `OffsetMap.merge`, of a map that is in a file."""
    return offset_map.merge_slots(lambda: file.pieces(storage), file.entries, file.end_offset)


def read_map(storage: Storage, file: MapFile, memory_bytes: int, load_factor: float) -> OffsetMap:
    """The map that was written, with the same bound on its memory."""
    offset_map = OffsetMap(memory_bytes, start_offset=file.start_offset, load_factor=load_factor, seed=file.seed)
    fits = merge_file(storage, offset_map, file)
    assert fits, "a map fits into a map of the same size"
    return offset_map
