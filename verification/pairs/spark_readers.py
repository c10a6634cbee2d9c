"""Spark's side of a history: a batch, the latest view, a stream that goes on from an old checkpoint, and a sink."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from verification.pairs.model import Place, Record
from verification.pairs.world import World, check_equal

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COLUMNS = ["partition", "offset", "key", "value", "unix_millis(timestamp) AS timestamp_ms"]

COLUMNS_TO_WRITE = "key BINARY, value BINARY, timestamp TIMESTAMP, partition INT"


@dataclass
class SparkSide:
    """A session, and the stream of a history. `ends`: where its checkpoint is, by partition."""

    session: SparkSession
    topic_id: str = ""
    uri: str = ""
    ends: dict[int, int] = field(default_factory=dict)

    def begin(self, world: World) -> None:
        """The stream reads all that is there, and ends."""
        self.topic_id, self.uri = world.log.topic(world.topic).snapshot.topic_id, world.log.uri
        check_equal(self._news(world), world.model.records())
        self.ends = {number: partition.end for number, partition in world.model.partitions.items()}

    def write(self, world: World, table: pa.Table) -> None:
        """Appends a table by the next micro-batch of a query. A topic that was made again gets a query of its own."""
        topic_id = world.log.topic(world.topic).snapshot.topic_id
        files = world.directory / f"to-write-{topic_id}"
        files.mkdir(exist_ok=True)
        pq.write_table(table.cast(_for_spark(table.schema)), files / f"{world.made:06}.parquet")
        query = (
            self.session.readStream.schema(COLUMNS_TO_WRITE)
            .parquet(str(files))
            .writeStream.format("segments")
            .options(topic=world.topic, checkpointLocation=str(world.directory / f"of-sink-{topic_id}"))
            .trigger(availableNow=True)
            .start(world.log.uri)
        )
        query.awaitTermination()

    def compare(self, world: World) -> None:
        records = world.model.records()
        check_equal(self._batch(world), records)
        check_equal(self._batch(world, view="latest"), world.model.latest(tombstones=True))
        if (world.log.topic(world.topic).snapshot.topic_id, world.log.uri) == (self.topic_id, self.uri):
            new = {place: record for place, record in records.items() if place[1] >= self.ends.get(place[0], 0)}
            check_equal(self._news(world), new)

    def _batch(self, world: World, **options: str) -> dict[Place, Record]:
        frame = self.session.read.format("segments").options(subscribe=world.topic, **options).load(world.log.uri)
        return _rows(frame.selectExpr(*COLUMNS).toArrow())

    def _news(self, world: World) -> dict[Place, Record]:
        """What the stream reads when it goes on from its checkpoint."""
        sink = Path(world.directory, "stream")
        before = {*sink.glob("*.parquet")}
        source = self.session.readStream.format("segments").options(
            subscribe=world.topic, startingOffsets="earliest", failOnDataLoss="false"
        )
        query = (
            source.load(world.log.uri)
            .selectExpr(*COLUMNS)
            .writeStream.format("parquet")
            .options(path=str(sink), checkpointLocation=str(world.directory / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        found: dict[Place, Record] = {}
        for path in sorted({*sink.glob("*.parquet")} - before):
            found |= _rows(pq.read_table(path))
        return found


def _for_spark(schema: pa.Schema) -> pa.Schema:
    """Spark reads times of microseconds alone."""
    return schema.set(schema.get_field_index("timestamp"), pa.field("timestamp", pa.timestamp("us", "UTC")))


def _rows(table: pa.Table) -> dict[Place, Record]:
    return {
        (row["partition"], row["offset"]): Record(row["key"], row["value"], row["timestamp_ms"])
        for row in table.to_pylist()
    }
