"""A log directory: its topics, its groups, and what comes from Kafka's directories and goes there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spark_segments.config import normal_overrides, selected_topics
from spark_segments.errors import LogDirError, SegmentsError, UnknownTopicError
from spark_segments.face.topic import Topic
from spark_segments.log import LogDirectory
from spark_segments.printing import MOST_ROWS, Printed, Prints
from spark_segments.progress import Progress
from spark_segments.quantities import Bytes, Time
from spark_segments.storage import Storage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spark_segments.kafka.internal_topics.consumer_offsets import GroupOffsets
    from spark_segments.log import Group, Report
    from spark_segments.values.registries.registry import Registry


class LogDir(LogDirectory, Prints):
    """Topics under one location. `create` makes one, `open` opens one or a plain Kafka log directory (read-only)."""

    # Topics

    def topic(self, name: str, version: int | None = None, timestamp: Time | None = None) -> Topic:
        """The topic of this name: its newest snapshot, or the snapshot of a version of its manifest or of a time.
        Nothing is read yet: see `Topic`. Raises InvalidTopicError for a name that no topic can have.
        """
        return Topic(self, name, version, timestamp)

    def create_topic(  # type: ignore[override]  # the core has no topics to return
        self, topic: str, partitions: int = 1, config: Mapping[str, str] | None = None
    ) -> Topic:
        """Makes a topic, and returns it. Raises TopicExistsError where there is one, InvalidTopicError for a bad name,
        InvalidOptionError for a bad count or configuration.
        """
        super().create_topic(topic, partitions, config)
        return self.topic(topic)

    def __eq__(self, other: object) -> bool:
        """Whether both are the same location, with the same options and defaults. A directory that Kafka wrote is read
        when it is opened: it equals itself alone.
        """
        if self is other or not isinstance(other, LogDir) or self.kafka is not None or other.kafka is not None:
            return self is other
        storages = [(log.storage.uri, log.storage.storage_options, log.defaults) for log in (self, other)]
        return storages[0] == storages[1]

    def __hash__(self) -> int:
        return hash(self.storage.uri)

    def registry(self, formats: Mapping[str, str]) -> Registry:
        """The schema registry that schema.registry names, by default the topic `_schemas` of this log directory."""
        from spark_segments.values.typed import TypedColumns

        return TypedColumns(self).registry(formats)

    # Groups

    def group(self, group: str) -> Group:
        """The group of this id, whether or not it has committed. Raises InvalidOptionError for no group's id."""
        from spark_segments.log import Group

        return Group(self, group)

    def groups(self) -> list[str]:
        """The ids of the groups that have positions, sorted. One whose positions cannot be read is there, too."""
        from spark_segments.log import Group

        return [group.id for group in Group.with_positions(self)]

    # Maintenance

    def maintain(
        self,
        topics: Sequence[str] | None = None,
        *,
        spark: SparkSession | None = None,
        dry_run: bool = False,
        progress: Progress | None = None,
        table_uri: str | None = None,
        catalog: str | None = None,
    ) -> list[Report]:
        """Runs the jobs that keep a log in order: roll, retain, compact, index, vacuum. Returns their reports, in that
        order. Index is among them where a topic has an index of its keys.

        `topics`: names and patterns (`orders*`). `table_uri`: where the topics' tables are that are kept in step before
        these jobs and before vacuum, with {topic} in it; `catalog`: that of Iceberg tables.
        `spark_segments.maintenance` has each job by itself, and the others.
        """
        from spark_segments.face.in_order import jobs_in_order

        jobs = jobs_in_order(self, table_uri, catalog)
        return [job(self, topics=topics, spark=spark, dry_run=dry_run, progress=progress) for job in jobs]

    # Kafka's directories

    def import_kafka(
        self,
        path: str,
        topic: str | Sequence[str] | None = None,
        config: Mapping[str, str] | None = None,
        *,
        recovery: str | None = None,
        keep_retention: bool = False,
        exclude_internal: bool = False,
        replicated: bool = False,
        groups: Sequence[str] = (),
        storage_options: Mapping[str, str] | None = None,
        spark: SparkSession | None = None,
        progress: Progress | None = None,
    ) -> Report:
        """Copies the `<topic>-<n>` directories of a Kafka directory, all of them or only those of `topic` (a name, a
        pattern such as `orders*`, or several), into topics of the same names.

        Offsets, epochs, transactions, log starts and cleaner checkpoints are kept; Kafka's last segment stays the
        active one. A new topic gets its settings in Kafka, if the directory is also a KRaft controller's
        (`__cluster_metadata-0`), then `config`. Its retention is not kept unless `keep_retention`: it gets
        retention.ms=-1. `exclude_internal` leaves topics out whose names begin with __. `replicated` copies each log up
        to the high watermark in the broker's checkpoint: what all in-sync replicas have. `groups`: names or patterns of
        groups in the directory's `__consumer_offsets`. The groups of these names here get their positions in these
        topics. A directory without that topic, such as one of several log.dirs, is a warning.

        Run it again after it was killed, or when the directory has grown: copied segments are not copied twice.
        The report has a line for each partition, with the segments that were copied; a partition whose files a running
        broker changed in each attempt has failed, and is left to the next run. In `details` are the `holes` that were
        found, for each topic the `groups` that have positions in it, and the `positions_elsewhere`: those of the groups
        in partitions that the directory does not have, which no group gets from it.

        Raises LogDirError where damage would cut more than a torn last batch, or segments are missing that Kafka's
        cleaner has seen (`recovery="kafka"` takes the log as a broker would), where the topic of that name has another
        log, or where `replicated` finds no high watermarks; UnknownTopicError where there is no such topic. If some of
        several topics fail, one LogDirError names them after all the others were imported.
        """
        self.check_writable()
        overrides = normal_overrides(config or {})
        source_storage = Storage(path, dict(storage_options or {}))
        self._check_source(path, source_storage)
        from spark_segments.kafka.directory import KafkaDirectory, committed_directory
        from spark_segments.kafka.groups import import_groups
        from spark_segments.kafka.internal_topics.consumer_offsets import TOPIC
        from spark_segments.kafka.jobs import ImportPolicy, import_all

        source = committed_directory(source_storage) if replicated else KafkaDirectory(source_storage)
        names = source.topics()
        topics = _topics_to_import(path, names, topic, exclude_internal=exclude_internal)
        has_groups = TOPIC in names
        offsets = _group_offsets(path, groups if has_groups else (), storage_options)  # before the logs, which may grow
        report = import_all(
            source,
            self,
            topics,
            ImportPolicy(overrides=overrides, recovery=recovery, keep_retention=keep_retention),
            spark=spark,
            progress=progress,
        )
        if groups and not has_groups:
            report.warnings.append(
                f"no group is imported: {path} has no partition of {TOPIC}, another log.dirs may have"
            )
        if offsets:
            import_groups(self, offsets, source, report, all_topics=topic is None)
        return report

    def _check_source(self, path: str, source: Storage) -> None:
        """Raises LogDirError for a location that cannot be a log directory of Kafka."""
        if LogDirectory.is_marked(source):
            raise LogDirError(
                "The location is a log directory of this package, and none that Kafka wrote",
                path=path,
                expected="<topic>-<partition> directories of Kafka",
                hint=f"segments mirror {path} {self.uri} keeps copies of its topics",
            )
        if source.is_local and not Path(source.location()).exists():
            raise LogDirError("There is no such directory", path=path, expected="a log directory of Kafka")

    def export_kafka(
        self,
        path: str,
        topic: str | Sequence[str] | None = None,
        *,
        topic_ids: Mapping[str, str] | None = None,
        storage_options: Mapping[str, str] | None = None,
        spark: SparkSession | None = None,
        progress: Progress | None = None,
    ) -> Report:
        """Writes `<topic>-<n>` directories and checkpoints that a Kafka broker serves, of all topics, or only of
        `topic`: a name, a pattern (`orders*`), or several.

        Segments get Kafka's names and absolute offsets, with indexes, producer snapshots, leader epochs and topic ids.
        A broker's own meta.properties is not written: put the directories into a log.dirs of a stopped broker.
        `topic_ids`: {name: the topic's id in a new cluster, where it was created empty}; all batches then get leader
        epoch 0, as in a new log. The report has a line for each partition.

        Raises LogDirError where a partition's directory exists, where `path` is in a log directory, and,
        after all the others were exported, for topics whose manifest cannot be read.
        """
        target = Storage(path, dict(storage_options or {}))
        if LogDirectory.is_marked(target):
            raise LogDirError(
                "The location is a log directory, and none of Kafka's", path=path, hint="Name another one"
            )
        LogDirectory.check_apart(target)
        from spark_segments.kafka.jobs import export_all

        return export_all(
            self,
            target,
            self.topics() if topic is None else self.named([topic] if isinstance(topic, str) else topic),
            topic_ids=topic_ids,
            spark=spark,
            progress=progress,
        )

    def _printed(self) -> Printed:
        from spark_segments.log import Group

        names = self.topics()
        read = [one for one in self.storage.at_once(_offsets, Group.all(self)) if one != {}]
        facts = {"uri": self.uri, "topics": len(names), "groups": len(read)}
        rows = [
            _figures(self.topic(name), [one[name] for one in read if one is not None and name in one])
            for name in names[:MOST_ROWS]
        ]
        rows += [(name,) for name in names[MOST_ROWS:]]
        return Printed("LogDir", facts, ("topic", "partitions", "records", "bytes", "largest lag"), rows)


def _offsets(group: Group) -> dict[str, dict[int, int]] | None:
    """The positions of a group; None where they cannot be read."""
    try:
        return group.positions().offsets
    except SegmentsError:
        return None


def _figures(topic: Topic, read: Sequence[Mapping[int, int]]) -> tuple[Any, ...]:
    """A line of a topic. `read`: where each of its groups is."""
    try:
        rows = topic.describe()["partitions"]
    except SegmentsError as error:
        return topic.name, str(error), None, None, None
    records, size = (sum(row[name] for row in rows) for name in ("records", "size_bytes"))
    ends = {row["partition"]: row["log_end_offset"] for row in rows}
    lags = [sum(max(0, ends.get(number, 0) - offset) for number, offset in one.items()) for one in read]
    return topic.name, len(rows), records, Bytes(size), max(lags, default=None)


def _topics_to_import(
    path: str, names: Sequence[str], topic: str | Sequence[str] | None, *, exclude_internal: bool
) -> list[str]:
    """The topics of a Kafka directory that have these names or patterns. Raises where there are none."""
    topics = selected_topics(names, [topic] if isinstance(topic, str) else topic)
    if exclude_internal:
        topics = [name for name in topics if not name.startswith("__")]
    if not topics:
        raise (LogDirError if topic is None else UnknownTopicError)(
            "The directory holds no such topic to import",
            path=path,
            expected="<topic>-<partition> directories" if topic is None else topic,
            found=", ".join(names[:20]) or "none",
        )
    return topics


def _group_offsets(path: str, patterns: Sequence[str], storage_options: Mapping[str, str] | None) -> GroupOffsets:
    """The positions of groups in a Kafka directory that has partitions of __consumer_offsets."""
    if not patterns:
        return {}
    from spark_segments.kafka.group_patterns import chosen_groups
    from spark_segments.kafka.internal_topics.consumer_offsets import TOPIC, groups_of_records

    scan = (
        LogDir.open(path, storage_options)
        .topic(TOPIC)
        .scan(columns=["key", "value"], view="latest", isolation="read_committed", include_tombstones=False)
    )
    log_groups = groups_of_records(
        record
        for batch in scan.batches()
        for record in zip(*(column.to_pylist() for column in batch.columns), strict=True)
    )
    return {group: log_groups[group] for group in chosen_groups(log_groups, patterns, "The directory has")}
