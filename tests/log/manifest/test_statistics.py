"""Statistics of the manifest's files that another writer got wrong: they hide no record, and verify names them."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest

from spark_segments import LogDir
from spark_segments.maintenance import roll, verify
from verification.world.topics import contents

PARTITIONS = 4


@pytest.fixture
def log(tmp_path: Path) -> LogDir:
    log = LogDir.create(str(tmp_path / "log"))
    log.create_topic("orders", PARTITIONS)
    for number in range(3):
        log.topic("orders").append(rows(number))
    return log


def rows(number: int) -> pa.Table:
    return pa.table({"partition": pa.array(range(PARTITIONS), pa.int32()), "value": [f"{number}"] * PARTITIONS})


def falsified(log: LogDir, version: int, **changes: object) -> LogDir:
    """The log directory, opened anew, after the statistics of a commit's files were changed."""
    path = Path(log.uri, "_manifest/orders/_delta_log", f"{version:020d}.json")
    actions = [json.loads(line) for line in path.read_text().splitlines()]
    for action in actions:
        if "add" in action and action["add"]["partitionValues"]["kind"] in ("partition", "segment"):
            stats = json.loads(action["add"]["stats"])
            for name, value in changes.items():
                if isinstance(value, dict):
                    stats[name] |= {column: bound for column, bound in value.items() if column in stats[name]}
                else:
                    stats[name] = value
            action["add"]["stats"] = json.dumps(stats)
    path.write_text("\n".join(json.dumps(action) for action in actions))
    return LogDir.open(log.uri)


def by_partition(log: LogDir) -> dict[int, list[bytes | None]]:
    return {
        number: [row["value"] for row in contents(log, "orders", partition=number, columns=["value"])]
        for number in range(PARTITIONS)
    }


FALSE_BOUNDS = {
    "partition": {"minValues": {"partition": 77}, "maxValues": {"partition": 77}},
    "base_offset": {"minValues": {"base_offset": 77}, "maxValues": {"base_offset": 77}},
    "created_ms": {"minValues": {"created_ms": 0}, "maxValues": {"created_ms": 0}},
}


@pytest.mark.parametrize("column", FALSE_BOUNDS)
def test_a_read_of_a_partition_has_all_records_whatever_the_statistics_say(log, column):
    expected = by_partition(log)
    assert by_partition(falsified(log, 3, **FALSE_BOUNDS[column])) == expected


@pytest.mark.parametrize("column", FALSE_BOUNDS)
def test_appends_and_jobs_lose_nothing_whatever_the_statistics_say(log, column):
    other = falsified(log, 3, **FALSE_BOUNDS[column])
    other.topic("orders").append(rows(3))
    roll(LogDir.open(log.uri), topics=["orders"])
    other = LogDir.open(log.uri)
    other.topic("orders").append(rows(4))
    values = [b"0", b"1", b"2", b"3", b"4"]
    assert by_partition(LogDir.open(log.uri)) == dict.fromkeys(range(PARTITIONS), values)
    assert other.topic("orders").snapshot.partitions.num_rows == PARTITIONS


@pytest.mark.rule("M34")
@pytest.mark.parametrize("column", [*FALSE_BOUNDS, "numRecords"])
def test_verify_names_the_files_whose_statistics_are_false(log, column):
    assert verify(log).findings == []
    changes = {"numRecords": 77} if column == "numRecords" else FALSE_BOUNDS[column]
    found = verify(falsified(log, 3, **changes)).findings
    assert found and {finding.rule for finding in found} == {"M34"}
    assert all(finding.path.startswith("_manifest/orders/kind=") for finding in found)
