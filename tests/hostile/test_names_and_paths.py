"""No name and no path that somebody else wrote leads out of a log directory."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from pathlib import Path

import pytest

from spark_segments import LogDir
from spark_segments.errors import LogDirError, SegmentsError
from spark_segments.log.manifest.state.recovery_copy import read_recovery_copy
from spark_segments.maintenance import compact, retain, roll, vacuum, verify
from verification.rebuild.lost import TOPIC, again, append, copy, lose_manifest, new_log, rebuild_manifest
from verification.world.kafka_bytes.golden_files import golden_dir
from verification.world.manifest_rows import Change, every_row, live_rows, respell

NAMES = [
    "..",
    ".",
    "../outside",
    "../../outside",
    "/outside",
    "a/../../outside",
    "%2e%2e",
    "%2e%2e%2foutside",
    "..%2foutside",
    "a\0b",
    "..\\outside",
    "",
]
PATHS = [
    "../outside/victim.log",
    "orders-0/../../outside/victim.log",
    "/outside/victim.log",
    "file:///outside/victim.log",
    "%2e%2e/outside/victim.log",
    "..%2foutside/victim.log",
    "orders-0/a\0.log",
    "..",
]


@pytest.fixture
def place(tmp_path) -> Path:
    """A directory `log` for a log directory, beside a directory whose files nobody may read, change or add to."""
    outside = tmp_path / "outside"
    outside.mkdir()
    for suffix in ("log", "index", "timeindex", "parquet"):
        (outside / f"victim.{suffix}").write_bytes(b"SECRET" * 20)
    return tmp_path


def is_untouched(place: Path) -> bool:
    found = {str(path.relative_to(place)) for path in place.rglob("*") if not path.is_relative_to(place / "log")}
    wanted = {"outside", *(f"outside/victim.{suffix}" for suffix in ("log", "index", "timeindex", "parquet"))}
    return found == wanted and all(path.read_bytes() == b"SECRET" * 20 for path in (place / "outside").iterdir())


@pytest.mark.parametrize("name", NAMES)
def test_names_of_topics(place, name):
    log = new_log(place / "log")
    before = sorted(os.listdir(place / "log"))
    for act in (
        lambda: log.create_topic(name),
        lambda: log.topic(name).snapshot,
        lambda: log.topic(name).append([{"value": b"x"}]),
        lambda: log.topic(name).alter({"retention.ms": "1"}),
        lambda: log.delete_topic(name),
        lambda: log.delete_topic(name, force=True),
        lambda: log.topic(name).history(),
        lambda: list(log.topic(name).scan().batches()),
        lambda: rebuild_manifest(log, name),
        lambda: _raised(vacuum(log, topics=[name]).to_dict()["partitions"]),
        lambda: _raised(log.topic(name).verify().findings),
        lambda: log.export_kafka(str(place / "log" / "exported"), name),
        lambda: log.group("audit").reset({name: {0: 0}}),
    ):
        with pytest.raises((SegmentsError, FileNotFoundError)):
            act()
    assert is_untouched(place)
    shutil.rmtree(place / "log" / "exported", ignore_errors=True)
    assert sorted(os.listdir(place / "log")) == before


def _raised(faults: list) -> None:
    """Jobs report what a topic's error is, and go on with other topics."""
    assert faults
    raise SegmentsError(str(faults))


@pytest.mark.cases(4)
@pytest.mark.parametrize("path", PATHS)
def test_paths_of_rows(place, path):
    """No commit takes them. Rows that another program wrote, or that are damaged, may have them all the same."""
    log = new_log(place / "log", partitions=1)
    append(log, 0)
    [row] = live_rows(log, TOPIC)

    def add(path: str, gone_path: str) -> None:
        added = dataclasses.replace(row, path=path, base_offset=10, next_offset=20, created_ms=row.created_ms + 1)
        gone = dataclasses.replace(added, path=gone_path, state="removed", removed_ms=5)
        partition = dataclasses.replace(log.topic(TOPIC).snapshot.partition(0), log_end_offset=20)
        log.topic(TOPIC).manifest.commit(lambda _: Change("append", add=[added, gone], partitions=[partition]))

    added, gone = (row.path.replace(".log", f"{name}.log") for name in ("added", "gone"))
    hostile = {added: path, gone: f"{path}.x.log"}
    for one, other in ((hostile[added], gone), (added, hostile[gone])):
        with pytest.raises(SegmentsError, match="does not lie where its name says"):
            add(one, other)
    add(added, gone)
    respell(log, TOPIC, lambda path: hostile.get(path, path))
    log = again(log)
    with pytest.raises((SegmentsError, FileNotFoundError)):
        list(log.topic(TOPIC).scan().batches())
    assert verify(log, topics=[TOPIC], deep=True).errors
    later_ms = log.storage.now_ms() + 10**11
    for job in (roll, retain, compact, vacuum):
        try:
            report = job(log, topics=[TOPIC], now_ms=later_ms).to_dict()
        except SegmentsError:
            continue
        assert all("Traceback" not in line.get("error", "") for line in report["partitions"])
    assert is_untouched(place)


@pytest.mark.parametrize("path", [one.replace(".log", ".parquet") for one in PATHS])
def test_paths_in_commits(place, path):
    """A file of rows outside would be read as rows of the topic."""
    log = new_log(place / "log", partitions=1)
    append(log, 0)
    [rows] = [file for file in log.topic(TOPIC).manifest.log.state().files if file.kind == "segment"]
    shutil.copy(place / "log" / "_manifest" / TOPIC / rows.path, place / "outside" / "victim.parquet")
    commit = place / "log" / "_manifest" / TOPIC / "_delta_log" / f"{1:020d}.json"
    content = commit.read_text()
    assert rows.path in content or rows.path.replace("=", "%3D") in content
    lines = [json.loads(line) for line in content.splitlines()]
    for line in lines:
        if "add" in line and line["add"]["partitionValues"]["kind"] == "segment":
            line["add"]["path"] = path.replace("/outside", f"{place}/outside") if path[0] in "/f" else f"../../{path}"
    commit.write_text("\n".join(map(json.dumps, lines)))
    log = again(log)
    with pytest.raises(SegmentsError):
        list(log.topic(TOPIC).scan().batches())
    assert "SECRET" not in str(log.topic(TOPIC).manifest.history())


@pytest.mark.parametrize("path", PATHS)
def test_paths_in_recovery_copies(place, path):
    log = new_log(place / "log", partitions=1)
    append(log, 0)
    version = copy(log)
    index = place / "log" / "_recovery" / TOPIC / f"{version:020d}.json"
    content = json.loads(index.read_text())
    for file in content["files"]:
        file["path"] = path
    index.write_text(json.dumps(content))
    lose_manifest(log)
    log = again(log)
    with pytest.raises(LogDirError, match="no recovery copy"):
        read_recovery_copy(log.storage, TOPIC)
    with pytest.raises(LogDirError, match="no recovery copy"):
        rebuild_manifest(log, TOPIC)
    assert is_untouched(place)


@pytest.mark.parametrize("directory", ["..-0", ".-0", "...-0", "-0", "orders-99999999999", "orders-٣", "a%2e-0"])
def test_names_of_imported_directories(place, directory):
    kafka = place / "log" / "kafka"
    shutil.copytree(golden_dir("plain-0"), kafka / directory)
    log = LogDir.create(str(place / "log" / "made"))
    before = {path.name for path in (place / "log").iterdir()}
    try:
        log.import_kafka(str(kafka))
    except SegmentsError:
        assert log.topics() == []
    assert is_untouched(place)
    assert {path.name for path in (place / "log").iterdir()} == before
    assert {path.name for path in (place / "log" / "made").iterdir()} <= {"_manifest", "_recovery", "...-0"}


@pytest.mark.parametrize("linked", ["partition", "log", "checkpoint", "metadata"])
def test_links_in_imported_directories(place, linked):
    """A link in a directory that somebody else packed would bring files of this machine into a topic."""
    kafka = place / "log" / "kafka"
    secret = place / "log" / "elsewhere"
    shutil.copytree(golden_dir("plain-0"), secret / "plain-0")
    if linked == "partition":
        kafka.mkdir()
        (kafka / "plain-0").symlink_to(secret / "plain-0")
    else:
        shutil.copytree(golden_dir("plain-0"), kafka / "plain-0")
        name = {"log": f"{690:020d}.log", "checkpoint": "leader-epoch-checkpoint", "metadata": "partition.metadata"}
        (kafka / "plain-0" / name[linked]).unlink()
        (kafka / "plain-0" / name[linked]).symlink_to(secret / "plain-0" / name[linked])
    log = LogDir.create(str(place / "log" / "made"))
    with pytest.raises(LogDirError, match="link that leads out"):
        log.import_kafka(str(kafka))
    assert log.topics() == []


def test_links_within_an_imported_directory_are_followed(place):
    kafka = place / "log" / "kafka"
    shutil.copytree(golden_dir("plain-0"), kafka / "disk" / "plain-0")
    (kafka / "plain-0").symlink_to(kafka / "disk" / "plain-0")
    above = place / "log" / "above"
    above.symlink_to(kafka)
    log = LogDir.create(str(place / "log" / "made"))
    log.import_kafka(str(above))
    assert log.topic("plain").offsets() == {0: (0, 5000)}


@pytest.mark.parametrize("topic", ["../../outside", "/outside", "..", "%2e%2e", "a\0b"])
def test_topics_named_by_checkpoints(place, topic):
    """A checkpoint names topics, too; only those that are there as directories matter."""
    kafka = place / "log" / "kafka"
    shutil.copytree(golden_dir("plain-0"), kafka / "plain-0")
    (kafka / "log-start-offset-checkpoint").write_text(f"0\n2\n{topic} 0 700\nplain 0 690\n")
    log = LogDir.create(str(place / "log" / "made"))
    log.import_kafka(str(kafka))
    assert log.topics() == ["plain"]
    assert is_untouched(place)


def test_rows_of_a_manifest_are_no_others_topics(place):
    """A row may name a file of another topic of the log directory: verify says so, and vacuum does not delete it."""
    log = new_log(place / "log", partitions=1)
    log.create_topic("other")
    log.topic("other").append([{"value": b"x", "partition": 0}])
    [victim] = log.topic("other").snapshot.live_of(0)
    append(log, 0)
    [row] = live_rows(log, TOPIC)
    gone = dataclasses.replace(row, path=row.path.replace(".log", "gone.log"), state="removed", removed_ms=5)
    log.topic(TOPIC).manifest.commit(lambda _: Change("append", add=[gone]))
    respell(log, TOPIC, lambda path: victim.path if path == gone.path else path)
    log = again(log)
    assert victim.path in {row.path for row in every_row(log, TOPIC)}
    vacuum(log, now_ms=log.storage.now_ms() + 10**11)
    assert (place / "log" / victim.path).exists()
