"""Tables that other programs change: Delta's RESTORE, DELETE, OPTIMIZE, VACUUM and overwrites, each by delta-rs."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from spark_segments.maintenance import erase
from verification.kills.table_rows import content, failure, readable, update, with_orders
from verification.world.topics import append


@pytest.fixture
def uri(tmp_path):
    return str(tmp_path / "table")


@pytest.fixture
def orders(log):
    return with_orders(log)


@pytest.fixture(params=["plain", "latest", "archive"])
def kind(request):
    return {"plain": {}, "latest": {"view": "latest"}, "archive": {"archive": True}}[request.param]


def followed(orders, uri, kind):
    """A table of five commits, each of which has two records more of the topic."""
    for value in (b"1", b"2", b"3", b"4"):
        update(orders, uri, **kind)
        append(orders, (b"a", value), (b"e" + value, value))
    update(orders, uri, **kind)


def rows(orders, kind):
    return readable(orders, view=kind.get("view"))


@pytest.mark.cases(2)
@pytest.mark.parametrize("version", [0, 1, 3])
def test_a_restored_table_gets_what_came_after_its_version(orders, uri, kind, version):
    followed(orders, uri, kind)
    DeltaTable(uri).restore(version)
    append(orders, (b"z", b"9"))
    update(orders, uri)
    assert content(uri) == rows(orders, kind)
    append(orders, (b"z", b"10"))
    assert update(orders, uri)["why"] is None
    assert content(uri) == rows(orders, kind)


@pytest.mark.cases(1)
def test_a_restored_table_follows_without_new_records(orders, uri, kind):
    followed(orders, uri, kind)
    DeltaTable(uri).restore(2)
    update(orders, uri)
    assert content(uri) == rows(orders, kind)


@pytest.mark.cases(2)
def test_restores_of_restores_among_harmless_commits(orders, uri, kind):
    followed(orders, uri, kind)
    DeltaTable(uri).optimize.compact()
    DeltaTable(uri).restore(2)
    DeltaTable(uri).optimize.compact()
    DeltaTable(uri).restore(6)  # the optimized files of the fifth commit
    DeltaTable(uri).restore(7)  # the optimized files of the second
    DeltaTable(uri).alter.set_table_properties({"delta.checkpointInterval": "20"})
    update(orders, uri)
    assert content(uri) == rows(orders, kind)


@pytest.mark.cases(1)
def test_a_restore_to_a_time_is_followed(orders, uri, kind):
    followed(orders, uri, kind)
    table = DeltaTable(uri)
    when = next(commit["timestamp"] for commit in table.history() if commit["version"] == 2)
    table.restore(pa.scalar(when, pa.timestamp("ms", "UTC")).as_py())
    update(orders, uri)
    assert content(uri) == rows(orders, kind)


@pytest.mark.cases(1)
def test_harmless_commits_keep_a_table_going(orders, uri, kind):
    followed(orders, uri, kind)
    DeltaTable(uri).optimize.compact()
    DeltaTable(uri).optimize.z_order(["offset"])
    DeltaTable(uri).vacuum(0, enforce_retention_duration=False, dry_run=False)
    DeltaTable(uri).delete("partition = 99")  # no row
    append(orders, (b"z", b"9"))
    assert update(orders, uri)["why"] is None
    assert content(uri) == rows(orders, kind)


CHANGES = {
    "DELETE": lambda uri: DeltaTable(uri).delete("offset = 1"),
    "DELETE of everything": lambda uri: DeltaTable(uri).delete(),
    "UPDATE": lambda uri: DeltaTable(uri).update(new_values={"value": "X'39'"}, predicate="offset = 1"),
    "WRITE": lambda uri: write_deltalake(uri, DeltaTable(uri).to_pyarrow_table().slice(1), mode="overwrite"),
    "WRITE of more": lambda uri: write_deltalake(uri, DeltaTable(uri).to_pyarrow_table().slice(1, 1), mode="append"),
}


@pytest.mark.cases(2)
@pytest.mark.parametrize("change", CHANGES)
def test_rows_that_others_changed_stop_a_table_until_it_is_restored(orders, uri, kind, change):
    followed(orders, uri, kind)
    before = DeltaTable(uri).version()
    CHANGES[change](uri)
    DeltaTable(uri).optimize.compact()
    append(orders, (b"z", b"9"))
    changed = content(uri)
    error = failure(orders, uri)
    assert f"{change.split()[0]} of version {before + 1}" in error and f"RESTORE it to version {before}" in error
    assert content(uri) == changed
    DeltaTable(uri).restore(before)
    update(orders, uri)
    assert content(uri) == rows(orders, kind)


@pytest.mark.cases(1)
def test_a_restore_that_left_files_out_stops_a_table(orders, uri, kind):
    followed(orders, uri, kind)
    version = DeltaTable(uri).version()
    files = DeltaTable(uri).file_uris()
    path = Path(next((file for file in DeltaTable(uri, version=1).file_uris() if file in files), files[0])).name
    actions = [  # as Spark does where it ignores missing files
        {"commitInfo": {"timestamp": 0, "operation": "RESTORE", "operationParameters": {"version": "3"}}},
        {"remove": {"path": path, "deletionTimestamp": 0, "dataChange": True}},
    ]
    (Path(uri) / f"_delta_log/{version + 1:020d}.json").write_text("\n".join(map(json.dumps, actions)))
    error = failure(orders, uri)
    assert f"RESTORE of version {version + 1}" in error and f"RESTORE it to version {version}" in error
    DeltaTable(uri).restore(version)
    update(orders, uri)
    assert content(uri) == rows(orders, kind)


@pytest.mark.cases(1)
def test_a_change_while_a_table_is_updated_stops_it(orders, uri, kind):
    followed(orders, uri, kind)
    append(orders, (b"z", b"9"))
    deleted = []

    def progress(done, tasks):
        if not deleted:
            deleted.append(DeltaTable(uri).delete("offset = 1"))

    assert "DELETE of version" in failure(orders, uri, progress=progress)


@pytest.mark.cases(2)
def test_a_restore_while_a_table_is_updated_is_followed(orders, uri, kind):
    followed(orders, uri, kind)
    append(orders, (b"z", b"9"))
    restored = []

    def progress(done, tasks):
        if not restored:
            restored.append(DeltaTable(uri).restore(2))

    update(orders, uri, progress=progress)
    assert content(uri) == rows(orders, kind)


def test_an_archive_that_is_restored_to_before_an_erasure_asks_for_the_keys_again(orders, uri):
    followed(orders, uri, {"archive": True})
    version = DeltaTable(uri).version()
    erase(orders, topics=["orders"], keys=[b"b"])
    update(orders, uri, keys=[b"b"])
    DeltaTable(uri).restore(version)
    assert "Keys of the topic were erased" in failure(orders, uri)
    update(orders, uri, keys=[b"b"])
    assert b"b" not in [row["key"] for row in content(uri) if row["value"] is not None]


def test_a_table_that_takes_appends_alone_loses_no_rows(orders, uri):
    update(orders, uri)
    DeltaTable(uri).alter.set_table_properties({"delta.appendOnly": "true"})
    append(orders, (b"z", b"9"))
    update(orders, uri)
    before, files = content(uri), set(Path(uri).glob("*.parquet"))
    orders.topic("orders").delete_records({0: 2})
    assert "delta.appendOnly" in failure(orders, uri)
    assert content(uri) == before and set(Path(uri).glob("*.parquet")) == files
    DeltaTable(uri).alter.set_table_properties({"delta.appendOnly": "false"})
    update(orders, uri)
    assert content(uri) == readable(orders)


def test_what_others_wrote_into_a_commit_is_no_position(orders, uri):
    update(orders, uri)
    for number, text in enumerate(('{"segments": 1}', '{"segments": {"offsets": [1]}}', "odd"), start=2):
        info = {"timestamp": 0, "operation": "OPTIMIZE", "userMetadata": text}
        (Path(uri) / f"_delta_log/{number:020d}.json").write_text(json.dumps({"commitInfo": info}))
    append(orders, (b"z", b"9"))
    update(orders, uri)
    assert content(uri) == readable(orders)


@pytest.mark.parametrize("text", ["no json", "[]", '{"topic": "orders", "of a later version": 1}'])
def test_settings_that_cannot_be_read_are_an_error_that_shows_them(orders, uri, text):
    update(orders, uri)
    DeltaTable(uri).alter.set_table_properties({"segments.table": text}, raise_if_not_exists=False)
    error = failure(orders, uri)
    assert "property segments.table cannot be read" in error and text in error
