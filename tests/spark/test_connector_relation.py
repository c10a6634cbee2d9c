"""The Kafka connector's KafkaRelationSuite, and what its stream suites say of a source that holds for a batch as well,
case by case.

Numbers are those of docs/design/kafka-connector-cases.md. The data source runs as Spark's
processes call it; what hangs on Spark itself is asked of Spark.
"""

from __future__ import annotations

import datetime
import itertools
import json
import lzma
import random
import threading

import pyarrow as pa
import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder

from spark_segments import LogDir, ProducerOptions
from spark_segments.errors import InvalidOptionError, OffsetOutOfRangeError, SegmentsError
from spark_segments.maintenance import retain, roll
from spark_segments.spark.reader import RangesPartition
from tests.spark import in_process
from verification.world.kafka_bytes.golden_files import GOLDEN
from verification.world.log_copies import copy_of

T0 = 1_700_000_000_000
HOUR_MS = 3_600_000


def table(values, partition, timestamp_ms=T0, headers=None) -> pa.Table:
    count = len(values)
    columns = {
        "value": [None if value is None else str(value).encode() for value in values],
        "partition": pa.array([partition] * count, pa.int32()),
        "timestamp": pa.array([timestamp_ms * 1000] * count, pa.timestamp("us", tz="UTC")),
    }
    if headers is not None:
        kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
        columns["headers"] = pa.array(headers, kind)
    return pa.table(columns)


def values(log: LogDir, **options) -> list[int]:
    return sorted(int(row["value"]) for row in in_process.load(log.uri, options))


@pytest.fixture
def t(log):
    """Topic t: 0-9 in partition 0, 10-19 in partition 1, the value 20 in partition 2."""
    log.create_topic("t", partitions=3)
    log.topic("t").append(table(range(10), 0))
    log.topic("t").append(table(range(10, 20), 1))
    log.topic("t").append(table([20], 2))
    return log


@pytest.fixture
def timed(log):
    """Topic t: 0-9 at T0, 10-19 an hour later, 20-29 two hours later, a third of each in each partition."""
    log.create_topic("t", partitions=3)
    for hour in range(3):
        for partition in range(3):
            numbers = [10 * hour + number for number in range(10) if number % 3 == partition]
            log.topic("t").append(table(numbers, partition, T0 + hour * HOUR_MS))
    return log


# KafkaRelationSuite


def test_case_96_explicit_earliest_to_latest_offsets_are_those_of_the_load(spark, t):
    """A DataFrame of Kafka would see the record appended later: ours keeps to the log of its load."""
    reader = spark.read.format("segments").options(subscribe="t", startingOffsets="earliest", endingOffsets="latest")
    frame = reader.load(t.uri)
    numbers = frame.selectExpr("int(string(value)) n")
    assert sorted(row.n for row in numbers.collect()) == list(range(21))
    t.topic("t").append(table([21], 0))
    assert sorted(row.n for row in numbers.collect()) == list(range(21))
    assert reader.load(t.uri).count() == 22


def test_case_97_default_starting_and_ending_offsets(t):
    assert values(t, subscribe="t") == list(range(21))


def test_case_98_explicit_offsets(t):
    bounds = {"startingOffsets": {"0": -2, "1": -2, "2": 0}, "endingOffsets": {"0": -1, "1": -1, "2": 1}}
    options = {name: json.dumps({"t": offsets}) for name, offsets in bounds.items()}
    assert values(t, subscribe="t", **options) == list(range(21))
    t.topic("t").append(table([30], 2))
    t.topic("t").append(table([31], 0))
    assert values(t, subscribe="t", **options) == [*range(21), 31]


def test_case_99_headers(log):
    log.create_topic("t")
    headers = [None, [], [{"key": "a", "value": b"b"}, {"key": "c", "value": None}], [{"key": "a", "value": b"1"}] * 2]
    log.topic("t").append(table(range(4), 0, headers=headers))
    found = [row["headers"] for row in in_process.load(log.uri, {"subscribe": "t", "includeHeaders": "true"})]
    assert found == [[], [], headers[2], headers[3]]  # no headers are an empty list, where the connector has null
    assert "headers" not in in_process.load(log.uri, {"subscribe": "t"})[0]


def by_time(hour: int) -> str:
    return json.dumps({"t": dict.fromkeys("012", T0 + hour * HOUR_MS)})


def offsets_at(log: LogDir, hour: int) -> str:
    found = log.topic("t").offsets_for_times(T0 + hour * HOUR_MS)
    return json.dumps({"t": {str(partition): entry[0] for partition, entry in found.items()}})


@pytest.mark.cases(4)
@pytest.mark.parametrize(
    ("case", "start", "end", "expected"),
    [
        ("100 timestamps for both", ("startingOffsetsByTimestamp", 1), ("endingOffsetsByTimestamp", 2), range(10, 20)),
        ("101 timestamp, then offset", ("startingOffsetsByTimestamp", 1), ("endingOffsets", 2), range(10, 20)),
        ("102 offset, then timestamp", ("startingOffsets", 1), ("endingOffsetsByTimestamp", 2), range(10, 20)),
        ("103 ending not provided", ("startingOffsetsByTimestamp", 1), None, range(10, 30)),
        ("104 starting not provided", None, ("endingOffsetsByTimestamp", 2), range(20)),
        ("105 global timestamps", ("startingTimestamp", 1), ("endingTimestamp", 2), range(10, 20)),
        ("105 global timestamp for starting", ("startingTimestamp", 1), None, range(10, 30)),
        ("105 global timestamp for ending", None, ("endingTimestamp", 2), range(20)),
    ],
)
def test_timestamps_bound_a_range(timed, case, start, end, expected):
    def text(name, hour):
        if name.endswith("Offsets"):
            return offsets_at(timed, hour)
        return by_time(hour) if name.endswith("ByTimestamp") else T0 + hour * HOUR_MS

    options = {name: text(name, hour) for name, hour in filter(None, (start, end))}
    assert values(timed, subscribe="t", **options) == list(expected)


NEVER = 2**63 - 1


def test_case_106_no_matched_offset_for_a_starting_timestamp(timed):
    given = json.dumps({"t": {"0": T0, "1": NEVER, "2": T0}})
    with pytest.raises(OffsetOutOfRangeError, match="No record of t-1 is as late as startingOffsetsByTimestamp says"):
        values(timed, subscribe="t", startingOffsetsByTimestamp=given)


@pytest.mark.cases(3)
@pytest.mark.parametrize("strategy", [None, "error", "ERROR"])
@pytest.mark.parametrize(
    ("case", "option"),
    [("70 by name", "subscribe"), ("71 global", "subscribe"), ("72 by pattern", "subscribePattern")],
)
def test_a_start_that_no_record_reaches_fails_without_the_strategy_latest(timed, case, option, strategy):
    options = {} if strategy is None else {"startingOffsetsByTimestampStrategy": strategy}
    with pytest.raises(OffsetOutOfRangeError, match="startingOffsetsByTimestampStrategy"):
        values(timed, **{option: "t"}, startingTimestamp=NEVER, **options)


@pytest.mark.parametrize(
    ("case", "option", "given"),
    [
        ("70", "subscribe", "specific"),
        ("71", "subscribe", "global"),
        ("72", "subscribePattern", "specific"),
        ("73", "subscribePattern", "global"),
    ],
)
def test_a_start_that_no_record_reaches_is_the_end_with_the_strategy_latest(timed, case, option, given):
    start = (
        {"startingTimestamp": T0 + 5 * HOUR_MS}
        if given == "global"
        else {"startingOffsetsByTimestamp": json.dumps({"t": {"0": T0 + 2 * HOUR_MS, "1": NEVER, "2": NEVER}})}
    )
    found = values(timed, **{option: "t"}, startingOffsetsByTimestampStrategy="latest", **start)
    assert found == ([] if given == "global" else [20, 23, 26, 29])


def test_case_107_preferences_on_offset_related_options(timed):
    options = {"startingOffsets": "earliest", "endingOffsets": "latest"}
    options |= {"startingOffsetsByTimestamp": by_time(1), "endingOffsetsByTimestamp": by_time(2)}
    assert values(timed, subscribe="t", **options) == list(range(10, 20))
    options |= {"startingTimestamp": T0 + 2 * HOUR_MS, "endingTimestamp": T0 + 3 * HOUR_MS}
    assert values(timed, subscribe="t", **options) == list(range(20, 30))


def test_case_108_no_matched_offset_for_an_ending_timestamp_is_the_end(timed):
    given = json.dumps({"t": {"0": NEVER, "1": T0 + HOUR_MS, "2": NEVER}})
    expected = [number for number in range(30) if number % 10 % 3 != 1 or number < 10]
    assert values(timed, subscribe="t", endingOffsetsByTimestamp=given) == expected


def test_case_109_reuse_the_same_dataframe_in_a_query(spark, t):
    frame = spark.read.format("segments").option("subscribe", "t").load(t.uri)
    assert frame.union(frame).count() == 42


def test_case_110_a_dataframe_reads_what_retention_has_taken_since(spark, log):
    """Kafka's has only what is there when it runs: ours has the log of its load, whose files stay for a day."""
    log.create_topic("t", config={"retention.ms": "1000", "segment.ms": "1"})
    log.topic("t").append(table(range(5), 0))
    frame = spark.read.format("segments").option("subscribe", "t").load(log.uri)
    now_ms = log.storage.now_ms() + HOUR_MS
    roll(log, now_ms=now_ms)
    retain(log, now_ms=now_ms)
    log.topic("t").append(table(range(5, 8), 0, timestamp_ms=now_ms))
    assert values(log, subscribe="t") == [5, 6, 7]
    assert frame.count() == 5


LEVELS = [("121 and 24 committed", "read_committed"), ("122 and 25 uncommitted", "read_uncommitted")]


@pytest.mark.parametrize(("case", "level"), LEVELS)
def test_transactional_messages(case, level):
    """What a broker's log with aborted and open transactions gives, by its own list of records."""
    with lzma.open(GOLDEN / "txn-0.expected.jsonl.xz", "rt") as lines:
        records = [json.loads(line) for line in lines]
    committed = level == "read_committed"
    data = [one for one in records if not one["isControl"]]
    expected = [one["offset"] for one in data if one.get("committed", True) or not committed]
    found = in_process.load(str(GOLDEN / "txn-0"), {"subscribe": "txn", "kafka.isolation.level": level})
    assert [row["offset"] for row in found] == expected
    assert len(expected) < len(data if committed else records)


@pytest.mark.parametrize("case", ["28 micro-batch", "123 batch"])
def test_min_partitions_gives_that_many_tasks(t, case):
    _, few = in_process.plan(t.uri, {"subscribe": "t"})
    _, many = in_process.plan(t.uri, {"subscribe": "t", "minPartitions": 6})
    assert len(few) == 3 and len(many) >= 6
    assert values(t, subscribe="t", minPartitions=6) == list(range(21))


def test_case_126_a_resolved_start_above_a_resolved_end_fails(timed):
    options = {"startingOffsets": '{"t":{"0":5,"1":0,"2":0}}', "endingOffsetsByTimestamp": by_time(1)}
    with pytest.raises(InvalidOptionError, match="startingOffsets is above endingOffsetsByTimestamp for t-0"):
        values(timed, subscribe="t", **options)


def test_case_127_a_start_above_the_latest_offset_fails(log):
    log.create_topic("t")
    with pytest.raises(OffsetOutOfRangeError, match="expected 0 to 0, found 1"):
        values(log, subscribe="t", startingOffsets='{"t":{"0":1}}')


# Starts of KafkaSourceSuiteBase, as a batch has them: 39 to 68


@pytest.fixture(scope="module")
def five_made(tmp_path_factory):
    log = LogDir.create(str(tmp_path_factory.mktemp("five") / "log"))
    log.create_topic("t", partitions=5)
    for partition, hour in itertools.product(range(5), range(3)):
        log.topic("t").append(table([10 * partition + hour], partition, T0 + hour * HOUR_MS))
    return log


@pytest.fixture
def five(five_made, tmp_path):
    """Topic t: in partition n the values 10 * n, 10 * n + 1, 10 * n + 2; timestamps an hour apart."""
    return copy_of(five_made, tmp_path / "five")


STRATEGIES = {
    "assign": {"assign": '{"t":[0,1,2,3,4]}'},
    "subscribing by name": {"subscribe": "t"},
    "subscribing by pattern": {"subscribePattern": "t.*"},
}
ALL = [10 * partition + number for partition in range(5) for number in range(3)]
STARTS = {
    "earliest offsets": ({"startingOffsets": "earliest"}, ALL),
    "specific offsets": (
        {"startingOffsets": '{"t":{"0":-2,"1":0,"2":1,"3":2,"4":3}}'},
        [0, 1, 2, 10, 11, 12, 21, 22, 32],
    ),
    "specific timestamps": (
        {"startingOffsetsByTimestamp": json.dumps({"t": {str(n): T0 + min(n, 2) * HOUR_MS for n in range(5)}})},
        [0, 1, 2, 11, 12, 22, 32, 42],
    ),
    "global timestamp": ({"startingTimestamp": T0 + HOUR_MS}, [one for one in ALL if one % 10 > 0]),
    "topic-level offsets": ({"startingOffsets": '{"t":"earliest"}'}, ALL),
}


@pytest.mark.cases(5)
@pytest.mark.parametrize("fail_on_data_loss", ["true", pytest.param("false", marks=pytest.mark.proof)])
@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_cases_39_to_69_starts(five, strategy, start, fail_on_data_loss):
    options, expected = STARTS[start]
    assert values(five, **STRATEGIES[strategy], **options, failOnDataLoss=fail_on_data_loss) == expected
    five.topic("t").alter(partitions=6)
    if "specific" not in start and strategy != "assign":
        five.topic("t").append(table([52], 5, T0 + 2 * HOUR_MS))
        assert values(five, **STRATEGIES[strategy], **options) == [*expected, 52]


# What else holds for any read


def test_case_26_a_commit_between_plan_and_read_leaks_no_record(t):
    reader, tasks = in_process.plan(t.uri, {"subscribe": "t"})
    t.topic("t").append(table([30], 0))
    roll(t, now_ms=t.storage.now_ms() + HOUR_MS)
    found = [int(row["value"]) for task in tasks for batch in reader.read(task) for row in batch.to_pylist()]
    assert sorted(found) == list(range(21))


@pytest.mark.proof
def test_case_95_stress_with_multiple_topics_and_partitions(log):
    """Topics are made and deleted, partitions and records added at random: a load has what is there, by pattern."""
    choose = random.Random(95)
    there: dict[str, list[int]] = {}
    partitions: dict[str, int] = {}
    for step in range(120):
        act = choose.choice(["create", "delete", "widen", "append", "append", "append"])
        name = f"stress-{choose.randrange(5)}"
        if act == "create" and name not in there:
            partitions[name] = choose.randrange(1, 4)
            log.create_topic(name, partitions=partitions[name])
            there[name] = []
        elif act == "delete" and name in there:
            log.delete_topic(name)
            del there[name]
        elif act == "widen" and name in there:
            partitions[name] += 1
            log.topic(name).alter(partitions=partitions[name])
        elif act == "append" and name in there:
            log.topic(name).append(table([step], choose.randrange(partitions[name])))
            there[name].append(step)
        if step % 4 == 0 and there:
            assert values(log, subscribePattern="stress-.*") == sorted(itertools.chain(*there.values()))


def test_case_27_null_keys_and_values(log):
    log.create_topic("t")
    log.topic("t").append(pa.table({"key": [None, b"k", None], "value": pa.array([None, None, b"v"], pa.binary())}))
    found = [(row["key"], row["value"]) for row in in_process.load(log.uri, {"subscribe": "t"})]
    assert found == [(None, None), (b"k", None), (None, b"v")]


def test_case_29_a_timestamp_beyond_what_spark_can_hold_is_the_last_that_it_can(tmp_path):
    """Nanoseconds where milliseconds belong: the connector fails the query, here the record is read."""
    builder = DefaultRecordBatchBuilder(2, 0, 0, -1, -1, -1, 1 << 20)
    builder.append(0, 1_712_345_678_123_456_789, b"k", b"v", [])
    (tmp_path / "t-0").mkdir()
    (tmp_path / "t-0" / "00000000000000000000.log").write_bytes(builder.build())
    reader, (task,) = in_process.plan(str(tmp_path), {"subscribe": "t"})
    (batch,) = reader.read(task)
    assert batch.column("timestamp").cast("int64").to_pylist() == [(2**63 - 1) // 1000 * 1000]


def test_case_33_headers_are_left_out_unless_asked_for(log):
    log.create_topic("t")
    log.topic("t").append(table([1], 0, headers=[[{"key": "a", "value": b"b"}]]))
    (row,) = in_process.load(log.uri, {"subscribe": "t"})
    assert list(row) == ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType"]


def test_case_94_kafka_column_types(spark, log):
    now = datetime.datetime.now(datetime.UTC)
    log.create_topic("t")
    log.topic("t").append(
        pa.table({"value": [b"1"], "headers": table([1], 0, headers=[[{"key": "a", "value": b"b"}]])["headers"]})
    )
    (row,) = spark.read.format("segments").options(subscribe="t", includeHeaders="true").load(log.uri).collect()
    assert (row.key, row.value, row.topic, row.partition, row.offset, row.timestampType) == (None, b"1", "t", 0, 0, 0)
    assert row.timestamp.astimezone(datetime.UTC) >= now - datetime.timedelta(milliseconds=1)
    assert [(header.key, header.value) for header in row.headers] == [("a", b"b")]


def test_case_207_no_duplicated_records_where_retention_took_the_start(t):
    t.topic("t").delete_records({0: 4, 1: 10})
    given = '{"t":{"0":0,"1":0,"2":0}}'
    with pytest.raises(OffsetOutOfRangeError, match="failOnDataLoss"):
        values(t, subscribe="t", startingOffsets=given)
    assert values(t, subscribe="t", startingOffsets=given, failOnDataLoss="false") == [4, 5, 6, 7, 8, 9, 20]


def test_case_209_what_went_wrong_is_in_the_error(t):
    reader, tasks = in_process.plan(t.uri, {"subscribe": "t"})
    path = t.topic("t").snapshot.live.column("path").to_pylist()[0]
    t.storage.delete([path])
    with pytest.raises((SegmentsError, FileNotFoundError)) as caught:
        [list(reader.read(task)) for task in tasks]
    assert path in str(caught.value)


def test_case_210_a_task_that_is_tried_again_shares_nothing_with_the_one_that_failed(t):
    reader, (task, *_) = in_process.plan(t.uri, {"subscribe": "t"})
    failed = reader.read(task)
    next(failed)
    failed.close()
    assert sum(batch.num_rows for batch in reader.read(task)) == 10


def test_case_211_concurrent_use_of_one_partition(log):
    log.create_topic("t")
    log.topic("t").append(table(range(500), 0), options=ProducerOptions(batch_bytes=500))
    reader, (task,) = in_process.plan(log.uri, {"subscribe": "t"})
    found: list[list[int]] = []

    def read():
        found.append([int(row["value"]) for batch in reader.read(task) for row in batch.to_pylist()])

    threads = [threading.Thread(target=read) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [list(range(500))] * 20


@pytest.mark.parametrize("case", ["212 one after the other", "212 interleaved", "212 overlapping"])
def test_tasks_on_one_partition_do_not_disturb_each_other(log, case):
    log.create_topic("t")
    log.topic("t").append(table(range(500), 0), options=ProducerOptions(batch_bytes=500))

    def begin(start, end):
        options = {"startingOffsets": f'{{"t":{{"0":{start}}}}}', "endingOffsets": f'{{"t":{{"0":{end}}}}}'}
        reader, (task,) = in_process.plan(log.uri, {"subscribe": "t"} | options)
        assert isinstance(task, RangesPartition)
        return (row["offset"] for batch in reader.read(task) for row in batch.to_pylist())

    first, second = begin(0, 100), begin(50 if "overlapping" in case else 300, 500)
    if case.endswith("interleaved"):
        pairs = list(itertools.zip_longest(first, second))
        one, other = ([pair[side] for pair in pairs if pair[side] is not None] for side in (0, 1))
    else:
        one, other = list(first), list(second)
    assert one == list(range(100)) and other == list(range(50 if "overlapping" in case else 300, 500))
