"""`segments page` over HTTP: what it shows, how much it reads, and what it refuses."""

from __future__ import annotations

import functools
import http.client
import json
import re
import socket
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from html import unescape
from urllib.parse import urlencode

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_segments import LogDir
from spark_segments.cli.page import serve as serving
from spark_segments.cli.page.browse import MOST_BYTES, RowFilter, _rows_with, browse
from spark_segments.cli.page.log_state import Begin, TopicsShown, first_topics, group_warnings, read_topics
from spark_segments.cli.page.render import page as front_page
from spark_segments.cli.page.serve import server
from spark_segments.cli.page.view import OVERDUE_MS
from spark_segments.keys.job import index
from spark_segments.log.groups.group import GroupLag
from spark_segments.maintenance import roll
from spark_segments.quantities import human_bytes
from tests.cli.page_parser import PageParser
from verification.world.clock import PATIENCE_SECONDS
from verification.world.group_readers import moved
from verification.world.kafka_bytes.golden_files import GOLDEN
from verification.world.opened import opened
from verification.world.stores.played_log import Play

TIME_MS = 1_700_000_000_000
ATTACK = "<script>alert('x')</script>\"&"


@dataclass(frozen=True)
class Got:
    status: int
    headers: Mapping[str, str]
    text: str

    @property
    def offsets(self) -> list[int]:
        """The offsets of the records on the page."""
        return [int(number.replace(",", "")) for number in re.findall(r'/record\?[^"]*">([0-9,]+)</a>', self.text)]

    def link(self, name: str) -> str | None:
        """The address of the link of this name."""
        found = re.search(rf'<a href="([^"]*)">{name}</a>', self.text)
        return found and unescape(found[1])


class Client:
    def __init__(self, port: int) -> None:
        self.port = port

    def get(self, path: str, *, method: str = "GET", host: str | None = None, **query: object) -> Got:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_SECONDS)
        address = f"{path}?{urlencode(query)}" if query else path
        connection.request(method, address, headers={"Host": host or f"127.0.0.1:{self.port}"})
        answer = connection.getresponse()
        got = Got(answer.status, dict(answer.getheaders()), answer.read().decode())
        connection.close()
        return got


@pytest.fixture
def serve() -> Iterator:
    """Serves a log directory until the test ends."""
    running = []

    def start(log: LogDir, formats: Mapping[str, str] | None = None) -> Client:
        made = server(log, 0, formats)
        thread = threading.Thread(target=made.serve_forever, args=(0.01,))
        thread.start()
        running.append((made, thread))
        return Client(made.server_port)

    yield start
    for made, thread in running:
        made.shutdown()
        thread.join()
        made.server_close()


def rows(count: int, first: int = 0) -> pa.Table:
    numbers = range(first, first + count)
    return pa.table(
        {
            "key": [b"key %d" % number for number in numbers],
            "value": [b"value %d" % number for number in numbers],
            "timestamp": pa.array([TIME_MS + number * 1000 for number in numbers], pa.timestamp("ms", "UTC")),
        }
    )


@pytest.fixture
def orders(log: LogDir) -> LogDir:
    log.create_topic("orders", config={"retention.ms": "-1"})
    log.topic("orders").append(rows(120))
    return log


def test_the_front_page_is_current_and_leads_to_the_records(serve, orders):
    client = serve(orders)
    assert 'class="records" value="120"' in client.get("/").text
    orders.topic("orders").append(rows(1, 120))
    text = client.get("/").text
    assert 'class="records" value="121"' in text
    link = unescape(re.search(r'<a href="(/records[^"]*)">Look at the records of orders-0</a>', text)[1])
    assert client.get(link).offsets == list(range(120, 70, -1))


def test_cursors_lead_through_all_records(serve, orders):
    """Newest first, page by page to the oldest, and back."""
    client = serve(orders)
    page = client.get("/records", topic="orders")
    assert page.link("newer") is None
    seen = list(page.offsets)
    while page.link("older"):
        page = client.get(page.link("older"))
        seen += page.offsets
    assert seen == list(range(119, -1, -1))
    assert client.get(page.link("newer")).offsets == list(range(69, 19, -1))
    assert client.get(client.get("/records", topic="orders").link("oldest")).offsets == list(range(49, -1, -1))
    assert client.get("/records", topic="orders", time="2023-11-14T22:13:30Z").offsets[0] == 10
    assert client.get("/records", topic="orders", offset="5").offsets == [5, 4, 3, 2, 1, 0]


def test_the_form_keeps_what_was_asked(serve, wide):
    """A time beside an offset wins, and is the one that stays."""
    client = serve(wide)
    text = client.get("/records", topic="b", offset="5", time="2023-11-14").text
    assert 'value="2023-11-14"' in text and 'value="5"' not in text
    assert "Up to 2023-11-14 00:00:00Z." in text and "5 partitions together" in text
    text = client.get("/records", topic="b", offset="5").text
    assert 'value="5"' in text and "An offset is of one partition, here of 0." in text


def test_an_offset_without_a_record_says_what_there_is(serve, orders):
    orders.topic("orders").delete_records({0: 50})
    page = serve(orders).get("/record", topic="orders", partition="0", offset="1234")
    assert page.status == 404
    assert "orders-0 has no record at offset 1,234: the log is from 50 to 120 (exclusive)." in page.text
    assert page.link("records of orders-0") == "/records?topic=orders&partition=0"


def test_partitions_together_are_one_list_by_time(serve, log):
    """Three partitions whose times interleave, and an empty one: pages are those of a sorted scan, both ways."""
    log.create_topic("clicks", 4, {"segment.jitter.ms": "0"})
    for first in (0, 90):
        numbers = pa.array([(number * 7) % 3 for number in range(first, first + 90)], pa.int32())
        log.topic("clicks").append(rows(90, first).append_column("partition", numbers))
    roll(log, now_ms=2**41)
    scanned = log.topic("clicks").scan(columns=("partition", "offset", "timestamp")).to_table().to_pylist()
    scanned.sort(key=lambda record: record["timestamp"], reverse=True)
    expected = [(record["partition"], record["offset"]) for record in scanned]
    page, seen = browse(log, "clicks"), []
    while True:
        seen += [(row.partition, row.offset) for row in page.rows]
        if page.older is None:
            break
        page = browse(log, "clicks", before=page.older)
    assert seen == expected
    back = browse(log, "clicks", after=page.newer)
    assert [(row.partition, row.offset) for row in back.rows] == expected[100:150]
    client = serve(log)
    text = client.get("/records", topic="clicks").text
    assert "4 partitions together" in text and "<option selected>" not in text
    assert client.get("/records", topic="clicks", partition="1").offsets[0] == 59
    assert client.get("/records", topic="clicks", before="0-1").status == 400


def test_a_filter_finds_what_a_scan_finds(serve, orders):
    """It begins at the log end and goes to the log start, whatever the page before had."""
    client = serve(orders)
    page = client.get("/records", topic="orders", find="value 1")
    expected = [number for number in range(120) if f"value {number}".startswith("value 1")]
    assert page.offsets == expected[::-1]
    assert "31 records found" in page.text and "that is all down to the log start" in page.text
    assert 'name="offset" inputmode="numeric" size="12" value=""' in client.get("/records", topic="orders").text
    assert client.get("/records", topic="orders", find="value 3").offsets[-1] == 3
    assert client.get("/records", topic="orders", find="key 77").offsets == [77]
    assert client.get("/records", topic="orders", find=ATTACK).offsets == []


@pytest.mark.parametrize("state", ["none", "fresh", "stale"])
def test_a_key_is_found_with_an_index_and_without(serve, log, state):
    log.create_topic("users", 2)
    for number in range(3):
        keys = [None if row == 9 else f"user-{row % 7}" for row in range(60)]
        log.topic("users").append([{"key": key, "value": f"{number} {row}"} for row, key in enumerate(keys)])
    if state != "none":
        index(log)
    if state == "stale":
        log.topic("users").append([{"key": "user-3", "value": "later"}, {"key": "user-33", "value": "other"}])
    client = serve(log)
    for key in ("user-3", "user", "none"):
        expected = [row for row in log.topic("users").scan().to_table().to_pylist() if row["key"] == key.encode()]
        page = client.get("/records", topic="users", key=key)
        assert sorted(page.offsets) == sorted(row["offset"] for row in expected)
        assert len(client.get("/records", topic="users", key=key, find="1 ").offsets) == sum(
            b"1 " in row["value"] for row in expected
        )
        of_first = client.get("/records", topic="users", partition=0, key=key)
        assert of_first.offsets == [row["offset"] for row in expected if row["partition"] == 0][::-1]
        oldest = browse(log, "users", 0, after={0: 0}, only=RowFilter(key=key), most_records=3)
        assert [row.offset for row in oldest.rows] == of_first.offsets[::-1][:3][::-1]
    scanned = {"none": 180, "fresh": 0, "stale": 2}[state]
    assert f"a search goes through {scanned}." in page.text


def test_a_key_of_a_large_topic_is_few_bytes(log):
    log.create_topic("wide")
    for first in range(0, 4000, 500):
        table = rows(500, first)
        log.topic("wide").append(table.set_column(1, "value", pa.array([b"|%08d" % n * 500 for n in range(500)])))
    index(log)
    page = browse(log, "wide", 0, only=RowFilter(key="key 77"))
    assert [row.offset for row in page.rows] == [77] and page.looked_at_bytes < 10_000 and page.older is None


def test_a_field_of_json_is_a_filter(serve, log):
    log.create_topic("users")
    values = [json.dumps({"user": {"city": city}, "n": number, "tags": ["x", None]}) for number, city in
              enumerate(["Berlin", "Köln", "Berlin"])] + ["[1]", "no json", None]  # fmt: skip
    log.topic("users").append(pa.table({"key": ["Berlin"] * 6, "value": pa.array(values)}))
    client = serve(log)
    for asked, offsets in (
        ("user.city=Berlin", [2, 0]), ("user.city=Köln", [1]), ("n=1", [1]), ("tags.1=null", [2, 1, 0]), ("0=1", [3]),
        ("city=Berlin", []),
    ):  # fmt: skip
        assert client.get("/records", topic="users", field=asked).offsets == offsets, asked
    assert client.get("/records", topic="users", field="city").status == 400


def test_a_filter_looks_at_so_many_bytes_and_gives_a_cursor(log):
    """The pages together find all, and none looks at more than its limit and a window."""
    log.create_topic("wide")
    for first in range(0, 4000, 500):
        table = rows(500, first)
        log.topic("wide").append(
            table.set_column(1, "value", pa.array([b"|%08d" % n * 500 for n in range(first, first + 500)]))
        )
    cursor, found, shares = None, [], []
    limit = 2 << 20
    while cursor is not None or not shares:
        page = browse(log, "wide", 0, before=cursor, only=RowFilter("|00000007|"), most_bytes=limit)
        assert page.looked_at_bytes <= limit + (9 << 20)
        found += [row.offset for row in page.rows]
        cursor = page.older
        shares.append(page.share)
    assert found == [7] and len(shares) > 2 and shares == sorted(shares) and shares[-1] == 1
    assert MOST_BYTES == 64 << 20


def test_long_keys_are_cut_and_text_that_turns_is_isolated(serve, log):
    log.create_topic("odd")
    log.topic("odd").append(pa.table({"key": ["k" * 5000], "value": ["\u202eeulav drawkcab"]}))
    client = serve(log)
    page = client.get("/records", topic="odd").text
    assert f"<bdi>{'k' * 100}</bdi>…" in page and "k" * 101 not in page
    assert "<bdi>\u202eeulav drawkcab</bdi>" in page
    record = client.get("/record", topic="odd", offset=0)
    assert "k" * 5000 in record.text
    explained = client.get(record.link("why it is still here, and when it goes"))
    assert "Offset 0 of odd-0 is in the active segment." in explained.text


def test_text_json_and_bytes_are_told_apart_and_all_is_escaped(serve, log):
    log.create_topic("mixed")
    values = [ATTACK.encode(), json.dumps({"a": [1, ATTACK]}).encode(), b"\x00\xff\x01", None, "é".encode() * 400, b""]
    log.topic("mixed").append(pa.table({"key": [ATTACK.encode()] * 6, "value": pa.array(values, pa.binary())}))
    client = serve(log)
    page = client.get("/records", topic="mixed")
    kinds = re.findall(r'<td[^>]*><code class="(\w+)">', page.text)
    assert kinds[1::2] == ["text", "json", "binary", "null", "text", "text"][::-1]
    assert "<script>" not in page.text and "&lt;script&gt;" in page.text
    assert "00 ff 01" in page.text and "3 bytes, no text" in page.text and "800 B" in page.text
    record = client.get("/record", topic="mixed", offset=1)
    assert unescape(re.search(r'<pre class="json"[^>]*>(.*?)</pre>', record.text, re.DOTALL)[1]) == json.dumps(
        {"a": [1, ATTACK]}, indent=2
    )
    assert "é" * 400 in client.get("/record", topic="mixed", offset=4).text
    for address in ("/records", "/record"):
        bad = client.get(address, topic=ATTACK, partition=ATTACK, offset=ATTACK, find=ATTACK)
        assert bad.status in (400, 404) and "<script>" not in bad.text


def test_values_of_a_known_schema_are_decoded(serve, log):
    log.create_topic("numbers")
    log.topic("numbers").append(pa.table({"key": [b"a"], "value": [(1234567).to_bytes(8, "big")]}))
    assert "1234567" in serve(log, {"value.format": "long"}).get("/records", topic="numbers").text
    wrong = serve(log, {"value.format": "json"}).get("/records", topic="numbers")
    assert wrong.status == 200 and "Shown as bytes" in wrong.text and wrong.offsets == [0]


def test_avro_is_decoded_by_a_registry_in_a_directory(serve, log, tmp_path):
    log.create_topic("typed")
    formats = {"value.format": "avro", "schema.registry": str(tmp_path / "registry")}
    log.topic("typed").append(pa.table({"key": ["a"], "value": [{"id": 1234567, "name": ATTACK}]}), formats=formats)
    for asked in (formats, {"schema.registry": formats["schema.registry"]}):  # the second is guessed
        page = serve(log, asked).get("/records", topic="typed").text
        assert unescape(page).count(json.dumps({"id": 1234567, "name": ATTACK}, separators=(",", ":"))) == 1
        assert "<script>" not in page


def test_a_directory_of_kafkas_is_served_too(serve):
    client = serve(LogDir.open(str(GOLDEN / "broker-data")))
    assert "orders-0" in client.get("/").text
    assert len(client.get("/records", topic="orders", partition=1).offsets) == 50


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:{port}", "127.0.0.1", "127.0.0.1:1", "127.0.0.1.evil.example:{port}", ""]
)
def test_another_host_is_refused(serve, orders, host):
    """A site whose name was made to lead here would send its own name: DNS rebinding."""
    client = serve(orders)
    refused = client.get("/records", topic="orders", host=host.format(port=client.port) or " ")
    assert refused.status == 403 and "value 119" not in refused.text
    assert client.get("/", host=f"localhost:{client.port}").status == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_nothing_but_reading_is_offered(serve, orders, method):
    before = orders.topic("orders").snapshot.version
    assert serve(orders).get("/", method=method).status == 501
    assert orders.topic("orders").snapshot.version == before


def test_headers_keep_other_sites_out(serve, orders):
    client = serve(orders)
    for address in ("/", "/records?topic=orders", "/nothing"):
        headers = client.get(address).headers
        assert "default-src 'none'" in headers["Content-Security-Policy"]
        assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]
        assert (headers["X-Content-Type-Options"], headers["Referrer-Policy"]) == ("nosniff", "no-referrer")
        assert headers["Cache-Control"] == "no-store" and "Access-Control-Allow-Origin" not in headers
    assert client.get("/nothing").status == 404
    assert client.get("/", method="HEAD").text == ""


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ({}, 400),
        ({"topic": "none"}, 404),
        ({"topic": "../orders"}, 400),
        ({"topic": "orders", "partition": "7"}, 404),
        ({"topic": "orders", "offset": "-1"}, 400),
        ({"topic": "orders", "time": "soon"}, 400),
        ({"topic": "orders", "offset": "9" * 19}, 200),
    ],
)
def test_a_wrong_question_gets_an_answer(serve, orders, query, status):
    assert serve(orders).get("/records", **query).status == status


@given(
    st.lists(st.none() | st.text("ab", max_size=4).map(str.encode), max_size=8),
    st.text("ab", min_size=1, max_size=3).map(str.encode),
    st.integers(0, 3),
)
def test_the_search_finds_the_rows_that_a_loop_finds(values, find, skipped):
    array = pa.array(values, pa.binary()).slice(skipped)
    expected = [row for row, value in enumerate(array.to_pylist()) if value is not None and find in value]
    assert list(_rows_with(array, find, 100)) == expected
    assert list(_rows_with(array, find, 2)) == expected[:2]


def lags_of(log: LogDir) -> list[GroupLag]:
    snapshot = log.topic("orders").snapshot
    return [lag for group in log.groups() for lag in log.group(group).lags([snapshot])]


def test_a_group_that_stands_still_or_came_too_late_is_to_be_looked_into(orders):
    moved(orders, "billing", {"orders": {0: 30}})
    [lag] = lags_of(orders)
    assert group_warnings([lag], lag.committed_ms + OVERDUE_MS) == []
    [text] = group_warnings([lag], lag.committed_ms + OVERDUE_MS + 1)
    assert text == "group billing in orders-0: a lag of 90 offsets, and no commit for 1 d"
    orders.topic("orders").delete_records({0: 50})
    [text] = group_warnings(lags_of(orders), lag.committed_ms)
    assert text == "group billing in orders-0: 20 offsets left the log before it read them"
    several = [replace(lag, partition=number, offset=number) for number in range(3)]
    [text] = group_warnings(several, lag.committed_ms + 2 * OVERDUE_MS)
    assert text == "group billing in 3 partitions of orders: a lag of 357 offsets, and no commit for 2 d"
    orders.delete_topic("orders")
    orders.create_topic("orders")
    assert lags_of(orders) == []


# A log directory of very many partitions


@pytest.fixture
def wide(log: LogDir) -> LogDir:
    """Three topics: of three, five and two partitions, with a record in each, but none in the last."""
    for topic, partitions in (("a", 3), ("b", 5), ("c", 2)):
        log.create_topic(topic, partitions, {"segment.jitter.ms": "1000"})
        for number in range(partitions) if topic != "c" else ():
            log.topic(topic).append(rows(1).append_column("partition", pa.array([number], pa.int32())))
    return log


def shown(found: TopicsShown) -> list[str]:
    return [
        f"{snapshot.topic}-{number}"
        for snapshot, _ in found.topics
        for number in snapshot.partitions.column("partition").to_pylist()
    ]


ALL = ["a-0", "a-1", "a-2", "b-0", "b-1", "b-2", "b-3", "b-4", "c-0", "c-1"]


@pytest.mark.parametrize(
    "most",
    [{"most_partitions": 1}, {"most_partitions": 4}, {"most_partitions": 8}, {"most_segments": 2}, {"most_topics": 1}],
)
def test_pages_together_show_every_partition_once(wide, most):
    found, pages = read_topics(wide, **most), 1
    seen = shown(found)
    while found.next is not None:
        found, pages = read_topics(wide, found.next, **most), pages + 1
        assert shown(found)
        assert all(
            row["partition"] in part.partitions.column("partition").to_pylist()
            for part, _ in found.topics
            for row in part.live.to_pylist()
        )
        seen += shown(found)
    assert seen == ALL and pages > 1


def test_a_page_opens_the_manifests_of_what_it_shows(wide):
    play = Play()
    read_topics(opened(wide, open_delta_log=play), Begin("b"), most_partitions=2)
    assert set(play.opened) == {"b"}


def test_a_part_of_a_topic_has_the_numbers_of_its_partitions(serve, wide, monkeypatch):
    monkeypatch.setattr(serving, "read_topics", functools.partial(read_topics, most_partitions=4))
    client = serve(wide)
    first = client.get("/topic", topic="b").text
    whole = PageParser(front_page_of(wide)).numbers
    assert PageParser(first).numbers == {name: whole[name] for name in ALL[3:7]}
    assert "This page has b-0 to b-3." in first and "This page has" not in client.get("/topic", topic="a").text
    further = unescape(re.search(r'<a href="(/topic\?[^"]*)">further</a>', first)[1])
    assert PageParser(client.get(further).text).numbers == {"b-4": whole["b-4"]}
    assert set(PageParser(client.get("/topic", topic="c").text).numbers) == {"c-0", "c-1"}
    assert client.get("/topic", topic="c", partition="x").status == 400
    assert client.get("/topic", topic="d").status == client.get("/topic", topic="c", partition="7").status == 404


def lines_of(text: str) -> dict[str, list[str]]:
    """{topic: the texts of its other cells} of the table of topics."""
    table = text.partition('<section class="groups topics" id="topics">')[2].partition("</table>")[0]
    lines = [re.sub(r"<(?!t[dr])[^>]*>", "", line).split("<td>") for line in re.split("<tr[^>]*>", table)[2:]]
    cells = [[unescape(cell).strip() for cell in re.split(r"<td[^>]*>", "<td>".join(line))] for line in lines]
    return {row[1].split()[0]: [cell.removesuffix("</tr>").strip() for cell in row[2:]] for row in cells}


def test_a_log_of_many_partitions_begins_with_a_table_of_topics(serve, wide, limits):
    """Partitions have pages of their topics. A line follows its topic, though it is remembered."""
    limits(PARTITIONS_BESIDE_A_TABLE=9)
    wide.topic("b").alter({"retention.ms": "86400000", "retention.bytes": "1048576"})
    wide.topic("a").append(rows(3, 1))
    moved(wide, "billing", {"a": {0: 1}})
    roll(wide, topics=["a"], now_ms=2**41)  # what was two chunks waits for vacuum
    client = serve(wide)
    page = client.get("/")
    table = lines_of(page.text)
    assert not PageParser(page.text).numbers and list(table) == ["a", "b", "c"]
    described = wide.topic("a").describe()["partitions"]
    size = human_bytes(sum(partition["size_bytes"] for partition in described))
    removed = human_bytes(wide.topic("a").snapshot.removed_bytes)
    assert wide.topic("a").snapshot.removed_bytes and table["a"][:5] == ["3", size, removed, "6", "7 d"]
    assert table["a"][6] == str(sum(wide.topic("a").offsets()[number][1] for number in range(1)) - 1)
    assert table["b"][4] == "1 d or 1.0 MiB a partition" and table["c"][1:4] == ["0 B", "–", "0"]
    assert set(PageParser(client.get(page.link("b")).text).numbers) == set(ALL[3:8])
    wide.topic("c").append(rows(7))
    assert lines_of(client.get("/").text)["c"][3] == "7"
    assert list(lines_of(client.get("/", topic="b").text)) == ["b", "c"]


def test_a_page_of_all_says_nothing_of_parts(serve, wide):
    text = serve(wide).get("/").text
    assert set(PageParser(text).numbers) == set(ALL)
    assert "This page has" not in text and "<form action" not in text


def test_a_page_in_a_file_says_what_it_has_no_room_for(wide):
    topics = [(wide.topic(topic).snapshot, wide.topic(topic).config) for topic in wide.topics()]
    part = first_topics(topics, most_partitions=4)
    assert shown(part) == ALL[:4] and not part.is_all
    text = front_page(wide.uri, part.topics, TIME_MS, part=part)
    assert "This page has a-0 to b-0, a part of 3 topics. segments page LOG_DIR shows all of them." in text
    assert first_topics(topics).is_all


def front_page_of(log: LogDir) -> str:
    return front_page(
        log.uri, [(log.topic(topic).snapshot, log.topic(topic).config) for topic in log.topics()], TIME_MS
    )


@pytest.mark.parametrize(
    "target",
    [
        "http://[/",
        "//[",
        "/records?" + "&".join(f"a{n}=1" for n in range(21)),
        "/records?" + "&" * 100,
        "/records?topic=orders&offset=%00",
        "/records?topic=%ff%fe",
        "/records?topic=orders&time=%1b",
        "*",
        "/../../etc/passwd",
        "/records?topic=orders&partition=%D9%A3",
    ],
)
def test_any_target_of_a_request_gets_an_answer(serve, orders, target):
    port = serve(orders).port
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(f"GET {target} HTTP/1.0\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode())
        with connection.makefile("rb") as reply:
            answer = reply.read()
    assert answer.split()[1] in (b"200", b"400", b"404")
    assert b"Content-Security-Policy" in answer
