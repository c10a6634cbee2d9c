"""A topic's configuration: readings, suggestions for wrong ones, arguments and names."""

from __future__ import annotations

import pickle

import pytest

from spark_segments.config import (
    KEYS,
    check_new_topic_name,
    normal_overrides,
    parse_overrides,
    topic_config,
    validate_topic_name,
)
from spark_segments.config.values import render_value
from spark_segments.errors import InvalidOptionError


def test_values_are_typed():
    config = topic_config(
        {
            "cleanup.policy": "compact, delete",
            "retention.ms": " 1000 ",
            "min.cleanable.dirty.ratio": "1",
            "preallocate": "True",
            "message.timestamp.type": "LogAppendTime",
        }
    )
    assert config.cleanup_policy == frozenset({"compact", "delete"})
    assert (config.compact, config.delete) == (True, True)
    assert config.retention_ms == 1000
    assert (config.min_cleanable_dirty_ratio, type(config.min_cleanable_dirty_ratio)) == (1.0, float)
    assert config.preallocate is True
    assert config.message_timestamp_type == "LogAppendTime"


def test_python_values_are_read_as_kafkas_config_def_reads_java_ones():
    config = topic_config({"retention.ms": 5, "preallocate": True, "cleanup.policy": ["compact", "delete"]})
    assert (config.retention_ms, config.preallocate, config.compact, config.delete) == (5, True, True, True)
    for name, value in (("retention.ms", 5.0), ("retention.ms", True), ("preallocate", 1), ("retention.ms", None)):
        with pytest.raises(InvalidOptionError):
            topic_config({name: value})


def test_effective_values_are_written_as_kafka_writes_them():
    effective = topic_config(
        {
            "cleanup.policy": "delete,compact",
            "min.cleanable.dirty.ratio": "1",
            "preallocate": "TRUE",
            "segment.ms": "+7",
        }
    ).effective()
    assert effective["cleanup.policy"] == "compact,delete"
    assert effective["min.cleanable.dirty.ratio"] == "1.0"
    assert effective["preallocate"] == "true"
    assert effective["segment.ms"] == "7"
    assert list(effective) == sorted(KEYS)


@pytest.mark.parametrize(
    ("value", "java"),  # what Java's Double.toString gives
    [
        (0.0, "0.0"),
        (0.5, "0.5"),
        (0.001, "0.001"),
        (0.0001, "1.0E-4"),
        (0.00012345, "1.2345E-4"),
        (1234567.0, "1234567.0"),
        (10_000_000.0, "1.0E7"),
        (123_456_789.0, "1.23456789E8"),
        (-0.00025, "-2.5E-4"),
        (1.7976931348623157e308, "1.7976931348623157E308"),
    ],
)
def test_doubles_are_written_as_java_writes_them(value, java):
    assert render_value(value) == java


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("retension.ms", "Did you mean retention.ms?"),
        ("segment.byte", "Did you mean segment.bytes?"),
        ("cleanup_policy", "Did you mean cleanup.policy?"),
        ("log.retention.ms", "A topic's own setting of it is retention.ms"),
        ("log.retention.hours", "retention.ms (in milliseconds, so times 3600000)"),
        ("message.max.bytes", "max.message.bytes"),
        ("log.cleaner.threads", "it belongs into the defaults file"),
        ("message.timestamp.difference.max.ms", "message.timestamp.before.max.ms"),
    ],
)
def test_an_unknown_key_of_a_topic_names_the_right_one(name, hint):
    with pytest.raises(InvalidOptionError, match=f"Unknown configuration key {name}") as raised:
        topic_config({name: "1"})
    assert hint in raised.value.hint


def test_a_name_like_nothing_gets_no_guess():
    with pytest.raises(InvalidOptionError) as raised:
        topic_config({"xyzzy": "1"})
    assert raised.value.hint is None


@pytest.mark.parametrize(
    ("name", "text", "hint"),
    [
        ("retention.ms", "7d", "It is a plain number of milliseconds: write 604800000"),
        ("retention.ms", "2 hours", "It is a plain number of milliseconds: write 7200000"),
        ("segment.bytes", "1GiB", "It is a plain number of bytes: write 1073741824"),
        ("segment.bytes", "1.5m", "It is a plain number of bytes: write 1572864"),
        ("segment.bytes", "12 apples", None),
        ("preallocate", "1g", None),
    ],
)
def test_a_value_with_a_unit_is_told_the_plain_number(name, text, hint):
    with pytest.raises(InvalidOptionError) as raised:
        topic_config({name: text})
    assert raised.value.hint == hint


def test_compaction_lags_that_contradict_each_other_are_refused():
    with pytest.raises(InvalidOptionError, match=r"min.compaction.lag.ms is larger than max.compaction.lag.ms"):
        topic_config({"min.compaction.lag.ms": "10"}, {"max.compaction.lag.ms": "9"})
    assert topic_config({"min.compaction.lag.ms": "9", "max.compaction.lag.ms": "9"}).max_compaction_lag_ms == 9


def test_a_compacted_topic_rolls_early_enough_for_its_lag():
    assert topic_config({"segment.ms": "100", "max.compaction.lag.ms": "10"}).max_segment_ms == 100
    lagging = topic_config({"segment.ms": "100", "max.compaction.lag.ms": "10", "cleanup.policy": "compact"})
    assert lagging.max_segment_ms == 10


def test_settings_are_kept_as_plain_texts():
    overrides = {"retention.ms": 1000, "cleanup.policy": ["delete", "compact"], "preallocate": True}
    assert normal_overrides(overrides) == {
        "cleanup.policy": "compact,delete",
        "preallocate": "true",
        "retention.ms": "1000",
    }
    with pytest.raises(InvalidOptionError):
        normal_overrides({"retention.ms": "soon"})


def test_configurations_travel_and_compare():
    config = topic_config({"retention.ms": "5"}, {"segment.ms": "6"})
    again = pickle.loads(pickle.dumps(config))
    assert (again, hash(again), again.sources()) == (config, hash(config), config.sources())
    assert config != topic_config({"retention.ms": "5"})


@pytest.mark.parametrize(
    ("texts", "found"),
    [
        ([], {}),
        (["retention.ms=5"], {"retention.ms": "5"}),
        (["a=1", "b=2"], {"a": "1", "b": "2"}),
        (["a=1,b=2"], {"a": "1", "b": "2"}),
        (["cleanup.policy=compact,delete"], {"cleanup.policy": "compact,delete"}),
        (["cleanup.policy=[compact,delete],b=2"], {"cleanup.policy": "compact,delete", "b": "2"}),
        (["b=2,cleanup.policy=compact,delete,c=3"], {"b": "2", "cleanup.policy": "compact,delete", "c": "3"}),
        ([" a = 1 "], {"a": "1"}),
        (["a="], {"a": ""}),
        (["a=1", "a=1"], {"a": "1"}),
    ],
)
def test_config_arguments(texts, found):
    assert parse_overrides(texts) == found


@pytest.mark.parametrize("texts", [["retention.ms"], ["=5"], [""], ["a=1", "a=2"], ["a=1,a=2"]])
def test_wrong_config_arguments(texts):
    with pytest.raises(InvalidOptionError):
        parse_overrides(texts)


@pytest.mark.parametrize("name", ["a", "orders", "A.b_c-9", "...", "_manifest", "-", "x" * 249])
def test_names_that_kafka_takes(name):
    validate_topic_name(name)


@pytest.mark.parametrize("name", ["", ".", "..", "x" * 250, "a/b", "a b", "ü", "a\n", "a:b", "a\0"])
def test_names_that_kafka_refuses(name):
    with pytest.raises(InvalidOptionError, match="Invalid topic name"):
        validate_topic_name(name)


def test_names_that_collide_in_kafkas_metrics():
    with pytest.raises(InvalidOptionError, match="collides with the topic a_b"):
        check_new_topic_name("a.b", ["x", "a_b"])
    check_new_topic_name("a.b", ["a-b", "a.b", "a.c"])
    with pytest.raises(InvalidOptionError, match="Invalid topic name"):
        check_new_topic_name("a b", [])
