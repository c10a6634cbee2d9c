"""Values of a row's schema as the type of the column, which is the same or a wider one: no value becomes another."""

from __future__ import annotations

import pyarrow as pa

from spark_segments.values.column_types import recast
from spark_segments.values.undecodable import Undecodable, refused_by_arrow

_EXACT_BITS = {pa.float32(): 16, pa.float64(): 32}
"""The widest integers, all of whose values a floating-point type has."""


def widened(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """`column_types.recast`, where each type of the array is the one in `kind` or a narrower one.

    Wider are: a larger integer, double than float, a floating-point number that has all values of an integer, a decimal
    of more digits behind the point, or of any for an integer. Raises Undecodable with both types for any other, such as
    a number where a time is wanted.
    """
    _check(array.type, kind, "")
    with refused_by_arrow():
        return recast(array, kind)


def _check(source: pa.DataType, kind: pa.DataType, path: str) -> None:
    t = pa.types
    if t.is_struct(source) and t.is_struct(kind):
        for field in kind:
            at = source.get_field_index(field.name)
            if at >= 0:  # a field that the row's schema lacks is null
                _check(source.field(at).type, field.type, f"{path}.{field.name}" if path else field.name)
    elif (t.is_list(source) or t.is_large_list(source)) and t.is_list(kind):
        _check(source.value_type, kind.value_type, f"{path}[]")
    elif t.is_map(source) and t.is_map(kind):
        _check(source.key_type, kind.key_type, f"{path}{{}}")
        _check(source.item_type, kind.item_type, f"{path}{{}}")
    elif not is_wider(source, kind):
        raise Undecodable(f"{path or 'the value'} is {source} in the schema of the row, and {kind} is read")


def is_wider(source: pa.DataType, kind: pa.DataType) -> bool:
    """Whether `kind` has all values of `given`; of decimals, as far as its digits before the point are enough."""
    t = pa.types
    if isinstance(source, pa.BaseExtensionType):
        return is_wider(source.storage_type, kind)
    if source == kind or t.is_null(source):
        return True
    if t.is_integer(source):
        wider = t.is_integer(kind) and kind.bit_width >= source.bit_width
        return bool(wider or source.bit_width <= _EXACT_BITS.get(kind, 0) or t.is_decimal(kind))
    if t.is_decimal(source):
        return bool(t.is_decimal(kind) and kind.scale >= source.scale)
    return bool(source == pa.float32() and kind == pa.float64())
