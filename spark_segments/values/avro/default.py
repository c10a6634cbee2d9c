"""Defaults of Avro's fields, which a schema gives as JSON, as Arrow columns."""

from __future__ import annotations

import decimal
from typing import Any

import pyarrow as pa

from spark_segments.errors import InvalidOptionError
from spark_segments.values.avro.schema import Node

_TICKS = {"timestamp-millis": 1000, "local-timestamp-millis": 1000, "time-millis": 1000}


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
        given = {one.name: default.get(one.name, one.default) for one in node.fields}
        return {one.name: _value(one.node, given[one.name]) for one in node.fields}
    if node.kind == "array":
        return [_value(node.children[0], one) for one in default]
    if node.kind == "map":
        return [(key, _value(node.children[0], one)) for key, one in default.items()]
    if node.kind in ("bytes", "fixed") and default is not None:
        raw = default.encode("latin-1")
        if node.logical == "decimal":
            return decimal.Decimal(int.from_bytes(raw, "big", signed=True)).scaleb(-node.scale)
        if node.logical == "duration":
            numbers = [int.from_bytes(raw[at : at + 4], "little") for at in (0, 4, 8)]
            return dict(zip(("months", "days", "milliseconds"), numbers, strict=True))
        if node.logical == "uuid":
            text = raw.hex()
            return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))
        return raw
    if node.logical is not None and node.kind in ("int", "long") and default is not None:
        ticks = default * _TICKS.get(node.logical, 1)
        return pa.scalar(ticks, pa.int32() if node.logical == "date" else pa.int64()).cast(node.type).as_py()
    return default


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
