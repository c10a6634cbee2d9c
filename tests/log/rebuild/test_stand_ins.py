"""Files of jobs stand in for known files that vacuum took, at the offsets that these had."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from spark_segments import LogDir
from spark_segments.log.rebuild.rebuild import ALL, rebuild_manifest
from spark_segments.log.verification.verify import verify
from spark_segments.maintenance import compact, roll, vacuum
from tests.golden_files import golden_dir
from tests.log.rebuild.lost import (
    TOPIC,
    WEEKS_MS,
    again,
    append,
    copy,
    is_usable,
    lose_manifest,
    new_log,
    records,
)

pytestmark = pytest.mark.slow


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
