"""The batch reader on Sail, which pushes the filters of a query to Python sources, and pushes them right.

Spark pushes none by default, refuses a reader that could take them, and returns wrong rows for two filters where it
does push them. So this reader is Sail's alone.
"""

from __future__ import annotations

import datetime as dt
import operator
from collections.abc import Callable, Iterable, Iterator
from functools import reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import datasource

from spark_segments.format.layout import RECORD_SCHEMA
from spark_segments.log.reading.scan import Scan
from spark_segments.spark.offsets import TimeLookup
from spark_segments.spark.reader import Reader
from spark_segments.spark.shown_errors import without_traceback

_NAMES = ("partition", "offset", "timestamp")
_COMPARED: dict[str, Callable[[Any, Any], pc.Expression]] = {
    "EqualTo": operator.eq,
    "GreaterThan": operator.gt,
    "GreaterThanOrEqual": operator.ge,
    "LessThan": operator.lt,
    "LessThanOrEqual": operator.le,
}


class SailReader(Reader):
    """A `Reader` that reads no more than the ranges of offsets for which the pushed filters may hold."""

    _condition: pc.Expression | None = None

    @without_traceback
    def pushFilters(self, filters: list[datasource.Filter]) -> Iterable[datasource.Filter]:
        """Takes what filters say of partition, offset and timestamp. All of them are returned: Sail applies them to the
        rows.
        """
        conditions = [condition for condition in map(condition_of, filters) if condition is not None]
        self._condition = reduce(operator.and_, conditions) if conditions else None
        return iter(filters)

    def scans(self, offsets_for_times: TimeLookup) -> list[Scan]:
        scans = super().scans(offsets_for_times)
        condition = self._condition
        self._condition = None  # the reader goes to the tasks, which need none
        return scans if condition is None else [scan.where(condition) for scan in scans]


def condition_of(pushed: datasource.Filter) -> pc.Expression | None:
    """What a filter says of partition, offset or timestamp, as Arrow says it; None: nothing that is understood."""
    path: tuple[str, ...] = getattr(pushed, "attribute", ())
    name = ".".join(path)
    if name not in _NAMES:
        return None
    if isinstance(pushed, datasource.In):
        values = list(_values(name, pushed.value))
        return pc.field(name).isin(values) if len(values) == len(pushed.value) else None
    compare = _COMPARED.get(type(pushed).__name__)
    if compare is None:
        return None
    value = next(_values(name, [getattr(pushed, "value", None)]), None)
    return None if value is None else compare(pc.field(name), value)


def _values(name: str, values: Iterable[Any]) -> Iterator[pa.Scalar]:
    """The values as the column has them, without those that it cannot have. A time without a zone may be one of any."""
    kind = RECORD_SCHEMA.field(name).type
    for value in values:
        is_moment = isinstance(value, dt.datetime) and value.tzinfo is not None
        if is_moment if name == "timestamp" else type(value) is int:
            try:
                yield pa.scalar(value, kind)
            except (OverflowError, pa.ArrowInvalid):
                continue
