"""Enums of Protobuf messages to be written: their names as numbers, wherever in a message they stand.

A number that the enum has no name for reads as its digits, and is written as that number again. ptars itself takes a
name that it does not know for 0.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_segments.values.column_types import valid_bits
from spark_segments.values.undecodable import Undecodable


def numbered_enums(array: pa.Array, descriptor: Any) -> pa.Array:
    """The struct of a message with int32 in place of enum names. Raises Undecodable for an unknown name."""
    if not pa.types.is_struct(array.type):
        return array
    fields = descriptor.fields_by_name
    names = [one.name for one in array.type]
    children = [
        _field(child, fields[name]) if name in fields else child
        for name, child in zip(names, array.flatten(), strict=True)
    ]
    made = pa.struct([pa.field(name, child.type) for name, child in zip(names, children, strict=True)])
    return pa.Array.from_buffers(made, len(array), [valid_bits(array)], children=children)


def _field(array: pa.Array, field: Any) -> pa.Array:
    t, message = pa.types, field.message_type
    if field.enum_type is None and message is None:
        return array
    if not field.is_repeated:
        return _one(array, field)
    whole = pa.concat_arrays([array])  # from offset 0
    if message is not None and message.GetOptions().map_entry and t.is_map(array.type):
        items = _field(whole.items, message.fields_by_name["value"])
        entries = [pa.field("key", array.type.key_type, nullable=False), pa.field("value", items.type)]
        child = pa.StructArray.from_arrays([whole.keys, items], fields=entries)
        made = pa.map_(array.type.key_type, entries[1])
    elif t.is_list(array.type):
        child = _one(whole.values, field)
        made = pa.list_(pa.field("element", child.type))
    else:
        return array
    return pa.Array.from_buffers(made, len(whole), [valid_bits(whole), whole.buffers()[1]], children=[child])


def _one(array: pa.Array, field: Any) -> pa.Array:
    if field.enum_type is None:
        return numbered_enums(array, field.message_type)
    if not (pa.types.is_string(array.type) or pa.types.is_large_string(array.type)):
        return array
    values = field.enum_type.values
    numbers = pa.array(np.array([one.number for one in values], np.int32))
    known = numbers.take(pc.index_in(array, value_set=pa.array([one.name for one in values], array.type)))
    if known.null_count == array.null_count:
        return known
    is_other = pc.and_(array.is_valid(), known.is_null())
    others = pc.if_else(is_other, array, pa.scalar(None, array.type))
    try:
        return pc.coalesce(known, others.cast(pa.int32()))
    except pa.ArrowInvalid:
        raise Undecodable(f"{field.name} is no value of the enum {field.enum_type.name}") from None
