"""The plan of a replay: the topics, where each goes on, and why the cluster would not have their records unchanged."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from spark_segments.config import READ_COMMITTED, selected_topics, validate_topic_name
from spark_segments.config.values import LONG_MAX
from spark_segments.errors import InvalidOptionError, OffsetOutOfRangeError, UnknownTopicError
from spark_segments.kafka_protocol.replaying.rehashing import (
    REHASHED,
    Partitions,
    largest_metadata,
    other_way,
    rehashed_places,
)
from spark_segments.kafka_protocol.replaying.replay_options import ReplayOptions
from spark_segments.kafka_protocol.replaying.replayed_groups import groups_to_move
from spark_segments.kafka_protocol.replaying.replayed_offsets import ReplayedOffsets
from spark_segments.kafka_protocol.replaying.replayed_topic import Offsets, Places, ReplayedTopic, ReplayStart
from spark_segments.kafka_protocol.replaying.target import TargetCluster, TargetTopic
from spark_segments.log import Hole, LogDirectory, PartitionState, Position, Snapshot, offsets_for_times
from spark_segments.quantities import Time, moment_ms, plural

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


class ReplayPlan:
    """Plans a replay of topics, names or `patterns`, as often as it is asked: each time from what the cluster has."""

    def __init__(
        self, log: LogDirectory, cluster: TargetCluster, patterns: Sequence[str], options: ReplayOptions
    ) -> None:
        self._log = log
        self._cluster = cluster
        self._patterns = patterns
        self._options = options
        self._rehashes = options.partitions is Partitions.REHASH
        self._checked: set[str] = set()  # the topics whose times the cluster takes

    def topics(self) -> list[ReplayedTopic]:
        """The topics, as far as they were sent. Raises InvalidOptionError for what the cluster would not keep."""
        targets = self.targets()
        groups_to_move(self._log, self._options)  # before anything is sent: it raises for a name that is no group
        cluster_topics = self._cluster.topics(list(targets.values()))
        sent = self._cluster.positions({name: len(topic.ends) for name, topic in cluster_topics.items()})
        planned: list[ReplayedTopic] = []
        problems: list[str] = []
        for name, target in targets.items():
            topic = self._topic(self._log.snapshot(name), target, cluster_topics.get(target), sent)
            problems += self._problems(topic)
            planned.append(topic)
        if problems:
            raise InvalidOptionError("The cluster would not have the records as they are", found="; ".join(problems))
        self._checked |= targets.keys()
        return planned

    def targets(self) -> dict[str, str]:
        """{topic: its name there}."""
        # Those that begin with __ are the cluster's own business.
        here = [topic for topic in self._log.topics() if not topic.startswith("__")]
        names = selected_topics(here, self._patterns)
        rename = Renaming(self._options.rename)
        missing = sorted({*names, *rename.names} - {*here})
        if missing:
            raise UnknownTopicError(
                f"There is no topic {', '.join(missing)} to replay",
                path=self._log.uri,
                hint="Internal ones are left out",
            )
        if not names:
            raise UnknownTopicError(f"No topic here matches {', '.join(self._patterns)}", path=self._log.uri)
        targets = {name: rename.target(name) for name in names}
        rename.check_used()
        for target in targets.values():
            validate_topic_name(target)
        if len(set(targets.values())) < len(targets):
            raise InvalidOptionError("Two topics would have one name there", found=", ".join(sorted(targets.values())))
        return targets

    def _topic(
        self, snapshot: Snapshot, target: str, existing: TargetTopic | None, sent: Mapping[Any, Any]
    ) -> ReplayedTopic:
        bounds = snapshot.offset_bounds(READ_COMMITTED)
        starts = self._starts(snapshot, bounds, target, existing, sent)
        places = {number: start.place for number, start in starts.items()}
        # A pass ends at the last stable offset, or at the first record of the time `to_time_ms` or later:
        #
        #   |start=====sent====|place=====to send=====|end ~~~ open transaction, or too new
        #
        # An end below the place, which another --to-time may give, ends the pass where it begins.
        ends = {number: max(places[number], end) for number, end in self._ends(snapshot, bounds).items()}
        topic = ReplayedTopic(
            snapshot,
            target,
            existing,
            places,
            ends,
            new_ends={number: start.new_end for number, start in starts.items() if start.new_end is not None},
            new={number for number, start in starts.items() if start.is_new},
            created=existing is None,
            to_send=sum(ends.values()) - sum(places.values()),
            offset_map=None if self._log.is_kafka else ReplayedOffsets(self._log.storage, self._options.name, target),
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
    ) -> dict[int, ReplayStart]:
        """{partition: where its replay goes on}. Raises OffsetOutOfRangeError if this is not the log that was sent."""
        new_places = self._new_places(snapshot, bounds)
        if self._rehashes:
            rehashed = {} if existing is None else rehashed_places(target, len(existing.ends), sent)
            for number, (place, metadata) in rehashed.items():
                self._check(snapshot, number, place, metadata)
            replayed = {number: ReplayStart(place) for number, (place, _) in rehashed.items()}
            return {
                number: replayed.get(number, ReplayStart(place, is_new=True)) for number, place in new_places.items()
            }
        starts = {}
        for number, place in new_places.items():
            position = sent.get((target, number))
            if position is None:
                starts[number] = ReplayStart(place, new_end=0, is_new=True)  # `_problems` refuses a topic with records
            else:
                starts[number] = self._start_at(snapshot, number, target, position)
        return starts

    def _start_at(self, snapshot: Snapshot, number: int, target: str, position: Any) -> ReplayStart:
        """Where the replay goes on that committed a position. Its metadata: topic id, epoch, and the log end there."""
        metadata = str(position.metadata or "").split(" ")
        if REHASHED in metadata:
            raise other_way(target)
        self._check(snapshot, number, position.offset, metadata)
        return ReplayStart(position.offset, new_end=int(metadata[2]) if len(metadata) == 3 else None)

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

    def _warnings(self, topic: ReplayedTopic, bounds: Offsets) -> Iterator[str]:
        """What the topic there will not have, though it is here."""
        name = topic.name
        snapshot = topic.snapshot
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
        loss = position.loss_in(state, (snapshot.topic, number), f"replay {self._options.name}")
        if loss is not None:
            raise OffsetOutOfRangeError(
                loss.message,
                expected=loss.expected,
                found=loss.found,
                hint="Replay under another name into another topic: --name, --rename",
            )

    def _problems(self, topic: ReplayedTopic) -> Iterator[str]:
        """Why the cluster would change or lose the topic's records, or already has other records."""
        config = topic.cluster_topic.config if topic.cluster_topic is not None else kept_config(topic.snapshot)
        yield from self._partition_problems(topic)
        if self._options.idempotent and topic.new_ends.keys() < topic.ends.keys():
            yield (
                f"topic {topic.target} has positions of the replay {self._options.name} without the log end there: "
                "they are of transactions, or the cluster keeps no metadata of positions: take transactions, or --name "
                "and --rename"
            )
        if config.get("message.timestamp.type") == "LogAppendTime":
            yield f"topic {topic.target} has message.timestamp.type=LogAppendTime, which replaces the times of records"
        if topic.name not in self._checked:
            yield from self._time_problems(topic, config)

    def _partition_problems(self, topic: ReplayedTopic) -> Iterator[str]:
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
                f"topic {topic.target} has records that no replay {self._options.name} has sent, or its offsets "
                "were forgotten there (offsets.retention.minutes): delete it, or --rename"
            )

    def _time_problems(self, topic: ReplayedTopic, config: Mapping[str, str]) -> Iterator[str]:
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

    def _span(self, topic: ReplayedTopic) -> tuple[int, int] | None:
        """(oldest, newest) time in ms of the records to be sent; None where there are none with a time."""
        spans = []
        for batch in topic.scan(self._log.storage, topic.unsent, ("timestamp",)).batches():
            times = batch.column("timestamp").cast(pa.int64())
            both = pc.min_max(times.filter(pc.greater_equal(times, 0))).as_py()
            if both["min"] is not None:
                spans.append((both["min"] // 1000, both["max"] // 1000))
        return (min(oldest for oldest, _ in spans), max(newest for _, newest in spans)) if spans else None


def kept_config(snapshot: Snapshot) -> dict[str, str]:
    """The settings of a topic that the cluster lacks."""
    return {name: snapshot.config[name] for name in _KEPT_SETTINGS if name in snapshot.config}


class Renaming:
    """{topic: its name there}. A topic with one `*` is a pattern: what the `*` stands for takes the place of the `*` in
    the name there. A name goes before patterns, and the first pattern that fits counts.
    """

    def __init__(self, rename: Mapping[str, str]) -> None:
        self._patterns: dict[str, tuple[re.Pattern[str], str]] = {}
        self.names = {topic: target for topic, target in rename.items() if "*" not in topic}
        for topic, target in rename.items():
            if (topic.count("*"), target.count("*")) not in ((0, 0), (1, 1)):
                raise InvalidOptionError(
                    "Not a new name", expected="TOPIC=NAME, or both with one *", found=f"{topic}={target}"
                )
            if "*" in topic:
                self._patterns[topic] = re.compile(re.escape(topic).replace(r"\*", "(.*)"), re.DOTALL), target
        self._unused = {*self._patterns}

    def target(self, topic: str) -> str:
        """The topic's name there."""
        if topic in self.names:
            return self.names[topic]
        for name, (pattern, target) in self._patterns.items():
            match = pattern.fullmatch(topic)
            if match is not None:
                self._unused.discard(name)
                return target.replace("*", match[1])
        return topic

    def check_used(self) -> None:
        """Raises InvalidOptionError for a pattern that no topic has had its name by."""
        if self._unused:
            raise InvalidOptionError("No topic gets a new name by a pattern", found=", ".join(sorted(self._unused)))
