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
from spark_segments.maintenance import compact, roll, vacuum
from spark_segments.storage import Storage
from tests.golden_files import golden_dir
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


def test_what_a_roll_copied_is_not_there_twice(tmp_path, monkeypatch):
    log = new_log(tmp_path, partitions=1)
    append(log, 0)
    copy(log)
    append(log, 10)
    append(log, 20)
    roll(log, topic=TOPIC, now_ms=log.storage.now_ms() + WEEKS_MS)  # the old chunks stay for readers
    append(log, 30)
    expected = records(log)
    lose_manifest(log)
    log = again(log, monkeypatch)
    report = rebuild_manifest(log, TOPIC, add=[ALL])
    assert records(log) == expected
    assert sorted(one["status"] for one in report.later_files) == ["added", "added", "left out", "left out"]
    is_usable(log, monkeypatch)


def test_a_rolled_segment_stands_in_for_chunks_that_vacuum_took(tmp_path, monkeypatch):
    log = new_log(tmp_path, partitions=1)
    append(log, 0)
    append(log, 10)
    copy(log)
    append(log, 20)
    later_ms = log.storage.now_ms() + WEEKS_MS
    roll(log, topic=TOPIC, now_ms=later_ms)
    vacuum(log, topic=TOPIC, now_ms=later_ms)
    append(log, 30)
    expected = records(log)
    shutil.rmtree(Path(tmp_path, "_manifest", TOPIC))
    for newer in Path(tmp_path, "_recovery", TOPIC).glob("*.json"):
        if int(newer.stem) > 3:
            newer.unlink()
    log = again(log, monkeypatch)
    planned = rebuild_manifest(log, TOPIC, dry_run=True)
    assert planned.partitions[0]["log_start_offset"] == 20  # all that is known is gone
    report = rebuild_manifest(log, TOPIC, add=[ALL])
    assert records(log) == expected
    assert report.missing_files == []
    is_usable(log, monkeypatch)


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


def test_segments_that_a_roll_cut_inside_a_chunk_bring_its_records_back(tmp_path, monkeypatch):
    log = new_log(tmp_path, partitions=1)
    append(log, 0, 400, batch_bytes=500)
    append(log, 400, 400, batch_bytes=500)
    copy(log)
    kept = shutil.copytree(tmp_path / "_recovery", tmp_path.parent / f"{tmp_path.name}-copy")
    log.alter_topic(TOPIC, {"segment.bytes": str(log.snapshot(TOPIC).live_of(0)[0].log_bytes * 3 // 5)})
    later_ms = log.storage.now_ms() + WEEKS_MS
    roll(log, topic=TOPIC, now_ms=later_ms)
    vacuum(log, topic=TOPIC, now_ms=later_ms + WEEKS_MS)
    expected, rolled = records(log), log.snapshot(TOPIC).live_of(0)
    assert len(rolled) > 2 and 400 not in [row.base_offset for row in rolled]
    lose_manifest(log)
    shutil.rmtree(tmp_path / "_recovery")
    shutil.copytree(kept, tmp_path / "_recovery")
    log = again(log, monkeypatch)
    report = rebuild_manifest(log, TOPIC, add=[ALL])
    assert records(log) == expected
    assert {one["status"] for one in report.later_files} == {"added"} and report.missing_files == []
    is_usable(log, monkeypatch)


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


def test_merged_runs_stand_where_the_chunks_stood_that_they_were_made_of(tmp_path, monkeypatch):
    """The chunks were in shared objects, and so are the merged ones: nothing in them has offsets of the log."""
    log = new_log(tmp_path, partitions=12)
    for first in range(0, 40 * 12, 4 * 12):
        append(log, first, 4 * 12)
    copy(log)
    kept = shutil.copytree(tmp_path / "_recovery", tmp_path.parent / f"{tmp_path.name}-copy")
    append(log, 480, 24)
    roll(log, topic=TOPIC, now_ms=0)
    assert all(row.is_shared for number in range(12) for row in log.snapshot(TOPIC).live_of(number))
    vacuum(log, topic=TOPIC, now_ms=log.storage.now_ms() + WEEKS_MS)
    append(log, 504, 24)
    expected = records(log)
    lose_manifest(log)
    shutil.rmtree(tmp_path / "_recovery")
    shutil.copytree(kept, tmp_path / "_recovery")
    log = again(log, monkeypatch)
    report = rebuild_manifest(log, TOPIC, add=[ALL])
    assert report.missing_files == [] and records(log) == expected
    is_usable(log, monkeypatch)


def test_a_compacted_segment_with_transactions_fills_the_place_of_those_that_were_imported(tmp_path, monkeypatch):
    log = LogDir.create(str(tmp_path / "log"))
    log.import_kafka(str(golden_dir("txn-compact/dirty")), config={"cleanup.policy": "compact"})
    [topic] = log.topics()
    log.manifest(topic).merge_files()
    kept = shutil.copytree(tmp_path / "log" / "_recovery", tmp_path / "copy")
    later_ms = log.storage.now_ms() + WEEKS_MS
    roll(log, now_ms=later_ms)
    assert not compact(log, now_ms=later_ms, force=True).failed
    vacuum(log, now_ms=later_ms + WEEKS_MS)
    expected = {level: read_all(log, topic, level) for level in ("read_committed", "read_uncommitted")}
    assert log.snapshot(topic).version > 1
    shutil.rmtree(tmp_path / "log" / "_manifest" / topic)
    shutil.rmtree(tmp_path / "log" / "_recovery")
    shutil.copytree(kept, tmp_path / "log" / "_recovery")
    log = again(log, monkeypatch)
    report = rebuild_manifest(log, topic, add=[ALL])
    assert {one["status"] for one in report.later_files} >= {"added"}
    for level, there in expected.items():
        assert read_all(log, topic, level) == there


def read_all(log: LogDir, topic: str, level: str) -> list[tuple[int, bytes | None]]:
    batches = log.read(topic, isolation_level=level, include_control=level == "read_uncommitted")
    return [
        row
        for batch in batches
        for row in zip(batch.column("offset").to_pylist(), batch.column("value").to_pylist(), strict=True)
    ]


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


def test_chunks_that_were_compacted_since_bring_back_no_old_value(tmp_path, monkeypatch):
    """They were sealed by their rows, so that no segment has their batches as they were; vacuum has not taken them."""
    log = new_log(tmp_path, partitions=1, cleanup_policy="compact", segment_bytes="300")
    append(log, 0, keys=7)
    first_ten = records(log)
    copy(log)
    kept = shutil.copytree(tmp_path / "_recovery", tmp_path.parent / f"{tmp_path.name}-copy")
    for first in (10, 60, 110):
        append(log, first, 50, keys=7)
    roll(log, topic=TOPIC, now_ms=log.storage.now_ms() + WEEKS_MS)
    assert not compact(log, topic=TOPIC, force=True).failed
    append(log, 160, 3, keys=7)  # active: nothing but its file has it
    cleaned = records(log)
    assert len(cleaned) < 30
    lose_manifest(log)
    shutil.rmtree(tmp_path / "_recovery")
    shutil.copytree(kept, tmp_path / "_recovery")
    log = again(log, monkeypatch)
    rebuild_manifest(log, TOPIC, add=[ALL])
    found = records(log)
    assert len({value for *_, value in found}) == len(found)
    assert found[:10] == first_ten and set(cleaned) <= set(found)
    assert {int(value) % 7: value for *_, value in found} == {int(value) % 7: value for *_, value in cleaned}
    assert verify(again(log, monkeypatch), TOPIC, deep=True).findings == []


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
