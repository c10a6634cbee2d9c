"""Compaction of what Kafka wrote leaves what Kafka's own cleaner left: record for record, with its delete horizons."""

from __future__ import annotations

import base64
import re

import pytest

from spark_segments import LogDir
from spark_segments.log.segment.file import SegmentFile
from spark_segments.maintenance import compact, roll
from verification.world.kafka_bytes import golden_files
from verification.world.topics import append_batches, golden_batches, later

CONFIG = {"cleanup.policy": "compact", "delete.retention.ms": "600000", "min.cleanable.dirty.ratio": "0.01"}

# (topic, its other configuration, [(directory before, directory that Kafka made of it)])
CHAINS = {
    "latest-price": (
        {},
        [("before-clean", "after-clean-1"), *((f"before-clean-{n}", f"after-clean-{n}") for n in (2, 3, 4))],
    ),
    "bigcompact-none": ({"segment.bytes": "131072"}, [("dirty", "clean-1"), ("dirty-2", "clean-2")]),
    "bigcompact-zstd": ({"segment.bytes": "131072"}, [("dirty", "clean-1"), ("dirty-2", "clean-2")]),
    "txn-compact": (
        {"segment.bytes": "16384"},
        [("dirty", "clean-1"), *((f"dirty-{n}", f"clean-{n}") for n in (2, 3, 4))],
    ),
}
TOPICS = {
    "latest-price": "latest-price",
    "bigcompact-none": "bigcompact",
    "bigcompact-zstd": "bigcompact",
    "txn-compact": "txnc",
}
STEPS = [(name, before, after) for name, (_, steps) in CHAINS.items() for before, after in steps]


def clean_time_ms(name: str, after: str) -> int:
    line = next(
        line
        for line in (golden_files.GOLDEN / "index.txt").read_text().splitlines()
        if line.startswith(f"{name}/{after}/")
    )
    return int(re.search(r"cleanTimeMs=(\d+)", line).group(1))


@pytest.fixture(params=["one task", "many tasks"])
def defaults(request, limits) -> dict[str, str]:
    """Configuration under which a partition is cleaned by one task, or by as many as there may be."""
    if request.param == "one task":
        return {}
    limits(LARGE_PARTITION_BYTES=0, MIN_SLICE_BYTES=1)
    return {"log.cleaner.threads": "3"}


def imported(tmp_path, name: str, step: str, defaults: dict[str, str]) -> LogDir:
    log = LogDir.create(str(tmp_path / "log"), defaults=defaults)
    log.import_kafka(str(golden_files.GOLDEN / name / step), config=CONFIG | CHAINS[name][0])
    return log


def records(log: LogDir, topic: str) -> list[tuple]:
    return [
        (row["offset"], row["timestamp"].value // 10**6 if hasattr(row["timestamp"], "value") else row["timestamp"],
         row["key"], row["value"], [(h["key"], h["value"]) for h in row["headers"]])
        for batch in log.topic(topic).scan(include_control=True).batches()
        for row in batch.set_column(
            batch.schema.get_field_index("timestamp"), "timestamp", batch.column("timestamp").cast("int64")
        ).to_pylist()
    ]  # fmt: skip


def expected(name: str) -> list[tuple]:
    def binary(text: str | None) -> bytes | None:
        return None if text is None else base64.b64decode(text)

    return [
        (row["offset"], row["timestamp"] * 1000, binary(row["key"]), binary(row["value"]),
         [(key, binary(value)) for key, value in row["headers"]])
        for row in golden_files.expected_records(name)
    ]  # fmt: skip


def horizons(log: LogDir, topic: str) -> list[tuple[int, int | None]]:
    """(last offset, delete horizon) of every batch, empty ones included."""
    found = []
    for segment in log.topic(topic).snapshot.live_of(0):
        for window in SegmentFile(log.storage, segment).windows():
            batches = window.batches
            for row in range(len(batches)):
                horizon = int(batches.base_timestamp[row]) if batches.has_delete_horizon[row] else None
                found.append((int(batches.last_offset[row]) + segment.offset_shift, horizon))
    return found


@pytest.mark.cases(2)
@pytest.mark.parametrize(("name", "before", "after"), STEPS)
def test_cleaning_a_directory_of_kafka_leaves_what_its_cleaner_left(tmp_path, defaults, name, before, after):
    topic = TOPICS[name]
    log = imported(tmp_path, name, before, defaults)
    now_ms = clean_time_ms(name, after)
    compact(log, now_ms=now_ms)
    golden = f"{name}/{after}/{topic}-0"
    assert records(log, topic) == expected(golden)
    assert horizons(log, topic) == [
        (batch["lastOffset"], batch["deleteHorizonMs"]) for batch in golden_files.expected_batches(golden)
    ]
    version = log.topic(topic).describe()["version"]
    again = compact(log, now_ms=now_ms, force=True)
    assert again.partitions == []
    assert log.topic(topic).describe()["version"] == version


def test_the_first_dirty_offset_moves_to_the_active_segment(tmp_path, defaults):
    log = imported(tmp_path, "latest-price", "before-clean", defaults)
    compact(log, now_ms=clean_time_ms("latest-price", "after-clean-1"))
    (partition,) = log.topic("latest-price").describe()["partitions"]
    assert (partition["first_dirty_offset"], partition["log_end_offset"]) == (19, 20)


def append_what_follows(log: LogDir, topic: str, directory: str) -> None:
    """Appends the batches of a directory that are past the log's end; seals what is there where it begins a segment."""
    bases = {int(path.stem) for path in golden_files.log_files(directory)}
    for data in golden_batches(directory):
        base_offset = int.from_bytes(data[:8], "big")
        if base_offset >= log.topic(topic).offsets()[0][1]:
            if base_offset in bases:
                roll(log, now_ms=later(log, 30))
            append_batches(log, topic, [data])


@pytest.mark.cases(1)
@pytest.mark.parametrize("name", CHAINS)
def test_one_log_cleaned_step_by_step_is_what_kafka_made_of_its_own(tmp_path, defaults, name):
    topic, steps = TOPICS[name], CHAINS[name][1]
    log = imported(tmp_path, name, steps[0][0], defaults)
    for before, after in steps:
        append_what_follows(log, topic, f"{name}/{before}/{topic}-0")
        compact(log, now_ms=clean_time_ms(name, after))
        golden = f"{name}/{after}/{topic}-0"
        assert records(log, topic) == expected(golden)
        assert horizons(log, topic) == [
            (batch["lastOffset"], batch["deleteHorizonMs"]) for batch in golden_files.expected_batches(golden)
        ]
