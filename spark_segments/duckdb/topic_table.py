"""A topic as DuckDB scans it: a dataset whose scans read the log."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset

from spark_segments.errors import SegmentsError
from spark_segments.log import Scan

Narrowed = Callable[[Scan, pc.Expression], Scan]
"""Leaves out of a scan what a condition says that the query does not need."""

_CHEAP = ("partition", "offset")
_JSON = {"ARROW:extension:name": "arrow.json", "ARROW:extension:metadata": ""}


class TopicTable(pa.dataset.Dataset):  # type: ignore[misc]
    """A topic, or its latest view, as DuckDB scans it: again and again, each time with the columns and the condition of
    that scan.

    All scans of a statement are of one snapshot, of the moment when the first was made. Each is read as far as the
    query goes.
    """

    def __init__(
        self, scan: Callable[[], Scan], narrowed: Narrowed, threads: int | None, json: Collection[str] = ()
    ) -> None:
        """`scan`: of all columns, as the topic is when it is asked. `json`: the columns whose format is JSON."""
        self._ask = scan
        self.scan_of = narrowed
        self.threads = threads
        self._json = json
        self.begin()

    def begin(self) -> None:
        """Forgets the scan and the error of the last statement."""
        self.error: SegmentsError | OSError | None = None
        self._scan: Scan | None = None

    @property
    def scan(self) -> Scan:
        """All columns of the topic, as it was when the statement first asked. An error is kept, as in `_batches`."""
        if self._scan is None:
            try:
                self._scan = self._ask()
            except (SegmentsError, OSError) as error:
                self.error = error
                raise
        return self._scan

    @property
    def schema(self) -> pa.Schema:
        """The columns, those first that cost least: of a row without columns, such as for count(*), DuckDB asks for the
        first. Text that is JSON is DuckDB's type of it.
        """
        schema = self.scan.schema
        fields = sorted(schema, key=lambda field: field.name not in _CHEAP)
        return pa.schema(
            [
                field.with_metadata(_JSON) if field.name in self._json and pa.types.is_string(field.type) else field
                for field in fields
            ]
        )

    def scanner(self, columns: list[str] | None = None, filter: pc.Expression | None = None) -> _TableScan:
        """What DuckDB asks of a dataset: these columns of the rows for which the condition holds."""
        return _TableScan(self, self.schema.names if columns is None else columns, filter)


class _TableScan:
    """A scan of a table. DuckDB leaves out no row for which the condition does not hold: the scan does."""

    def __init__(self, table: TopicTable, columns: list[str], condition: pc.Expression | None) -> None:
        self._table = table
        self._condition = condition
        self.projected_schema = pa.schema([table.schema.field(name) for name in columns])

    def to_reader(self) -> pa.RecordBatchReader:
        return pa.RecordBatchReader.from_batches(self.projected_schema, self._batches())

    def _batches(self) -> Iterator[pa.RecordBatch]:
        """The batches. An error of them is kept, because DuckDB passes on its text alone."""
        table = self._table
        condition = self._condition
        columns = self.projected_schema.names
        try:
            scan = table.scan
            names = set(columns)
            if condition is not None:
                names |= scan.columns_of(condition)
                scan = table.scan_of(scan, condition)
            for batch in scan.select(name for name in table.schema.names if name in names).to_reader(table.threads):
                # Of a batch in which no row is left, pyarrow before 21 makes an IndexError; of a table, an empty one.
                parts = [batch] if condition is None else pa.Table.from_batches([batch]).filter(condition).to_batches()
                yield from (part.select(columns) for part in parts)
        except (SegmentsError, OSError) as error:
            table.error = error
            raise
