"""The table of settings: two typed classes with every key's type, default, range, meaning and names.

`TopicConfig` has the settings of a topic, `ServerConfig` the settings of the jobs. A new setting needs just an entry
here. Defaults and ranges come from Kafka 4.0, save file.delete.delay.ms (a day, not a minute, because Spark jobs read a
snapshot for hours). Kafka 4.1 raises the least segment.bytes from 14 to 1 MiB; here it stays.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from spark_segments.config.values import (
    BOOLEAN,
    DOUBLE,
    DOUBLE_MAX,
    INT,
    LIST,
    LONG,
    LONG_MAX,
    STRING,
    Setting,
    Synonym,
    Valid,
    render_value,
)

DEFAULT = "default"
MINUTE_MS, HOUR_MS, DAY_MS = 60_000, 3_600_000, 86_400_000


def _setting(
    kind: str, default: Any, doc: str, *, server: Iterable[str | Synonym] = (), effect: bool = True, **valid: Any
) -> Any:
    synonyms = tuple(Synonym(name) if isinstance(name, str) else name for name in server)
    metadata = {"type": kind, "valid": Valid(**valid), "doc": doc, "server": synonyms, "has_effect": effect}
    return field(default=default, metadata=metadata)


def _settings(cls: type) -> dict[str, Setting]:
    rows = {entry.name.replace("_", "."): entry for entry in dataclasses.fields(cls) if entry.metadata}
    return {name: Setting(name, default=row.default, **row.metadata) for name, row in rows.items()}


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """The typed settings in force for one topic, under Kafka's names with underscores for dots; see `topic_config`."""

    cleanup_policy: frozenset[str] = _setting(
        LIST,
        frozenset({"delete"}),
        "What becomes of old records: delete whole segments, compact to the newest record of each key, or both",
        server=["log.cleanup.policy"],
        words=("compact", "delete"),
    )
    compression_gzip_level: int = _setting(
        INT, -1, "Level of gzip; -1 is zlib's default", server=["compression.gzip.level"], low=1, high=9, also=(-1,)
    )
    compression_lz4_level: int = _setting(
        INT, 9, "Level of lz4; 9 is its fast mode, as in Kafka", server=["compression.lz4.level"], low=1, high=17
    )
    compression_type: str = _setting(
        STRING,
        "producer",
        "Codec of new batches; `producer` leaves it to the writer, whose own default is zstd at level 1",
        server=["compression.type"],
        words=("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
    )
    compression_zstd_level: int = _setting(
        INT, 3, "Level of zstd", server=["compression.zstd.level"], low=-131072, high=22
    )
    delete_retention_ms: int = _setting(
        LONG,
        DAY_MS,
        "How long a tombstone stays after the first cleaning that met it",
        server=["log.cleaner.delete.retention.ms"],
        low=0,
    )
    file_delete_delay_ms: int = _setting(
        LONG,
        DAY_MS,
        "How long files stay after they left the log, for the readers of older snapshots (Kafka's default: a minute)",
        server=["log.segment.delete.delay.ms"],
        low=0,
    )
    flush_messages: int = _setting(
        LONG,
        LONG_MAX,
        "Records between two flushes to disk; whatever is set below the default, each append is forced to disk, "
        "and so is what jobs write",
        server=["log.flush.interval.messages"],
        low=1,
    )
    flush_ms: int = _setting(
        LONG,
        LONG_MAX,
        "Time between two flushes to disk; any value below the default does as flush.messages does",
        server=["log.flush.interval.ms", "log.flush.scheduler.interval.ms"],
        low=0,
    )
    follower_replication_throttled_replicas: frozenset[str] = _setting(
        LIST, frozenset(), "Replicas whose followers are throttled", effect=False
    )
    index_interval_bytes: int = _setting(
        INT,
        4096,
        "Bytes of log between two entries of the offset index: smaller finds an offset faster, larger keeps it small",
        server=["log.index.interval.bytes"],
        low=0,
    )
    leader_replication_throttled_replicas: frozenset[str] = _setting(
        LIST, frozenset(), "Replicas whose leaders are throttled", effect=False
    )
    local_retention_bytes: int = _setting(
        LONG,
        -2,
        "Local size of a tiered partition; -2 is retention.bytes",
        server=["log.local.retention.bytes"],
        low=-2,
        effect=False,
    )
    local_retention_ms: int = _setting(
        LONG,
        -2,
        "Local age of a tiered partition; -2 is retention.ms",
        server=["log.local.retention.ms"],
        low=-2,
        effect=False,
    )
    max_compaction_lag_ms: int = _setting(
        LONG,
        LONG_MAX,
        "The longest that a record may wait for compaction, whatever the dirty ratio",
        server=["log.cleaner.max.compaction.lag.ms"],
        low=1,
    )
    max_message_bytes: int = _setting(
        INT,
        1_048_588,
        "The largest record batch, compressed and with its header",
        server=["message.max.bytes"],
        low=0,
    )
    message_downconversion_enable: bool = _setting(
        BOOLEAN,
        True,
        "Whether a broker converts batches for old consumers",
        server=["log.message.downconversion.enable"],
        effect=False,
    )
    message_format_version: str = _setting(
        STRING,
        "3.0-IV1",
        "Format of new batches; it is magic 2 whatever this says",
        server=["log.message.format.version"],
        effect=False,
    )
    message_timestamp_after_max_ms: int = _setting(
        LONG,
        LONG_MAX,
        "How far a record's timestamp may lie in the future; with LogAppendTime no matter",
        server=["log.message.timestamp.after.max.ms"],
        low=0,
    )
    message_timestamp_before_max_ms: int = _setting(
        LONG,
        LONG_MAX,
        "How far a record's timestamp may lie in the past; with LogAppendTime no matter",
        server=["log.message.timestamp.before.max.ms"],
        low=0,
    )
    message_timestamp_type: str = _setting(
        STRING,
        "CreateTime",
        "Whether a record keeps its own timestamp or gets that of its append",
        server=["log.message.timestamp.type"],
        words=("CreateTime", "LogAppendTime"),
    )
    min_cleanable_dirty_ratio: float = _setting(
        DOUBLE,
        0.5,
        "The share of dirty bytes above which a partition is compacted",
        server=["log.cleaner.min.cleanable.ratio"],
        low=0,
        high=1,
    )
    min_compaction_lag_ms: int = _setting(
        LONG,
        0,
        "The shortest that a record stays uncompacted",
        server=["log.cleaner.min.compaction.lag.ms"],
        low=0,
    )
    min_insync_replicas: int = _setting(
        INT, 1, "Replicas that must have a write", server=["min.insync.replicas"], low=1, effect=False
    )
    preallocate: bool = _setting(
        BOOLEAN,
        False,
        "Whether a new segment's file takes its full size at once",
        server=["log.preallocate"],
        effect=False,
    )
    remote_log_copy_disable: bool = _setting(BOOLEAN, False, "Whether tiered data becomes read-only", effect=False)
    remote_log_delete_on_disable: bool = _setting(
        BOOLEAN, False, "Whether tiered data goes when tiering is turned off", effect=False
    )
    remote_storage_enable: bool = _setting(BOOLEAN, False, "Whether a broker tiers the topic", effect=False)
    retention_bytes: int = _setting(
        LONG,
        -1,
        "Size per partition above which the oldest segments go; -1 is no limit",
        server=["log.retention.bytes"],
    )
    retention_ms: int = _setting(
        LONG,
        7 * DAY_MS,
        "Age above which a segment goes, by its newest record; -1 is no limit",
        server=[
            "log.retention.ms",
            Synonym("log.retention.minutes", MINUTE_MS),
            Synonym("log.retention.hours", HOUR_MS),
        ],
        low=-1,
    )
    segment_bytes: int = _setting(
        INT,
        1 << 30,
        "Size above which a segment is rolled: what retention and compaction handle as one",
        server=["log.segment.bytes"],
        low=14,
    )
    segment_index_bytes: int = _setting(
        INT,
        10 << 20,
        "Size of an index at which its segment is rolled",
        server=["log.index.size.max.bytes"],
        low=4,
    )
    segment_jitter_ms: int = _setting(
        LONG,
        0,
        "The most that is taken off segment.ms, by chance, so that partitions do not roll at one moment",
        server=["log.roll.jitter.ms", Synonym("log.roll.jitter.hours", HOUR_MS)],
        low=0,
    )
    segment_ms: int = _setting(
        LONG,
        7 * DAY_MS,
        "Age above which a segment is rolled, full or not, so that retention and compaction can have it",
        server=["log.roll.ms", Synonym("log.roll.hours", HOUR_MS)],
        low=1,
    )
    transactional_id_expiration_ms: int = _setting(
        INT,
        7 * DAY_MS,
        "How long a topic remembers an idempotency key (once), so that a repeated append adds nothing",
        server=["transactional.id.expiration.ms"],
        low=1,
    )
    unclean_leader_election_enable: bool = _setting(
        BOOLEAN,
        False,
        "Whether a replica that is behind may lead",
        server=["unclean.leader.election.enable"],
        effect=False,
    )

    _sources: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)

    @property
    def compact(self) -> bool:
        """Whether the topic is compacted."""
        return "compact" in self.cleanup_policy

    @property
    def delete(self) -> bool:
        """Whether retention.ms and retention.bytes remove segments of the topic."""
        return "delete" in self.cleanup_policy

    @property
    def forced(self) -> bool:
        """Whether what is committed to the topic is forced to disk: flush.messages or flush.ms is below its default."""
        return min(self.flush_messages, self.flush_ms) < LONG_MAX

    @property
    def max_segment_ms(self) -> int:
        """segment.ms, for a compacted topic at most max.compaction.lag.ms (Kafka's LogConfig.maxSegmentMs)."""
        return min(self.segment_ms, self.max_compaction_lag_ms) if self.compact else self.segment_ms

    def effective(self) -> dict[str, str]:
        """Every key with the value in force, as Kafka writes it."""
        return {name: render_value(getattr(self, name.replace(".", "_"))) for name in KEYS}

    def sources(self) -> dict[str, str]:
        """Every key with the source of its value: `topic`, `file` or `default`."""
        return {name: self._sources.get(name, DEFAULT) for name in KEYS}


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """The settings of the jobs, under Kafka's server names with underscores for dots."""

    log_cleaner_backoff_ms: int = _setting(
        LONG, 15_000, "How long a cleaner sleeps that found nothing to do", low=0, effect=False
    )
    log_cleaner_dedupe_buffer_size: int = _setting(
        LONG, 128 << 20, "Bytes of memory for the map of newest offsets, all cleaner threads together", low=48
    )
    log_cleaner_enable: bool = _setting(BOOLEAN, True, "Whether compacted topics are compacted at all")
    log_cleaner_io_buffer_load_factor: float = _setting(
        DOUBLE, 0.9, "How full the map of newest offsets may get", low=0.01, high=1
    )
    log_cleaner_io_buffer_size: int = _setting(
        INT, 512 << 10, "Bytes of memory for the buffers of all cleaner threads", low=0, effect=False
    )
    log_cleaner_io_max_bytes_per_second: float = _setting(
        DOUBLE, DOUBLE_MAX, "The most that cleaners read and write together", low=0, effect=False
    )
    log_cleaner_threads: int = _setting(
        INT, 1, "Threads of one process that clean: a partition each, or a large one together", low=1
    )
    log_retention_check_interval_ms: int = _setting(
        LONG, 5 * MINUTE_MS, "How often retention is expected to run: `explain` counts with it", low=1
    )

    def effective(self) -> dict[str, str]:
        """Every key with the value in force, as Kafka writes it."""
        return {name: render_value(getattr(self, name.replace(".", "_"))) for name in SERVER_KEYS}


@dataclass(frozen=True, slots=True)
class SegmentLimits:
    """How large the files of a segment become: segment.bytes, index.interval.bytes and segment.index.bytes.

    `forced`: the files have reached the disk once their writer is closed.
    """

    segment_bytes: int
    index_interval_bytes: int
    segment_index_bytes: int
    forced: bool = False

    @classmethod
    def of(cls, config: TopicConfig) -> SegmentLimits:
        """The limits of a topic."""
        return cls(config.segment_bytes, config.index_interval_bytes, config.segment_index_bytes, config.forced)


KEYS: dict[str, Setting] = _settings(TopicConfig)
"""Every topic setting by Kafka's topic name, in alphabetical order."""

SERVER_KEYS: dict[str, Setting] = _settings(ServerConfig)
"""Every setting of the jobs by Kafka's server name."""
