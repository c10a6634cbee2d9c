from __future__ import annotations

import base64
import shutil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_segments.dump import DumpOptions, dump_entries, dump_json, log_file
from spark_segments.dump.text import java_text, text_of
from spark_segments.format.sidecars.index import offset_index_bytes, time_index_bytes
from spark_segments.storage import Storage
from verification.world.kafka_bytes.golden_files import (
    CLEAN_DIRECTORIES,
    GOLDEN,
    LEGACY_DIRECTORIES,
    damaged_dir,
    expected_batches,
    expected_records,
    golden_dir,
    text,
)

DUMPED_SUFFIXES = (".log", ".index", ".timeindex", ".snapshot", ".txnindex")
ALL = [*CLEAN_DIRECTORIES, *LEGACY_DIRECTORIES, "live-0"]
WITH_DUMP = [name for name in ALL if (GOLDEN / f"{name}.dump.txt.xz").exists()]
FIRST = "plain-0/00000000000000000000"


class Files:
    """Files in memory that remember the largest piece that was read at once."""

    def __init__(self, contents: dict[str, bytes]) -> None:
        self.contents = contents
        self.largest_read = 0

    def read(self, path: str, offset: int = 0, length: int | None = None, *, writable: bool = False) -> bytes:
        end = None if length is None else offset + length
        piece = self._content(path)[offset:end]
        self.largest_read = max(self.largest_read, len(piece))
        return piece

    def size(self, path: str) -> int:
        return len(self._content(path))

    def _content(self, path: str) -> bytes:
        if path not in self.contents:
            raise FileNotFoundError(path)
        return self.contents[path]


def files_of(directory: Path) -> tuple[Storage, list[str]]:
    names = sorted(path.name for path in directory.iterdir() if path.suffix in DUMPED_SUFFIXES)
    return Storage(str(directory.parent)), [f"{directory.name}/{name}" for name in names]


def plain(**changes: bytes | None) -> Files:
    """The first segment of plain-0, with some of its files changed or gone."""
    contents = {f"{FIRST}.{kind}": (GOLDEN / f"{FIRST}.{kind}").read_bytes() for kind in ("log", "index", "timeindex")}
    for kind, content in changes.items():
        if content is None:
            del contents[f"{FIRST}.{kind}"]
        else:
            contents[f"{FIRST}.{kind}"] = content
    return Files(contents)


def lines(source, *paths: str, **options) -> list[str]:
    return list(text_of(dump_entries(source, paths, DumpOptions(**options))))


@pytest.mark.cases(14)
@pytest.mark.parametrize("name", WITH_DUMP)
def test_text_is_that_of_kafkas_tool(name):
    source, paths = files_of(golden_dir(name))
    assert "".join(f"{line}\n" for line in text_of(dump_entries(source, paths))) == text(name, "dump.txt")


def test_all_but_the_largest_golden_directories_have_a_dump():
    assert len(ALL) - len(WITH_DUMP) == 4


@pytest.mark.parametrize("name", ["txn-compact/clean-2/txnc-0", "zstd-0", "logappend-0", "legacy-v1-0"])
def test_json_says_what_kafkas_reader_says(name):
    source, paths = files_of(golden_dir(name))
    entries = list(dump_json(source, [path for path in paths if path.endswith(".log")]))
    batches = [entry for entry in entries if entry["kind"] == "batch"]
    known = batches[0].keys() & expected_batches(name)[0].keys()
    assert len(known) > 15
    for batch, kafka in zip(batches, expected_batches(name), strict=True):
        known = known - {"baseOffset"} if kafka["magic"] < 2 else known
        assert {key: batch[key] for key in known} == {key: kafka[key] for key in known}
    records = [entry for entry in entries if entry["kind"] == "record"]
    known = {"offset", "timestamp", "timestampType", "key", "value", "headers", "sequence"} & records[0].keys()
    for record, kafka in zip(records, expected_records(name), strict=True):
        assert {key: record[key] for key in known} == {key: kafka[key] for key in known}
        if kafka["isControl"]:
            assert (record["controlType"], record["coordinatorEpoch"]) == (
                kafka["controlType"],
                kafka["coordinatorEpoch"],
            )


def test_json_has_bytes_in_base64_and_keeps_null():
    source, paths = files_of(golden_dir("zstd-0"))
    raw = [entry for entry in dump_entries(source, paths) if entry["kind"] == "record"]
    coded = [entry for entry in dump_json(source, paths) if entry["kind"] == "record"]
    assert any(record["key"] is None for record in raw) and any(record["value"] == b"" for record in raw)
    for one, other in zip(raw, coded, strict=True):
        for name in ("key", "value"):
            assert one[name] == (None if other[name] is None else base64.b64decode(other[name]))


def test_a_large_log_is_read_in_windows():
    log = (GOLDEN / f"{FIRST}.log").read_bytes()
    files = Files({"t-0/00000000000000000000.log": log * 60})
    entries = list(dump_entries(files, list(files.contents), DumpOptions(deep_iteration=False)))
    assert len(entries) == 2 + 60 * sum(batch["segment"] == 0 for batch in expected_batches("plain-0"))
    assert files.largest_read <= log_file.WINDOW_BYTES < len(log) * 60 / 3


def test_a_batch_larger_than_a_window_is_read_whole(limits):
    whole = lines(plain(), f"{FIRST}.log")
    limits(DUMP_WINDOW_BYTES=100, DUMP_GROUP_BYTES=10)
    assert lines(plain(), f"{FIRST}.log") == whole


def test_a_torn_tail_is_told_as_kafka_tells_it(tmp_path):
    source, _ = files_of(damaged_dir("torn-tail", tmp_path))
    path = "plain-0/00000000000000004885.log"
    *_, last_batch = (line for line in lines(source, path, deep_iteration=False) if line.startswith("baseOffset"))
    end = int(last_batch.split("position: ")[1].split()[0]) + int(last_batch.split("size: ")[1].split()[0])
    assert lines(source, path)[-1] == (
        f"Found {source.size(path) - end} invalid bytes at the end of 00000000000000004885.log"
    )


def test_a_zero_tail_is_an_error_and_what_is_before_it_is_shown(tmp_path):
    source, _ = files_of(damaged_dir("zero-tail", tmp_path))
    intact = lines(Storage(str(GOLDEN)), "plain-0/00000000000000004885.log")
    *shown, error, invalid = lines(source, "plain-0/00000000000000004885.log")
    assert shown == intact
    assert "zeros" in error and "position 11160" in error
    assert invalid == "Found 4096 invalid bytes at the end of 00000000000000004885.log"


def test_a_flipped_byte_is_shown_as_an_invalid_batch(tmp_path):
    source, _ = files_of(damaged_dir("flipped-byte", tmp_path))
    path = "plain-0/00000000000000002773.log"
    damaged = lines(source, path, deep_iteration=False)
    intact = lines(Storage(str(GOLDEN)), path, deep_iteration=False)
    changed = [(one, other) for one, other in zip(intact, damaged, strict=True) if one != other]
    ((before, after),) = changed
    assert after == before.replace("isvalid: true", "isvalid: false") and "baseOffset: 3116 " in after
    assert len(lines(source, path)) > len(damaged)


def test_records_that_cannot_be_read_do_not_hide_the_others():
    log = bytearray((GOLDEN / f"{FIRST}.log").read_bytes())
    batches = [batch for batch in expected_batches("plain-0") if batch["segment"] == 0]
    log[batches[3]["position"] + 61] = 0x7F  # the length of the batch's first record
    entries = list(dump_entries(plain(log=bytes(log)), [f"{FIRST}.log"]))
    (error,) = (entry for entry in entries if entry["kind"] == "error")
    assert (error["file"], error["position"]) == (f"{FIRST}.log", batches[3]["position"])
    lost = set(range(batches[3]["baseOffset"], batches[3]["lastOffset"] + 1))
    offsets = [entry["offset"] for entry in entries if entry["kind"] == "record"]
    assert offsets == [offset for offset in range(batches[-1]["lastOffset"] + 1) if offset not in lost]


def test_false_entries_of_indexes_are_told():
    log = [batch for batch in expected_batches("plain-0") if batch["segment"] == 0]
    first, second, third = log[10], log[20], log[30]
    index = offset_index_bytes(
        [first["lastOffset"], second["lastOffset"] - 1, third["lastOffset"]],
        [first["position"], second["position"], third["position"] + 1],
    )
    time_index = time_index_bytes(
        [first["maxTimestamp"], second["maxTimestamp"] + 1, second["maxTimestamp"], 7, 8],
        [first["lastOffset"], second["lastOffset"], second["lastOffset"], third["lastOffset"] - 1, 5000],
    )
    source = plain(index=index, timeindex=time_index)
    assert lines(source, f"{FIRST}.index", verify_index_only=True) == [
        f"Dumping {FIRST}.index",
        f"Mismatches in :{FIRST}.index",
        f"  Index offset: {third['lastOffset']}, log offset: -1",
        f"  Index offset: {second['lastOffset'] - 1}, log offset: {second['lastOffset']}",
    ]
    source = plain(timeindex=time_index)
    assert lines(source, f"{FIRST}.timeindex", verify_index_only=True) == [
        f"Dumping {FIRST}.timeindex",
        f"Found timestamp mismatch in :{FIRST}.timeindex",
        f"  Index timestamp: {second['maxTimestamp'] + 1}, log timestamp: {second['maxTimestamp']}",
        f"Found out of order timestamp in :{FIRST}.timeindex",
        f"  Index timestamp: {second['maxTimestamp']}, Previously indexed timestamp: {second['maxTimestamp'] + 1}",
        "The following indexed offsets are not found in the log.",
        f"Indexed offset: {third['lastOffset'] - 1}, found log offset: {third['lastOffset']}",
        "Indexed offset: 5000, found log offset: -1",
    ]


def test_complaints_are_bounded(limits):
    limits(MOST_COMPLAINTS=3)
    source, paths = files_of(golden_dir("bigcompact-none/clean-2/bigcompact-0"))
    told = lines(source, paths[1])
    at = told.index(f"Non-consecutive offsets in {paths[1]}")
    assert len(told[at:]) == 5
    assert told[-1].startswith("  and ") and told[-1].endswith(" before these")


def test_indexes_without_their_log_are_shown_unchecked():
    intact = lines(plain(), f"{FIRST}.index", f"{FIRST}.timeindex")
    alone = lines(plain(log=None), f"{FIRST}.index", f"{FIRST}.timeindex")
    assert [line for line in alone if not line.startswith("No .log")] == intact
    assert len(alone) == len(intact) + 2


@pytest.mark.parametrize("index", [None, b"\xff" * 40, b""])
def test_a_time_index_is_checked_without_an_index_too(index):
    assert lines(plain(index=index), f"{FIRST}.timeindex") == lines(plain(), f"{FIRST}.timeindex")


def test_a_time_entry_may_point_to_a_batch_that_is_none():
    log = bytearray((GOLDEN / f"{FIRST}.log").read_bytes())
    batch = expected_batches("plain-0")[5]
    log[batch["position"] + 57] = 0x7F  # the record count
    time_index = time_index_bytes([batch["maxTimestamp"]], [batch["lastOffset"]])
    told = lines(plain(log=bytes(log), timeindex=time_index), f"{FIRST}.timeindex")
    assert told[-1] == f"  Index timestamp: {batch['maxTimestamp']}, log timestamp: -1"


def test_names_of_tiered_storage_and_of_leftovers(tmp_path):
    (directory,) = (GOLDEN / "tiered").glob("*/*")
    source, paths = files_of(directory)
    second = [path for path in paths if "/00000000000000000649-" in path]
    told = lines(source, *second, f"{second[0].rpartition('.')[0]}.leader_epoch_checkpoint")
    assert "Log starting offset: 649" in told and "epoch: 0 startOffset: 649" in told
    kafka = text("txn-0", "dump.txt") or ""
    assert all(line in kafka for line in told if line.startswith(("offset:", "version:", "timestamp:", "baseOffset:")))
    for kind in ("log", "index", "timeindex"):
        shutil.copy(GOLDEN / f"{FIRST}.{kind}", tmp_path / f"00000000000000000000.{kind}.deleted")
    names = [f"00000000000000000000.{kind}.deleted" for kind in ("index", "log", "timeindex")]
    left = [line for line in lines(Storage(str(tmp_path)), *names) if not line.startswith("Dumping")]
    assert left == [line for line in lines(plain(), *sorted(plain().contents)) if not line.startswith("Dumping")]


def test_small_files_beside_the_segments():
    source = Storage(str(GOLDEN))
    assert lines(source, "plain-0/leader-epoch-checkpoint", "plain-0/partition.metadata") == [
        "Dumping plain-0/leader-epoch-checkpoint",
        "epoch: 0 startOffset: 0",
        "epoch: 3 startOffset: 2001",
        "epoch: 5 startOffset: 4009",
        "Dumping plain-0/partition.metadata",
        "topicId: GxwcL13W4ZQ1ukEskTPQzA",
    ]
    assert "topic: orders partition: 0 offset: 500" in lines(source, "broker-data/log-start-offset-checkpoint")
    assert "cluster.id: HDyYw7RhTQGa6dKvW-GCQw" in lines(source, "broker-data/meta.properties")
    assert lines(source, "broker-data/__cluster_metadata-0/quorum-state")[1:] == [
        "Ignoring unknown file broker-data/__cluster_metadata-0/quorum-state"
    ]


def test_records_of_kraft_are_shown_as_they_are():
    source = Storage(str(GOLDEN))
    told = "\n".join(lines(source, "broker-data/__cluster_metadata-0/00000000000000000000.log"))
    assert "controlType: LEADER_CHANGE(2)" in told and told.count("\nbaseOffset:") > 100
    assert "controlType: SNAPSHOT_HEADER(3)" in "\n".join(lines(source, "broker-data/bootstrap.checkpoint"))


def test_damaged_small_files_are_errors():
    files = Files({"t-0/5.snapshot": b"\x00\x01abcd", "t-0/leader-epoch-checkpoint": b"x", "t-0/5.txnindex": bytes(40)})
    told = lines(files, *files.contents)
    assert "producer snapshot" in told[1] and "does not parse" in told[3]
    assert told[5:] == [
        "version: 0 producerId: 0 firstOffset: 0 lastOffset: 0 lastStableOffset: 0",
        "Found 6 invalid bytes at the end of 5.txnindex",
    ]


def test_a_missing_file_is_missing():
    with pytest.raises(FileNotFoundError):
        lines(plain(log=None), f"{FIRST}.log")


def test_options_leave_things_out():
    batches = [line for line in lines(plain(), f"{FIRST}.log") if line.startswith("baseOffset:")]
    assert lines(plain(), f"{FIRST}.log", deep_iteration=False)[2:] == batches
    assert lines(plain(), f"{FIRST}.log", deep_iteration=False, max_bytes=1500)[2:] == batches[:2]
    whole = lines(plain(), f"{FIRST}.log")
    without_data = list(text_of(dump_entries(plain(), [f"{FIRST}.log"]), print_data_log=False))
    assert [line.split(" key:")[0].split(" payload:")[0] for line in whole] == without_data
    only_data = list(text_of(dump_entries(plain(), [f"{FIRST}.log"]), skip_record_metadata=True))
    assert next(line for line in only_data if line.startswith("|")).startswith("| key: ")


@pytest.mark.parametrize(
    ("content", "expected"),
    [  # as OpenJDK 17's decoder has them
        ("grün €😀".encode(), "grün €😀"),
        (b"a\xffb", "a\ufffdb"),
        (b"\xed\xa0\x80", "\ufffd"),
        (b"\xed\xa0", "\ufffd"),
        (b"\xed\xa0x", "\ufffdx"),
        (b"\xe2\x82", "\ufffd"),
        (b"\xe0\x80\x80", "\ufffd\ufffd\ufffd"),
        (b"\xc0\x80", "\ufffd\ufffd"),
        (b"\xf0\x9f\x98x", "\ufffdx"),
        (b"\xf4\x90\x80\x80", "\ufffd\ufffd\ufffd\ufffd"),
    ],
)
def test_text_is_decoded_as_java_decodes_it(content, expected):
    assert java_text(content) == expected


@settings(deadline=None)
@given(st.data())
def test_no_damage_ends_a_dump(data):
    contents = dict(plain().contents)
    contents[f"{FIRST}.log"] = contents[f"{FIRST}.log"][:3000]
    contents[f"{FIRST}.txnindex"] = bytes(range(102))
    contents[f"{FIRST}.snapshot"] = (GOLDEN / "txn-0" / "00000000000000000649.snapshot").read_bytes()
    for path in contents:
        content = bytearray(contents[path])
        for _ in range(data.draw(st.integers(0, 3))):
            content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
        contents[path] = bytes(content[: data.draw(st.integers(0, len(content)))])
    for line in text_of(dump_entries(Files(contents), list(contents))):
        assert isinstance(line, str)
