"""The Kafka connector's suites on options, case by case: JsonUtilsSuite, KafkaSourceProviderSuite,
KafkaOffsetRangeLimitSuite, ConsumerStrategySuite, KafkaOffsetReaderSuite's levels and the bad options of
KafkaSourceSuiteBase and KafkaRelationSuite. Numbers are those of docs/design/kafka-connector-cases.md. No Spark.
"""

from __future__ import annotations

import pytest
from pyspark.sql.types import StructType

from spark_segments.errors import InvalidOptionError, SegmentsError, UnknownTopicError
from spark_segments.spark.options import read_options, write_options
from spark_segments.spark.options.limits import EARLIEST, LATEST_OFFSET, Limit
from spark_segments.spark.options.topics import Topics
from spark_segments.spark.row_writer import check_writable_columns
from tests.spark.test_offsets import lookup, read_by, snapshot


def read(**options):
    location = {"path": "/log"} | (
        {} if {"subscribePattern", "assign", "SUBSCRIBE"} & options.keys() else {"subscribe": "t"}
    )
    return read_options(location | options)


def refusal(parse, *arguments, **options) -> str:
    with pytest.raises(SegmentsError) as caught:
        parse(*arguments, **options)
    return str(caught.value)


# JsonUtilsSuite


def test_case_182_parsing_partitions():
    assert read(assign='{"topicA":[0,1],"topicB":[4,6]}').topics.partitions == {"topicA": (0, 1), "topicB": (4, 6)}


@pytest.mark.parametrize("case", ["183 parsing partitionOffsets", "184 parsing specificOffsets"])
def test_parsing_offsets_by_partition(case):
    given = '{"topicA":{"0":23,"1":-2},"topicB":{"0":5}}'
    assert read(startingOffsets=given).start.offsets == {("topicA", 0): 23, ("topicA", 1): EARLIEST, ("topicB", 0): 5}
    assert read(endingOffsets='{"topicA":{"0":-1}}').end.offsets == {("topicA", 0): LATEST_OFFSET}


def test_case_185_topic_level_earliest_and_latest():
    assert read(startingOffsets='{"a":"earliest"}').start == Limit(
        "startingOffsets", offsets={}, topics={"a": EARLIEST}
    )
    assert read(endingOffsets='{"a":"latest","b":"LATEST"}').end.topics == {"a": LATEST_OFFSET, "b": LATEST_OFFSET}


def test_case_186_mixing_topic_level_and_partition_level():
    end = read(endingOffsets='{"a":"LaTeSt","b":{"0":23}}').end
    assert (end.topics, end.offsets) == ({"a": LATEST_OFFSET}, {("b", 0): 23})


@pytest.mark.parametrize(
    "given", ['{"a":"earliest","a":{"0":1}}', '{"a":{"0":1},"a":"earliest"}', '{"a":{"0":1,"0":2}}']
)
def test_case_187_rejects_a_topic_given_in_both_forms(given):
    message = refusal(read, startingOffsets=given)
    assert "startingOffsets" in message and "stands twice" in message


@pytest.mark.parametrize(
    "given",
    [
        pytest.param('{"topicA":"first"}', id="188 another word"),
        pytest.param('{"topicA":[0,1]}', id="189 an array"),
        pytest.param('{"topicA":{"0":"earliest"}}', id="190 a word for a partition"),
        pytest.param('"earliest"', id="191 a word in quotes"),
        pytest.param("not json", id="192 no JSON"),
    ],
)
def test_malformed_json_is_rejected_with_the_json_and_the_right_form(given):
    message = refusal(read, startingOffsets=given)
    assert repr(given) in message and "expected earliest, latest, or JSON such as" in message


# KafkaSourceProviderSuite, and what KafkaSourceSuiteBase says of case


@pytest.mark.parametrize("spell", [str.lower, str.upper])
@pytest.mark.parametrize("case", ["193 batch", "194 micro-batch"])
def test_options_are_case_insensitive(case, spell):
    names = ["kafkaConsumer.pollTimeoutMs", "fetchOffset.numRetries", "fetchOffset.retryIntervalMs"]
    names += ["maxOffsetsPerTrigger"] if case.startswith("194") else []
    options = read(**{spell(name): "1234" for name in names}, **{spell("minPartitions"): "3"})
    assert options.min_partitions == 3


@pytest.mark.parametrize(
    ("name", "given", "limit"),
    [
        pytest.param("startingOffsets", "earLiEst", {"offset": EARLIEST}, id="89 startingOffsets earLiEst"),
        pytest.param("endingOffsets", "laTest", {"offset": LATEST_OFFSET}, id="90 endingOffsets laTest"),
        pytest.param("startingOffsets", '{"topic-A":{"0":23}}', {"offsets": {("topic-A", 0): 23}}, id="91 specific"),
        pytest.param(
            "startingOffsets",
            '{"topic-A":"eArLiEst","topic-B":{"0":23}}',
            {"offsets": {("topic-B", 0): 23}, "topics": {"topic-A": EARLIEST}},
            id="92 mixed",
        ),
        pytest.param("startingOffsets", None, {"offset": EARLIEST}, id="93 absent: the default"),
    ],
)
def test_offsets_from_case_insensitive_parameters(name, given, limit):
    options = read(**({} if given is None else {name.upper(): given}))
    found = options.start if name.startswith("starting") else options.end
    assert found.option == name
    assert found.offset == limit.get("offset") and (found.offsets or {}) == limit.get("offsets", {})
    assert (found.topics or {}) == limit.get("topics", {})


# KafkaOffsetRangeLimitSuite


def resolve(snapshots, **options):
    given = read_options({"path": "/log"} | options)
    return {(topic, partition): (start, end) for topic, partition, start, end in read_by(given, snapshots, lookup)}


def test_case_179_topic_level_offsets_stand_for_all_partitions():
    snapshots = {"topicA": snapshot("topicA", [(7, 30), (5, 40)]), "topicB": snapshot("topicB", [(0, 50)])}
    found = resolve(snapshots, subscribe="topicA,topicB", startingOffsets='{"topicA":"earliest","topicB":{"0":23}}')
    assert found == {("topicA", 0): (7, 30), ("topicA", 1): (5, 40), ("topicB", 0): (23, 50)}


def test_case_180_offsets_of_all_partitions_need_no_look_up():
    given = read(startingOffsets='{"t":{"0":1,"1":2}}', endingOffsets='{"t":{"0":3,"1":4}}')
    found = read_by(given, {"t": snapshot("t", [(0, 9), (0, 9)])}, pytest.fail)
    assert [(start, end) for _, _, start, end in found] == [(1, 3), (2, 4)]


def test_case_181_a_topic_level_offset_of_a_topic_that_is_not_read_fails():
    message = refusal(
        resolve, {"t": snapshot("t")}, subscribe="t", startingOffsets='{"t":"earliest","other":"earliest"}'
    )
    assert "an offset for topic other, of which no partition is read" in message


# ConsumerStrategySuite


def test_case_196_assign_reads_the_named_partitions():
    snapshots = {"t": snapshot("t", [(0, 1), (0, 2), (0, 3)])}
    assert resolve(snapshots, assign='{"t":[0,2]}') == {("t", 0): (0, 1), ("t", 2): (0, 3)}


def test_case_197_an_assigned_partition_that_is_not_there_is_skipped_where_loss_is_allowed():
    """The connector skips it always: whoever named it would not learn that nothing was read."""
    snapshots = {"t": snapshot("t", [(0, 1)])}
    with pytest.raises(UnknownTopicError, match="no such partition: expected 0 to 0, found 1"):
        resolve(snapshots, assign='{"t":[1]}')
    assert resolve(snapshots, assign='{"t":[0,1]}', failOnDataLoss="false") == {("t", 0): (0, 1)}


def test_case_198_subscribe_reads_all_partitions_of_both_topics():
    snapshots = {"a": snapshot("a", [(0, 1), (0, 1)]), "b": snapshot("b", [(0, 2)])}
    assert resolve(snapshots, subscribe="a,b").keys() == {("a", 0), ("a", 1), ("b", 0)}


def test_case_199_subscribe_pattern_reads_matching_topics_alone():
    assert Topics(pattern="t.*").chosen(lambda: ["topic1", "other", "topic2"]) == ["topic1", "topic2"]


# KafkaOffsetReaderSuite: isolation levels


@pytest.mark.parametrize(
    ("given", "level"),
    [
        pytest.param({}, "read_uncommitted", id="170 default"),
        pytest.param({"kafka.isolation.level": "read_uncommitted"}, "read_uncommitted", id="171 read_uncommitted"),
        pytest.param({"kafka.isolation.level": "read_committed"}, "read_committed", id="172 read_committed"),
    ],
)
def test_isolation_level(given, level):
    assert read(**given).isolation_level == level


def test_case_173_isolation_level_invalid():
    assert "expected read_uncommitted or read_committed" in refusal(read, **{"kafka.isolation.level": "random"})


# Bad options: KafkaSourceSuiteBase (77-88) and KafkaRelationSuite (111-120, 124, 125)

BAD = [
    (111, {"startingOffsets": "latest"}, "startingOffsets cannot be latest"),
    (112, {"startingOffsets": '{"t":{"0":-1}}'}, "cannot be latest for t-0"),
    (113, {"endingOffsets": "earliest"}, "endingOffsets cannot be earliest"),
    (114, {"endingOffsets": '{"t":{"0":-2}}'}, "cannot be earliest for t-0"),
    (77, {"subscribe": None}, "exactly one of the options subscribe, subscribePattern, assign, found none"),
    (115, {"subscribe": None}, "exactly one of the options subscribe, subscribePattern, assign, found none"),
    (78, {"subscribePattern": "t.*"}, "found subscribe and subscribePattern"),
    (116, {"subscribePattern": "t.*"}, "found subscribe and subscribePattern"),
    (79, {"assign": '{"t":[0]}'}, "found subscribe and assign"),
    (117, {"assign": '{"t":[0]}'}, "found subscribe and assign"),
    (80, {"subscribe": None, "assign": ""}, "needs to know its topics"),
    (118, {"subscribe": None, "assign": "{}"}, "assign names no partition"),
    (81, {"subscribe": ""}, "needs to know its topics"),
    (119, {"subscribe": ","}, "subscribe names no topic"),
    (82, {"subscribe": None, "subscribePattern": ""}, "needs to know its topics"),
    (120, {"subscribe": None, "subscribePattern": " "}, "needs to know its topics"),
    (83, {"minOffsetsPerTrigger": "20", "maxOffsetsPerTrigger": "15"}, "at most 15, found 20"),
    (84, {"kafka.auto.offset.reset": "latest"}, "kafka.auto.offset.reset is not supported"),
    (85, {"kafka.enable.auto.commit": "true"}, "kafka.enable.auto.commit is not supported"),
    (86, {"kafka.interceptor.classes": "x"}, "kafka.interceptor.classes is not supported"),
    (87, {"kafka.key.deserializer": "x"}, "kafka.key.deserializer is not supported"),
    (88, {"kafka.value.deserializer": "x"}, "kafka.value.deserializer is not supported"),
    (
        124,
        {"startingOffsets": '{"t":{"0":1,"1":1,"2":1}}', "endingOffsets": '{"t":{"0":2,"1":2}}'},
        "the same partitions",
    ),
    (125, {"startingOffsets": '{"t":{"0":1}}', "endingOffsets": '{"t":{"0":0}}'}, "at most 0, found 1"),
]


@pytest.mark.parametrize("spell", [str, str.upper], ids=["as documented", "in upper case"])
@pytest.mark.parametrize(("case", "options", "message"), BAD, ids=[f"{case} {message}" for case, _, message in BAD])
def test_bad_options_are_refused_at_load(case, options, message, spell):
    given = {"subscribe": "t"} | options
    given = {spell(name): value for name, value in given.items() if value is not None}
    assert message in refusal(read_options, {"path": "/log"} | given)


def test_case_176_a_start_that_leaves_out_a_partition_names_both_sets():
    message = refusal(resolve, {"t": snapshot("t", [(0, 9)] * 3)}, subscribe="t", startingOffsets='{"t":{"0":1,"1":1}}')
    assert "expected t-0, t-1, t-2" in message and "t-2 left out" in message


# KafkaSinkSuite: schemas and serializers


def columns(text: str) -> StructType:
    schema = StructType()
    for column in text.split(", "):
        name, kind = column.split()
        schema = schema.add(name, {"int": "integer"}.get(kind, kind))
    return schema


@pytest.mark.parametrize(
    ("schema", "topic", "message"),
    [
        pytest.param("value string", False, "The write names no topic", id="132 no topic"),
        pytest.param("key string", True, "a column named value", id="133 no value"),
        pytest.param("topic int, value string", False, "Column topic has a type", id="134 topic int"),
        pytest.param("value int", True, "Column value has a type", id="135 value int"),
        pytest.param("key int, value string", True, "Column key has a type", id="136 key int"),
        pytest.param("partition string, value string", True, "Column partition has a type", id="137 partition string"),
    ],
)
def test_write_data_with_bad_schema(schema, topic, message):
    with pytest.raises(InvalidOptionError, match=message):
        check_writable_columns(columns(schema), topic_given=topic)


@pytest.mark.parametrize("name", ["kafka.key.serializer", "kafka.value.serializer", "KAFKA.VALUE.SERIALIZER"])
def test_case_139_serializers_are_not_supported(name):
    message = refusal(write_options, {"path": "/log", "topic": "t", name: "foo"})
    assert f"Option {name.lower()} is not supported" in message


@pytest.mark.parametrize(
    ("case", "options"),
    [
        ("21 allow group.id prefix", {"groupIdPrefix": "mine"}),
        ("22 allow group.id override", {"kafka.group.id": "mine"}),
        ("22 a broker's address", {"kafka.bootstrap.servers": "h:9092", "kafka.security.protocol": "SASL_SSL"}),
    ],
)
def test_what_only_a_broker_needs_is_accepted_and_means_nothing(case, options):
    assert read(**options) == read()


def test_case_69_topic_level_offsets_of_several_topics():
    snapshots = {"t1": snapshot("t1", [(3, 9)]), "t2": snapshot("t2", [(4, 9)])}
    given = {
        "startingOffsets": '{"t1":"earliest","t2":"EARLIEST"}',
        "endingOffsets": '{"t1":"latest","t2":{"0":6}}',
    }
    assert resolve(snapshots, subscribe="t1,t2", **given) == {("t1", 0): (3, 9), ("t2", 0): (4, 6)}
