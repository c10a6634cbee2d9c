"""Decompression of sections, many a call, into memory that is taken again and again.

LZ4 and snappy are read by kernels. The libraries of gzip and zstd are called once a section. What none of these takes
at once is left to `decompress`, which says what is wrong with damaged bytes.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from spark_segments.format.buffers import byte_view
from spark_segments.format.compression import decompress, decompress_at_once
from spark_segments.format.decoding import decode_kernels
from spark_segments.format.decoding.fields import ADDRESS, BUFFER, BUFFER_ADDRESS, CODEC, END, POSITION
from spark_segments.format.layout import GZIP, LZ4, SNAPPY, ZSTD
from spark_segments.format.window import Window

# Bytes and batches decompressed at a time, at most. Fewer bytes cost more calls, more do not stay in a CPU's cache.
OPENED_BYTES = 512 * 1024
_MOST_OPENED = 1024  # by a kernel
_MOST_OPENED_AT_ONCE = 128  # by a library, which costs more than the lines around it

KERNEL_CODECS = frozenset((LZ4, SNAPPY))
LIBRARY_CODECS = frozenset((GZIP, ZSTD))

# A frame of LZ4 says how many blocks it has, not their size: it needs room for full ones.
_FRAME_ROOM_BYTES = 256 * 1024


class SectionOpener:
    """Decompresses sections of a window (int64[n, SECTION_FIELDS]) and points them to the output.

    With `keep` each call takes new memory, for columns of views; without it, a call overwrites what the one before has
    given.
    """

    def __init__(self, window: Window, sections: np.ndarray, *, keep: bool = False) -> None:
        self._window = window
        self._sections = sections
        self._keep = keep
        self._view = byte_view(window.data)
        self._address = int(self._view.__array_interface__["data"][0])
        self._memory: pa.Buffer | None = None
        self._buffers: list[pa.Buffer] = [pa.py_buffer(window.data)] if keep else []

    def open(self, first: int, wanted_bytes: int) -> int:
        """Decompresses sections from `first` on until there are about `wanted_bytes` of output, OPENED_BYTES at most.

        Returns how many: one at least, and none behind a section without a codec. Raises CorruptBatchError where the
        first is damaged; sections before a damaged one come without it.
        """
        wanted_bytes = max(1, min(wanted_bytes, OPENED_BYTES))
        run = self._sections[first:]
        if self._keep:
            self._memory = None
            self._buffers = self._buffers[:1]
        else:
            self._buffers = []
        codec = int(run[0, CODEC])
        opened = 0
        if codec in KERNEL_CODECS:
            opened = self._open_to_memory(run, wanted_bytes)
        elif codec in LIBRARY_CODECS:
            opened = self._open_at_once(run, codec, wanted_bytes)
        return opened or self._open_first(run)

    def buffers(self) -> list[pa.Buffer]:
        """With `keep`, the buffers of uncompressed sections and of those opened last, by number; else empty."""
        return self._buffers if self._keep else []

    def _room(self) -> pa.Buffer:
        if self._memory is None:
            self._memory = pa.allocate_buffer(OPENED_BYTES + _FRAME_ROOM_BYTES)
        return self._memory

    def _open_to_memory(self, sections: np.ndarray, wanted_bytes: int) -> int:
        """Decompresses leading sections of LZ4 or snappy into the memory.

        0 where the first is left to `decompress`: another kind of frame, damage, or too large for the memory.
        """
        memory = self._room()
        count = int(decode_kernels.open_sections(sections[:_MOST_OPENED], memory, wanted_bytes))
        if self._keep and count:
            sections[:count, BUFFER] = len(self._buffers)
            sections[:count, BUFFER_ADDRESS] = memory.address
            self._buffers.append(memory)
        return count

    def _open_at_once(self, sections: np.ndarray, codec: int, wanted_bytes: int) -> int:
        """Decompresses leading sections of gzip or zstd. 0 where the first is left to `decompress`."""
        sections = sections[:_MOST_OPENED_AT_ONCE]
        other = sections[:, CODEC] != codec
        same = sections[: int(np.argmax(other))] if other.any() else sections
        starts, ends = same[:, ADDRESS] - self._address, same[:, END] - self._address
        return self._point(same, decompress_at_once(codec, self._view.data, starts, ends, wanted_bytes))

    def _open_first(self, sections: np.ndarray) -> int:
        start, end = (sections[0, (ADDRESS, END)] - self._address).tolist()
        codec = int(sections[0, CODEC])
        byte_position = int(sections[0, POSITION])
        path = self._window.path
        part = decompress(codec, self._view[start:end], path=path, byte_position=byte_position)
        return self._point(sections, [part])

    def _point(self, sections: np.ndarray, parts: list[bytes] | list[pa.Buffer]) -> int:
        """Points leading sections to the parts, and keeps these. How many there are."""
        count = len(parts)
        buffers = list(map(pa.py_buffer, parts)) if self._keep else parts
        decode_kernels.point_sections(sections, buffers)
        if self._keep:
            sections[:count, BUFFER] = np.arange(len(self._buffers), len(self._buffers) + count)
            sections[:count, BUFFER_ADDRESS] = sections[:count, ADDRESS]
        self._buffers += buffers
        return count
