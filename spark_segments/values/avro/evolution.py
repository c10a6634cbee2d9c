"""Avro's schema resolution: reading rows of a writer's schema as a reader's schema, and whether that is possible.

A schema is resolved once (`resolve`): what comes out is the schema to read the bytes with and a function from the array
read to one of the reader's type. Rules: Avro specification 1.12, "Schema Resolution"; levels are Confluent's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import pyarrow as pa
import pyarrow.compute as pc

from spark_segments.errors import InvalidOptionError
from spark_segments.values.avro.schema import TYPES, Field, Node, default_array
from spark_segments.values.column_types import map_entries
from spark_segments.values.undecodable import Undecodable

Convert = Callable[[pa.Array], pa.Array]
LEVELS = ("NONE", "BACKWARD", "BACKWARD_TRANSITIVE", "FORWARD", "FORWARD_TRANSITIVE", "FULL", "FULL_TRANSITIVE")
_PROMOTIONS = {
    ("int", "long"),
    ("int", "float"),
    ("int", "double"),
    ("long", "float"),
    ("long", "double"),
    ("float", "double"),
    ("string", "bytes"),
    ("bytes", "string"),
}


class Incompatible(Exception):
    """The reader's schema cannot read the writer's."""


@dataclass(frozen=True, slots=True)
class Resolution:
    """`node` reads the bytes; `convert` turns its array into the reader's."""

    node: Node
    convert: Convert


@lru_cache(maxsize=256)
def resolve(writer: Node, reader: Node, *, strict: bool = False) -> Resolution:
    """How rows of `writer` are read as `reader`. Raises Incompatible.

    A branch of the writer's union that the reader lacks is an error only for rows that have it; with `strict`, always.
    """
    return _Resolver(strict).node(writer, reader, "")


def incompatibility(new: Node, old: Sequence[Node], level: str) -> str | None:
    """Why `new` may not follow the schemas `old`, newest last, under a compatibility level of Confluent's, or None."""
    if level not in LEVELS:
        raise InvalidOptionError("Unknown compatibility level", expected=", ".join(LEVELS), found=level)
    for schema in old if level.endswith("_TRANSITIVE") else old[-1:]:
        pairs = []
        if level.startswith(("BACKWARD", "FULL")):
            pairs.append((schema, new))
        if level.startswith(("FORWARD", "FULL")):
            pairs.append((new, schema))
        for writer, reader in pairs:
            try:
                resolve(writer, reader, strict=True)
            except Incompatible as error:
                return str(error)
    return None


class _Resolver:
    def __init__(self, strict: bool) -> None:
        self._strict = strict
        # A union tries its branches one by one, and so do the unions in them: each pair of nodes is tried once.
        self._tried: dict[tuple[int, int], Resolution | Incompatible] = {}

    def node(self, writer: Node, reader: Node, path: str) -> Resolution:
        pair = id(writer), id(reader)
        if pair not in self._tried:
            try:
                self._tried[pair] = self._node(writer, reader, path)
            except Incompatible as error:
                self._tried[pair] = error
        resolved = self._tried[pair]
        if isinstance(resolved, Incompatible):
            raise resolved
        return resolved

    def _node(self, writer: Node, reader: Node, path: str) -> Resolution:
        if writer.kind == "union":
            return self._from_union(writer, reader, path)
        if reader.kind == "union":
            return self._to_union(writer, reader, path)
        if writer.kind == reader.kind:
            return self._same_kind(writer, reader, path)
        if (writer.kind, reader.kind) not in _PROMOTIONS or reader.logical in ("decimal", "uuid"):
            raise Incompatible(
                f"{path or 'the value'} is {_shown(writer)} in the writer's schema, {_shown(reader)} in the reader's"
            )
        plain = replace(writer, logical=None, type=TYPES[writer.kind])
        return Resolution(plain, lambda array: _promoted(array, reader))

    def _same_kind(self, writer: Node, reader: Node, path: str) -> Resolution:
        if reader.kind in ("record", "enum", "fixed", "recursive") and not _same_name(writer, reader):
            raise Incompatible(f"{path or 'the value'} is {writer.name} in the writer's schema, {reader.name} here")
        if reader.kind == "recursive":
            return Resolution(writer, _as_it_is)  # its text has the writer's fields
        if reader.kind == "record":
            return self._record(writer, reader, path)
        if reader.kind == "enum":
            return self._enum(writer, reader, path)
        if reader.kind in ("array", "map"):
            return self._list(writer, reader, path)
        if reader.kind == "fixed" and writer.size != reader.size:
            raise Incompatible(f"{path} has {writer.size} bytes in the writer's schema, {reader.size} in the reader's")
        scales = (writer.precision, writer.scale), (reader.precision, reader.scale)
        if writer.logical == reader.logical == "decimal" and scales[0] != scales[1]:
            raise Incompatible(
                f"{path or 'the value'} is a decimal{scales[0]} in the writer's schema, {scales[1]} here"
            )
        return Resolution(reader, _as_it_is)  # the reader's logical type says what the bytes mean

    def _record(self, writer: Node, reader: Node, path: str) -> Resolution:
        names = [field.name for field in writer.fields]
        written = {field.name: field.node for field in writer.fields}
        nodes = dict(written)
        steps: list[tuple[Field, int, Convert]] = []
        for field in reader.fields:
            name = next((alias for alias in (field.name, *field.aliases) if alias in nodes), None)
            if name is None:
                if not field.has_default:
                    raise Incompatible(f"{path}{field.name} is not in the writer's schema and has no default")
                steps.append((field, -1, _as_it_is))
                continue
            resolved = self.node(written[name], field.node, f"{path}{field.name}.")
            nodes[name] = resolved.node
            steps.append((field, names.index(name), resolved.convert))
        fields = tuple(replace(field, node=nodes[field.name]) for field in writer.fields)
        read_type = pa.struct([pa.field(field.name, field.node.type) for field in fields])

        def convert(array: pa.Array) -> pa.Array:
            children = [
                default_array(field.node, field.default, len(array)) if at < 0 else change(array.field(at))
                for field, at, change in steps
            ]
            return pa.Array.from_buffers(reader.type, len(array), array.buffers()[:1], children=children)

        return Resolution(replace(writer, fields=fields, type=read_type), convert)

    def _list(self, writer: Node, reader: Node, path: str) -> Resolution:
        item = self.node(writer.children[0], reader.children[0], f"{path}[].")
        field = pa.field("element" if reader.kind == "array" else "value", item.node.type)
        list_type = pa.list_(field) if reader.kind == "array" else pa.map_(pa.string(), field)

        def convert(array: pa.Array) -> pa.Array:
            child = item.convert(array.values if reader.kind == "array" else array.items)
            if reader.kind == "map":
                child = map_entries(array.keys, child)
            return pa.Array.from_buffers(reader.type, len(array), array.buffers()[:2], children=[child])

        return Resolution(replace(writer, children=(item.node,), type=list_type), convert)

    def _enum(self, writer: Node, reader: Node, path: str) -> Resolution:
        missing = [symbol for symbol in writer.symbols if symbol not in reader.symbols]
        if self._strict and missing and reader.default_symbol is None:
            raise Incompatible(f"{path or 'the enum'} lacks the symbols {missing} and has no default")

        def convert(array: pa.Array) -> pa.Array:
            unknown = pc.is_in(array, value_set=pa.array(missing, pa.string()))
            if missing and reader.default_symbol is not None:
                return pc.if_else(unknown, reader.default_symbol, array)
            if missing and pc.any(unknown).as_py():
                raise Undecodable(f"an enum symbol that the reader's schema lacks, of {missing}")
            return array

        return Resolution(writer, convert)

    def _from_union(self, writer: Node, reader: Node, path: str) -> Resolution:
        nullable = reader.kind == "null" or (reader.kind == "union" and reader.null_branch >= 0)
        if writer.null_branch >= 0 and not nullable and self._strict:
            raise Incompatible(f"{path or 'the value'} can be null in the writer's schema, not in the reader's")
        members = {branch: self._member(child, reader, path) for branch, child in writer.members}
        children = [members[at].node if at in members else child for at, child in enumerate(writer.children)]
        parts = [member.convert for member in members.values()]
        types = [member.node.type for member in members.values()]
        wide = len(members) > 1
        members_type = pa.struct([pa.field(f"member{at}", kind) for at, kind in enumerate(types)])
        single = types[0] if types else pa.null()
        node = replace(writer, children=tuple(children), type=members_type if wide else single)

        def convert(array: pa.Array) -> pa.Array:
            if not parts:
                result = pa.nulls(len(array), reader.type)
            elif wide:
                result = pc.coalesce(*(part(array.field(at)) for at, part in enumerate(parts)))
            else:
                result = parts[0](array)
            if not nullable and writer.null_branch >= 0 and array.null_count:
                raise Undecodable("a null, which the reader's schema does not have")
            return result

        return Resolution(node, convert)

    def _member(self, child: Node, reader: Node, path: str) -> Resolution:
        """A branch of the writer's union, as the reader has it. Without strictness, an error of its first value."""
        try:
            return self.node(child, reader, path)
        except Incompatible as error:
            if self._strict:
                raise
            return Resolution(child, _refuse(reader.type, str(error)))

    def _to_union(self, writer: Node, reader: Node, path: str) -> Resolution:
        if writer.kind == "null" and reader.null_branch >= 0:
            return Resolution(writer, lambda array: pa.nulls(len(array), reader.type))
        exact = [member for member in reader.members if member[1].kind == writer.kind and _same_name(writer, member[1])]
        for branch, child in [*exact, *reader.members]:
            try:
                resolved = self.node(writer, child, path)
            except Incompatible:
                continue
            member = next(at for at, (other, _) in enumerate(reader.members) if other == branch)
            return Resolution(resolved.node, _into_union(resolved.convert, reader, member))
        raise Incompatible(f"{path or 'the value'} is {_shown(writer)}, which no branch of the reader's union can read")


def _into_union(convert: Convert, reader: Node, member: int) -> Convert:
    if len(reader.members) == 1:
        return convert
    if not pa.types.is_struct(reader.type):
        return lambda array: convert(array).cast(reader.type)

    def into(array: pa.Array) -> pa.Array:
        member_array = convert(array)
        children = [
            member_array if at == member else pa.nulls(len(array), child.type)
            for at, (_, child) in enumerate(reader.members)
        ]
        # A row that is null here is a null of the union.
        return pa.StructArray.from_arrays(children, fields=list(reader.type), mask=member_array.is_null())

    return into


def _as_it_is(array: pa.Array) -> pa.Array:
    return array


def _refuse(kind: pa.DataType, reason: str) -> Convert:
    def refuse(array: pa.Array) -> pa.Array:
        if array.null_count < len(array):
            raise Undecodable(reason)
        return pa.nulls(len(array), kind)

    return refuse


def _promoted(array: pa.Array, reader: Node) -> pa.Array:
    # A long becomes a double as Java widens it; bytes are checked to be text.
    array = array.cast(TYPES[reader.kind], safe=reader.kind == "string")
    if reader.logical is not None and reader.logical.endswith("millis"):
        array = pc.multiply_checked(array, 1000)
    return array.cast(reader.type)


def _same_name(writer: Node, reader: Node) -> bool:
    names = {reader.name, *reader.aliases}
    return writer.name in names or writer.name.rpartition(".")[2] in {name.rpartition(".")[2] for name in names}


def _shown(node: Node) -> str:
    return node.name or (f"{node.kind} ({node.logical})" if node.logical else node.kind)
