"""The columns of a table after a change of its topic's columns: columns that hold the rows of both, or an error that
names the column for which there is none.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa

from spark_segments.errors import InvalidOptionError
from spark_segments.values.widening import is_wider

_MOST_DIGITS = 38  # of a decimal in Parquet's readers
_TYPES = {pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64()}
_TYPES |= {pa.string(), pa.binary(), pa.date32(), pa.timestamp("us", "UTC")}  # in Delta, without features of the table


def check_columns(schema: pa.Schema, table: str | None = None) -> None:
    """Raises InvalidOptionError that names the first column that neither Delta nor Iceberg can have. `table`: the path
    of an existing one.
    """
    for path, reason in _unfit(schema, ""):
        raise InvalidOptionError(
            f"A table cannot have the column {path}: {reason}",
            path=table,
            hint=f"Leave it out or give it another type: {path.partition('.')[0]}.schema takes Spark's DDL",
        )


def _unfit(fields: Iterable[pa.Field], path: str) -> Iterator[tuple[str, str]]:
    """(column, why it cannot be)"""
    names: dict[str, str] = {}
    for field in fields:
        at = path + field.name
        kind = field.type
        first_spelling = names.setdefault(field.name.lower(), field.name)
        if first_spelling != field.name:
            yield at, f"{path}{first_spelling} differs in case alone"
        while pa.types.is_list(kind):
            at = f"{at}[]"
            kind = kind.value_type
        if pa.types.is_map(kind):
            yield from _unfit([kind.key_field, kind.item_field], f"{at}.")
        elif pa.types.is_struct(kind):
            if not kind.num_fields:
                yield at, "it is a struct without fields"
            yield from _unfit(kind, f"{at}.")
        elif kind not in _TYPES and not pa.types.is_decimal128(kind):
            yield at, f"its type is {kind}"


def columns_of_both(table: pa.Schema, topic: pa.Schema, path: str) -> pa.Schema:
    """The columns of a table that can have its own rows and the topic's: the fields of either, by name, each with the
    wider type. `path`: the table's.

    Raises InvalidOptionError that names the first column where neither type is wider.
    """
    return pa.schema(_both(table, topic, "", path), table.metadata)


def _both(table: Iterable[pa.Field], topic: Iterable[pa.Field], at: str, path: str) -> list[pa.Field]:
    fields = {field.name: field for field in table}
    for field in topic:
        existing = fields.get(field.name)
        if existing is None:
            fields[field.name] = pa.field(field.name, field.type)
        else:
            fields[field.name] = existing.with_type(_wider(existing.type, field.type, at + field.name, path))
    return list(fields.values())


def _wider(table: pa.DataType, topic: pa.DataType, at: str, path: str) -> pa.DataType:
    """The type that holds the values of both. Raises InvalidOptionError where there is none."""
    if table == topic:
        return table
    kind = _of_nested(table, topic, at, path)
    if kind is None:
        kind = _of_numbers(table, topic)
    if kind is None:
        raise InvalidOptionError(
            f"The table's column {at} cannot take what the topic has",
            path=path,
            expected=f"{table}, or a wider type",
            found=topic,
            hint=f"Set {at.partition('.')[0]}.schema to Spark's DDL with the type of the table, or make another table",
        )
    return kind


def _of_nested(table: pa.DataType, topic: pa.DataType, at: str, path: str) -> pa.DataType | None:
    """The type for both where they are structs, lists or maps, both of them; else None. Elements, keys and items have
    the table's names: other writers call them otherwise.
    """
    t = pa.types
    if t.is_struct(table) and t.is_struct(topic):
        return pa.struct(_both(table, topic, f"{at}.", path))
    if t.is_list(table) and t.is_list(topic):
        element = topic.value_field.with_name(table.value_field.name)
        return pa.list_(*_both([table.value_field], [element], f"{at}.", path))
    if t.is_map(table) and t.is_map(topic):
        key = topic.key_field.with_name(table.key_field.name)
        item = topic.item_field.with_name(table.item_field.name)
        return pa.map_(*_both([table.key_field, table.item_field], [key, item], f"{at}.", path))
    return None


def _of_numbers(table: pa.DataType, topic: pa.DataType) -> pa.DataType | None:
    """The type for both where one is wider, or where a decimal has digits enough for both; else None."""
    digits = _digits(table)
    topic_digits = _digits(topic)
    if digits and topic_digits and (pa.types.is_decimal(table) or pa.types.is_decimal(topic)):
        # decimal(5,0) and decimal(3,2) need 5 digits before the point and 2 behind it: neither is wide enough.
        before = max(digits[0], topic_digits[0])
        behind = max(digits[1], topic_digits[1])
        return pa.decimal128(before + behind, behind) if before + behind <= _MOST_DIGITS else None
    if is_wider(table, topic):
        return topic
    return table if is_wider(topic, table) else None


def _digits(kind: pa.DataType) -> tuple[int, int] | None:
    """(digits before the point, digits behind it) of a decimal or an integer; None for other types."""
    if pa.types.is_decimal(kind):
        return kind.precision - kind.scale, kind.scale
    return ({8: 3, 16: 5, 32: 10, 64: 19}[kind.bit_width], 0) if pa.types.is_signed_integer(kind) else None


def lost_field(table: pa.Schema, topic: pa.Schema) -> str | None:
    """The first field that a table has within a column of its topic, and the topic's column has not."""
    shared = [field for field in table if field.name in topic.names]
    return next((path for path, _, kind in _pairs(shared, topic) if kind is None), None)


def are_retyped(before: pa.Schema, after: pa.Schema) -> bool:
    """Whether a column that both have is of another type, however deep."""
    return any(kind not in (None, old) and not pa.types.is_nested(old) for _, old, kind in _pairs(before, after))


def _pairs(
    table: Iterable[pa.Field], topic: Iterable[pa.Field], at: str = ""
) -> Iterator[tuple[str, pa.DataType, pa.DataType | None]]:
    """(column of a table, its type, its type in a topic or None), however deep."""
    kinds = {field.name: field.type for field in topic}
    for field in table:
        path = at + field.name
        kind = field.type
        topic_kind = kinds.get(field.name)
        yield path, kind, topic_kind
        if topic_kind is not None and pa.types.is_nested(kind) and pa.types.is_nested(topic_kind):
            yield from _pairs(_children(kind), _children(topic_kind), f"{path}.")


def _children(kind: pa.DataType) -> list[pa.Field]:
    return [kind.field(number) for number in range(kind.num_fields)]
