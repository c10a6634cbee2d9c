"""Configuration against what Kafka 4.0 documents: names, defaults, limits, synonyms, readings, and who wins."""

from __future__ import annotations

import pickle
import re
from pathlib import Path

import pytest

from spark_segments.config import (
    KEYS,
    SERVER_KEYS,
    ServerConfig,
    TopicConfig,
    check_new_topic_name,
    load_defaults,
    normal_overrides,
    parse_overrides,
    server_config,
    topic_config,
    validate_topic_name,
)
from spark_segments.config.values import render_value
from spark_segments.errors import InvalidOptionError

LONG_MAX = "9223372036854775807"
CONF = Path(__file__).resolve().parents[1] / "conf"

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


@pytest.fixture
def defaults_file(tmp_path):
    def write(*lines: str) -> Path:
        path = tmp_path / "segments.properties"
        path.write_text("\n".join(lines), encoding="utf-8")
        return path

    return write


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
    with pytest.raises(InvalidOptionError, match=r"Lines 1 and 3 set log.retention.ms in .*'5' and '6'"):
        load_defaults(defaults_file("log.retention.ms=5", "", "log.retention.ms=6"))


def test_a_file_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(InvalidOptionError, match=r"Cannot read the configuration file .*none\.properties"):
        load_defaults(tmp_path / "none.properties")


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


# conf/

PROPERTIES = (CONF / "segments.properties").read_text(encoding="utf-8")
SHOWN = re.findall(r"^#([a-z0-9.]+)=(.*)$", PROPERTIES, re.MULTILINE)


def test_the_shipped_file_sets_nothing():
    assert load_defaults(CONF / "segments.properties") == {}


def test_the_shipped_file_shows_every_key_once():
    names = [synonym.name for setting in KEYS.values() for synonym in setting.server] + list(SERVER_KEYS)
    assert sorted(name for name, _ in SHOWN) == sorted(names)
    topic_only = [name for name, setting in KEYS.items() if not setting.server]
    assert all(name in PROPERTIES for name in topic_only)


@pytest.mark.parametrize(("name", "value"), SHOWN)
def test_each_shown_default_is_the_default(defaults_file, name, value):
    found = load_defaults(defaults_file(f"{name}={value}"))
    assert len(found) == 1
    assert topic_config({}, found) == TopicConfig()
    assert server_config({}, found) == ServerConfig()


def test_the_shipped_file_says_what_each_key_means():
    blocks = [" ".join(re.findall(r"^# (.*)$", block, re.MULTILINE)) for block in PROPERTIES.split("\n\n")]
    for setting in (*KEYS.values(), *SERVER_KEYS.values()):
        if setting.server or setting.name in SERVER_KEYS:
            assert any(block.startswith(f"{setting.doc}. ") for block in blocks), setting.name


def test_sparks_files_are_well_formed():
    lines = [line for line in (CONF / "spark-defaults.conf").read_text().splitlines() if line and line[0] != "#"]
    assert lines
    assert all(re.fullmatch(r"spark\.[\w.]+ +\S+", line) for line in lines)
    loggers = dict(re.findall(r"^logger\.(\w+)\.(name|level) ", (CONF / "log4j2.properties").read_text(), re.MULTILINE))
    assert set(loggers.values()) == {"level"}  # each named logger has its level, after its name
