"""The topics of a stream as they are now: their snapshots, and the state of each partition."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

from spark_segments.errors import UnknownTopicError
from spark_segments.log.directory import LogDirectory
from spark_segments.log.manifest.delta.delta_log import MANIFEST_DIRECTORY
from spark_segments.log.manifest.snapshot import Snapshot
from spark_segments.log.manifest.states import holes_of
from spark_segments.log.partitions import offset_bounds
from spark_segments.log.positions import PartitionState
from spark_segments.log.reading.plan import readable_bounds
from spark_segments.log.segment.leader_epochs import LeaderEpochs
from spark_segments.spark.offsets import subscribed_partitions
from spark_segments.spark.option_values import TopicPartition
from spark_segments.spark.options import ReadOptions

_THREADS = 8


class StreamTopics:
    """Looks at the topics that a stream subscribes to. Nothing is kept from one look to the next."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._log: LogDirectory | None = None

    def log(self) -> LogDirectory:
        """The log directory."""
        if self._log is None or self._log.is_kafka:  # a directory of Kafka's is scanned when it is opened
            location = self._options.location
            self._log = LogDirectory.open(location.uri, location.storage_options)
        return self._log

    def snapshots(self) -> dict[str, Snapshot]:
        """{topic: its latest snapshot}, of the topics that are there."""
        log = self.log()

        def listed() -> list[str]:
            return log.topics() if log.is_kafka else list(log.storage.directories(MANIFEST_DIRECTORY))

        def look(name: str) -> Snapshot | None:
            try:
                return log.snapshot(name) if log.is_kafka else log.manifest(name).snapshot()
            except UnknownTopicError:
                return None

        names = self._options.topics.chosen(listed)
        if len(names) < 2:
            found = [look(name) for name in names]
        else:
            with ThreadPoolExecutor(min(_THREADS, len(names))) as pool:
                found = list(pool.map(look, names))
        return {name: one for name, one in zip(names, found, strict=True) if one is not None}

    def states(self, snapshots: Mapping[str, Snapshot]) -> dict[TopicPartition, PartitionState]:
        """The state of every subscribed partition that is there."""
        states = {}
        for topic, numbers in subscribed_partitions(self._options.topics, snapshots, skip_missing=True).items():
            snapshot = snapshots[topic]
            bounds, readable = offset_bounds(snapshot), readable_bounds(snapshot, self._options.isolation_level)
            holes = holes_of(snapshot.states)
            entries = snapshot.partitions.column("leader_epochs").to_pylist()
            epochs = dict(zip(snapshot.partitions.column("partition").to_pylist(), entries, strict=True))
            for number in numbers:
                states[topic, number] = PartitionState(
                    snapshot.topic_id,
                    *bounds[number],
                    readable[number][1],
                    LeaderEpochs(tuple((entry["epoch"], entry["start_offset"]) for entry in epochs[number] or ())),
                    tuple(hole for hole in holes if hole.partition == number),
                )
        return states
