"""An index that cannot be read keeps no other index of the topic from what it has to do."""

from __future__ import annotations

import json

import pytest

from spark_segments import LogDir
from spark_segments.errors import FormatVersionError
from spark_segments.keys.index_list import IndexFiles, index_name
from spark_segments.keys.job import index
from spark_segments.keys.run_file import RunFile
from spark_segments.maintenance import erase, mirror, retain, roll, vacuum
from verification.world.manifest_rows import live_rows

MAIL = "header.mail"
ZIP = "header.zip"


@pytest.fixture
def log(tmp_path):
    """A topic with an index of keys, and two on headers."""
    log = LogDir.create(str(tmp_path / "log"))
    log.create_topic("t", 1, {"file.delete.delay.ms": "0", "segment.ms": "1"})
    for key in ("ada", "bob"):
        headers = [("mail", f"{key}@example.org".encode()), ("zip", b"8000")]
        log.topic("t").append([{"key": key, "value": "v", "headers": headers}])
        roll(log)
    build(log)
    return log


def build(log):
    index(log)
    index(log, on=[MAIL, ZIP])


def of_newer_format(log, on):
    """Gives the newest list of an index a format that this version does not know."""
    files = IndexFiles(log.storage, "t", index_name(on))
    number = files.newest_list().number
    columns = json.loads(log.storage.read(files.path(number), 0, 1 << 20).to_pybytes().splitlines()[0])
    for path in (files.path(number), files.path_of_copy):
        log.storage.replace(path, json.dumps(columns | {"format.version": 9}).encode() + b"\n")


def entries(log, on):
    """How many entries the live runs of an index have."""
    newest = IndexFiles(log.storage, "t", index_name(on)).newest_list()
    parts = (RunFile(log.storage, run, newest.topic_id).all_records() for run in newest.runs)
    return sum(len(part.offsets) for own in parts for part in own)


def runs(log, on):
    """The files of the runs of an index, live and superseded."""
    return {info.path for info in log.storage.list(f"_keys/t/{index_name(on)}/runs")}


@pytest.mark.parametrize("newer", [[""], [MAIL], ["", MAIL]])
def test_an_erased_key_leaves_all_indexes_but_one_of_a_newer_format(log, newer):
    before = {on: runs(log, on) for on in ("", MAIL, ZIP)}
    for on in newer:
        of_newer_format(log, on)
    with pytest.raises(FormatVersionError, match="newer version"):
        erase(log, topics=["t"], keys=[b"ada"])
    for on in {"", MAIL, ZIP} - {*newer}:
        assert entries(log, on) == 0, "the segment was rewritten, and nothing covers it until the next job"
    warnings = vacuum(log).warnings
    assert len(warnings) == len(newer)
    assert all("newer version" in warning for warning in warnings)
    assert any(f"on {MAIL}" in warning for warning in warnings) == (MAIL in newer), "it says which index"
    for on in ("", MAIL, ZIP):
        assert runs(log, on) == (before[on] if on in newer else set())


def test_the_history_of_a_key_leaves_all_indexes_but_one_of_a_newer_format(log):
    log.topic("t").alter({"file.delete.delay.ms": "86400000"})
    of_newer_format(log, "")
    with pytest.raises(FormatVersionError, match="newer version"):
        erase(log, topics=["t"], keys=[b"ada"], history=True)
    assert runs(log, "") and not runs(log, MAIL) and not runs(log, ZIP)


@pytest.mark.parametrize("newer", [[""], ["", MAIL, ZIP]])
def test_entries_of_a_key_that_left_the_log_before_leave_the_readable_indexes(log, tmp_path, newer):
    """The erasure finds nothing in the log, and has to be in the topic's states all the same: for followers."""
    copy = LogDir.create(str(tmp_path / "copy"))
    mirror(copy, leader=log)
    build(copy)
    log.topic("t").delete_records({0: 1})
    retain(log)
    assert [row.base_offset for row in live_rows(log, "t")] == [1]
    mirror(copy, leader=log)
    assert entries(copy, MAIL) == 2
    for on in newer:
        of_newer_format(log, on)
    with pytest.raises(FormatVersionError, match="newer version"):
        erase(log, topics=["t"], keys=[b"ada"])
    for on in {MAIL, ZIP} - {*newer}:
        assert entries(log, on) == 0
    mirror(copy, leader=log)
    assert entries(copy, MAIL) == entries(copy, ZIP) == 0
