"""Messages of magic 0 and 1, written by the layout in the format's own words."""

from __future__ import annotations

import gzip
import struct
import zlib


def message(offset: int, value: bytes | None, *, key: bytes | None = None, magic: int = 1, timestamp: int = 0,
            attributes: int = 0) -> bytes:  # fmt: skip
    """One message, CRC included."""

    def sized(content: bytes | None) -> bytes:
        return struct.pack(">i", -1) if content is None else struct.pack(">i", len(content)) + content

    body = struct.pack(">bb", magic, attributes) + (struct.pack(">q", timestamp) if magic else b"")
    body += sized(key) + sized(value)
    return struct.pack(">qiI", offset, len(body) + 4, zlib.crc32(body)) + body


def wrapper(offset: int, inner: bytes, *, magic: int = 1, timestamp: int = 0, attributes: int = 0) -> bytes:
    """A compressed message that holds others."""
    return message(offset, gzip.compress(inner, mtime=0), magic=magic, timestamp=timestamp, attributes=attributes | 1)
