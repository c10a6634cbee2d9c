"""`segments doctor` against real stores, Pythons and Javas, good and bad."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from spark_segments.cli.doctor.environment import _is_within, spark_versions
from spark_segments.cli.doctor.store import latest_state, store
from spark_segments.storage import Storage
from verification.world.kafka_bytes.golden_files import GOLDEN
from verification.world.stores.played_files import PlayedFiles
from verification.world.stores.store_proxy import store_proxy


def checks(ran) -> dict[str, dict]:
    return {check["check"]: check for check in ran.json["checks"]}


@pytest.fixture
def our_python(monkeypatch):
    """A worker's Python that has the package, and a JAVA_HOME as it is."""
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)


def test_all_is_well_with_a_log_directory_and_nothing_stays_behind(segments, tmp_path, our_python):
    segments("topic", "create", tmp_path / "log", "orders")
    before = sorted(tmp_path.rglob("*"))

    ran = segments("doctor", tmp_path / "log", "--output", "json")

    found = checks(ran)
    assert ran.json["ok"]
    assert set(found) >= {"versions", "kernels", "worker python", "storage", "conditional writes", "clock"}
    assert found["storage"]["found"].endswith("is a log directory with 1 topics, deleted ones included")
    assert {found[name]["status"] for name in ("storage", "conditional writes", "clock", "kernels")} == {"ok"}
    assert found["worker python"]["status"] == "ok"
    assert sorted(tmp_path.rglob("*")) == before


def test_a_python_without_the_package_is_named_with_what_spark_will_say(run, tmp_path, monkeypatch):
    python = tmp_path / "python3"
    python.write_text("#!/bin/sh\necho 'ModuleNotFoundError: No module named pyspark_segments' >&2\nexit 1\n")
    python.chmod(0o755)
    monkeypatch.setenv("PYSPARK_PYTHON", str(python))

    ran = run("doctor", "--output", "json")

    assert ran.code == 3 and not ran.json["ok"]
    found = checks(ran)["worker python"]
    assert found["status"] == "failed"
    assert str(python) in found["found"] and "DATA_SOURCE_NOT_FOUND" in found["found"]
    assert found["hint"] == f"export PYSPARK_PYTHON={sys.executable}"


def test_without_java_the_hint_names_the_commands(run, tmp_path, monkeypatch, our_python):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    found = checks(run("doctor", "--output", "json"))["java"]
    assert found["status"] in ("failed", "warning") and "no Java" in found["found"]
    assert "segments doctor --path java" in found["hint"]


def test_a_cluster_of_another_spark_is_named_with_both_versions():
    assert spark_versions("4.3.0", {"4.3.0"}).status == "ok"
    check = spark_versions("4.2.0", {"4.3.0"})
    assert check.status == "failed" and "driver 4.2.0, executors 4.3.0" in check.found
    assert check.hint is not None and "pyspark==4.3.0" in check.hint


@pytest.mark.proof
def test_a_directory_of_kafka_is_only_read(segments, our_python):
    found = checks(segments("doctor", GOLDEN / "broker-data", "--output", "json"))
    assert found["conditional writes"]["status"] == "skipped" and "clock" not in found


@pytest.mark.proof
def test_a_location_that_cannot_be_written_fails(run, tmp_path, our_python):
    (tmp_path / "file").write_text("not a directory")
    ran = run("doctor", tmp_path / "file" / "log", "--output", "json")
    assert ran.code == 3
    assert "failed" in {check["status"] for check in ran.json["checks"]}


def test_a_location_that_can_only_be_read_keeps_its_other_checks(log):
    (Path(log.uri) / "_doctor").write_text("where the probes are to be written")
    found = {check.check: check.status for check in store(log.storage)}
    assert found == {"storage": "ok", "conditional writes": "failed", "clock": "skipped"}


def stale(call: str, of: str):
    """Files whose `call` for a path with `of` in it answers once more what it answered the first time."""
    answers: list = []

    def answered(path, go):
        if of in path:
            answers.append(None)
            if len(answers) > 1:
                return answers[0]
            answers[0] = go()
            return answers[0]
        return go()

    return PlayedFiles(**{call: answered})


def ignores_deletions(paths, go):
    return None


def is_empty(path, go):
    return []


@pytest.mark.parametrize(
    ("files", "found"),
    [
        (PlayedFiles(), "gone as soon as it was deleted"),
        (stale("read", "/state"), "a file that was deleted is read"),
        (stale("list", "_doctor/"), "a file that was deleted is listed"),
        (PlayedFiles(list=is_empty), "a file that was written is not listed"),
        (PlayedFiles(delete=ignores_deletions), "a file that was deleted is listed"),
    ],
    ids=["well", "old read", "old listing", "empty listing", "deleted and back"],
)
def test_a_store_that_shows_what_is_gone_is_found(tmp_path, files, found):
    check = latest_state(Storage(str(tmp_path / "log"), filesystem=files), "_doctor/probes")
    assert found in check.found and check.status == ("ok" if "gone as soon" in found else "failed")


def test_a_location_that_is_not_there_yet_is_not_made(tmp_path):
    found = {check.check: check for check in store(Storage(str(tmp_path / "a" / "log")))}
    assert found["storage"].found.endswith("/log is not there yet") and found["conditional writes"].status == "ok"
    assert not list(tmp_path.iterdir())


def test_text_says_the_status_first_and_what_to_do_below(run, our_python, monkeypatch):
    monkeypatch.setenv("PYSPARK_PYTHON", os.devnull)
    lines = run("doctor").lines
    at = next(number for number, line in enumerate(lines) if line.startswith("failed   worker python: "))
    assert lines[at + 1] == f"         → export PYSPARK_PYTHON={sys.executable}"


@pytest.mark.proof
def test_an_object_store_is_probed(segments, s3_options, our_python):
    options = [text for name, value in s3_options.items() for text in ("--storage", f"{name}={value}")]
    found = checks(segments("doctor", "s3://bucket/doctor", *options, "--output", "json"))
    assert found["storage"]["status"] == found["conditional writes"]["status"] == found["clock"]["status"] == "ok"


def test_a_store_without_conditional_writes_fails(run, s3_options, our_python):
    with store_proxy(s3_options) as proxy:
        proxy.ignores_conditions = True
        options = [text for name, value in proxy.options.items() for text in ("--storage", f"{name}={value}")]
        ran = run("doctor", "s3://bucket/unsafe", *options, "--output", "json")
    assert ran.code == 3
    assert checks(ran)["conditional writes"]["status"] == "failed"


@pytest.mark.parametrize(
    "version, wanted, expected",
    [
        ("22.0.0", "<27,>=22", True),
        ("21.9", "<27,>=22", False),
        ("27.0", "<27,>=22", False),
        ("1.6.6", "<1.7,>=1.6", True),
    ],
)
def test_a_version_is_in_its_range(version, wanted, expected):
    assert _is_within(version, wanted) == expected
