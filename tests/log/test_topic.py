"""A topic as an object: of which moment it is, what it refuses, and how it and its relatives print themselves."""

from __future__ import annotations

import datetime as dt

import pyarrow as pa
import pytest

from spark_segments import LogDir
from spark_segments.errors import InvalidOptionError, UnknownTopicError


@pytest.fixture
def log(tmp_path) -> LogDir:
    """A record is appended to partition 0 of `orders`, three times; version 0 has none."""
    log = LogDir.create(str(tmp_path / "log"))
    log.create_topic("orders", partitions=2)
    for number in (b"1", b"2", b"3"):
        log.topic("orders").append(pa.table({"value": [number], "partition": pa.array([0], pa.int32())}))
    return log


def values(topic) -> list[bytes]:
    return topic.scan().to_table()["value"].to_pylist()


def test_a_topic_is_of_the_moment_when_it_is_first_asked(log):
    before = log.topic("orders")
    assert values(before) == [b"1", b"2", b"3"]
    before.append([{"value": "4", "partition": 0}])
    assert values(before) == [b"1", b"2", b"3"] and before.offsets()[0] == (0, 3)
    assert values(log.topic("orders")) == [b"1", b"2", b"3", b"4"]


def test_a_topic_as_of_a_time_is_the_newest_version_that_was_committed_by_then(log):
    commits = {commit["version"]: commit["committed_ms"] for commit in log.topic("orders").history()}
    for version in range(4):
        assert values(log.topic("orders", version=version)) == [b"1", b"2", b"3"][:version]
        at_ms = commits[version]
        newest = max(number for number, committed_ms in commits.items() if committed_ms <= at_ms)
        for at in (at_ms, dt.datetime.fromtimestamp(at_ms / 1000, dt.UTC)):
            topic = log.topic("orders", timestamp=at)
            assert topic.version == newest and values(topic) == [b"1", b"2", b"3"][:newest]
    with pytest.raises(InvalidOptionError, match="no version of that time"):
        log.topic("orders", timestamp=commits[0] - 1).offsets()


def test_what_is_asked_of_the_past_takes_no_writes(log):
    with pytest.raises(InvalidOptionError, match="version or as of a time"):
        log.topic("orders", version=1, timestamp=2**41).offsets()
    for topic in (log.topic("orders", version=1), log.topic("orders", timestamp=2**41)):
        for write in (
            lambda topic=topic: topic.append([{"value": "no"}]),
            lambda topic=topic: topic.alter({"retention.ms": "1"}),
            lambda topic=topic: topic.delete_records({0: 1}),
        ):
            with pytest.raises(InvalidOptionError, match="takes no writes"):
                write()
    assert log.topic("orders").version == 3


def test_all_forms_of_a_scan_have_the_same_rows(log):
    scan = log.topic("orders").scan(partition=0, offsets=(1, None), columns=["offset", "value"])
    rows = [{"offset": 1, "value": b"2"}, {"offset": 2, "value": b"3"}]
    assert scan.to_table().to_pylist() == scan.to_reader().read_all().to_pylist() == rows
    assert scan.to_pandas().to_dict("records") == scan.to_polars().to_dicts() == rows
    assert scan.to_duckdb().fetchall() == [(1, b"2"), (2, b"3")]
    assert log.topic("orders").scan(offsets={0: (0, 1)}).to_table()["value"].to_pylist() == [b"1"]
    assert log.topic("orders").scan(offsets={0: (2, None)}).to_table()["value"].to_pylist() == [b"3"]
    with pytest.raises(UnknownTopicError, match="no such partition"):
        log.topic("orders").scan(offsets={2: (0, 1)})


def test_they_print_themselves(log):
    group = log.group("billing")
    group.commit(group.positions(), {"orders": {0: 1}})
    topic = log.topic("orders")
    size = f"{sum(row['size_bytes'] for row in topic.describe()['partitions'])} B"
    assert repr(topic).splitlines() == [
        "Topic(name='orders', version=3, partitions=2)",
        "  partition  records  bytes  log start  log end",
        f"          0        3  {size:>5}          0        3",
        "          1        0    0 B          0        0",
    ]
    assert repr(log).splitlines()[1:] == [
        "  topic   partitions  records  bytes  largest lag",
        f"  orders           2        3  {size:>5}            2",
    ]
    assert repr(group).splitlines()[1:] == [
        "  topic   partition  offset  log start  log end  lag",
        "  orders          0       1          0        3    2",
    ]
    read = sum(row.log_bytes for row in topic.snapshot.live_of(0) if row.next_offset > 1)
    assert repr(topic.scan(offsets=(1, 99))).splitlines()[1:] == [
        "  partition  start  end  bytes",
        f"          0      1    3  {read} B",
        "          1      1    1    0 B",
    ]
    for one in (log, topic, group, topic.scan()):
        assert "<td>" in one._repr_html_() and "<script" not in one._repr_html_()


def test_a_report_prints_its_figures_and_its_lines(log):
    (report,) = [one for one in log.maintain(dry_run=True) if one.job == "roll"]
    assert repr(report).startswith("Report(job='roll', seconds=") and "dry_run=True" in repr(report)
    report = log.topic("orders").verify()
    assert repr(report).splitlines()[1:] == [
        "  topic   action    records_in  records_out  bytes_in  bytes_out",
        "  orders  verified           0            0       0 B        0 B",
    ]
    assert report.ok and report.details["partitions"] == 2


def test_a_report_of_faults_prints_them(log):
    for row in log.topic("orders").snapshot.live_of(0):
        log.storage.delete(row.path)
    report = log.topic("orders").verify()
    assert not report.ok and report.errors == len(report.findings) == 3 and report.failed == []
    assert "severity" in repr(report) and repr(report).count("A segment's .log is missing") == 3
    assert "<td>error</td>" in report._repr_html_()


def test_a_topic_is_verified_as_of_the_version_that_was_asked_for(log):
    log.storage.delete(log.topic("orders").snapshot.live_of(0)[-1].path)
    assert not log.topic("orders").verify(deep=True).ok
    assert log.topic("orders", version=2).verify(deep=True).ok


def test_maintenance_is_the_jobs_in_their_order(log):
    assert [report.job for report in log.maintain(topics=["ord*"])] == ["roll", "retain", "compact", "vacuum"]
    assert values(log.topic("orders")) == [b"1", b"2", b"3"]
    assert log.topic("orders").explain(0, 0).to_dict()["topic"] == "orders"


def test_what_cannot_be_read_prints_its_error(log):
    with pytest.raises(UnknownTopicError):
        log.topic("ordres").offsets()
    assert "Unknown topic 'ordres'" in repr(log.topic("ordres"))


@pytest.mark.parametrize("offsets", ["1", 5, (0.5, 2), (0, "2"), (1,), {0: 1}])
def test_offsets_that_are_no_bounds_are_refused(log, offsets):
    with pytest.raises(InvalidOptionError, match=r"offsets: expected \(start, end\)"):
        log.topic("orders").scan(offsets=offsets)


def test_one_name_is_no_list_of_columns(log):
    with pytest.raises(InvalidOptionError, match=r"""columns: expected names, such as \["offset"\]"""):
        log.topic("orders").scan(columns="offset")


@pytest.mark.parametrize("partitions", ["3", 2.5, 0])
def test_a_number_of_partitions_is_a_whole_number(log, partitions):
    for ask in (lambda: log.topic("orders").alter(partitions=partitions), lambda: log.create_topic("u", partitions)):
        with pytest.raises(InvalidOptionError, match="so many partitions: expected 1 to 1000000"):
            ask()
