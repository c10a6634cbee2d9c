"""What records are looked for by: the values of a header, or a field of the decoded key or value, each as bytes.

    header.trace-id        all behind the first dot is the header's name
    value, value.order.id  the decoded value, or a field of it; `a.b` in backticks is one name

A value has one encoding (`encoded`), by which an index and a look-up compare it.
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import json
import os.path
import re
import urllib.parse
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_segments.errors import InvalidOptionError
from spark_segments.values.batches import Decoder
from spark_segments.values.choice import is_schema
from spark_segments.values.codecs import Registered
from spark_segments.values.column_types import recast, times_of_text
from spark_segments.values.format_options import (
    COLUMNS,
    FAIL_INVALID,
    KINDS,
    NULL,
    REGISTRY,
    SCHEMAS_TOPIC,
    ColumnFormat,
)

HEADER = "header."
DECODING = 2
"""Rises with a change of this package by which a value is decoded or encoded otherwise: indexes of before are stale."""

_RAW = "undecodable"
_NAMES = re.compile(r"(?:^|\.)(?:`((?:[^`]|``)+)`|([^.`]+))")
_TEXT_LETTERS = "\n{}<>()[]\"' ,;"
_EXPECTED = "header.NAME, value.PATH or key.PATH, such as header.trace-id or value.order.id"


@dataclass(frozen=True, slots=True)
class HeaderField:
    """The values of a header: a record has an entry for each header of this name whose value is not null."""

    name: str
    columns: tuple[str, ...] = ("headers",)
    formats: Mapping[str, str] = field(default_factory=dict, hash=False)
    fingerprint: str = ""
    may_decode_later: bool = False

    @property
    def on(self) -> str:
        """Its name among fields."""
        return HEADER + self.name

    def entries(self, batch: pa.RecordBatch) -> tuple[np.ndarray, pa.Array, np.ndarray]:
        """(rows, values, no rows): see `log.typed.RecordField`."""
        headers = batch.column("headers")
        nothing = np.zeros(0, np.int64)
        items = headers.flatten()
        if not len(items):
            return nothing, pa.array([], pa.binary()), nothing
        counts = pc.fill_null(pc.list_value_length(headers), 0).to_numpy()
        names, values = items.field("key"), items.field("value")
        is_own = pc.and_(pc.fill_null(pc.equal(names, pa.scalar(self.name, names.type)), False), values.is_valid())
        rows = np.repeat(np.arange(len(headers)), counts)[is_own.to_numpy(zero_copy_only=False)]
        return rows, values.filter(is_own).cast(pa.binary()), nothing

    def encoded(self, values: Sequence[object]) -> list[bytes]:
        """The bytes of values: bytes, or text in UTF-8."""
        return [_bytes(self.on, value) for value in values]


@dataclass(frozen=True, slots=True)
class DecodedField:
    """A field of the decoded key or value, of the type `kind`. `decoder` gives null for what it cannot decode, and its
    bytes apart.
    """

    on: str
    column: str
    path: tuple[int, ...]
    kind: pa.DataType
    decoder: Decoder
    formats: Mapping[str, str] = field(hash=False)
    fingerprint: str

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of records that are read: a schema's id may be in a header."""
        return (self.column, "headers") if self.may_decode_later else (self.column,)

    @property
    def may_decode_later(self) -> bool:
        """Whether a registry that lacks a schema now may have it later."""
        return isinstance(self.decoder.codec, Registered)

    def entries(self, batch: pa.RecordBatch) -> tuple[np.ndarray, pa.Array, np.ndarray]:
        """(rows, values, rows that cannot be decoded): see `log.typed.RecordField`."""
        decoded, raw = self.decoder.decode(batch.column(self.column), batch)
        values = recast(decoded, self.decoder.codec.type)
        for place in self.path:
            values = pc.struct_field(values, [place])
        undecodable = np.zeros(0, np.int64) if raw is None else _rows(raw)
        rows = _rows(values)
        return rows, encoded(values if len(rows) == len(values) else values.drop_null()), undecodable

    def encoded(self, values: Sequence[object]) -> list[bytes]:
        """The encoding of values of the field's type, or of their text."""
        array = pa.concat_arrays([_typed(self.on, value, self.kind) for value in values] or [pa.array([], self.kind)])
        texts: list[bytes] = encoded(array).to_pylist()
        return texts


def decoded_field(on: str, decoder: Decoder, formats: Mapping[str, str]) -> DecodedField:
    """The field `on` of what a decoder gives. Raises InvalidOptionError where there is none, or none that has one
    encoding.
    """
    column, names = names_of(on)
    kind = decoder.codec.type
    path: list[int] = []
    for name in names:
        place = kind.get_field_index(name) if pa.types.is_struct(kind) else -1
        if place < 0:
            raise _no_field(on, column, names, decoder)
        path.append(place)
        kind = kind.field(place).type
    if not has_encoding(kind):
        raise InvalidOptionError(
            f"Records are not looked for by {on}",
            expected="text, bytes, a whole number, a decimal, a boolean, a date or a time",
            found=kind,
        )
    chosen = replace(decoder.chosen, errors=NULL, raw_column=_RAW)
    decoder = replace(decoder, chosen=chosen)
    return DecodedField(on, column, tuple(path), kind, decoder, _own(formats, decoder), _fingerprint(decoder))


def _no_field(on: str, column: str, names: Sequence[str], decoder: Decoder) -> InvalidOptionError:
    """The error for a path that the decoded column does not have."""
    kind = decoder.codec.type
    hint = None
    if not pa.types.is_struct(kind):
        schema = "" if decoder.chosen.schema else f". Give {column}.schema, such as --{column}-schema 'id bigint'"
        hint = f"The {column} as a whole is looked for by {column}{schema}"
    for place, name in enumerate(names):
        if not pa.types.is_struct(kind):
            break
        rest = ".".join(names[place:]) + "."
        dotted = [own.name for own in kind if "." in own.name and rest.startswith(f"{own.name}.")]
        if dotted:
            quoted = ".".join([column, *names[:place], f"`{dotted[0]}`"]) + rest.removeprefix(dotted[0])[:-1]
            hint = f"A name with a dot stands in backticks: '{quoted}'"
        inner = kind.get_field_index(name)
        kind = kind.field(inner).type if inner >= 0 else pa.null()
    return InvalidOptionError(
        f"There is no field {on}", expected=f"a field of {decoder.codec.type}", found=on, hint=hint
    )


def names_of(on: str) -> tuple[str, list[str]]:
    """(key or value, the names of the fields within). Raises InvalidOptionError for a text that names none."""
    column, dot, rest = on.partition(".")
    names = [(quoted or "").replace("``", "`") or plain for quoted, plain in _NAMES.findall(rest)]
    is_path = not dot or (rest and _NAMES.sub("", rest) == "" and not rest.startswith("."))
    if column not in COLUMNS or not is_path:
        raise InvalidOptionError("The text names no field of records", expected=_EXPECTED, found=on)
    return column, names


def _own(formats: Mapping[str, str], decoder: Decoder) -> dict[str, str]:
    """The options that decide what is decoded, without credentials. A schema's text stands in for the path of its file,
    as far as it is text, and the absolute path of a registry for a relative one.
    """
    prefix = f"{decoder.chosen.column}."
    beside = (f"{prefix}errors", f"{prefix}raw.column")
    own = {name.lower(): text for name, text in formats.items()}
    own = {name: text for name, text in own.items() if name.startswith(prefix) or name in (REGISTRY, FAIL_INVALID)}
    own = {name: text for name, text in own.items() if name not in beside}
    schema = decoder.chosen.schema
    if schema is not None and any(letter in schema for letter in _TEXT_LETTERS):
        own[f"{prefix}schema"] = schema
    if own.get(REGISTRY):
        own[REGISTRY] = _registry_name(own[REGISTRY])
    return dict(sorted(own.items()))


def _registry_name(address: str) -> str:
    """The address of a registry wherever a program runs: a path is absolute, and a URL names no user."""
    if address.startswith(("http://", "https://")):
        parts = urllib.parse.urlsplit(address)
        return urllib.parse.urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2])).rstrip("/")
    is_path = address != SCHEMAS_TOPIC and ":/" not in address
    return os.path.abspath(address) if is_path else address


def _fingerprint(decoder: Decoder) -> str:
    """A text that is the same for decoders that give the same values."""
    chosen, codec = decoder.chosen, decoder.codec
    facts: list[object] = [DECODING, chosen.column, chosen.format, chosen.message, chosen.envelope]
    facts += [_schema_facts(chosen), _type_facts(codec.type)]
    if isinstance(codec, Registered):
        schema = codec.schema
        read_as: object = None
        if schema is not None and chosen.schema is None:
            read_as = [schema.kind, schema.text, [str(part) for part in schema.references]]
        registry = _registry_name(chosen.registry or "")
        facts += [registry, codec.subject, codec.message, codec.checked, read_as]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:32]


def _schema_facts(chosen: ColumnFormat) -> object:
    """What a schema's text says beside the type of the column; whether there is one, where the type says all."""
    text = chosen.schema
    kind = KINDS.get(chosen.format)
    if text is None or kind is None or not is_schema(text, kind):
        return text is not None
    try:
        return [json.loads(text)]
    except (ValueError, RecursionError):
        return text.strip()


def _type_facts(kind: pa.DataType) -> object:
    """A type as JSON, in which no name of a field can be taken for a part of the type."""
    if pa.types.is_struct(kind):
        return [[own.name, own.nullable, _type_facts(own.type)] for own in kind]
    if pa.types.is_list(kind):
        return {"items": [kind.value_field.nullable, _type_facts(kind.value_type)]}
    if pa.types.is_map(kind):
        items = [kind.item_field.nullable, _type_facts(kind.item_type)]
        return {"keys": _type_facts(kind.key_type), "items": items}
    return str(kind)


def _rows(array: pa.Array) -> np.ndarray:
    """int64[]: the rows that are not null."""
    rows: np.ndarray = np.flatnonzero(array.is_valid().to_numpy(zero_copy_only=False))
    return rows


# The encoding of a value


def has_encoding(kind: pa.DataType) -> bool:
    """Whether values of a type have one encoding: 0.1 and NaN have several, and so has what has fields."""
    t = pa.types
    is_text = t.is_string(kind) or t.is_binary(kind)
    is_number = t.is_integer(kind) or t.is_decimal128(kind) or t.is_boolean(kind)
    return bool(is_text or is_number or t.is_date32(kind) or t.is_timestamp(kind) or t.is_time64(kind))


def encoded(array: pa.Array) -> pa.BinaryArray:
    """binary[n]: text as UTF-8, bytes unchanged, numbers as decimal text. Of a decimal it is the number of its last
    digits, of a date days and of a timestamp microseconds since 1970, of a time of day microseconds; true and false.
    """
    t = pa.types
    kind = array.type
    if t.is_decimal128(kind):
        whole_numbers = pa.decimal128(kind.precision, 0)
        array = pa.Array.from_buffers(whole_numbers, len(array), array.buffers(), offset=array.offset)
    elif t.is_date32(kind):
        array = array.cast(pa.int32())
    elif t.is_timestamp(kind) or t.is_time64(kind):
        array = array.cast(pa.int64())
    if not t.is_binary(kind):
        array = array.cast(pa.string())
    return array.cast(pa.binary())


def _bytes(on: str, value: object) -> bytes:
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        with contextlib.suppress(UnicodeEncodeError):  # half of a surrogate pair
            return value.encode()
    raise InvalidOptionError(f"A value of {on}", expected="text or bytes", found=repr(value))


def _typed(on: str, value: object, kind: pa.DataType) -> pa.Array:
    """The value as an array of one row."""
    if pa.types.is_binary(kind):
        return pa.array([_bytes(on, value)], kind)
    refusal = InvalidOptionError(f"A value of {on}", expected=kind, found=repr(value))
    try:
        if isinstance(value, str):
            return _of_text(value, kind)
        if isinstance(value, uuid.UUID) and pa.types.is_string(kind):
            return pa.array([str(value)], kind)
        if not isinstance(value, _python_types(kind)) or (isinstance(value, bool) and not pa.types.is_boolean(kind)):
            raise refusal
        if isinstance(value, datetime.datetime):
            if not pa.types.is_timestamp(kind) or (kind.tz is None and value.tzinfo is not None):
                raise refusal
            if kind.tz is not None and value.tzinfo is None:
                value = value.replace(tzinfo=datetime.UTC)
        return pa.array([value], kind)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError, UnicodeEncodeError):
        raise refusal from None


def _of_text(text: str, kind: pa.DataType) -> pa.Array:
    array = pa.array([text], pa.string())
    if pa.types.is_timestamp(kind) or pa.types.is_time(kind):
        return times_of_text(array, kind)
    return array.cast(kind)


def _python_types(kind: pa.DataType) -> tuple[type, ...]:
    """The types of Python whose values a type takes."""
    t = pa.types
    if t.is_string(kind):
        return (str,)
    if t.is_boolean(kind):
        return (bool,)
    if t.is_integer(kind):
        return (int,)
    if t.is_decimal128(kind):
        return (int, Decimal)
    if t.is_timestamp(kind):
        return (datetime.datetime,)
    return (datetime.time,) if t.is_time64(kind) else (datetime.date,)
