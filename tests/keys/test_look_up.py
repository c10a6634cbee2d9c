"""A look-up of keys equals the filter of a full scan, with an index, with a part of one, and without."""

from __future__ import annotations

import json
import os
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from spark_segments import LogDir
from spark_segments.errors import FormatVersionError, InvalidOptionError
from spark_segments.keys.build import BuildRun
from spark_segments.keys.hashes import hashes_of
from spark_segments.keys.index_list import IndexFiles
from spark_segments.keys.index_plan import RangeToIndex
from spark_segments.keys.job import index
from spark_segments.keys.read_ahead import AHEAD_BYTES
from spark_segments.keys.run_file import RunFile
from spark_segments.maintenance import compact, erase, restore, roll, vacuum
from spark_segments.storage.numbered_files import crc_line
from verification.world.opened import opened
from verification.world.stores.played_files import PlayedFiles


def rows(topic, keys):
    """The records with some keys, by a scan of all."""
    table = topic.scan().to_table()
    return table.filter(pc.is_in(table.column("key"), value_set=pa_keys(keys)))


def pa_keys(keys):
    return pa.array([key.encode() if isinstance(key, str) else key for key in keys], pa.binary())


def check(log, keys, name="t"):
    """Compares a look-up with a scan, and returns its coverage."""
    topic = log.topic(name)
    scan = topic.scan(keys=keys)
    assert scan.to_table().equals(rows(topic, keys))
    coverage = scan.coverage
    bounds = topic.offsets().values()
    assert coverage.indexed_offsets + coverage.scanned_offsets == sum(end - start for start, end in bounds)
    return coverage


@pytest.fixture
def log(tmp_path):
    log = LogDir.create(str(tmp_path))
    log.create_topic("t", 2, {"file.delete.delay.ms": "0"})
    for number in range(5):
        log.topic("t").append([{"key": f"k{row % 7}", "value": f"{number} {row}"} for row in range(50)])
    return log


def test_without_an_index_all_is_scanned(log):
    coverage = check(log, ["k1"])
    assert (coverage.indexed_offsets, coverage.scanned_offsets) == (0, 250)


def test_with_an_index_few_offsets_are_read(log):
    report = index(log)
    assert report.ok and report.details["t"]["offsets_indexed"] == 250
    coverage = check(log, ["k1", b"k5", "k1", "none"])
    assert (coverage.indexed_offsets, coverage.scanned_offsets, coverage.unreadable_runs) == (250, 0, 0)
    assert check(log, []).scanned_offsets == 0
    assert check(log, ["none"]).scanned_offsets == 0


def test_what_came_after_the_index_is_scanned(log):
    index(log)
    log.topic("t").append([{"key": "k1", "value": "new"}, {"key": "", "value": "empty"}, {"value": "none"}])
    assert check(log, ["k1", ""]).scanned_offsets == 3
    index(log)
    assert check(log, ["k1", ""]).scanned_offsets == 0


def test_a_roll_and_a_compaction_leave_the_index_as_it_is(log):
    index(log)
    log.topic("t").alter({"cleanup.policy": "compact", "segment.ms": "1"})
    roll(log)
    compact(log, force=True)
    assert check(log, ["k1", "k2"]).scanned_offsets == 0


def test_a_restore_ends_the_belief_in_the_runs_of_before(log):
    version = log.topic("t").version
    log.topic("t").append([{"key": "k1", "value": "later"}])
    log.topic("t").delete_records({0: 20, 1: 20})
    index(log)
    restore(log, topics=["t"], version=version)
    coverage = check(log, ["k1"])
    assert coverage.scanned_offsets > 0
    index(log)
    assert check(log, ["k1"]).scanned_offsets == 0


def test_a_topic_that_is_made_again_has_no_index(log):
    index(log)
    log.delete_topic("t")
    log.create_topic("t", 2)
    log.topic("t").append([{"key": "k1", "value": "other"}] * 10)
    assert check(log, ["k1"]).indexed_offsets == 0
    index(log)
    assert check(log, ["k1"]).scanned_offsets == 0


def test_a_version_before_the_index_is_scanned(log):
    version = log.topic("t").version
    log.topic("t").append([{"key": "k1", "value": "later"}])
    index(log)
    scan = log.topic("t", version=version).scan(keys="k1")
    assert scan.coverage.indexed_offsets == 0
    assert scan.to_table().num_rows == sum(row % 7 == 1 for row in range(50)) * 5


def test_damaged_and_missing_runs_are_scanned(log, tmp_path):
    index(log)
    first, second = sorted(tmp_path.glob("_keys/t/key/runs/*.run"))
    first.unlink()
    data = bytearray(second.read_bytes())
    data[-30] ^= 1
    second.write_bytes(data)
    coverage = check(log, ["k1"])
    assert (coverage.unreadable_runs, coverage.scanned_offsets) == (2, 250)


def test_a_scan_of_keys_of_a_scan_of_keys_has_the_records_of_the_keys_of_both(log):
    for _ in range(2):
        scan = log.topic("t").scan(keys=["k1", "k2", "k3"])
        both = scan.of_keys([b"k2", b"k3", b"k4"], log.key_offsets)
        assert both.to_table().equals(rows(log.topic("t"), ["k2", "k3"]))
        assert not both.of_keys([b"k4"], log.key_offsets).to_table().num_rows
        coverage = both.coverage
        assert coverage.indexed_offsets + coverage.scanned_offsets == 250
        assert coverage.index_bytes >= scan.coverage.index_bytes
        index(log)


def newest_list_path(path):
    return max(path.glob("_keys/t/key/0*.json"))


def damage_newest_list(path):
    for file in (newest_list_path(path), path / "_keys/t/key/newest.json"):
        file.write_bytes(b"{}")


def written_by_a_newer_version(path):
    """Makes the newest list one of a format that this version does not know."""
    newest = newest_list_path(path)
    content = newest.read_bytes().replace(b'"format.version":1', b'"format.version":2')
    for file in (newest, path / "_keys/t/key/newest.json"):
        file.write_bytes(content)


def test_an_index_of_a_newer_format_is_left_alone_and_said(log, tmp_path):
    index(log)
    written_by_a_newer_version(tmp_path)
    files = set(tmp_path.glob("_keys/t/key/**/*"))
    for file in tmp_path.glob("_keys/t/key/runs/*"):
        os.utime(file, (0, 0))
    coverage = check(log, ["k1"])
    assert coverage.scanned_offsets == 250 and "newer version" in coverage.index_error
    assert "newer version" in log.topic("t").describe()["key_index"]["error"]
    [failed] = index(log).failed
    assert "newer version" in failed["error"]
    assert not index(log, drop=True).ok
    [warning] = vacuum(log).warnings
    assert "newer version" in warning
    [finding] = log.topic("t").verify(deep=True).findings
    assert finding.severity == "warning" and "newer version" in finding.message
    assert set(tmp_path.glob("_keys/t/key/**/*")) == files


def test_an_erasure_says_that_an_index_of_a_newer_format_keeps_its_keys(log, tmp_path):
    index(log)
    written_by_a_newer_version(tmp_path)
    with pytest.raises(FormatVersionError, match="newer version"):
        erase(log, topics=["t"], keys=[b"k1"], history=True)
    assert not rows(log.topic("t"), ["k1"]).num_rows
    assert not any(b"0 1" in path.read_bytes() for path in tmp_path.rglob("*.log")), "the history went all the same"


def test_the_history_goes_where_a_run_before_had_erased_all_that_is_live(log, tmp_path):
    index(log)
    erase(log, topics=["t"], keys=[b"k1"])
    written_by_a_newer_version(tmp_path)
    with pytest.raises(FormatVersionError, match="newer version"):
        erase(log, topics=["t"], keys=[b"k1"], history=True)
    assert not any(b"0 1" in path.read_bytes() for path in tmp_path.rglob("*.log"))


@pytest.mark.parametrize("state", ["dropped", "deleted", "deleted, damaged", "made again", "dropped, made again"])
def test_the_history_of_a_key_goes_with_the_runs_of_an_index_that_nobody_keeps(log, tmp_path, state):
    """A run has the hashes of its keys. Its file would wait for file.delete.delay.ms, or a day."""
    log.topic("t").alter({"file.delete.delay.ms": "86400000"})
    index(log)
    runs = set(tmp_path.glob("_keys/t/key/runs/*"))
    if "dropped" in state:
        index(log, drop=True)
    if "damaged" in state:
        damage_newest_list(tmp_path)
    if state != "dropped":
        log.delete_topic("t")
    if "made again" in state:
        log.create_topic("t")
        log.topic("t").append([{"key": "k2", "value": "v"}])
    vacuum(log)
    assert runs and runs <= set(tmp_path.glob("_keys/t/key/runs/*"))
    assert erase(log, topics=["t"], keys=[b"k1"], history=True).ok
    assert not runs & set(tmp_path.glob("_keys/t/key/runs/*"))
    if state not in ("deleted", "deleted, damaged"):
        index(log)
        assert check(log, ["k1", "k2"]).scanned_offsets == 0


def test_an_erasure_without_history_leaves_a_dropped_index_to_vacuum(log, tmp_path):
    log.topic("t").alter({"file.delete.delay.ms": "86400000"})
    index(log)
    runs = set(tmp_path.glob("_keys/t/key/runs/*"))
    index(log, drop=True)
    erase(log, topics=["t"], keys=[b"k1"])
    vacuum(log)
    assert runs == set(tmp_path.glob("_keys/t/key/runs/*"))
    vacuum(log, now_ms=log.storage.now_ms() + 2 * 86_400_000)
    assert not set(tmp_path.glob("_keys/t/key/runs/*"))


def test_a_damaged_list_is_no_index_says_so_and_is_built_again(log, tmp_path):
    index(log)
    damage_newest_list(tmp_path)
    coverage = check(log, ["k1"])
    assert coverage.scanned_offsets == 250 and "damaged" in coverage.index_error
    assert "damaged" in log.topic("t").describe()["key_index"]["error"]
    [finding] = log.topic("t").verify(deep=True).findings
    assert finding.severity == "warning" and "damaged" in finding.message
    assert index(log, existing=True).ok
    assert check(log, ["k1"]).index_error == ""
    assert check(log, ["k1"]).scanned_offsets == 0
    damage_newest_list(tmp_path)
    index(log, drop=True)
    assert "key_index" not in log.topic("t").describe()


@pytest.mark.parametrize("damaged_before", [True, False])
def test_an_erased_key_leaves_by_vacuum_where_a_list_is_damaged(log, tmp_path, damaged_before):
    index(log)
    before = set(tmp_path.glob("_keys/t/key/runs/*.run"))
    if damaged_before:
        damage_newest_list(tmp_path)
    erase(log, topics=["t"], keys=[b"k1"])
    if not damaged_before:
        damage_newest_list(tmp_path)
        index(log, existing=True)
    vacuum(log)
    assert not before & set(tmp_path.glob("_keys/t/key/runs/*.run"))
    index(log)
    assert check(log, ["k1", "k2"]).scanned_offsets == 0


def test_vacuum_deletes_what_left_the_index_before_its_list_was_damaged(log, tmp_path):
    index(log)
    runs = IndexFiles(log.storage, "t").newest_list().runs
    erase(log, topics=["t"], keys=[b"k1"])
    left = {*runs} - {*IndexFiles(log.storage, "t").newest_list().runs}
    index(log)
    damage_newest_list(tmp_path)
    assert left and all((tmp_path / run.path).exists() for run in left)
    vacuum(log)
    assert not any((tmp_path / run.path).exists() for run in left)


def test_a_look_up_takes_four_turns_of_requests_after_the_manifest(tmp_path):
    """Each line is what a look-up asks at once: the next line needs its answers."""
    log = LogDir.create(str(tmp_path))
    log.create_topic("t", 1, {"segment.ms": "1"})
    for _ in range(2):
        keys = [b"%d" % (number % 4000) for number in range(10_000)]
        log.topic("t").append(pa.table({"key": pa.array(keys, pa.binary()), "value": [key * 60 for key in keys]}))
    roll(log)
    index(log)
    [run] = IndexFiles(log.storage, "t").newest_list().runs
    assert run.size_bytes > 2 * AHEAD_BYTES
    files = PlayedFiles()
    topic = opened(tmp_path, files).topic("t")
    topic.snapshot.load_segments()
    files.calls.clear()
    assert topic.scan(keys="77", offsets=(0, 5000)).to_table().num_rows == 2
    assert [(call, path.rpartition("/")[2].rpartition(".")[2]) for call, path in files.calls] == [
        *[("read", "json"), ("list", "key")],
        *[("read", "json"), ("read", "run"), ("read", "run")],
        *[("read", "index")],
        *[("read", "log")],
    ]


def test_the_copy_of_the_newest_list_is_believed_where_it_is_the_newest_alone(log, tmp_path):
    copy = tmp_path / "_keys/t/key/newest.json"
    index(log)
    first = copy.read_bytes()
    log.topic("t").append([{"key": "k1", "value": "later"}])
    index(log)
    assert copy.read_bytes() == newest_list_path(tmp_path).read_bytes()
    for content in (first, b"", b"{}", copy.read_bytes()[:-4], copy.read_bytes().replace(b":1,", b":2,", 1)):
        copy.write_bytes(content)
        assert check(log, ["k1"]).scanned_offsets == 0
    copy.unlink()
    assert check(log, ["k1"]).scanned_offsets == 0
    copy.write_bytes(newest_list_path(tmp_path).read_bytes())
    newest_list_path(tmp_path).write_bytes(b"damaged")
    assert check(log, ["k1"]).scanned_offsets == 0
    vacuum(log)
    index(log)
    assert copy.exists()


def test_a_list_of_before_that_says_less_of_its_runs_is_read(log, tmp_path):
    index(log)
    files = IndexFiles(log.storage, "t")
    newest = files.newest_list()
    content = json.loads(newest.to_bytes("t").partition(b"\n")[0])
    for name in ("entry_bytes", "fan_out"):
        del content["runs"][name]
    body = json.dumps(content).encode()
    (tmp_path / files.path(newest.number)).write_bytes(body + crc_line(body))
    (tmp_path / files.path_of_copy).unlink()
    assert not any(run.entry_bytes for run in files.newest_list().runs)
    assert check(log, ["k1"]).scanned_offsets == 0


def test_a_dropped_index_is_none(log):
    index(log)
    index(log, topics=["t"], drop=True)
    assert check(log, ["k1"]).scanned_offsets == 250
    assert index(log, existing=True).details == {}
    index(log)
    assert check(log, ["k1"]).scanned_offsets == 0


def test_the_newest_record_of_a_key_is_found_by_the_index(log):
    index(log)
    topic = log.topic("t")
    everything = topic.scan(view="latest").to_table()
    expected = everything.filter(pc.equal(everything.column("key"), b"k3"))
    assert topic.scan(view="latest", keys="k3").to_table().equals(expected)
    topic.alter(partitions=4)
    topic.append([{"key": "k3", "value": "other partition", "partition": 3}])
    topic = log.topic("t")
    everything = topic.scan(view="latest").to_table()
    expected = everything.filter(pc.equal(everything.column("key"), b"k3"))
    assert topic.scan(view="latest", keys="k3").to_table().equals(expected)


def test_columns_and_formats_need_no_key(log):
    index(log)
    topic = log.topic("t")
    values = topic.scan(keys="k2", columns=["value"], formats={"value.format": "string"}).to_table()
    assert values.column_names == ["value"]
    assert values.num_rows == rows(topic, ["k2"]).num_rows
    assert topic.scan(keys="k2", columns=["offset"]).to_table().num_rows == values.num_rows


def test_an_erased_key_leaves_the_index_in_the_erasure(log, tmp_path):
    index(log)
    before = IndexFiles(log.storage, "t").newest_list()
    erase(log, topics=["t"], keys=[b"k1"])
    after = IndexFiles(log.storage, "t").newest_list()
    assert after.number > before.number
    hashes = hashes_of(pa_keys(["k1"]), after.seed, after.hash_bits)[0]
    assert not any(len(RunFile(log.storage, run, after.topic_id).find(hashes).offsets) for run in after.runs)
    vacuum(log)
    left = {str(path.relative_to(tmp_path)) for path in tmp_path.glob("_keys/t/key/runs/*.run")}
    assert left == {run.path for run in after.runs}
    assert check(log, ["k1", "k2"]).scanned_offsets == 145
    index(log)
    assert check(log, ["k1", "k2"]).scanned_offsets == 0


def test_an_erased_key_leaves_the_runs_of_records_that_compaction_took_before(log):
    """The erasure rewrites no row that such a run has."""
    log.create_topic("c", 1, {"cleanup.policy": "compact", "segment.ms": "1", "segment.bytes": "300"})
    topic = log.topic("c")
    for number in range(10):
        topic.append([{"key": "k1", "value": "early"}, {"key": f"other {number}", "value": "x" * 100}])
    roll(log)
    index(log, topics=["c"])
    topic.append([{"key": "k1", "value": "later"}, {"key": "last", "value": "x" * 100}])
    roll(log)
    compact(log, force=True)
    index(log, topics=["c"])
    assert topic.scan(keys="k1").to_table().num_rows == 1
    erase(log, topics=["c"], keys=[b"k1"])
    newest = IndexFiles(log.storage, "c").newest_list()
    hashes = hashes_of(pa_keys(["k1"]), newest.seed, newest.hash_bits)[0]
    assert not any(len(RunFile(log.storage, run, newest.topic_id).find(hashes).offsets) for run in newest.runs)


def test_a_deep_look_compares_the_index_with_the_log(log, tmp_path):
    index(log)
    roll(log)
    log.topic("t").delete_records({0: 10})
    assert log.topic("t").verify(deep=True).ok
    newest = IndexFiles(log.storage, "t").newest_list()
    wrong = BuildRun(log.storage, "_keys/t/key", newest.topic_id, newest.runs[0].version, newest.seed, 48)
    run = newest.runs[0]
    task = RangeToIndex(run.partition, run.base_offset, run.end_offset, (), 0)
    lacking = replace(wrong(task), records=0)
    IndexFiles(log.storage, "t").make(replace(newest, number=newest.number + 1, runs=(lacking, *newest.runs[1:])))
    [finding] = log.topic("t").verify(deep=True).findings
    assert finding.severity == "error" and "lacks records" in finding.message
    (tmp_path / newest.runs[1].path).write_bytes(b"damaged")
    assert {finding.severity for finding in log.topic("t").verify(deep=True).findings} == {"error", "warning"}


def test_maintain_keeps_the_index_of_topics_that_have_one(log):
    assert "index" not in [report.job for report in log.maintain()]
    index(log)
    log.topic("t").append([{"key": "k1", "value": "new"}])
    assert [report.job for report in log.maintain()] == ["roll", "retain", "compact", "index", "vacuum"]
    assert check(log, ["k1"]).scanned_offsets == 0
    assert log.topic("t").describe()["key_index"]["offsets_indexed"] == 251


def test_typed_keys_are_looked_for_where_a_value_has_one_encoding(log):
    formats = {"key.format": "long"}
    log.create_topic("typed", 1)
    log.topic("typed").append([{"key": number % 5, "value": b"v"} for number in range(20)], formats=formats)
    index(log)
    topic = log.topic("typed")
    scan = topic.scan(keys=[3, "4", (1).to_bytes(8, "big")], formats=formats)
    assert scan.coverage.scanned_offsets == 0
    assert scan.to_table().column("key").to_pylist() == [1, 3, 4] * 4
    for keys, options in (("x", formats), (3, {"key.format": "json"}), ([None], {})):
        with pytest.raises(InvalidOptionError):
            topic.scan(keys=keys, formats=options)
