"""Names, types, defaults, limits and synonyms of configurations against what Kafka 4.0 documents."""

from __future__ import annotations

import re

import pytest

from spark_segments.config import KEYS, ServerConfig, TopicConfig, topic_config
from spark_segments.errors import InvalidOptionError

LONG_MAX = "9223372036854775807"


# name, type, default as Kafka's tools print it, values just inside its limits, values just outside them
KAFKA_TOPIC_CONFIGS = [
    (
        "cleanup.policy",
        "list",
        "delete",
        ["compact", "compact,delete", "delete , compact", ""],
        ["Compact", "none", ","],
    ),
    ("compression.gzip.level", "int", "-1", ["1", "9", "-1"], ["0", "10", "-2"]),
    ("compression.lz4.level", "int", "9", ["1", "17"], ["0", "18", "-1"]),
    ("compression.type", "string", "producer", ["uncompressed", "zstd", "lz4", "snappy", "gzip"], ["none", "ZSTD", ""]),
    ("compression.zstd.level", "int", "3", ["-131072", "22"], ["-131073", "23"]),
    ("delete.retention.ms", "long", "86400000", ["0", LONG_MAX], ["-1"]),
    ("flush.messages", "long", LONG_MAX, ["1"], ["0"]),
    ("flush.ms", "long", LONG_MAX, ["0"], ["-1"]),
    ("follower.replication.throttled.replicas", "list", "", ["0:101,0:102", "*"], []),
    ("index.interval.bytes", "int", "4096", ["0", "2147483647"], ["-1", "2147483648"]),
    ("leader.replication.throttled.replicas", "list", "", ["*"], []),
    ("local.retention.bytes", "long", "-2", ["-2", "-1"], ["-3"]),
    ("local.retention.ms", "long", "-2", ["-2", "-1"], ["-3"]),
    ("max.compaction.lag.ms", "long", LONG_MAX, ["1"], ["0"]),
    ("max.message.bytes", "int", "1048588", ["0"], ["-1"]),
    ("message.downconversion.enable", "boolean", "true", ["false"], ["0"]),
    ("message.format.version", "string", "3.0-IV1", ["2.8"], []),
    ("message.timestamp.after.max.ms", "long", LONG_MAX, ["0"], ["-1"]),
    ("message.timestamp.before.max.ms", "long", LONG_MAX, ["0"], ["-1"]),
    ("message.timestamp.type", "string", "CreateTime", ["LogAppendTime"], ["createtime"]),
    ("min.cleanable.dirty.ratio", "double", "0.5", ["0", "1", "0.01", "1e-3"], ["-0.1", "1.1", "NaN", "half"]),
    ("min.compaction.lag.ms", "long", "0", ["0", LONG_MAX], ["-1"]),
    ("min.insync.replicas", "int", "1", ["1"], ["0"]),
    ("preallocate", "boolean", "false", ["true", "TRUE", " false "], ["yes", "1", ""]),
    ("remote.log.copy.disable", "boolean", "false", ["true"], []),
    ("remote.log.delete.on.disable", "boolean", "false", ["true"], []),
    ("remote.storage.enable", "boolean", "false", ["true"], []),
    ("retention.bytes", "long", "-1", ["-1", "0", LONG_MAX, "-5"], ["9223372036854775808", "1.5"]),
    ("retention.ms", "long", "604800000", ["-1", "0", "+5"], ["-2", "1_000", "7d", "0x10", "", "٣"]),
    ("segment.bytes", "int", "1073741824", ["14", "16384", "2147483647"], ["13", "2147483648", "1g"]),
    ("segment.index.bytes", "int", "10485760", ["4", "300"], ["3"]),
    ("segment.jitter.ms", "long", "0", ["0"], ["-1"]),
    ("segment.ms", "long", "604800000", ["1", "100"], ["0"]),
    ("transactional.id.expiration.ms", "int", "604800000", ["1", "2147483647"], ["0", "2147483648"]),  # of brokers
    ("unclean.leader.election.enable", "boolean", "false", ["true"], []),
]

# the server's names of each, the first of which wins; those that are not there have none
KAFKA_SYNONYMS = {
    "cleanup.policy": ["log.cleanup.policy"],
    "compression.gzip.level": ["compression.gzip.level"],
    "compression.lz4.level": ["compression.lz4.level"],
    "compression.type": ["compression.type"],
    "compression.zstd.level": ["compression.zstd.level"],
    "delete.retention.ms": ["log.cleaner.delete.retention.ms"],
    "file.delete.delay.ms": ["log.segment.delete.delay.ms"],
    "flush.messages": ["log.flush.interval.messages"],
    "flush.ms": ["log.flush.interval.ms", "log.flush.scheduler.interval.ms"],
    "index.interval.bytes": ["log.index.interval.bytes"],
    "local.retention.bytes": ["log.local.retention.bytes"],
    "local.retention.ms": ["log.local.retention.ms"],
    "max.compaction.lag.ms": ["log.cleaner.max.compaction.lag.ms"],
    "max.message.bytes": ["message.max.bytes"],
    "message.downconversion.enable": ["log.message.downconversion.enable"],
    "message.format.version": ["log.message.format.version"],
    "message.timestamp.after.max.ms": ["log.message.timestamp.after.max.ms"],
    "message.timestamp.before.max.ms": ["log.message.timestamp.before.max.ms"],
    "message.timestamp.type": ["log.message.timestamp.type"],
    "min.cleanable.dirty.ratio": ["log.cleaner.min.cleanable.ratio"],
    "min.compaction.lag.ms": ["log.cleaner.min.compaction.lag.ms"],
    "min.insync.replicas": ["min.insync.replicas"],
    "preallocate": ["log.preallocate"],
    "retention.bytes": ["log.retention.bytes"],
    "retention.ms": ["log.retention.ms", "log.retention.minutes", "log.retention.hours"],
    "segment.bytes": ["log.segment.bytes"],
    "segment.index.bytes": ["log.index.size.max.bytes"],
    "segment.jitter.ms": ["log.roll.jitter.ms", "log.roll.jitter.hours"],
    "segment.ms": ["log.roll.ms", "log.roll.hours"],
    "transactional.id.expiration.ms": ["transactional.id.expiration.ms"],
    "unclean.leader.election.enable": ["unclean.leader.election.enable"],
}

KAFKA_SERVER_CONFIGS = {
    "log.cleaner.backoff.ms": "15000",
    "log.cleaner.dedupe.buffer.size": "134217728",
    "log.cleaner.enable": "true",
    "log.cleaner.io.buffer.load.factor": "0.9",
    "log.cleaner.io.buffer.size": "524288",
    "log.cleaner.io.max.bytes.per.second": "1.7976931348623157E308",
    "log.cleaner.threads": "1",
    "log.retention.check.interval.ms": "300000",
}


def test_names_types_and_defaults_are_kafkas():
    ours = TopicConfig().effective()
    assert ours.pop("file.delete.delay.ms") == "86400000"  # a minute in Kafka: a decision of ours
    assert ours == {name: default for name, _, default, _, _ in KAFKA_TOPIC_CONFIGS}
    assert {name: KEYS[name].type for name in ours} == {name: kind for name, kind, *_ in KAFKA_TOPIC_CONFIGS}
    assert ServerConfig().effective() == KAFKA_SERVER_CONFIGS


def test_synonyms_are_kafkas():
    ours = {name: [synonym.name for synonym in setting.server] for name, setting in KEYS.items() if setting.server}
    assert ours == KAFKA_SYNONYMS


@pytest.mark.parametrize(("name", "inside"), [(row[0], value) for row in KAFKA_TOPIC_CONFIGS for value in row[3]])
def test_values_inside_the_limits_are_taken(name, inside):
    assert topic_config({name: inside}).sources()[name] == "topic"


@pytest.mark.parametrize(("name", "outside"), [(row[0], value) for row in KAFKA_TOPIC_CONFIGS for value in row[4]])
def test_values_outside_the_limits_are_refused_with_what_is_right(name, outside):
    with pytest.raises(InvalidOptionError, match=re.escape(f"Invalid value for {name}: expected ")) as raised:
        topic_config({name: outside})
    assert raised.value.found == repr(outside)
