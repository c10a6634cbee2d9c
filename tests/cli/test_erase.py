from __future__ import annotations

import pytest

from spark_segments import LogDir


@pytest.fixture
def uri(log: LogDir, segments) -> str:
    segments(
        "topic", "create", log.uri, "customers", "--config", "cleanup.policy=compact,compression.type=uncompressed"
    )
    segments(
        "append", log.uri, "customers", "--property", "parse.key=true", stdin=b"ada\tsecret 1\nbob\t1\nada\tsecret 2\n"
    )
    return log.uri


def test_erase_says_what_it_did_and_explain_what_is_left(segments, uri):
    before = segments("explain", uri, "customers", "--key", "ada").text
    assert "Key 'ada' of topic customers, version 1: 2 values in the log." in before
    assert "`segments erase` takes the records out of the log" in before

    [line] = segments("erase", uri, "customers", "--key", "ada", "--output", "json").json["partitions"]
    assert (line["dropped"], line["tombstones_appended"], line["records_out"]) == ({"erased": 2}, 1, 1)
    assert segments("consume", uri, "customers", "--property", "print.key=true").lines == ["bob\t1", "ada\tnull"]

    after = segments("explain", uri, "customers", "--key", "ada").text
    assert "no value in the log, 2 in files that left it." in after
    assert (
        "removed file" in after
        and "1 tombstone, partition 0, offset 3; the file goes at" in after
        and "Nobody can tell from here" in after
    )
    again = segments("erase", uri, "customers", "--key", "ada", "--history")
    assert "No segment of the log has a record of these keys to erase." in again.lines
    assert "1 earlier file deleted" in again.error
    assert "no value in the log.\n" in segments("explain", uri, "customers", "--key", "ada").text


def test_a_key_may_be_of_any_bytes(segments, run, log, uri):
    log.topic("customers").append([{"key": b"\xff\x00", "value": b"v"}])
    report = segments("erase", uri, "customers", "--key-base64", "/wA=", "--output", "json").json
    assert report["dropped"] == {"erased": 1}
    account = segments("explain", uri, "customers", "--key-base64", "/wA=", "--output", "json").json
    assert account["values"] == 0 and account["not_known"]
    assert "Not base64" in run("erase", uri, "customers", "--key-base64", "?").error


def test_erase_wants_a_topic_and_keys(run, uri):
    assert "Which topics?" in run("erase", uri, "--key", "ada").error
    assert "Which keys?" in run("erase", uri, "customers").error
    assert run("explain", uri, "customers", "--key", "a", "--offset", "1").code == 2
