"""Words of Kafka's tools and of kcat are understood, or answered with what does it here; and what a shell completes."""

from __future__ import annotations

import pytest

from spark_segments import LogDir
from tests.golden_files import GOLDEN


@pytest.fixture
def uri(log: LogDir) -> str:
    log.create_topic("orders", 2, {"cleanup.policy": "compact"})
    log.create_topic("prices")
    log.topic("orders").append([{"key": b"k", "value": b"%d" % number, "partition": number % 2} for number in range(6)])
    log.group("billing").commit(log.group("billing").positions(), {"orders": {0: 1, 1: 2}})
    return log.uri


@pytest.mark.parametrize(
    ("typed", "ours"),
    [
        (["consume", "URI", "--topic", "orders", "--max-messages", "2"], ["consume", "URI", "orders", "-n", "2"]),
        (
            ["consume", "-C", "-t", "orders", "-e", "-q", "-p", "1", "URI"],
            ["consume", "URI", "orders", "--partition=1"],
        ),
        (["consume", "--topic=orders", "-o", "-2", "URI"], ["consume", "URI", "orders", "-o", "-2"]),
        (["describe", "URI", "--topic", "orders"], ["describe", "URI", "orders"]),
        (["topic", "--list", "URI"], ["topic", "list", "URI"]),
        (["offsets", "URI", "--topic", "orders", "--time", "-2"], ["offsets", "URI", "orders", "--time", "earliest"]),
        (["groups", "--describe", "--group", "billing", "URI"], ["groups", "show", "URI", "billing"]),
        (["groups", "show", "URI", "--topic", "orders", "--group", "billing"], ["groups", "show", "URI", "billing"]),
    ],
)
def test_words_of_other_tools_do_the_same(segments, uri, typed, ours):
    of = [[uri if word == "URI" else word for word in words] for words in (typed, ours)]
    assert segments(*of[0]).output == segments(*of[1]).output != b""


def test_a_topic_is_made_and_altered_by_kafkas_words(segments, uri):
    made = segments("topic", "--create", uri, "--topic", "new", "--partitions", 3, "--replication-factor", 2)
    assert made.lines == ["Created topic new."] and "--replication-factor has no effect" in made.error
    segments("topic", "--alter", uri, "--entity-name", "new", "--add-config", "retention.ms=5,segment.ms=7")
    log = LogDir.open(uri)
    assert len(log.topic("new").offsets()) == 3
    assert log.topic("new").snapshot.config == {"retention.ms": "5", "segment.ms": "7"}


def test_an_addition_of_partitions_warns_as_kafka_topics_where_records_have_keys(segments, uri):
    for name, row in (("keyed", {"key": "a", "value": "1"}), ("plain", {"value": "1"})):
        segments("topic", "create", uri, name)
        LogDir.open(uri).topic(name).append([row])
        ran = segments("topic", "alter", uri, name, "--partitions", 3)
        assert ("If partitions are increased for a topic that has a key" in ran.error) == (name == "keyed")
        assert segments("topic", "alter", uri, name, "--partitions", 3).error == ""


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (["--list"], "segments topic list does it"),
        (["topic", "--describe"], "segments describe does it"),
        (["consumer-groups"], "segments groups does it"),
        (["kafka-topics.sh", "--list"], "There is no kafka-topics.sh here: segments topic does it"),
        (["kafka-delete-records"], "segments delete-records does it"),
        (["restore"], "segments topic restore does it"),
        (["log-dirs"], "segments topic list --output wide does it"),
        (["consume", "--bootstrap-server", "host:9092", "--topic", "t"], "LOG_DIR, the first argument, stands in its"),
        (["groups", "reset", "log", "g", "t", "--to-earliest"], "--to earliest does it"),
        (["topic", "delete", "log", "--topic"], "requires an argument"),
    ],
)
def test_what_is_not_understood_is_answered(run, words, answer):
    ran = run(*words)
    said = " ".join(ran.error.replace("│", " ").split())
    assert ran.code == 2 and answer in said


def test_dump_takes_kafkas_files(segments):
    files = [str(one) for one in sorted(GOLDEN.glob("broker-data/*/*.log"))[:2]]
    assert segments("dump", "--files", ",".join(files)).output == segments("dump", *files).output != b""


def test_sizes_are_summed_up_by_topic(segments, uri):
    ran = segments("topic", "list", uri, "--output", "wide")
    size = sum(one["log_bytes"] for one in LogDir.open(uri).topic("orders").snapshot.live.to_pylist())
    assert [line.split("\t") for line in ran.lines[1:]] == [
        ["orders", "2", "2", "6", str(size)],
        ["prices", "1", "0", "0", "0"],
    ]


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("segments consume URI o", {"orders"}),
        ("segments consume URI ", {"orders", "prices"}),
        ("segments retain URI --topic ", {"orders", "prices"}),
        ("segments groups show URI ", {"billing"}),
        ("segments consume URI orders --group ", {"billing"}),
        ("segments topic alter URI orders --config retention.m", {"retention.ms="}),
        ("segments topic alter URI orders --delete-config retention.b", {"retention.bytes"}),
        ("segments consume nowhere o", set()),
    ],
)
def test_the_shell_completes(run, uri, monkeypatch, line, offered):
    words = line.replace("URI", uri)
    monkeypatch.setenv("_SEGMENTS_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(len(words.split(" ")) - 1))
    assert set(run().lines) - {""} == offered
