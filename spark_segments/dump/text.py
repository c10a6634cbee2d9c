"""The lines that Kafka's DumpLogSegments prints for a segment's files, character for character.

Checkpoint files, which Kafka's tool does not know, get lines of the same style.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator

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
        if entry["key"] is not None:
            text += f" key: {java_text(entry['key'])}"
        if entry["value"] is not None:
            text += f" payload: {java_text(entry['value'])}"
    return text


def _control(entry: Entry) -> str:
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
