from __future__ import annotations

import json
import shutil
import time

import pytest

from spark_segments import LogDir
from spark_segments.cli.interrupts import commits_told
from verification.world.kafka_bytes.golden_files import (
    GOLDEN,
    damaged_dir,
    expected_batches,
    expected_records,
    golden_dir,
    text,
)
from verification.world.manifest_rows import Segment

SUFFIXES = (".log", ".index", ".timeindex", ".snapshot", ".txnindex")


def dump_files(name: str) -> list[str]:
    """The files of a directory as Kafka's tool was given them, relative to the directory that holds it."""
    directory = golden_dir(name)
    return [f"{directory.name}/{path.name}" for path in sorted(directory.iterdir()) if path.suffix in SUFFIXES]


@pytest.mark.parametrize("name", ["plain-0", "txn-0", "legacy-v1-0", "broker-data/orders-0"])
def test_dump_is_that_of_kafkas_tool(segments, monkeypatch, name):
    monkeypatch.chdir(golden_dir(name).parent)
    ran = segments("dump", "--deep-iteration", "--print-data-log", *dump_files(name))
    assert ran.text == text(name, "dump.txt")


def test_dump_of_a_directory_is_that_of_its_files(segments, monkeypatch):
    monkeypatch.chdir(GOLDEN)
    assert segments("dump", "--print-data-log", "txn-0/").text == text("txn-0", "dump.txt")


def test_dump_of_a_directory_counts_several_empty_indexes_in_one_line(segments, tmp_path):
    partition = tmp_path / "plain-0"
    shutil.copytree(golden_dir("plain-0"), partition)
    whole = segments("dump", partition).lines
    first = max(int(path.stem) for path in partition.glob("*.log")) + 1_000_000
    indexes = [partition / f"{first + number:020}.index" for number in range(7)]
    for index in indexes:
        index.touch()
        index.with_suffix(".log").touch()
    (partition / "notes.txt").touch()
    logs = [f"Dumping {index.with_suffix('.log')}" for index in indexes]
    assert [line for line in segments("dump", partition).lines if "Log starting offset" not in line] == [
        *[line for line in whole if "Log starting offset" not in line],
        *logs,
        "7 indexes are empty.",
    ]
    assert f"{indexes[0]} is empty." in segments("dump", *indexes).lines
    kinds = [json.loads(line)["kind"] for line in segments("dump", "--output", "json", partition).lines]
    assert kinds.count("empty") == 7


def test_dump_without_deep_iteration_shows_batches_only(segments):
    logs = sorted(golden_dir("zstd-0").glob("*.log"))
    lines = segments("dump", *logs).lines
    assert not [line for line in lines if line.startswith("|")]
    assert len([line for line in lines if line.startswith("baseOffset")]) == len(expected_batches("zstd-0"))
    assert [line for line in lines if line.startswith("Dumping")] == [f"Dumping {log}" for log in logs]


def test_dump_without_print_data_log_shows_no_keys_and_values(segments):
    lines = segments("dump", "--deep-iteration", *golden_dir("zstd-0").glob("*.log")).lines
    records = [line for line in lines if line.startswith("|")]
    assert len(records) == len(expected_records("zstd-0"))
    assert not [line for line in records if "payload:" in line]


def test_dump_as_json_has_an_entry_a_line(segments):
    files = sorted(golden_dir("zstd-0").glob("*.log"))
    entries = [json.loads(line) for line in segments("dump", "--print-data-log", "--output", "json", *files).lines]
    records = [entry for entry in entries if entry["kind"] == "record"]
    expected = expected_records("zstd-0")
    assert [(one["offset"], one["key"], one["value"]) for one in records] == [
        (one["offset"], one["key"], one["value"]) for one in expected
    ]


@pytest.mark.parametrize("damage", ["flipped-byte", "torn-header", "torn-tail", "zero-tail"])
def test_dump_of_a_damaged_log_goes_on_and_is_exit_code_3(run, tmp_path, damage):
    logs = sorted(damaged_dir(damage, tmp_path).glob("*.log"))
    ran = run("dump", "--deep-iteration", *logs)
    assert len([line for line in ran.lines if line.startswith("Dumping")]) == len(logs)
    assert ran.code == 3 or damage != "flipped-byte"


def test_an_interrupt_says_what_was_committed(log, capsys):
    log.create_topic("orders")
    (created,) = log.topic("orders").history()
    while time.time_ns() // 1_000_000 == created["committed_ms"]:
        pass  # commits are told by the millisecond
    with pytest.raises(SystemExit) as ended, commits_told(log):
        log.import_kafka(str(GOLDEN / "plain-0"))
        raise KeyboardInterrupt
    assert ended.value.code == 130
    said = capsys.readouterr().err.splitlines()
    assert said[0].startswith("Interrupted. What is committed stays")
    assert said[1:] == [
        "plain: version 0, create, 0 records in, 0 out",
        "plain: version 1, import, 5,000 records in, 0 out",
    ]
    with pytest.raises(SystemExit), commits_told(log):
        raise KeyboardInterrupt
    assert "nothing was committed" in capsys.readouterr().err


def test_verify_of_a_good_log_is_exit_code_0(segments, tmp_path):
    uri = tmp_path / "log"
    segments("topic", "create", uri, "orders")
    segments("append", uri, "orders", stdin=b"a\n")
    for log_dir in (uri, GOLDEN / "broker-data"):
        assert "no faults" in segments("verify", log_dir, "--deep").lines[-1]
        report = segments("verify", log_dir, "orders", "--output", "json").json
        assert (report["ok"], report["findings"], report["topics"]) == (True, [], ["orders"])


def test_verify_names_the_place_of_a_fault_and_is_exit_code_3(run, segments, tmp_path):
    uri = tmp_path / "log"
    segments("topic", "create", uri, "orders")
    segments("append", uri, "orders", stdin=b"a\nb\nc\n")
    log_file = next((uri / "orders-0").glob("*.log"))
    content = bytearray(log_file.read_bytes())
    content[-1] ^= 1
    log_file.write_bytes(content)
    assert run("verify", uri).code == 0
    ran = run("verify", uri, "orders", "--deep")
    assert ran.code == 3
    assert f"orders-0/{log_file.name} at position 0" in ran.text
    report = run("verify", uri, "orders", "--deep", "--output", "json")
    assert report.code == 3
    assert [(one["path"], one["byte_position"]) for one in report.json["findings"]] == [
        (f"orders-0/{log_file.name}", 0)
    ]


def test_verify_repairs_a_sidecar(run, segments, tmp_path):
    uri = tmp_path / "log"
    segments("topic", "create", uri, "orders")
    segments("append", uri, "orders", "--batch-size", 100, stdin=b"0123456789\n" * 5000)
    index = next((uri / "orders-0").glob("*.index"))
    index.write_bytes(b"\0\0\0\1" * (index.stat().st_size // 4))
    assert run("verify", uri, "--deep").code == 3
    ran = segments("verify", uri, "--repair")
    assert "repaired: orders-0: " in ran.text
    assert "no faults" in segments("verify", uri, "--deep").text


def test_verify_repairs_the_index_of_a_run_of_a_shared_object(run, segments, tmp_path):
    uri = tmp_path / "log"
    segments("topic", "create", uri, "orders", "--partitions", 8, "--config", "index.interval.bytes=100")
    lines = "".join(f'{{"value": "{number}", "partition": {number % 8}}}\n' for number in range(800))
    segments("append", uri, "orders", "--format", "json", "--batch-size", 200, stdin=lines.encode())
    row = Segment.of_table(LogDir.open(str(uri)).topic("orders").snapshot.live)[3]
    assert row.is_shared and row.index_bytes > 8
    with (uri / row.path).open("r+b") as file:
        file.seek(row.index_position + 8)
        file.write(b"\0\0\0\1" * 2)
    assert run("verify", uri, "--deep").code == 3
    assert "repaired: orders-3: " in segments("verify", uri, "--repair").text


def test_import_makes_the_log_directory_and_says_that_nothing_expires(segments, tmp_path):
    ran = segments("import", GOLDEN / "broker-data", tmp_path / "log", "--topic", "orders")
    assert "retention.ms=-1 is set on orders" in ran.error
    log = LogDir.open(str(tmp_path / "log"))
    assert log.topics() == ["orders"]
    assert log.topic("orders").offsets() == {0: (500, 1590), 1: (0, 1410)}
    assert log.topic("orders").snapshot.config == {"retention.ms": "-1", "segment.bytes": "65536"}


def test_what_replicas_have_is_imported_with_a_list_to_verify_it_by(segments, tmp_path):
    uri, listed = tmp_path / "log", tmp_path / "list"
    segments("import", GOLDEN / "broker-data", uri, "--replicated", "--topic", "orde*", "--checksums", listed)
    assert segments("topic", "list", uri).lines == ["orders"]
    segments("verify", uri, "--against", listed)


def test_import_with_a_retention_says_nothing(segments, tmp_path):
    ran = segments(
        "import", GOLDEN / "broker-data", tmp_path / "log", "--config", "retention.ms=1000,segment.bytes=65536"
    )
    assert "retention.ms=-1" not in ran.text
    assert LogDir.open(str(tmp_path / "log")).topic("orders").config.retention_ms == 1000


def test_import_again_adds_nothing(segments, tmp_path):
    first = segments("import", GOLDEN / "plain-0", tmp_path / "log", "--output", "json").json["partitions"]
    again = segments("import", GOLDEN / "plain-0", tmp_path / "log", "--output", "json").json["partitions"]
    assert [(one["topic"], one["segments"], one["records_in"]) for one in first] == [("plain", 8, 5000)]
    assert [(one["topic"], one["segments"], one["records_in"]) for one in again] == [("plain", 0, 0)]
    assert "retention.ms" not in segments("import", GOLDEN / "plain-0", tmp_path / "log").text


def test_import_stops_at_damage_unless_it_is_to_recover_as_kafka_does(run, segments, tmp_path):
    source = damaged_dir("flipped-byte", tmp_path)
    ran = run("import", source, tmp_path / "log")
    assert ran.code == 1
    assert "position 31654" in ran.error
    segments("import", source, tmp_path / "log", "--recovery", "kafka")
    assert LogDir.open(str(tmp_path / "log")).topic("plain").offsets() == {0: (0, 3116)}


def test_export_says_how_to_serve_it(run, segments, tmp_path):
    segments("import", GOLDEN / "plain-0", tmp_path / "log")
    ran = segments("export", tmp_path / "log", tmp_path / "out")
    assert "log.dirs" in ran.error
    assert "meta.properties" in ran.error
    assert run("export", tmp_path / "log", tmp_path / "out").code == 1
    shutil.rmtree(tmp_path / "out" / "plain-0")
    report = segments("export", tmp_path / "log", tmp_path / "out", "--topic", "plain", "--output", "json").json
    assert [(one["topic"], one["records_in"]) for one in report["partitions"]] == [("plain", 5000)]


DESCRIBED = """\
Topic: orders\tTopicId: AAAAAAAAAAAAAAAAAAAAAQ\tPartitionCount: 2\tReplicationFactor: 1\tConfigs: retention.ms=-1
\tTopic: orders\tPartition: 0\tLeader: 1\tReplicas: 1\tIsr: 1\tElr: \tLastKnownElr: 
\tTopic: orders\tPartition: 1\tLeader: 1\tReplicas: 1\tIsr: 1\tElr: \tLastKnownElr: 
Topic: prices\tTopicId: AAAAAAAAAAAAAAAAAAAAAg\tPartitionCount: 1\tReplicationFactor: 1\tConfigs: 
"""


def test_an_export_takes_the_ids_that_kafka_topics_prints(segments, run, log, tmp_path):
    log.create_topic("orders", partitions=2)
    log.topic("orders").append([{"value": "a", "partition": 1}])
    file = tmp_path / "topics.txt"
    file.write_text(DESCRIBED)
    ran = segments("export", log.uri, tmp_path / "out", "--topic", "orders", "--topic-ids", file)
    assert (tmp_path / "out/orders-1/partition.metadata").read_text().endswith("AAAAAAAAAAAAAAAAAAAAAQ")
    assert "all batches have leader epoch 0" in ran.error
    log.topic("orders").alter({}, 3)
    ran = run("export", log.uri, tmp_path / "other", "--topic-ids", file)
    assert ran.code == 1 and "another number of partitions" in ran.error and not (tmp_path / "other").exists()
    file.write_text("orders 2")
    ran = run("export", log.uri, tmp_path / "other", "--topic-ids", file)
    assert ran.code == 1 and "names no topic with its id" in ran.error


def test_a_directory_that_is_not_there_is_no_import_of_nothing(run, tmp_path):
    for more in ((), ("--replicated",), ("--topic", "orders")):
        ran = run("import", tmp_path / "kafak", tmp_path / "log", *more)
        assert ran.code == 1
        assert "There is no such directory" in ran.error


def test_an_import_that_leaves_positions_of_groups_out_is_exit_code_1(run, tmp_path):
    broker, uri = tmp_path / "broker", str(tmp_path / "log")
    shutil.copytree(GOLDEN / "broker-data", broker)
    shutil.rmtree(broker / "orders-1")
    ran = run("import", str(broker), uri, "--groups", "g1")
    assert (ran.code, LogDir.open(uri).group("g1").positions().offsets["orders"]) == (1, {0: 1590})
    assert "group g1: its positions in orders-1 are not imported" in ran.text + ran.error
    assert run("import", str(GOLDEN / "broker-data"), uri, "--groups", "g1").code == 0
