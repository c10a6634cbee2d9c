"""The lines that Kafka's DumpLogSegments prints for a segment's files, character for character.

Checkpoint files, which Kafka's tool does not know, get lines of the same style.
"""

from __future__ import annotations

import json
import re
from base64 import b64decode
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from spark_segments.dump import Entry

# What Java's decoder takes for one malformed character and Python's for several: a surrogate in UTF-8, whole or cut.
_SURROGATES = re.compile(rb"\xed[\xa0-\xbf][\x80-\xbf]?")
_REPLACEMENT = "\ufffd".encode()


def text_of(
    entries: Iterable[Entry], *, print_data_log: bool = True, skip_record_metadata: bool = False
) -> Iterator[str]:
    """DumpLogSegments' output of a dump's entries, line by line without line ends; a line has a newline inside where a
    value has one.

    What Kafka's tool says of a file on stderr comes behind the file's own lines.
    """
    for entry in entries:
        if entry["kind"] == "record":
            yield _record(entry, print_data_log, skip_record_metadata)
        else:
            yield from _LINES[entry["kind"]](entry)


def empty_indexes_counted(entries: Iterable[Entry]) -> Iterator[Entry]:
    """Entries of several files for `text_of`. The last entry counts the empty indexes, which have no other.

    Kafka's tool has two lines for each, and takes no directory. A directory of small chunks has many.
    """
    file: Entry | None = None  # not yet passed on
    indexes = 0
    for entry in entries:
        if entry["kind"] == "empty":
            indexes += 1
            file = None
            continue
        if file is not None:
            yield file
        file = entry if entry["kind"] == "file" else None
        if file is None:
            yield entry
    if file is not None:
        yield file
    yield {"kind": "empty indexes", "count": indexes}


def java_text(content: bytes) -> str:
    """Bytes as Java's `new String(bytes, UTF_8)` has them: malformed bytes become as many U+FFFD as in Java."""
    return _SURROGATES.sub(_REPLACEMENT, content).decode(errors="replace")


def _record(entry: Entry, print_data_log: bool, skip_record_metadata: bool) -> str:
    text = "|"
    control = "controlType" in entry
    if not skip_record_metadata:
        text += (
            f" offset: {entry['offset']} {entry['timestampType']}: {entry['timestamp']}"
            f" keySize: {entry['keySize']} valueSize: {entry['valueSize']}"
        )
        if "sequence" in entry:
            names = ",".join(name for name, _ in entry["headers"])
            text += f" sequence: {entry['sequence']} headerKeys: [{names}]"
        else:
            text += f" isValid: {_boolean(entry['isValid'])} crc: {entry['crc']}}}"  # the brace is Kafka's
        if control:
            text += _control(entry)
    if print_data_log and not control:
        decoded = entry.get("decoded", {"key": entry["key"], "payload": entry["value"]})
        text += "".join(f" {part}: {_shown(content)}" for part, content in decoded.items() if content is not None)
    return text


def _shown(content: Any) -> str:
    if isinstance(content, bytes):
        return java_text(content)
    if isinstance(content, str):
        return content
    remote_text = _REMOTE.get(content.get("type"))
    if remote_text is not None:
        return remote_text(content["data"])
    return json.dumps(content, ensure_ascii=False, separators=(",", ":"))


def _segment(data: dict[str, Any]) -> str:
    epochs = ", ".join(f"{epoch['leaderEpoch']}={epoch['offset']}" for epoch in data["segmentLeaderEpochs"])
    in_snapshot = "segmentId" in data
    broker = "" if in_snapshot else f", brokerId={data['brokerId']}"
    at = "" if in_snapshot else f", eventTimestampMs={data['eventTimestampMs']}"
    name = f"Snapshot{{segmentId={data['segmentId']}" if in_snapshot else f"{{{_segment_id(data)}"
    return (
        f"RemoteLogSegmentMetadata{name}, startOffset={data['startOffset']}, endOffset={data['endOffset']}{broker}"
        f", maxTimestampMs={data['maxTimestampMs']}{at}, segmentLeaderEpochs={{{epochs}}}"
        f", segmentSizeInBytes={data['segmentSizeInBytes']}, customMetadata={_custom(data)}"
        f", state={_state(_SEGMENT_STATES, data['remoteLogSegmentState'])}}}"
    )


def _segment_update(data: dict[str, Any]) -> str:
    return (
        f"RemoteLogSegmentMetadataUpdate{{{_segment_id(data)}, customMetadata={_custom(data)}"
        f", state={_state(_SEGMENT_STATES, data['remoteLogSegmentState'])}"
        f", eventTimestampMs={data['eventTimestampMs']}, brokerId={data['brokerId']}}}"
    )


def _partition_delete(data: dict[str, Any]) -> str:
    return (
        f"RemotePartitionDeleteMetadata{{topicPartition={_topic_partition(data)}"
        f", state={_state(_DELETE_STATES, data['remotePartitionDeleteState'])}"
        f", eventTimestampMs={data['eventTimestampMs']}, brokerId={data['brokerId']}}}"
    )


def _segment_id(data: dict[str, Any]) -> str:
    segment = data["remoteLogSegmentId"]
    return f"remoteLogSegmentId=RemoteLogSegmentId{{topicIdPartition={_topic_partition(segment)}, id={segment['id']}}}"


def _topic_partition(data: dict[str, Any]) -> str:
    partition = data["topicIdPartition"]
    return f"{partition['id']}:{partition['name']}-{partition['partition']}"


def _custom(data: dict[str, Any]) -> str:
    custom = data["customMetadata"]
    return "Optional.empty" if custom is None else f"Optional[CustomMetadata{{{len(b64decode(custom))} bytes}}]"


def _state(names: tuple[str, ...], number: int) -> str:
    return names[number] if 0 <= number < len(names) else str(number)


_SEGMENT_STATES = ("COPY_SEGMENT_STARTED", "COPY_SEGMENT_FINISHED", "DELETE_SEGMENT_STARTED", "DELETE_SEGMENT_FINISHED")
_DELETE_STATES = ("DELETE_PARTITION_MARKED", "DELETE_PARTITION_STARTED", "DELETE_PARTITION_FINISHED")

# Kafka's tool shows these by their classes' toString, and all others as JSON.
_REMOTE: dict[Any, Callable[[dict[str, Any]], str]] = {
    "REMOTE_LOG_SEGMENT_METADATA_RECORD": _segment,
    "REMOTE_LOG_SEGMENT_METADATA_UPDATE_RECORD": _segment_update,
    "REMOTE_PARTITION_DELETE_METADATA_RECORD": _partition_delete,
    "REMOTE_LOG_SEGMENT_METADATA_SNAPSHOT_RECORD": _segment,
}


def _control(entry: Entry) -> str:
    for name, content in entry.get("decoded", {}).items():
        return f" {name} {_shown(content)}"
    if "coordinatorEpoch" in entry:
        return f" endTxnMarker: {entry['controlType']} coordinatorEpoch: {entry['coordinatorEpoch']}"
    return f" controlType: {entry['controlType']}({entry['controlTypeId']})"


def _batch(entry: Entry) -> Iterator[str]:
    if entry["magic"] >= 2:
        text = (
            f"baseOffset: {entry['baseOffset']} lastOffset: {entry['lastOffset']} count: {entry['count']}"
            f" baseSequence: {entry['baseSequence']} lastSequence: {entry['lastSequence']}"
            f" producerId: {entry['producerId']} producerEpoch: {entry['producerEpoch']}"
            f" partitionLeaderEpoch: {entry['leaderEpoch']} isTransactional: {_boolean(entry['isTransactional'])}"
            f" isControl: {_boolean(entry['isControl'])} deleteHorizonMs: {_optional(entry['deleteHorizonMs'])}"
        )
    else:
        text = f"offset: {entry['lastOffset']}"
    yield (
        f"{text} position: {entry['position']} {entry['timestampType']}: {entry['maxTimestamp']} size: {entry['size']}"
        f" magic: {entry['magic']} compresscodec: {entry['compression']} crc: {entry['crc']}"
        f" isvalid: {_boolean(entry['isValid'])}"
    )


def _producer(entry: Entry) -> Iterator[str]:
    text = (
        f"producerId: {entry['producerId']} producerEpoch: {entry['producerEpoch']}"
        f" coordinatorEpoch: {entry['coordinatorEpoch']}"
        f" currentTxnFirstOffset: {_optional(entry['currentTxnFirstOffset'])} lastTimestamp: {entry['timestamp']} "
    )
    if entry["lastOffset"] is not None:
        text += (
            f"firstSequence: {entry['firstSequence']} lastSequence: {entry['lastSequence']}"
            f" lastOffset: {entry['lastOffset']} offsetDelta: {entry['offsetDelta']} timestamp: {entry['timestamp']}"
        )
    yield text


def _complaints(head: str, line: str) -> Callable[[Entry], Iterator[str]]:
    def lines(entry: Entry) -> Iterator[str]:
        yield head.format(**entry)
        for pair in entry["pairs"]:
            yield line.format(**pair)
        left_out = entry["count"] - len(entry["pairs"])
        if left_out:
            yield f"  and {left_out} before these"

    return lines


def _form(line: str) -> Callable[[Entry], Iterator[str]]:
    def lines(entry: Entry) -> Iterator[str]:
        yield line.format(**entry)

    return lines


def _invalid_bytes(entry: Entry) -> Iterator[str]:
    yield f"Found {entry['bytes']} invalid bytes at the end of {entry['file'].rsplit('/', 1)[-1]}"


def _boolean(value: bool) -> str:
    return "true" if value else "false"


def _optional(value: int | None) -> str:
    return "OptionalLong.empty" if value is None else f"OptionalLong[{value}]"


_LINES: dict[str, Callable[[Entry], Iterator[str]]] = {
    "file": _form("Dumping {file}"),
    "unknown file": _form("Ignoring unknown file {file}"),
    "error": _form("{message}"),
    "log": _form("Log starting offset: {startingOffset}"),
    "KRaft bootstrap snapshot": _form("KRaft bootstrap snapshot"),
    "KRaft snapshot": _form("Snapshot end offset: {endOffset}, epoch: {epoch}"),
    "shared object": _form("Shared object of topic id {topicId}: {runs} runs"),
    "run": _form(
        "Partition {partition}: position: {position} size: {log_bytes} records: {records} batches: {batches}"
        " indexPosition: {index_position} indexSize: {index_bytes} timeIndexSize: {time_index_bytes}"
    ),
    "batch": _batch,
    "invalid bytes": _invalid_bytes,
    "non-consecutive offsets": _complaints("Non-consecutive offsets in {file}", "  {offset} is followed by {next}"),
    "empty": _form("{file} is empty."),
    "empty indexes": _form("{count} indexes are empty."),
    "offset index entry": _form("offset: {offset} position: {position}"),
    "offset mismatches": _complaints("Mismatches in :{file}", "  Index offset: {indexOffset}, log offset: {logOffset}"),
    "time index entry": _form("timestamp: {timestamp} offset: {offset}"),
    "timestamp mismatches": _complaints(
        "Found timestamp mismatch in :{file}", "  Index timestamp: {indexTimestamp}, log timestamp: {logTimestamp}"
    ),
    "timestamps out of order": _complaints(
        "Found out of order timestamp in :{file}",
        "  Index timestamp: {indexTimestamp}, Previously indexed timestamp: {previousTimestamp}",
    ),
    "offsets not found": _complaints(
        "The following indexed offsets are not found in the log.",
        "Indexed offset: {indexOffset}, found log offset: {logOffset}",
    ),
    "producer": _producer,
    "aborted transaction": _form(
        "version: {version} producerId: {producerId} firstOffset: {firstOffset} lastOffset: {lastOffset}"
        " lastStableOffset: {lastStableOffset}"
    ),
    "leader epoch": _form("epoch: {epoch} startOffset: {startOffset}"),
    "checkpoint": _form("topic: {topic} partition: {partition} offset: {offset}"),
    "partition metadata": _form("topicId: {topicId}"),
    "property": _form("{name}: {value}"),
}
