"""Encoded batches of a partition that wait in memory until it is known which file they go into."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa

from spark_segments.format.encoding.encode import Encoded
from spark_segments.log.segment.shared_object import SharedObjectWriter


class WaitingRun:
    """The batches of a partition with dense offsets from 0, in the order in which they were appended."""

    __slots__ = ("log_bytes", "next_offset", "parts")

    def __init__(self) -> None:
        self.parts: list[Encoded] = []
        self.log_bytes = 0
        self.next_offset = 0

    def append(self, encoded: Encoded) -> None:
        """Appends batches, which must begin at `next_offset`."""
        if len(encoded.batches):
            assert int(encoded.batches.base_offset[0]) == self.next_offset
            # The encoder's buffer has room for the batches before their compression.
            compact = pa.py_buffer(encoded.buffer.to_pybytes())
            self.parts.append(replace(encoded, buffer=compact))
            self.log_bytes += encoded.buffer.size
            self.next_offset = int(encoded.batches.last_offset[-1]) + 1

    def write(self, writer: SharedObjectWriter, partition: int, created_ms: int) -> None:
        """Writes the batches as a run of an object."""
        writer.begin(partition, created_ms)
        for encoded in self.parts:
            writer.append(np.frombuffer(encoded.buffer, np.uint8), encoded.batches)
            writer.add_tombstones(encoded.tombstones)
