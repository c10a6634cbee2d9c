"""An index job that is killed, or beside which anything else happens, at each of its steps."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from spark_segments import LogDir
from spark_segments.keys.hashes import hashes_of
from spark_segments.keys.index_list import IndexFiles
from spark_segments.keys.job import index
from spark_segments.keys.run_file import RunFile
from spark_segments.maintenance import compact, erase, restore, roll, vacuum
from verification.world.opened import opened
from verification.world.small_limits import small_limits
from verification.world.stores.played_files import PlayedFiles

CALLS = ("create", "stream", "list", "delete")
CONFIG = {"file.delete.delay.ms": "0", "segment.ms": "1"}
KEYS = [b"a", b"b", b"c"]
FIRST_RUN_STEPS = 13
"""So many the first run of the job has at least."""
STEPS = 24
"""Some steps more than the job has here."""


class Killed(BaseException):
    """The process ends."""


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """A topic of which a part is indexed, in two runs that are merged by the next run of the job."""
    path = tmp_path_factory.mktemp("prepared") / "log"
    log = LogDir.create(str(path))
    log.create_topic("t", 1, CONFIG)
    with small_limits(MOST_MERGED_RUNS=2):
        for number in range(3):
            log.topic("t").append([{"key": key, "value": b"%d" % number} for key in KEYS * 3])
            if number < 2:
                with small_limits(MOST_MERGED_RUNS=9):
                    index(log)
    assert len(IndexFiles(log.storage, "t").newest_list().runs) == 2
    return path


def stepped(path, step: int, happens: Callable[[], None], *, after: bool) -> LogDir:
    """The log directory in which something happens before, or after, the job's call of a number."""
    calls = [0]

    def play(_, go):
        calls[0] += 1
        own = calls[0]
        if own == step and not after:
            happens()
        result = go()
        if own == step and after:
            try:
                happens()
            except Killed:
                if hasattr(result, "close"):  # a process that is killed leaves no open file
                    result.close()
                raise
        return result

    return opened(path, PlayedFiles(**dict.fromkeys(CALLS, play)))


def check(path) -> None:
    """Compares look-ups with a scan, and looks at each byte of the index."""
    log = LogDir.open(str(path))
    topic = log.topic("t")
    table = topic.scan().to_table()
    for keys in ([b"a"], KEYS):
        expected = table.filter(pc.is_in(table.column("key"), value_set=pa.array(keys, pa.binary())))
        assert topic.scan(keys=keys).to_table().equals(expected)
    assert not topic.verify(deep=True).findings


def check_erased(path) -> None:
    """No live run has an entry of the erased key."""
    log = LogDir.open(str(path))
    newest = IndexFiles(log.storage, "t").newest_list()
    hashes, _ = hashes_of(pa.array([b"a"], pa.binary()), newest.seed, newest.hash_bits)
    for run in newest.runs:
        answer = RunFile(log.storage, run, newest.topic_id).find(hashes)
        assert not len(answer.offsets) and not answer.is_anywhere


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("step", range(1, STEPS, 3))
def test_a_job_that_is_killed_leaves_an_index_that_holds(prepared, tmp_path, step, after):
    path = shutil.copytree(prepared, tmp_path / "log")

    def kill():
        raise Killed

    with small_limits(MOST_MERGED_RUNS=2):
        try:
            index(stepped(path, step, kill, after=after))
        except Killed:
            check(path)
        log = LogDir.open(str(path))
        assert index(log).ok
        check(path)
        assert log.topic("t").scan(keys="a").coverage.scanned_offsets == 0
        for file in path.glob("_keys/t/key/runs/*"):
            os.utime(file, (0, 0))  # what no list names goes by its age
        vacuum(log)
        named = {run.path for run in IndexFiles(log.storage, "t").newest_list().runs}
        assert {str(file.relative_to(path)) for file in path.glob("_keys/t/key/runs/*")} == named


def _index(log: LogDir) -> None:
    index(log)


def _drop(log: LogDir) -> None:
    index(log, drop=True)


def _erase(log: LogDir) -> None:
    erase(log, topics=["t"], keys=[b"a"])


def _compact(log: LogDir) -> None:
    log.topic("t").alter({"cleanup.policy": "compact"})
    roll(log)
    compact(log, force=True)


def _restore(log: LogDir) -> None:
    version = log.topic("t").version
    log.topic("t").delete_records({0: 5})
    log.topic("t").append([{"key": b"a", "value": b"goes again"}])
    restore(log, topics=["t"], version=version)


def _make_again(log: LogDir) -> None:
    log.delete_topic("t")
    log.create_topic("t", 1, CONFIG)
    log.topic("t").append([{"key": key, "value": b"other"} for key in KEYS])


def _vacuum(log: LogDir) -> None:
    vacuum(log)


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("step", range(1, STEPS, 3))
@pytest.mark.parametrize("happening", [_index, _drop, _erase, _compact, _restore, _make_again, _vacuum])
def test_an_index_holds_whatever_happens_beside_its_job(prepared, tmp_path, happening, step, after):
    path = shutil.copytree(prepared, tmp_path / "log")
    happened = []

    def happen():
        happened.append(True)
        happening(LogDir.open(str(path)))

    with small_limits(MOST_MERGED_RUNS=2):
        report = index(stepped(path, step, happen, after=after))
        assert report.ok or happening in (_drop, _make_again)
        check(path)
        if happened and happening is _erase:
            check_erased(path)
        log = LogDir.open(str(path))
        index(log)
        check(path)
        assert log.topic("t").scan(keys="a").coverage.scanned_offsets == 0


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("step", range(1, 16, 2))
def test_an_erasure_beside_the_first_run_of_the_job_leaves_no_entry(tmp_path, step, after):
    log = LogDir.create(str(tmp_path / "log"))
    log.create_topic("t", 1, CONFIG)
    log.topic("t").append([{"key": key, "value": b"v"} for key in KEYS])
    happened = []

    def happen():
        happened.append(True)
        _erase(LogDir.open(log.uri))

    index(stepped(log.uri, step, happen, after=after))
    # The job has fewer steps than the last of these. A second erasure would clean up behind the first.
    assert happened or step > FIRST_RUN_STEPS
    if not happened:
        _erase(log)
    check(log.uri)
    check_erased(log.uri)
