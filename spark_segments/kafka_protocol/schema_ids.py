"""Ids of schemas, as another registry has them: in front of keys and values, and in headers of records.

A schema is registered under the subjects that have it in the registry it comes from, their older versions before it,
and what it refers to before all. A GUID is the same in all registries: it stays, and its schema is registered.
"""

from __future__ import annotations

import uuid
from dataclasses import replace
from enum import StrEnum

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_segments.errors import InvalidRecordError, RegistryError, UnknownSchemaError
from spark_segments.values import wire
from spark_segments.values.registries.registry import Reference, Registry, Schema, context_of
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
        self._source, self._target = source, target
        self._columns = ("key", "value") if framed is Framed.BOTH else (framed.value,)
        self._ids: dict[int, int] = {}
        self._wanted: set[int] = set()

    def check(self, topic: str, batch: pa.RecordBatch) -> None:
        """Notes the schemas of a batch. Raises InvalidRecordError for a record of whose schema `source` knows nothing,
        or whose subject it lacks.
        """
        for column in self._columns:
            for values in (batch.column(column), _id_headers(batch, column)):
                rows, ids = _frames(values)
                self._note(topic, batch, column, rows, ids)
                guids = values.filter(pc.equal(pc.binary_slice(values, 0, 1), b"\1"))
                if values is not batch.column(column) and len(guids):
                    for guid in pc.unique(pc.binary_slice(guids, 1, wire.GUID_BYTES)).to_pylist():
                        at = pc.index(pc.equal(pc.binary_slice(values, 1, wire.GUID_BYTES), guid), True).as_py()
                        number = self._source.number_of_guid(str(uuid.UUID(bytes=guid)))
                        self._note(topic, batch, column, np.array([at]), np.array([number]))

    def register(self) -> None:
        """Registers the schemas of all batches that were checked."""
        subjects = {name: versions for name, versions in self._source.subjects().items() if not context_of(name)}
        for schema_id in sorted(self._wanted - self._ids.keys()):
            schema = self._source.schema(schema_id)
            places = [(name, version) for name, versions in subjects.items() for version in versions]
            having = [place for place in places if subjects[place[0]][place[1]] == schema_id] or [  # or by a GUID
                place for place in places if self._source.schema(subjects[place[0]][place[1]], place[0]) == schema
            ]
            ids = {self._registered(name, subjects[name], version) for name, version in having}
            if len(ids) != 1:
                raise self._target.error(
                    f"The schema {schema_id} of {self._source.address} gets no single id",
                    found=f"the ids {sorted(ids)}" if ids else "no subject there that has it: was it deleted?",
                )
            self._ids[schema_id] = ids.pop()

    def translated(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The batch with the ids of `target`."""
        for column in self._columns:
            batch = _with(batch, column, self._rewritten(batch.column(column)))
            headers = _id_headers(batch, column)
            if headers.null_count < len(headers):
                batch = _with(batch, "headers", self._with_headers(batch.column("headers"), f"__{column}_schema_id"))
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

    def _registered(self, subject: str, versions: dict[int, int], last: int) -> int:
        """The id there of a version of a subject, which is registered behind the versions before it."""
        for version in sorted(version for version in versions if version <= last):
            schema = self._source.schema(versions[version], subject)
            schema_id = self._target.register(subject, self._referring(schema))
        return schema_id

    def _referring(self, schema: Schema) -> Schema:
        """The schema, with its references to the versions there."""
        references = []
        for reference in schema.references:
            versions = self._source.subjects().get(reference.subject, {})
            if reference.version not in versions:
                raise RegistryError(
                    f"No version {reference.version} of {reference.subject}, which a schema refers to",
                    path=self._source.address,
                )
            schema_id = self._registered(reference.subject, versions, reference.version)
            there = self._target.subjects()[reference.subject]
            version = max(version for version, number in there.items() if number == schema_id)
            references.append(Reference(reference.name, reference.subject, version))
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
        made = pa.Array.from_buffers(values.type, len(values), buffers)
        return made if not values.null_count else pc.if_else(values.is_valid(), made, pa.scalar(None, values.type))

    def _with_headers(self, headers: pa.ListArray, name: str) -> pa.ListArray:
        entries = headers.flatten()
        values, keys = entries.field("value"), entries.field("key")
        is_id = pc.equal(keys, pa.scalar(name, keys.type))
        ids = self._rewritten(values.filter(is_id))
        made = pa.StructArray.from_arrays(
            [keys, pc.replace_with_mask(values, is_id, ids)], fields=list(headers.type.value_type)
        )
        offsets = np.zeros(len(headers) + 1, np.int32)
        np.cumsum(pc.list_value_length(headers).fill_null(0).to_numpy(), out=offsets[1:])
        mask = headers.is_null() if headers.null_count else None
        return pa.ListArray.from_arrays(pa.array(offsets), made, type=headers.type, mask=mask)


def _id_headers(batch: pa.RecordBatch, column: str) -> pa.BinaryArray:
    """The id of a schema in a header of each record: null where there is none; the last header of a name counts."""
    headers = batch.column("headers")
    made = pa.nulls(len(batch), pa.binary())
    if not len(entries := headers.flatten()):
        return made
    keys = entries.field("key")
    places = np.flatnonzero(pc.equal(keys, pa.scalar(f"__{column}_schema_id", keys.type)).to_numpy(False))
    rows = np.repeat(np.arange(len(batch)), pc.list_value_length(headers).fill_null(0))[places]
    rows, last = np.unique(rows[::-1], return_index=True)
    is_there = np.zeros(len(batch), bool)
    is_there[rows] = True
    ids = entries.field("value").take(pa.array(places[::-1][last])).cast(pa.binary())
    return pc.replace_with_mask(made, pa.array(is_there), ids)


def _frames(values: pa.BinaryArray) -> tuple[np.ndarray, np.ndarray]:
    """(rows, the ids in their frames) of the values that begin with a byte 0 and have five bytes or more."""
    offsets = offsets_of(values)
    rows = np.flatnonzero((np.diff(offsets) >= wire.HEADER_BYTES) & values.is_valid().to_numpy(False))
    if rows.size:
        data = np.frombuffer(values.buffers()[2], np.uint8)
        rows = rows[data[offsets[rows]] == 0]
    return rows, wire.schema_ids(values.take(pa.array(rows)))


def _with(batch: pa.RecordBatch, column: str, values: pa.Array) -> pa.RecordBatch:
    return batch.set_column(batch.schema.get_field_index(column), batch.schema.field(column), values)
