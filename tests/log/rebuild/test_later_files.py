"""Files that no known commit names: each is listed, and added on request, so that no record is lost or doubled."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from random import Random

import pytest

from spark_segments import LogDir
from spark_segments.errors import CorruptBatchError, InvalidOptionError, StorageError
from spark_segments.log.rebuild.later_files import batches_in
from spark_segments.log.rebuild.rebuild import ALL, open_damaged, rebuild_manifest
from spark_segments.log.segment.shared_object import read_footer
from spark_segments.log.verification.verify import verify
from spark_segments.maintenance import roll, vacuum
from spark_segments.storage import Storage
from tests.log.rebuild.lost import (
    TOPIC,
    WEEKS_MS,
    again,
    all_files,
    append,
    copy,
    is_usable,
    lose_manifest,
    new_log,
    numbers,
    records,
)

pytestmark = pytest.mark.slow


def test_what_came_after_the_copy_is_listed_and_added_on_request(tmp_path, monkeypatch):
    log = new_log(tmp_path)
    append(log, 0)
    copy(log)
    append(log, 10)
    append(log, 20)
    expected = records(log)
    lose_manifest(log)
    other = shutil.copytree(tmp_path, tmp_path.parent / f"{tmp_path.name}-other")

    log = again(log, monkeypatch)
    assert len(rebuild_manifest(log, TOPIC).later_files) == 4
    assert numbers(log) == [*range(10)]
    is_usable(log, monkeypatch)

    log = again(LogDir.open(str(other)) if (other / "_manifest").exists() else open_damaged(str(other)), monkeypatch)
    report = rebuild_manifest(log, TOPIC, add=[ALL])
    assert {one["status"] for one in report.later_files} == {"added"}
    assert records(log) == expected  # written one after the other, so that their order is known
    is_usable(log, monkeypatch)


def test_a_single_file_can_be_added(tmp_path, monkeypatch):
    log = new_log(tmp_path, partitions=1)
    append(log, 0)
    copy(log)
    append(log, 10)
    append(log, 20)
    lose_manifest(log)
    log = again(log, monkeypatch)
    first, second = rebuild_manifest(log, TOPIC, dry_run=True).later_files
    report = rebuild_manifest(log, TOPIC, add=[second["path"]])
    assert [one["status"] for one in report.later_files] == ["can be added", "added"]
    assert numbers(log) == [*range(10), *range(20, 30)]
    assert first["path"] != second["path"]


def test_a_path_that_is_no_such_file_is_refused(tmp_path, monkeypatch):
    log = new_log(tmp_path)
    append(log, 0)
    copy(log)
    lose_manifest(log)
    log = again(log, monkeypatch)
    for path in ("orders-0/x.log", "../../etc/passwd", ""):
        with pytest.raises(InvalidOptionError, match="Not a file that can be added"):
            rebuild_manifest(log, TOPIC, add=[path])


def test_shared_objects_stay_shared(tmp_path, monkeypatch):
    log = new_log(tmp_path, partitions=40)
    append(log, 0, 80)
    copy(log)
    append(log, 80, 80)
    assert log.storage.list(f"{TOPIC}-shared")
    expected = records(log)
    lose_manifest(log)
    log = again(log, monkeypatch)
    report = rebuild_manifest(log, TOPIC, add=[ALL])
    assert {one["status"] for one in report.later_files} == {"added"}
    assert len({one["path"] for one in report.later_files}) == 1
    assert records(log) == expected
    is_usable(log, monkeypatch)


def test_files_of_another_topic_of_the_name_are_not_taken(tmp_path, monkeypatch):
    log = new_log(tmp_path, partitions=40)
    append(log, 0, 80)
    log.delete_topic(TOPIC)
    log.create_topic(TOPIC, partitions=40)
    append(log, 500, 80)
    copy(log)
    first = next(
        info.path for info in log.storage.list(f"{TOPIC}-shared") if _topic_id(log, info.path) != _current(log)
    )
    log.storage.write(f"{TOPIC}-shared/{0:020d}.{'ab' * 16}.log", log.storage.read(first))
    lose_manifest(log)
    log = again(log, monkeypatch)
    report = rebuild_manifest(log, TOPIC, add=[ALL])
    [one] = report.later_files
    assert one["status"] == "left out" and "another topic of this name" in one["reason"]
    assert numbers(log) == [*range(500, 580)]
    is_usable(log, monkeypatch)


def _topic_id(log: LogDir, path: str) -> str:
    return read_footer(log.storage, path, log.storage.size(path)).topic_id


def _current(log: LogDir) -> str:
    return log.snapshot(TOPIC).topic_id


@pytest.mark.parametrize("seed", range(9))
def test_whatever_jobs_did_later_each_record_is_there_once(tmp_path, monkeypatch, seed):
    """Appends, rolls and vacuums in any order after the copy: with all files added, no record is lost or doubled."""
    random = Random(seed)
    log = new_log(tmp_path, partitions=random.choice((1, 2, 30)), segment_bytes=str(random.choice((300, 1 << 20))))
    count, now_ms = 0, log.storage.now_ms()
    for step in range(12):
        if step == 3:
            copy(log)
            shutil.copytree(tmp_path / "_recovery", tmp_path.parent / f"{tmp_path.name}-copy")
        action = random.choice(("append", "append", "append", "roll", "vacuum"))
        if action == "append":
            append(log, count, size := random.randint(1, 60))
            count += size
        elif action == "roll":
            now_ms += WEEKS_MS
            roll(log, topic=TOPIC, now_ms=now_ms)
        else:
            vacuum(log, topic=TOPIC, now_ms=now_ms + 10)
    expected = records(log)
    lose_manifest(log)
    shutil.rmtree(tmp_path / "_recovery")  # vacuum and merges have left newer copies
    shutil.copytree(tmp_path.parent / f"{tmp_path.name}-copy", tmp_path / "_recovery")
    log = again(log, monkeypatch)
    report = rebuild_manifest(log, TOPIC, add=[ALL])
    assert report.missing_files == []
    assert numbers(log) == [*range(count)]
    by_partition = lambda rows: sorted((partition, value) for partition, _, value in rows)  # noqa: E731
    assert by_partition(records(log)) == by_partition(expected)
    assert verify(again(log, monkeypatch), TOPIC, deep=True).findings == []


def test_a_copy_that_came_from_a_backup_hides_no_file(tmp_path, monkeypatch):
    """Its files are as young as the day of that; what it says is older, and so are the commits after it."""
    log = new_log(tmp_path, partitions=1)
    append(log, 0)
    copy(log)
    append(log, 10)
    in_a_month = (log.storage.now_ms() + WEEKS_MS) / 1000
    for path in (tmp_path / "_recovery").rglob("*.*"):
        os.utime(path, (in_a_month, in_a_month))
    lose_manifest(log)
    report = rebuild_manifest(again(log, monkeypatch), TOPIC, add=[ALL])
    assert [one["status"] for one in report.later_files] == ["added"]


def test_objects_with_an_id_from_before_an_earlier_rebuild_can_be_added(tmp_path, monkeypatch):
    log = new_log(tmp_path, partitions=40)
    append(log, 0, 80)
    copy(log)
    append(log, 80, 80)
    lose_manifest(log)
    first = rebuild_manifest(again(log, monkeypatch), TOPIC)
    assert {one["status"] for one in first.later_files} == {"can be added"}
    assert not any("earlier rebuild" in sentence for sentence in first.not_known)
    lose_manifest(log)
    log = again(log, monkeypatch)
    second = rebuild_manifest(log, TOPIC, add=[ALL])
    assert {one["status"] for one in second.later_files} == {"added"}
    assert any("earlier rebuild" in sentence for sentence in second.not_known)
    assert numbers(log) == [*range(160)]
    is_usable(log, monkeypatch)


def test_a_twin_of_a_chunk_that_was_rolled_is_left_out(tmp_path, monkeypatch):
    """Spark ran the task twice, and nobody committed the second chunk."""
    log = new_log(tmp_path, partitions=1)
    append(log, 0)
    append(log, 10)
    chunk = Path(tmp_path, log.snapshot(TOPIC).live_of(0)[0].path)
    for path in chunk.parent.glob(f"{chunk.stem}.*"):
        shutil.copy(path, path.with_name(f"{0:020d}.{'ab' * 16}{path.suffix}"))
    later_ms = log.storage.now_ms() + WEEKS_MS
    roll(log, topic=TOPIC, now_ms=later_ms)
    vacuum(log, topic=TOPIC, now_ms=later_ms)
    copy(log)
    lose_manifest(log)
    log = again(log, monkeypatch)
    report = rebuild_manifest(log, TOPIC, add=[ALL])
    assert [one["status"] for one in report.later_files] == ["left out"]
    assert numbers(log) == [*range(20)]


def test_a_store_that_fails_leaves_out_no_file(tmp_path, monkeypatch):
    log = new_log(tmp_path, partitions=1)
    append(log, 0)
    copy(log)
    append(log, 10)
    lose_manifest(log)
    log = again(log, monkeypatch)
    before, read = all_files(log), Storage.read

    def failing(storage, path, *args, **more):
        if path.endswith(".log"):
            raise StorageError("The file system failed (SLOW_DOWN)", path=path)
        return read(storage, path, *args, **more)

    with monkeypatch.context() as patched, pytest.raises(StorageError, match="SLOW_DOWN"):
        patched.setattr(Storage, "read", failing)
        rebuild_manifest(log, TOPIC, add=[ALL])
    assert all_files(log) == before


@pytest.mark.parametrize("damage", ["header", "cut"])
def test_the_batches_of_a_damaged_file_are_an_error(tmp_path, damage):
    log = new_log(tmp_path, partitions=1)
    append(log, 0)
    [row] = log.snapshot(TOPIC).live_of(0)
    path = tmp_path / row.path
    assert len(batches_in(log.storage, row).keys) == 1
    content = bytearray(path.read_bytes())
    if damage == "header":
        content[16] = 9  # the magic byte
    path.write_bytes(content if damage == "header" else content[:-1])
    with pytest.raises(CorruptBatchError):
        batches_in(log.storage, row)
