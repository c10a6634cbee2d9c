"""Kafka's small text files: checkpoints of leader epochs and offsets, partition.metadata and meta.properties.

A checkpoint is a version line, a line with the number of entries, and a line per entry. An empty file has no entries.
As in Kafka, parsing is strict: a line that does not parse raises CorruptBatchError with the line's position.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from spark_segments.errors import CorruptBatchError, SegmentsError
from spark_segments.format.batches import BatchTable

LEADER_EPOCHS_FILE = "leader-epoch-checkpoint"
LOG_START_OFFSETS_FILE = "log-start-offset-checkpoint"
CLEANER_OFFSETS_FILE = "cleaner-offset-checkpoint"
RECOVERY_POINTS_FILE = "recovery-point-offset-checkpoint"
REPLICATION_OFFSETS_FILE = "replication-offset-checkpoint"
PARTITION_METADATA_FILE = "partition.metadata"
META_PROPERTIES_FILE = "meta.properties"

CHECKPOINT_VERSION = "0"
PARTITION_METADATA_VERSION = "0"

_ESCAPED = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_TOPIC_ID_BYTES = 16


def parse_leader_epochs(data: Any, *, path: str = LEADER_EPOCHS_FILE) -> tuple[tuple[int, int], ...]:
    """((epoch, start offset), …), both rising, of a leader-epoch-checkpoint.

    As in Kafka, an entry replaces earlier entries whose epoch or start offset is not below the entry's.
    """
    epochs: list[tuple[int, int]] = []
    for line, byte_position in _entry_lines(data, path):
        epoch, start_offset = _numbers(line.split(), 2, "epoch and start offset", path, byte_position)
        _assign(epochs, epoch, start_offset)
    return tuple(epochs)


def leader_epochs_bytes(epochs: Iterable[tuple[int, int]]) -> bytes:
    """The leader-epoch-checkpoint of ((epoch, start offset), …)."""
    return _checkpoint_bytes(f"{epoch} {start_offset}" for epoch, start_offset in epochs)


def leader_epochs_of(batches: BatchTable, epochs: tuple[tuple[int, int], ...] = ()) -> tuple[tuple[int, int], ...]:
    """`epochs`, and the epochs that begin in `batches`, the next in the log. Each starts at a batch's base offset.

    The rule is that of Kafka's recovery: only an epoch above all earlier epochs counts. Magic 0 and 1 have no epochs.
    """
    latest = epochs[-1][0] if epochs else -1
    so_far = np.maximum.accumulate(np.concatenate(([latest], batches.leader_epoch)))
    result = list(epochs)
    for row in np.flatnonzero(so_far[1:] > so_far[:-1]):
        _assign(result, int(batches.leader_epoch[row]), int(batches.base_offset[row]))
    return tuple(result)


def leader_epochs_from(epochs: tuple[tuple[int, int], ...], log_start_offset: int) -> tuple[tuple[int, int], ...]:
    """The `epochs` of a log that begins at `log_start_offset`. The epoch in force at that offset then starts there."""
    before = [epoch for epoch, start_offset in epochs if start_offset <= log_start_offset]
    return (*((epoch, log_start_offset) for epoch in before[-1:]), *epochs[len(before) :])


def parse_offsets(data: Any, *, path: str) -> dict[tuple[str, int], int]:
    """{(topic, partition): offset} of a cleaner-, log-start-, recovery-point- or replication-offset-checkpoint."""
    offsets: dict[tuple[str, int], int] = {}
    for line, byte_position in _entry_lines(data, path):
        topic, *rest = line.split() or [""]
        partition, offset = _numbers(rest, 2, "topic, partition and offset", path, byte_position)
        offsets[topic, partition] = offset
    return offsets


def offsets_bytes(offsets: Mapping[tuple[str, int], int]) -> bytes:
    """The offset checkpoint of {(topic, partition): offset}."""
    return _checkpoint_bytes(f"{topic} {partition} {offset}" for (topic, partition), offset in offsets.items())


def parse_partition_metadata(data: Any, *, path: str = PARTITION_METADATA_FILE) -> str:
    """The topic id (22 characters of URL-safe base64) of a partition.metadata."""
    values: dict[str, str] = {}
    for line, byte_position in _lines(data, path):
        name, separator, value = line.partition(":")
        if not separator:
            raise _malformed("`name: value`", line, path, byte_position)
        values[name.strip()] = value.strip()
    if values.get("version") != PARTITION_METADATA_VERSION:
        raise _malformed(f"version: {PARTITION_METADATA_VERSION}", f"version: {values.get('version')}", path, 0)
    topic_id = values.get("topic_id", "")
    if not is_topic_id(topic_id):
        raise _malformed("topic_id: 22 characters of base64, not all zero", f"topic_id: {topic_id}", path, 0)
    return topic_id


def partition_metadata_bytes(topic_id: str) -> bytes:
    """The partition.metadata of a topic id; Kafka ends it without a newline. Raises SegmentsError for what is none."""
    if not is_topic_id(topic_id):
        raise SegmentsError(
            "The topic id is no UUID",
            expected="22 characters of URL-safe base64, not all zero",
            found=topic_id,
            hint="Another writer made the topic: segments verify says what else is wrong with it",
        )
    return f"version: {PARTITION_METADATA_VERSION}\ntopic_id: {topic_id}".encode()


def parse_meta_properties(data: Any, *, path: str = META_PROPERTIES_FILE) -> dict[str, str]:
    """The keys (version, cluster.id, node.id or broker.id, directory.id …) of a log directory's meta.properties."""
    properties: dict[str, str] = {}
    for line, byte_position in _lines(data, path):
        line = line.strip()
        if not line or line[0] in "#!":
            continue
        match = re.match(r"((?:[^\\=:\s]|\\.)+)\s*[=:]\s*(.*)", line)
        if match is None:
            raise _malformed("`name=value`", line, path, byte_position)
        properties[_unescaped(match[1])] = _unescaped(match[2])
    if "version" not in properties:
        raise _malformed("a version", "none", path, 0)
    return properties


def _assign(epochs: list[tuple[int, int]], epoch: int, start_offset: int) -> None:
    if epochs and epoch == epochs[-1][0] and start_offset >= epochs[-1][1]:
        return
    while epochs and (epochs[-1][0] >= epoch or epochs[-1][1] >= start_offset):
        epochs.pop()
    epochs.append((epoch, start_offset))


def _checkpoint_bytes(entries: Iterable[str]) -> bytes:
    lines = list(entries)
    return "".join(f"{line}\n" for line in [CHECKPOINT_VERSION, str(len(lines)), *lines]).encode()


def _entry_lines(data: Any, path: str) -> list[tuple[str, int]]:
    lines = _lines(data, path)
    end = memoryview(data).nbytes
    if not lines:
        return []
    if lines[0][0].strip() != CHECKPOINT_VERSION:
        raise _malformed(f"version {CHECKPOINT_VERSION}", lines[0][0], path, 0)
    if len(lines) < 2:
        raise _malformed("the number of entries", "the end of the file", path, end)
    (count,) = _numbers(lines[1][0].split(), 1, "the number of entries", path, lines[1][1])
    entries = lines[2:]
    if len(entries) != count:
        raise _malformed(f"{count} entries", len(entries), path, end)
    return entries


def _lines(data: Any, path: str) -> list[tuple[str, int]]:
    """(line, its byte position) of all lines."""
    result = []
    byte_position = 0
    for raw in bytes(data).splitlines(keepends=True):
        try:
            result.append((raw.decode().rstrip("\r\n"), byte_position))
        except UnicodeDecodeError:
            raise _malformed("text", "bytes that are no UTF-8", path, byte_position) from None
        byte_position += len(raw)
    return result


def _numbers(words: list[str], count: int, meaning: str, path: str, byte_position: int) -> list[int]:
    if len(words) == count and all(re.fullmatch(r"-?[0-9]{1,19}", word) for word in words):
        numbers = [int(word) for word in words]
        if all(0 <= number < 2**63 for number in numbers):
            return numbers
    raise _malformed(meaning, " ".join(words), path, byte_position)


def _malformed(expected: object, found: object, path: str, byte_position: int) -> CorruptBatchError:
    return CorruptBatchError(
        "A checkpoint file does not parse",
        path=path,
        byte_position=byte_position,
        expected=expected,
        found=str(found)[:100],
        hint="Restore the file, or remove it if the partition may be opened without it",
    )


def is_topic_id(text: str) -> bool:
    """Whether a text is the id of a topic: a UUID, as Kafka writes it."""
    try:
        decoded = base64.b64decode(text + "==", altchars=b"-_", validate=True)  # takes + and /, which Kafka does not
    except (binascii.Error, ValueError):
        return False
    return len(text) == 22 and len(decoded) == _TOPIC_ID_BYTES and any(decoded) and {"+", "/"}.isdisjoint(text)


def _unescaped(text: str) -> str:
    def character(match: re.Match[str]) -> str:
        if match[1]:
            return chr(int(match[1], 16))
        return _ESCAPED.get(match[2], match[2])

    return re.sub(r"\\(?:u([0-9a-fA-F]{4})|(.))", character, text)
