"""A streaming query as Spark's MicroBatchExecution runs it, without a JVM: checkpoint, triggers, kills, restarts."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Mapping
from typing import Any

from pyspark.sql.streaming.datasource import ReadAllAvailable

from spark_segments.spark.options import stream_options
from spark_segments.spark.source import Source
from spark_segments.spark.streams.limited_stream_reader import LimitedStreamReader
from spark_segments.spark.streams.stream_reader import StreamReader

Row = dict[str, Any]


class Killed(Exception):
    """The driver died."""


class Query:
    """A query and its checkpoint, which outlives `stop` and kills. The sink keeps the rows of each batch.

    A batch that is run again replaces its rows, as a sink does that writes each batch once. `meanwhile` is called
    between the look-up of a first batch's start and that of its end.
    """

    def __init__(self, uri: str, options: Mapping[str, Any], clock_ms: Any = None) -> None:
        self.given = {"path": uri} | {name: str(value) for name, value in options.items()}
        self._clock_ms = clock_ms
        self.offsets: list[str] = []
        self.committed = 0
        self.batches: list[list[Row]] = []
        self.tasks: list[int] = []
        self.latest: dict[str, Any] | None = None
        self.reader: LimitedStreamReader | None = None
        self.meanwhile: Callable[[], None] = lambda: None
        self._once = False

    def start(self, *, available_now: bool = False, once: bool = False) -> Query:
        """A new process: whatever the reader kept is lost."""
        source = Source(self.given)
        schema = source.schema()
        self.reader = source.stream_reader(schema)  # type: ignore[assignment]
        if self._clock_ms is not None:
            delay = self.reader._delay  # type: ignore[union-attr]
            assert delay is not None
            delay._clock_ms = self._clock_ms
        if available_now:
            self.reader.prepareForTriggerAvailableNow()
        self._once = once
        return self

    def trigger(self, kill: str | None = None) -> list[Row] | None:
        """Runs a batch and gives its rows; None where there is nothing new.

        `kill`: "planned" dies once the end is in the checkpoint, "written" once the sink has the rows.
        """
        assert self.reader is not None
        if len(self.offsets) == self.committed:
            end = self._end()
            if self.offsets and end == self.offsets[-1]:
                return None
            self.offsets.append(end)
            if kill == "planned":
                raise Killed
        number = self.committed
        start = self.offsets[number - 1] if number else _text(self.reader.initialOffset())
        rows = self._run(json.loads(start), json.loads(self.offsets[number]))
        self.batches[number:] = [rows]
        if kill == "written":
            raise Killed
        self.committed += 1
        self.reader.commit(json.loads(self.offsets[number]))
        return rows

    def _end(self) -> str:
        """The end of the next batch, asked for as PySpark 4.2 does."""
        assert self.reader is not None
        limit = ReadAllAvailable() if self._once else self.reader.getDefaultReadLimit()
        start = self.offsets[-1] if self.offsets else _text(self.reader.initialOffset())
        if not self.offsets:
            self.meanwhile()
        end = _text(self.reader.latestOffset(json.loads(start), limit))
        self.latest = self.reader.reportLatestOffset()
        return end

    def run(self) -> list[Row]:
        """Triggers until there is nothing new. The rows of these batches."""
        found: list[Row] = []
        while (rows := self.trigger()) is not None:
            found += rows
        return found

    @property
    def rows(self) -> list[Row]:
        """What the sink has."""
        return [row for batch in self.batches for row in batch]

    def _run(self, start: dict[str, Any], end: dict[str, Any]) -> list[Row]:
        assert self.reader is not None
        tasks = self.reader.partitions(start, end)
        self.tasks.append(len(tasks))
        reader = pickle.loads(pickle.dumps(self.reader))
        return [
            row
            for task in pickle.loads(pickle.dumps(tasks))
            for batch in reader.read(task)
            for row in batch.to_pylist()
        ]


class PlainQuery(Query):
    """The same as PySpark 4.0 and 4.1 run it. They look for the end first, and say where a restarted stream is; with
    Trigger.AvailableNow they say that only after the look.
    """

    def start(self, *, available_now: bool = False, once: bool = False) -> Query:
        schema = Source(self.given).schema()
        self._reader = self.reader = StreamReader(stream_options(self.given), schema)  # type: ignore[assignment]
        self._fetched = _text(self._reader.latestOffset()) if available_now else None
        if self.offsets:
            last = json.loads(self.offsets[-1])
            assert self._reader.partitions(last, last) == []
        return self

    def _end(self) -> str:
        end = self._fetched or _text(self._reader.latestOffset())
        if not self.offsets:
            self.meanwhile()
            if self._fetched:
                self._reader.initialOffset()
        return end


def _text(offset: dict[str, Any]) -> str:
    text = json.dumps(offset)
    assert text == json.dumps(offset, sort_keys=True), "Spark compares text"
    return text
