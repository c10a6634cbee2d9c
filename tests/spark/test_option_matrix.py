"""Each option of reader and writer: its default, the values that it takes, in which spelling, and those it refuses."""

from __future__ import annotations

import pytest

from spark_segments.errors import InvalidOptionError
from spark_segments.log.reading.time_range import TimeRange
from spark_segments.spark.options import read_options, write_options

# (option, attribute of ReadOptions, default, {given: meaning}, values that are refused)
READER = [
    ("minPartitions", "min_partitions", None, {"1": 1, " 7 ": 7, "100000": 100_000}, ["0", "-1", "1.0", "a", "1e3"]),
    ("maxRecordsPerPartition", "max_records_per_partition", None, {"1": 1, "20": 20}, ["0", "-5", "2.5", "many"]),
    (
        "maxPartitionBytes",
        "max_partition_bytes",
        None,
        {"1": 1, "64k": 65536, "1MB": 1 << 20, "2g": 2 << 30},
        ["0", "-1", "64x", "m"],
    ),
    ("includeHeaders", "include_headers", False, {"true": True, "FALSE": False, "True": True}, ["yes", "1", "on"]),
    ("failOnDataLoss", "fail_on_data_loss", True, {"false": False, "TRUE": True}, ["no", "0"]),
    ("versionAsOf", "version", None, {"0": 0, "12": 12}, ["-1", "latest", "1.5"]),
    (
        "timestampAsOf",
        "timestamp_ms",
        None,
        {
            "1700000000000": 1_700_000_000_000,
            "2023-11-14T22:13:20Z": 1_700_000_000_000,
            "2023-11-14T22:13:20": 1_700_000_000_000,
            "2023-11-14 23:13:20.123+01:00": 1_700_000_000_123,
            "2023-11-14": 1_699_920_000_000,
        },
        ["yesterday", "-1", "2023-13-01"],
    ),
    (
        "times",
        "times",
        None,
        {
            "1700000000000..1700000000001": TimeRange(1_700_000_000_000, 1_700_000_000_001),
            "2023-11-14..": TimeRange(1_699_920_000_000, None),
            "..2023-11-14T22:13:20Z": TimeRange(None, 1_700_000_000_000),
        },
        ["2023-11-14", "a..b", "2..1", "1..2..3"],
    ),
    (
        "isolation.level",
        "isolation_level",
        "read_uncommitted",
        {"read_committed": "read_committed", "READ_UNCOMMITTED": "read_uncommitted"},
        ["serializable", "1"],
    ),
    (
        "kafka.isolation.level",
        "isolation_level",
        "read_uncommitted",
        {"read_committed": "read_committed", "Read_Committed": "read_committed"},
        ["committed"],
    ),
    (
        "startingOffsetsByTimestampStrategy",
        "latest_where_no_time_matches",
        False,
        {"latest": True, "ERROR": False},
        ["earliest", "none"],
    ),
    ("view", "latest", False, {"latest": True, "LATEST": True}, ["newest", "all"]),
    (
        "keys",
        "keys",
        None,
        {
            '["a", "", "a"]': ("a", ""),
            '[{"base64": "AAE="}, "b", 7]': (b"\x00\x01", "b", 7),
            "[]": (),
        },
        [
            "user-7",
            "[null]",
            '{"a": 1}',
            "[1.5]",
            "[true]",
            '[{"base64": "?"}]',
            '[{"base64": "AA==", "x": 1}]',
            '[["a"]]',
        ],
    ),
]
# The same of WriteOptions.
WRITER = [
    ("topic", "topic", "t", {"orders": "orders", "Orders": "Orders"}, []),
    ("compression.type", "compression_type", None, {"zstd": "zstd", "lz4": "lz4", "none": "none"}, []),
    ("kafka.compression.type", "compression_type", None, {"gzip": "gzip"}, []),
    ("batch.size", "batch_bytes", None, {"0": 1, "1": 1, "65536": 65536}, ["-1", "64k", "big"]),
    ("kafka.batch.size", "batch_bytes", None, {"16384": 16384}, ["-1"]),
]


def read(given):
    return read_options({"path": "/log", "subscribe": "t"} | given)


def write(given):
    return write_options({"path": "/log", "topic": "t"} | given)


SIDES = [(read, *row) for row in READER] + [(write, *row) for row in WRITER]
TAKEN = [
    (side, option, attribute, given, meaning)
    for side, option, attribute, _, values, _ in SIDES
    for given, meaning in values.items()
]
REFUSED = [(side, option, given) for side, option, _, _, _, wrong in SIDES for given in wrong]


@pytest.mark.parametrize(
    ("side", "option", "attribute", "default"),
    [row[:4] for row in SIDES],
    ids=[f"{row[0].__name__} {row[1]}" for row in SIDES],
)
def test_an_option_that_is_absent_or_empty_has_its_default(side, option, attribute, default):
    assert getattr(side({}), attribute) == default
    if option != "topic":
        assert getattr(side({option: ""}), attribute) == default


@pytest.mark.parametrize("spell", [str, str.lower, str.upper], ids=["as documented", "lower case", "upper case"])
@pytest.mark.parametrize(
    ("side", "option", "attribute", "given", "meaning"),
    TAKEN,
    ids=[f"{side.__name__} {option}={given}" for side, option, _, given, _ in TAKEN],
)
def test_a_value_is_taken_whatever_the_case_of_its_option(side, option, attribute, given, meaning, spell):
    assert getattr(side({spell(option): given}), attribute) == meaning


@pytest.mark.parametrize(
    ("side", "option", "given"), REFUSED, ids=[f"{side.__name__} {option}={given}" for side, option, given in REFUSED]
)
def test_a_value_is_refused_with_its_option_and_what_is_right(side, option, given):
    with pytest.raises(InvalidOptionError) as caught:
        side({option: given})
    message = str(caught.value)
    assert f"Option {option} " in message and repr(given) in message and "expected" in message
    assert "None" not in message


@pytest.mark.parametrize("side", ["starting", "ending"])
@pytest.mark.parametrize(
    ("options", "winner"),
    [
        (("Timestamp", "OffsetsByTimestamp", "Offsets"), "Timestamp"),
        (("Timestamp", "OffsetsByTimestamp"), "Timestamp"),
        (("Timestamp", "Offsets"), "Timestamp"),
        (("OffsetsByTimestamp", "Offsets"), "OffsetsByTimestamp"),
        (("Offsets",), "Offsets"),
    ],
)
def test_precedence_of_the_ways_to_say_where(side, options, winner):
    values = {"Timestamp": "5", "OffsetsByTimestamp": '{"t":{"0":5}}', "Offsets": '{"t":{"0":5}}'}
    chosen = read({side + option: values[option] for option in options})
    assert (chosen.start if side == "starting" else chosen.end).option == side + winner


@pytest.mark.parametrize("option", ["isolation.level", "compression.type", "batch.size"])
def test_a_plain_key_and_its_prefixed_form_must_agree(option):
    side, one, other = {
        "isolation.level": (read, "read_committed", "read_uncommitted"),
        "compression.type": (write, "lz4", "zstd"),
        "batch.size": (write, "10", "20"),
    }[option]
    assert side({option: one, f"kafka.{option}": one}) == side({option: one})
    with pytest.raises(InvalidOptionError, match="contradict"):
        side({option: one, f"kafka.{option}": other})


def test_a_version_and_a_time_do_not_go_together():
    with pytest.raises(InvalidOptionError, match="cannot both be given"):
        read({"versionAsOf": "1", "timestampAsOf": "1"})


def test_a_starting_time_is_not_above_an_ending_time():
    with pytest.raises(InvalidOptionError, match="startingTimestamp is above endingTimestamp: expected at most 4"):
        read({"startingTimestamp": "5", "endingTimestamp": "4"})
