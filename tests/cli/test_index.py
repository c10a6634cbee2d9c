"""`segments index`, and the commands that ask the index of keys."""

from __future__ import annotations

import pytest

from spark_segments import LogDir


@pytest.fixture
def uri(tmp_path):
    log = LogDir.create(str(tmp_path / "log"))
    log.create_topic("orders", 2)
    for number in range(5):
        log.topic("orders").append([{"key": f"k{row % 7}", "value": f"{number} {row}"} for row in range(50)])
    return log.uri


def test_an_index_is_built_kept_and_dropped(segments, uri):
    assert segments("index", uri, "--dry-run").lines
    assert "key_index" not in segments("describe", uri, "orders", "--output", "json").json
    built = segments("index", uri, "orders", "--output", "json").json
    assert built["details"]["orders"]["offsets_indexed"] == 250
    assert "keys of 250 of 250 offsets are indexed" in segments("describe", uri, "orders").text
    assert segments("describe", uri, "orders", "--output", "json").json["key_index"]["entries"] == 250
    assert "index:" in segments("maintain", uri).error
    segments("verify", uri, "--deep")
    assert [line["action"] for line in segments("index", uri, "--drop", "--output", "json").json["partitions"]] == [
        "drop",
        "drop",
    ]
    assert "indexed" not in segments("describe", uri, "orders").text


def test_consume_says_what_it_looked_at(segments, uri):
    scanned = segments("consume", uri, "orders", "--key", "k1")
    assert "250 offsets scanned" in scanned.error
    segments("index", uri)
    found = segments("consume", uri, "orders", "--key", "k1")
    assert found.output == scanned.output and len(found.lines) == 35
    assert "answered for 250 offsets (2 runs, " in found.error and "; 0 offsets scanned" in found.error
    assert segments("consume", uri, "orders", "--key", "k1", "--count", "--quiet").lines == ["35"]
    assert segments("consume", uri, "orders", "--key", "k1", "--tail", "1").lines == scanned.lines[-1:]
