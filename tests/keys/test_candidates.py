"""What an erasure and the account of a key need not read, by the index: with it they do and say the same as without."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_segments import LogDir, ProducerOptions
from spark_segments.errors import FormatVersionError, SegmentsError
from spark_segments.keys.index_list import IndexFiles
from spark_segments.keys.job import index
from spark_segments.maintenance import compact, erase, roll, vacuum
from spark_segments.maintenance.erasure.copies import key_account
from spark_segments.storage.numbered_files import crc_line
from tests.examples import examples
from tests.keys import test_histories
from tests.keys.test_races import CALLS
from verification.world.kafka_bytes.twin_encode import ABORT, Record, batch_bytes, marker_batch
from verification.world.manifest_rows import Change, live_rows, without_partition
from verification.world.opened import opened
from verification.world.small_limits import small_limits
from verification.world.stores.played_files import PlayedFiles

NOW_MS = 1_700_000_000_000
RARE = b"a rare key"
CONFIG = {"compression.type": "uncompressed", "segment.ms": "1", "index.interval.bytes": "1"}


def files_with(log: LogDir, data: bytes) -> set[str]:
    """The files of record batches that have these bytes, in the log or not."""
    paths = Path(log.uri).rglob("*.log")
    return {str(path.relative_to(log.uri)) for path in paths if data in path.read_bytes()}


def live_files_with(log: LogDir, data: bytes, topic: str = "t") -> set[str]:
    return files_with(log, data) & {row.path for row in live_rows(log, topic)}


def without_index(log: LogDir) -> LogDir:
    """A copy of the log directory without indexes of keys."""
    copy = copied(log, "without")
    shutil.rmtree(Path(copy.uri) / "_keys", ignore_errors=True)
    return copy


def copied(log: LogDir, name: str) -> LogDir:
    path = Path(f"{log.uri}-{name}")
    shutil.rmtree(path, ignore_errors=True)
    return LogDir.open(str(shutil.copytree(log.uri, path)))


def account(log: LogDir, key: bytes, topic: str = "t") -> tuple[dict, tuple[int, int]]:
    """(the account without what depends on the clock of the store, how many segments were read and how many spared)"""
    facts = key_account(log, topic, key, now_ms=NOW_MS).to_dict()
    facts.pop("uncommitted_until_ms")
    return facts, (facts.pop("segments_read"), facts.pop("segments_by_index"))


def searched(report) -> tuple[int, int]:
    return report.details["segments_read"], report.details["segments_by_index"]


@pytest.fixture
def log(tmp_path):
    """A topic of twenty sealed segments, of which the third and the twelfth have the rare key."""
    log = LogDir.create(str(tmp_path / "log"))
    log.create_topic("t", 1, CONFIG)
    for number in range(20):
        rows = [{"key": f"key {number} {row}", "value": "v" * 20} for row in range(10)]
        rows += [{"key": RARE, "value": "secret"}] if number in (2, 11) else []
        log.topic("t").append(rows)
        roll(log)
    return log


@pytest.mark.parametrize("dry_run", [False, True])
def test_only_segments_with_the_key_are_read(log, dry_run):
    with_key = live_files_with(log, RARE)
    sealed = {row.path for row in live_rows(log, "t")}
    assert (len(with_key), len(sealed)) == (2, 20)
    index(log)
    files = PlayedFiles()
    report = erase(opened(log, files), topics=["t"], keys=[RARE], dry_run=dry_run)
    read = {str(Path(path).relative_to(log.uri)) for call, path in files.calls if call == "read"}
    assert read & sealed == with_key
    read_after = 0 if dry_run else 2  # what the job wrote is searched, too
    assert searched(report)[0] == 2 + read_after
    assert searched(report)[1] == 18
    assert bool(live_files_with(log, RARE)) == dry_run


def test_the_account_reads_few_segments_and_is_the_same(log):
    expected, (read, spared) = account(log, RARE)
    removed = len(list(Path(log.uri).rglob("*.log"))) - 20
    assert (read, spared) == (20 + removed, 0)
    index(log)
    assert account(log, RARE) == (expected, (2 + removed, 18))
    assert account(log, b"nobody's")[0] == account(without_index(log), b"nobody's")[0]


def test_what_the_index_does_not_have_is_read(log):
    index(log)
    log.topic("t").append([{"key": RARE, "value": "secret"}])
    report = erase(log, topics=["t"], keys=[RARE])
    assert searched(report) == (6, 18), "three segments, and what was written in their place"
    assert not live_files_with(log, RARE)


def test_compacted_segments_are_spared_by_their_ends(log):
    log.topic("t").alter({"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0", "segment.bytes": "1000"})
    log.topic("t").append([{"key": f"key {number} 0", "value": "newer"} for number in range(20)])
    roll(log)
    compact(log, force=True)
    rows = live_rows(log, "t")
    assert len([row for row in rows if not row.is_full]) > 5
    index(log)
    with_key = live_files_with(log, RARE)
    expected = account(without_index(log), RARE)[0]
    facts, (_, spared) = account(log, RARE)
    assert facts == expected
    assert spared == len(rows) - len(with_key)


@pytest.mark.parametrize("base_offset", [1, 2])
def test_a_file_with_bytes_beside_its_row_is_read(tmp_path, base_offset):
    """The index has all offsets of the row, and none has the key: bytes of the file before them do."""
    log = LogDir.create(str(tmp_path / "log"))
    log.create_topic("t", 1, CONFIG)
    table = pa.table({"key": [RARE, b"bob", b"bob"], "value": [b"secret", b"1", b"2"]})
    log.topic("t").append(table, options=ProducerOptions("none", 1))
    [row] = live_rows(log, "t")
    row = dataclasses.replace(row, base_offset=base_offset, file_base_offset=base_offset)
    partition = dataclasses.replace(log.topic("t").snapshot.partition(0), log_start_offset=base_offset)
    log.topic("t").manifest.commit(lambda _: Change("alter", replace=[row], partitions=[partition]))
    index(log)
    assert log.topic("t").scan(keys=RARE).coverage.indexed_offsets == 3 - base_offset

    [copy] = account(log, RARE)[0]["copies"]
    assert copy["outside"] == 1
    erase(log, topics=["t"], keys=[RARE])
    assert not live_files_with(log, RARE)


@pytest.fixture
def stranger(tmp_path):
    """A topic of one partition, with a segment of partition 1, as a foreign writer's manifest could have it."""
    log = LogDir.create(str(tmp_path / "log"))
    log.create_topic("t", 2, CONFIG | {"cleanup.policy": "compact"})
    keys = ((b"bob", 0), (b"ada", 0), (RARE, 1))
    log.topic("t").append([{"key": key, "value": b"v of " + key, "partition": number} for key, number in keys])
    index(log)
    without_partition(log, "t", 1)
    log = LogDir.open(log.uri)
    assert [row.partition for row in live_rows(log, "t")] == [0, 1] and [*log.topic("t").offsets()] == [0]
    return log


def test_a_segment_of_a_partition_that_the_topic_does_not_have_is_read(stranger):
    [copy] = account(stranger, RARE)[0]["copies"]
    assert (copy["partition"], copy["records"]) == (1, 1)
    assert copy["files_deleted"] == {"earliest_ms": None, "latest_ms": None}
    assert erase(stranger, topics=["t"], keys=[b"ada"]).ok
    assert not live_files_with(stranger, b"v of ada")


@pytest.mark.parametrize("dry_run", [False, True])
def test_an_erasure_of_records_in_a_partition_that_the_topic_does_not_have_changes_nothing(stranger, dry_run):
    version = stranger.topic("t").version
    [path] = live_files_with(stranger, RARE)
    with pytest.raises(SegmentsError, match="no such partition") as failed:
        erase(stranger, topics=["t"], keys=[b"bob", RARE], dry_run=dry_run)
    assert failed.value.path == path
    assert stranger.topic("t").version == version, "no tombstone of bob either"


def test_a_key_in_a_partition_that_came_during_the_erasure_stays(log):
    happened = []

    def play(path, go):
        if path.endswith(".log") and not happened:  # the erasure has its snapshot, and looks for the key
            happened.append(path)
            other = LogDir.open(log.uri)
            other.topic("t").alter(partitions=2)
            other.topic("t").append([{"key": RARE, "value": "meanwhile", "partition": 1}])
        return go()

    assert erase(opened(log, PlayedFiles(read=play)), topics=["t"], keys=[RARE]).ok
    rows = LogDir.open(log.uri).topic("t").scan(keys=RARE).to_table()
    assert happened and rows.column("value").to_pylist() == [b"meanwhile"]


def test_records_below_the_log_start_within_a_segment_are_found(log):
    log.topic("t").append([{"key": RARE, "value": "secret"}, *({"key": "bob", "value": "v"} for _ in range(5))])
    roll(log)
    start = log.topic("t").offsets()[0][1] - 3
    index(log)
    log.topic("t").delete_records({0: start})
    erase(log, topics=["t"], keys=[RARE])
    assert not live_files_with(log, RARE)


def test_a_segment_that_has_the_key_in_an_aborted_transaction_alone_is_read(tmp_path):
    aborted = batch_bytes(
        [Record(b"secret", RARE)] * 3, base_offset=3, transactional=True, producer_id=7, producer_epoch=0,
        base_sequence=0,
    )  # fmt: skip
    marker = marker_batch(ABORT, base_offset=6, producer_id=7)
    others = {offset: batch_bytes([Record(b"v", b"bob")] * 3, base_offset=offset) for offset in (0, 7)}
    kafka = tmp_path / "kafka" / "t-0"
    kafka.mkdir(parents=True)
    for offset, data in {**others, 3: aborted + marker}.items():
        (kafka / f"{offset:020d}.log").write_bytes(data)
    log = LogDir.create(str(tmp_path / "log"))
    log.import_kafka(str(kafka.parent), "t")
    index(log)
    assert RARE not in log.topic("t").scan(isolation="read_committed").to_table().column("key").to_pylist()
    assert account(log, RARE)[0] == account(without_index(log), RARE)[0]
    assert erase(log, topics=["t"], keys=[RARE]).dropped["erased"] == 3
    assert not live_files_with(log, RARE)


def _remove_runs(log: LogDir) -> None:
    for run in _runs(log):
        run.unlink()


def _damage_runs(log: LogDir) -> None:
    for run in _runs(log):
        run.write_bytes(bytes(len(run.read_bytes())))


def _damage_list(log: LogDir) -> None:
    for path in Path(log.uri).glob("_keys/t/key/*.json"):
        path.write_bytes(b"{")


def _newer_list(log: LogDir) -> None:
    newest = IndexFiles(log.storage, "t").newest_list()
    body = json.dumps({"format.version": 2, "number": newest.number + 1}).encode()
    path = Path(log.uri) / IndexFiles(log.storage, "t").path(newest.number + 1)
    path.write_bytes(body + crc_line(body))


def _runs(log: LogDir) -> list[Path]:
    return sorted(Path(log.uri).glob("_keys/t/key/runs/*.run"))


@pytest.mark.parametrize("damage", [_remove_runs, _damage_runs, _damage_list, _newer_list])
def test_an_index_that_cannot_be_read_costs_time_alone(log, damage):
    index(log)
    damage(log)
    expected, (read, _) = account(without_index(log), RARE)
    assert account(log, RARE) == (expected, (read, 0))
    if damage is _newer_list:  # nobody here can take the key out of it
        with pytest.raises(FormatVersionError):
            erase(log, topics=["t"], keys=[RARE])
    else:
        assert searched(erase(log, topics=["t"], keys=[RARE]))[1] == 0
    assert not live_files_with(log, RARE)


STEPS = 40
"""Some steps more than an erasure has here."""


@pytest.mark.cases(8)
@pytest.mark.parametrize("step", range(1, STEPS, 3))
@pytest.mark.parametrize("happening", [index, roll, vacuum])
def test_an_erasure_beside_another_job_leaves_no_record(log, happening, step):
    index(log)
    log.topic("t").append([{"key": key, "value": "late"} for key in (b"bob", RARE, b"bob")])
    calls = [0]

    def play(_, go):
        calls[0] += 1
        if calls[0] == step:
            happening(LogDir.open(log.uri))
        return go()

    erase(opened(log, PlayedFiles(**dict.fromkeys((*CALLS, "read"), play))), topics=["t"], keys=[RARE])
    assert not live_files_with(log, RARE)
    index(log)
    assert not log.topic("t").scan(keys=RARE).to_table().num_rows


KEYS = [b"", RARE, b"the first key", b"the second key", b"\xff" * 300]


class World(test_histories.World):
    """A history whose keys are found among bytes, and whose index may be damaged."""

    KEYS = KEYS

    def __init__(self, path: str, chance: random.Random) -> None:
        super().__init__(path, chance)
        self.topic().alter(CONFIG)

    def damage(self) -> None:
        runs = sorted(Path(self.log.uri).glob("_keys/txn/key/runs/*.run"))
        if runs:
            run = self.chance.choice(runs)
            self.chance.choice([run.unlink, lambda: run.write_bytes(run.read_bytes()[:-1])])()

    def compare(self) -> None:
        """Compares an account and an erasure of a key here with those without the index, and with the bytes."""
        own_keys = [key for key in self.topic().scan().to_table().column("key").to_pylist() if key is not None]
        key = self.chance.choice([*KEYS, self.chance.choice(own_keys or KEYS)])
        with_index, without = copied(self.log, "with"), without_index(self.log)
        assert account(with_index, key, "txn")[0] == account(without, key, "txn")[0]
        for log in (with_index, without):
            erase(log, topics=["txn"], keys=[key], now_ms=NOW_MS)
        assert live_bytes(with_index) == live_bytes(without)
        if key in KEYS[1:]:
            assert not live_files_with(with_index, key, "txn")
        for log in (with_index, without):
            erase(log, topics=["txn"], keys=[key], now_ms=NOW_MS, history=True)
            vacuum(log)
            assert not account(log, key, "txn")[0]["copies"]
        assert live_bytes(with_index) == live_bytes(without)
        if key in KEYS[1:]:
            assert not files_with(with_index, key)


def live_bytes(log: LogDir) -> list[tuple[int, int, int, str, bytes]]:
    """What the live rows of the topic name, and the bytes of their files."""
    named = []
    for row in live_rows(log, "txn"):
        data = Path(log.uri, row.path).read_bytes()[row.byte_position : row.end_position]
        named.append((row.partition, row.base_offset, row.next_offset, row.state, data))
    return sorted(named)


OPERATIONS: list[Callable[[World], None]] = [*test_histories.OPERATIONS, World.damage]


@given(st.lists(st.sampled_from(OPERATIONS), min_size=3, max_size=10), st.randoms(use_true_random=False))
@examples(60)
def test_an_erasure_leaves_the_same_bytes_as_without_the_index(tmp_path_factory, operations, chance):
    with small_limits(**test_histories.SMALL, FEWEST_RUNS=2), contextlib.ExitStack() as stack:
        path = tmp_path_factory.mktemp("log") / "log"
        stack.callback(shutil.rmtree, path.parent)
        world = World(str(path), chance)
        for operation in operations:
            operation(world)
            world.versions.append(world.topic().version)
        world.compare()
