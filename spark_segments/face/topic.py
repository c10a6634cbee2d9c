"""A topic: what its log is at a moment, and what is done to it."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from spark_segments.config import TopicConfig, check_partition_count, normal_overrides, topic_config
from spark_segments.errors import (
    InvalidOptionError,
    OffsetOutOfRangeError,
    PolicyViolationError,
)
from spark_segments.face.history import history
from spark_segments.format.layout import RECORD_SCHEMA
from spark_segments.log import (
    Change,
    Eras,
    LogDirectory,
    Manifest,
    Operation,
    Partition,
    Snapshot,
    Transaction,
    describe,
)
from spark_segments.printing import Printed, Prints
from spark_segments.quantities import Bytes, Duration, Time, moment_ms, span_ms

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from spark_segments.log import ProducerOptions, Report, Rows, Scan
    from spark_segments.maintenance.explanation.record_explanation import Explanation
    from spark_segments.values.batches import FormatDecoders

Bounds = tuple[int | None, int | None]
"""(start, end exclusive) of a partition, None where there is no bound."""

Keys = bytes | str | int | Sequence[bytes | str | int]
"""A key or several, as bytes, as text, or as values of key.format."""

Plan = Callable[[Snapshot], Change | None]

HOUR_MS = 3_600_000

_logger = logging.getLogger(__name__)

_PRINTED = {
    "partition": "partition",
    "records": "records",
    "bytes": "size_bytes",
    "log start": "log_start_offset",
    "log end": "log_end_offset",
}


class Topic(Prints):
    """A topic of a log directory. `LogDir.topic` gives it.

    It reads one snapshot: of the given version or time, or else the newest when a method is first called. To see later
    appends, ask the log directory for the topic again. Writes go to the newest version of the log, and never show in
    this snapshot. Methods raise UnknownTopicError where there is no such topic.

    A `Time` is milliseconds since 1970, a datetime, an ISO time, or words as on the command line: `yesterday`, `2 hours
    ago`; in UTC where it names no zone. A `Duration` is milliseconds, a timedelta, or a text such as 7d or 1h30m.
    """

    def __init__(self, log: LogDirectory, name: str, version: int | None = None, timestamp: Time | None = None) -> None:
        """Use `LogDir.topic`."""
        self.name = name
        self.log = log
        log.manifest(name)  # refuses a name that no topic can have
        self._version = version
        self._timestamp_ms = None if timestamp is None else moment_ms(timestamp)

    @cached_property
    def snapshot(self) -> Snapshot:
        """The rows of the manifest from which everything is read."""
        return self.log.snapshot(self.name, self._version, self._timestamp_ms)

    @property
    def version(self) -> int:
        """The version of the snapshot."""
        return self.snapshot.version

    @property
    def manifest(self) -> Manifest:
        """The topic's manifest, whether or not the topic exists."""
        return self.log.manifest(self.name)

    @property
    def config(self) -> TopicConfig:
        """The topic's configuration: its own values over the defaults of the log directory over Kafka's."""
        return topic_config(self.snapshot.config, self.log.defaults)

    def offsets(self) -> dict[int, tuple[int, int]]:
        """{partition: (log start offset, log end offset)}: the end is the next offset that an append gets."""
        return self.snapshot.offset_bounds()

    def offsets_for_times(self, timestamp_ms: Time) -> dict[int, tuple[int, int] | None]:
        """{partition: (offset, timestamp in ms)} of the first offset with a timestamp ≥ `timestamp_ms`, None where
        there is none.
        """
        from spark_segments.log import offsets_for_times

        targets = dict.fromkeys(self.offsets(), moment_ms(timestamp_ms))
        return offsets_for_times(self.log.storage, self.snapshot, targets)

    def describe(self) -> dict[str, Any]:
        """The topic's id, version and effective configuration; its partitions' offsets, segments, bytes and dirty
        ratio; `key_index`, where it has an index of its keys: how far that reaches, and its size; `field_indexes`, the
        same by the names of fields.
        """
        return describe(self.snapshot, self.config) | self.log.key_offsets.describe(self.snapshot)

    def history(self, limit: int | None = None) -> list[dict[str, Any]]:
        """The newest `limit` commits of the topic (None: all), newest first: version, committed_ms, job, records_in,
        records_out, bytes_in, bytes_out, and partitions: {partition: (log start offset, log end offset)}.

        A deleted topic has its history until vacuum takes it. Figures are None where vacuum has taken the version
        before.
        """
        if self.log.kafka is not None:
            raise InvalidOptionError("A Kafka log directory has no versions", path=self.log.storage.uri)
        with self.log.hinting(self.name) as manifest:
            return history(manifest, limit)

    def explain(
        self,
        partition: int,
        offset: int | None = None,
        timestamp_ms: Time | None = None,
        *,
        every_ms: Duration = HOUR_MS,
        now_ms: Time | None = None,
    ) -> Explanation:
        """Why a record is still here and when it goes: the one at `offset`, or the first that is not before
        `timestamp_ms`.

        `every_ms`: the longest time between two runs of each job. Only a look-up by time opens a segment. Raises
        LogDirError for a directory of Kafka's, UnknownTopicError if there is no such topic or partition,
        InvalidOptionError unless either an offset or a time is given.
        """
        from spark_segments.maintenance.explanation.explain import explain

        self.log.check_writable()  # before the snapshot: that of a directory of Kafka's reads all its segments
        at_ms, time_ms = (None if moment is None else moment_ms(moment) for moment in (now_ms, timestamp_ms))
        every_ms = span_ms(every_ms)
        return explain(self.log, self.snapshot, partition, offset, time_ms, every_ms=every_ms, now_ms=at_ms)

    def verify(self, deep: bool = False, *, spark: SparkSession | None = None) -> Report:
        """Looks for faults in the snapshot: in its rows, in what files there are and how large; `deep`, in every byte.

        They are the report's `findings`. `spark_segments.maintenance.verify` looks at several topics, and repairs.
        """
        from spark_segments.maintenance.verification.verify import verify_topic

        return verify_topic(self.log, self.name, self._version, self._timestamp_ms, deep=deep, spark=spark)

    # Reading

    def scan(
        self,
        partition: int | None = None,
        offsets: Mapping[int, Bounds] | Bounds | None = None,
        columns: Sequence[str] | None = None,
        view: str | None = None,
        isolation: str = "read_uncommitted",
        *,
        include_control: bool = False,
        include_tombstones: bool = True,
        formats: Mapping[str, str] | None = None,
        value_type: str = "binary",
        keys: Keys | None = None,
        times: tuple[Time | None, Time | None] | str | None = None,
        where: Mapping[str, Any] | None = None,
    ) -> Scan:
        """The records of the snapshot, partition by partition and by offset, as a value that reads them in any form.

        `offsets`: (start, end exclusive), None where there is no bound, or such bounds by partition; they are clipped
        to the log. `columns` are names of RECORD_SCHEMA, in the wanted order. `formats` are options such as
        value.format: what the bytes of key and value are read as, so that these columns are typed. `isolation`:
        read_uncommitted or read_committed.

        The `view` latest is the newest record of each key in the offsets: what cleaning would leave of them. Where
        partitions were added to the topic, a key's newest record is looked for in all of them. Records without a key
        and aborted data are left out; tombstones are in the view, unless a parameter leaves them out. `value_type`
        binary_view: values are views of the bytes that were read (`Scan.to_reader`).

        `keys`: the records with any of these keys alone, one or several: bytes, text (as UTF-8), or values of a
        key.format in which each value has one encoding. An index of the
        topic's keys (`spark_segments.keys.index`) says where they are; offsets that it does not have are scanned. So
        the records are those of a full scan with or without an index, and `Scan.coverage` says what was looked at.

        `times`: (start, end exclusive), None where there is no bound, or a text START..END: exactly the records with a
        timestamp in the range, in whatever order they lie. Segments that can have none are not read. Of the view latest
        these are the newest records of their keys that have such a timestamp.

        `where`: the records alone of which each of these fields has the value, or one of the values. A field is
        header.NAME, whose values are bytes or text, or value.PATH or key.PATH, where `formats` decode it: its values
        are of its type, or their text. Of a header that a record has several times any one counts. What a condition
        cannot decode is null for it, and no error, as value.errors=null reads it. The columns of the records that it
        leaves are decoded as value.errors and key.errors say, and can raise ValueFormatError. An index on the field is
        asked as that of keys is, where it has the same formats. Of the view latest these are the records of the view
        that have such fields: a key whose newest record has another value has none. No index is asked.
        """
        from spark_segments.log import Scan, Selection

        if isinstance(columns, str):
            raise InvalidOptionError("columns", expected=f'names, such as ["{columns}"]', found=repr(columns))
        names = tuple(RECORD_SCHEMA.names) if columns is None else tuple(columns)
        selection = Selection(names, isolation, view, include_control, include_tombstones, value_type)
        decoders = self.decoders(formats) if formats else None
        scan = Scan.of(self.log.storage, self.snapshot, partition, offsets, selection, decoders)
        scan = scan if times is None else scan.of_times(times)
        scan = scan if keys is None else scan.of_keys(self.key_bytes(keys, formats), self.log.key_offsets)
        for on, values in _fields_of(where).items():
            listed = list(values) if isinstance(values, (list, tuple, set, frozenset)) else [values]
            field = self.log.values.field(self.snapshot, on, formats or {})
            scan = scan.of_field(field, field.encoded(listed), self.log.key_offsets)
        return scan

    def to_spark(
        self,
        spark: SparkSession,
        view: str | None = None,
        isolation: str = "read_uncommitted",
        *,
        include_tombstones: bool = True,
        formats: Mapping[str, str] | None = None,
        tables: bool = True,
    ) -> DataFrame:
        """The records of the snapshot as a DataFrame, with the columns of `scan`, in no order.

        Where the topic knows a table (`segments table`), it is of the table's files, which Spark's own Parquet reader
        reads, and of the log's tail, as long as they are the topic's records; a warning says why they are not. Nobody
        may delete these files before a query on it has ended. `tables`: whether they are read at all. Otherwise, and
        for a topic as of a version or a time, the data source reads the log.
        """
        from spark_segments.lake.as_one import AsOne
        from spark_segments.lake.spark_frame import frame_of, newest_frame

        scan = self.scan(None, None, None, view, isolation, include_tombstones=include_tombstones, formats=formats)
        if not tables or self._version is not None or self._timestamp_ms is not None:
            return frame_of(spark, AsOne.by_log(scan), formats or {})
        frame, why = newest_frame(spark, self.log, scan, formats or {})
        if why is not None:
            _logger.warning("topic %s is read by its log alone: %s", self.name, why)
        return frame

    def decoders(self, formats: Mapping[str, str]) -> FormatDecoders:
        """What decodes the topic's keys and values by options such as value.format. Raises InvalidOptionError,
        RegistryError.
        """
        from spark_segments.values.typed import TypedColumns

        return TypedColumns(self.log).decoders(self.snapshot, formats)

    def key_bytes(self, keys: Keys, formats: Mapping[str, str] | None = None) -> list[bytes]:
        """The bytes of keys to look for. Raises InvalidOptionError for what is no key."""
        from spark_segments.values.typed import TypedColumns

        listed = [keys] if isinstance(keys, (bytes, str, int)) else list(keys)
        return TypedColumns(self.log).key_bytes(self.name, listed, formats or {})

    # Writing

    def append(
        self,
        rows: Rows,
        txn: tuple[str, int] | None = None,
        *,
        once: str | None = None,
        options: ProducerOptions | None = None,
        formats: Mapping[str, str] | None = None,
    ) -> dict[int, tuple[int, int]]:
        """Appends rows and returns {partition: (first offset, last offset)}, both inclusive; {} for a repeat.

        Takes the columns of a writer (value, key, headers, partition, timestamp) as Arrow, as a pandas or another data
        frame, or as a list or a generator of dicts; without timestamp a record gets the time of now. In dicts text is
        UTF-8, a timestamp is a datetime, milliseconds since 1970 or ISO text (in UTC where no zone is named), headers
        are a dict or pairs, and a value of None is a tombstone.

        `once` is an idempotency key, such as landing/2026-01-01: the topic remembers it for
        transactional.id.expiration.ms, and a repeat within that time adds nothing. Keys have no order. `txn` is
        (application id, version from 0 to 2**63 - 1), where versions rise: the application's last version again adds
        nothing. Both are remembered after an append of no rows, too.

        Raises UnknownTopicError; InvalidOptionError for a version out of range; TransactionOrderError for a version
        below the last one; InvalidRecordError where the topic is compacted and a row has no key, and for a dict that is
        no record; NotLeaderError where the topic is a follower or fenced. Nothing is appended then. `formats` are
        options such as value.format: what typed columns key and value are written as.
        """
        from spark_segments.log import append

        self._check_writable()
        return append(self.log, self.name, rows, Transaction.named(once, txn), options=options, formats=formats)

    def alter(self, config: Mapping[str, str | None] | None = None, partitions: int | None = None) -> None:
        """Sets configuration values (None takes one away) and raises the number of partitions, in one commit.

        New records of a key may go to another partition then. The view latest and latest tables find the newest in any.
        """
        self._check_writable()
        with self.log.hinting(self.name) as manifest:
            manifest.commit(altered(config or {}, partitions, self.log.defaults))

    def delete_records(self, before_offsets: Mapping[int, int]) -> dict[int, int]:
        """Moves the log start of partitions up to the offsets given (-1: the log end) and returns {partition: log start
        offset}.

        Files go with the next retention and vacuum. Raises OffsetOutOfRangeError for an offset above the log end, and
        PolicyViolationError where the topic's cleanup.policy is without delete: as a broker does, for in a compacted
        topic a deleted record may be the newest value of its key.
        """
        self._check_writable()
        with self.log.hinting(self.name) as manifest:
            plan = records_deleted(before_offsets, self.log.defaults, self.log.storage.uri)
            bounds = manifest.commit(plan).bounds()
        return {number: bounds[number][0] for number in before_offsets}

    def _printed(self) -> Printed:
        lines = [line | {"size_bytes": Bytes(line["size_bytes"])} for line in self.describe()["partitions"]]
        rows = [[line[name] for name in _PRINTED.values()] for line in lines]
        facts = {"name": self.name, "version": self.version, "partitions": len(rows)}
        return Printed("Topic", facts, list(_PRINTED), rows)

    def _check_writable(self) -> None:
        self.log.check_writable()
        if self._version is not None or self._timestamp_ms is not None:
            raise InvalidOptionError(
                "A topic as it was takes no writes",
                found=f"{self.name} as of a version or a time",
                hint="Ask for it anew",
            )


def altered(config: Mapping[str, str | None], partitions: int | None, defaults: Mapping[str, str]) -> Plan:
    """Sets configuration values (None takes a value away) and raises the number of partitions.

    The plan raises InvalidOptionError for a setting or a number of partitions that is not allowed.
    """

    def plan(snapshot: Snapshot) -> Change | None:
        overrides: dict[str, str] = dict(snapshot.config)
        for key, value in config.items():
            if value is None:
                overrides.pop(key, None)
            else:
                overrides |= normal_overrides({key: value})
        topic_config(overrides, defaults)
        count = snapshot.partitions.num_rows
        if partitions is not None:
            check_partition_count(snapshot.topic, partitions)
            if partitions < count:
                raise InvalidOptionError(
                    "The number of partitions can only be raised", expected=f"at least {count}", found=partitions
                )
        added = [Partition(snapshot.topic_id, number) for number in range(count, partitions or count)]
        if overrides == snapshot.config and not added:
            return None
        topic = dataclasses.replace(Eras.topic_row(snapshot), config=overrides) if added else None
        return Change(Operation.ALTER, config=overrides, partitions=added, topic=topic)

    return plan


def records_deleted(before_offsets: Mapping[int, int], defaults: Mapping[str, str], uri: str) -> Plan:
    """Moves the log start of partitions up to the offsets given; -1 means the log end.

    The plan raises as `Topic.delete_records` does.
    """

    def plan(snapshot: Snapshot) -> Change | None:
        config = topic_config(snapshot.config, defaults)
        if not config.delete:
            raise PolicyViolationError(
                f"Records of topic {snapshot.topic} cannot be deleted by offset",
                path=uri,
                expected="a cleanup.policy with delete",
                found=",".join(sorted(config.cleanup_policy)) or "none",
                hint="Set cleanup.policy=compact,delete for as long as it takes: retention.ms and retention.bytes "
                "apply from then on, and -1 keeps all that they would take",
            )
        rows = []
        for number, before in before_offsets.items():
            snapshot.check_partition(number)
            row = snapshot.partition(number)
            before = row.log_end_offset if before == -1 else before
            if not 0 <= before <= row.log_end_offset:
                raise OffsetOutOfRangeError(
                    f"Cannot delete records of {snapshot.topic}-{number}",
                    expected=f"an offset from 0 to {row.log_end_offset}",
                    found=before,
                )
            if before > row.log_start_offset:
                rows.append(dataclasses.replace(row, log_start_offset=before))
        return Change(Operation.DELETE_RECORDS, partitions=rows) if rows else None

    return plan


def _fields_of(where: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """{field: a value, or several}. Raises InvalidOptionError for what is no such mapping."""
    fields = {} if where is None else where
    if not isinstance(fields, Mapping) or not all(isinstance(on, str) for on in fields):
        expected = 'fields with a value or a list of them, such as {"header.trace-id": "4bf92f"}'
        raise InvalidOptionError("where", expected=expected, found=repr(where))
    return fields
