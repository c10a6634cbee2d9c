"""The settings of Kafka's topics, from the metadata that a broker wrote, against Kafka's own dump of it."""

from __future__ import annotations

import json
import lzma
import shutil

import pytest

from spark_segments import LogDir
from spark_segments.errors import CorruptBatchError
from spark_segments.kafka.internal_topics.cluster_metadata import DIRECTORY, topic_configs
from spark_segments.storage import Storage
from verification.world.kafka_bytes.golden_files import GOLDEN

BROKER = GOLDEN / "broker-data"


def configs_of_kafkas_dump() -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = {}
    dump = lzma.decompress((BROKER / f"{DIRECTORY}.dump.txt.xz").read_bytes()).decode()
    for line in dump.splitlines():
        _, _, payload = line.partition("payload: ")
        if payload.startswith('{"type":"TOPIC_RECORD"'):
            found[json.loads(payload)["data"]["name"]] = {}
        elif payload.startswith('{"type":"CONFIG_RECORD"'):
            data = json.loads(payload)["data"]
            if data["resourceType"] == 2:
                found[data["resourceName"]][data["name"]] = data["value"]
    return found


def test_configurations_are_those_of_kafkas_own_dump():
    expected = configs_of_kafkas_dump()
    assert expected["orders"] == {"segment.bytes": "65536"} and expected["latest"]["cleanup.policy"] == "compact"
    assert topic_configs(Storage(str(BROKER))) == expected


def test_a_directory_without_metadata_has_none(tmp_path):
    assert topic_configs(Storage(str(tmp_path))) is None


def test_a_snapshot_stands_for_the_log_before_it(tmp_path):
    """Kafka's snapshots are record batches too: here the log itself, under a snapshot's name, and no log."""
    shutil.copytree(BROKER / DIRECTORY, tmp_path / DIRECTORY)
    log = tmp_path / DIRECTORY / "00000000000000000000.log"
    log.rename(tmp_path / DIRECTORY / "00000000000000000181-0000000001.checkpoint")
    assert topic_configs(Storage(str(tmp_path))) == configs_of_kafkas_dump()


def test_a_torn_end_is_left_out(tmp_path):
    shutil.copytree(BROKER / DIRECTORY, tmp_path / DIRECTORY)
    log = tmp_path / DIRECTORY / "00000000000000000000.log"
    log.write_bytes(log.read_bytes() + b"\0\1\2 torn")
    assert topic_configs(Storage(str(tmp_path))) == configs_of_kafkas_dump()


def test_an_import_keeps_settings_but_retention(tmp_path):
    log = LogDir.create(str(tmp_path / "log"))
    log.import_kafka(str(BROKER), exclude_internal=True)
    expected = configs_of_kafkas_dump()
    assert log.topics() == sorted(name for name in expected if not name.startswith("__"))
    for topic in log.topics():
        kept = {name: value for name, value in expected[topic].items() if not name.startswith("retention.")}
        config = log.topic(topic).snapshot.config
        assert config.pop("retention.ms") == "-1"
        assert {name: float(value) if "ratio" in name else value for name, value in config.items()} == {
            name: float(value) if "ratio" in name else value for name, value in kept.items()
        }


def test_an_import_keeps_retention_where_that_is_asked_for(tmp_path):
    expected = configs_of_kafkas_dump()
    with_retention = [
        name for name in expected if "retention.ms" in expected[name] or "retention.bytes" in expected[name]
    ]
    assert with_retention
    log = LogDir.create(str(tmp_path / "log"))
    for topic in with_retention:
        log.import_kafka(str(BROKER), topic, keep_retention=True)
        config = log.topic(topic).snapshot.config
        for name in ("retention.ms", "retention.bytes"):
            assert config.get(name) == expected[topic].get(name)


def test_what_the_caller_says_stands_above_kafkas_settings(tmp_path):
    log = LogDir.create(str(tmp_path / "log"))
    log.import_kafka(str(BROKER), "latest", {"cleanup.policy": "delete"})
    assert log.topic("latest").config.cleanup_policy == frozenset({"delete"}) or log.topic("latest").config.delete


def test_a_topic_that_kafka_compacted_is_warned_about_where_its_settings_are_elsewhere(tmp_path):
    shutil.copytree(BROKER, tmp_path / "kafka", ignore=shutil.ignore_patterns(DIRECTORY, "*.xz"))
    log = LogDir.create(str(tmp_path / "log"))
    warnings = log.import_kafka(str(tmp_path / "kafka"), exclude_internal=True).warnings
    assert any(text.startswith("latest: Kafka compacted latest") for text in warnings)
    assert not [text for text in warnings if text.startswith("orders: ")]


def test_a_record_of_another_frame_is_an_error():
    from spark_segments.kafka.internal_topics.cluster_metadata import _Cluster

    for value, message in ((b"\2\2\0", "another frame"), (b"\1\2\0\7ab", "is cut")):
        with pytest.raises(CorruptBatchError, match=message):
            _Cluster().apply(iter([("a.log", value)]))
