"""What a statement gives: rows that are read in any form, and print themselves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from spark_segments.log.cells import cell_of, rows_of
from spark_segments.log.printing import MOST_ROWS, Printed, Prints

if TYPE_CHECKING:
    import pandas as pd

_MOST_LETTERS = 60


@dataclass(frozen=True, slots=True, repr=False)
class Result(Prints):
    """The rows of a statement. Each of these methods runs the query, and sees the topics as they are then.

    It prints its first rows. Whatever takes an Arrow stream takes it: `polars.DataFrame(result)`.
    """

    schema: pa.Schema
    batches: Callable[[], Iterator[pa.RecordBatch]]
    """The rows as they are made. They end where the database is asked for others: `to_table()` keeps them."""

    def to_table(self) -> pa.Table:
        """All rows in memory, as an Arrow table."""
        return pa.Table.from_batches(self.batches(), self.schema)

    def to_pandas(self) -> pd.DataFrame:
        """All rows in memory, as a data frame of pandas."""
        return self.to_table().to_pandas()

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        reader = pa.RecordBatchReader.from_batches(self.schema, self.batches())
        return reader.__arrow_c_stream__(requested_schema)

    def _printed(self) -> Printed:
        rows = [[_cut(cell_of(value)) for value in row] for row in islice(rows_of(self.batches()), MOST_ROWS + 1)]
        facts = {"rows": len(rows) if len(rows) <= MOST_ROWS else f"more than {MOST_ROWS}"}
        return Printed("Result", facts, self.schema.names, rows[:MOST_ROWS])


def _cut(cell: Any) -> Any:
    return f"{cell[:_MOST_LETTERS]}…" if isinstance(cell, str) and len(cell) > _MOST_LETTERS else cell
