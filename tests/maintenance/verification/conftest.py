"""A log directory with sealed segments, chunks, a compacted topic and topics of Kafka; each test has a copy."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from spark_segments import LogDir, ProducerOptions
from spark_segments.maintenance import compact, roll
from tests.maintenance.verification.topics import LATER_MS, NOW_MS, rows
from verification.world.kafka_bytes.golden_files import golden_dir


@pytest.fixture(scope="package")
def built(tmp_path_factory) -> Path:
    """`orders` with sealed segments and chunks, `latest` compacted, `txn` and `multiappend` imported from Kafka."""
    directory = tmp_path_factory.mktemp("verified") / "log"
    log = LogDir.create(str(directory))
    generator = random.Random(3)
    options = ProducerOptions(batch_bytes=1000)
    log.create_topic("orders", partitions=2, config={"segment.bytes": "32768", "retention.ms": "-1"})
    compacted = {"cleanup.policy": "compact", "segment.bytes": "16384", "min.cleanable.dirty.ratio": "0.01"}
    log.create_topic("latest", config={**compacted, "compression.type": "uncompressed"})
    for number in range(4):
        for topic in ("orders", "latest"):
            log.topic(topic).append(rows(generator, NOW_MS + number * 10_000), options=options)
    roll(log, now_ms=LATER_MS)
    compact(log, topics=["latest"], now_ms=LATER_MS)
    log.topic("orders").append(rows(generator, NOW_MS + 60_000), options=options)
    log.import_kafka(str(golden_dir("txn-0")))
    log.import_kafka(str(golden_dir("multiappend-0")))
    return directory


@pytest.fixture
def directory(built, tmp_path) -> Path:
    copy = tmp_path / "log"
    shutil.copytree(built, copy)
    return copy


@pytest.fixture
def log(directory) -> LogDir:
    return LogDir.open(str(directory))
