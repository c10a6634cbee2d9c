"""Replay: the records of topics given to a cluster, in the same partitions, with keys, values, headers and times.

Records go in transactions. Each commits the place in the log behind its records, too, as an offset of the replay's
group in that cluster: so a replay that was killed goes on where its last transaction ended, and sends no record twice.

Without transactions the position carries the log end there, too. Whatever the topic has above it this replay has sent:
nothing else writes it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import KafkaError, Message

from spark_segments.config import READ_COMMITTED, selected_topics, validate_topic_name
from spark_segments.config.values import LONG_MAX
from spark_segments.errors import InvalidOptionError, InvalidRecordError, OffsetOutOfRangeError, UnknownTopicError
from spark_segments.extensions import observed_job
from spark_segments.format.encoding.partitioner import murmur2_partitions
from spark_segments.kafka.group_patterns import chosen_groups
from spark_segments.kafka_protocol.rate import RateLimit
from spark_segments.kafka_protocol.replaying.rehashing import (
    REHASHED,
    Partitions,
    largest_metadata,
    other_way,
    rehashed_places,
    rehashed_positions,
)
from spark_segments.kafka_protocol.replaying.renaming import Renaming
from spark_segments.kafka_protocol.replaying.replayed_offsets import ReplayedOffsets
from spark_segments.kafka_protocol.replaying.schema_ids import Framed, SchemaIds
from spark_segments.kafka_protocol.replaying.target import (
    TRANSACTION_RECORDS,
    TargetCluster,
    TargetError,
    TargetTopic,
    delivery_problem,
)
from spark_segments.log import (
    Group,
    Hole,
    LogDirectory,
    PartitionState,
    Position,
    Report,
    Scan,
    Selection,
    Snapshot,
    offsets_for_times,
)
from spark_segments.progress import Progress
from spark_segments.quantities import Time, moment_ms, plural
from spark_segments.values.format_options import REGISTRY
from spark_segments.values.typed import TypedColumns

Offsets = Mapping[int, tuple[int, int]]
"""{partition: (start, end exclusive)}"""

NAME = "segments-replay"
"""The name of a replay that is given none."""

TRANSACTION_BYTES = 32 << 20
TRANSACTION_SECONDS = 1.0
"""A transaction ends when it has so much, or has lasted so long."""

_ANSWER_SECONDS = 30.0
_PAUSE_SECONDS = 0.5
_PIECE_RECORDS = 1000
_KEPT_SETTINGS = (
    "cleanup.policy",
    "compression.type",
    "delete.retention.ms",
    "max.compaction.lag.ms",
    "max.message.bytes",
    "min.compaction.lag.ms",
    "retention.bytes",
    "retention.ms",
)
_COLUMNS = ("offset", "timestamp", "key", "value", "headers", "partition")

Places = dict[int, int]


SENT, TO_SEND = "sent", "to send"
"""The actions of a topic's line in a report."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayOptions:
    """How topics are replayed.

    `name`: the replay's transactional id in the cluster, and the group there that has the replay's positions; one
    process at a time uses it. `client_config`: settings by the names of Kafka's clients. `rename`: {topic: its name
    there}; a name with one `*` is a pattern, and what the `*` stands for takes the place of the `*` in the name there.
    `partitions`: KEEP sends each record to the partition that it has here, REHASH to the one that Kafka's producer
    would choose there by its key, and a record without a key to its partition here modulo their number there.
    `from_time_ms`, `to_time_ms`: the first replay of a partition begins at the first record of that time or later, each
    replay ends before the first record of that time or later. `groups`: names or patterns of groups here. A group of
    such a name that has no positions in the cluster gets the positions here, translated to the new offsets; after a
    REHASH the first record of each partition there that the group has not read.
    `source_registry`, `target_registry`: addresses in the form of the option schema.registry. Schemas are registered in
    the target, and the ids of schemas in the columns `framed` become the target's ids.
    `idempotent`: no transactions, and no gaps in the offsets there. Records are there exactly once only if this replay
    alone writes the topics there, and if a killed replay's requests have arrived before it goes on.
    `max_bytes_per_second`: of keys and values. `patience_seconds`: how long the replay may make no progress.
    """

    name: str = NAME
    client_config: Mapping[str, str] = field(default_factory=dict, repr=False)  # it has secrets
    rename: Mapping[str, str] = field(default_factory=dict)
    partitions: Partitions = Partitions.KEEP
    from_time_ms: Time | None = None
    to_time_ms: Time | None = None
    groups: Sequence[str] = ()
    source_registry: str | None = field(default=None, repr=False)  # both may have secrets
    target_registry: str | None = field(default=None, repr=False)
    framed: Framed = Framed.BOTH
    idempotent: bool = False
    max_bytes_per_second: int | None = None
    patience_seconds: float = 60.0

    def __post_init__(self) -> None:
        for name in ("from_time_ms", "to_time_ms"):  # `2 hours ago` is one time for all topics and rounds
            time = getattr(self, name)
            if time is not None:
                object.__setattr__(self, name, moment_ms(time))


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


@dataclass(slots=True)
class _Transaction:
    """Records under way. `old`, `new`: {(partition, partition there): offsets} here and there; `places` behind them."""

    begun: float = field(default_factory=time.monotonic)
    places: Places = field(default_factory=dict)
    old: dict[tuple[int, int], list[int]] = field(default_factory=dict)
    new: dict[tuple[int, int], list[int]] = field(default_factory=dict)
    records: int = 0
    sent_bytes: int = 0
    problem: TargetError | None = None

    @property
    def is_full(self) -> bool:
        is_large = self.sent_bytes >= TRANSACTION_BYTES or self.records >= TRANSACTION_RECORDS
        return is_large or time.monotonic() - self.begun >= TRANSACTION_SECONDS


@dataclass(frozen=True, slots=True)
class _Start:
    """Where the replay of a partition goes on: at the offset `place` here. `new_end`: the log end there, behind what is
    committed, where it is known. `is_new`: whether nothing of the partition was ever replayed.
    """

    place: int
    new_end: int | None = None
    is_new: bool = False


@dataclass(slots=True)
class _Topic:
    """A topic of a pass. `places`: {partition: next offset to be sent}, `ends`: where the pass ends. `new_ends`: the
    log ends there, behind what is committed, where they are known. `offset_map`: None where the log is Kafka's
    directory. `transaction`: the one under way.
    """

    snapshot: Snapshot
    target: str
    cluster_topic: TargetTopic | None
    places: Places
    ends: Places
    new_ends: Places
    new: set[int]
    created: bool
    to_send: int
    offset_map: ReplayedOffsets | None
    transaction: _Transaction | None = None
    records: int = 0
    sent_bytes: int = 0
    warnings: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.snapshot.topic

    @property
    def unsent(self) -> Offsets:
        """The offsets that the pass is to send."""
        return {number: (self.places[number], end) for number, end in self.ends.items()}

    @property
    def target_partitions(self) -> int:
        """How many partitions the topic there has, or is made with."""
        return len(self.ends) if self.cluster_topic is None else len(self.cluster_topic.ends)

    def after(self, before: _Topic | None) -> _Topic:
        """The topic with what an earlier try did."""
        if before is not None:
            self.records = before.records
            self.sent_bytes = before.sent_bytes
            self.warnings = before.warnings
            self.created = before.created
            self.to_send = before.to_send
        return self


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
        self._log = log
        self._topics = topics
        self._options = options
        self._progress = progress
        self._schema_ids: SchemaIds | None = None
        if options.source_registry or options.target_registry:
            if not (options.source_registry and options.target_registry):
                raise InvalidOptionError(
                    "Ids of schemas are translated from one registry to another",
                    expected="--source-registry and --target-registry",
                    found="one of them",
                )
            addresses = options.source_registry, options.target_registry
            source, target = (TypedColumns(log).registry({REGISTRY: address}) for address in addresses)
            self._schema_ids = SchemaIds(source, target, options.framed)
        self._name = Group(log, options.name).id  # a group there, too: what can be no group's id is refused
        patience = options.patience_seconds
        self._cluster = TargetCluster(
            servers, options.client_config, self._name, min(patience, _ANSWER_SECONDS), idempotent=options.idempotent
        )
        self._checked: set[str] = set()
        self._is_begun = False
        self._rate = RateLimit(options.max_bytes_per_second)
        self._rehashes = options.partitions is Partitions.REHASH
        if self._rehashes and options.idempotent:
            raise InvalidOptionError(
                "Without transactions records keep their partitions",
                expected="--partitions keep, or transactions",
                found="--idempotent --partitions rehash",
            )

    def __enter__(self) -> Replay:
        return self

    def __exit__(self, *_: object) -> None:
        self._cluster.close()

    def plan(self) -> Report:
        """What `send` would send. Raises what it would refuse."""
        report = Report("replay", dry_run=True)
        planned = self._planned()
        self._check_schemas(planned)
        for topic in planned:
            _tell(report, topic)
        return report.finish()

    def send(self) -> Report:
        """Sends the committed records that were not sent before."""
        report, done = Report("replay", dry_run=False), dict[str, _Topic]()
        answered = time.monotonic()
        while True:
            try:
                if not self._is_begun:
                    self._cluster.begin(self._largest_record())
                    self._is_begun = True
                planned = self._planned()
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
                            answered = time.monotonic()
                moved = self._moved_groups()
                break
            except TargetError as error:
                # Without transactions nothing takes back what is on its way.
                is_late = time.monotonic() - answered > self._options.patience_seconds
                if not error.is_passing or is_late or self._options.idempotent:
                    raise
            self._is_begun = False  # a new producer takes back what the old one left open
            time.sleep(_PAUSE_SECONDS)
        for name, topic in done.items():
            _tell(report, topic, groups=moved[name])
        return report.finish()

    # Plans

    def _planned(self) -> list[_Topic]:
        """The topics, as far as they were sent. Raises InvalidOptionError for what the cluster would not keep."""
        targets = self._targets()
        self._chosen_groups()
        cluster_topics = self._cluster.topics(list(targets.values()))
        sent = self._cluster.positions({name: len(topic.ends) for name, topic in cluster_topics.items()})
        planned: list[_Topic] = []
        problems: list[str] = []
        for name, target in targets.items():
            topic = self._topic(self._log.snapshot(name), target, cluster_topics.get(target), sent)
            problems += self._problems(topic)
            planned.append(topic)
        if problems:
            raise InvalidOptionError("The cluster would not have the records as they are", found="; ".join(problems))
        self._checked |= targets.keys()
        return planned

    def _targets(self) -> dict[str, str]:
        """{topic: its name there}."""
        # Those that begin with __ are the cluster's own business.
        here = [topic for topic in self._log.topics() if not topic.startswith("__")]
        names = selected_topics(here, self._topics)
        rename = Renaming(self._options.rename)
        if missing := sorted({*names, *rename.names} - {*here}):
            raise UnknownTopicError(
                f"There is no topic {', '.join(missing)} to replay",
                path=self._log.uri,
                hint="Internal ones are left out",
            )
        if not names:
            raise UnknownTopicError(f"No topic here matches {', '.join(self._topics)}", path=self._log.uri)
        targets = {name: rename.target(name) for name in names}
        rename.check_used()
        for target in targets.values():
            validate_topic_name(target)
        if len(set(targets.values())) < len(targets):
            raise InvalidOptionError("Two topics would have one name there", found=", ".join(sorted(targets.values())))
        return targets

    def _topic(self, snapshot: Snapshot, target: str, existing: TargetTopic | None, sent: Mapping[Any, Any]) -> _Topic:
        bounds = snapshot.offset_bounds(READ_COMMITTED)
        starts = self._starts(snapshot, bounds, target, existing, sent)
        places = {number: start.place for number, start in starts.items()}
        # A pass ends at the last stable offset, or at the first record of the time `to_time_ms` or later:
        #
        #   |start=====sent====|place=====to send=====|end ~~~ open transaction, or too new
        #
        # An end below the place, which another --to-time may give, ends the pass where it begins.
        ends = {number: max(places[number], end) for number, end in self._ends(snapshot, bounds).items()}
        topic = _Topic(
            snapshot,
            target,
            existing,
            places,
            ends,
            new_ends={number: start.new_end for number, start in starts.items() if start.new_end is not None},
            new={number for number, start in starts.items() if start.is_new},
            created=existing is None,
            to_send=sum(ends.values()) - sum(places.values()),
            offset_map=None if self._log.is_kafka else ReplayedOffsets(self._log.storage, self._name, target),
        )
        topic.warnings += self._warnings(topic, bounds)
        return topic

    def _starts(
        self,
        snapshot: Snapshot,
        bounds: Offsets,
        target: str,
        existing: TargetTopic | None,
        sent: Mapping[Any, Any],
    ) -> dict[int, _Start]:
        """{partition: where its replay goes on}. Raises OffsetOutOfRangeError if this is not the log that was sent."""
        new_places = self._new_places(snapshot, bounds)
        if self._rehashes:
            rehashed = {} if existing is None else rehashed_places(target, len(existing.ends), sent)
            for number, (place, metadata) in rehashed.items():
                self._check(snapshot, number, place, metadata)
            replayed = {number: _Start(place) for number, (place, _) in rehashed.items()}
            return {number: replayed.get(number, _Start(place, is_new=True)) for number, place in new_places.items()}
        starts = {}
        for number, place in new_places.items():
            position = sent.get((target, number))
            if position is None:
                starts[number] = _Start(place, new_end=0, is_new=True)  # `_problems` refuses a topic with records
            else:
                starts[number] = self._start_at(snapshot, number, target, position)
        return starts

    def _start_at(self, snapshot: Snapshot, number: int, target: str, position: Any) -> _Start:
        """Where the replay goes on that committed a position. Its metadata: topic id, epoch, and the log end there."""
        metadata = str(position.metadata or "").split(" ")
        if REHASHED in metadata:
            raise other_way(target)
        self._check(snapshot, number, position.offset, metadata)
        return _Start(position.offset, new_end=int(metadata[2]) if len(metadata) == 3 else None)

    def _new_places(self, snapshot: Snapshot, bounds: Offsets) -> Places:
        """{partition: where its first replay begins}: the log start, or the first record of `from_time_ms` or later."""
        if self._options.from_time_ms is None:
            return {number: start for number, (start, _) in bounds.items()}
        firsts = self._offsets_at(snapshot, bounds, self._options.from_time_ms)
        return {number: firsts.get(number, end) for number, (_, end) in bounds.items()}

    def _ends(self, snapshot: Snapshot, bounds: Offsets) -> Places:
        """{partition: where the pass ends}: the last stable offset, or the first record of `to_time_ms` or later."""
        ends = {number: end for number, (_, end) in bounds.items()}
        if self._options.to_time_ms is None:
            return ends
        lasts = self._offsets_at(snapshot, bounds, self._options.to_time_ms)
        return {number: min(end, lasts.get(number, end)) for number, end in ends.items()}

    def _offsets_at(self, snapshot: Snapshot, bounds: Offsets, time_ms: Time) -> Places:
        """{partition: the offset of its first record of a time or later}, of the partitions that have one."""
        places = offsets_for_times(self._log.storage, snapshot, dict.fromkeys(bounds, moment_ms(time_ms)))
        return {number: place[0] for number, place in places.items() if place is not None}

    def _warnings(self, topic: _Topic, bounds: Offsets) -> Iterator[str]:
        """What the topic there will not have, though it is here."""
        name, snapshot = topic.name, topic.snapshot
        if self._rehashes:
            yield (
                f"{name} goes to {topic.target_partitions} partitions by its keys: the records of a key stay "
                "in order where the key was in one partition here. The order of records of several keys is lost, and "
                "that of records without a key of several partitions"
            )
        if self._options.to_time_ms is None:
            for number, (_, end) in snapshot.offset_bounds().items():
                stable_end = bounds[number][1]
                if stable_end < end:
                    yield (
                        f"{name}-{number}: offsets {stable_end} to {end - 1} are left out: they wait for the end of a "
                        "transaction that is open here"
                    )
        for number, (place, end) in topic.unsent.items():
            for hole in Hole.within(snapshot, number, place, end):
                yield f"{name}-{number}: {hole}"

    def _check(self, snapshot: Snapshot, number: int, place: int, metadata: Sequence[str]) -> None:
        """Raises OffsetOutOfRangeError where this is not the log that was sent, or records have left it since."""
        state = PartitionState.of(snapshot, number)
        # Without metadata, as replays of earlier versions committed, only the offset can be compared.
        position = Position(place, metadata[0], int(metadata[1])) if len(metadata) > 1 else state.position(place)
        loss = position.loss_in(state, (snapshot.topic, number), f"replay {self._name}")
        if loss is not None:
            raise OffsetOutOfRangeError(
                loss.message,
                expected=loss.expected,
                found=loss.found,
                hint="Replay under another name into another topic: --name, --rename",
            )

    def _problems(self, topic: _Topic) -> Iterator[str]:
        """Why the cluster would change or lose the topic's records, or already has other records."""
        config = topic.cluster_topic.config if topic.cluster_topic is not None else self._config(topic.snapshot)
        yield from self._partition_problems(topic)
        if self._options.idempotent and topic.new_ends.keys() < topic.ends.keys():
            yield (
                f"topic {topic.target} has positions of the replay {self._name} without the log end there: they are of "
                "transactions, or the cluster keeps no metadata of positions: take transactions, or --name and --rename"
            )
        if config.get("message.timestamp.type") == "LogAppendTime":
            yield f"topic {topic.target} has message.timestamp.type=LogAppendTime, which replaces the times of records"
        if topic.name not in self._checked:
            yield from self._time_problems(topic, config)

    def _partition_problems(self, topic: _Topic) -> Iterator[str]:
        """Too few partitions there, or records in them that this replay has not sent."""
        count = len(topic.ends)
        if self._rehashes:
            size = largest_metadata(topic.ends, topic.target_partitions)
            if size > Position.LONGEST_METADATA:
                yield f"topic {topic.target} has too few partitions for {count}: positions of {size} bytes of metadata"
        if topic.cluster_topic is None:
            return
        cluster_ends = topic.cluster_topic.ends
        if len(cluster_ends) < count and not self._rehashes:
            yield (
                f"topic {topic.target} has {plural(len(cluster_ends), 'partition')}, and {count} are needed: "
                "--partitions rehash sends records by their keys"
            )
        # A record of any partition here may go to any partition there, once the first was replayed by its key.
        is_new = topic.new == topic.ends.keys() if self._rehashes else bool(topic.new)
        new = cluster_ends if self._rehashes else topic.new
        if is_new and any(cluster_ends.get(number, 0) for number in new):
            yield (
                f"topic {topic.target} has records that no replay {self._name} has sent, or its offsets "
                "were forgotten there (offsets.retention.minutes): delete it, or --rename"
            )

    def _time_problems(self, topic: _Topic, config: Mapping[str, str]) -> Iterator[str]:
        """Times of records that the cluster refuses, or that make it remove records at once.

        |.....refused or removed.....|oldest, kept=====taken=====now=====newest|....refused....
        """
        now_ms = self._log.storage.now_ms()
        both = int(config.get("message.timestamp.difference.max.ms", LONG_MAX))
        oldest = now_ms - min(int(config.get("message.timestamp.before.max.ms", LONG_MAX)), both)
        newest = now_ms + min(int(config.get("message.timestamp.after.max.ms", LONG_MAX)), both)
        retention_ms = int(config.get("retention.ms", -1)) if "delete" in config.get("cleanup.policy", "delete") else -1
        kept = now_ms - retention_ms if retention_ms >= 0 else -LONG_MAX
        if max(oldest, kept) <= -1 and newest >= LONG_MAX:
            return  # any time is taken: the records are not read for it
        times = self._span(topic)
        if times is None:
            return
        if times[0] < oldest or times[1] > newest:
            yield f"topic {topic.target} refuses times of records: its limits message.timestamp.*.max.ms are too small"
        if times[0] < kept:
            yield f"topic {topic.target} would remove records at once: its retention.ms is {retention_ms}"

    def _span(self, topic: _Topic) -> tuple[int, int] | None:
        """(oldest, newest) time in ms of the records to be sent; None where there are none with a time."""
        spans = []
        for batch in self._scan(topic, topic.unsent, ("timestamp",)).batches():
            times = batch.column("timestamp").cast(pa.int64())
            both = pc.min_max(times.filter(pc.greater_equal(times, 0))).as_py()
            if both["min"] is not None:
                spans.append((both["min"] // 1000, both["max"] // 1000))
        return (min(oldest for oldest, _ in spans), max(newest for _, newest in spans)) if spans else None

    def _check_schemas(self, topics: Sequence[_Topic]) -> None:
        """Raises InvalidRecordError for a record to be sent whose schema cannot be translated."""
        if self._schema_ids is None:
            return
        for topic in topics:
            for batch in self._scan(topic, topic.unsent, SchemaIds.COLUMNS).batches():
                self._schema_ids.check(topic.name, batch)

    def _scan(self, topic: _Topic, offsets: Offsets, columns: tuple[str, ...]) -> Scan:
        selection = Selection(columns, isolation=READ_COMMITTED)
        return Scan.of(self._log.storage, topic.snapshot, offsets=offsets, selection=selection)

    def _config(self, snapshot: Snapshot) -> dict[str, str]:
        """The settings of a topic that the cluster lacks."""
        return {name: snapshot.config[name] for name in _KEPT_SETTINGS if name in snapshot.config}

    def _largest_record(self) -> int | None:
        topics = self._cluster.topics(list(self._targets().values()))
        limits = [topic.config.get("max.message.bytes") for topic in topics.values()]
        sizes = [int(limit) for limit in limits if limit is not None]
        return max(sizes) if sizes and len(sizes) == len(topics) else None

    # Records

    def _send(self, topic: _Topic) -> None:
        begun = sum(topic.places.values())
        total = sum(topic.ends.values()) - begun
        if topic.offset_map is not None:
            topic.offset_map.settle(
                {number: place for number, place in topic.places.items() if number not in topic.new}
            )
        if topic.cluster_topic is None:
            self._cluster.create_topic(topic.target, len(topic.ends), self._config(topic.snapshot))
        if topic.new:  # from now on the replay is known there
            self._under_way(topic).places |= {number: topic.places[number] for number in topic.new}
            self._commit(topic)
            topic.new.clear()
        self._pass_arrived(topic)
        for batch in self._scan(topic, topic.unsent, _COLUMNS).batches():
            number = batch.column("partition")[0].as_py()
            if self._schema_ids is not None:
                batch = self._schema_ids.translated(batch)
            for start in range(0, batch.num_rows, _PIECE_RECORDS):
                transaction = self._under_way(topic)
                self._produce(topic, transaction, number, batch.slice(start, _PIECE_RECORDS))
                if transaction.is_full:
                    self._commit(topic)
                if self._progress is not None:
                    self._progress(sum(topic.places.values()) - begun, total)
                self._rate.wait()
        behind = {number: end for number, end in topic.ends.items() if end > topic.places[number]}
        if behind or topic.transaction is not None:
            self._under_way(topic).places |= behind  # control records and aborted ones at the end are passed, too
            self._commit(topic)

    def _pass_arrived(self, topic: _Topic) -> None:
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
                for batch in self._scan(topic, offsets, ("offset",)).batches():
                    arrived_offsets += batch.column("offset").to_pylist()[: count - len(arrived_offsets)]
            if len(arrived_offsets) != count:
                raise _others(topic, number, topic.new_ends[number] + len(arrived_offsets), cluster_ends[number])
            transaction.old[number, number] = arrived_offsets
            transaction.new[number, number] = [*range(topic.new_ends[number], cluster_ends[number])]
            transaction.places[number] = arrived_offsets[-1] + 1
            transaction.records += count
        self._commit(topic)

    # Groups

    def _chosen_groups(self) -> list[str]:
        if not self._options.groups:
            return []
        groups = [group.id for group in Group.with_positions(self._log)]
        return chosen_groups(groups, self._options.groups, "The log has")

    def _moved_groups(self) -> dict[str, list[str]]:
        """Gives groups there their positions in the topics; {topic: groups that had none there, and have some now}."""
        targets = self._targets()
        moved: dict[str, list[str]] = {name: [] for name in targets}
        groups = self._chosen_groups()
        if not groups:
            return moved
        counts = {name: len(topic.ends) for name, topic in self._cluster.topics(list(targets.values())).items()}
        for group in groups:
            positioned = {topic for topic, _ in self._cluster.positions(counts, group)}
            positions = Group(self._log, group).positions()
            offsets: dict[tuple[str, int], tuple[int, str]] = {}
            for name, target in targets.items():
                starts = positions.starts(self._log.snapshot(name))
                if not starts or target in positioned:  # consumers there may have gone on from these positions
                    continue
                metadata = {number: positions[name, number].metadata for number in starts}
                offsets |= self._offsets_there(target, counts[target], starts, metadata)
                moved[name].append(group)
            if offsets:
                self._cluster.commit_group(group, offsets)
        return moved

    def _offsets_there(
        self, target: str, partitions: int, starts: Mapping[int, int], metadata: Mapping[int, str]
    ) -> dict[tuple[str, int], tuple[int, str]]:
        """{(topic, partition) there: (offset, metadata)} of a group that has read up to `starts` here."""
        offset_map = ReplayedOffsets(self._log.storage, self._name, target)
        if self._rehashes:  # a partition there has records of several here, so no metadata is of it alone
            unread = offset_map.unread_offsets(starts)
            return {(target, number): (unread.get(number, 0), "") for number in range(partitions)}
        offsets = offset_map.new_offsets(starts)
        return {(target, number): (offsets.get(number, 0), metadata[number]) for number in starts}

    # Transactions

    def _under_way(self, topic: _Topic) -> _Transaction:
        """The transaction under way, begun where none is."""
        if topic.transaction is None:
            self._cluster.begin_transaction()
            topic.transaction = _Transaction()
        return topic.transaction

    def _produce(self, topic: _Topic, transaction: _Transaction, number: int, batch: pa.RecordBatch) -> None:
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

    def _partitions_of(self, topic: _Topic, number: int, batch: pa.RecordBatch) -> list[int]:
        """The partition there of each record of a partition here."""
        if not self._rehashes:
            return [number] * batch.num_rows
        count = topic.target_partitions
        by_key = murmur2_partitions(batch.column("key"), count)
        partitions: list[int] = np.where(by_key < 0, number % count, by_key).tolist()
        return partitions

    def _commit(self, topic: _Topic) -> None:
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

    def _note_new_ends(self, topic: _Topic, transaction: _Transaction) -> None:
        """Moves the log ends there behind what was sent. Raises TargetError where others have written between."""
        for (number, _), offsets in transaction.new.items():
            if not offsets:
                continue
            new_end = topic.new_ends.get(number)
            if self._options.idempotent and new_end is not None and offsets[0] != new_end:
                raise _others(topic, number, new_end, offsets[0])
            topic.new_ends[number] = offsets[-1] + 1

    def _positions(self, topic: _Topic, transaction: _Transaction) -> dict[tuple[str, int], tuple[int, str]]:
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


def _delivery(topic: _Topic, transaction: _Transaction, number: int) -> Callable[[KafkaError | None, Message], None]:
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


def _others(topic: _Topic, number: int, expected: int, found: int) -> TargetError:
    return TargetError(
        f"{topic.target}-{number} has records that this replay has not sent: expected offset {expected}, found {found}",
        hint="Without transactions a replay is the only writer of a topic: replay into another one, by --rename",
    )


def _tell(report: Report, topic: _Topic, **figures: Any) -> None:
    """Adds a topic's line and warnings to a report."""
    report.add(
        topic.name,
        None,
        TO_SEND if report.dry_run else SENT,
        records_in=topic.records,
        records_out=topic.records,
        bytes_in=topic.sent_bytes,
        bytes_out=topic.sent_bytes,
        target=topic.target,
        partitions=len(topic.ends),
        created=topic.created,
        to_send=topic.to_send,
        **figures,
    )
    for text in topic.warnings:
        report.warn(text)
