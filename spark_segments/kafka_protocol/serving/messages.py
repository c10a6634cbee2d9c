"""Requests and responses as bytes: kio knows the fields of each message and version, this module their frames.

A request is its size (int32), a header (API key, API version, correlation id, client id) and a body; a response its
size, a header (correlation id) and a body (Kafka's protocol guide, "Protocol Primitive Types" and "Messages").
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import struct
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

from kio.index import load_request_schema, load_response_schema
from kio.serial import entity_reader, entity_writer

from spark_segments.errors import SegmentsError
from spark_segments.kafka_protocol.serving.read_ahead import FileRange

SIZE = struct.Struct(">i")
"""The size of what follows it, before each request and each response."""

_HEADER_START = struct.Struct(">hhi")  # API key, API version, correlation id: the same in each version of the header

# kio looks for the module of a message at each call.
_request_schema = cache(load_request_schema)
_response_schema = cache(load_response_schema)

_NO_THROTTLE = datetime.timedelta(0)

_OPEN_BYTES = 16 << 10  # an open file counts as so many bytes in memory
_LARGE_BYTES = 4096
"""From this size on, bytes of a response are sent from where they lie."""


class BadRequestError(SegmentsError):
    """Bytes that are no request of Kafka's protocol. The connection that sent them is closed."""


@dataclass(frozen=True, slots=True)
class Request:
    """A request of a client. `body` is None where its API or version is not served, and was not read."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str
    body: Any


def head(frame: bytes) -> tuple[int, int, int]:
    """(API key, API version, correlation id) of a request without its size. Raises BadRequestError."""
    if len(frame) < _HEADER_START.size:
        raise BadRequestError("A request is cut", expected=f"{_HEADER_START.size} bytes at least", found=len(frame))
    key, version, correlation_id = _HEADER_START.unpack_from(frame)
    return key, version, correlation_id


def read_request(frame: bytes, most_entries: int) -> Request:
    """The request in a frame without its size, of an API and a version that kio knows.

    Raises BadRequestError, also for more than `most_entries` in all its lists.
    """
    key, version, correlation_id = head(frame)
    schema: Any = _request_schema(key, version)
    try:
        with _as_value_errors():
            header, header_bytes = entity_reader(schema.__header_schema__)(frame, 0)
        # Bytes behind the body are passed over, as by a broker: librdkafka sends some behind Metadata of all topics.
        body, _ = read_message(schema, frame, header_bytes, most_entries)
    except ValueError as error:
        place = f"A request of API {key} version {version} cannot be read"
        raise BadRequestError(place, found=str(error)) from error
    return Request(key, version, correlation_id, header.client_id or "", body)


def read_message(schema: Any, data: bytes, at: int, most_entries: int) -> tuple[Any, int]:
    """The message of one of kio's classes at a position, and the position behind it.

    Raises ValueError, also for more than `most_entries` in all its lists.
    """
    with _as_value_errors():
        _Passage(data, most_entries).message(schema, at)
        body, size = entity_reader(schema)(data, at)
        _check_nulls(schema, body)
    return body, at + size


@contextlib.contextmanager
def _as_value_errors() -> Iterator[None]:
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # kio's native reader may panic, which is no Exception
        raise ValueError(str(error) if type(error) is ValueError else type(error).__name__) from error


_SIZES = {
    "bool": 1,
    "int8": 1,
    "int16": 2,
    "uint16": 2,
    "error_code": 2,
    "int32": 4,
    "timedelta_i32": 4,
    "int64": 8,
    "timedelta_i64": 8,
    "datetime_i64": 8,
    "float64": 8,
    "uuid": 16,
}


_NULLABLE = "nullable message"


class _Passage:
    """A walk over the bytes of a message, by its schema. Raises ValueError for a count or a size that the frame has no
    bytes for: kio makes room for as many as a count says, and where there is no memory for them the process ends. And
    for more than `most` entries in all: each is an object then, many times larger than its bytes.
    """

    def __init__(self, frame: bytes, most: int) -> None:
        self._frame = frame
        self._left = most

    def message(self, schema: Any, at: int) -> int:
        """The position behind a message."""
        frame = self._frame
        is_flexible = schema.__flexible__
        kinds, tagged = _kinds(schema)
        for kind, of, is_array in kinds:
            at = self._field(at, kind, of, is_array, is_flexible)
        if is_flexible:
            count, at = unsigned_varint(frame, at)
            self._count(count)
            for _ in range(count):
                tag, at = unsigned_varint(frame, at)
                size, at = unsigned_varint(frame, at)
                if tag in tagged:
                    self._field(at, *tagged[tag], is_flexible)
                at = _within(frame, at + size)
        return at

    def _field(self, at: int, kind: str | None, of: Any, is_array: bool, is_flexible: bool) -> int:
        frame = self._frame
        if is_array:
            count, at = _length(frame, at, 4, is_flexible)
            if count > len(frame) - at:
                raise ValueError(f"{count} entries in {len(frame) - at} bytes")
            self._count(count)
            for _ in range(count):
                at = self._field(at, kind, of, False, is_flexible)
            return at
        if of is not None:
            if kind == _NULLABLE:  # a byte says whether the message is there
                at = _within(frame, at + 1)
                return at if frame[at - 1] > 0x7F else self.message(of, at)
            return self.message(of, at)
        if kind in _SIZES:
            return _within(frame, at + _SIZES[kind])
        size, at = _length(frame, at, 2 if kind == "string" else 4, is_flexible)
        return _within(frame, at + size)

    def _count(self, entries: int) -> None:
        self._left -= entries
        if self._left < 0:
            raise ValueError("more entries than are taken")


def _length(frame: bytes, at: int, width: int, is_flexible: bool) -> tuple[int, int]:
    """A count or a size, 0 for null, and the position behind it."""
    if is_flexible:
        value, at = unsigned_varint(frame, at)
        return max(value - 1, 0), at
    end = _within(frame, at + width)
    return max(int.from_bytes(frame[at:end], "big", signed=True), 0), end


def unsigned_varint(frame: bytes, at: int) -> tuple[int, int]:
    """An unsigned varint, and the position behind it. Raises ValueError."""
    value = 0
    shift = 0
    while True:
        byte = frame[_within(frame, at + 1) - 1]
        value |= (byte & 0x7F) << shift
        at = at + 1
        shift = shift + 7
        if byte < 0x80:
            return value, at
        if shift > 63:
            raise ValueError("a number that does not end")


def _within(frame: bytes, at: int) -> int:
    if at > len(frame):
        raise ValueError("cut")
    return at


@cache
def _kinds(schema: Any) -> tuple[Sequence[tuple[str | None, Any, bool]], Mapping[int, tuple[str | None, Any, bool]]]:
    """(type, class of nested messages, whether there are many) of each field in order, and of tagged ones by tag."""
    hints = typing.get_type_hints(schema)
    plain = []
    tagged = {}
    for field in dataclasses.fields(schema):
        hint = hints[field.name]
        of = nested(hint)
        is_array = typing.get_origin(hint) is tuple or "tuple[" in str(hint)
        is_optional = of is not None and not is_array and _is_nullable(schema, field.name)
        kind = _NULLABLE if is_optional else field.metadata.get("kafka_type"), of, is_array
        if "tag" in field.metadata:
            tagged[field.metadata["tag"]] = kind
        else:
            plain.append(kind)
    return plain, tagged


def _check_nulls(schema: Any, body: Any) -> None:
    """Raises ValueError for an array that may not be null, and is: kio reads any."""
    for name, of in _fields(schema):
        value = getattr(body, name)
        if value is None and not _is_nullable(schema, name):
            raise ValueError(f"{name} is null")
        if of is not None and value is not None:
            for element in value if isinstance(value, tuple) else (value,):
                _check_nulls(of, element)


@cache
def _is_nullable(schema: Any, name: str) -> bool:
    return types.NoneType in typing.get_args(typing.get_type_hints(schema)[name])


def response(
    key: int, version: int, correlation_id: int, values: Mapping[str, Any], most_bytes: int = 1 << 31
) -> list[Any]:
    """The frame of a response as buffers to be sent one after the other. Raises BadRequestError where it is of more
    than `most_bytes`, records aside.

    `values`: by Kafka's names in snake_case. Names that the version lacks are left out. A list of nested messages is a
    list of such mappings. A large buffer of bytes is part of the result without a copy.
    """
    schema: Any = _response_schema(key, version)
    body = _Buffers(most_bytes)
    header = schema.__header_schema__
    entity_writer(header)(body, header(correlation_id=correlation_id))  # type: ignore[arg-type]
    entity_writer(schema)(body, _entity(schema, {"throttle_time": _NO_THROTTLE, **values}))  # type: ignore[arg-type]
    buffers = body.finished()
    return [SIZE.pack(sum(len(buffer) for buffer in buffers)), *buffers]


def _entity(schema: Any, values: Mapping[str, Any]) -> Any:
    arguments = {}
    for name, nested in _fields(schema):
        if name not in values:
            continue
        value = values[name]
        if nested is not None and isinstance(value, Mapping):
            value = _entity(nested, value)
        elif nested is not None and value is not None:
            value = Each(value, partial(_entity, nested))
        elif isinstance(value, list):
            value = tuple(value)
        arguments[name] = value
    return schema(**arguments)


@cache
def _fields(schema: Any) -> Sequence[tuple[str, Any]]:
    """(name, class of its nested messages or None) of each field of a message."""
    hints = typing.get_type_hints(schema)
    return [(field.name, nested(hints[field.name])) for field in dataclasses.fields(schema)]


def nested(hint: Any) -> Any:
    """The class of the messages in a field of this type; None where it has none."""
    if dataclasses.is_dataclass(hint):
        return hint
    if typing.get_origin(hint) in (tuple, typing.Union, types.UnionType):
        entities = (nested(argument) for argument in typing.get_args(hint))
        return next((entity for entity in entities if entity is not None), None)
    return None


class Each(Sequence[Any]):
    """The entries of a list in a response, each made of an item when it is written: there is one of them at a time."""

    def __init__(self, items: Sequence[Any], make: Callable[[Any], Any]) -> None:
        self._items = items
        self._make = make

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, number: Any) -> Any:
        return self._make(self._items[number])

    def __iter__(self) -> Iterator[Any]:
        return map(self._make, self._items)


class Records:
    """Neighbouring record batches, as buffers and ranges of files, that a message takes as one value of bytes."""

    __slots__ = ("held_bytes", "pieces", "size_bytes")

    def __init__(self, pieces: Sequence[Any] = ()) -> None:
        self.pieces = pieces
        self.size_bytes: int = sum(piece.nbytes for piece in pieces)
        self.held_bytes: int = sum(_OPEN_BYTES if isinstance(piece, FileRange) else piece.nbytes for piece in pieces)

    def __len__(self) -> int:
        return self.size_bytes


class _Buffers:
    """What kio writes a message into: small pieces are joined, large ones kept."""

    def __init__(self, most_bytes: int) -> None:
        self._left = most_bytes
        self._done: list[Any] = []
        self._small = bytearray()

    def write(self, data: Any) -> None:
        if isinstance(data, Records):
            for piece in data.pieces:
                if isinstance(piece, FileRange):
                    self._join()
                    self._done.append(piece)
                else:
                    self._take(memoryview(piece))
            return
        self._left -= len(data)
        if self._left < 0:
            raise BadRequestError("The answer to a request is larger than is given")
        self._take(data)

    def _take(self, data: Any) -> None:
        if len(data) < _LARGE_BYTES:
            self._small += data
            return
        self._join()
        self._done.append(data)

    def _join(self) -> None:
        if self._small:
            self._done.append(self._small)
            self._small = bytearray()

    def finished(self) -> list[Any]:
        self._join()
        return self._done
