"""Confluent's wire format: a zero byte, the schema's id in four bytes, for Protobuf the message's place in its file.
Frames of other serializers, turned into that format. And a guess of the format of bytes, for users who do not know it.
"""

from __future__ import annotations

import contextlib
import json
import uuid
import zlib
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_segments.values.rows import offsets_of
from spark_segments.values.undecodable import Undecodable

HEADER_BYTES = 5
GUID_BYTES = 17
"""A byte 1 and a schema's GUID: an id in a header of the record."""
GLUE_BYTES = 18
"""AWS Glue's: a byte 3, 0 or 5 for what zlib compressed, the GUID of a schema version."""
MOST_PLAIN_BYTES = 64 << 20
"""Of a value that Glue's serializer compressed."""
_MOST_INDEXES = 32


def header(schema_id: int) -> bytes:
    """The five bytes before a value."""
    return b"\0" + schema_id.to_bytes(4, "big")


def schema_ids(array: pa.BinaryArray) -> np.ndarray:
    """The schema id of each row: int64[n]. Raises Undecodable with the first row without an id."""
    offsets = offsets_of(array)
    starts = offsets[:-1]
    sizes = np.diff(offsets)
    if not len(starts):
        return np.zeros(0, np.int64)
    data = np.frombuffer(array.buffers()[2] or b"", np.uint8)
    short = sizes < HEADER_BYTES
    heads = data[np.where(short, 0, starts)[:, None] + np.arange(HEADER_BYTES)] if not short.all() else None
    if heads is None or short.any() or heads[:, 0].any():
        wrong = short if heads is None else short | (heads[:, 0] != 0)
        raise Undecodable(
            "no magic byte 0 and schema id in front, and no id in a header", int(np.flatnonzero(wrong)[0])
        )
    ids: np.ndarray = heads[:, 1:].astype(np.int64) @ np.array([1 << 24, 1 << 16, 1 << 8, 1])
    return ids


def framed(
    values: pa.BinaryArray,
    headers: pa.ListArray | None,
    name: str,
    number_of_guid: Callable[[str], int],
    *,
    is_glue: bool,
) -> pa.BinaryArray:
    """Values in Confluent's wire format where their schema's id is in the record's header `name`, by number or GUID, as
    serializers of 2025 write it, or with `is_glue` in AWS Glue's frame. Other values stay. `number_of_guid`: an id that
    stands for a GUID.
    """

    def prefix(head: bytes) -> bytes:
        if head[:1] == b"\1" and len(head) >= GUID_BYTES:
            return header(number_of_guid(str(uuid.UUID(bytes=head[1:GUID_BYTES])))) + head[GUID_BYTES:]
        return head

    rows, heads = _heads_in_headers(headers, name)
    values = _prefixed(values, rows, heads, prefix)
    if not is_glue or not len(values):
        return values
    glue_rows = np.setdiff1d(_rows_like_glue(values), rows)
    if not glue_rows.size:
        return values
    contents = [_plain(value) for value in values.take(pa.array(glue_rows)).to_pylist()]
    # A value may begin with a 3 by chance: what is no frame of Glue's stays as it was.
    glue_rows = glue_rows[[content is not None for content in contents]]
    framed_values = values.take(pa.array(glue_rows))
    plain = pa.array([content for content in contents if content is not None], pa.binary())
    heads = pc.binary_join_element_wise(b"\1", pc.binary_slice(framed_values, 2, GLUE_BYTES), b"")
    rest = pc.replace_with_mask(values, _mask(glue_rows, len(values)), plain)
    return _prefixed(rest, glue_rows, heads, prefix)


def _heads_in_headers(headers: pa.ListArray | None, name: str) -> tuple[np.ndarray, pa.BinaryArray]:
    """(the rows that have a header of this name, its value in each of them; of two in a row the last counts)."""
    nothing = np.zeros(0, np.int64), pa.array([], pa.binary())
    if headers is None or not len(headers):
        return nothing
    entries = headers.flatten()
    if not len(entries):
        return nothing
    names = entries.field("key")
    counts = pc.list_value_length(headers).fill_null(0)
    rows_of_entries = np.repeat(np.arange(len(headers)), counts)
    places = np.flatnonzero(pc.equal(names, pa.scalar(name, names.type)).to_numpy(zero_copy_only=False))
    # `unique` keeps the first of several: from the end backwards that is the last header of the row.
    rows, last = np.unique(rows_of_entries[places][::-1], return_index=True)
    heads = entries.field("value").take(pa.array(places[::-1][last])).cast(pa.binary()).fill_null(b"")
    return rows, heads


def _rows_like_glue(values: pa.BinaryArray) -> np.ndarray:
    """The rows that are long enough for Glue's frame and begin with its version."""
    offsets = offsets_of(values)
    data = np.frombuffer(values.buffers()[2] or b"\0", np.uint8)
    first = np.take(data, offsets[:-1], mode="clip")  # the last rows may be empty, and begin behind the data
    return np.flatnonzero((first == 3) & (np.diff(offsets) >= GLUE_BYTES))


def _plain(value: bytes) -> bytes | None:
    """What Glue's frame holds, or None where it is no such frame."""
    if value[1] == 0:
        return value[GLUE_BYTES:]
    stream = zlib.decompressobj()
    with contextlib.suppress(zlib.error):
        plain = stream.decompress(value[GLUE_BYTES:], MOST_PLAIN_BYTES)
        return plain if value[1] == 5 and stream.eof else None
    return None


def _prefixed(
    values: pa.BinaryArray, rows: np.ndarray, heads: pa.BinaryArray, prefix: Callable[[bytes], bytes]
) -> pa.BinaryArray:
    """The values, with what `prefix` makes of a row's head before each of the rows."""
    if not len(rows):
        return values
    distinct = heads.dictionary_encode()
    prefixes = pa.array([prefix(head) for head in distinct.dictionary.to_pylist()], pa.binary()).take(distinct.indices)
    everywhere = pc.replace_with_mask(pa.repeat(pa.scalar(b""), len(values)), _mask(rows, len(values)), prefixes)
    return pc.binary_join_element_wise(everywhere, values, b"")


def _mask(rows: np.ndarray, length: int) -> pa.Array:
    mask = np.zeros(length, bool)
    mask[rows] = True
    return pa.array(mask)


def message_indexes(data: bytes) -> tuple[tuple[int, ...], int]:
    """(the place of a Protobuf message in its file, bytes that say so) at the start of `data`.

    Zigzag varints: how many, then each; a single 0 stands for the first message. Raises Undecodable.
    """
    numbers: list[int] = []
    at = 0
    count = 1
    while len(numbers) < count:
        raw = shift = 0
        while True:
            if at >= len(data) or shift > 28:
                raise Undecodable("the message indexes of Protobuf are cut")
            raw |= (data[at] & 0x7F) << shift
            shift += 7
            at += 1
            if data[at - 1] < 0x80:
                break
        numbers.append((raw >> 1) ^ -(raw & 1))
        if len(numbers) == 1:
            if not 0 <= numbers[0] <= _MOST_INDEXES:
                raise Undecodable(f"{numbers[0]} message indexes of Protobuf")
            count = numbers[0] + 1
    return tuple(numbers[1:]) or (0,), at


def write_indexes(indexes: tuple[int, ...]) -> bytes:
    """The bytes that `message_indexes` reads."""
    if indexes == (0,):
        return b"\0"
    out = bytearray()
    for number in (len(indexes), *indexes):
        raw = number << 1
        while raw >= 0x80:
            out.append(raw & 0x7F | 0x80)
            raw >>= 7
        out.append(raw)
    return bytes(out)


def looks_like(value: bytes) -> tuple[str, str]:
    """(a format's name, what the bytes look like): a guess, for messages and for `consume`.

    The name for Confluent's wire format is `confluent`, as only a registry knows which of its formats a schema is.
    """
    schema_id = int.from_bytes(value[1:HEADER_BYTES], "big")
    # Ids begin at 1; eight bytes are rather a number where the id would be huge.
    if len(value) > HEADER_BYTES and value[0] == 0 and 0 < schema_id < (1 << 31 if len(value) != 8 else 1 << 20):
        return "confluent", f"Confluent's wire format, schema id {schema_id}"
    if value[:4] == b"Obj\x01":
        return "binary", "an Avro file"
    try:
        text = value.decode()
    except UnicodeDecodeError:
        text = ""
    if text and all(character.isprintable() or character in "\t\r\n" for character in text):
        return _text(text)
    names = {2: ("short", "a short"), 4: ("int", "an int or a float"), 8: ("long", "a long or a double")}
    if len(value) in names:
        name, shown = names[len(value)]
        return name, f"{len(value)} bytes, such as {shown} has"
    return "binary", f"{len(value)} bytes of no format that tells itself" if value else "nothing"


def _text(text: str) -> tuple[str, str]:
    if text.lstrip()[:1] in ("{", "["):
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            return "string", "text"
        if isinstance(value, dict) and list(value) == ["schema", "payload"]:
            return "connect-json", "Connect's JSON with a schema"
        return "json", "JSON"
    if len(text) == 36 and [at for at, character in enumerate(text) if character == "-"] == [8, 13, 18, 23]:
        return "uuid", "a UUID"
    return "string", "text"
