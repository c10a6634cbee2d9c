"""The Kafka connector's stream suites case by case: KafkaMicroBatchSourceSuite, KafkaSourceSuiteBase, and what others
say of streams. Numbers are those of docs/design/kafka-connector-cases.md.

The reader runs as Spark's MicroBatchExecution runs it; tests of Spark itself are in test_streams_in_spark.py.
"""

from __future__ import annotations

import itertools
import json
import random
import threading

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from spark_segments.errors import InvalidOptionError, OffsetOutOfRangeError, SegmentsError
from spark_segments.spark.options import stream_options
from spark_segments.spark.source import Source
from tests.spark import in_process
from tests.spark.streams.conftest import T0, numbers, rows
from tests.spark.streams.in_process_query import Killed, Query
from verification.world.kafka_bytes.golden_files import GOLDEN

HOUR_MS = 3_600_000
FIVE = range(5)


def query(log, clock_ms=None, **options):
    named = {"subscribePattern", "assign", "subscribe"} & options.keys()
    given = {"startingOffsets": "earliest"} | ({} if named else {"subscribe": "t"})
    return Query(log.uri, given | options, clock_ms)


# KafkaMicroBatchSourceSuite


def test_case_2_trigger_available_now_splits_by_the_limit_and_ends(t, add):
    for partition in range(3):
        add(range(5 * partition, 5 * partition + 5), partition)
    stream = query(t, maxOffsetsPerTrigger=5).start(available_now=True)
    add([99])
    assert numbers(stream.run()) == list(range(15))
    # A share of 5/3 is rounded down, as the connector rounds it: its suite has one partition, and so three batches.
    assert [len(batch) for batch in stream.batches] == [3, 3, 3, 3, 3]
    single = query(t, assign='{"t":[1]}', maxOffsetsPerTrigger=2).start(available_now=True)
    single.run()
    assert [len(batch) for batch in single.batches] == [2, 2, 1]


def test_case_3_available_now_fails_where_partitions_became_unavailable(log):
    log.create_topic("t", partitions=5)
    for partition in FIVE:
        log.topic("t").append(rows(range(4), partition))
    stream = query(log, maxOffsetsPerTrigger=5, failOnDataLoss="false").start(available_now=True)
    stream.trigger()
    log.delete_topic("t")
    with pytest.raises(OffsetOutOfRangeError, match=r"Partition t-0 is gone.*AvailableNow.*start the query again"):
        stream.trigger()


def test_case_4_available_now_fails_where_planned_offsets_became_unavailable(t, add):
    add(range(9))
    stream = query(t, maxOffsetsPerTrigger=5, failOnDataLoss="false").start(available_now=True)
    stream.trigger()
    t.delete_topic("t")
    t.create_topic("t", partitions=3)
    add(range(2))
    with pytest.raises(OffsetOutOfRangeError, match=r"made again.*expected topic id.*found.*AvailableNow"):
        stream.trigger()


def test_case_5_initial_offsets_come_back_from_the_checkpoint(t, add):
    add(range(3))
    stream = query(t, startingOffsets="latest").start()
    stream.run()
    add(range(3, 6))
    assert numbers(stream.start().run()) == [3, 4, 5]


def test_case_6_a_limit_of_the_largest_number_reads_on_from_offset_5(t, add):
    add(range(5))
    stream = query(t, startingOffsets='{"t":{"0":5,"1":0,"2":0}}', maxOffsetsPerTrigger=2**63 - 1).start()
    add(range(5, 8))
    assert numbers(stream.run()) == [5, 6, 7]


def test_case_7_max_offsets_per_trigger(t, add):
    add(range(100, 201), 0)
    add(range(10, 21), 1)
    add([1], 2)
    stream = query(t, maxOffsetsPerTrigger=10).start()
    assert numbers(stream.trigger()) == [1, 10, *range(100, 108)]
    assert numbers(stream.trigger()) == [11, *range(108, 117)]
    stream.start()
    assert numbers(stream.trigger()) == [12, *range(117, 126)]
    stream.start(once=True)
    assert numbers(stream.trigger()) == [*range(13, 21), *range(126, 201)]


def test_case_8_min_offsets_per_trigger(t, add):
    now = [0]
    options = {"minOffsetsPerTrigger": 15, "maxTriggerDelay": "5s"}
    stream = query(t, lambda: now[0], **options).start()
    add(range(3), 0)
    assert numbers(stream.trigger()) == [0, 1, 2]
    add(range(100, 114), 1)
    assert stream.trigger() is None
    add([114], 2)
    assert numbers(stream.trigger()) == list(range(100, 115))
    add([7])
    now[0] += 4_999
    assert stream.trigger() is None
    now[0] += 1
    assert numbers(stream.trigger()) == [7]
    add([8])
    stream.start(once=True)
    assert numbers(stream.trigger()) == [8]


def test_case_9_composite_read_limit(t, add):
    now = [0]
    options = {"minOffsetsPerTrigger": 15, "maxOffsetsPerTrigger": 20, "maxTriggerDelay": "5s"}
    stream = query(t, lambda: now[0], **options).start()
    add(range(3))
    assert numbers(stream.trigger()) == [0, 1, 2]
    add(range(3, 17))
    assert stream.trigger() is None
    add(range(17, 30))
    assert numbers(stream.trigger()) == list(range(3, 23))
    assert stream.trigger() is None  # 7 wait
    now[0] += 5_000
    assert numbers(stream.trigger()) == list(range(23, 30))


def test_min_offsets_hold_back_no_batch_of_available_now(t, add):
    add(range(7))
    stream = query(t, lambda: 0, minOffsetsPerTrigger=5, maxOffsetsPerTrigger=6).start(available_now=True)
    assert numbers(stream.run()) == list(range(7))


def test_case_11_subscribing_by_pattern_with_topic_deletions(log):
    log.create_topic("events-a")
    log.topic("events-a").append(rows(range(3), 0))
    stream = query(log, subscribePattern="events-.*", failOnDataLoss="false").start()
    assert numbers(stream.run()) == [0, 1, 2]
    log.delete_topic("events-a")
    log.create_topic("events-b")
    log.topic("events-b").append(rows(range(4, 6), 0))
    assert numbers(stream.run()) == [4, 5]


def test_case_12_empty_offsets_are_never_recorded(log):
    log.create_topic("events-a")
    log.topic("events-a").append(rows(range(3), 0))
    stream = query(log, subscribePattern="events-.*", failOnDataLoss="false").start()
    stream.run()
    log.delete_topic("events-a")
    assert stream.trigger() is None
    log.create_topic("events-a")
    log.topic("events-a").append(rows(range(7, 9), 0))
    assert numbers(stream.run()) == [7, 8]
    assert all("events-a" in json.loads(offset) for offset in stream.offsets)


def test_case_13_topic_recreation_between_batches_is_a_loss(t, add):
    add(range(2))
    stream = query(t, subscribePattern="t.*").start()
    stream.run()
    t.delete_topic("t")
    t.create_topic("t", partitions=3)
    add([1])
    with pytest.raises(OffsetOutOfRangeError, match="made again"):
        stream.start().trigger()


def test_case_14_topic_level_offsets_tolerate_a_new_topic(log):
    log.create_topic("events-a")
    log.topic("events-a").append(rows([1], 0))
    stream = query(log, subscribePattern="events-.*", startingOffsets='{"events-a":"earliest"}').start()
    with pytest.raises(Killed):
        stream.trigger("planned")
    log.create_topic("events-b")
    log.topic("events-b").append(rows([2], 0))
    stream.start().run()
    assert numbers(stream.rows) == [1, 2]


@pytest.mark.parametrize("case", ["16 offsets of an older Spark", "202 offsets without a topic id"])
def test_an_old_checkpoint_resumes_where_it_stood(t, add, case):
    add(range(6))
    stream = query(t, startingOffsets="latest")
    stream.offsets, stream.committed, stream.batches = ['{"t": {"0": 4, "1": 0, "2": 0}}'], 1, [[]]
    assert numbers(stream.start().run()) == [4, 5]


def test_case_17_an_offset_of_a_newer_version_is_a_clear_error(t):
    stream = query(t)
    stream.offsets, stream.committed, stream.batches = ['{"/": {"version": 99999}, "t": {"0": 4}}'], 1, [[]]
    with pytest.raises(InvalidOptionError, match=r"newer version of this package.*found version 99999"):
        stream.start().trigger()


def test_case_19_a_topic_deleted_and_made_again_while_tasks_read_fails_no_task(t, add):
    add(range(50))
    stream = query(t, failOnDataLoss="false", maxRecordsPerPartition=10).start()
    reader = stream.reader
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    tasks = reader.partitions(start, end)
    found = [row for batch in reader.read(tasks[0]) for row in batch.to_pylist()]
    t.delete_topic("t")
    t.create_topic("t", partitions=3)
    found += [row for task in tasks[1:] for batch in reader.read(task) for row in batch.to_pylist()]
    assert numbers(found) == list(range(50))


def test_case_20_a_source_without_new_data_keeps_its_offset(t, add):
    """A union runs a batch where one of its sources has new data: the other then gives its last offset again."""
    add(range(3))
    quiet = query(t, maxOffsetsPerTrigger=5).start()
    quiet.run()
    reader = quiet.start().reader
    last = json.loads(quiet.offsets[-1])
    assert reader.latestOffset(last, reader.getDefaultReadLimit()) == last
    assert reader.partitions(last, last) == []


@pytest.mark.parametrize("name", ["groupIdPrefix", "kafka.group.id"])
@pytest.mark.parametrize("case", ["21 allow group.id prefix", "22 allow group.id override"])
def test_group_ids_are_accepted(t, add, case, name):
    add([1])
    assert numbers(query(t, **{name: "mine"}).start().run()) == [1]


@pytest.mark.cases(1)
@pytest.mark.parametrize(
    ("case", "level"),
    [
        ("24 read Kafka transactional messages: read_committed", "read_committed"),
        ("25 read Kafka transactional messages: read_uncommitted", "read_uncommitted"),
    ],
)
def test_transactional_messages(log, case, level):
    """txn-0 was written by Kafka: committed, aborted and open transactions. Markers count as offsets for the limit."""
    log.import_kafka(str(GOLDEN), topic="txn")
    options = {"subscribe": "txn", "startingOffsets": "earliest", "isolation.level": level}
    stream = Query(log.uri, options | {"maxOffsetsPerTrigger": 10}).start()
    expected = in_process.load(log.uri, options)
    assert sorted(row["offset"] for row in stream.run()) == [row["offset"] for row in expected]
    assert min(len(batch) for batch in stream.batches[:-1]) < 10


def test_case_26_a_commit_between_plan_and_read_leaks_no_record(t, add):
    add(range(3))
    reader = query(t).start().reader
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    add(range(3, 9))
    found = [row for task in reader.partitions(start, end) for batch in reader.read(task) for row in batch.to_pylist()]
    assert numbers(found) == [0, 1, 2]


def test_case_28_min_partitions_gives_that_many_tasks(t, add):
    for partition in range(3):
        add(range(10), partition)
    stream = query(t, minPartitions=6).start()
    assert len(stream.run()) == 30
    assert stream.tasks[0] >= 6


def test_max_records_per_partition_bounds_a_task(t, add):
    add(range(10))
    reader = query(t, maxRecordsPerPartition=4).start().reader
    start = reader.initialOffset()
    tasks = reader.partitions(start, reader.latestOffset(start, ReadAllAvailable()))
    assert [sum(batch.num_rows for batch in reader.read(task)) for task in tasks] == [3, 3, 4]


def test_case_33_headers_are_left_out_unless_asked_for(t, add):
    add([1])
    assert "headers" not in query(t).start().run()[0]


# KafkaSourceSuiteBase

STRATEGIES = {
    "assign": {"assign": '{"t":[0,1,2,3,4]}'},
    "by name": {"subscribe": "t"},
    "by pattern": {"subscribePattern": "t.*"},
}
STARTS = ["latest", "earliest", "specific offsets", "specific timestamps", "global timestamp"]
MATRIX = [
    pytest.param(how, start, fails, id=f"{39 + number} {how} from {start} (failOnDataLoss: {fails})")
    for number, (how, fails, start) in enumerate(
        (how, fails, start) for how in STRATEGIES for fails in ("true", "false") for start in STARTS
    )
]


@pytest.mark.cases(3)
@pytest.mark.parametrize(("how", "start", "fails"), MATRIX)
def test_from_each_start_by_each_strategy(log, how, start, fails):
    log.create_topic("t", partitions=5)
    options = STRATEGIES[how] | {"failOnDataLoss": fails}
    if start in ("latest", "earliest"):
        log.topic("t").append(rows([-1], 0))
        options["startingOffsets"] = start
        expected = [] if start == "latest" else [-1]
    elif start == "specific offsets":
        for partition, values in enumerate([(-20, -21, -22), (-10, -11, -12), (0, 1, 2), (10, 11, 12), (20, 21, 22)]):
            log.topic("t").append(rows(values, partition))
        options["startingOffsets"] = '{"t":{"0":-2,"1":-1,"2":0,"3":1,"4":2}}'
        expected = [-22, -21, -20, 0, 1, 2, 11, 12, 22]
    else:
        expected = []
        for partition in FIVE:
            log.topic("t").append(rows([10 * partition], partition, T0))
            log.topic("t").append(rows([10 * partition + 1], partition, T0 + HOUR_MS))
            expected.append(10 * partition + 1)
        if start == "global timestamp":
            options["startingTimestamp"] = T0 + 1
        else:
            options["startingOffsetsByTimestamp"] = json.dumps({"t": {str(number): T0 + 1 + number for number in FIVE}})
    stream = query(log, **options).start()
    assert numbers(stream.run()) == expected
    log.topic("t").append(rows([1002, 1003], 1))
    assert numbers(stream.run()) == [1002, 1003]
    stream.start()
    assert stream.run() == []
    stream.reader = None
    log.topic("t").append(rows([1004, 1005], 2))
    assert numbers(stream.start().run()) == [1004, 1005]
    if how != "assign":
        log.topic("t").alter(partitions=10)
        log.topic("t").append(rows([1006, 1007], 9))
        assert numbers(stream.run()) == [1006, 1007]


def test_case_69_subscribing_topics_from_topic_level_offsets(log):
    for name in ("t1", "t2"):
        log.create_topic(name)
        log.topic(name).append(rows([1], 0))
    stream = query(log, subscribe="t1,t2", startingOffsets='{"t1":"earliest","t2":"latest"}').start()
    found = stream.run()
    assert [row["topic"] for row in found] == ["t1"]
    log.topic("t2").append(rows([2], 0))
    assert [row["topic"] for row in stream.start().run()] == ["t2"]


@pytest.mark.cases(4)
@pytest.mark.parametrize("strategy", [None, "error", "latest"])
@pytest.mark.parametrize(
    "case",
    [
        "70 by name from specific timestamps",
        "71 by name from global timestamp",
        "72 by pattern from specific timestamps",
        "73 by pattern from global timestamp",
    ],
)
def test_a_starting_time_that_nothing_matches(t, add, case, strategy):
    for partition in (0, 1):
        add([partition], partition, T0)
    late = T0 - 1
    times = {"t": {"0": late, "1": late, "2": late}}
    options = dict(STRATEGIES["by name" if "name" in case else "by pattern"])
    options |= {"startingTimestamp": late} if "global" in case else {"startingOffsetsByTimestamp": json.dumps(times)}
    options |= {} if strategy is None else {"startingOffsetsByTimestampStrategy": strategy}
    stream = query(t, **options).start()
    if strategy != "latest":
        with pytest.raises(OffsetOutOfRangeError, match="No record of t-2 is as late"):
            stream.run()
        return
    assert numbers(stream.run()) == [0, 1]
    add([7], 2, T0 - HOUR_MS)
    assert numbers(stream.run()) == [7]


def test_case_74_a_batch_that_failed_is_planned_again_after_partitions_were_added(t, add):
    add(range(9))
    stream = query(t, maxOffsetsPerTrigger=5).start(available_now=True)
    with pytest.raises(Killed):
        stream.trigger("planned")
    t.topic("t").alter(partitions=6)
    add([50], 5)
    stream.start(available_now=True).run()
    assert numbers(stream.rows) == [*range(9), 50]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        pytest.param({"endingOffsets": "latest"}, "endingOffsets is not valid in streams", id="75 endingOffsets"),
        pytest.param(
            {"endingOffsetsByTimestamp": '{"t":{"0":1}}'},
            "endingOffsetsByTimestamp is not valid in streams",
            id="76 endingOffsetsByTimestamp",
        ),
        pytest.param({"endingTimestamp": "5"}, "endingTimestamp is not valid in streams", id="endingTimestamp"),
        pytest.param({"versionAsOf": "1"}, "versionAsOf is not valid in streams", id="versionAsOf"),
        pytest.param({"timestampAsOf": "1"}, "timestampAsOf is not valid in streams", id="timestampAsOf"),
        pytest.param({"view": "latest"}, "view is not valid in streams", id="view"),
        pytest.param(
            {"maxTriggerDelay": "soon"}, "maxTriggerDelay .*expected a time such as .*'soon'", id="maxTriggerDelay"
        ),
        pytest.param({"maxOffsetsPerTrigger": "0"}, "a whole number of at least 1", id="maxOffsetsPerTrigger"),
    ],
)
@pytest.mark.parametrize("spell", [str, str.upper])
def test_bad_options_of_streams(options, message, spell):
    given = {"path": "/log", "subscribe": "t"} | {spell(name): value for name, value in options.items()}
    with pytest.raises(InvalidOptionError, match=message):
        stream_options(given)


def test_an_option_that_a_stream_cannot_have_is_raised_by_what_spark_asks_first(t):
    """Python sources are not told at load() that they are for a stream: the query's start is the first to know."""
    source = Source({"path": t.uri, "subscribe": "t", "endingOffsets": "latest"})
    reader = source.stream_reader(source.schema())
    asked = (reader.initialOffset, []), (reader.latestOffset, [{}, ReadAllAvailable()]), (reader.latestOffset, [])
    for ask, arguments in (*asked, (reader.partitions, [{}, {}])):
        with pytest.raises(InvalidOptionError, match="endingOffsets is not valid in streams"):
            ask(*arguments)


@pytest.mark.parametrize("case", ["93 option absent: the default given"])
def test_a_stream_begins_at_latest_by_default_as_in_the_connector(t, add, case):
    add(range(3))
    stream = Query(t.uri, {"subscribe": "t"}).start()
    assert stream.run() == []
    add([3])
    assert numbers(stream.run()) == [3]


def test_times_of_max_trigger_delay_are_sparks():
    def delay_ms(text):
        return stream_options({"path": "/log", "subscribe": "t", "maxTriggerDelay": text}).max_delay_ms

    given = ["5000", "500ms", "30s", "15m", "2 min", "1h", "1d", "2500us", "7S"]
    found = [5000, 500, 30_000, 900_000, 120_000, 3_600_000, 86_400_000, 2, 7000]
    assert [delay_ms(text) for text in given] == found
    assert stream_options({"path": "/log", "subscribe": "t"}).max_delay_ms == 15 * 60_000


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("kafka.auto.offset.reset", id="84 kafka.auto.offset.reset"),
        pytest.param("kafka.enable.auto.commit", id="85 kafka.enable.auto.commit"),
        pytest.param("kafka.interceptor.classes", id="86 kafka.interceptor.classes"),
        pytest.param("kafka.key.deserializer", id="87 kafka.key.deserializer"),
        pytest.param("kafka.value.deserializer", id="88 kafka.value.deserializer"),
    ],
)
def test_unsupported_kafka_configs(name):
    with pytest.raises(InvalidOptionError, match=f"{name} is not supported"):
        stream_options({"path": "/log", "subscribe": "t", name: "any"})


def test_case_194_options_of_a_stream_are_case_insensitive():
    names = ["kafkaConsumer.pollTimeoutMs", "fetchOffset.numRetries", "fetchOffset.retryIntervalMs"]
    for spell in (str.lower, str.upper):
        given = {"path": "/log", "subscribe": "t"} | {spell(name): "1234" for name in names}
        given |= {spell(name): "7" for name in ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay")}
        options = stream_options(given)
        assert (options.max_offsets, options.min_offsets, options.max_delay_ms) == (7, 7, 7)


@pytest.mark.proof
def test_case_95_stress_with_topics_partitions_data_and_restarts(log):
    """Random changes: a topic or a partition more, data, a restart. The stream has every record, once, in order."""
    chance = random.Random(17)
    topics, sent = ["s0"], []
    log.create_topic("s0")
    stream = query(log, subscribePattern="s.*", maxOffsetsPerTrigger=7).start()
    for _ in range(60):
        what = chance.choice(["topic", "partitions", "data", "data", "data", "restart", "run", "kill"])
        if what == "topic" and len(topics) < 6:
            topics.append(f"s{len(topics)}")
            log.create_topic(topics[-1])
        elif what == "partitions":
            name = chance.choice(topics)
            log.topic(name).alter(partitions=len(log.topic(name).offsets()) + 1)
        elif what == "data":
            name = chance.choice(topics)
            values = list(range(len(sent), len(sent) + chance.randint(1, 9)))
            log.topic(name).append(rows(values, chance.choice(list(log.topic(name).offsets()))))
            sent += values
        elif what == "restart":
            stream.start()
        elif what == "run":
            stream.run()
        else:
            try:
                stream.trigger(chance.choice(["planned", "written"]))
            except Killed:
                stream.start()
    stream.run()
    assert numbers(stream.rows) == sent
    by_partition = {}
    for row in stream.rows:
        last = by_partition.get((row["topic"], row["partition"]), -1)
        assert row["offset"] == last + 1
        by_partition[row["topic"], row["partition"]] = row["offset"]


# KafkaSourceOffsetSuite


@pytest.mark.parametrize("case", ["203 comparison of offsets", "204 comparison only of partitions in both"])
def test_an_end_is_below_its_start_in_no_partition(t, add, case):
    """Spark compares offsets of Python sources as text, so the source itself sees that none goes back."""
    add(range(9))
    stream = query(t, maxOffsetsPerTrigger=2).start()
    t.topic("t").alter(partitions=4)
    add(range(5), 3)
    stream.run()
    ends = [json.loads(offset)["t"] for offset in stream.offsets]
    for earlier, later in itertools.pairwise(ends):
        assert all(later[partition] >= offset for partition, offset in earlier.items())


# KafkaDontFailOnDataLossSuite and KafkaDataConsumerSuite


def test_case_205_no_duplicated_records_where_retention_took_the_start(t, add):
    add(range(20))
    t.topic("t").delete_records({0: 10})
    stream = query(t, startingOffsets='{"t":{"0":0,"1":0,"2":0}}', failOnDataLoss="false").start()
    assert numbers(stream.run()) == list(range(10, 20))


@pytest.mark.proof
def test_case_208_stress_for_fail_on_data_loss_false(log):
    """Topics come, go and are made again while a stream reads: it never fails, and reads nothing twice."""
    chance = random.Random(23)
    stream = query(log, subscribePattern="d.*", failOnDataLoss="false", maxOffsetsPerTrigger=11).start()
    there, sent = set(), 0
    for _ in range(80):
        name = f"d{chance.randint(0, 3)}"
        if name not in there:
            log.create_topic(name, partitions=2)
            there.add(name)
        elif chance.random() < 0.25:
            log.delete_topic(name)
            there.remove(name)
        else:
            log.topic(name).append(rows(range(sent, sent + 9), chance.randint(0, 1)))
            sent += 9
        if chance.random() < 0.3:
            stream.start()
        stream.trigger()
    found = numbers(stream.rows)
    assert len(found) == len(set(found))
    assert len(found) > 100


def test_case_209_what_went_wrong_is_in_the_error(t, add):
    add(range(9))
    stream = query(t).start()
    stream.run()
    t.delete_topic("t")
    with pytest.raises(SegmentsError, match=r"Partition t-0 is gone.*failOnDataLoss"):
        stream.trigger()


def test_case_211_concurrent_streams_of_one_partition(t, add):
    add(range(100))
    results = []

    def read():
        results.append(numbers(query(t, assign='{"t":[0]}', maxOffsetsPerTrigger=30).start().run()))

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [list(range(100))] * 4
