"""The server's file of configurations: how it is read, and who wins."""

from __future__ import annotations

import re

import pytest

from spark_segments.config import load_defaults, server_config, topic_config
from spark_segments.errors import InvalidOptionError
from spark_segments.kafka_protocol.client_settings import kafka_python_options, settings_of_file


def test_the_topic_wins_over_the_file_and_the_file_over_the_default(defaults_file):
    defaults = load_defaults(defaults_file("log.retention.ms=111", "log.segment.bytes=222", "log.cleaner.threads=3"))
    config = topic_config({"retention.ms": "5"}, defaults)
    assert (config.retention_ms, config.segment_bytes, config.segment_ms) == (5, 222, 604_800_000)
    sources = config.sources()
    assert (sources["retention.ms"], sources["segment.bytes"], sources["segment.ms"]) == ("topic", "file", "default")
    assert list(sources) == list(config.effective())
    assert server_config({}, defaults).log_cleaner_threads == 3
    assert server_config({"log.cleaner.threads": 4}, defaults).log_cleaner_threads == 4


# As in Kafka's own KafkaConfigTest: each unit alone, and the finer over the coarser.
@pytest.mark.parametrize(
    ("lines", "retention_ms"),
    [
        (["log.retention.hours=1"], 3_600_000),
        (["log.retention.minutes=30"], 1_800_000),
        (["log.retention.ms=1800000"], 1_800_000),
        ([], 604_800_000),
        (["log.retention.hours=1", "log.retention.minutes=30"], 1_800_000),
        (["log.retention.ms=1800000", "log.retention.minutes=10"], 1_800_000),
        (["log.retention.minutes=10", "log.retention.ms=1800000", "log.retention.hours=1"], 1_800_000),
        (["log.retention.hours=-1"], -1),
        (["log.retention.minutes=-1"], -1),
        (["log.retention.ms=-1"], -1),
        (["log.retention.ms=-7"], -1),
        (["log.retention.minutes=-1", "log.retention.hours=200"], -1),
    ],
)
def test_retention_in_the_file(defaults_file, lines, retention_ms):
    assert topic_config({}, load_defaults(defaults_file(*lines))).retention_ms == retention_ms


@pytest.mark.parametrize("unit", ["ms", "minutes", "hours"])
def test_no_retention_at_all_is_refused_in_the_file(defaults_file, unit):
    with pytest.raises(InvalidOptionError, match=f"log.retention.{unit} in line 1.*at least 1, or -1"):
        load_defaults(defaults_file(f"log.retention.{unit}=0"))


def test_rolling_in_the_file(defaults_file):
    config = topic_config({}, load_defaults(defaults_file("log.roll.hours=2", "log.roll.jitter.hours=1")))
    assert (config.segment_ms, config.segment_jitter_ms) == (7_200_000, 3_600_000)
    config = topic_config({}, load_defaults(defaults_file("log.roll.hours=2", "log.roll.ms=5", "log.preallocate=true")))
    assert (config.segment_ms, config.preallocate) == (5, True)
    with pytest.raises(InvalidOptionError, match=r"log.roll.hours in line 1"):
        load_defaults(defaults_file("log.roll.hours=0"))


def test_a_wrong_value_cannot_hide_behind_one_that_wins(defaults_file):
    with pytest.raises(InvalidOptionError, match=r"log.retention.hours in line 2 in .*segments.properties"):
        load_defaults(defaults_file("log.retention.ms=1", "log.retention.hours=a week"))


def test_the_file_is_read_as_java_reads_properties(defaults_file):
    path = defaults_file(
        "# a comment",
        "! another",
        "",
        "  log.retention.ms = 5  ",
        "log.segment.bytes:100",
        "log.roll.ms 7",
        "log.cleanup.policy=compact,\\",
        "    delete",
        "compression.type=\\u007astd",
    )
    assert load_defaults(path) == {
        "retention.ms": "5",
        "segment.bytes": "100",
        "segment.ms": "7",
        "cleanup.policy": "compact,delete",
        "compression.type": "zstd",
    }


def test_a_key_given_twice_in_the_file_is_refused(defaults_file):
    with pytest.raises(InvalidOptionError, match=r"Lines 1 and 3 set log.retention.ms in .*two different values"):
        load_defaults(defaults_file("log.retention.ms=5", "", "log.retention.ms=6"))


def test_a_file_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(InvalidOptionError, match=r"Cannot read the configuration file .*none\.properties"):
        load_defaults(tmp_path / "none.properties")


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("log.retension.ms", "Did you mean log.retention.ms?"),
        ("retention.ms", "In a defaults file it is log.retention.ms"),
        ("file.delete.delay.ms", "In a defaults file it is log.segment.delete.delay.ms"),
        ("log.cleaner.thread", "Did you mean log.cleaner.threads?"),
        ("remote.storage.enable", "It can only be set on a topic"),
    ],
)
def test_an_unknown_key_of_the_file_names_the_right_one(defaults_file, name, hint):
    with pytest.raises(InvalidOptionError, match=f"Unknown configuration key {name} in line 2") as raised:
        load_defaults(defaults_file("log.roll.ms=1", f"{name}=1"))
    assert raised.value.hint == hint


@pytest.mark.parametrize(
    "lines",
    [
        ["correct-Horse1"],
        ["correct.horse1"],
        ["correct horse battery"],
        ["=correct"],
        ["correct-Horse1="],
        ["Y29ycmVjdGhvcnNl=correct"],
        ["sasl.password=correct", "sasl.password=horse"],
    ],
)
def test_a_line_that_may_be_a_password_is_not_shown(defaults_file, lines):
    with pytest.raises(InvalidOptionError) as raised:
        load_defaults(defaults_file(*lines))
    assert not {"correct", "horse", "Horse1", "Y29"} & {*re.split("[^a-zA-Z0-9]+", str(raised.value))}
    file = str(defaults_file(*lines))
    with pytest.raises(InvalidOptionError) as raised:
        kafka_python_options(settings_of_file(file))
    assert "orrect" not in str(raised.value) and "Y29" not in str(raised.value)
