"""The page of `segments describe --html` says what `describe` says, and what the jobs then do."""

from __future__ import annotations

import dataclasses
import itertools
import re
import shutil
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_segments import LogDir
from spark_segments.cli.page.log_state import VERSIONS_GROWN, growth, sizes_now
from spark_segments.cli.page.render import page
from spark_segments.cli.page.view import BLOCKS_A_PAGE, Block, blocks, blocks_a_strip
from spark_segments.cli.page.words import duration, ratio, relative
from spark_segments.config import TopicConfig, topic_config
from spark_segments.face.history import Size
from spark_segments.log.groups.group import GroupLag
from spark_segments.maintenance import compact, retain, roll
from spark_segments.quantities import iso, moment
from tests.cli.page_parser import PageParser
from tests.cli.page_topics import DAY_MS, HOUR_MS, NOW_MS, partition, thousand_partitions
from tests.maintenance.rows import TOPIC_ID, snapshot
from verification.world.kafka_bytes.golden_files import GOLDEN
from verification.world.log_copies import copy_of
from verification.world.manifest_rows import Partition, Snapshot
from verification.world.topics import records

NAMES = [
    "partition", "log_start_offset", "log_end_offset", "segments", "chunks", "records", "size_bytes", "dirty_ratio",
]  # fmt: skip


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> LogDir:
    log = LogDir.create(str(tmp_path_factory.mktemp("made") / "log"))
    small = {"segment.bytes": "20000", "segment.ms": str(6 * HOUR_MS)}
    log.create_topic("prices", 2, small | {"cleanup.policy": "compact"})
    log.create_topic("orders", 3, small | {"retention.ms": str(20 * HOUR_MS)})
    log.create_topic("clicks", 1, small | {"cleanup.policy": "compact,delete", "retention.bytes": "30000"})
    log.create_topic("empty", 2)
    for step in range(8):
        at_ms = NOW_MS - (30 - 3 * step) * HOUR_MS
        for topic in ("prices", "orders", "clicks"):
            log.topic(topic).append(records(400, first=400 * step, size=60, time_ms=at_ms, step_ms=1000))
        roll(log, now_ms=at_ms + HOUR_MS)
        if step == 4:
            compact(log, now_ms=at_ms + HOUR_MS)
            retain(log, now_ms=at_ms + HOUR_MS)
    return log


@pytest.fixture
def log(made: LogDir, tmp_path: Path) -> LogDir:
    """A compacted topic that was cleaned once, one with retention, one with both policies, and an empty one."""
    return copy_of(made, tmp_path / "log")


def page_of(log: LogDir, now_ms: int = NOW_MS) -> str:
    snapshots = [log.topic(topic).snapshot for topic in log.topics()]
    topics = [(one, topic_config(one.config, log.defaults)) for one in snapshots]
    return page(log.uri, topics, now_ms, kafka=log.is_kafka)


def assert_as_described(log: LogDir, text: str) -> None:
    """Every number of `describe` is on the page, where a person and where a program looks."""
    found = PageParser(text)
    expected = {
        f"{topic}-{one['partition']}": {name: one[name] for name in NAMES if one[name] is not None}
        for topic in log.topics()
        for one in log.topic(topic).describe()["partitions"]
    }
    assert {name: {key: float(value) for key, (value, _) in one.items()} for name, one in found.numbers.items()} == {
        name: {key: float(value) for key, value in one.items()} for name, one in expected.items()
    }
    for name, one in expected.items():
        for key in ("log_start_offset", "log_end_offset", "segments", "chunks", "records"):
            assert int(found.numbers[name][key][1].replace(",", "")) == one[key]
        size, unit = found.numbers[name]["size_bytes"][1].split()
        assert float(size) * 1024 ** ["B", "KiB", "MiB"].index(unit) == pytest.approx(one["size_bytes"], rel=0.05)
        assert sum(size for _, size in found.blocks[name]) == one["size_bytes"]


# Numbers


def test_every_number_is_that_of_describe(segments, log, tmp_path):
    file = tmp_path / "log.html"
    ran = segments("describe", log.uri, "--html", file, "--now-ms", NOW_MS)
    assert ran.text.startswith(f"Wrote {file}: ")
    assert_as_described(log, file.read_text())


@pytest.mark.parametrize("name", ["broker-data", "canary-0", "legacy-v0-0", "txn-0", "tiered/kafka-tiered-storage"])
def test_every_number_of_a_kafka_directory_is_that_of_describe(segments, tmp_path, name):
    uri = GOLDEN / name
    segments("describe", uri, "--html", tmp_path / "log.html")
    text = (tmp_path / "log.html").read_text()
    assert_as_described(LogDir.open(str(uri)), text)
    assert "This is a directory of Kafka's" in text


def test_a_kafka_directory_may_lack_partitions(segments, tmp_path):
    for name in ("orders-1", "retention-0"):
        shutil.copytree(GOLDEN / "broker-data" / name, tmp_path / "log.dirs" / name)
    segments("describe", tmp_path / "log.dirs", "--html", tmp_path / "log.html")
    assert_as_described(LogDir.open(str(tmp_path / "log.dirs")), (tmp_path / "log.html").read_text())


def test_one_topic_as_page_and_json(segments, log, tmp_path):
    ran = segments("describe", log.uri, "orders", "--html", tmp_path / "log.html", "--output", "json")
    assert ran.json == log.topic("orders").describe()
    assert set(PageParser((tmp_path / "log.html").read_text()).numbers) == {"orders-0", "orders-1", "orders-2"}


def test_describe_without_a_topic_is_the_whole_directory(segments, log):
    assert segments("describe", log.uri, "--output", "json").json == [
        log.topic(topic).describe() for topic in log.topics()
    ]


def test_an_empty_log_directory_has_a_page(segments, tmp_path):
    log = LogDir.create(str(tmp_path / "log"))
    segments("describe", log.uri, "--html", tmp_path / "log.html")
    assert "There are no topics." in (tmp_path / "log.html").read_text()


def test_clean_and_dirty_blocks_are_the_dirty_ratio(log):
    found = PageParser(page_of(log))
    for topic in ("prices", "clicks"):
        for one in log.topic(topic).describe()["partitions"]:
            sizes = dict.fromkeys(("clean", "dirty", "active"), 0)
            for kind, size in found.blocks[f"{topic}-{one['partition']}"]:
                sizes[kind] += size
            assert sizes["clean"] > 0
            assert sizes["dirty"] / (sizes["clean"] + sizes["dirty"]) == pytest.approx(one["dirty_ratio"])
    assert {kind for kind, _ in found.blocks["orders-0"]} == {"sealed", "active"}


def test_a_segment_that_the_first_dirty_offset_falls_into_is_part_clean():
    rows, last = partition(0, [1000, 1000], first_ms=NOW_MS - DAY_MS, step_ms=HOUR_MS)
    halfway = Partition(TOPIC_ID, 0, 0, last.log_end_offset, 15, last.log_end_offset)
    text = page("log", [snapshot("prices", {"cleanup.policy": "compact"}, rows, [halfway])], NOW_MS)
    found = PageParser(text)
    assert found.blocks["prices-0"] == [("clean", 1000), ("part-clean", 1000)]
    assert "--clean-share:50.00%" in text
    assert found.numbers["prices-0"]["dirty_ratio"] == ("0.25", "0.25")


def test_a_partition_that_kafka_cleaned_shows_it_though_its_policy_is_not_known():
    log = LogDir.open(str(GOLDEN / "broker-data"))
    assert [kind for kind, _ in PageParser(page_of(log)).blocks["latest-0"]] == ["clean", "active"]


def test_tombstones_that_nobody_counted_are_not_told_of():
    rows, last = partition(0, [1000, 1000], first_ms=NOW_MS, step_ms=1)
    told = []
    for count in (-1, 3):
        counted = [dataclasses.replace(row, tombstones=count) for row in rows]
        told.append(
            re.findall(r"\([^(]* tombstones?\)", page("log", [snapshot("orders", {}, counted, [last])], NOW_MS))
        )
    assert told == [[], ["(3 tombstones)", "(3 tombstones)"]]


# The text


def test_the_same_log_at_the_same_time_is_the_same_page(log):
    assert page_of(log) == page_of(LogDir.open(log.uri))


def test_nothing_of_the_log_directory_becomes_markup():
    name = "<script>alert(1)</script>&\"'"
    rows, last = partition(0, [1000], [10], first_ms=NOW_MS, step_ms=1)
    found = PageParser(page(name, [snapshot(name, {}, rows, [last])], NOW_MS))
    assert list(found.numbers) == [f"{name}-0"]
    assert sum(tag == "script" for tag, _ in found.attributes) == 1
    assert not any(key.startswith("on") for _, given in found.attributes for key in given)


def test_the_page_needs_nothing_else(log):
    text = page_of(log)
    assert not re.search(r"""https?://|url\(|@import|\ssrc=|\shref="[^#]""", text)
    assert "default-src 'none'" in text


@pytest.mark.proof
def test_a_thousand_partitions_are_a_page_of_a_few_megabytes():
    topics = thousand_partitions()
    text = page("log", topics, NOW_MS)
    found = PageParser(text)
    assert len(found.numbers) == 1000
    assert sum(map(len, found.blocks.values())) < 1.3 * BLOCKS_A_PAGE
    assert len(text) < 6e6


# Strips

pieces = st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 3) | st.integers(0, 10**9)), max_size=200)


@given(pieces, st.integers(1, 40))
def test_a_strip_has_few_blocks_and_all_bytes(sizes, limit):
    segments = [Block(kind, (number, number + 1), size) for number, (kind, size) in enumerate(sizes)]
    found = blocks(segments, limit)
    changes = sum(one.kind != other.kind for one, other in itertools.pairwise(segments))
    assert len(found) <= max(limit, 1) + changes + 1
    place = 0
    for block in found:
        start, end = block.rows
        assert start == place
        assert {one.kind for one in segments[start:end]} == {block.kind}
        assert sum(one.log_bytes for one in segments[start:end]) == block.log_bytes
        place = end
    assert place == len(segments)


def test_few_segments_are_never_merged():
    segments = [Block("sealed", (n, n + 1), 1 if n else 10**9) for n in range(120)]
    assert blocks(segments, 120) == segments


def test_strips_of_many_partitions_have_fewer_blocks():
    assert [blocks_a_strip(count) for count in (0, 1, 100, 200, 1000, 100_000)] == [120, 120, 120, 80, 16, 8]


# What goes when


def test_what_the_page_says_is_due_is_what_the_jobs_do(log):
    now_ms = 2**41  # after the files were made, by whatever clock
    text = page_of(log, now_ms)
    for job in (roll, retain, compact):
        report = job(log, now_ms=now_ms, dry_run=True).to_dict()
        acted = {f"{one['topic']}-{one['partition']}" for one in report["partitions"]}
        badge = f'<strong class="now">{job.__name__}</strong>'
        rows = re.split(r'<details class="row" id="', text)[1:]
        assert {row.partition('"')[0] for row in rows if badge in row} == acted
        assert acted


def test_what_retention_takes_next_is_what_retain_then_takes(log):
    now_ms = NOW_MS - 2 * HOUR_MS
    table = page_of(log, now_ms).partition("<h2>What retention takes next</h2>")[2].partition("</table>")[0]
    row = r'#topic:(.*?)">.*?datetime="(.*?)">(.*?)<.*?<td class="n">([0-9,]+)<td class="n">[0-9,]+<td>(.*?)</tr>'
    found = re.findall(row, table)
    assert [one[1] for one in found] == sorted(one[1] for one in found)
    for at_ms, told in ((now_ms, [one for one in found if one[2] == "now"]), (now_ms + 8 * DAY_MS, found)):
        taken = Counter()
        planned = {}  # roll seals an active segment of which all has expired
        roll(log, now_ms=at_ms, dry_run=True, planned=planned)
        for line in retain(log, now_ms=at_ms, dry_run=True, planned=planned).to_dict()["partitions"]:
            taken[line["topic"]] += line["records_in"] - line["records_out"]
        says = Counter()
        for topic, _, _, records_there, _ in told:
            says[topic] += int(records_there.replace(",", ""))
        assert says == taken and taken


# Words


@pytest.mark.parametrize(
    ("length_ms", "text"),
    [
        (0, "0 ms"), (7, "7 ms"), (12_345, "12 s"), (60_000, "1 min"), (95_000, "1 min 35 s"), (97_200_000, "1 d 3 h"),
        (36_000_000, "10 h"), (2**63 - 1, "106,751,991,167 d 7 h"),
    ],
)  # fmt: skip
def test_durations(length_ms, text):
    assert duration(length_ms) == text


def test_moments():
    assert moment(NOW_MS) == "2026-01-01 12:00:00Z"
    assert iso(NOW_MS + 1) == "2026-01-01T12:00:00.001Z"
    assert (moment(2**62), iso(2**62)) == ("after the year 9999", "")
    assert relative(NOW_MS - 3 * DAY_MS, NOW_MS) == "3 d ago"
    assert relative(NOW_MS + 90_000, NOW_MS) == "in 1 min 30 s"
    assert relative(NOW_MS + 28 * DAY_MS + 22 * 3_600_000, NOW_MS) == "in 28 d 22 h"
    assert relative(NOW_MS, NOW_MS) == "now"


def test_ratios_are_0_and_1_only_where_they_are():
    assert [ratio(value) for value in (0.0, 0.001, 0.5, 0.999, 1.0)] == ["0.00", "< 0.01", "0.50", "> 0.99", "1.00"]


@pytest.mark.proof
def test_growth_is_what_the_history_adds_up_to(log):
    grown = growth(log, sizes_now(log.topic(name).snapshot for name in log.topics()))
    assert list(grown) == ["orders", "clicks", "prices"]  # the largest first; `empty` has one version
    for topic, several in grown.items():
        assert 1 < len(several) <= VERSIONS_GROWN
        records = size = 0
        after = []
        for commit in reversed(log.topic(topic).history()):
            records += commit["records_in"] - commit["records_out"]
            size += commit["bytes_in"] - commit["bytes_out"]
            after.append(Size(commit["committed_ms"], records, size))
        assert set(several) <= {*after} and [several[0], several[-1]] == [after[0], after[-1]]


def test_growth_is_a_line_and_what_changed():
    sizes = [Size(NOW_MS - DAY_MS, 100, 1024), Size(NOW_MS - DAY_MS // 2, 300, 3072), Size(NOW_MS, 40, 2048)]
    text = page("/log", _topics([3, 3]), NOW_MS, grown={"<orders>": sizes})
    assert '<td><a href="#topic:&lt;orders&gt;">&lt;orders&gt;</a><td>' in text
    assert '<path d="M1.0 15.7H60.0V1.0H119.0V8.3"/>' in text
    assert '<td class="n">−60<td class="n">1.0 KiB → 2.0 KiB<td>' in text and ">1 d ago</time>" in text
    assert "Growth" not in page("/log", _topics([3, 3]), NOW_MS)


def _topics(retentions_days: Sequence[int]) -> list[tuple[Snapshot, TopicConfig]]:
    found = []
    for number, days in enumerate(retentions_days):
        rows, last = partition(0, [1000], first_ms=NOW_MS - HOUR_MS, step_ms=HOUR_MS)
        found.append(snapshot(f"topic{number}", {"retention.ms": str(days * DAY_MS)}, rows, [last]))
    return found


def _heads(text: str) -> list[str]:
    table = text.partition('id="topics"')[2].partition("</thead>")[0]
    return re.findall(r'<th scope="col"[^>]*>([^<]+)', table)


def test_what_all_topics_share_is_said_once_above_their_table():
    alike = page("log", _topics([3, 3, 3]), NOW_MS)
    assert _heads(alike) == ["Topic", "Size", "Records", "Last record", "What is next"]
    assert "Each topic here: 1 partition · retention: 3 d · nothing waits for vacuum · no group reads it." in alike
    assert "Retention" in _heads(page("log", _topics([3, 4]), NOW_MS))
    lag = GroupLag("g", "topic0", 0, 5, 0, 10, NOW_MS)
    assert "Lag" in _heads(page("log", _topics([3, 3]), NOW_MS, lags=[lag]))


def test_the_page_of_one_topic_offers_nothing_for_one_row():
    grown = {"topic0": [Size(0, 0, 0), Size(1, 10, 1)]}
    one = page("log", _topics([3]), NOW_MS, grown=grown)
    two = page("log", _topics([3, 3]), NOW_MS, grown=grown)
    for offer in ('name="policy"', 'name="sort"', 'id="growth"', 'href="#growth"'):
        assert offer not in one and offer in two


def test_a_page_without_warnings_says_so():
    assert "Nothing is late, and no fault is known." in page("/log", [], NOW_MS)
    assert "Nothing is late" not in page("/log", [], NOW_MS, warnings=["the disk is nearly full"])


def test_groups_are_there_with_their_lag_the_furthest_first():
    lags = [
        GroupLag("slow", "prices", 0, 5, 0, 1000, NOW_MS - HOUR_MS),
        GroupLag("slow", "prices", 1, 0, 0, 500, NOW_MS - 2 * HOUR_MS),
        GroupLag("<quick>", "prices", 0, 999, 0, 1000, NOW_MS),
    ]
    text = page("log", [], NOW_MS, lags=lags)
    rows = re.findall(
        r"<tr><td>(.*?)<td><a href=\"#topic:prices\">(.*?)</a><td class=\"n\">(.*?)<td><time.*?>(.*?)</time>", text
    )
    assert rows == [("slow", "prices", "1,495", "1 h ago"), ("&lt;quick&gt;", "prices", "1", "now")]
    assert "Groups" not in page("log", [], NOW_MS)
