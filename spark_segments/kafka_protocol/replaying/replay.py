"""Replay: the records of topics given to a cluster, in the same partitions, with keys, values, headers and times.

Records go in transactions. Each commits the place in the log behind its records, too, as an offset of the replay's
group in that cluster: so a replay that was killed goes on where its last transaction ended, and sends no record twice.

Without transactions the position carries the log end there, too. Whatever the topic has above it this replay has sent:
nothing else writes it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import KafkaError, Message

from spark_segments.errors import InvalidRecordError
from spark_segments.extensions import observed_job
from spark_segments.format.encoding.partitioner import murmur2_partitions
from spark_segments.kafka_protocol.rate import RateLimit
from spark_segments.kafka_protocol.replaying.rehashing import Partitions, rehashed_positions
from spark_segments.kafka_protocol.replaying.replay_options import ReplayOptions, check_options
from spark_segments.kafka_protocol.replaying.replay_plan import ReplayPlan, kept_config
from spark_segments.kafka_protocol.replaying.replayed_groups import move_groups
from spark_segments.kafka_protocol.replaying.replayed_topic import ReplayedTopic, ReplayTransaction
from spark_segments.kafka_protocol.replaying.schema_ids import SchemaIds
from spark_segments.kafka_protocol.replaying.target import TargetCluster, TargetError, delivery_problem
from spark_segments.log import Group, LogDirectory, PartitionState, Report
from spark_segments.progress import Progress
from spark_segments.values.format_options import REGISTRY
from spark_segments.values.typed import TypedColumns

_ANSWER_SECONDS = 30.0
_PAUSE_SECONDS = 0.5
_PIECE_RECORDS = 1000
_COLUMNS = ("offset", "timestamp", "key", "value", "headers", "partition")


@observed_job("replay")
def replay(
    log: LogDirectory,
    servers: str,
    topics: Sequence[str] = ("*",),
    options: ReplayOptions | None = None,
    *,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> Report:
    """Sends the committed records of topics to a running cluster, exactly once.

    `servers`: `host:port`, several with commas. `topics`: names or patterns; internal ones are left out.
    `progress(done, total)`: offsets of the topic under way.

    A topic that the cluster lacks is made, with the partitions of the one here, and settings that say how long records
    live. `dry_run`: nothing is sent or made. The report has a line a topic, with the records that were sent and the
    bytes of their keys and values, and "target" (its name there), "partitions", "created" (whether it was, or would be,
    made), "to_send" (offsets that were to be sent), "groups" that were given positions in it.

    Call it again to go on. The offset map has each record's offset in the cluster, unless the log is Kafka's directory.

    Raises InvalidOptionError, before anything is sent, where the cluster would change or lose records: it replaces,
    refuses or removes their times, has too few partitions, or has records that no replay of this name has sent.
    OffsetOutOfRangeError where the log is not the one that was replayed. InvalidRecordError for a record that cannot be
    sent unchanged, or whose schema `source_registry` lacks. RegistryError where a schema cannot be registered.
    TargetError where the cluster refuses a record, or there was no progress for `patience_seconds`.
    """
    with Replay(log, servers, topics, options or ReplayOptions(), progress) as work:
        return work.plan() if dry_run else work.send()


class Replay:
    """A replay that sends new records with each call of `send`. Arguments as for `replay`. A context manager."""

    def __init__(
        self,
        log: LogDirectory,
        servers: str,
        topics: Sequence[str],
        options: ReplayOptions,
        progress: Progress | None = None,
    ) -> None:
        check_options(options)
        self._log = log
        self._options = options
        self._rehashes = options.partitions is Partitions.REHASH
        self._progress = progress
        self._schema_ids: SchemaIds | None = None
        if options.source_registry and options.target_registry:
            typed_columns = TypedColumns(log)
            self._schema_ids = SchemaIds(
                typed_columns.registry({REGISTRY: options.source_registry}),
                typed_columns.registry({REGISTRY: options.target_registry}),
                options.framed,
            )
        name = Group(log, options.name).id  # a group there, too: what can be no group's id is refused
        timeout_seconds = min(options.patience_seconds, _ANSWER_SECONDS)
        self._cluster = TargetCluster(
            servers, options.client_config, name, timeout_seconds, idempotent=options.idempotent
        )
        self._plan = ReplayPlan(log, self._cluster, topics, options)
        self._is_begun = False
        self._taken_seconds = 0.0  # when the cluster took records last: patience counts from then
        self._rate = RateLimit(options.max_bytes_per_second)

    def __enter__(self) -> Replay:
        return self

    def __exit__(self, *_: object) -> None:
        self._cluster.close()

    def plan(self) -> Report:
        """What `send` would send. Raises what it would refuse."""
        report = Report("replay", dry_run=True)
        planned = self._plan.topics()
        self._check_schemas(planned)
        for topic in planned:
            topic.tell(report)
        return report.finish()

    def send(self) -> Report:
        """Sends the committed records that were not sent before."""
        report = Report("replay", dry_run=False)
        done: dict[str, ReplayedTopic] = {}
        self._taken_seconds = time.monotonic()
        while True:
            try:
                self._send_all(done)
                moved_groups = move_groups(self._log, self._cluster, self._options, self._plan.targets())
                break
            except TargetError as error:
                # Without transactions nothing takes back what is on its way.
                is_late = time.monotonic() - self._taken_seconds > self._options.patience_seconds
                if not error.is_passing or is_late or self._options.idempotent:
                    raise
            self._is_begun = False  # a new producer takes back what the old one left open
            time.sleep(_PAUSE_SECONDS)
        for name, topic in done.items():
            topic.tell(report, groups=moved_groups[name])
        return report.finish()

    def _send_all(self, done: dict[str, ReplayedTopic]) -> None:
        """Plans again, from what the cluster has, and sends. `done`: the topics, with what earlier tries did."""
        if not self._is_begun:
            self._cluster.begin(self._largest_record())
            self._is_begun = True
        planned = self._plan.topics()
        self._check_schemas(planned)
        if self._schema_ids is not None:
            self._schema_ids.register()
        for topic in planned:
            done[topic.name] = topic.after(done.get(topic.name))
            before = topic.records
            try:
                self._send(topic)
            finally:
                if topic.records > before:
                    self._taken_seconds = time.monotonic()

    def _check_schemas(self, topics: Sequence[ReplayedTopic]) -> None:
        """Raises InvalidRecordError for a record to be sent whose schema cannot be translated."""
        if self._schema_ids is None:
            return
        for topic in topics:
            for batch in topic.scan(self._log.storage, topic.unsent, SchemaIds.COLUMNS).batches():
                self._schema_ids.check(topic.name, batch)

    def _largest_record(self) -> int | None:
        topics = self._cluster.topics(list(self._plan.targets().values()))
        limits = [topic.config.get("max.message.bytes") for topic in topics.values()]
        sizes = [int(limit) for limit in limits if limit is not None]
        return max(sizes) if sizes and len(sizes) == len(topics) else None

    # Records

    def _send(self, topic: ReplayedTopic) -> None:
        begun = sum(topic.places.values())
        total = sum(topic.ends.values()) - begun
        self._begin_topic(topic)
        self._pass_arrived(topic)
        for batch in topic.scan(self._log.storage, topic.unsent, _COLUMNS).batches():
            number = batch.column("partition")[0].as_py()
            if self._schema_ids is not None:
                batch = self._schema_ids.translated(batch)
            for start in range(0, batch.num_rows, _PIECE_RECORDS):
                self._send_piece(topic, number, batch.slice(start, _PIECE_RECORDS))
                if self._progress is not None:
                    self._progress(sum(topic.places.values()) - begun, total)
                self._rate.wait()
        behind = {number: end for number, end in topic.ends.items() if end > topic.places[number]}
        if behind or topic.transaction is not None:
            self._under_way(topic).places |= behind  # control records and aborted ones at the end are passed, too
            self._commit(topic)

    def _begin_topic(self, topic: ReplayedTopic) -> None:
        """Makes the topic there, if it lacks, and commits the first places of partitions that are new to the replay:
        from then on a topic with records is known to be this replay's.
        """
        if topic.offset_map is not None:
            topic.offset_map.settle(
                {number: place for number, place in topic.places.items() if number not in topic.new}
            )
        if topic.cluster_topic is None:
            self._cluster.create_topic(topic.target, len(topic.ends), kept_config(topic.snapshot))
        if topic.new:
            self._under_way(topic).places |= {number: topic.places[number] for number in topic.new}
            self._commit(topic)
            topic.new.clear()

    def _send_piece(self, topic: ReplayedTopic, number: int, batch: pa.RecordBatch) -> None:
        transaction = self._under_way(topic)
        self._produce(topic, transaction, number, batch)
        if transaction.is_full:
            self._commit(topic)

    def _pass_arrived(self, topic: ReplayedTopic) -> None:
        """Passes over records that were sent without transactions, and whose position was not committed any more."""
        cluster_ends = topic.cluster_topic.ends if topic.cluster_topic is not None else {}
        arrived = {
            number: cluster_ends[number] - end
            for number, end in topic.new_ends.items()
            if cluster_ends.get(number, end) != end
        }
        if not arrived:
            return
        transaction = self._under_way(topic)
        for number, count in arrived.items():
            arrived_offsets: list[int] = []
            if count > 0:
                offsets = {number: (topic.places[number], topic.ends[number])}
                for batch in topic.scan(self._log.storage, offsets, ("offset",)).batches():
                    arrived_offsets += batch.column("offset").to_pylist()[: count - len(arrived_offsets)]
            if len(arrived_offsets) != count:
                raise _others(topic, number, topic.new_ends[number] + len(arrived_offsets), cluster_ends[number])
            transaction.old[number, number] = arrived_offsets
            transaction.new[number, number] = [*range(topic.new_ends[number], cluster_ends[number])]
            transaction.places[number] = arrived_offsets[-1] + 1
            transaction.records += count
        self._commit(topic)

    # Transactions

    def _under_way(self, topic: ReplayedTopic) -> ReplayTransaction:
        """The transaction under way, begun where none is."""
        if topic.transaction is None:
            self._cluster.begin_transaction()
            topic.transaction = ReplayTransaction()
        return topic.transaction

    def _produce(
        self, topic: ReplayedTopic, transaction: ReplayTransaction, number: int, batch: pa.RecordBatch
    ) -> None:
        """Hands records of a partition to the producer."""
        producer = self._cluster.producer
        offsets = batch.column("offset").to_pylist()
        times = pc.divide(batch.column("timestamp").cast(pa.int64()), 1000).to_pylist()
        keys = batch.column("key").to_pylist()
        values = batch.column("value").to_pylist()
        partitions = self._partitions_of(topic, number, batch)
        for partition in {*partitions}:
            transaction.old.setdefault((number, partition), [])
            transaction.new.setdefault((number, partition), [])
        delivered = _delivery(topic, transaction, number)
        rows = zip(offsets, times, keys, values, _headers(batch), partitions, strict=True)
        for offset, time_ms, key, value, headers, partition in rows:
            if not time_ms:
                raise InvalidRecordError(
                    f"The record of {topic.name}-{number} at offset {offset} cannot be sent: its time is 0, which "
                    "librdkafka takes for the time of now",
                    hint="Begin behind it: --from-time",
                )
            while True:
                try:
                    producer.produce(topic.target, value, key, partition, delivered, timestamp=time_ms, headers=headers)
                    break
                except BufferError:  # its queue is full: nothing was taken, so the same record is handed over again
                    producer.poll(0.1)
            transaction.old[number, partition].append(offset)
        sent_bytes = sum(len(data) for data in (*keys, *values) if data is not None)
        transaction.records += len(offsets)
        transaction.sent_bytes += sent_bytes
        self._rate.spend(sent_bytes)
        transaction.places[number] = offsets[-1] + 1
        producer.poll(0)

    def _partitions_of(self, topic: ReplayedTopic, number: int, batch: pa.RecordBatch) -> list[int]:
        """The partition there of each record of a partition here."""
        if not self._rehashes:
            return [number] * batch.num_rows
        count = topic.target_partitions
        by_key = murmur2_partitions(batch.column("key"), count)
        partitions: list[int] = np.where(by_key < 0, number % count, by_key).tolist()
        return partitions

    def _commit(self, topic: ReplayedTopic) -> None:
        """Ends the transaction under way: records, then their map, then the commit."""
        transaction = self._under_way(topic)
        self._cluster.flush()
        if transaction.problem is not None:
            raise transaction.problem
        self._note_new_ends(topic, transaction)
        # The map comes before the commit: what a killed replay has mapped and not committed, the next one settles.
        if topic.offset_map is not None and transaction.records:
            topic.offset_map.add({pair: (old, transaction.new[pair]) for pair, old in transaction.old.items()})
        self._cluster.commit(self._positions(topic, transaction))
        topic.transaction = None
        topic.places |= transaction.places
        topic.records += transaction.records
        topic.sent_bytes += transaction.sent_bytes

    def _note_new_ends(self, topic: ReplayedTopic, transaction: ReplayTransaction) -> None:
        """Moves the log ends there behind what was sent. Raises TargetError where others have written between."""
        for (number, _), offsets in transaction.new.items():
            if not offsets:
                continue
            new_end = topic.new_ends.get(number)
            if self._options.idempotent and new_end is not None and offsets[0] != new_end:
                raise _others(topic, number, new_end, offsets[0])
            topic.new_ends[number] = offsets[-1] + 1

    def _positions(
        self, topic: ReplayedTopic, transaction: ReplayTransaction
    ) -> dict[tuple[str, int], tuple[int, str]]:
        """{(topic, partition) there: (place here, metadata)} to commit with a transaction."""
        if self._rehashes:
            places = topic.places | transaction.places
            states = {number: PartitionState.of(topic.snapshot, number) for number in places}
            here = {number: states[number].position(place) for number, place in places.items()}
            return rehashed_positions(topic.target, topic.target_partitions, here, transaction.places)
        positions = {}
        for number, place in transaction.places.items():
            position = PartitionState.of(topic.snapshot, number).position(place)
            metadata = f"{position.topic_id} {position.leader_epoch}"
            new_end = topic.new_ends.get(number)
            if self._options.idempotent and new_end is not None:
                metadata += f" {new_end}"
            positions[topic.target, number] = (place, metadata)
        return positions


def _delivery(
    topic: ReplayedTopic, transaction: ReplayTransaction, number: int
) -> Callable[[KafkaError | None, Message], None]:
    """What notes the new offsets of a partition's records, and the first problem of one."""

    def delivered(error: KafkaError | None, message: Message) -> None:
        offset = message.offset()
        partition = message.partition()
        assert partition is not None
        new = transaction.new[number, partition]
        if error is None and offset is not None:
            new.append(offset)
        elif error is not None and transaction.problem is None:
            # Records of a partition arrive in their order: as many as have arrived, so far is the one that has not.
            old = transaction.old[number, partition]
            old_offset = old[min(len(new), len(old) - 1)]
            transaction.problem = delivery_problem(error, f"The record of {topic.name}-{number} at offset {old_offset}")

    return delivered


def _headers(batch: pa.RecordBatch) -> list[list[tuple[str, bytes]] | None]:
    """The headers of each record as the producer takes them."""
    return [
        [(header["key"], header["value"]) for header in headers] if headers else None
        for headers in batch.column("headers").to_pylist()
    ]


def _others(topic: ReplayedTopic, number: int, expected: int, found: int) -> TargetError:
    return TargetError(
        f"{topic.target}-{number} has records that this replay has not sent: expected offset {expected}, found {found}",
        hint="Without transactions a replay is the only writer of a topic: replay into another one, by --rename",
    )
