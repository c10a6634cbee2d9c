"""Writes the log directory of format version 2 in tests/golden: `python -m verification.specification.write_format_2
DIRECTORY`.

tests/golden/format-2 was written by this once and stays as it is: what it shows is that later versions read it.
"""

from __future__ import annotations

import dataclasses
import random
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from unittest import mock

import pyarrow as pa

from spark_segments import LogDir, ProducerOptions
from spark_segments.errors import StorageError
from spark_segments.log.appending.append import append_target, commit_chunks
from spark_segments.log.manifest.operation import Operation
from spark_segments.maintenance import compact, retain, roll, vacuum
from verification.specification.witness import ISOLATION_LEVELS, Witness, read
from verification.world.clock import store_clock
from verification.world.kafka_bytes.golden_files import golden_dir
from verification.world.kafka_side import KafkaSide
from verification.world.manifest_rows import Change, Transaction
from verification.world.topics import Appender

START_MS = 1_750_000_000_000
HOUR_MS = 3_600_000
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
_choose = random.Random(2)


def rows(partitions: int, each: int, *, keys: int = 6, first: int = 0) -> pa.Table:
    """Records of all partitions in turn: some tombstones, headers, empty values, and times out of order."""
    headers = [{"key": "source", "value": b"shop"}, {"key": "", "value": None}, {"key": "é", "value": b""}]
    made = [
        {
            "key": b"key-%d" % _choose.randrange(keys),
            "value": _choose.choice([None, b"", *[b"%d " % (first + number) + b"x" * _choose.randrange(40)] * 8]),
            "headers": headers[: _choose.randrange(4)],
            "partition": number % partitions,
            "timestamp": START_MS + (first + number) * 1000 + _choose.randrange(-5000, 5000),
        }
        for number in range(partitions * each)
    ]
    header = pa.struct([("key", pa.string()), ("value", pa.binary())])
    types = {"partition": pa.int32(), "timestamp": pa.timestamp("ms"), "headers": pa.list_(header)}
    fields = [(name, types.get(name, pa.binary())) for name in made[0]]
    return pa.Table.from_pylist(made, pa.schema(fields))


def append_as_query(log: LogDir, topic: str, table: pa.Table, txn: Transaction) -> None:
    """Appends as a batch of a streaming query does."""
    target = append_target(log, topic, txn)
    with Appender(log.storage, lambda _: target, topic=topic) as appender:
        for batch in table.to_batches():
            appender.write(batch)
        commit_chunks(log, topic, appender.close(), txn)


def drop_old_versions(log: LogDir, topic: str) -> None:
    """Leaves a checkpoint, a recovery copy and no earlier version, as vacuum does in time."""
    with store_clock(log.storage.now_ms() + 2 * HOUR_MS):
        log.topic(topic).manifest.drop_old_versions(0, log.storage.now_ms())


def write_codecs(log: LogDir) -> None:
    """Chunks with files of their own in every codec; transactions with and without a query id; states."""
    log.create_topic("codecs", 2, {"retention.ms": "-1", "file.delete.delay.ms": "60000"})
    for number in range(19):
        options = ProducerOptions(CODECS[number % len(CODECS)], 300)
        txn = [("even", number), ("odd", number), None][number % 3]
        log.topic("codecs").append(rows(2, 3, first=number * 6), txn=txn, options=options)
    drop_old_versions(log, "codecs")
    append_as_query(log, "codecs", rows(2, 2, first=200), Transaction("stream", 5, "query-1"))
    states = {"role": "leader", "role_epoch": "3", "fence_token": "0123456789abcdef"}
    topic = dataclasses.replace(log.topic("codecs").snapshot.topic_row, states=states)
    log.topic("codecs").manifest.commit(lambda _: Change(Operation.PROMOTE, topic=topic))


def write_shared(log: LogDir) -> None:
    """Runs of shared objects, chunks with files beside them, and sealed copies of runs, beside what they replaced."""
    log.create_topic("shared", 10, {"retention.ms": "-1", "segment.ms": str(HOUR_MS), "segment.bytes": "1024"})
    log.topic("shared").append(rows(10, 4), txn=("feed", 1))
    now_ms = log.storage.now_ms()
    roll(log, topics=["shared"], now_ms=now_ms + 2 * HOUR_MS)
    append_as_query(log, "shared", rows(10, 3, first=40), Transaction("feed", 2, "query-2"))
    log.topic("shared").append(rows(10, 2, first=70), options=ProducerOptions("zstd"))
    log.topic("shared").append(rows(3, 30, first=90))
    log.topic("shared").delete_records({0: 6, 9: 5})


def write_compacted(log: LogDir) -> None:
    """Sealed segments that were compacted, beside the chunks and segments that they replaced; chunks above them."""
    config = {"cleanup.policy": "compact", "segment.ms": str(HOUR_MS), "min.cleanable.dirty.ratio": "0.01"}
    log.create_topic("compacted", 2, config)
    for number in range(2):
        log.topic("compacted").append(rows(2, 20, keys=6, first=number * 40), options=ProducerOptions("lz4", 400))
    later_ms = log.storage.now_ms() + 2 * HOUR_MS
    roll(log, topics=["compacted"], now_ms=later_ms)
    compact(log, topics=["compacted"], now_ms=later_ms)
    log.topic("compacted").append(rows(2, 10, keys=6, first=80), options=ProducerOptions("gzip"))


def write_trimmed(log: LogDir) -> None:
    """Rows that a vacuum was deleting when it was killed; rows of a deleted topic of the same name; a log start within
    a segment.
    """
    for turn in range(2):
        log.create_topic("trimmed", 8, {"segment.ms": str(HOUR_MS), "file.delete.delay.ms": str(turn * HOUR_MS)})
        log.topic("trimmed").append(rows(8, 3, first=turn * 50))
        if turn == 0:
            log.delete_topic("trimmed")
    roll(log, topics=["trimmed"], now_ms=log.storage.now_ms() + 2 * HOUR_MS)
    log.topic("trimmed").append(rows(8, 3, first=100), options=ProducerOptions("snappy"))
    killed = mock.patch(
        "spark_segments.maintenance.removal.vacuum._drop", side_effect=StorageError("killed", path="trimmed")
    )
    with killed:
        vacuum(log, topics=["trimmed"], now_ms=log.storage.now_ms() + HOUR_MS // 2)
    log.topic("trimmed").delete_records({1: 4, 2: 6})
    retain(log, topics=["trimmed"], now_ms=START_MS)
    drop_old_versions(log, "trimmed")


def write_imports(log: LogDir) -> None:
    """Kafka's transactions, and a log over which two leaders wrote, with records of this package above theirs."""
    log.import_kafka(str(golden_dir("broker-data/payments-0")), config={"retention.ms": "-1"})
    with tempfile.TemporaryDirectory() as directory:
        kafka = KafkaSide(Path(directory) / "kafka")
        for number in range(6):
            kafka.append([(b"a", True), (b"b", number != 2), (b"c", True)])
            if number == 2:
                kafka.roll()
            if number == 3:
                kafka.fail_over(1)
        log.import_kafka(kafka.write(), config={"retention.ms": "-1", "segment.ms": str(HOUR_MS)})
    log.topic("prices").append(rows(1, 4, first=300))


def write_gone(log: LogDir) -> None:
    log.create_topic("gone")
    log.topic("gone").append(rows(1, 2))
    log.delete_topic("gone")


TOPICS: Sequence[Callable[[LogDir], None]] = (
    write_codecs, write_shared, write_compacted, write_trimmed, write_imports, write_gone,
)  # fmt: skip


def main(directory: Path) -> None:
    log = LogDir.create(str(directory / "log"))
    for write in TOPICS:
        write(log)
    for commit in (directory / "log").glob("_manifest/*/_delta_log/*.json"):  # Delta's log names where it was made
        commit.write_text(commit.read_text().replace(directory.resolve().as_uri(), "file:///data/format-2"))
    transactions = {
        topic: {one.application: one.version for one in log.topic(topic).manifest.state().last_transactions()}
        for topic in log.topics()
    }
    topics = {topic: log.topic(topic).describe() for topic in log.topics()}
    records = {level: {topic: read(log, topic, level) for topic in log.topics()} for level in ISOLATION_LEVELS}
    Witness(directory).write({"topics": topics, "transactions": transactions}, records)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
