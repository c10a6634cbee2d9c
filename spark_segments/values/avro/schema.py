"""Avro schemas: JSON text to nodes, the Arrow type of a node, and an Avro schema for an Arrow type.

A column has the type that Spark's own Avro source gives it, so that it reads the same everywhere: a union with null is
a nullable column; int and long, or float and double, make the wider; any other union is a struct of member0, member1,
…, of which at most one is set. Rules: Avro specification 1.12, "Schema Declaration" and "Logical Types".
"""

from __future__ import annotations

import decimal
import json
import re
import uuid
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from spark_segments.errors import InvalidOptionError
from spark_segments.values.schema_bounds import check_bounds, json_of

PRIMITIVES = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
UTC = pa.timestamp("us", tz="UTC")
LOCAL = pa.timestamp("us")
TIME = pa.time64("us")
DURATION = pa.struct([("months", pa.int64()), ("days", pa.int64()), ("milliseconds", pa.int64())])
MOST_DIGITS = 38

TYPES = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "fixed": pa.binary(),
    "string": pa.string(),
    "enum": pa.string(),
}
# (kind, logical type): Arrow's type; timestamp-nanos stays a long, as in Spark, whose timestamps are microseconds.
_LOGICAL_TYPES = {
    ("int", "date"): pa.date32(),
    ("int", "time-millis"): TIME,
    ("long", "time-micros"): TIME,
    ("long", "timestamp-millis"): UTC,
    ("long", "timestamp-micros"): UTC,
    ("long", "local-timestamp-millis"): LOCAL,
    ("long", "local-timestamp-micros"): LOCAL,
    ("string", "uuid"): pa.string(),
    ("fixed", "uuid"): pa.string(),
    ("fixed", "duration"): DURATION,
}


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a record."""

    name: str
    node: Node
    aliases: tuple[str, ...] = ()
    has_default: bool = False
    default_json: str = "null"  # text, so that nodes can be hashed

    @property
    def default(self) -> Any:
        return json.loads(self.default_json)


@dataclass(frozen=True, slots=True)
class Node:
    """A schema. `children` are an array's items, a map's values or a union's branches, in their order.

    A `recursive` node is a record within itself: its definition is `text`, and the one node of `target`.

    `logical` is None where there is no logical type or the specification says that it is to be ignored.
    """

    kind: str
    name: str = ""
    aliases: tuple[str, ...] = ()
    logical: str | None = None
    precision: int = 0
    scale: int = 0
    size: int = 0
    symbols: tuple[str, ...] = ()
    default_symbol: str | None = None
    fields: tuple[Field, ...] = ()
    children: tuple[Node, ...] = ()
    text: str = ""
    target: list[Node] = field(default_factory=list, compare=False, repr=False)
    type: pa.DataType = field(default_factory=pa.null)
    all_fields: int = field(default=1, compare=False)
    depth: int = field(default=1, compare=False)
    """How many nodes it is, written out, and how deep: `check_bounds` holds both."""

    @property
    def null_branch(self) -> int:
        """The position of null among a union's branches, or -1."""
        return next((at for at, child in enumerate(self.children) if child.kind == "null"), -1)

    @property
    def members(self) -> list[tuple[int, Node]]:
        """(position, branch) of a union's branches other than null."""
        return [(at, child) for at, child in enumerate(self.children) if child.kind != "null"]


def parse(text: str, references: tuple[str, ...] = ()) -> Node:
    """The schema that `text` says; `references` are schemas whose names it uses, in the order of their use.

    Raises InvalidOptionError for a schema that is wrong.
    """
    names: dict[str, Node] = {}
    for reference in references:
        _parse_text(reference, names)
    return _parse_text(text, names)


def _parse_text(text: str, names: dict[str, Node]) -> Node:
    stripped = text.strip()
    value = json_of(stripped, "Avro schema") if stripped[:1] in ('"', "{", "[") else stripped
    try:
        return _SchemaParser(names).node(value, "")
    except RecursionError:
        raise _wrong("It is nested too deeply", text) from None
    except (TypeError, AttributeError, ValueError) as error:
        if isinstance(error, InvalidOptionError):
            raise
        raise _wrong("A part of it has another type", text) from None


class _SchemaParser:
    def __init__(self, names: dict[str, Node]) -> None:
        self._names = names
        self._open: dict[str, Node] = {}

    def node(self, value: Any, namespace: str) -> Node:
        if isinstance(value, list):
            return self._union([self.node(branch, namespace) for branch in value])
        if isinstance(value, str):
            return Node(value, type=TYPES[value]) if value in PRIMITIVES else self._named(value, namespace)
        if not isinstance(value, dict) or "type" not in value:
            raise _wrong("A schema is a name, an object with a type, or a list", value)
        kind = value["type"]
        if kind in ("record", "error"):
            return self._record(value, namespace)
        if kind in ("enum", "fixed"):
            name, _ = self._declare(value, namespace)
            node = self._enum(value, name) if kind == "enum" else self._fixed(value, name)
            self._names[name] = node
            return node
        if kind in ("array", "map"):
            child = self.node(value.get("items" if kind == "array" else "values"), namespace)
            item = pa.field("element" if kind == "array" else "value", child.type)
            count, depth = _bounds(kind, [child])
            arrow_type = pa.list_(item) if kind == "array" else pa.map_(pa.string(), item)
            return Node(kind, children=(child,), type=arrow_type, all_fields=count, depth=depth)
        if isinstance(kind, str) and kind in PRIMITIVES:
            return _logical(value, Node(kind, type=TYPES[kind]))
        return self.node(kind, namespace)

    def _declare(self, value: dict[str, Any], namespace: str) -> tuple[str, str]:
        name = value.get("name")
        if not isinstance(name, str) or not all(_NAME.fullmatch(part) for part in name.split(".")):
            raise _wrong("A record, enum or fixed needs a name", value)
        if "." in name:
            namespace = name.rpartition(".")[0]
        else:
            namespace = value.get("namespace") or namespace
            name = f"{namespace}.{name}" if namespace else name
        if name in self._names:
            raise _wrong(f"The name {name} is declared twice", value)
        return name, namespace

    def _named(self, name: str, namespace: str) -> Node:
        full = name if "." in name or not namespace else f"{namespace}.{name}"
        for candidate in (full, name):
            if candidate in self._open:
                return self._open[candidate]
            if candidate in self._names:
                return self._names[candidate]
        raise _wrong(f"No schema of the name {full}", name)

    def _record(self, value: dict[str, Any], namespace: str) -> Node:
        name, namespace = self._declare(value, namespace)
        within = Node("recursive", name, _aliases(value, namespace), text=json.dumps(value), type=pa.string())
        self._open[name] = within
        fields = []
        for declaration in value.get("fields") or ():
            if not isinstance(declaration, dict) or "name" not in declaration or "type" not in declaration:
                raise _wrong(f"A field of {name} needs a name and a type", declaration)
            # a logicalType beside the type is an attribute of the field, which says nothing of its bytes
            node = self.node(declaration["type"], namespace)
            aliases = tuple(declaration.get("aliases") or ())
            fields.append(
                Field(
                    declaration["name"], node, aliases, "default" in declaration, json.dumps(declaration.get("default"))
                )
            )
        del self._open[name]
        if len({field.name for field in fields}) < len(fields):
            raise _wrong(f"The record {name} has two fields of the same name", [field.name for field in fields])
        count, depth = _bounds(name, [field.node for field in fields])
        struct = pa.struct([pa.field(field.name, field.node.type) for field in fields])
        node = Node(
            "record", name, _aliases(value, namespace), fields=tuple(fields), type=struct, all_fields=count, depth=depth
        )
        self._names[name] = node
        within.target.append(node)
        return node

    def _enum(self, value: dict[str, Any], name: str) -> Node:
        symbols = tuple(value.get("symbols") or ())
        if not symbols or len(set(symbols)) < len(symbols) or not all(isinstance(symbol, str) for symbol in symbols):
            raise _wrong(f"The enum {name} needs symbols, each once", value)
        aliases = _aliases(value, name.rpartition(".")[0])
        return Node("enum", name, aliases, symbols=symbols, default_symbol=value.get("default"), type=pa.string())

    def _fixed(self, value: dict[str, Any], name: str) -> Node:
        size = value.get("size")
        if type(size) is not int or not 0 <= size < 1 << 31:
            raise _wrong(f"The fixed {name} needs a size of less than 2 GiB", value)
        return _logical(value, Node("fixed", name, _aliases(value, ""), size=size, type=pa.binary()))

    def _union(self, branches: list[Node]) -> Node:
        kinds = [child.name or child.kind for child in branches]
        if len(set(kinds)) < len(kinds) or "union" in kinds or not branches:
            raise _wrong("A union names each type once and holds no union", kinds)
        count, depth = _bounds(f"the union of {', '.join(kinds)[:200]}", branches)
        members = [child for child in branches if child.kind != "null"]
        plain = {child.kind for child in members if child.logical is None}
        if not members:
            arrow_type = pa.null()
        elif len(members) == 1:
            arrow_type = members[0].type
        elif len(plain) == len(members) and plain in ({"int", "long"}, {"float", "double"}):
            arrow_type = pa.int64() if "long" in plain else pa.float64()
        else:
            arrow_type = pa.struct([pa.field(f"member{at}", child.type) for at, child in enumerate(members)])
        return Node("union", children=tuple(branches), type=arrow_type, all_fields=count, depth=depth)


def _bounds(name: str, nodes: list[Node]) -> tuple[int, int]:
    """(all_fields, depth) of what is made of nodes. Raises InvalidOptionError where they are too many."""
    fields = 1 + sum(node.all_fields for node in nodes)
    depth = 1 + max((node.depth for node in nodes), default=0)
    check_bounds(name, fields, depth)
    return fields, depth


def _aliases(value: dict[str, Any], namespace: str) -> tuple[str, ...]:
    names = value.get("aliases") or ()
    return tuple(name if "." in name or not namespace else f"{namespace}.{name}" for name in names)


def _logical(value: dict[str, Any], node: Node) -> Node:
    logical = value.get("logicalType")
    same = {name: getattr(node, name) for name in ("kind", "name", "aliases", "size")}
    if logical == "decimal" and node.kind in ("bytes", "fixed"):
        precision = value.get("precision")
        scale = value.get("scale", 0)
        if type(precision) is not int or type(scale) is not int or not 0 <= scale <= precision or precision < 1:
            return node  # the specification: an invalid logical type is ignored
        if scale > MOST_DIGITS:
            return node  # Spark has no type for it: its bytes
        precision = min(precision, MOST_DIGITS)  # Connect says 64, and means fewer: a larger number is an error
        decimal_type = pa.decimal128(precision, scale)
        return Node(**same, logical="decimal", precision=precision, scale=scale, type=decimal_type)
    right_size = {"duration": 12, "uuid": 16}.get(str(logical)) if node.kind == "fixed" else node.size
    if (node.kind, logical) in _LOGICAL_TYPES and node.size == right_size:
        return Node(**same, logical=logical, type=_LOGICAL_TYPES[node.kind, str(logical)])
    return node


def _wrong(message: str, found: object) -> InvalidOptionError:
    return InvalidOptionError(f"The text is no Avro schema. {message}", found=str(found)[:200])


# Arrow to Avro


def schema_of(arrow_type: pa.DataType, name: str = "Value") -> Any:
    """The Avro schema (as JSON values) of a column: each field is a union of null and its type, with default null.

    What Spark's own Avro writer gives for the same columns. Raises InvalidOptionError for a type that Avro lacks.
    """
    t = pa.types
    if t.is_struct(arrow_type):
        fields = [
            {"name": field.name, "type": ["null", schema_of(field.type, f"{name}_{field.name}")], "default": None}
            for field in arrow_type
        ]
        bad = [field.name for field in arrow_type if not _NAME.fullmatch(field.name)]
        if bad:
            raise InvalidOptionError(
                "Avro does not allow these field names", expected="letters, digits and _", found=bad
            )
        return {"type": "record", "name": name, "fields": fields}
    if t.is_list(arrow_type) or t.is_large_list(arrow_type):
        return {"type": "array", "items": ["null", schema_of(arrow_type.value_type, f"{name}_item")]}
    if t.is_map(arrow_type) and (t.is_string(arrow_type.key_type) or t.is_large_string(arrow_type.key_type)):
        return {"type": "map", "values": ["null", schema_of(arrow_type.item_type, f"{name}_value")]}
    if t.is_decimal128(arrow_type):
        return {
            "type": "bytes",
            "logicalType": "decimal",
            "precision": arrow_type.precision,
            "scale": arrow_type.scale,
        }
    if t.is_timestamp(arrow_type):
        local = "" if arrow_type.tz else "local-"
        return {"type": "long", "logicalType": f"{local}timestamp-micros"}
    if t.is_time(arrow_type):
        return {"type": "long", "logicalType": "time-micros"}
    if t.is_date(arrow_type):
        return {"type": "int", "logicalType": "date"}
    for check, avro_type in _PLAIN:
        if check(arrow_type):
            return avro_type
    raise InvalidOptionError("Avro has no such type", found=arrow_type, hint="Cast the column before it is written")


_PLAIN = (
    (pa.types.is_boolean, "boolean"),
    (lambda kind: kind in (pa.int8(), pa.int16(), pa.int32(), pa.uint8(), pa.uint16()), "int"),
    (lambda kind: kind in (pa.int64(), pa.uint32()), "long"),
    (pa.types.is_float32, "float"),
    (pa.types.is_float64, "double"),
    (lambda kind: pa.types.is_string(kind) or pa.types.is_large_string(kind), "string"),
    (lambda kind: pa.types.is_binary(kind) or pa.types.is_large_binary(kind), "bytes"),
)


def default_array(node: Node, default: Any, rows: int) -> pa.Array:
    """A default, repeated `rows` times. Raises InvalidOptionError for a default that does not fit its schema."""
    try:
        return pa.repeat(pa.scalar(_value(node, default), node.type), rows)
    except (pa.ArrowException, ValueError, TypeError, KeyError, AttributeError) as error:
        raise InvalidOptionError(
            "A default of an Avro schema does not fit its field", expected=node.type, found=default
        ) from error


def _value(node: Node, default: Any) -> Any:
    """The Python value that pyarrow takes. Bytes are code points 0 to 255 in JSON; a union's is of its first branch
    (since 1.12: of any that it fits).
    """
    if node.kind == "union":
        return _union_value(node, default)
    if node.kind == "record":
        values = {field.name: default.get(field.name, field.default) for field in node.fields}
        return {field.name: _value(field.node, values[field.name]) for field in node.fields}
    if node.kind == "array":
        return [_value(node.children[0], item) for item in default]
    if node.kind == "map":
        return [(key, _value(node.children[0], item)) for key, item in default.items()]
    if node.kind in ("bytes", "fixed") and default is not None:
        return _value_of_bytes(node, default.encode("latin-1"))
    if node.logical is not None and node.kind in ("int", "long") and default is not None:
        ticks = default * (1000 if node.logical.endswith("millis") else 1)
        return pa.scalar(ticks, pa.int32() if node.logical == "date" else pa.int64()).cast(node.type).as_py()
    return default


def _value_of_bytes(node: Node, raw: bytes) -> Any:
    if node.logical == "decimal":
        return decimal.Decimal(int.from_bytes(raw, "big", signed=True)).scaleb(-node.scale)
    if node.logical == "duration":
        numbers = [int.from_bytes(raw[at : at + 4], "little") for at in (0, 4, 8)]
        return dict(zip(("months", "days", "milliseconds"), numbers, strict=True))
    if node.logical == "uuid":
        return str(uuid.UUID(bytes=raw))
    return raw


def _union_value(node: Node, default: Any) -> Any:
    if default is None:
        return None
    first = next((at for at, child in node.members if _fits(child, default)), node.members[0][0])
    value = _value(node.children[first], default)
    if not pa.types.is_struct(node.type) or len(node.members) == 1:
        return value
    return {f"member{at}": value for at, (branch, _) in enumerate(node.members) if branch == first}


def _fits(node: Node, default: Any) -> bool:
    kinds = {bool: ("boolean",), int: ("int", "long", "float", "double"), float: ("float", "double")}
    more = {str: ("string", "bytes", "fixed", "enum"), list: ("array",), dict: ("record", "map")}
    return node.kind in (kinds | more).get(type(default), ())
