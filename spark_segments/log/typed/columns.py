"""The columns of a read, some of which are decoded."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from spark_segments.format.layout import RECORD_SCHEMA
from spark_segments.values.batches import Decoder, decode_batch, decoded_schema
from spark_segments.values.column_types import recast

_CONTEXT = ("topic", "partition", "offset")


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of a read; some of them are typed."""

    names: Sequence[str]
    readers: Sequence[Decoder]

    def types(self, column: str) -> bool:
        """Whether a reader decodes this column."""
        return any(one.chosen.column == column for one in self.readers) and column in self.names

    @property
    def schema(self) -> pa.Schema:
        """The schema of the batches that `conformed` gives."""
        used = [one for one in self.readers if one.chosen.column in self.names]
        whole = decoded_schema(RECORD_SCHEMA, used)
        raw = [one.chosen.raw_column for one in used if one.chosen.raw_column]
        return pa.schema([whole.field(name) for name in [*self.names, *raw]])

    def conformed(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Batches that `decoded` gave, each in exactly the schema."""
        schema = self.schema
        for batch in batches:
            arrays = [recast(batch.column(field.name), field.type) for field in schema]
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)

    @property
    def wanted(self) -> list[str]:
        """The columns of records to read, with the columns of a record's place, which an error names."""
        if not any(one.chosen.column in self.names for one in self.readers):
            return list(self.names)
        return [*self.names, *(name for name in _CONTEXT if name not in self.names)]

    def decoded(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Batches of the `wanted` columns as the columns `names`, followed by columns of undecodable bytes."""
        used = [one.chosen for one in self.readers if one.chosen.column in self.names]
        raw = [one.raw_column for one in used if one.raw_column]
        for batch in batches:
            yield decode_batch(batch, self.readers).select([*self.names, *raw])
