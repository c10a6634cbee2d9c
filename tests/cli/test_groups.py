"""`segments groups`: what kafka-consumer-groups shows and moves, by its words."""

from __future__ import annotations

import pyarrow as pa
import pytest

from spark_segments import LogDir, Position


@pytest.fixture
def orders(log) -> LogDir:
    """Two partitions of 100 records; a group at 5 and 90."""
    log.create_topic("orders", partitions=2)
    for partition in (0, 1):
        rows = {"value": [str(number) for number in range(100)], "partition": pa.array([partition] * 100, pa.int32())}
        log.topic("orders").append(pa.table(rows))
    snapshot = log.topic("orders").snapshot
    group = log.group("billing")
    group.commit(group.positions(), {"orders": {0: 5, 1: Position.at(snapshot, 1, 90, "host-7")}})
    return log


def test_groups_are_listed_and_shown_with_their_lag(segments, orders):
    orders.group("an/odd id").reset({"orders": {0: 1}})
    assert segments("groups", "list", orders.uri).lines == ["an/odd id", "billing"]
    shown = segments("groups", "list", orders.uri, "--output", "json").json
    assert shown["groups"] == ["an/odd id", "billing"]
    committed_ms = orders.group("billing").positions()["orders", 0].committed_ms
    assert shown["topics"][1] == {
        "group": "billing", "topic": "orders", "partitions": 2, "lag": 105, "committed_ms": committed_ms
    }  # fmt: skip
    assert [line.split()[:-1] for line in segments("groups", "list", orders.uri, "--output", "wide").lines] == [
        ["group", "topic", "partitions", "lag"],
        ["an/odd", "id", "orders", "1", "99"],
        ["billing", "orders", "2", "105"],
    ]
    assert [line.split() for line in segments("groups", "show", orders.uri, "billing").lines] == [
        ["topic", "partition", "position", "log_end", "lag"],
        ["orders", "0", "5", "100", "95"],
        ["orders", "1", "90", "100", "10"],
    ]
    found = segments("groups", "show", orders.uri, "billing", "--output", "json").json["positions"]
    assert [(row["metadata"], row["lag"], row["problem"]) for row in found] == [("", 95, None), ("host-7", 10, None)]
    assert segments("groups", "show", orders.uri, "billing", "--csv").lines == ["orders,0,5", "orders,1,90"]


def test_a_position_that_cannot_be_gone_on_from_says_why(segments, orders):
    orders.topic("orders").delete_records({0: 6})
    assert "Records of orders-0 were deleted before group billing read them" in (
        segments("groups", "show", orders.uri, "billing").text
    )
    orders.delete_topic("orders")
    found = segments("groups", "show", orders.uri, "billing", "--output", "json").json["positions"]
    assert [(row["lag"], row["problem"]) for row in found] == [(None, "Topic orders is not there")] * 2


@pytest.mark.parametrize("command", [("show",), ("delete",), ("reset", "orders", "--to", "earliest")])
def test_an_unknown_group_is_an_error_that_names_those_there(run, orders, command):
    name, *rest = command
    ran = run("groups", name, orders.uri, "biling", *rest)
    assert ran.code == 1 and "No such group" in ran.error and "There are: billing" in ran.error
    assert orders.groups() == ["billing"]


def test_a_reset_shows_what_it_does_and_a_dry_run_does_nothing(segments, orders):
    def reset(*options):
        return [line.split() for line in segments("groups", "reset", orders.uri, "billing", "orders", *options).lines]

    assert reset("--to", "latest", "--dry-run") == [
        ["topic", "partition", "position", "new_position", "log_end", "lag"],
        ["orders", "0", "5", "100", "100", "0"],
        ["orders", "1", "90", "100", "100", "0"],
    ]
    assert orders.group("billing").positions().offsets == {"orders": {0: 5, 1: 90}}
    reset("--to", "7", "--partitions", "0", "--yes")
    assert orders.group("billing").positions().offsets == {"orders": {0: 7, 1: 90}}
    reset("--to", "earliest")
    assert orders.group("billing").positions().offsets == {"orders": {0: 0, 1: 0}}


def test_a_shift_ends_at_the_ends_of_the_log_and_says_so(segments, orders):
    text = segments("groups", "reset", orders.uri, "billing", "orders", "--shift-by", "20").text
    assert "the log end: 110 is above it" in text
    assert orders.group("billing").positions().offsets == {"orders": {0: 25, 1: 100}}
    text = segments("groups", "reset", orders.uri, "billing", "orders", "--shift-by", "-30").text
    assert "the log start: -5 is below it" in text
    assert orders.group("billing").positions().offsets == {"orders": {0: 0, 1: 70}}


def test_a_reset_to_a_time_finds_the_first_record_that_is_not_older(segments, orders):
    segments("groups", "reset", orders.uri, "billing", "orders", "--to-time", "2001-01-01", "--partitions", "1")
    assert orders.group("billing").positions().offsets == {"orders": {0: 5, 1: 0}}
    text = segments("groups", "reset", orders.uri, "billing", "orders", "--to-time", "2199-01-01").text
    assert "no record is so late" in text
    assert orders.group("billing").positions().offsets == {"orders": {0: 100, 1: 100}}


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (("--to", "101"), "above the log end of orders-0: expected 0 to 100, earliest or latest, found 101"),
        (("--to", "x"), "no offset"),
        (("--to", "5", "--shift-by", "1"), "one of --to, --to-time and --shift-by"),
        ((), "one of --to, --to-time and --shift-by"),
        (("--to", "5", "--partitions", "2"), "no such partition"),
    ],
)
def test_a_reset_that_cannot_be_is_refused(run, orders, options, text):
    ran = run("groups", "reset", orders.uri, "billing", "orders", *options)
    assert ran.code == 1 and text in ran.error
    assert orders.group("billing").positions().offsets == {"orders": {0: 5, 1: 90}}


def test_a_reset_makes_a_group_only_on_demand(segments, orders):
    segments("groups", "reset", orders.uri, "new", "orders", "--to", "latest", "--create")
    assert orders.group("new").positions().offsets == {"orders": {0: 100, 1: 100}}


def test_a_deleted_group_is_gone(segments, orders):
    assert segments("groups", "delete", orders.uri, "billing", "--yes").lines == ["Deleted group billing."]
    assert orders.groups() == []
