"""Ids of schemas, as another registry has them: in front of keys and values, and in headers of records.

A schema is registered under the subjects that have it in the registry it comes from, their older versions before it,
and what it refers to before all. A GUID is the same in all registries: it stays, and its schema is registered.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import replace
from enum import StrEnum

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_segments.errors import InvalidRecordError, UnknownSchemaError
from spark_segments.values import wire
from spark_segments.values.registries.registry import Registry, Schema, context_of
from spark_segments.values.rows import offsets_of


class Framed(StrEnum):
    """Which columns have ids of schemas: a byte 0 and four bytes in front, or a header of the record."""

    BOTH = "both"
    KEY = "key"
    VALUE = "value"


class SchemaIds:
    """The ids of the schemas that records have, in the registry `target`. `source`: the one that they were written
    with.
    """

    COLUMNS = ("offset", "partition", "key", "value", "headers")
    """What `check` needs of a batch."""

    def __init__(self, source: Registry, target: Registry, framed: Framed) -> None:
        self._source = source
        self._target = target
        self._columns = ("key", "value") if framed is Framed.BOTH else (framed.value,)
        self._wanted: set[int] = set()
        self._ids: dict[int, int] = {}
        self._registered: dict[tuple[str, int], int] = {}
        self._versions: dict[tuple[str, int], int] = {}

    def check(self, topic: str, batch: pa.RecordBatch) -> None:
        """Notes the schemas of a batch. Raises InvalidRecordError for a record whose schema `source` lacks."""
        for column in self._columns:
            _, rows, heads = _id_headers(batch, column)
            for values, places in ((batch.column(column), np.arange(len(batch))), (heads, rows)):
                framed_rows, ids = _frames(values)
                self._note(topic, batch, column, places[framed_rows], ids)
            is_guid = pc.and_(
                pc.equal(pc.binary_slice(heads, 0, 1), b"\1"),
                pc.greater_equal(pc.binary_length(heads), wire.GUID_BYTES),
            )
            guids = pc.binary_slice(heads.filter(is_guid), 1, wire.GUID_BYTES).dictionary_encode()
            numbers = [self._source.number_of_guid(str(uuid.UUID(bytes=guid))) for guid in guids.dictionary.to_pylist()]
            its_rows = rows[is_guid.fill_null(False).to_numpy(zero_copy_only=False)]
            self._note(topic, batch, column, its_rows, np.array(numbers, np.int64)[guids.indices.to_numpy()])

    def register(self) -> None:
        """Registers the schemas of all batches that were checked. Raises RegistryError."""
        new = sorted(self._wanted - self._ids.keys())
        if not new:
            return
        subjects = self._source.subjects()
        places = [
            (subject, version, schema_id)
            for subject, versions in subjects.items()
            for version, schema_id in versions.items()
            if not context_of(subject)
        ]
        for source_id in new:
            schema = self._source.schema(source_id)
            having = [place for place in places if place[2] == source_id]
            if not having:  # a GUID is no id of a subject's version
                having = [place for place in places if self._source.schema(place[2], place[0]) == schema]
            ids = {self._register(subjects, subject, version) for subject, version, _ in having}
            if len(ids) != 1:
                raise self._target.error(
                    f"The schema {source_id} of {self._source.address} gets no single id",
                    found=f"the ids {sorted(ids)}" if ids else "no subject there that has it: was it deleted?",
                )
            self._ids[source_id] = ids.pop()

    def translated(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """A batch that was checked, whose schemas are registered, with the ids of `target`."""
        for column in self._columns:
            batch = _with(batch, column, self._rewritten(batch.column(column)))
            entries, _, heads = _id_headers(batch, column)
            if len(entries):
                batch = _with(batch, "headers", _with_values(batch, entries, self._rewritten(heads)))
        return batch

    def _note(self, topic: str, batch: pa.RecordBatch, column: str, rows: np.ndarray, ids: np.ndarray) -> None:
        for schema_id, first in zip(*np.unique(ids, return_index=True), strict=True):
            if schema_id in self._wanted:
                continue
            try:
                self._source.schema(int(schema_id))
            except UnknownSchemaError as error:
                row = int(rows[first])
                place = f"{topic}-{batch.column('partition')[row]} at offset {batch.column('offset')[row]}"
                raise InvalidRecordError(
                    f"The {column} of {place} has a schema that no registry has to translate: {error.message}",
                    path=self._source.address,
                    hint="Is it the registry that the records were written with? Where keys, or values, have no "
                    "schema: --framed value, or --framed key",
                ) from None
            self._wanted.add(int(schema_id))

    def _register(self, subjects: Mapping[str, Mapping[int, int]], subject: str, last: int) -> int:
        """The id there of a version of a subject, which is registered behind the versions before it."""
        for version in sorted(version for version in subjects[subject] if version <= last):
            if (subject, version) not in self._registered:
                schema = self._referring(subjects, self._source.schema(subjects[subject][version], subject))
                self._registered[subject, version] = self._target.register(subject, schema)
        return self._registered[subject, last]

    def _referring(self, subjects: Mapping[str, Mapping[int, int]], schema: Schema) -> Schema:
        """The schema, with its references to the versions there, which are registered first."""
        references = []
        for reference in schema.references:
            if reference.version not in subjects.get(reference.subject, {}):
                raise self._source.error(
                    f"No version {reference.version} of {reference.subject}, which a schema refers to"
                )
            used = reference.subject, self._register(subjects, reference.subject, reference.version)
            if used not in self._versions:
                versions = self._target.subjects()[reference.subject]
                self._versions[used] = max(version for version, schema_id in versions.items() if schema_id == used[1])
            references.append(replace(reference, version=self._versions[used]))
        return replace(schema, references=tuple(references), id=None, guid=None)

    def _rewritten(self, values: pa.BinaryArray) -> pa.BinaryArray:
        """The values, with the ids of `target` in their frames."""
        rows, ids = _frames(values)
        if not len(rows):
            return values
        old, places = np.unique(ids, return_inverse=True)
        new = np.array([self._ids[int(schema_id)] for schema_id in old], ">u4").view(np.uint8).reshape(-1, 4)
        offsets = offsets_of(values)
        data = np.frombuffer(values.buffers()[2], np.uint8)[offsets[0] : offsets[-1]].copy()
        starts = offsets - offsets[0]
        data[starts[rows][:, None] + np.arange(1, wire.HEADER_BYTES)] = new[places]
        kind = np.int64 if pa.types.is_large_binary(values.type) else np.int32
        buffers = [None, pa.py_buffer(starts.astype(kind)), pa.py_buffer(data)]
        rewritten = pa.Array.from_buffers(values.type, len(values), buffers)
        if not values.null_count:
            return rewritten
        return pc.if_else(values.is_valid(), rewritten, pa.scalar(None, values.type))


def _id_headers(batch: pa.RecordBatch, column: str) -> tuple[np.ndarray, np.ndarray, pa.BinaryArray]:
    """(places among the headers of all rows, rows, values) of the headers that have an id of a column's schema."""
    headers = batch.column("headers")
    entries = headers.flatten()
    keys = entries.field("key")
    places = np.flatnonzero(
        pc.equal(keys, pa.scalar(f"__{column}_schema_id", keys.type)).to_numpy(zero_copy_only=False)
    )
    rows = np.repeat(np.arange(len(batch)), pc.list_value_length(headers).fill_null(0))[places]
    return places, rows, entries.field("value").take(pa.array(places))


def _with_values(batch: pa.RecordBatch, places: np.ndarray, values: pa.BinaryArray) -> pa.ListArray:
    """The headers of a batch, with other values at these places."""
    headers = batch.column("headers")
    entries = headers.flatten()
    is_other = np.zeros(len(entries), bool)
    is_other[places] = True
    new_values = pc.replace_with_mask(entries.field("value"), pa.array(is_other), values)
    pairs = pa.StructArray.from_arrays([entries.field("key"), new_values], fields=list(headers.type.value_type))
    offsets = np.zeros(len(headers) + 1, np.int32)
    np.cumsum(pc.list_value_length(headers).fill_null(0).to_numpy(), out=offsets[1:])
    mask = headers.is_null() if headers.null_count else None
    return pa.ListArray.from_arrays(pa.array(offsets), pairs, type=headers.type, mask=mask)


def _frames(values: pa.BinaryArray) -> tuple[np.ndarray, np.ndarray]:
    """(rows, the ids in their frames) of the values that begin with a byte 0 and have five bytes or more."""
    offsets = offsets_of(values)
    rows = np.flatnonzero((np.diff(offsets) >= wire.HEADER_BYTES) & values.is_valid().to_numpy(zero_copy_only=False))
    if rows.size:
        data = np.frombuffer(values.buffers()[2], np.uint8)
        rows = rows[data[offsets[rows]] == 0]
    return rows, wire.schema_ids(values.take(pa.array(rows)))


def _with(batch: pa.RecordBatch, column: str, values: pa.Array) -> pa.RecordBatch:
    return batch.set_column(batch.schema.get_field_index(column), batch.schema.field(column), values)
