"""Commands take topics by name and by pattern, several of each, and drop nothing that they are given."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from spark_segments import LogDir
from spark_segments.errors import UnknownTopicError

TOPICS = ["orders-eu", "orders-us", "prices", "visits"]
SOME = ["orders-*", "visits"]
MEANT = ["orders-eu", "orders-us", "visits"]


@pytest.fixture
def filled(log: LogDir) -> LogDir:
    for name in TOPICS:
        log.create_topic(name)
        log.topic(name).append([{"key": "k", "value": name}])
    return log


@pytest.fixture
def kafka(filled: LogDir, tmp_path: Path) -> Path:
    """A directory as Kafka has it."""
    filled.export_kafka(str(tmp_path / "kafka"))
    return tmp_path / "kafka"


def named(words: list[str]) -> list[str]:
    return [word for name in words for word in ("--topic", name)]


def test_an_import_takes_every_topic_that_is_named(segments, run, kafka):
    log_dir = kafka.parent / "imported"
    report = segments("import", kafka, log_dir, *named(SOME), "--output", "json").json
    assert sorted(line["topic"] for line in report["partitions"]) == MEANT
    assert LogDir.open(str(log_dir)).topics() == MEANT
    ran = run("import", kafka, log_dir, *named(["prices", "nothing"]))
    assert ran.code == 1 and "nothing" in ran.error
    assert "prices" in LogDir.open(str(log_dir)).topics()
    assert run("import", kafka, log_dir, "--topic", "no*").code == 1


def test_an_export_takes_every_topic_that_is_named(segments, filled, tmp_path):
    segments("export", filled.uri, tmp_path / "out", *named(SOME))
    assert sorted(path.name[:-2] for path in (tmp_path / "out").iterdir() if path.is_dir()) == MEANT


def test_the_face_takes_a_name_a_pattern_or_several(filled, tmp_path, kafka):
    given: list[tuple[str | list[str], list[str]]] = [
        ("prices", ["prices"]),
        ("orders-*", ["orders-eu", "orders-us"]),
        (SOME, MEANT),
    ]
    for number, (topic, meant) in enumerate(given):
        log = LogDir.create(str(tmp_path / f"log-{number}"))
        log.import_kafka(str(kafka), topic)
        assert log.topics() == meant
        filled.export_kafka(str(tmp_path / f"out-{number}"), topic)
        assert LogDir.open(str(tmp_path / f"out-{number}")).topics() == meant
    for work in (log.import_kafka, filled.export_kafka):
        with pytest.raises(UnknownTopicError):
            work(str(kafka if work == log.import_kafka else tmp_path / "out"), "no*")


JOBS = [["roll"], ["retain"], ["compact"], ["vacuum"], ["maintain"], ["verify"], ["describe"]]


@pytest.mark.cases(3)
@pytest.mark.parametrize("command", JOBS, ids=" ".join)
def test_a_command_works_on_every_topic_that_is_named_and_on_no_other(segments, run, filled, command):
    for path in Path(filled.uri, "_manifest", "prices", "_delta_log").iterdir():
        path.write_text("damaged")
    assert run(*command, filled.uri, "prices").code
    segments(*command, filled.uri, *SOME)
    for names in (["nothing", "visits"], ["visits", "nothing"]):
        ran = run(*command, filled.uri, *names)
        assert ran.code == 1 and "Unknown topic 'nothing'" in ran.error


def test_offsets_are_those_of_every_topic_that_is_named(segments, filled):
    assert segments("offsets", filled.uri, *SOME).lines == [f"{name}:0:1" for name in MEANT]


def test_settings_are_altered_and_topics_deleted_together(segments, run, filled):
    segments("topic", "alter", filled.uri, *SOME, "--config", "retention.ms=7")
    assert [filled.topic(name).config.retention_ms == 7 for name in TOPICS] == [True, True, False, True]
    segments("topic", "delete", filled.uri, *SOME, "--yes")
    assert LogDir.open(filled.uri).topics() == ["prices"]
    ran = run("topic", "delete", filled.uri, "orders-*", "--yes")
    assert ran.code == 1 and "No topic matches orders-*" in ran.error


def test_a_group_is_shown_and_moved_in_every_topic_that_is_named(segments, filled):
    segments("groups", "reset", filled.uri, "audit", *SOME, "--to", "latest", "--create", "--yes")
    assert filled.group("audit").positions().offsets == {name: {0: 1} for name in MEANT}
    shown = segments("groups", "show", filled.uri, "audit", "orders-*", "--output", "json").json
    assert [row["topic"] for row in shown["positions"]] == MEANT[:2]


def test_records_are_deleted_from_every_topic_that_is_named(segments, filled):
    segments("delete-records", filled.uri, *SOME, "--before-offset", "-1", "--yes")
    starts = {name: LogDir.open(filled.uri).topic(name).offsets()[0][0] for name in TOPICS}
    assert starts == {"orders-eu": 1, "orders-us": 1, "prices": 0, "visits": 1}


def test_keys_are_erased_and_tables_kept_of_every_topic_that_is_named(segments, filled, tmp_path):
    segments("table", filled.uri, *SOME, tmp_path / "tables" / "{topic}")
    assert sorted(path.name for path in (tmp_path / "tables").iterdir()) == MEANT
    segments("erase", filled.uri, *SOME, "--key", "k", "--yes")
    left = {name: LogDir.open(filled.uri).topic(name).scan().to_table().num_rows for name in TOPICS}
    assert left == {"orders-eu": 0, "orders-us": 0, "prices": 1, "visits": 0}


TWICE = [
    ["consume", "LOG", "orders-eu", "prices"],
    ["consume", "LOG", "orders-eu", "--partition", "0", "--partition", "1"],
    ["consume", "LOG", "orders-eu", "-n", "1", "--max-messages", "2"],
    ["append", "LOG", "orders-eu", "--txn", "a:1", "--txn", "b:1"],
    ["offsets", "LOG", "orders-eu", "--time", "earliest", "--time=latest"],
    ["roll", "LOG", "--now-ms", "1", "--now-ms", "2"],
    ["table", "LOG", "orders-eu", "TABLE", "--archive", "--no-archive"],
    ["topic", "create", "LOG", "a", "b"],
    ["topic", "create", "LOG", "a", "--partitions", "1", "--partitions", "2"],
    ["export", "LOG", "OUT", "--output", "json", "--output", "text"],
]


@pytest.mark.cases(3)
@pytest.mark.parametrize("words", TWICE, ids=" ".join)
def test_an_option_of_one_value_that_is_given_twice_is_an_error(run, filled, tmp_path, words):
    places = {"LOG": filled.uri, "TABLE": str(tmp_path / "table"), "OUT": str(tmp_path / "out")}
    version = filled.topic("orders-eu").version
    ran = run(*(places.get(word, word) for word in words))
    assert ran.code == 2
    assert "given twice" in ran.error or "unexpected extra argument" in ran.error
    assert (filled.topic("orders-eu").version, filled.topics()) == (version, TOPICS)
    assert not (tmp_path / "table").exists() and not (tmp_path / "out").exists()


def test_a_flag_that_is_given_twice_is_the_flag(segments, filled):
    segments("verify", filled.uri, "--deep", "--deep")


def test_a_topic_has_one_new_name_and_one_version(run, filled):
    for words in (
        ["replay", filled.uri, "127.0.0.1:1", "--rename", "prices=a", "--rename", "prices=b"],
        ["serve", filled.uri, "--port", "0", "--version", "prices=1", "--version", "prices=0"],
    ):
        ran = run(*words)
        assert ran.code == 1 and "prices is given twice" in ran.error


def test_manifests_that_are_lost_are_rebuilt_together(segments, filled):
    for name in MEANT:
        shutil.rmtree(Path(filled.uri) / "_manifest" / name)
    segments("verify", filled.uri, *TOPICS, "--repair", "--yes")
    log = LogDir.open(filled.uri)
    assert {name: log.topic(name).scan().to_table().num_rows for name in log.topics()} == dict.fromkeys(TOPICS, 1)
