"""Kafka's own serializers of single values: ShortSerializer to DoubleSerializer (big-endian), UUIDSerializer (text),
StringSerializer (UTF-8). Whole columns by numpy.
"""

from __future__ import annotations

import re

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_segments.errors import InvalidOptionError, reason_of
from spark_segments.values.undecodable import Undecodable

NUMBERS = {
    "short": (pa.int16(), ">i2"),
    "int": (pa.int32(), ">i4"),
    "long": (pa.int64(), ">i8"),
    "float": (pa.float32(), ">f4"),
    "double": (pa.float64(), ">f8"),
}
UUID = re.compile("^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$")


def read_numbers(array: pa.BinaryArray, name: str) -> pa.Array:
    """The numbers of rows of the format's width. Raises Undecodable with the first row of another width."""
    kind, dtype = NUMBERS[name]
    width = np.dtype(dtype).itemsize
    offsets = np.frombuffer(array.buffers()[1], np.int32, len(array) + 1, array.offset * 4) if len(array) else [0]
    wrong = np.flatnonzero(np.diff(offsets) != width)
    if wrong.size:
        row = int(wrong[0])
        raise Undecodable(f"a {name} has {width} bytes, and here are {offsets[row + 1] - offsets[row]}", row)
    data = array.buffers()[2]
    numbers = np.frombuffer(data if data else b"", dtype, len(array), int(offsets[0]))
    return pa.array(numbers.astype(np.dtype(dtype).newbyteorder("=")), kind)


def write_numbers(array: pa.Array, name: str) -> pa.BinaryArray:
    """Each number in the format's bytes. Raises Undecodable for a number that does not fit."""
    kind, dtype = NUMBERS[name]
    if kind == pa.float32() and pa.types.is_float64(array.type):
        raise InvalidOptionError("A double does not fit a float without a loss", hint="Cast the column to float")
    numbers = cast(array, kind).to_numpy(zero_copy_only=False).astype(dtype)
    width = np.dtype(dtype).itemsize
    offsets = np.arange(len(array) + 1, dtype=np.int32) * np.int32(width)
    return pa.Array.from_buffers(
        pa.binary(), len(array), [None, pa.py_buffer(offsets), pa.py_buffer(numbers.tobytes())]
    )


def read_text(array: pa.BinaryArray) -> pa.StringArray:
    """Text of UTF-8."""
    try:
        return array.cast(pa.string())
    except pa.ArrowInvalid:
        raise Undecodable("not UTF-8") from None


def uuids(text: pa.StringArray) -> pa.StringArray:
    """The same text. Raises Undecodable unless each is a UUID as java.util.UUID writes it."""
    right = pc.match_substring_regex(text, UUID.pattern)
    if not pc.all(right, min_count=0).as_py():
        raise Undecodable("not a UUID of 36 characters", int(pc.index(right, pa.scalar(False)).as_py()))
    return text


def cast(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """The array as another type, without loss."""
    try:
        return array.cast(kind)
    except pa.ArrowNotImplementedError as error:
        raise InvalidOptionError(
            "The column's type does not fit its format", expected=kind, found=array.type
        ) from error
    except pa.ArrowInvalid as error:
        raise Undecodable(reason_of(error)) from None
