"""A log directory whose disk fails: what each operation says then, and what is there once the disk works again."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from spark_segments import LogDir
from spark_segments.errors import SegmentsError
from spark_segments.maintenance import compact, erase, retain, roll, table, vacuum, verify
from verification.world.topics import DAY_MS, later, records

Contents = dict[str, dict[tuple[int, int], bytes]]

PARTITIONS = 12
SMALL, LARGE = 5, 4000
ERASED = b"3"
NOBODY = 65534


def prepared(directory: Path) -> LogDir:
    """Topics `orders`, of a shared object, sealed segments, chunks and removed rows, and `prices`, to be compacted."""
    log = LogDir.create(str(directory))
    config = {"segment.bytes": "20000", "compression.type": "uncompressed", "retention.ms": "-1"}
    log.create_topic("orders", PARTITIONS, config | {"retention.ms": str(8 * DAY_MS)})
    log.create_topic("prices", 1, config | {"cleanup.policy": "compact,delete"})
    append_to_both(log, LARGE // 10)
    roll(log, now_ms=later(log, 10))
    log.topic("orders").delete_records({0: -1})
    retain(log)
    append_to_both(log, 10 * PARTITIONS)
    return log


def append_to_both(log: LogDir, count: int) -> dict[int, tuple[int, int]]:
    """Appends records to the one partition of prices and to all partitions of orders, as many to each topic."""
    now_ms = log.storage.now_ms()
    log.topic("prices").append(records(count, time_ms=now_ms))
    return log.topic("orders").append(records(count, time_ms=now_ms, partitions=range(PARTITIONS)))


WRITES: dict[str, Callable[[LogDir], Any]] = {
    "a small append": lambda log: log.topic("orders").append(records(SMALL, time_ms=log.storage.now_ms())),
    "a large append": lambda log: log.topic("prices").append(records(LARGE, time_ms=log.storage.now_ms())),
    "an append to many partitions": lambda log: log.topic("orders").append(
        records(LARGE, time_ms=later(log, 10), partitions=range(PARTITIONS))
    ),
    "create": lambda log: log.create_topic("new"),
    "alter": lambda log: log.topic("orders").alter({"retention.ms": "1"}, PARTITIONS + 1),
    "delete": lambda log: log.delete_topic("orders"),
    "delete records": lambda log: log.topic("orders").delete_records({1: -1}),
    "commit offsets": lambda log: log.group("billing").reset({"orders": {1: 1}}),
    "roll": lambda log: roll(log, now_ms=later(log, 10)),
    "retain": lambda log: retain(log, now_ms=later(log, 10)),
    "compact": lambda log: compact(log, force=True),
    "vacuum": lambda log: vacuum(log, now_ms=later(log, 10)),
    "erase": lambda log: erase(log, topics=["prices"], keys=[ERASED]),
    "export": lambda log: log.export_kafka(f"{log.uri}/../export", "orders"),
    "table": lambda log: table(log, topics=["orders"], table_uri=f"{log.uri}/../table", view="latest"),
}

READS: dict[str, Callable[[LogDir], Any]] = {
    "topics": lambda log: log.topics(),
    "describe": lambda log: log.topic("orders").describe(),
    "read": lambda log: contents(log),
    "times": lambda log: log.topic("orders").offsets_for_times(0),
    "groups": lambda log: log.groups(),
    "plan": lambda log: [job(log, dry_run=True) for job in (roll, retain, compact, vacuum)],
    "verify": lambda log: verify(log, deep=True),
}


def outcome(operation: Callable[[LogDir], Any], log: LogDir) -> str | None:
    """The error of an operation, also one that a report has; None where it did its work.

    Whatever else is raised than an error of the package is a fault of the package.
    """
    try:
        report = operation(log)
    except SegmentsError as error:
        return str(error)
    failed = getattr(report, "failed", [])
    return str(failed[0]["error"]) if failed else None


def contents(log: LogDir) -> Contents:
    """{topic: {(partition, offset): value}} of all records of orders and prices that are there."""
    found: Contents = {}
    for topic in {"orders", "prices"} & set(log.topics()):
        rows = (
            log.topic(topic).scan(columns=["partition", "offset", "value"]).to_reader(threads=1).read_all().to_pylist()
        )
        found[topic] = {(row["partition"], row["offset"]): row["value"] for row in rows}
    return found


def assert_usable(log: LogDir) -> None:
    """A deep look finds nothing, all jobs do their work, and appends get the next offsets."""
    log = LogDir.open(log.uri)
    assert_clean(log)
    if "orders" not in log.topics():
        return
    ends = {number: end for number, (_, end) in log.topic("orders").offsets().items()}
    written = log.topic("orders").append(
        records(PARTITIONS, time_ms=log.storage.now_ms(), partitions=range(PARTITIONS))
    )
    assert {number: first for number, (first, _) in written.items()} == {
        number: end for number, end in ends.items() if number < PARTITIONS
    }
    before = contents(log)["orders"]
    for job in (roll, compact):
        assert not job(log, now_ms=later(log, 10)).failed
    assert contents(log)["orders"] == before
    assert_clean(log)


def assert_clean(log: LogDir) -> None:
    """Nothing is wrong, but for the times (M17) that a clock which jumped has left in rows."""
    report = verify(log, deep=True)
    assert not [str(finding) for finding in report.findings if finding.rule != "M17"]


def assert_unchanged(operation: str, log: LogDir, before: Contents, error: str) -> None:
    """After an operation that failed the log is as it was. Where the error does not know, an append may be there."""
    now = contents(log)
    if operation == "erase":  # has several commits, of which the first adds a tombstone
        before, now = _without_erased(before), _without_erased(now)
    if "may have happened" in error or "may have been" in error:
        assert all(rows.items() <= now.get(topic, rows).items() for topic, rows in before.items()), error
    else:
        assert now == before, error


def _without_erased(rows: Contents) -> Contents:
    """The records of other keys than the one that is erased: see `records`."""
    return {
        topic: {place: value for place, value in found.items() if value and int(value.split()[0]) % 7 != int(ERASED)}
        for topic, found in rows.items()
    }


def assert_clear(error: str, *words: str) -> None:
    """The error is a line that names the place, and has these words."""
    assert "\n" not in error and len(error) < 1500, error
    assert " in /" in error, error
    assert any(word in error for word in words), error


# Faults


@contextmanager
def file_size_limit(size_bytes: int) -> Iterator[None]:
    """No file of this process can become larger: writes beyond that fail as those to a full disk do."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@contextmanager
def not_root() -> Iterator[None]:
    """This process is a user whom modes hold; root becomes `nobody` for a while."""
    if os.geteuid() != 0:
        yield
        return
    os.setegid(NOBODY)
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)


@contextmanager
def filled(directory: Path, free_bytes: int = 0) -> Iterator[None]:
    """The file system of a directory is full, but for so many bytes."""
    filler, rest = directory / "filler", directory / "rest"
    rest.write_bytes(bytes(free_bytes))
    with open(filler, "wb", buffering=0) as file:
        for size in (1 << 20, 1 << 12, 1):
            try:
                while True:
                    file.write(bytes(size))
            except OSError as error:
                assert error.errno in (errno.ENOSPC, errno.EDQUOT), error
    rest.unlink()
    try:
        yield
    finally:
        filler.unlink()


def readable_by_all(directory: Path) -> None:
    for path in [directory, *directory.rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)
