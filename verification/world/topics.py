"""What tests append to topics, and what topics have: rows of a few words, many records, batches that Kafka wrote."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from spark_segments import LogDir, ProducerOptions
from spark_segments.config import SegmentLimits
from spark_segments.log.appending.append import append_target
from spark_segments.log.appending.appender import Appender
from spark_segments.log.segment.writer import SegmentWriter
from spark_segments.maintenance import verify
from verification.world.kafka_bytes.golden_files import log_files
from verification.world.kafka_bytes.segment_bytes import batches_of, rebase
from verification.world.manifest_rows import Segment, commit_append

DAY_MS = 86_400_000
# Records of the golden directories are from the first minutes after this moment, which is long ago for `created_ms`.
GOLDEN_MS = 1_700_000_000_000

Value = str | bytes | None


def golden_batches(name: str) -> list[bytes]:
    """The record batches of a directory that Kafka wrote, in order."""
    batches = []
    for path in log_files(name):
        data = path.read_bytes()
        found = batches_of(data)
        ends = found.byte_position + found.size
        batches += [data[start:end] for start, end in zip(found.byte_position.tolist(), ends.tolist(), strict=True)]
    return batches


def append_batches(
    log: LogDir, topic: str, batches: Iterable[bytes], *, partition: int = 0, leader_epoch: int | None = None
) -> list[Segment]:
    """Appends record batches, each as a chunk of its own. `leader_epoch`, where given, takes the place of theirs."""
    config, topic_id = log.topic(topic).config, log.topic(topic).snapshot.topic_id
    chunks = []
    for data in batches:
        buffer = np.frombuffer(data, np.uint8).copy()
        rebase(buffer, batches_of(buffer), -int.from_bytes(data[:8]), leader_epoch)
        writer = SegmentWriter(
            log.storage,
            topic,
            partition,
            0,
            limits=SegmentLimits.of(config),
        )
        writer.append(buffer, batches_of(buffer))
        chunks.append(writer.close(topic_id=topic_id, created_ms=log.storage.now_ms()))
    commit_append(log.topic(topic).manifest, chunks)
    return chunks


def records(
    count: int,
    *,
    first: int = 0,
    size: int = 100,
    time_ms: int = GOLDEN_MS,
    step_ms: int = 1,
    partitions: Sequence[int] | None = None,
) -> pa.Table:
    """`count` records whose keys and values say which they are, for `partitions` in turn; values have `size` bytes."""
    numbers = range(first, first + count)
    return _placed(
        {
            "key": pa.array([b"%d" % (number % 7) for number in numbers], pa.binary()),
            "value": pa.array([(b"%d " % number).ljust(size, b".") for number in numbers], pa.binary()),
            "timestamp": pa.array([time_ms + step_ms * (number - first) for number in numbers], pa.timestamp("ms")),
        },
        partitions,
    )


def rows(
    *values: Value | tuple[Value, Value],
    time_ms: int | Sequence[int] | None = None,
    partitions: Sequence[int] | None = None,
    **columns: Any,
) -> pa.Table:
    """A record for each value, which is its key, too, or for each pair of both; all of one time or each of its own, for
    `partitions` in turn."""
    pairs = [value if isinstance(value, tuple) else (value, value) for value in values]
    texts = zip(*([_bytes(text) for text in pair] for pair in pairs), strict=True)
    made = {name: pa.array(column, pa.binary()) for name, column in zip(("key", "value"), texts, strict=True)}
    if time_ms is not None:
        times_ms = [time_ms] * len(pairs) if isinstance(time_ms, int) else time_ms
        made["timestamp"] = pa.array(times_ms, pa.timestamp("ms", "UTC"))
    return _placed(made | columns, partitions)


def append(log: LogDir, *values: Value | tuple[Value, Value], topic: str = "orders", **columns: Any) -> None:
    """Appends the `rows` of these values."""
    log.topic(topic).append(rows(*values, **columns))


def append_even_without_key(log: LogDir, *pairs: tuple[Value, Value], topic: str = "orders", **columns: Any) -> None:
    """Appends the `rows` of these pairs. Those without a key are in a compacted topic from before it was one."""
    without = any(key is None for key, _ in pairs)
    with under_policy(log, topic, "delete") if without else contextlib.nullcontext():
        append(log, *pairs, topic=topic, **columns)


def append_numbers(
    log: LogDir, numbers: Sequence[int], *, topic: str = "orders", keys: int | None = None, size: int = 0, each: int = 0
) -> None:
    """Appends a record for each number, which is its value, to the partition of the number modulo their count.

    Keys are the number modulo `keys`, or none. Values have `size` characters at least, and an append has `each` records
    at most, or all.
    """
    partitions = log.topic(topic).snapshot.partitions.num_rows
    made = [
        {"key": keys and str(number % keys), "value": str(number).rjust(size), "partition": number % partitions}
        for number in numbers
    ]
    for start in range(0, len(made), each or len(made)):
        log.topic(topic).append(made[start : start + (each or len(made))])


def _placed(columns: dict[str, Any], partitions: Sequence[int] | None) -> pa.Table:
    if partitions is not None:
        numbers = itertools.islice(itertools.cycle(partitions), len(columns["value"]))
        columns["partition"] = pa.array(numbers, pa.int32())
    return pa.table(columns)


def _bytes(text: Value) -> bytes | None:
    return text.encode() if isinstance(text, str) else text


def append_one_by_one(log: LogDir, topic: str, table: pa.Table, *, partition: int = 0) -> None:
    """Appends each record as a batch and a chunk of its own, in one commit."""
    target = append_target(log, topic)
    table = table.append_column("partition", pa.array([partition] * table.num_rows, pa.int32()))
    chunks = []
    for batch in table.to_batches(max_chunksize=1):
        appender = Appender(log.storage, lambda _: target, topic=topic)
        appender.write(batch)
        chunks += [segment for one in appender.close() for segment in one.segments]
    commit_append(log.topic(topic).manifest, chunks)


def append_in_batches(log: LogDir, topic: str, table: pa.Table, batch_bytes: int) -> None:
    """Appends records in batches of at most that size, as a producer with this batch.size would."""
    log.topic(topic).append(table, options=ProducerOptions("none", batch_bytes))


@contextlib.contextmanager
def under_policy(log: LogDir, topic: str, policy: str) -> Iterator[None]:
    """Meanwhile the topic has this cleanup.policy: for records that a compacted topic has from before it was one."""
    before = log.topic(topic).snapshot.config.get("cleanup.policy")
    log.topic(topic).alter({"cleanup.policy": policy})
    yield
    log.topic(topic).alter({"cleanup.policy": before})


def live(log: LogDir, topic: str, partition: int = 0) -> list[Segment]:
    return log.topic(topic).snapshot.live_of(partition)


def file_bytes(log: LogDir, segment: Segment) -> tuple[bytes, bytes, bytes]:
    """(.log, .index, .timeindex) of a segment, and that their sizes are those of its row."""
    paths = (segment.path, segment.index_path, segment.time_index_path)
    found = tuple(log.storage.read(path).to_pybytes() for path in paths)
    assert tuple(map(len, found)) == (segment.log_bytes, segment.index_bytes, segment.time_index_bytes)
    return found


def contents(log: LogDir, topic: str, **where: object) -> list[dict]:
    """Every record with all its columns."""
    return [row for batch in log.topic(topic).scan(**where).batches() for row in batch.to_pylist()]


def column(log: LogDir, topic: str, name: str, **where: object) -> list[Any]:
    """One column of every record."""
    return log.topic(topic).scan(columns=[name], **where).to_table().column(name).to_pylist()


def values(log: LogDir, topic: str = "orders", **where: object) -> list[bytes | None]:
    return column(log, topic, "value", **where)


def texts(log: LogDir, topic: str = "orders", **where: object) -> list[str]:
    """The value of every record, as text."""
    return [value.decode() for value in values(log, topic, **where)]


def offsets(log: LogDir, topic: str = "orders", **where: object) -> list[int]:
    return column(log, topic, "offset", **where)


def batch_headers(log: LogDir, segments: Iterable[Segment]) -> list[tuple]:
    """What every batch's header says, offsets as the log's; without what rolling writes: base offset and epoch."""
    found = []
    for segment in segments:
        batches = batches_of(log.storage.read(segment.path))
        names = [one.name for one in dataclasses.fields(batches) if one.name not in ("byte_position", "leader_epoch")]
        columns = {name: getattr(batches, name) for name in names}
        columns["base_offset"] = columns["base_offset"] + segment.offset_shift
        columns["last_offset"] = columns["last_offset"] + segment.offset_shift
        found += list(zip(*(column.tolist() for column in columns.values()), strict=True))
    return found


def topic_with(log: LogDir, topic: str, config: Mapping[str, object], partitions: int = 1) -> None:
    """Makes a topic, uncompressed unless the configuration says otherwise: a record's size is then plain."""
    log.create_topic(topic, partitions, {"compression.type": "uncompressed", **config})


def later(log: LogDir, days: int = 8) -> int:
    """The time in some days by the store's clock: after 8 days every active segment is due, by segment.ms' default."""
    return log.storage.now_ms() + days * DAY_MS


def assert_sound(log: LogDir) -> None:
    """All that a deep verification looks at is right."""
    report = verify(log, deep=True)
    assert report.ok, report.findings
