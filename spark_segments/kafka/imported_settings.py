"""The settings of an imported topic: Kafka's own without retention, overridden by the caller's.

Kafka's settings are records in `__cluster_metadata-0` of a KRaft log directory, in its snapshots and its log. The
records have the framing of Kafka's generated metadata messages: unsigned varints for the frame's version, the message's
API key and its version; then the message. TopicRecord, RemoveTopicRecord and ConfigRecord have a topic's settings.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from spark_segments.config import normal_overrides
from spark_segments.config.table import KEYS
from spark_segments.errors import CorruptBatchError, InvalidOptionError, SegmentsError, StorageError
from spark_segments.format.batches import scan_batches
from spark_segments.format.decoding.decode import decode_batches
from spark_segments.format.window import Window
from spark_segments.kafka.directory import KafkaDirectory
from spark_segments.kafka.listing import file_name
from spark_segments.storage import Storage

RETENTION = ("retention.ms", "retention.bytes")


@dataclass(frozen=True, slots=True)
class ImportedSettings:
    """The settings of a topic that is made by an import, and what a user should know about them."""

    config: dict[str, str]
    warnings: list[str]


def imported_settings(
    source: KafkaDirectory, topics: Sequence[str], overrides: Mapping[str, str], *, keep_retention: bool
) -> dict[str, ImportedSettings]:
    """{topic: settings}. Records must not expire for having been imported: without `keep_retention`, retention.ms is -1
    and Kafka's retention.bytes is left behind, unless `overrides` say otherwise. Damaged settings are a warning; raises
    StorageError where they cannot be read.
    """
    unread: str | None = None
    try:
        known = topic_configs(source.log_directory)
    except StorageError:
        raise
    except (SegmentsError, FileNotFoundError) as error:
        known, unread = None, str(error)
    settings = {}
    for topic in topics:
        warnings: list[str] = []
        theirs = None if known is None else known.get(topic)
        if unread is not None:
            warnings.append(f"Kafka's settings of its topics cannot be read: {unread}")
        kept = kept_settings(topic, theirs, keep_retention=keep_retention)
        config, warnings = kept.config | dict(overrides), [*warnings, *kept.warnings]
        if theirs is None and "cleanup.policy" not in overrides and source.is_cleaned(topic):
            warnings.append(
                f"Kafka compacted {topic}, but its settings are not in this directory: it gets cleanup.policy=delete. "
                "--config cleanup.policy=compact, or topic alter, keeps it compacted"
            )
        settings[topic] = ImportedSettings(config, warnings)
    return settings


def kept_settings(topic: str, theirs: Mapping[str, str] | None, *, keep_retention: bool) -> ImportedSettings:
    """What a topic keeps of its settings in Kafka (None: they are not known): see `imported_settings`."""
    warnings = []
    config: dict[str, str] = {} if keep_retention and theirs is not None else {"retention.ms": "-1"}
    if keep_retention and theirs is None:
        warnings.append(f"Kafka does not say what {topic}'s retention is: it gets retention.ms=-1")
    for name, value in (theirs or {}).items():
        if name in RETENTION and not keep_retention:
            continue
        try:
            config |= normal_overrides({name: value}) if name in KEYS else {}
        except InvalidOptionError as error:
            warnings.append(f"Kafka's setting {name}={value} is left behind: {error.message}")
    return ImportedSettings(config, warnings)


DIRECTORY = "__cluster_metadata-0"

_FRAME_VERSION = 1
_TOPIC, _CONFIG, _REMOVE_TOPIC = 2, 4, 9  # API keys
_TOPIC_RESOURCE = 2
_SNAPSHOT = re.compile(r"(?P<offset>\d{20})-\d{10}\.checkpoint")
_LOG = re.compile(r"(?P<offset>\d{20})\.log")


def topic_configs(storage: Storage) -> dict[str, dict[str, str]] | None:
    """{topic: {setting: value}} of all topics that the cluster has; None where the directory has no metadata.

    Raises CorruptBatchError for a record that is not framed as Kafka frames it.
    """
    snapshots: dict[int, str] = {}
    logs: dict[int, str] = {}
    for info in storage.list(DIRECTORY):
        for pattern, files in ((_SNAPSHOT, snapshots), (_LOG, logs)):
            if match := pattern.fullmatch(file_name(info)):
                files[int(match["offset"])] = info.path
    if not logs and not snapshots:
        return None
    cluster = _Cluster()
    start = max(snapshots, default=0)
    if snapshots:
        cluster.apply(_values(storage, snapshots[start], 0))
    for base, following in pairwise([*sorted(logs), None]):
        assert base is not None
        if following is None or following > start:
            cluster.apply(_values(storage, logs[base], start))
    return cluster.topics


def _values(storage: Storage, path: str, start_offset: int) -> Iterator[tuple[str, bytes]]:
    """(path, value) of the records of a file from an offset on, as far as its batches are whole."""
    data = storage.read(path)
    window = Window(data, scan_batches(data).batches, path=path)
    for batch in decode_batches(window, topic=DIRECTORY, partition=0, start_offset=start_offset, columns=["value"]):
        for value in batch.column("value").to_pylist():
            if value is not None:
                yield path, value


@dataclass(slots=True)
class _Cluster:
    """The topics of a cluster, with their ids and their settings, after the records so far."""

    topics: dict[str, dict[str, str]] = field(default_factory=dict)
    _names: dict[bytes, str] = field(default_factory=dict)

    def apply(self, values: Iterator[tuple[str, bytes]]) -> None:
        for path, value in values:
            try:
                self._apply(MessageReader(value))
            except (IndexError, UnicodeDecodeError) as error:
                raise CorruptBatchError(
                    "A metadata record is cut",
                    path=path,
                    expected="a record as Kafka frames it",
                    found=f"{len(value)} bytes",
                ) from error
            except SegmentsError as error:
                error.path = path
                raise

    def _apply(self, record: MessageReader) -> None:
        frame, key, _ = record.varint(), record.varint(), record.varint()
        if frame != _FRAME_VERSION:
            raise CorruptBatchError("A metadata record has another frame", expected=_FRAME_VERSION, found=frame)
        if key == _TOPIC:
            name = record.string()
            self._names[record.bytes(16)] = name or ""
            self.topics[name or ""] = {}
        elif key == _REMOVE_TOPIC:
            self.topics.pop(self._names.pop(record.bytes(16), ""), None)
        elif key == _CONFIG:
            kind = record.bytes(1)[0]
            resource, name, value = record.string(), record.string(), record.string()
            if kind == _TOPIC_RESOURCE and resource and name:
                settings = self.topics.setdefault(resource, {})
                if value is None:
                    settings.pop(name, None)
                else:
                    settings[name] = value


class MessageReader:
    """A message's bytes, field by field. IndexError where they end, or a size is below 0."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def bytes(self, count: int) -> bytes:
        piece = self._data[self._at : self._at + max(count, 0)]
        if len(piece) != count:
            raise IndexError
        self._at += count
        return piece

    def varint(self) -> int:
        """An unsigned varint."""
        value = shift = 0
        while True:
            byte = self.bytes(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7

    def number(self, size: int) -> int:
        """A number of so many bytes."""
        return int.from_bytes(self.bytes(size), "big", signed=True)

    def string(self) -> str | None:
        """A compact string, None where it is null."""
        length = self.varint()
        return None if length == 0 else self.bytes(length - 1).decode()
