"""Every reader of a topic: each compares what it sees with the model, after every step of a history.

A reader is a line of `READERS`: a name, when it can be asked, and what it compares. It raises AssertionError.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pyarrow.compute as pc

from spark_segments import LogDir
from spark_segments.duckdb import TopicDatabase
from spark_segments.errors import NotLeaderError
from spark_segments.kafka_protocol import capture
from spark_segments.maintenance import verify
from spark_segments.polars import scan_topic
from verification.kafka_protocol.serving import consumer, serving
from verification.kills.table_rows import content
from verification.pairs.model import Place, Record
from verification.pairs.operations import ARCHIVES, LATE, succeeded
from verification.pairs.world import HEADER, Taking, World, check_equal, rows_by_place, segments
from verification.world.manifest_rows import forget_rows
from verification.world.stores.memory_store import memory_log


def always(_: World) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class Reader:
    """`is_slow`: asked at the end of a history alone."""

    name: str
    compare: Callable[[World], None]
    when: Callable[[World], bool] = always
    is_slow: bool = False


# The log


def scan(world: World) -> None:
    for isolation in ("read_uncommitted", "read_committed"):
        seen = world.log.topic(world.topic).scan(isolation=isolation).to_table()
        check_equal(rows_by_place(seen), world.model.records(committed=isolation == "read_committed"))


def offsets(world: World) -> None:
    bounds = {number: (one.start, one.end) for number, one in world.model.partitions.items()}
    check_equal(world.log.topic(world.topic).offsets(), bounds)


def by_time(world: World) -> None:
    """The first offset of a time or later, of each partition. A marker has a time, too, as for a broker."""
    records = world.model.records() | world.markers()
    times = sorted({record.timestamp_ms for record in records.values()})
    for time_ms in {times[0], times[len(times) // 2], times[-1], times[-1] + 1} if times else ():
        expected: dict[int, tuple[int, int] | None] = dict.fromkeys(world.model.partitions)
        for (number, offset), record in sorted(records.items(), reverse=True):
            if record.timestamp_ms >= time_ms:
                expected[number] = (offset, record.timestamp_ms)
        check_equal(world.log.topic(world.topic).offsets_for_times(time_ms), expected)


def by_condition(world: World) -> None:
    """A condition leaves out what the files show to have no such record; the engine that asks leaves out the rest."""
    records = world.model.records()
    scanned = world.log.topic(world.topic).scan()
    key = next(key for key in world.keys if key)
    of_key = {place: record for place, record in records.items() if record.key == key}
    key_condition = pc.field("key") == key
    check_equal(rows_by_place(scanned.where(key_condition).to_table().filter(key_condition)), of_key)
    times = sorted(record.timestamp_ms for record in records.values())
    if times:
        middle_ms = times[len(times) // 2]
        since = datetime.fromtimestamp(middle_ms / 1000, UTC)
        late = {place: record for place, record in records.items() if record.timestamp_ms >= middle_ms}
        time_condition = pc.field("timestamp") >= since
        check_equal(rows_by_place(scanned.where(time_condition).to_table().filter(time_condition)), late)


def by_header(world: World) -> None:
    """Of a header that half of the records have, and of one that a record has. Records of others have none: what has a
    header is taken from a full scan.
    """
    field = f"header.{HEADER}"
    for options in ({}, {"isolation": "read_committed"}, {"view": "latest"}):
        topic = world.log.topic(world.topic)
        rows = topic.scan(**options).to_table().to_pylist()
        for values in ([b"odd"], [b"%d" % world.made, b"1"]):
            of_header = [row for row in rows if any(has_value(header, values) for header in row["headers"] or ())]
            expected = [(row["partition"], row["offset"]) for row in of_header]
            found = topic.scan(columns=["partition", "offset"], where={field: values}, **options).to_table().to_pylist()
            check_equal([(row["partition"], row["offset"]) for row in found], expected)


def has_value(header: dict[str, Any], values: list[bytes]) -> bool:
    return header["key"] == HEADER and header["value"] in values


def latest(world: World) -> None:
    for tombstones, isolation in ((True, "read_uncommitted"), (False, "read_uncommitted"), (False, "read_committed")):
        scanned = world.log.topic(world.topic).scan(view="latest", include_tombstones=tombstones, isolation=isolation)
        expected = world.model.latest(tombstones=tombstones, committed=isolation == "read_committed")
        check_equal(rows_by_place(scanned.to_table()), expected)


def deep_verification(world: World) -> None:
    """No fault; and a capture that came later than tombstones stay in the cluster is named, and no other one."""
    findings = verify(world.log, topics=[world.topic], deep=True).findings
    others = [str(finding) for finding in findings if finding.message != LATE]
    assert not others, f"finds {others[:3]}"
    if world.is_late is not None:
        check_equal(len(findings) > 0, world.is_late)


# Engines


def polars(world: World) -> None:
    """Where the topic knows tables, a frame is of their files and of the log's tail."""
    uri, topic = world.log.uri, world.topic
    check_equal(rows_by_place(scan_topic(uri, topic).collect()), world.model.records())
    committed = scan_topic(uri, topic, isolation="read_committed").collect()
    check_equal(rows_by_place(committed), world.model.records(committed=True))
    for tombstones in (True, False):
        view = scan_topic(uri, topic, view="latest", include_tombstones=tombstones).collect()
        check_equal(rows_by_place(view), world.model.latest(tombstones=tombstones, committed=False))


def duckdb(world: World) -> None:
    """A database that stays open sees the topic as it is at each query."""
    if world.database is None:
        world.database = TopicDatabase(world.log)
    check_equal(rows_by_place(world.database.sql(f'SELECT * FROM "{world.topic}"').to_table()), world.model.records())
    view = world.database.sql(f'SELECT * FROM "{world.topic}$latest"').to_table()
    check_equal(rows_by_place(view), world.model.latest(tombstones=True, committed=False))


# The command


def consume_key(world: World) -> None:
    """The records of the first key, and the number of those of the last."""
    first, *_, last = [key for key in world.keys if key]
    of_first, of_last = (
        {place: record.value for place, record in world.model.records().items() if record.key == key}
        for key in (first, last)
    )
    ran = segments("consume", world.log.uri, world.topic, "--key", first.decode(), "--output", "json")
    assert ran.code == 0, ran.error
    lines = [json.loads(line) for line in ran.output.splitlines()]
    found = {(row["partition"], row["offset"]): row["value"] for row in lines}
    check_equal(found, {place: value and value.decode() for place, value in of_first.items()})
    count = segments("consume", world.log.uri, world.topic, "--key", last.decode(), "--count")
    check_equal(int(count.output), len(of_last))


def signed_list(world: World) -> None:
    """Each listed file is compared, or is gone by the operation of a commit that says so. Where vacuum took all of
    these, the file lies below the log start, or is gone for an unknown reason. A list of which nothing can be compared
    is no success.
    """
    signed = world.signed
    assert signed is not None
    signed.look(world)
    lines = map(json.loads, signed.path.read_text().splitlines())
    listed = [f"{line['path'].rpartition('.')[0]}.log" for line in lines if "path" in line]
    forget_rows()  # a process that has read them knows rows that vacuum took
    ran = segments("verify", world.log.uri, world.topic, "--check", signed.path, "--output", "json")
    report = json.loads(ran.output)
    unknown = {finding["path"] for finding in report["findings"] if UNKNOWN in finding["message"]}
    reasons = {path: _reason(world, path, taking) for path, taking in signed.taken.items()}
    check_equal(unknown, {path for path, reason in reasons.items() if reason == "unknown"})
    gone = [path for path in listed if path in reasons]
    compared = len(listed) - len(gone)
    others = [one["message"] for one in report["findings"] if UNKNOWN not in one["message"]]
    check_equal(others, [] if compared or not listed else [NOTHING_COMPARED])
    check_equal(ran.code, 3 if report["findings"] else 0)
    counts = report["details"]["listed"]
    check_equal((counts["files"], counts["compared"]), (len(listed), compared))
    check_equal(counts["gone"], dict(Counter(reasons[path] for path in gone)))


UNKNOWN = "gone for an unknown reason"
NOTHING_COMPARED = "No file of the list of checksums is in the topic any more: nothing was compared"


def _reason(world: World, path: str, taking: Taking) -> str:
    """Why a listed file is not in the log any more: by the commit that took it, if vacuum has not taken that, or by the
    first later one that writes its row again.
    """
    assert world.signed is not None
    if world.written_out_of_log(taking.version) is not None:
        return taking.operation
    for version in range(taking.version + 1, world.signed.version + 1):
        if path in (world.written_out_of_log(version) or ()) and world.operation_of(version) != "merge-files":
            return world.operation_of(version)
    place = world.signed.ends[path]
    is_below = place is not None and place[1] <= world.model.partitions[place[0]].start
    return "below the log start" if is_below else "unknown"


# What lies beside the log


def tables(world: World) -> None:
    """Each table has what it had after its last run. Whether an archive keeps the tombstone that an erasure found, or
    left, nobody promises.
    """
    for name, table in world.tables.items():
        seen = {(row["partition"], row["offset"]): row["value"] for row in content(table.uri)}
        expected = {place: record.value for place, record in sorted(table.rows.items())}
        if table.kind in ARCHIVES and world.model.erasures:
            seen, expected = (
                {place: value for place, value in rows.items() if value is not None} for rows in (seen, expected)
            )
        try:
            check_equal(seen, expected)
        except AssertionError as error:
            raise AssertionError(f"{name} {error}") from None


def follower(world: World) -> None:
    assert world.follower is not None
    log, seen = world.follower
    check_equal(world.seen(log), seen)


def fenced(world: World) -> None:
    """The leader before takes no append."""
    assert world.fenced is not None
    try:
        world.fenced.topic(world.topic).append([{"key": "ada", "value": "too late"}])
    except NotLeaderError:
        return
    raise AssertionError("takes an append")


def cluster(world: World) -> None:
    """The cluster that the topic was replayed to has each committed record once, in order."""
    assert world.replayed is not None
    log = memory_log("/cluster")
    succeeded(capture(log, world.cluster(), [world.replayed.topic]))
    rows = log.topic(world.replayed.topic).scan(isolation="read_committed").to_table()
    found: dict[int, list[Record]] = {}
    for (number, _), record in sorted(rows_by_place(rows).items()):
        found.setdefault(number, []).append(record)
    check_equal(found, {number: listed for number, listed in world.replayed.rows.items() if listed})


def group(world: World) -> None:
    positions = world.log.group("readers").positions().offsets.get(world.topic)
    check_equal(positions, world.group)


def kafka_client(world: World) -> None:
    """librdkafka's consumer on `serve`."""
    found: dict[Place, Record] = {}
    with serving(LogDir.open(world.log.uri), interval_seconds=0) as server:
        for number, partition in world.model.partitions.items():
            found |= _consumed(server, world.topic, number, partition.end)
    check_equal(found, world.model.records())


def _consumed(server: Any, topic: str, number: int, end: int) -> dict[Place, Record]:
    from confluent_kafka import KafkaError, TopicPartition

    reader = consumer(server)
    found: dict[Place, Record] = {}
    try:
        reader.assign([TopicPartition(topic, number, -2)])
        while True:
            message = reader.poll(60)
            assert message is not None, f"partition {number} does not come to its end, {end}"
            if message.error() is not None:
                assert message.error().code() == KafkaError._PARTITION_EOF, str(message.error())
                return found
            found[number, message.offset()] = Record(message.key(), message.value(), message.timestamp()[1])
    finally:
        reader.close()


def spark(world: World) -> None:
    assert world.spark is not None
    world.spark.compare(world)


READERS = (
    Reader("scan", scan),
    Reader("offsets", offsets),
    Reader("by time", by_time),
    Reader("by condition", by_condition),
    Reader("by header", by_header),
    Reader("latest", latest),
    Reader("verify --deep", deep_verification),
    Reader("polars", polars),
    Reader("duckdb", duckdb),
    Reader("consume --key", consume_key),
    Reader("verify --check", signed_list, lambda world: world.signed is not None),
    Reader("tables", tables, lambda world: bool(world.tables)),
    Reader("follower", follower, lambda world: world.follower is not None),
    Reader("fenced leader", fenced, lambda world: world.fenced is not None),
    Reader("cluster", cluster, lambda world: world.replayed is not None),
    Reader("group", group, lambda world: world.group is not None),
    Reader("serve", kafka_client, is_slow=True),
    Reader("spark", spark, lambda world: world.spark is not None, is_slow=True),
)
