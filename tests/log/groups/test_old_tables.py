"""Groups that an older version kept as Delta tables: read as they are, converted when first written, nothing lost."""

from __future__ import annotations

import json
import os
import tarfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from spark_segments import LogDir, Position
from spark_segments.errors import CommitConflictError, StorageError
from spark_segments.log.groups.old_table import end_old_table, read_old_table
from spark_segments.maintenance import vacuum
from tests.golden_files import GOLDEN
from tests.log.groups.readers import all_groups
from tests.opened import LocalFiles, opened

LONG = "Name_with.all-signs" + "x" * 230
"""A group whose id has all characters that an id could have then, and as many."""


@pytest.fixture
def old(tmp_path) -> LogDir:
    """A log directory that commit b098bc5 wrote: groups of 46, 1 and 2 commits, one of them deleted."""
    with tarfile.open(GOLDEN / "groups-as-tables.tar.xz") as archive:
        archive.extractall(tmp_path / "log", filter="data")
    return LogDir.open(str(tmp_path / "log"))


def expected(old: LogDir) -> dict[str, dict[tuple[str, int], Position]]:
    """What that commit read in its groups."""
    said = json.loads(Path(old.uri, "expected.json").read_text())
    return {
        group: {
            (topic, number): Position(offset, topic_id, epoch, committed_ms=committed_ms)
            for topic, number, offset, topic_id, epoch, committed_ms in rows
        }
        for group, rows in said.items()
    }


def found(log: LogDir) -> dict[str, dict[tuple[str, int], Position]]:
    return {group.id: dict(group.positions()) for group in all_groups(log)}


def test_they_are_read_as_they_are(old):
    before = sorted(Path(old.uri).rglob("*"))
    assert found(old) == expected(old) and len(found(old)["audit"]) == 3
    assert old.groups() == sorted([LONG, "audit", "once"])
    assert sorted(Path(old.uri).rglob("*")) == before


def test_they_are_read_where_nothing_can_be_written(old):
    class ReadOnly(LocalFiles):
        def stream(self, path, *, unique=False):
            raise PermissionError(13, "read-only", path)

        create = replace = delete = stream

    assert found(opened(old.uri, ReadOnly())) == expected(old)


def test_the_first_commit_converts_a_group_and_leaves_the_others(old):
    group = old.group("audit")
    began = group.positions()
    done = group.commit(began, {"orders": {0: 45}})
    assert dict(done) == expected(old)["audit"] | {("orders", 0): done["orders", 0]} and done["orders", 0].offset == 45
    assert dict(LogDir.open(old.uri).group("audit").positions()) == dict(done)
    assert not list(Path(old.uri, "_groups", "once").glob("*.json"))
    with pytest.raises(CommitConflictError, match="expected offset 44, found offset 45"):
        group.commit(began, {"orders": {0: 46}})


def test_all_of_them_are_converted_on_demand(old):
    assert [group.id for group in all_groups(old) if group.convert()] == sorted(expected(old))
    assert [group.convert() for group in all_groups(old)] == [False] * 4
    assert found(old) == expected(old)


def test_a_conversion_that_was_killed_goes_on(old):
    directory = "_groups/audit"
    table = read_old_table(old.storage, directory)
    assert table is not None and end_old_table(old.storage, directory, table)
    assert found(old) == expected(old)
    group = old.group("audit")
    assert group.commit(group.positions(), {"prices": {0: 3}}).offsets["prices"] == {0: 3}


@pytest.mark.rule("G6")
def test_who_still_writes_the_table_cannot_go_on_from_it(old):
    """Delta's own reader finds no file of positions then, and the next version is taken."""
    path = Path(old.uri, "_groups", "audit")
    assert len(DeltaTable(str(path)).file_uris()) == 1
    old.group("audit").convert()
    assert DeltaTable(str(path)).file_uris() == [] and DeltaTable(str(path)).version() == 46


def test_a_commit_to_the_table_that_came_first_is_converted_too(old):
    """A process of the older version committed between the look and the last version of the table."""
    path = Path(old.uri, "_groups", "once")
    rows = pq.read_table(next(path.glob("*.parquet"))).to_pylist()
    group, began = old.group("once"), old.group("once").positions()

    class Raced(LocalFiles):
        def create(self, target, data, *, is_forced=True):
            if not (path / "part-late.parquet").exists():
                table = pa.Table.from_pylist([row | {"offset": 9} for row in rows], _schema())
                pq.write_table(table, path / "part-late.parquet")
                action = {"add": {"path": "part-late.parquet"}}
                (path / "_delta_log" / f"{1:020d}.json").write_text(json.dumps(action))
            super().create(target, data, is_forced=is_forced)

    raced = opened(old.uri, Raced()).group("once")
    with pytest.raises(CommitConflictError, match="expected offset 7, found offset 9"):
        raced.commit(began, {"orders": {2: 8}})
    assert group.positions().offsets == {"orders": {2: 9}}
    assert raced.commit(raced.positions(), {"orders": {2: 10}}).offsets == {"orders": {2: 10}}


def _schema() -> pa.Schema:
    types = {"topic": pa.string(), "partition": pa.int32(), "offset": pa.int64(), "topic_id": pa.string()}
    return pa.schema(types | {"leader_epoch": pa.int32(), "committed_ms": pa.int64()})


def test_vacuum_takes_the_files_of_tables_that_were_converted_save_what_keeps_old_versions_away(old):
    old.group("audit").convert()
    assert vacuum(old).details["group_files"] > 40
    assert sorted(os.listdir(Path(old.uri, "_groups", "audit"))) == [f"{1:020d}.json", "_delta_log"]
    assert os.listdir(Path(old.uri, "_groups", "audit", "_delta_log")) == [f"{46:020d}.json"]
    assert found(old) == expected(old) and vacuum(old).details["group_files"] == 0


@pytest.mark.parametrize("damage", ["no UTF-8", "no offset", "no file", "no action"])
def test_a_table_that_is_damaged_is_an_error(old, damage):
    path = Path(old.uri, "_groups", "once")
    [file] = path.glob("*.parquet")
    columns = {name: pa.array(values) for name, values in pq.read_table(file).to_pydict().items()}
    if damage == "no UTF-8":
        offsets = columns["topic"].buffers()[1]
        columns["topic"] = pa.Array.from_buffers(pa.string(), 1, [None, offsets, pa.py_buffer(b"\xcf" * 6)])
    elif damage == "no offset":
        columns["offset"] = pa.nulls(1, pa.int64())
    if damage == "no action":
        [log] = (path / "_delta_log").glob("*.json")
        log.write_text("{}")
    elif damage == "no file":
        file.unlink()
    else:
        pq.write_table(pa.table(columns), file)
    with pytest.raises(StorageError, match=r"damaged|gone as soon as found"):
        old.group("once").positions()
