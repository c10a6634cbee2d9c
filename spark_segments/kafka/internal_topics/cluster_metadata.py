"""The settings of a cluster's topics, from `__cluster_metadata-0` of a KRaft log directory: its snapshots and its log.

The records have the framing of Kafka's generated metadata messages: unsigned varints for the frame's version, the
message's API key and its version; then the message. TopicRecord, RemoveTopicRecord and ConfigRecord have a topic's
settings.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise

from spark_segments.errors import CorruptBatchError, SegmentsError
from spark_segments.format.batches import scan_batches
from spark_segments.format.decoding.decode import decode_batches
from spark_segments.format.window import Window
from spark_segments.kafka.internal_topics.message_reader import MessageReader
from spark_segments.kafka.listing import file_name
from spark_segments.storage import Storage

DIRECTORY = "__cluster_metadata-0"

_FRAME_VERSION = 1
_TOPIC = 2
_CONFIG = 4
_REMOVE_TOPIC = 9
"""The API keys of the records that have settings."""

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
            match = pattern.fullmatch(file_name(info))
            if match:
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
        frame = record.varint()
        key = record.varint()
        record.varint()  # the version of the message: the fields that are read are the same in all
        if frame != _FRAME_VERSION:
            raise CorruptBatchError("A metadata record has another frame", expected=_FRAME_VERSION, found=frame)
        if key == _TOPIC:
            name = record.string()
            self._names[record.bytes(16)] = name or ""
            self.topics[name or ""] = {}
        elif key == _REMOVE_TOPIC:
            self.topics.pop(self._names.pop(record.bytes(16), ""), None)
        elif key == _CONFIG:
            self._apply_config(record)

    def _apply_config(self, record: MessageReader) -> None:
        kind = record.bytes(1)[0]
        resource = record.string()
        name = record.string()
        value = record.string()
        if kind != _TOPIC_RESOURCE or not resource or not name:
            return
        settings = self.topics.setdefault(resource, {})
        if value is None:
            settings.pop(name, None)
        else:
            settings[name] = value
