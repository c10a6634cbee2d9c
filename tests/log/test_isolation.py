"""isolation.level=read_committed gives just what Kafka's committed readers get, however the log is cut into ranges."""

from __future__ import annotations

import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest

from spark_segments import LogDir
from spark_segments.errors import InvalidOptionError
from spark_segments.log.reading.isolation import load_aborted, transaction_indexes
from spark_segments.maintenance import verify
from tests.log.golden_reads import Record, as_records, read_one_by_one, records_of
from verification.world.kafka_bytes.golden_files import expected_records, golden_dir
from verification.world.kafka_bytes.segment_bytes import parse_txn_index, txn_index_bytes

TRANSACTIONAL = [
    "txn-0",
    *(f"txn-compact/{state}/txnc-0" for state in ("dirty", "clean-1", "dirty-2", "clean-2")),
    *(f"txn-compact/{state}/txnc-0" for state in ("dirty-3", "clean-3", "dirty-4", "clean-4")),
    "broker-data/payments-0",
]


def topic_of(name: str) -> str:
    return Path(name).name.rpartition("-")[0]


def committed_records(name: str) -> list[Record]:
    """What a committed reader gets of a golden directory, as Kafka's reader or the log's own markers say."""
    lines = expected_records(name)
    if "committed" in lines[0]:
        return as_records(lines, where=lambda line: line["committed"])
    outcome, committed = {}, set()
    for line in reversed(lines):
        if line["isControl"]:
            outcome[line["producerId"]] = line["controlType"]
        elif not line["isTransactional"] or outcome.get(line["producerId"]) == "COMMIT":
            committed.add(line["offset"])
    return as_records(lines, where=lambda line: line["offset"] in committed)


@pytest.fixture
def txn(tmp_path) -> Path:
    directory = tmp_path / "txn-0"
    shutil.copytree(golden_dir("txn-0"), directory)
    return directory


@pytest.mark.parametrize("name", TRANSACTIONAL)
def test_committed_records_are_those_of_kafka(name):
    log = LogDir.open(str(golden_dir(name)))
    committed = committed_records(name)
    assert records_of(log.topic(topic_of(name)).scan(isolation="read_committed").batches()) == committed
    everything = as_records(expected_records(name), where=lambda line: not line["isControl"])
    assert records_of(log.topic(topic_of(name)).scan().batches()) == everything
    if name in ("txn-0", "txn-compact/dirty/txnc-0", "broker-data/payments-0"):
        assert len(committed) < len(everything)


@pytest.mark.cases(4)
@pytest.mark.parametrize("name", TRANSACTIONAL)
@pytest.mark.parametrize("size", [1, 997, 4096, 30000])
def test_ranges_cut_at_any_byte_give_every_committed_record_once(name, size):
    log = LogDir.open(str(golden_dir(name)))
    topic = log.topic(topic_of(name))
    size = max(size, int(topic.snapshot.live.column("log_bytes").to_numpy().sum()) // 400)
    parts = list(topic.scan(isolation="read_committed").parts(size))
    assert read_one_by_one(log, pickle.loads(pickle.dumps(parts))) == committed_records(name)


def test_any_range_of_offsets_gives_the_committed_records_in_it():
    log = LogDir.open(str(golden_dir("txn-0")))
    committed = committed_records("txn-0")
    random = np.random.default_rng(7)
    for start, length in zip(random.integers(0, 3168, 60), random.integers(1, 300, 60), strict=True):
        end = int(start + length)
        found = records_of(log.topic("txn").scan(offsets=(int(start), end), isolation="read_committed").batches())
        assert found == [record for record in committed if start <= record[1] < end]


def test_nothing_is_read_beyond_the_last_stable_offset():
    log = LogDir.open(str(golden_dir("txn-0")))
    assert log.topic("txn").snapshot.partition(0).last_stable_offset == 3138
    assert list(log.topic("txn").scan(offsets=(3138, None), isolation="read_committed").batches()) == []
    assert sum(batch.num_rows for batch in log.topic("txn").scan(offsets=(3138, None)).batches()) > 0


def test_a_scan_stands_in_for_a_missing_transaction_index(txn):
    for file in txn.glob("*.txnindex"):
        file.unlink()
    log = LogDir.open(str(txn))
    snapshot = log.topic("txn").snapshot
    assert len(snapshot.aborted) == len([note for note in snapshot.report.notes if "txnindex" in note.path]) == 6
    for path, aborted in snapshot.aborted.items():
        assert txn_index_bytes(aborted) == (golden_dir("txn-0") / path.replace(".log", ".txnindex")).read_bytes()
    assert records_of(log.topic("txn").scan(isolation="read_committed").batches()) == committed_records("txn-0")


@pytest.mark.parametrize(
    "lie",
    [
        lambda content: content[:-34],
        lambda content: content[:-10],
        lambda content: content[:2] + (77).to_bytes(8, "big") + content[10:],
        lambda content: content[:26] + (2**40).to_bytes(8, "big") + content[34:],
        lambda content: b"\x00" * len(content),
        lambda content: b"",
    ],
    ids=["an entry less", "cut", "another producer", "later last stable offset", "zeros", "empty"],
)
def test_a_scan_stands_in_for_a_transaction_index_that_lies(lie, txn):
    file = txn / "00000000000000001288.txnindex"
    file.write_bytes(lie(file.read_bytes()))
    log = LogDir.open(str(txn))
    assert list(log.topic("txn").snapshot.aborted) == ["00000000000000001288.log"]
    assert any(note.path == file.name for note in log.topic("txn").snapshot.report.notes)
    assert records_of(log.topic("txn").scan(isolation="read_committed").batches()) == committed_records("txn-0")


@pytest.mark.cases(1)
@pytest.mark.parametrize("missing", ["index", "txnindex", "timeindex"])
def test_an_import_keeps_aborted_records_hidden_whatever_sidecars_are_missing(missing, txn, tmp_path):
    for file in txn.glob(f"*.{missing}"):
        file.unlink()
    log = LogDir.create(str(tmp_path / "log"))
    log.import_kafka(str(txn))
    assert records_of(log.topic("txn").scan(isolation="read_committed").batches()) == committed_records("txn-0")
    assert verify(log, deep=True).ok


def test_an_abort_that_was_cut_off_leaves_its_transaction_open(txn):
    """The marker is in the part that damage takes: its data is not committed, and later data is not stable."""
    aborts = [
        line for line in expected_records("txn-0") if line.get("controlType") == "ABORT" and line["offset"] > 2600
    ]
    marker = aborts[0]
    log_file = next(txn.glob("00000000000000002527.log"))
    content = log_file.read_bytes()
    log_file.write_bytes(content[: content.index(marker["offset"].to_bytes(8, "big"))])
    for file in txn.glob("00000000000000003156.*"):
        file.unlink()
    log = LogDir.open(str(txn))
    data = [
        line["offset"]
        for line in expected_records("txn-0")
        if line["producerId"] == marker["producerId"] and not line["isControl"] and line["offset"] < marker["offset"]
    ]
    partition = log.topic("txn").snapshot.partition(0)
    assert partition.log_end_offset == marker["offset"]
    assert partition.last_stable_offset <= data[-1]
    found = records_of(log.topic("txn").scan(isolation="read_committed").batches())
    assert found == [record for record in committed_records("txn-0") if record[1] < partition.last_stable_offset]


def test_transaction_indexes_are_read_no_further_than_needed(monkeypatch):
    """An entry that was written when nothing before the range's end was open ends the search, as in Kafka."""
    log = LogDir.open(str(golden_dir("txn-0")))
    snapshot = log.topic("txn").snapshot
    indexes = transaction_indexes(snapshot.live_table(0), {})
    assert len(indexes) == 6
    read, paths = log.storage.read, []
    monkeypatch.setattr(
        log.storage, "read", lambda path, *rest, **options: paths.append(path) or read(path, *rest, **options)
    )
    found = load_aborted(log.storage, indexes, 0, 100)
    assert paths == ["00000000000000000000.txnindex"]
    every = [parse_txn_index((golden_dir("txn-0") / index.path).read_bytes()) for index in indexes]
    wanted = {
        (int(first), int(last))
        for one in every
        for first, last in zip(one.first_offset, one.last_offset, strict=True)
        if first < 100
    }
    assert set(zip(found.first_offset.tolist(), found.last_offset.tolist(), strict=True)) == wanted


def test_a_log_without_transactions_reads_alike_at_both_levels():
    log = LogDir.open(str(golden_dir("mixed-0")))
    assert records_of(log.topic("mixed").scan(isolation="read_committed").batches()) == as_records(
        expected_records("mixed-0")
    )


def test_an_unknown_level_is_refused():
    with pytest.raises(InvalidOptionError, match="read_committed"):
        LogDir.open(str(golden_dir("txn-0"))).topic("txn").scan(isolation="serializable").batches()
