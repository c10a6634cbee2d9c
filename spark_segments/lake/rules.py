"""Rules that keep rows of a table. A row of a file leaves the table where none of the file's rules keeps it."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_segments.errors import LogDirError
from spark_segments.execution import check_wanted
from spark_segments.lake.table_format import KEY_BYTES
from spark_segments.log import Scan, ScanPart
from spark_segments.storage import Storage
from spark_segments.values.column_types import recast

PLACE = ("partition", "offset")


@dataclass(frozen=True, slots=True)
class FromOffsets:
    """Keeps the rows from these offsets on, by partition, and all rows of other partitions: they were added later."""

    offsets: Mapping[int, int]

    def keeps(self, storage: Storage, rows: pa.Table) -> np.ndarray:
        partitions, offsets = places_of(rows)
        # 0, so that rows of partitions that were added later stay.
        starts = np.zeros(int(partitions.max(initial=-1)) + 1, np.int64)
        for number, start in self.offsets.items():
            starts[number : number + 1] = start
        return np.asarray(offsets >= starts[partitions])


@dataclass(frozen=True, slots=True)
class StillThere:
    """Keeps the rows whose records the log has. `parts`: at least of all offsets of the rows."""

    parts: Sequence[ScanPart]

    def keeps(self, storage: Storage, rows: pa.Table) -> np.ndarray:
        partitions, offsets = places_of(rows)
        kept = np.zeros(len(offsets), np.bool_)
        for partition, parts in itertools.groupby(self.parts, lambda part: part.partition):
            log_offsets = [np.empty(0, np.int64)]
            for batch in Scan.read(storage, parts):
                check_wanted()
                log_offsets.append(batch.column("offset").to_numpy())
            mine = partitions == partition
            kept[mine] = np.isin(offsets[mine], np.concatenate(log_offsets))
        return kept


@dataclass(frozen=True, slots=True)
class TypedKeys:
    """What keys decode to, for rows of typed keys from before the table had the column KEY_BYTES.

    Several keys may decode to one value, so that such a row only may have the key. `values`: what the keys decode to;
    None: nobody knows, and each such row may have one of them. `are_exact`: each value is of one key alone. `has_null`:
    a key decodes to null, so that a row without a typed key may have it. `taken`: rows that may have a key count as
    rows that have it.
    """

    values: pa.Array | None
    are_exact: bool = False
    has_null: bool = False
    taken: bool = False

    def alike(self, column: pa.Array) -> tuple[np.ndarray, np.ndarray]:
        """(rows of the typed `column` that have one of the keys, rows that may have one)"""
        values = self.values
        rows = len(column)
        nulls = np.asarray(column.is_null())
        if values is None:
            equal = np.ones(rows, np.bool_)
        elif not len(values):
            equal = np.zeros(rows, np.bool_)
        else:
            column = recast(column, values.type)
            if pa.types.is_nested(values.type):  # of which Arrow compares no values
                column = _texts(column)
                values = _texts(values)
            equal = np.asarray(pc.is_in(column, values)) & ~nulls
        undecoded = nulls & self.has_null
        if self.taken:
            return equal | undecoded, np.zeros(rows, np.bool_)
        return (equal, undecoded) if self.are_exact else (np.zeros(rows, np.bool_), equal | undecoded)


@dataclass(frozen=True, slots=True)
class OtherKeys:
    """Keeps the rows with other keys than `keys` binary[n]. A key is its bytes. `partitions`: of each key the only
    partition where it is looked for. `is_typed`: the column KEY_BYTES has the bytes, and `typed` is for rows in which
    it is null; None: those have no key.
    """

    keys: pa.Array
    partitions: pa.Array | None = None
    is_typed: bool = False
    typed: TypedKeys | None = None

    def keeps(self, storage: Storage, rows: pa.Table) -> np.ndarray:
        has, may_have = self._matches(rows)
        return np.asarray(~(has | may_have))

    def undecided(self, rows: pa.Table) -> np.ndarray:
        """The rows that may have one of the keys, though nobody knows."""
        return self._matches(rows)[1]

    def _matches(self, rows: pa.Table) -> tuple[np.ndarray, np.ndarray]:
        """(rows that have one of the keys, rows that may have one)"""
        column = _column(rows, KEY_BYTES if self.is_typed else "key", pa.binary())
        has = self._named(places_of(rows)[0], column)
        if self.typed is None:
            return has, np.zeros(rows.num_rows, np.bool_)
        # A row from before the table had the bytes of its keys: only its typed key can tell.
        unknown = np.asarray(column.is_null())
        alike, may_be_alike = self.typed.alike(_column(rows, "key", pa.null()))
        return has | (unknown & alike), unknown & may_be_alike

    def _named(self, partitions: np.ndarray, column: pa.Array) -> np.ndarray:
        """The rows whose bytes are those of a key."""
        if self.partitions is None:
            return np.asarray(pc.is_in(column, self.keys))
        named = np.zeros(len(partitions), np.bool_)
        for partition in self.partitions.unique():
            mine = np.flatnonzero(partitions == partition.as_py())
            keys = self.keys.filter(pc.equal(self.partitions, partition))
            named[mine] = np.asarray(pc.is_in(column.take(pa.array(mine)), keys))
        return named


Rule = FromOffsets | StillThere | OtherKeys


def _column(rows: pa.Table, name: str, kind: pa.DataType) -> pa.Array:
    """A column of the rows; nulls, where their file is from before the table had it."""
    if name not in rows.column_names:
        return pa.nulls(rows.num_rows, kind)
    column = rows.column(name).combine_chunks()
    return column if pa.types.is_null(kind) else recast(column, kind)


def _texts(values: pa.Array) -> pa.Array:
    return pa.array(map(repr, values.to_pylist()), pa.string())


def places_of(rows: pa.Table) -> tuple[np.ndarray, np.ndarray]:
    """(partitions, offsets) of rows"""
    partitions, offsets = (rows.column(name).combine_chunks() for name in PLACE)
    if partitions.null_count or offsets.null_count:
        raise LogDirError("A row of the table has no partition or no offset", hint="Make another table")
    return partitions.to_numpy(), offsets.to_numpy()
