"""Which keys a condition can hold for: read from its Substrait form, the only one in which Arrow gives its parts.

Only what is understood limits the keys: for any other part of a condition, every key can be one for which it holds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from spark_segments.log.key_offsets import Key

Field = tuple[int, int | bytes]
"""The number of a protobuf field, and its value."""

# Fields of Substrait's messages, by number (substrait/extended_expression.proto, algebra.proto).
_EXTENSIONS, _REFERRED = 2, 3
_FUNCTION, _ANCHOR, _NAME = 3, 2, 3
_LITERAL, _SELECTION, _SCALAR_FUNCTION, _IF_THEN, _OR_LIST = 1, 2, 3, 6, 8
_REFERENCE, _ARGUMENTS, _VALUE = 1, 4, 3
_IFS, _ELSE, _THEN = 1, 2, 2
_LIST_VALUE, _LIST_OPTIONS = 1, 2
_DIRECT, _STRUCT_FIELD, _PLACE, _CHILD = 1, 2, 1, 2
_NULL, _STRING, _BINARY = 29, 12, 13
_INTEGERS = (2, 3, 5, 7)
"""Literals of 8, 16, 32 and 64 bits."""


def keys_of_condition(condition: pc.Expression, schema: pa.Schema) -> frozenset[Key] | None:
    """The values of the column key for which the condition can hold; None: any, also none.

    `schema`: the columns that the condition looks at. Values are bytes, text or numbers, as the column's type is.
    """
    try:
        message = bytes(condition.to_substrait(schema))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, ImportError):  # no form, or an Arrow without Substrait
        return None
    functions: dict[int, str] = {}
    expression = b""
    for number, value in _fields(message):
        if number == _EXTENSIONS:
            declared = dict(_fields(dict(_fields(_bytes(value))).get(_FUNCTION, b"")))
            functions[_number(declared, _ANCHOR)] = _bytes(declared.get(_NAME, b"")).decode().partition(":")[0]
        elif number == _REFERRED:
            expression = _bytes(dict(_fields(_bytes(value))).get(1, b""))
    return _Keys(functions, schema.get_field_index("key")).of(expression)


@dataclass(frozen=True, slots=True)
class _Keys:
    """The keys for which expressions can be true. `functions`: names by anchor. `place`: of the column key."""

    functions: Mapping[int, str]
    place: int

    def of(self, expression: bytes) -> frozenset[Key] | None:
        """The keys for which an expression can be true; None: any."""
        [(kind, content)] = [*_fields(expression)] or [(0, b"")]
        body = _bytes(content)
        if kind == _SCALAR_FUNCTION:
            return self._of_function(body)
        if kind == _IF_THEN:
            return self._of_branches(body)
        if kind == _OR_LIST:
            return self._of_list(body)
        if kind == _LITERAL and _NULL in dict(_fields(body)):
            return frozenset()  # null is not true
        return None

    def _of_function(self, body: bytes) -> frozenset[Key] | None:
        parts = [*_fields(body)]
        arguments = [_bytes(dict(_fields(_bytes(value)))[_VALUE]) for number, value in parts if number == _ARGUMENTS]
        name = self.functions.get(_number(dict(parts), _REFERENCE))
        if name == "and":
            limits = [keys for keys in map(self.of, arguments) if keys is not None]
            return frozenset.intersection(*limits) if limits else None
        if name == "or":
            return _union([self.of(argument) for argument in arguments])
        if name == "equal" and len(arguments) == 2:
            first, second = arguments if self._is_key(arguments[0]) else reversed(arguments)
            value = _value(second)
            return frozenset([value]) if self._is_key(first) and value is not None else None
        return None

    def _of_branches(self, body: bytes) -> frozenset[Key] | None:
        """Of `if … then … else …`: it is true where one of the branches is."""
        branches = [*_fields(body)]
        results = [dict(_fields(_bytes(value))).get(_THEN, b"") for number, value in branches if number == _IFS]
        results += [value for number, value in branches if number == _ELSE]
        return _union([self.of(_bytes(result)) for result in results])

    def _of_list(self, body: bytes) -> frozenset[Key] | None:
        """Of `key IN (…)`. Where null is in the list, Arrow finds records without a key by it."""
        parts = [*_fields(body)]
        if not self._is_key(_bytes(dict(parts).get(_LIST_VALUE, b""))):
            return None
        values = [_value(_bytes(option)) for number, option in parts if number == _LIST_OPTIONS]
        return None if None in values else frozenset(value for value in values if value is not None)

    def _is_key(self, expression: bytes) -> bool:
        """Whether an expression is the column key itself, and no field in it."""
        reference = dict(_fields(_bytes(dict(_fields(expression)).get(_SELECTION, b""))))
        if _DIRECT not in reference:
            return False
        segment = dict(_fields(_bytes(reference[_DIRECT])))
        if segment.keys() != {_STRUCT_FIELD}:
            return False
        field = dict(_fields(_bytes(segment[_STRUCT_FIELD])))
        return _CHILD not in field and _number(field, _PLACE) == self.place


def _union(parts: list[frozenset[Key] | None]) -> frozenset[Key] | None:
    limits = [keys for keys in parts if keys is not None]
    return frozenset().union(*limits) if len(limits) == len(parts) else None


def _value(expression: bytes) -> Key | None:
    """The value of a literal; None where it is null, or no bytes, text or whole number."""
    literal = dict(_fields(_bytes(dict(_fields(expression)).get(_LITERAL, b""))))
    for kind, value in literal.items():
        if kind == _BINARY:
            return _bytes(value)
        if kind == _STRING:
            return _bytes(value).decode()
        if kind in _INTEGERS and isinstance(value, int):
            return value - (1 << 64) if value >> 63 else value
    return None


def _fields(message: int | bytes) -> Iterator[Field]:
    """The fields of a protobuf message, in their order."""
    data = _bytes(message)
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        kind = tag & 7
        if kind == 0:
            number, at = _varint(data, at)
            yield tag >> 3, number
            continue
        size = {1: 8, 5: 4}.get(kind, 0)
        if kind == 2:
            size, at = _varint(data, at)
        yield tag >> 3, data[at : at + size]
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """(a number of variable length, where it ends)"""
    number = shift = 0
    while True:
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at
        shift += 7


def _bytes(value: int | bytes) -> bytes:
    return value if isinstance(value, bytes) else b""


def _number(fields: Mapping[int, int | bytes], number: int) -> int:
    """A number of a message: protobuf leaves out 0."""
    value = fields.get(number, 0)
    return value if isinstance(value, int) else 0
