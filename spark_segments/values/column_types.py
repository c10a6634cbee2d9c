"""The Arrow types of typed columns, which every engine can take; and their text, which is Spark's DDL."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import accumulate

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_segments.errors import InvalidOptionError
from spark_segments.values.schema_bounds import check_bounds

_NAMES = {
    "boolean": pa.bool_(),
    "bool": pa.bool_(),
    "tinyint": pa.int8(),
    "byte": pa.int8(),
    "smallint": pa.int16(),
    "short": pa.int16(),
    "int": pa.int32(),
    "integer": pa.int32(),
    "bigint": pa.int64(),
    "long": pa.int64(),
    "float": pa.float32(),
    "real": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestamp_ntz": pa.timestamp("us"),
    "time": pa.time64("us"),
}
_TOKEN = re.compile(r"\s*(`(?:[^`]|``)+`|[A-Za-z_][A-Za-z0-9_.-]*|\d+|[<>(),:])")
_NANOSECONDS = r"(:\d\d[.,]\d{6})\d{1,3}"
_WIDER = {pa.uint8(): pa.int16(), pa.uint16(): pa.int32(), pa.uint32(): pa.int64(), pa.uint64(): pa.decimal128(20, 0)}


def portable(kind: pa.DataType) -> pa.DataType:
    """The type that stands for `kind` in all engines: signed, of 32-bit offsets, times in microseconds, all nullable.

    An unsigned number becomes the next wider signed one (uint64: decimal(20, 0), as in Spark), a duration a number of
    microseconds.
    """
    t = pa.types
    if t.is_struct(kind):
        return pa.struct([pa.field(field.name, portable(field.type)) for field in kind])
    if t.is_list(kind) or t.is_large_list(kind) or t.is_fixed_size_list(kind):
        return pa.list_(pa.field("element", portable(kind.value_type)))
    if t.is_map(kind):
        return pa.map_(portable(kind.key_type), pa.field("value", portable(kind.item_type)))
    if t.is_dictionary(kind):
        return portable(kind.value_type)
    if t.is_timestamp(kind):
        return pa.timestamp("us", tz="UTC" if kind.tz else None)
    if t.is_time(kind):
        return pa.time64("us")
    if t.is_large_string(kind) or kind == pa.string_view():
        return pa.string()
    if t.is_large_binary(kind) or t.is_fixed_size_binary(kind) or kind == pa.binary_view():
        return pa.binary()
    if t.is_duration(kind):
        return pa.int64()
    return _WIDER.get(kind, kind)


def recast(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """The array as `kind`. Fields match by name; missing fields are null, further fields are left out.

    A null in a place that `kind` says cannot be null becomes the zero of its type (what Protobuf reads for a field
    that is not set). Raises InvalidOptionError where a type cannot become the other, ArrowInvalid for a value.
    """
    t = pa.types
    if array.type == kind:
        return array
    if isinstance(array, pa.ExtensionArray):
        return recast(array.storage, kind)
    if t.is_null(array.type):
        return pa.nulls(len(array), kind)
    if t.is_struct(kind) and t.is_struct(array.type):
        parts = array.flatten()
        names = [field.name for field in array.type]
        children = [
            recast_field(parts[names.index(field.name)], field) if field.name in names else _absent(len(array), field)
            for field in kind
        ]
        return pa.Array.from_buffers(kind, len(array), [valid_bits(array)], children=children)
    if (t.is_list(kind) and _is_list(array.type)) or (t.is_map(kind) and t.is_map(array.type)):
        return _recast_entries(array, kind)
    try:
        if t.is_duration(array.type) or t.is_duration(kind):
            middle = pa.duration("us")
            return array.cast(middle).cast(kind) if t.is_duration(array.type) else array.view(middle).cast(kind)
        if t.is_string(array.type) and (t.is_time(kind) or t.is_timestamp(kind)):
            return times_of_text(array, kind)
        return array.cast(kind)
    except pa.ArrowNotImplementedError as error:
        raise InvalidOptionError("The type of a column cannot be converted", expected=kind, found=array.type) from error


def _recast_entries(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """A list as another list, or a map as another map."""
    # From offset 0: the values of a slice are those of the whole array, and its offsets begin in the midst of them.
    unsliced = pa.concat_arrays([array])
    if pa.types.is_map(kind):
        entries = pa.StructArray.from_arrays(
            [recast_field(unsliced.keys, kind.key_field), recast_field(unsliced.items, kind.item_field)],
            fields=[kind.key_field, kind.item_field],
        )
    else:
        unsliced = unsliced.cast(pa.list_(array.type.value_type))
        entries = recast_field(unsliced.values, kind.value_field)
    return pa.Array.from_buffers(
        kind, len(unsliced), [valid_bits(unsliced), unsliced.buffers()[1]], offset=0, children=[entries]
    )


def times_of_text(text: pa.StringArray, kind: pa.DataType) -> pa.Array:
    """ISO 8601 as times of day or timestamps of any unit; UTC where no zone is named and `kind` has one. Digits behind
    the microseconds are cut, as Spark does.

    Raises ArrowInvalid for other text, and where `kind` does not hold the microseconds.
    """
    if pc.any(pc.match_substring_regex(text, _NANOSECONDS)).as_py():
        text = pc.replace_substring_regex(text, _NANOSECONDS, r"\1")
    if pa.types.is_time(kind):
        return pc.binary_join_element_wise("1970-01-01T", text, "").cast(pa.timestamp("us")).cast(kind)
    if kind.tz is None:
        return text.cast(pa.timestamp("us")).cast(kind)
    timed = pc.match_substring_regex(text, r"[T ]\d")
    zoned = pc.match_substring_regex(text, r"[T ].*(Z|[+-]\d{2}(:?\d{2})?)$")
    ending = pc.if_else(zoned, "", pc.if_else(timed, "Z", "T00:00:00Z"))
    return pc.binary_join_element_wise(text, ending, "").cast(pa.timestamp("us", "UTC")).cast(kind)


def conformed(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """`recast` for writing: a field that `kind` lacks is an error, not left out. Raises as `recast` does."""
    unknown = _unknown_fields(array.type, kind, "")
    if unknown:
        raise InvalidOptionError(
            "The schema has no such fields", expected=kind, found=", ".join(unknown), hint="Drop them, or give a schema"
        )
    return recast(array, kind)


def _unknown_fields(own: pa.DataType, kind: pa.DataType, path: str) -> list[str]:
    t = pa.types
    if t.is_struct(own) and t.is_struct(kind):
        unknown: list[str] = []
        for field in own:
            at = kind.get_field_index(field.name)
            below = _unknown_fields(field.type, kind.field(at).type, f"{path}{field.name}.") if at >= 0 else []
            unknown += below if at >= 0 else [path + field.name]
        return unknown
    if _is_list(own) and _is_list(kind):
        return _unknown_fields(own.value_type, kind.value_type, f"{path}[].")
    if t.is_map(own) and t.is_map(kind):
        return _unknown_fields(own.item_type, kind.item_type, f"{path}{{}}.")
    return []


def recast_field(array: pa.Array, field: pa.Field) -> pa.Array:
    """`recast` to a field's type, with zeros for nulls where the field cannot be null."""
    values = recast(array, field.type)
    if field.nullable or not values.null_count:
        return values
    return pc.coalesce(values, _absent(len(values), field))


def _absent(rows: int, field: pa.Field) -> pa.Array:
    if field.nullable:
        return pa.nulls(rows, field.type)
    t = pa.types
    kind = field.type
    if t.is_struct(kind):
        return pa.StructArray.from_arrays([_absent(rows, part) for part in kind], fields=list(kind))
    zero: object = 0
    if t.is_list(kind) or t.is_map(kind):
        zero = []
    elif t.is_string(kind) or t.is_binary(kind):
        zero = "" if t.is_string(kind) else b""
    elif t.is_boolean(kind):
        zero = False
    return pa.repeat(pa.scalar(zero, kind), rows)


def map_entries(keys: pa.Array, items: pa.Array) -> pa.StructArray:
    """The entries of maps, as Arrow has them."""
    fields = [pa.field("key", keys.type, nullable=False), pa.field("value", items.type)]
    return pa.StructArray.from_arrays([keys, items], fields=fields)


def with_leaves(array: pa.Array, kind: pa.DataType, leaf: Callable[[pa.Array, pa.DataType], pa.Array]) -> pa.Array:
    """The array as `kind`, which has the same structs, lists and maps. `leaf` makes the arrays of other types."""
    t = pa.types
    if t.is_struct(kind):
        pairs = zip(array.flatten(), kind, strict=True)
        children = [with_leaves(child, field.type, leaf) for child, field in pairs]
        return pa.Array.from_buffers(kind, len(array), [valid_bits(array)], children=children)
    if not (t.is_list(kind) or t.is_map(kind)):
        return leaf(array, kind)
    unsliced = pa.concat_arrays([array]) if array.offset else array
    if t.is_map(kind):
        child = map_entries(unsliced.keys, with_leaves(unsliced.items, kind.item_type, leaf))
    else:
        child = with_leaves(unsliced.values, kind.value_type, leaf)
    return pa.Array.from_buffers(kind, len(unsliced), unsliced.buffers()[:2], children=[child])


def valid_bits(array: pa.Array) -> pa.Buffer | None:
    """The validity of rows as a bitmap from bit 0; None where no row is null."""
    if not array.null_count:
        return None
    return pa.py_buffer(np.packbits(array.is_valid().to_numpy(zero_copy_only=False), bitorder="little"))


def _is_list(kind: pa.DataType) -> bool:
    t = pa.types
    return bool(t.is_list(kind) or t.is_large_list(kind) or t.is_fixed_size_list(kind))


def struct_of(fields: Sequence[pa.Field], of: str) -> pa.StructType:
    """A struct of fields whose names differ, since JSON finds fields by name. Raises InvalidOptionError."""
    names = Counter(field.name for field in fields)
    if len(names) < len(fields):
        raise InvalidOptionError(f"{of} has two fields of the same name", found=names.most_common(1)[0][0])
    return pa.struct(fields)


def type_of_ddl(text: str) -> pa.DataType:
    """The type of a text in Spark's DDL: `struct<id: bigint, tags: array<string>>`, `decimal(10,2)`, or columns as in
    `id bigint, at timestamp`, which make a struct. Raises InvalidOptionError.
    """
    tokens = []
    at = 0
    while at < len(text.rstrip()):
        token = _TOKEN.match(text, at)
        if token is None:
            raise _wrong(text)
        tokens.append(token.group(1))
        at = token.end()
    depths = accumulate({"<": 1, ">": -1}.get(token, 0) for token in tokens)
    check_bounds("the type in DDL", len(tokens), max(depths, default=0))
    parser = _TypeParser(tokens, text)
    kind = parser.columns(None) if len(tokens) > 1 and tokens[1] not in "<(" else parser.type()
    if parser.rest:
        raise _wrong(text)
    return kind


class _TypeParser:
    def __init__(self, tokens: list[str], text: str) -> None:
        self.rest = tokens
        self._text = text

    def _next(self, expected: str | None = None) -> str:
        if not self.rest or (expected is not None and self.rest[0] != expected):
            raise _wrong(self._text)
        return self.rest.pop(0)

    def type(self) -> pa.DataType:
        name = self._next().lower()
        if name == "struct":
            return self._within("<", ">", lambda: self.columns(">"))
        if name == "array":
            return self._within("<", ">", lambda: pa.list_(pa.field("element", self.type())))
        if name == "map":
            return self._within("<", ">", self._map)
        if name in ("decimal", "dec", "numeric"):
            if self.rest[:1] != ["("]:
                return pa.decimal128(10, 0)
            return self._within("(", ")", self._decimal)
        if name not in _NAMES:
            raise _wrong(self._text)
        return _NAMES[name]

    def columns(self, until: str | None) -> pa.DataType:
        fields: list[pa.Field] = []
        while self.rest[:1] != ([until] if until else []):
            if fields:
                self._next(",")
            name = self._next().strip("`").replace("``", "`")
            if self.rest[:1] == [":"]:
                self._next()
            fields.append(pa.field(name, self.type()))
            if [token.lower() for token in self.rest[:2]] == ["not", "null"]:
                self.rest = self.rest[2:]
        return struct_of(fields, "The type in DDL")

    def _within(self, opening: str, closing: str, inner: Callable[[], pa.DataType]) -> pa.DataType:
        self._next(opening)
        kind = inner()
        self._next(closing)
        return kind

    def _map(self) -> pa.DataType:
        key = self.type()
        self._next(",")
        return pa.map_(key, pa.field("value", self.type()))

    def _decimal(self) -> pa.DataType:
        precision = self._next()
        scale = "0"
        if self.rest[:1] == [","]:
            self._next()
            scale = self._next()
        if not (precision.isdigit() and scale.isdigit() and max(1, int(scale)) <= int(precision) <= 38):
            raise _wrong(self._text)
        return pa.decimal128(int(precision), int(scale))


def _wrong(text: str) -> InvalidOptionError:
    return InvalidOptionError(
        "The text is no type",
        expected="Spark's DDL, such as id bigint, at timestamp, tags array<string>",
        found=text[:200],
    )
