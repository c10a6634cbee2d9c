"""Base64, as JSON carries bytes, for whole columns (RFC 4648, with padding)."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from spark_segments.values.column_types import valid_bits
from spark_segments.values.rows import offsets_of
from spark_segments.values.text.text_kernels import base64_bytes, base64_text
from spark_segments.values.undecodable import Undecodable

_ALPHABET = np.frombuffer(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/", np.uint8)
_VALUES = np.full(256, 255, np.uint8)
_VALUES[_ALPHABET] = np.arange(64, dtype=np.uint8)


def _parts(array: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """(offsets int64[n + 1] from 0, bytes) of a binary array, in which a null is empty."""
    filled = array.fill_null(b"") if array.null_count else array
    offsets = offsets_of(filled)
    data = filled.buffers()[2] if len(filled) else None
    content = np.frombuffer(data if data else b"", np.uint8)[offsets[0] : offsets[-1]]
    return offsets - offsets[0], content


def _binary(array: pa.Array, offsets: np.ndarray, data: np.ndarray) -> pa.LargeBinaryArray:
    content = [valid_bits(array), pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(data))]
    return pa.Array.from_buffers(pa.large_binary(), len(array), content)


def decode(array: pa.StringArray) -> pa.BinaryArray:
    """The bytes of each text; null stays null. Raises Undecodable for text that is not base64."""
    offsets, text = _parts(array.cast(pa.binary()))
    ends = np.zeros(len(array) + 1, np.int64)
    data = np.empty(len(text) // 4 * 3, np.uint8)
    wrong = base64_bytes(text, offsets, _VALUES, data, ends[1:])
    if wrong >= 0:
        raise Undecodable("not base64", wrong)
    return _binary(array, ends, data[: ends[-1]]).cast(pa.binary())


def encode(array: pa.BinaryArray | pa.LargeBinaryArray) -> pa.LargeStringArray:
    """The text of each value; null stays null."""
    offsets, data = _parts(array)
    to = np.concatenate([[0], np.cumsum((np.diff(offsets) + 2) // 3 * 4)])
    text = np.empty(int(to[-1]), np.uint8)
    base64_text(data, offsets, text)
    return _binary(array, to, text).cast(pa.large_string())
