"""Options of the reader and the writer, parsed without Spark."""

from __future__ import annotations

import pytest

from spark_segments.errors import InvalidOptionError
from spark_segments.spark.options import (
    READ_COMMITTED,
    READ_UNCOMMITTED,
    is_read,
    read_options,
    write_options,
)
from spark_segments.spark.options.limits import EARLIEST, LATEST_OFFSET, Limit
from spark_segments.spark.options.topics import Topics


def read(**options):
    return read_options({"path": "/log", "subscribe": "orders"} | options)


def write(**options):
    return write_options({"path": "/log", "topic": "orders"} | options)


def refusal(parse, **options) -> str:
    with pytest.raises(InvalidOptionError) as caught:
        parse(**options)
    return str(caught.value)


def test_defaults_of_a_read_are_those_of_sparks_kafka_source():
    options = read()
    assert options.location.uri == "/log" and options.location.storage_options == {}
    assert options.topics == Topics(names=("orders",))
    assert options.start == Limit("startingOffsets", offset=EARLIEST)
    assert options.end == Limit("endingOffsets", offset=LATEST_OFFSET)
    assert options.fail_on_data_loss and not options.include_headers and not options.latest_where_no_time_matches
    assert options.isolation_level == READ_UNCOMMITTED
    assert (options.min_partitions, options.max_records_per_partition, options.max_partition_bytes) == (None,) * 3
    assert options.version is None


def test_names_of_options_are_case_insensitive():
    options = read_options({"PATH": "/log", "SubScribe": "orders", "MINPARTITIONS": "7", "failondataloss": "FALSE"})
    assert options.min_partitions == 7 and not options.fail_on_data_loss


def test_the_three_ways_to_name_topics():
    assert read(subscribe=" b, a,,b ").topics == Topics(names=("b", "a"))
    assert read_options({"path": "/log", "subscribePattern": "or.*"}).topics == Topics(pattern="or.*")
    assigned = read_options({"path": "/log", "assign": '{"orders":[2,0,2],"none":[]}'}).topics
    assert assigned == Topics(partitions={"orders": (0, 2)})


@pytest.mark.parametrize(
    "options",
    [
        {"subscribe": ""},
        {"subscribe": " , "},
        {"subscribePattern": "a.*"},
        {"subscribe": "", "subscribePattern": "("},
        {"subscribe": "", "assign": "orders"},
        {"subscribe": "", "assign": '{"orders":0}'},
        {"subscribe": "", "assign": '{"orders":["0"]}'},
        {"subscribe": "", "assign": '{"orders":[-1]}'},
        {"subscribe": "", "assign": '{"orders":[true]}'},
        {"subscribe": "", "assign": "{}"},
    ],
)
def test_topics_that_are_not_named_in_exactly_one_good_way_are_refused(options):
    assert "subscribe" in refusal(read, **options) or "assign" in refusal(read, **options)


def test_a_reader_given_the_writers_topic_is_told_of_subscribe():
    assert "a reader's is subscribe" in refusal(read, subscribe="", topic="orders")


def test_a_missing_path_is_an_error_that_shows_how_to_give_one():
    with pytest.raises(InvalidOptionError, match=r"load\(\"/data/log\"\)"):
        read_options({"subscribe": "orders"})
    with pytest.raises(InvalidOptionError, match="A read takes a single log directory"):
        read_options({"subscribe": "orders", "paths": '["/a","/b"]'})


def test_a_time_beats_times_by_partition_which_beat_offsets():
    by_time = '{"orders":{"0":1000}}'
    everything = {"startingOffsets": "earliest", "startingOffsetsByTimestamp": by_time, "startingTimestamp": "5"}
    assert read(**everything).start == Limit("startingTimestamp", timestamp_ms=5)
    del everything["startingTimestamp"]
    assert read(**everything).start == Limit("startingOffsetsByTimestamp", timestamps_ms={("orders", 0): 1000})


def test_offsets_by_partition_are_sparks_json():
    options = read(
        startingOffsets='{"orders":{"0":23,"1":-2}}',
        endingOffsets='{"orders":{"0":50,"1":-1}}',
    )
    assert options.start.offsets == {("orders", 0): 23, ("orders", 1): EARLIEST}
    assert options.end.offsets == {("orders", 0): 50, ("orders", 1): LATEST_OFFSET}


@pytest.mark.parametrize(
    "value", ["first", "{", "[]", '{"orders":[1]}', '{"orders":{"x":1}}', '{"orders":{"0":"1"}}', '{"orders":{"0":-3}}']
)
def test_malformed_offsets_are_refused_with_an_example(value):
    assert '{"topicA":{"0":23' in refusal(read, startingOffsets=value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"startingOffsets": "latest"}, "startingOffsets cannot be latest"),
        ({"startingOffsets": '{"orders":{"0":-1}}'}, "cannot be latest for orders-0"),
        ({"endingOffsets": "earliest"}, "endingOffsets cannot be earliest"),
        ({"endingOffsets": '{"orders":{"0":-2}}'}, "cannot be earliest for orders-0"),
        (
            {"startingOffsets": '{"orders":{"0":9}}', "endingOffsets": '{"orders":{"0":8}}'},
            "startingOffsets is above endingOffsets for orders-0: expected at most 8, found 9",
        ),
        (
            {"startingOffsets": '{"orders":{"0":9}}', "endingOffsets": '{"orders":{"1":9}}'},
            "must name the same partitions: expected orders-0, found orders-1",
        ),
        (
            {
                "startingOffsetsByTimestamp": '{"orders":{"0":9}}',
                "endingOffsetsByTimestamp": '{"orders":{"0":8}}',
            },
            "startingOffsetsByTimestamp is above",
        ),
        ({"startingTimestamp": "yesterday"}, "startingTimestamp cannot be used: expected a whole number"),
        ({"startingOffsetsByTimestampStrategy": "first"}, "expected error or latest, found 'first'"),
        ({"minPartitions": "0"}, "minPartitions cannot be used: expected a whole number of at least 1, found '0'"),
        ({"maxRecordsPerPartition": "-1"}, "maxRecordsPerPartition"),
        ({"maxPartitionBytes": "64q"}, "a size in bytes"),
        ({"includeHeaders": "yes"}, "includeHeaders cannot be used: expected true or false, found 'yes'"),
        ({"isolation.level": "serializable"}, "expected read_uncommitted or read_committed"),
        ({"versionAsOf": "latest"}, "versionAsOf"),
        ({"subscribe": "a,b", "versionAsOf": "3"}, "the version of one topic"),
    ],
)
def test_wrong_values_are_one_clear_error_each(options, message):
    assert message in refusal(read, **options)


def test_an_end_at_latest_is_above_every_start():
    options = read(startingOffsets='{"orders":{"0":9}}', endingOffsets='{"orders":{"0":-1}}')
    assert options.end.offsets == {("orders", 0): LATEST_OFFSET}


@pytest.mark.parametrize(
    ("misspelt", "right"),
    [
        ("startingOffset", "startingOffsets"),
        ("startOffsets", "startingOffsets"),
        ("includeHeader", "includeHeaders"),
        ("subscribes", "subscribe"),
        ("minPartition", "minPartitions"),
        ("isolationLevel", "isolation.level"),
        ("versionAsOff", "versionAsOf"),
        ("maxRecordPerPartition", "maxRecordsPerPartition"),
    ],
)
def test_a_misspelt_option_of_a_reader_is_an_error_that_names_the_right_one(misspelt, right):
    assert f"Did you mean {right}?" in refusal(read, **{misspelt: "x"})


@pytest.mark.parametrize(
    ("misspelt", "right"), [("compression", "compression.type"), ("batchSize", "batch.size"), ("txnApp", "txnAppId")]
)
def test_a_misspelt_option_of_a_writer_is_an_error_that_names_the_right_one(misspelt, right):
    assert f"Did you mean {right}?" in refusal(write, **{misspelt: "x"})


def test_options_of_kafka_and_of_spark_are_left_alone():
    options = read(
        **{
            "kafka.bootstrap.servers": "localhost:9092",
            "kafka.security.protocol": "SSL",
            "kafka.group.id": "me",
            "groupIdPrefix": "x",
            "fetchOffset.numRetries": "3",
            "kafkaConsumer.pollTimeoutMs": "512",
            "checkpointLocation": "/c",
            "maxOffsetsPerTrigger": "7",
            "somethingElse": "1",
        }
    )
    assert options == read()


def test_the_latest_view_has_tombstones_unless_told_otherwise():
    assert not read().latest
    assert read(view="LATEST").latest and read(view="latest").include_tombstones
    assert not read(view="latest", includeTombstones="false").include_tombstones
    assert "expected latest, found 'newest'" in refusal(read, view="newest")
    assert "needs the option view=latest" in refusal(read, includeTombstones="false")


def test_kafkas_configuration_keys_work_with_their_prefix():
    assert read(**{"kafka.isolation.level": "READ_COMMITTED"}).isolation_level == READ_COMMITTED
    options = write(**{"kafka.compression.type": "lz4", "kafka.batch.size": "1000"})
    assert options.compression_type == "lz4" and options.batch_bytes == 1000


@pytest.mark.parametrize("name", ["flush.messages", "flush.ms", "retention.ms", "cleanup.policy"])
def test_a_setting_of_the_topic_is_no_option_of_a_writer(name):
    assert f"segments topic alter LOG_DIR TOPIC --config {name}=" in refusal(write, **{name: "1"})


def test_a_key_that_contradicts_its_prefixed_form_is_refused():
    message = refusal(write, **{"kafka.compression.type": "lz4", "compression.type": "zstd"})
    assert "compression.type and kafka.compression.type contradict" in message


def test_storage_options_keep_their_values_and_lose_their_prefix():
    options = read(**{"storage.AWS_Region": "eu-west-1", "storage.aws_endpoint": "http://h:1"})
    assert options.location.storage_options == {"aws_region": "eu-west-1", "aws_endpoint": "http://h:1"}


@pytest.mark.parametrize(
    ("text", "size"),
    [("1", 1), ("10b", 10), ("1k", 1024), ("64m", 64 << 20), ("64MB", 64 << 20), ("1 g", 1 << 30), ("2tb", 2 << 40)],
)
def test_sizes_take_sparks_suffixes(text, size):
    assert read(maxPartitionBytes=text).max_partition_bytes == size


@pytest.mark.parametrize("text", ["0", "m", "-1", "1q"])
def test_other_sizes_are_refused(text):
    assert "maxPartitionBytes" in refusal(read, maxPartitionBytes=text)


def test_defaults_of_a_write_are_the_topics_own():
    options = write()
    assert options.topic == "orders"
    assert (options.compression_type, options.batch_bytes, options.txn) == (None, None, None)
    assert write_options({"path": "/log"}).topic is None


def test_a_transaction_is_an_application_and_a_version():
    assert write(txnAppId="job", txnVersion="7").txn == ("job", 7)
    assert "go together" in refusal(write, txnAppId="job")
    assert "go together" in refusal(write, txnVersion="7")
    assert "txnVersion" in refusal(write, txnAppId="job", txnVersion="-1")


def test_a_batch_size_of_zero_is_one_record_a_batch_as_in_kafka():
    assert write(**{"batch.size": "0"}).batch_bytes == 1


def test_options_that_name_topics_are_a_read():
    assert is_read({"path": "/log", "Assign": "{}"})
    assert not is_read({"path": "/log", "topic": "orders"})


@pytest.mark.parametrize("name", ["startingOffset", "startngOffsets", "failOnDatLoss"])
def test_a_misspelt_name_is_shown_as_it_was_typed_though_spark_gives_it_in_lower_case(name):
    assert f"Unknown option {name} of the reader" in refusal(read, **{name.lower(): "x"})
