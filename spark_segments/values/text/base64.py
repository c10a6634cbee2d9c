"""Base64, as JSON carries bytes, for whole columns by numpy (RFC 4648, with padding)."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from spark_segments.values.column_types import valid_bits
from spark_segments.values.undecodable import Undecodable

_ALPHABET = np.frombuffer(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/", np.uint8)
_PAD = ord("=")
_BAD = 255
_VALUES = np.full(256, _BAD, np.uint8)
_VALUES[_ALPHABET] = np.arange(64, dtype=np.uint8)


def _parts(array: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """(offsets int64[n + 1] from 0, bytes) of a binary array, in which a null is empty."""
    filled = array.fill_null(b"") if array.null_count else array
    if not len(filled):
        return np.zeros(1, np.int64), np.zeros(0, np.uint8)
    offsets = np.frombuffer(filled.buffers()[1], np.int32, len(filled) + 1, filled.offset * 4).astype(np.int64)
    data = filled.buffers()[2]
    content = np.frombuffer(data if data else b"", np.uint8)[offsets[0] : offsets[-1]]
    return offsets - offsets[0], content


def _binary(array: pa.Array, offsets: np.ndarray, data: np.ndarray) -> pa.BinaryArray:
    content = [valid_bits(array), pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(np.ascontiguousarray(data))]
    return pa.Array.from_buffers(pa.binary(), len(array), content)


def decode(array: pa.StringArray) -> pa.BinaryArray:
    """The bytes of each text; null stays null. Raises Undecodable for text that is not base64."""
    offsets, text = _parts(array.cast(pa.binary()))
    if (offsets % 4).any():
        raise Undecodable("not base64: its length is no multiple of 4", int(np.flatnonzero(np.diff(offsets) % 4)[0]))
    pads = (text == _PAD).reshape(-1, 4)
    values = _VALUES[text].reshape(-1, 4)
    values[pads] = 0
    last = np.zeros(len(pads), bool)  # padding may only end a value
    last[offsets[1:][np.diff(offsets) > 0] // 4 - 1] = True
    misplaced = pads[:, :2].any(axis=1) | (pads[:, 2] & ~pads[:, 3]) | (pads[:, 3] & ~last)
    if misplaced.any() or (values == _BAD).any():
        raise Undecodable("not base64")
    quads = values.astype(np.uint32)
    whole = quads[:, 0] << 18 | quads[:, 1] << 12 | quads[:, 2] << 6 | quads[:, 3]
    data = np.stack([whole >> 16, whole >> 8, whole], axis=1).astype(np.uint8)
    sizes = 3 - pads.sum(axis=1)
    kept = np.arange(3)[None, :] < sizes[:, None]
    before = np.concatenate([[0], np.cumsum(sizes)])
    return _binary(array, before[offsets // 4], data[kept])


def encode(array: pa.BinaryArray) -> pa.StringArray:
    """The text of each value; null stays null."""
    offsets, data = _parts(array)
    sizes = np.diff(offsets)
    groups = (sizes + 2) // 3
    to = np.concatenate([[0], np.cumsum(groups)])
    room = np.zeros(int(to[-1]) * 3, np.uint8)
    room[np.arange(len(data)) + np.repeat(to[:-1] * 3 - offsets[:-1], sizes)] = data
    threes = room.reshape(-1, 3).astype(np.uint32)
    whole = threes[:, 0] << 16 | threes[:, 1] << 8 | threes[:, 2]
    text = _ALPHABET[np.stack([whole >> 18, whole >> 12 & 63, whole >> 6 & 63, whole & 63], axis=1)].reshape(-1)
    missing = groups * 3 - sizes
    text[to[1:][missing > 0] * 4 - 1] = _PAD
    text[to[1:][missing == 2] * 4 - 2] = _PAD
    return _binary(array, to * 4, text).cast(pa.string())
