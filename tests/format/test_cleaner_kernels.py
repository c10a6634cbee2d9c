"""The cleaner's kernels as Python runs them: they clean as the compiled ones do, and use only memory that is theirs."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from spark_segments.errors import CorruptBatchError
from spark_segments.format.batches import scan_batches
from spark_segments.format.cleaner import clean, latest_keys, live_records, offset_map, transactions
from spark_segments.format.cleaner.active_producers import ActiveProducers
from spark_segments.format.cleaner.latest_keys import KeyShare, LatestKeys
from spark_segments.format.cleaner.layout import Batches
from spark_segments.format.sidecars.txn_index import AbortedTransactions
from spark_segments.format.window import Window
from tests.format.test_clean_any_bytes import lying
from tests.format.uncompiled import granted, uncompiled
from verification.world.kafka_bytes.golden_files import log_files
from verification.world.kafka_bytes.twin_encode import ABORT, COMMIT, Record, batch_bytes, empty_batch, marker_batch

RUNS = 60
GOLDEN = ("plain-0", "snappy-0", "txn-0", "zstd-0")


@pytest.fixture
def checked(monkeypatch) -> Iterator[None]:
    """Kernels uncompiled, each with the memory of its arguments, batches and sections for as long as it runs."""
    of_map, of_filter = uncompiled("format.cleaner.map_kernels"), uncompiled("format.cleaner.filter_kernels")
    of_transactions = uncompiled("format.cleaner.transaction_kernels")

    def put_sections(table: Any, sections: Any, first: int, last: int, *others: Any) -> Any:
        rows = slice(first, last)
        with granted(*zip(sections.starts[rows].tolist(), sections.ends[rows].tolist(), strict=True)):
            return of_map.put_sections(table, sections, first, last, *others)

    def filter_batches(lines: np.ndarray, *others: Any) -> Any:
        batches = Batches(*lines.T.tolist())
        whole = [(at, at + size) for at, size in zip(batches.address, batches.size, strict=True)]
        with granted(*whole, *zip(batches.start, batches.end, strict=True)):
            return of_filter.filter_batches(lines, *others)

    def alone(kernel: Any) -> Any:
        def run(*arguments: Any) -> Any:
            with granted():
                return kernel(*arguments)

        return run

    others = {name: alone(value) for name, value in vars(of_map).items() if callable(value)}
    maps = SimpleNamespace(**(others | {"put_sections": put_sections}))
    for face in (offset_map, latest_keys, live_records):
        monkeypatch.setattr(face, "map_kernels", maps)
    monkeypatch.setattr(clean, "filter_kernels", SimpleNamespace(filter_batches=filter_batches))
    monkeypatch.setattr(transactions, "transaction_kernels", SimpleNamespace(walk=alone(of_transactions.walk)))


def corpus() -> list[bytes]:
    records = [Record(b"value %d" % at, None if at % 5 == 4 else b"key %d" % (at % 7), 1000 + at) for at in range(20)]
    records += [Record(None, b"key 1"), Record(b"v" * 300, b"k" * 250, headers=[("h", b"x"), ("größe", None)])]
    plain = batch_bytes(records) + batch_bytes(records[:9], base_offset=40)
    return [
        plain,
        batch_bytes(records, codec="lz4") + batch_bytes(records[:9], base_offset=40, codec="zstd"),
        batch_bytes(records, log_append_time=True),
        batch_bytes(records, delete_horizon_ms=1_700_000_000_000) + batch_bytes(records[:2], base_offset=40),
        batch_bytes(records[:4], producer_id=7, transactional=True)
        + marker_batch(ABORT, base_offset=4, producer_id=7)
        + batch_bytes(records[4:8], base_offset=5, producer_id=8, transactional=True)
        + marker_batch(COMMIT, base_offset=9, producer_id=8)
        + marker_batch(COMMIT, base_offset=10, producer_id=9),
        empty_batch(0, 40) + batch_bytes(records[:3], base_offset=41),
        batch_bytes([Record(b"a", b"k", offset=3), Record(b"b", b"k", offset=90)], last_offset=100),
    ]


def mutated(data: bytes, chance: random.Random) -> bytes:
    """Bytes of the first batch changed, under a right CRC."""
    size = int.from_bytes(data[8:12], "big") + 12
    first = bytearray(data[:size])
    for _ in range(chance.randint(0, 4) if size > 61 else 0):
        first[chance.randrange(61, size)] = chance.choice((0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)))
    return lying(bytes(first)) + data[size:]


def cleaned(data: bytes, chance: random.Random) -> tuple[Any, ...]:
    """All that the cleaner finds in some bytes, or its error."""
    scan = scan_batches(data)
    window = Window(data, scan.batches, path="x.log", offset_shift=chance.choice((0, 0, 7)))
    table = offset_map.OffsetMap(chance.choice((1 << 12, 24 * 40)), seed=5)
    plain = np.zeros(len(window.batches), np.bool_)
    aborted = AbortedTransactions.of([(7, 0, 4, 5)] if chance.random() < 0.7 else [])
    cleaning = clean.RecordFilter(
        table, 1_700_000_100_000, 600_000, chance.choice((1 << 40, 22)), ActiveProducers.of([]),
        only_superseded=chance.random() < 0.2,
    )  # fmt: skip
    try:
        full = table.put_batches(window, plain=plain)
        walked = transactions.CleanedTransactions()
        walked.add_aborted(aborted)
        live = live_records.LiveRecords.of(table, 1 << 20)
        plain &= window.batches.count == window.batches.last_offset - window.batches.base_offset + 1
        with_live = dataclasses.replace(cleaning, live=live)
        found = [
            (part.data.tobytes(), part.stats, part.aborted.last_offset.tolist())
            for one, known in ((cleaning, None), (with_live, plain))
            for part in clean.clean_batches(window, one, walked.copy(), known)
        ]
    except CorruptBatchError as error:
        return (str(error),)
    return full, table.slots.tobytes(), plain.tolist(), found


def damaged_or_not(number: int) -> bytes:
    return mutated(random.Random(number).choice(corpus()), random.Random(-number))


@pytest.mark.parametrize("number", range(RUNS))
def test_whole_and_damaged_batches_are_cleaned_alike(request, number):
    data = damaged_or_not(number)
    expected = cleaned(data, random.Random(number))
    request.getfixturevalue("checked")
    assert cleaned(data, random.Random(number)) == expected


def test_damage_is_among_them_and_so_is_none():
    outcomes = [cleaned(damaged_or_not(number), random.Random(number)) for number in range(RUNS)]
    assert RUNS // 10 < sum(len(outcome) == 1 for outcome in outcomes) < RUNS // 2


@pytest.mark.cases(1)
@pytest.mark.parametrize("log", GOLDEN)
def test_logs_of_kafka_are_cleaned_alike(request, log):
    data = next(log_files(log)).read_bytes()[:40_000]
    data = data[: scan_batches(data).consumed]
    assert data
    expected = cleaned(data, random.Random(1))
    request.getfixturevalue("checked")
    assert cleaned(data, random.Random(1)) == expected


def latest(columns: list[tuple[pa.Array, np.ndarray]], share: KeyShare) -> list[Any]:
    """What a map of a share says of keys: whether they fit, the slots, and which records are superseded."""
    keys = LatestKeys(24 * 5000, share, seed=9)
    answers: list[Any] = [keys.put_records(*column) for column in columns]
    for key, offset in columns:
        marked = np.zeros(len(offset), np.bool_)
        keys.mark_superseded(key, offset, marked)
        answers.append(marked.tolist())
    return [*answers, keys.slots.tobytes(), keys.get(b"key 3")]


def test_columns_of_keys_are_put_and_marked_alike(request):
    columns = [
        (pa.array([None if at % 11 == 0 else b"key %d" % (at * at % 700) for at in range(start, start + 900)]), at)
        for start in (0, 400)
        for at in [np.arange(start, start + 900)]
    ]
    columns.append((columns[0][0][3:50], columns[0][1][3:50]))
    shares = [KeyShare(), KeyShare(1, 3)]
    expected = [latest(columns, share) for share in shares]
    request.getfixturevalue("checked")
    assert [latest(columns, share) for share in shares] == expected


def test_tables_that_grow_are_alike(request):
    def grown() -> list[Any]:
        keys = LatestKeys(24 * 9000, seed=9)
        put = keys.put_records(pa.array([b"key %d" % at for at in range(6000)]), np.arange(6000))
        return [put, keys.slots.tobytes()]

    expected = grown()
    request.getfixturevalue("checked")
    assert grown() == expected and expected[0]


def test_merged_maps_are_alike(request):
    def merged() -> tuple[Any, ...]:
        first, second = offset_map.OffsetMap(24 * 9000, seed=3), offset_map.OffsetMap(24 * 9000, seed=3)
        for table, start in ((first, 0), (second, 100)):
            data = batch_bytes(
                [Record(b"v", b"%d" % (at % 150)) for at in range(start, start + 100)], base_offset=start
            )
            table.put_batches(Window(data, scan_batches(data).batches))
        return first.merge(second), first.entries, first.slots.tobytes()

    expected = merged()
    request.getfixturevalue("checked")
    assert merged() == expected and expected[:2] == (True, 150)


def test_a_kernel_that_is_told_a_section_too_long_is_caught():
    kernel = uncompiled("format.cleaner.map_kernels")
    data = np.frombuffer(batch_bytes([Record(b"v", b"k")])[61:], np.uint8)
    start = int(data.__array_interface__["data"][0])
    table = offset_map.OffsetMap(1 << 10, seed=1)
    rows, numbers = np.empty(1024 * 40, np.uint8), [np.array([number]) for number in (start, start + 99, 0, 2)]
    sections = offset_map.SectionsToPut(*numbers, rows, np.zeros(1, np.uint8))
    with granted((start, start + len(data))), pytest.raises(MemoryError):
        kernel.put_sections(table, sections, 0, 1, 9, 9, False)
