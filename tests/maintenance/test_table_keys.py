"""Tables whose keys are typed, of topics whose keys are decoded alike or not at all: a key is its bytes."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from spark_segments.lake.table_plan import Reason
from spark_segments.maintenance import erase, retain, roll, table
from verification.kills.table_rows import by_place, content, failure, iceberg_table, is_iceberg, update
from verification.world.topics import DAY_MS, append

JSON = {"key.format": "json", "key.schema": "id int"}
ADA, ALIKE, OTHER = b'{"id":1}', b'{"id":1,"tenant":"x"}', b'{"id":2}'
INTS = {"key.format": "int", "key.errors": "null"}
ONE, TWO = (1).to_bytes(4), (2).to_bytes(4)


@pytest.fixture(params=["delta", "iceberg"])
def uri(tmp_path, request):
    return str(tmp_path / request.param / "table")


@pytest.fixture
def delta(tmp_path):
    return str(tmp_path / "table")


def archived(log, uri, formats, keys):
    """An archive of a record for each key; the value says which. The topic has none of them any more."""
    log.create_topic("orders")
    append(log, *[(key, b"%d" % number) for number, key in enumerate(keys)])
    update(log, uri, archive=True, formats=formats)
    return log


def emptied(log):
    later_ms = log.storage.now_ms() + 30 * DAY_MS
    roll(log, now_ms=later_ms)
    retain(log, now_ms=later_ms)


def values(uri):
    return [int(row["value"]) for row in content(uri)]


def key_bytes(uri):
    names = ["partition", "offset", "key_bytes"]
    if is_iceberg(uri):
        rows = iceberg_table(uri).scan(selected_fields=tuple(names)).to_arrow().to_pylist()
    else:
        rows = DeltaTable(uri).to_pyarrow_table(columns=names).to_pylist()
    return [row["key_bytes"] for row in by_place(rows)]


def as_earlier_versions_made_it(uri):
    """The Delta table without the bytes of its keys."""
    for path in Path(uri).glob("*.parquet"):
        pq.write_table(pq.read_table(path).drop_columns("key_bytes"), path)
    for commit in Path(uri, "_delta_log").glob("*.json"):
        actions = [json.loads(line) for line in commit.read_text().splitlines()]
        for metadata in (action["metaData"] for action in actions if "metaData" in action):
            schema = json.loads(metadata["schemaString"])
            schema["fields"] = [field for field in schema["fields"] if field["name"] != "key_bytes"]
            metadata["schemaString"] = json.dumps(schema)
            settings = json.loads(metadata["configuration"]["segments.table"])
            settings.pop("key_bytes", None)
            metadata["configuration"]["segments.table"] = json.dumps(settings)
        for added in (action["add"] for action in actions if "add" in action):
            added["size"] = Path(uri, added["path"]).stat().st_size
        commit.write_text("".join(json.dumps(action) + "\n" for action in actions))


@pytest.mark.parametrize("forget", [False, True])
def test_an_erased_key_leaves_the_keys_that_are_decoded_alike(log, uri, forget):
    archived(log, uri, JSON, [ADA, ALIKE, OTHER, None])
    if not forget:
        erase(log, topics=["orders"], keys=[ADA])
    emptied(log)
    update(log, uri, keys=[ADA], forget=forget)
    assert values(uri) == [1, 2, 3]
    assert key_bytes(uri) == [ALIKE, OTHER, None]


@pytest.mark.parametrize("forget", [False, True])
def test_an_erased_key_that_cannot_be_decoded_leaves_the_others_and_records_without_a_key(log, uri, forget):
    archived(log, uri, INTS, [b"bad", None, b"worse", ONE])
    if not forget:
        erase(log, topics=["orders"], keys=[b"bad"])
    emptied(log)
    update(log, uri, keys=[b"bad"], forget=forget)
    assert values(uri) == [1, 2, 3]


def test_an_erased_key_is_in_no_file_of_the_table(log, uri):
    archived(log, uri, JSON, [ADA, ALIKE])
    erase(log, topics=["orders"], keys=[ADA])
    update(log, uri, keys=[ADA])
    named = {str(path) for path in _files(uri)}
    assert named and all(ADA not in pq.read_table(path)["key_bytes"].to_pylist() for path in named)


def _files(uri):
    if is_iceberg(uri):
        return [task.file.file_path.removeprefix("file://") for task in iceberg_table(uri).scan().plan_files()]
    return [path.removeprefix("file://") for path in DeltaTable(uri).file_uris()]


def test_a_latest_table_of_typed_keys_gets_the_changes_alone(log, uri):
    log.create_topic("orders")
    append(log, (ADA, b"1"), (ALIKE, b"2"), (OTHER, b"3"))
    assert update(log, uri, view="latest", formats=JSON)["rows"] == 3
    append(log, (ALIKE, b"4"), (OTHER, None))
    assert update(log, uri)["why"] is None
    assert values(uri) == [1, 4] and key_bytes(uri) == [ADA, ALIKE]


def test_a_latest_table_without_the_bytes_of_its_keys_is_rebuilt_once(log, delta):
    log.create_topic("orders")
    append(log, (ADA, b"1"), (ALIKE, b"2"))
    update(log, delta, view="latest", formats=JSON)
    as_earlier_versions_made_it(delta)
    append(log, (ALIKE, b"3"))
    assert update(log, delta)["why"] == Reason.KEYLESS
    assert values(delta) == [1, 3] and key_bytes(delta) == [ADA, ALIKE]
    append(log, (ADA, b"4"))
    assert update(log, delta)["why"] is None
    assert values(delta) == [3, 4]


def test_a_plain_table_has_no_bytes_of_its_keys(log, delta):
    log.create_topic("orders")
    append(log, (ADA, b"1"))
    update(log, delta, formats=JSON)
    assert "key_bytes" not in DeltaTable(delta).to_pyarrow_table().column_names


def test_an_archive_without_the_bytes_of_its_keys_does_not_guess(log, delta):
    archived(log, delta, JSON, [ADA, ALIKE, OTHER, None])
    as_earlier_versions_made_it(delta)
    append(log, (ALIKE, b"4"))
    update(log, delta)
    assert key_bytes(delta) == [None] * 4 + [ALIKE]
    erase(log, topics=["orders"], keys=[ADA])
    (line,) = table(log, topics=["orders"], table_uri=delta, keys=[ADA]).failed
    assert "1 rows without, the first from partition 0, offset 0" in line["error"] and "--alike" in line["error"]
    assert values(delta) == [0, 1, 2, 3, 4]
    update(log, delta, keys=[ADA], alike=True)
    assert values(delta) == [1, 2, 3, 4]  # the topic has these


def test_rows_without_the_bytes_of_their_keys_go_where_the_caller_says_so(log, delta):
    archived(log, delta, JSON, [ADA, ALIKE, OTHER, None])
    as_earlier_versions_made_it(delta)
    append(log, (ALIKE, b"4"))
    update(log, delta)
    erase(log, topics=["orders"], keys=[ADA])
    emptied(log)
    files = set(Path(delta).glob("*.parquet"))
    error = failure(log, delta, keys=[ADA])
    assert "may have an erased key" in error and values(delta) == [0, 1, 2, 3, 4]
    assert set(Path(delta).glob("*.parquet")) == files
    update(log, delta, keys=[ADA], alike=True)
    assert values(delta) == [2, 3, 4]


def test_an_archive_whose_format_has_one_encoding_needs_no_bytes(log, delta):
    archived(log, delta, INTS, [ONE, TWO, None, b"bad"])
    as_earlier_versions_made_it(delta)
    erase(log, topics=["orders"], keys=[ONE])
    emptied(log)
    update(log, delta, keys=[ONE])
    assert values(delta) == [1, 2, 3]
    assert "may have an erased key" in failure(log, delta, keys=[b"bad"], forget=True)
    assert values(delta) == [1, 2, 3]


def test_a_key_that_stopped_an_archive_leaves_its_topic_and_the_archive_goes_on(log, delta):
    archived(log, delta, JSON, [ADA])
    as_earlier_versions_made_it(delta)
    append(log, (b"no json", b"1"), (OTHER, b"2"))
    assert "cannot be read as json" in failure(log, delta)
    erase(log, topics=["orders"], keys=[b"no json"])
    update(log, delta, keys=[b"no json"])
    assert values(delta) == [0, 2]
