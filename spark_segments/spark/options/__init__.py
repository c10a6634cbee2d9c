"""The options of `format("segments")`: the options of Spark's Kafka source and sink, and ours. Nothing is opened here.

Names are case-insensitive. A misspelt option of ours is an error. Options of other sources, such as
kafka.bootstrap.servers, are ignored, so that a job moves here by its format and location alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

from spark_segments.config import READ_COMMITTED, READ_UNCOMMITTED
from spark_segments.config.table import KEYS
from spark_segments.errors import InvalidOptionError
from spark_segments.log.key_offsets import Key
from spark_segments.log.reading.time_range import EXAMPLE, TimeRange
from spark_segments.log.typed import value_provider
from spark_segments.quantities import duration_ms, iso_ms, size_bytes
from spark_segments.spark.options.keys import keys_of
from spark_segments.spark.options.limits import EARLIEST, LATEST_OFFSET, Limit, check_order, limit_of, refuse_word
from spark_segments.spark.options.option_values import STORAGE_PREFIX, OptionValues
from spark_segments.spark.options.topics import TOPIC_OPTIONS, Topics, topics_of
from spark_segments.spark.options.where import Values, fields_of

# What Spark's Kafka connector refuses, and what to do instead.
_BINARY = "Keys and values come as binary: cast or parse them in the query"
_UNSUPPORTED_BY_READER = {
    "kafka.key.deserializer": _BINARY,
    "kafka.value.deserializer": _BINARY,
    "kafka.auto.offset.reset": "Option startingOffsets says where a read begins",
    "kafka.enable.auto.commit": "A read commits no offsets",
    "kafka.interceptor.classes": "Change records in the query",
}
_WRITTEN = "Keys and values are written as binary or string: cast or format them in the query"
_UNSUPPORTED_BY_WRITER = {"kafka.key.serializer": _WRITTEN, "kafka.value.serializer": _WRITTEN}

# Limits of a stream's batches, which a batch read has none of.
TRIGGER_OPTIONS = ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay")
DEFAULT_MAX_TRIGGER_DELAY_MS = 15 * 60_000

# What a batch read alone can be asked for, and what to do instead.
_NO_END = "A stream has no end: stop the query, or start it with trigger(availableNow=True)"
_NO_PAST = "A stream reads the topic as it grows; startingOffsets and startingTimestamp say where it begins"
_NO_TIMES = "Filter the column timestamp in the query; startingTimestamp says where a stream begins"
_NO_KEYS = 'Filter the stream: .where("key IN (…)")'
_NO_WHERE = "Filter the stream by the column headers, or by the fields of its values"
_NO_VIEW = "Aggregate in the query, as by max_by(value, offset) for each key"
_REFUSED_BY_STREAMS = {
    "endingOffsets": _NO_END,
    "endingTimestamp": _NO_END,
    "endingOffsetsByTimestamp": _NO_END,
    "versionAsOf": _NO_PAST,
    "timestampAsOf": _NO_PAST,
    "times": _NO_TIMES,
    "view": _NO_VIEW,
    "keys": _NO_KEYS,
    "where": _NO_WHERE,
}

LATEST_VIEW = "latest"


VALUE_OPTIONS: tuple[str, ...] = value_provider().options
"""The options of keys and values, such as value.format."""

READER_OPTIONS = (
    "path",
    *TOPIC_OPTIONS,
    "startingOffsets",
    "startingTimestamp",
    "startingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "endingOffsets",
    "endingTimestamp",
    "endingOffsetsByTimestamp",
    "minPartitions",
    "maxRecordsPerPartition",
    "maxPartitionBytes",
    "includeHeaders",
    "failOnDataLoss",
    "versionAsOf",
    "timestampAsOf",
    "times",
    "isolation.level",
    "view",
    "includeTombstones",
    "keys",
    "where",
    *TRIGGER_OPTIONS,
    *VALUE_OPTIONS,
)
WRITER_OPTIONS = (
    "path",
    "topic",
    "compression.type",
    "batch.size",
    "appendOnce",
    "txnAppId",
    "txnVersion",
    "includeHeaders",
    *VALUE_OPTIONS,
)


# Who gives flush.messages to a writer relies on it.
_TOPIC_SETTINGS = {
    name: f"It is a setting of the topic: segments topic alter LOG_DIR TOPIC --config {name}=…"
    for name in KEYS
    if name not in WRITER_OPTIONS
}


@dataclass(frozen=True, slots=True)
class LogDirLocation:
    """The log directory and how to reach it. Keys of `storage_options` are in lower case: Spark gives no other."""

    uri: str
    storage_options: dict[str, str]


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """What a reader was asked for; None stands for no limit.

    `version` or `timestamp_ms` say as of when the topic is read. `latest`: the newest record of each key alone.
    `times`: the records with a timestamp in this range alone. `keys`: the records of these keys alone, as bytes, or as
    text or numbers in the format of the topic's keys. `where`: the records alone of which each of these fields has one
    of its values.
    """

    location: LogDirLocation
    topics: Topics
    start: Limit
    end: Limit
    latest_where_no_time_matches: bool
    min_partitions: int | None
    max_records_per_partition: int | None
    max_partition_bytes: int | None
    include_headers: bool
    fail_on_data_loss: bool
    version: int | None
    timestamp_ms: int | None
    isolation_level: str
    formats: dict[str, str]
    latest: bool = False
    include_tombstones: bool = True
    times: TimeRange | None = None
    keys: tuple[Key, ...] | None = None
    where: Mapping[str, Values] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """What a stream was asked for: what a read is, and limits of the offsets of a batch (None: no limit).

    A batch waits for `min_offsets` for at most `max_delay_ms`.
    """

    read: ReadOptions
    max_offsets: int | None = None
    min_offsets: int | None = None
    max_delay_ms: int = DEFAULT_MAX_TRIGGER_DELAY_MS


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """What a writer was asked for; None stands for the column, the topic's own or the default."""

    location: LogDirLocation
    topic: str | None
    compression_type: str | None
    batch_bytes: int | None
    txn: tuple[str, int] | None
    once: str | None
    formats: dict[str, str]


def is_read(options: Mapping[str, str]) -> bool:
    """Whether options name topics to read and where: a data source is made before Spark says what it is for."""
    names = {key.lower() for key in options}
    return "path" in names and any(name.lower() in names for name in TOPIC_OPTIONS)


def read_options(options: Mapping[str, str]) -> ReadOptions:
    """The options of a batch read. Raises InvalidOptionError for one that is missing, misspelt, wrong or at odds."""
    chosen = load_options(options)
    refuse_word(
        chosen.start, LATEST_OFFSET, "latest", "a batch read would be empty. Start at earliest, an offset or a time"
    )
    refuse_word(chosen.end, EARLIEST, "earliest", "a batch read would be empty. End at latest, an offset or a time")
    return chosen


def stream_options(options: Mapping[str, str]) -> StreamOptions:
    """The options of a stream. Raises as `read_options`, and for an option that a batch read alone can have.

    As in the Kafka connector, a stream begins at the latest offset by default, and a batch read at the earliest.
    """
    values = OptionValues(options, READER_OPTIONS, "reader")
    for name, instead in _REFUSED_BY_STREAMS.items():
        if values.text(name) is not None:
            raise InvalidOptionError(f"Option {name} is not valid in streams", hint=instead)
    delay_ms = values.parsed("maxTriggerDelay", _quantity(duration_ms), "a time such as 500ms, 30s, 15m or 1h")
    return StreamOptions(
        read=load_options(options, LATEST_OFFSET),
        max_offsets=values.number("maxOffsetsPerTrigger", at_least=1),
        min_offsets=values.number("minOffsetsPerTrigger", at_least=1),
        max_delay_ms=DEFAULT_MAX_TRIGGER_DELAY_MS if delay_ms is None else delay_ms,
    )


def load_options(options: Mapping[str, str], default_start: int = EARLIEST) -> ReadOptions:
    """The options of a load, which may be a batch read or a stream: Spark says which only when a query begins."""
    values = OptionValues(options, READER_OPTIONS, "reader")
    _refuse_unsupported(values, _UNSUPPORTED_BY_READER)
    most = values.number("maxOffsetsPerTrigger", at_least=1)
    least = values.number("minOffsetsPerTrigger", at_least=1)
    if most is not None and least is not None and least > most:
        raise InvalidOptionError(
            "Option minOffsetsPerTrigger is above maxOffsetsPerTrigger", expected=f"at most {most}", found=least
        )
    topics = topics_of(values)
    start = limit_of(values, "starting", default_start)
    end = limit_of(values, "ending", LATEST_OFFSET)
    check_order(start, end)
    version, timestamp_ms = _as_of(values, topics)
    latest = values.choice("view", (LATEST_VIEW,), "") == LATEST_VIEW
    if values.text("includeTombstones") is not None and not latest:
        raise InvalidOptionError("Option includeTombstones needs the option view=latest")
    strategy = values.choice("startingOffsetsByTimestampStrategy", ("error", "latest"), "error")
    return ReadOptions(
        location=_location(values),
        topics=topics,
        start=start,
        end=end,
        latest_where_no_time_matches=strategy == "latest",
        min_partitions=values.number("minPartitions", at_least=1),
        max_records_per_partition=values.number("maxRecordsPerPartition", at_least=1),
        max_partition_bytes=values.parsed(
            "maxPartitionBytes", _SPARK_SIZE, "a size in bytes, or one such as 64m or 1g"
        ),
        include_headers=values.flag("includeHeaders", False),
        fail_on_data_loss=values.flag("failOnDataLoss", True),
        version=version,
        timestamp_ms=timestamp_ms,
        latest=latest,
        include_tombstones=values.flag("includeTombstones", True),
        times=values.parsed("times", _times, f"START..END, such as {EXAMPLE}, either of which may be missing"),
        isolation_level=values.choice("isolation.level", (READ_UNCOMMITTED, READ_COMMITTED), READ_UNCOMMITTED),
        formats=_formats(values),
        keys=keys_of(values),
        where=fields_of(values),
    )


def write_options(options: Mapping[str, str]) -> WriteOptions:
    """The options of a write. Raises InvalidOptionError for one that is missing, misspelt, wrong or at odds."""
    values = OptionValues(options, WRITER_OPTIONS, "writer")
    _refuse_unsupported(values, _UNSUPPORTED_BY_WRITER)
    _refuse_unsupported(values, _TOPIC_SETTINGS)
    app_id = values.text("txnAppId")
    version = values.number("txnVersion", at_least=0)
    if (app_id is None) != (version is None):
        raise InvalidOptionError(
            "Options txnAppId and txnVersion go together",
            found=f"only {'txnAppId' if version is None else 'txnVersion'}",
            hint="txnAppId names the job, txnVersion is a number that rises with each of its writes",
        )
    once = values.text("appendOnce") or ("" if values.has("appendOnce") else None)  # an empty key is an error
    if once is not None and app_id is not None:
        raise InvalidOptionError("Options appendOnce and txnAppId cannot be combined", hint="Give one of the two")
    batch_bytes = values.number("batch.size", at_least=0)
    return WriteOptions(
        location=_location(values),
        topic=values.text("topic"),
        compression_type=values.text("compression.type"),
        batch_bytes=None if batch_bytes is None else max(1, batch_bytes),  # 0 is a record a batch, as in Kafka
        txn=None if app_id is None or version is None else (app_id, version),
        once=once,
        formats=_formats(values),
    )


def _formats(values: OptionValues) -> dict[str, str]:
    """The options that say what keys and values are; values/ knows what they mean."""
    texts = {name: values.text(name) for name in VALUE_OPTIONS}
    return {name: value for name, value in texts.items() if value is not None}


def _refuse_unsupported(values: OptionValues, options: Mapping[str, str]) -> None:
    for name, instead in options.items():
        if values.has(name):
            raise InvalidOptionError(f"Option {name} is not supported", hint=instead)


def _quantity(parse: Callable[[str], int], at_least: int = 0) -> Callable[[str], int]:
    """`parse` for `OptionValues.parsed`, which says what is expected. Raises ValueError, also beyond 64 bits."""

    def parsed(text: str) -> int:
        try:
            quantity = parse(text)
        except InvalidOptionError:
            raise ValueError(text) from None
        if not at_least <= quantity < 2**63:
            raise ValueError(text)
        return quantity

    return parsed


_SPARK_SIZE = _quantity(partial(size_bytes, kilobyte=1024), at_least=1)  # MB, too, are powers of 1024


def _times(text: str) -> TimeRange:
    """Raises ValueError for what is no range of times."""
    try:
        return TimeRange.of(text)
    except InvalidOptionError:
        raise ValueError(text) from None


def _as_of(values: OptionValues, topics: Topics) -> tuple[int | None, int | None]:
    """(version, time in ms): at most one of them."""
    version = values.number("versionAsOf", at_least=0)
    timestamp_ms = values.parsed(
        "timestampAsOf", _quantity(iso_ms), "milliseconds since 1970, or an ISO time such as 2026-01-31T12:00:00Z"
    )
    if version is not None and timestamp_ms is not None:
        raise InvalidOptionError("Options versionAsOf and timestampAsOf cannot both be given")
    if version is not None and (len(topics.names) or len(topics.partitions or ())) != 1:
        raise InvalidOptionError(
            "Option versionAsOf is the version of one topic",
            hint="Subscribe to one topic by its name: every topic counts its versions separately",
        )
    return version, timestamp_ms


def _location(values: OptionValues) -> LogDirLocation:
    path = values.text("path")
    several = values.text("paths")
    if path is None:
        raise InvalidOptionError(
            "No log directory was given" if several is None else "A read takes a single log directory",
            found=several,
            hint='Give the location as the path: .load("/data/log"), .save("/data/log") or .option("path", …)',
        )
    return LogDirLocation(path, values.prefixed(STORAGE_PREFIX))
