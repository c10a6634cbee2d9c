"""Words of Kafka's tools and of kcat are answered with what does it here; and what a shell completes."""

from __future__ import annotations

import pytest

from spark_segments import LogDir


@pytest.fixture
def uri(log: LogDir) -> str:
    log.create_topic("orders", 2, {"cleanup.policy": "compact"})
    log.create_topic("prices")
    log.topic("orders").append([{"key": b"k", "value": b"%d" % number, "partition": number % 2} for number in range(6)])
    log.group("billing").commit(log.group("billing").positions(), {"orders": {0: 1, 1: 2}})
    return log.uri


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
        (["topic", "--list", "log"], "segments topic list does it"),
        (["groups", "--describe", "--group", "g", "log"], "segments groups show does it"),
        (["consume", "log", "--topic", "orders"], "TOPIC, an argument, stands in its place"),
        (["consume", "-C", "-t", "orders", "log"], "There is no -C here: segments consume does it"),
        (["consume", "--topic=orders", "log"], "TOPIC, an argument, stands in its place"),
        (["consume", "log", "orders", "-p", "1"], "segments consume --partition does it"),
        (["groups", "show", "log", "--group", "g"], "GROUP, an argument, stands in its place"),
        (["dump", "--files", "a.log"], "FILES, an argument, stands in its place"),
        (["topic", "create", "log", "new", "--replication-factor", "2"], "without replicas"),
        (["topic", "alter", "log", "new", "--add-config", "retention.ms=5"], "--config does it"),
        (["append", "log", "orders", "-l", "records.txt"], "segments append --input does it"),
    ],
)
def test_a_word_of_another_tool_is_answered_with_what_does_it(run, words, answer):
    ran = run(*words)
    said = " ".join(ran.error.replace("│", " ").split())
    assert ran.code == 2 and answer in said


def test_the_value_of_an_option_is_no_word_of_another_tool(segments, uri):
    assert segments("consume", uri, "orders", "--template", "-C", "-n", "1").output == b"-C"


def test_an_addition_of_partitions_warns_as_kafka_topics_where_records_have_keys(segments, uri):
    for name, row in (("keyed", {"key": "a", "value": "1"}), ("plain", {"value": "1"})):
        segments("topic", "create", uri, name)
        LogDir.open(uri).topic(name).append([row])
        ran = segments("topic", "alter", uri, name, "--partitions", 3)
        assert ("If partitions are increased for a topic that has a key" in ran.error) == (name == "keyed")
        assert segments("topic", "alter", uri, name, "--partitions", 3).error == ""


def test_sizes_are_summed_up_by_topic(segments, uri):
    ran = segments("topic", "list", uri, "--output", "wide")
    size = sum(one["log_bytes"] for one in LogDir.open(uri).topic("orders").snapshot.live.to_pylist())
    assert [line.split("\t") for line in ran.lines[1:]] == [
        ["orders", "2", "2", "6", str(size), "0"],
        ["prices", "1", "0", "0", "0", "0"],
    ]


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("segments consume URI o", {"orders"}),
        ("segments consume URI ", {"orders", "prices"}),
        ("segments retain URI ", {"orders", "prices"}),
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
