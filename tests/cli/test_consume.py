"""The habits of other consoles: kcat's offsets and templates, the last records of a topic, a reader that goes."""

from __future__ import annotations

import json
import subprocess
import sys
import zlib

import numpy as np
import pyarrow as pa
import pytest

from spark_segments import LogDir

START_MS = 1_700_000_000_000


@pytest.fixture
def uri(tmp_path) -> str:
    """Three partitions. The record at offset o of partition p has the time START_MS + 30 * o + 10 * p."""
    log = LogDir.create(str(tmp_path / "log"))
    log.create_topic("orders", partitions=3)
    partition = np.repeat(np.arange(3, dtype=np.int32), 20)
    offset = np.tile(np.arange(20), 3)
    times = (START_MS + 30 * offset + 10 * partition) * 1000
    log.topic("orders").append(
        pa.table(
            {
                "partition": partition,
                "key": [f"k{number}" for number in range(60)],
                "value": [f"{p}-{o}" for p, o in zip(partition, offset, strict=True)],
                "timestamp": pa.array(times, pa.timestamp("us", tz="UTC")),
            }
        )
    )
    return log.uri


def test_a_damaged_partition_keeps_nobody_from_the_others(run, segments, uri):
    log = LogDir.open(uri)
    damaged = log.topic("orders").snapshot.live_of(0)[0]
    with open(f"{uri}/{damaged.path}", "r+b") as file:
        file.seek(damaged.byte_position + 80)
        file.write(b"\xff\xff")
    assert segments("consume", uri, "orders", "--partition", 2).lines == [f"2-{number}" for number in range(20)]
    ran = run("consume", uri, "orders", "--partition", 0)
    assert ran.code == 1 and damaged.path in ran.error


@pytest.mark.parametrize(
    "offset, expected",
    [
        ("beginning", list(range(20))),
        ("end", []),
        ("17", [17, 18, 19]),
        ("-2", [18, 19]),
        ("-1000", list(range(20))),
        (f"s@{START_MS + 30 * 18 + 10}", [18, 19]),
        (f"e@{START_MS + 30 * 2 + 10}", [0, 1]),
    ],
)
def test_offsets_are_written_as_for_kcat(segments, uri, offset, expected):
    ran = segments("consume", uri, "orders", "--partition", 1, "-o", offset, "-f", "%o\n")
    assert [int(line) for line in ran.lines] == expected


def test_from_beginning_is_the_default(segments, uri):
    assert segments("consume", uri, "orders", "--from-beginning").lines == segments("consume", uri, "orders").lines


def test_a_template_has_kcats_letters(segments, uri):
    log = LogDir.open(uri)
    headers = [[{"key": "h", "value": b"1"}, {"key": "i", "value": None}], []]
    log.topic("orders").append(
        pa.table(
            {
                "partition": pa.array([2, 2], pa.int32()),
                "key": ["schlüssel", None],
                "value": [b"\xff\n", None],
                "timestamp": pa.array([START_MS * 1000] * 2, pa.timestamp("us", tz="UTC")),
                "headers": pa.array(headers, pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
            }
        )
    )
    template = r"%t|%p|%o|%T|%k|%K|%s|%v|%S|%V|%R|%h|%%|\t\x41\\" + "\\n"
    ran = segments("consume", uri, "orders", "--partition", 2, "-o", "-2", "-f", template)
    assert ran.output == (
        "orders|2|20|1700000000000|schlüssel|10|".encode()
        + b"\xff\n|\xff\n|2|2|\0\0\0\2|h=1,i=NULL|%|\tA\\\n"
        + b"orders|2|21|1700000000000||-1|||-1|-1|\xff\xff\xff\xff||%|\tA\\\n"
    )


def test_a_template_shows_typed_values_as_text(segments, uri):
    ran = segments("consume", uri, "orders", "--partition", 0, "-n", 1, "--value-format", "string", "-f", "%v,%V")
    assert ran.text == "0-0,3"


@pytest.mark.parametrize(
    "options",
    [
        (),
        ("--partition", 1, "--offset", 5),
        ("--key", "k7"),
        ("--from-time", START_MS + 100, "--to-time", START_MS + 301),
        ("--times", f"{START_MS + 100}..{START_MS + 301}"),
        ("--end-offset", 4),
        ("-n", 13),
        ("-n", 0),
        ("--offset", "end"),
    ],
)
def test_a_count_is_that_of_the_lines(segments, uri, options):
    log = LogDir.open(uri)
    log.topic("orders").delete_records({2: 3})
    lines = segments("consume", uri, "orders", *options).lines
    assert segments("consume", uri, "orders", *options, "--count").lines == [str(len(lines))]
    [said] = segments("consume", uri, "orders", *options, "--count", "--output", "json").lines
    assert json.loads(said) == {"topic": "orders", "records": len(lines)}


@pytest.mark.parametrize("options", [("--follow",), ("--tail", 0), ("--group", "audit"), ("-f", "%v")])
def test_what_is_counted_is_not_printed(run, uri, options):
    ran = run("consume", uri, "orders", "--count", *options)
    assert ran.code == 1 and "Records that are counted are not printed" in ran.error


def test_times_are_exactly_those_of_the_records_also_of_late_ones(run, segments, tmp_path):
    uri = tmp_path / "late"
    segments("topic", "create", uri, "clicks")
    times = [START_MS + number * 1000 - (number % 6 == 0) * 5000 for number in range(60)]
    LogDir.open(str(uri)).topic("clicks").append(
        [{"value": str(number), "timestamp": time} for number, time in enumerate(times)]
    )
    start, end = START_MS + 10_000, START_MS + 20_000

    lines = segments("consume", uri, "clicks", "--times", f"{start}..{end}").lines

    assert lines == [str(number) for number, time in enumerate(times) if start <= time < end]
    tail = segments("consume", uri, "clicks", "--times", f"..{end}", "--tail", 2).lines
    assert tail == [str(number) for number, time in enumerate(times) if time < end][-2:]
    ran = run("consume", uri, "clicks", "--times", f"{start}..", "--group", "audit")
    assert ran.code == 1 and "--times" in ran.error


@pytest.mark.parametrize("count", [0, 1, 4, 7, 59, 60, 100])
def test_the_tail_is_the_newest_records_of_all_partitions_oldest_first(segments, uri, count):
    everything = [json.loads(line) for line in segments("consume", uri, "orders", "--output", "json").lines]
    everything.sort(key=lambda row: (row["timestamp"], row["partition"]))

    ran = segments("consume", uri, "orders", "--tail", count, "--output", "json")

    assert [json.loads(line) for line in ran.lines] == everything[len(everything) - min(count, 60) :]


def test_the_records_of_a_key_are_found_whatever_partitioner_chose_their_partition(segments, tmp_path):
    """librdkafka's default is crc32 (consistent_random), Kafka's murmur2, and a writer may choose by itself."""
    log = LogDir.create(str(tmp_path / "log"))
    log.create_topic("users", 12)
    keys = [f"user-{number % 20}" for number in range(200)]
    by_crc32 = [zlib.crc32(key.encode()) % 12 for key in keys]
    values = [str(number) for number in range(200)]
    log.topic("users").append(pa.table({"key": keys, "value": values, "partition": pa.array(by_crc32, pa.int32())}))
    log.topic("users").append([{"key": "user-7", "value": "by murmur2"}])
    for number in (0, 11):
        log.topic("users").append([{"key": "user-7", "value": f"chosen{number}", "partition": number}])

    def read(*more: object) -> list[str]:
        return segments("consume", log.uri, "users", "--key", "user-7", "-f", "%v;", *more).text.split(";")[:-1]

    rows = log.topic("users").scan(columns=["key", "value", "partition"]).to_table().to_pylist()
    wanted = [row["value"].decode() for row in rows if row["key"] == b"user-7"]
    assert sorted(read()) == sorted(wanted) and len(wanted) == 13
    assert read("--all-partitions") == read()
    assert segments("consume", log.uri, "users", "--key", "user-7", "--count").text == "13\n"
    home = zlib.crc32(b"user-7") % 12
    assert read("--partition", home, "-n", 3) == ["7", "27", "47"]
    log.topic("users").alter(partitions=15)  # its later records may be in another partition
    log.topic("users").append([{"key": "user-7", "value": "after"}])
    assert sorted(read()) == sorted([*wanted, "after"])
    assert segments("consume", log.uri, "users", "--key", "user", "--key-format", "string").text == ""


def test_the_records_of_a_key_of_another_type_are_found_by_its_text(segments, run, tmp_path):
    log = LogDir.create(str(tmp_path / "log"))
    log.create_topic("numbers", 3)
    rows = pa.table({"key": pa.array([1, 2, 12, 2]), "value": ["a", "b", "c", "d"]})
    log.topic("numbers").append(rows, formats={"key.format": "long"})
    read = ("consume", log.uri, "numbers", "--key-format", "long", "-f", "%v ", "--key")
    assert segments(*read, "2").text.split() == ["b", "d"]
    assert "The text is no key" in run(*read, "two").error


def test_the_tail_looks_behind_gaps_between_offsets(segments, tmp_path):
    log = LogDir.create(str(tmp_path / "log"))
    log.create_topic("states", config={"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"})
    values = [str(number) for number in range(3000)]
    log.topic("states").append(pa.table({"key": ["a", *["b"] * 2999], "value": values}))
    for job in ("roll", "compact"):
        later = LogDir.open(log.uri).topic("states").snapshot.committed_ms + 8 * 86_400_000
        segments(job, log.uri, "--now-ms", later, *(["--yes"] if job == "compact" else []))
    assert segments("consume", log.uri, "states", "--tail", 2, "-f", "%k%v ").text == "a0 b2999 "


def test_a_range_in_time_bounds_the_tail(segments, uri):
    ran = segments("consume", uri, "orders", "--tail", 2, "--to-time", START_MS + 60, "-f", "%v ")
    assert ran.text == "1-1 2-1 "


def test_a_reader_that_goes_ends_the_command_without_a_word(uri):
    LogDir.open(uri).topic("orders").append(pa.table({"value": [b"x" * 100] * 20_000}))
    program = "from spark_segments.cli import main; main()"
    command = [sys.executable, "-c", program, "consume", uri, "orders"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait() == 141
