"""Tables that another program has changed: what is not known is refused, and what may be absent is not missed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spark_segments import LogDir
from spark_segments.errors import LogDirError
from spark_segments.maintenance import compact, erase, roll, vacuum, verify
from verification.world.topics import DAY_MS, later, records

CONFIG = {"segment.bytes": "2000", "file.delete.delay.ms": "0"}


def commit_file(log: LogDir, version: int) -> Path:
    return Path(log.uri, f"_manifest/orders/_delta_log/{version:020d}.json")


@pytest.fixture
def log(tmp_path: Path) -> LogDir:
    log = LogDir.create(str(tmp_path / "log"))
    log.create_topic("orders", 2, CONFIG)
    log.topic("orders").append(records(5))
    return log


def commit(log: LogDir, *actions: dict[str, Any]) -> LogDir:
    """Adds a commit of another program, and opens the log directory anew."""
    version = log.topic("orders").manifest.snapshot(deleted=True).version + 1
    info = {"commitId": f"{version:032x}", "attempt": 0}
    commit_file(log, version).write_text("\n".join(map(json.dumps, [{"commitInfo": info}, *actions])))
    return LogDir.open(log.uri)


def metadata(log: LogDir) -> dict[str, Any]:
    actions = map(json.loads, commit_file(log, 0).read_text().splitlines())
    return next(action["metaData"] for action in actions if "metaData" in action)


USES: dict[str, Callable[[LogDir], object]] = {
    "read": lambda log: log.topic("orders").offsets(),
    "append": lambda log: log.topic("orders").append(records(1)),
    "alter": lambda log: log.topic("orders").alter({"retention.ms": "5"}),
    "delete": lambda log: log.delete_topic("orders"),
}


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize(
    "protocol",
    [
        {"minReaderVersion": 2, "minWriterVersion": 5},
        {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": [], "writerFeatures": []},
        {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": ["columnMapping"],
         "writerFeatures": ["columnMapping"]},
    ],
    ids=["version 2", "version 3", "a feature"],
)  # fmt: skip
def test_a_table_that_asks_its_readers_for_more_is_refused_in_every_use(log, protocol, use):
    log = commit(log, {"protocol": protocol})
    with pytest.raises(LogDirError, match="cannot be read"):
        USES[use](log)


@pytest.mark.rule("M4", "M32")
@pytest.mark.parametrize("use", [name for name in USES if name != "read"])
@pytest.mark.parametrize(
    ("protocol", "configuration"),
    [
        ({"minReaderVersion": 1, "minWriterVersion": 3}, {}),
        ({"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": ["appendOnly"]}, {}),
        ({"minReaderVersion": 1, "minWriterVersion": 2}, {"delta.appendOnly": "true"}),
    ],
    ids=["version 3", "a feature", "append only"],
)
def test_a_table_that_asks_its_writers_for_more_is_read_and_not_written(log, protocol, configuration, use):
    there = metadata(log)
    there["configuration"] |= configuration
    log = commit(log, {"protocol": protocol}, {"metaData": there})
    version = log.topic("orders").snapshot.version
    with pytest.raises(LogDirError, match=r"cannot be written.*minWriterVersion 2 and no features"):
        USES[use](log)
    assert log.topic("orders").offsets()[0][0] == 0 and log.topic("orders").snapshot.version == version
    assert sum(batch.num_rows for batch in log.topic("orders").scan().batches()) == 5


@pytest.mark.rule("M6")
def test_an_open_process_sees_what_a_table_asks_since(log):
    commit(log, {"protocol": {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": ["rowTracking"]}})
    with pytest.raises(LogDirError, match="rowTracking"):
        log.topic("orders").append(records(1))


def files_of(log: LogDir, kind: str) -> list[str]:
    return [file.path for file in log.topic("orders").manifest.state().files if file.kind == kind]


def test_a_row_of_an_unknown_state_is_refused(log):
    [path] = files_of(log, "segment")
    rows = pq.ParquetFile(Path(log.uri, "_manifest/orders", path)).read()
    at = rows.schema.get_field_index("state")
    rows = rows.set_column(at, "state", pa.array(["quarantined"] * rows.num_rows))
    other = "kind=segment/part-of-another.parquet"
    pq.write_table(rows, Path(log.uri, "_manifest/orders", other))
    add = {"path": other, "partitionValues": {"kind": "segment"}, "size": 1, "modificationTime": 1, "dataChange": True}
    log = commit(log, {"remove": {"path": path, "dataChange": True}}, {"add": add})
    for use in (
        lambda: list(log.topic("orders").scan().batches()),
        lambda: log.topic("orders").describe(),
        lambda: log.delete_topic("orders"),
    ):
        with pytest.raises(LogDirError, match=r"part-of-another.*any of chunk, sealed.*quarantined"):
            use()


def test_a_kind_of_rows_that_is_unknown_is_refused(log):
    add = {"path": "kind=quota/part-1.parquet", "partitionValues": {"kind": "quota"}, "size": 1,
           "modificationTime": 1, "dataChange": True}  # fmt: skip
    log = commit(log, {"add": add})
    for use in ("read", "append"):
        with pytest.raises(LogDirError, match=r"kinds of rows topic, partition.*quota"):
            USES[use](log)


def without_statistics(log: LogDir) -> LogDir:
    """The same rows by `add` actions without stats, as another program may write them."""
    files = log.topic("orders").manifest.state(deleted=True).files
    adds = [
        {"add": {"path": file.path, "partitionValues": {"kind": file.kind}, "size": file.size,
                 "modificationTime": file.modified_ms, "dataChange": False}}
        for file in files
    ]  # fmt: skip
    return commit(log, *adds)


def contents(log: LogDir) -> list[tuple[bytes, bytes]]:
    return sorted(
        (row["key"], row["value"]) for batch in log.topic("orders").scan().batches() for row in batch.to_pylist()
    )


@pytest.mark.cases(1)
@pytest.mark.parametrize("is_followed", [False, True], ids=["opened", "followed"])
def test_a_table_without_statistics_works_in_every_job(log, is_followed):
    for number in range(30):
        log.topic("orders").append([{"key": f"k{number % 7}", "value": b"%d" % number * 100, "partition": number % 2}])
    before = contents(log)
    opened = without_statistics(log)
    log = log if is_followed else opened
    assert log.topic("orders").append([{"key": "last", "value": b"last", "partition": 0}], txn=("app", 1))
    now_ms = later(log, 1)
    for work in (
        lambda: roll(log, now_ms=now_ms),
        lambda: compact(log, now_ms=now_ms),
        lambda: erase(without_statistics(log), topics=["orders"], keys=[b"k3"]),
        lambda: vacuum(without_statistics(log), now_ms=now_ms),
    ):
        report = work()
        assert not report.failed, report.failed
    log = LogDir.open(log.uri)
    assert contents(log) == sorted([*(one for one in before if one[0] != b"k3"), (b"last", b"last")])
    assert verify(log, deep=True).errors == 0
    without_statistics(log).delete_topic("orders")
    assert not vacuum(without_statistics(log), now_ms=now_ms + 30 * DAY_MS).failed
