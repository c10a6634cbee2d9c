"""A condition on a field of records: that it has one of some values."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_segments.log.typed import RecordField


@dataclass(frozen=True, slots=True)
class FieldCondition:
    """Records of which the field has any of the values, in its encoding. It can be pickled: tasks compare."""

    field: RecordField
    values: tuple[bytes, ...]

    def mask(self, batch: pa.RecordBatch) -> pa.BooleanArray:
        """Which records of a batch these are. The batch has the field's columns."""
        rows, values, _ = self.field.entries(batch)
        is_among = pc.is_in(values, value_set=pa.array(self.values, pa.binary()))
        mask = np.zeros(batch.num_rows, np.bool_)
        mask[rows[is_among.to_numpy(zero_copy_only=False)]] = True
        return pa.array(mask)
