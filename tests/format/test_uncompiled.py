"""Kernels give the same compiled and uncompiled, where they can use no memory but what is theirs."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from spark_segments.errors import SegmentsError
from spark_segments.format import batches, control, rolling, single_batch
from spark_segments.format.batches import BatchTable, scan_batches
from spark_segments.format.buffers import byte_view
from spark_segments.format.decoding import batch_groups, columns, section_opener
from spark_segments.format.decoding.decode import decode_batches
from spark_segments.format.decoding.fields import ADDRESS, END
from spark_segments.format.encoding import encode, partitioner
from spark_segments.format.kernels import memory
from spark_segments.format.kernels.memory import address_of, granted
from spark_segments.format.layout import CODECS, RECORD_SCHEMA
from spark_segments.format.sidecars import index, txn_index
from spark_segments.format.window import Window
from tests.format.uncompiled import uncompiled
from verification.hostile.mutations import mutated
from verification.hostile.targets.batches import batches_of_all_kinds, sealed
from verification.world.kafka_bytes.segment_bytes import encode_records, rebuild

INPUTS = int(os.environ.get("KERNEL_INPUTS", "300"))
"""How many inputs each entry point gets."""

ROOMS = {
    "format.batch_kernels": (batches, control, single_batch),
    "format.decoding.decode_kernels": (batch_groups, columns, section_opener),
    "format.encoding.encode_kernels": (encode, partitioner),
    "format.sidecars.segment_kernels": (index, txn_index, rolling),
}
CORPUS = batches_of_all_kinds()


class Numbers(np.ndarray):
    """An array whose elements are Python's numbers, which neither wrap nor count from the end."""

    def __getitem__(self, at: Any) -> Any:
        assert not isinstance(at, int) or at >= 0
        found = super().__getitem__(at)
        return found.item() if isinstance(found, np.generic) else found


class Fields:
    """The fields of a value, as a kernel reads them."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def __getattr__(self, name: str) -> Any:
        return _as_read(getattr(self._value, name))


def _as_read(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.view(Numbers)
    return Fields(value) if dataclasses.is_dataclass(value) else value


def _checked(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*arguments: Any) -> Any:
        plain = [_as_read(argument) for argument in arguments]
        if function.__name__ in ("decode_records", "decode_offsets"):
            memory._granted.extend((int(row[ADDRESS]), int(row[END])) for row in arguments[0])
        return function(*plain)

    return call


@contextmanager
def plainly(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """All kernels uncompiled. Granted are the arrays that they are given, columns' memory, and sections' bytes."""

    def granted_memory(size: int) -> pa.ResizableBuffer:
        buffer = allocate(size)
        address_of(buffer)
        return buffer

    allocate = columns._memory
    with monkeypatch.context() as patched, granted():
        patched.setattr(columns, "_memory", granted_memory)
        for name, faces in ROOMS.items():
            module = uncompiled(name)
            for face in faces:
                patched.setattr(face, name.rpartition(".")[2], _Checked(module))
        yield


class _Checked(SimpleNamespace):
    def __init__(self, module: ModuleType) -> None:
        super().__init__(module=module)

    def __getattr__(self, name: str) -> Any:
        return _checked(getattr(self.module, name))


def result(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except (SegmentsError, ValueError, IndexError) as error:
        return type(error), str(error)


def assert_same(call: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = result(call)
    with plainly(monkeypatch):
        assert result(call) == compiled


def window_of(data: bytes) -> Window:
    scan = scan_batches(byte_view(data), path="x.log")
    return Window(byte_view(data), scan.batches, path="x.log")


def table(batch_table: BatchTable) -> list[list[int]]:
    return [getattr(batch_table, name).tolist() for name in batches._NAMES]


def hostile(seed: int) -> tuple[bytes, Random]:
    random = Random(seed)
    return sealed(mutated(random.choice(CORPUS), random, CORPUS), random), random


@pytest.mark.parametrize("data", [*CORPUS, b"".join(CORPUS)], ids=range(len(CORPUS) + 1))
def test_good_batches_decode_alike(data, monkeypatch):
    assert_same(lambda: decoded(data, RECORD_SCHEMA.names, {}), monkeypatch)


def decoded(data: bytes, names: list[str], options: dict[str, Any]) -> list[dict[str, Any]]:
    window = window_of(data)
    window = window.take(window.batches.magic == 2)
    parts = decode_batches(window, topic="t", partition=0, columns=names, **options)
    return [{name: _plain(part.column(name)) for name in part.schema.names} for part in parts]


def _plain(column: pa.Array) -> list[Any]:
    """The values; times as integers, since Python has no dates beyond the year 9999."""
    return (column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column).to_pylist()


def test_hostile_batches_are_walked_alike(monkeypatch):
    def walked() -> Any:
        scan = scan_batches(byte_view(data), path="x.log", check_crc=seed % 3 != 0)
        return table(scan.batches), scan.consumed, scan.needed, str(scan.error)

    for seed in range(INPUTS):
        data, _ = hostile(seed)
        assert_same(walked, monkeypatch)


@pytest.mark.proof
def test_hostile_records_decode_alike(monkeypatch):
    for seed in range(INPUTS):
        data, random = hostile(seed)
        names = random.choice([RECORD_SCHEMA.names, ["offset"], ["key", "offset"], ["value", "headers"]])
        options = {
            "start_offset": random.choice((None, 0, 3, 2**62)),
            "include_control": random.random() < 0.5,
            "view_values": random.random() < 0.3,
            "target_bytes": random.choice((1, 1000, 4 << 20)),
        }
        assert_same(lambda data=data, names=names, options=options: decoded(data, names, options), monkeypatch)


@pytest.mark.proof
def test_hostile_markers_are_read_alike(monkeypatch):
    def markers() -> Any:
        window = window_of(data)
        found = control.read_markers(window.take(window.batches.is_control & (window.batches.magic == 2)))
        return found.type.tolist(), found.coordinator_epoch.tolist(), found.timestamp.tolist()

    with_markers = [one for one in CORPUS if window_of(one).batches.is_control.any()]
    for seed in range(INPUTS):
        random = Random(seed)
        data = sealed(mutated(random.choice(with_markers), random, CORPUS), random)
        assert_same(markers, monkeypatch)


@pytest.mark.proof
def test_hostile_batches_are_rebased_and_trimmed_alike(monkeypatch):
    def changed() -> Any:
        window = window_of(data)
        window = window.take(window.batches.magic == 2)
        copy = bytearray(data)
        batches.rebase(copy, window.batches, 2**40, 7)
        long = np.flatnonzero(window.batches.last_offset > window.batches.base_offset)
        parts = []
        for row in long.tolist():
            one = window.take(slice(row, row + 1))
            first, last = int(one.batches.base_offset[0]), int(one.batches.last_offset[0])
            parts.append(result(lambda one=one, at=first + 1 + (last - first) // 3: single_batch.batch_from(one, at)))
        return bytes(copy), parts

    for seed in range(INPUTS):
        data, _ = hostile(seed)
        assert_same(changed, monkeypatch)


def records_of(random: Random) -> pa.RecordBatch:
    rows = random.randint(0, 12)

    def text(most: int, null: float = 0.2) -> bytes | None:
        return None if random.random() < null else random.randbytes(random.choice((0, 1, 5, most)))

    headers = [
        None
        if random.random() < 0.3
        else [{"key": random.choice(("", "name", None)), "value": text(70)} for _ in range(random.randint(0, 2))]
        for _ in range(rows)
    ]
    times = [random.choice((-1, 0, 1_700_000_000_000, 2**62, -5, None)) for _ in range(rows)]
    unit = random.choice(("ms", "us", "ns"))
    fields = {
        "key": pa.array([text(30) for _ in range(rows)], pa.binary()),
        "value": pa.array([text(200) for _ in range(rows)], pa.binary()),
        "timestamp": pa.array(times, pa.timestamp(unit)),
        "headers": pa.array(headers, RECORD_SCHEMA.field("headers").type),
    }
    return pa.RecordBatch.from_pydict(fields).slice(random.randint(0, 2))


def test_records_are_written_alike(monkeypatch):
    for seed in range(INPUTS):
        random = Random(seed)
        records = records_of(random)
        count = records.num_rows
        rows = (
            None if random.random() < 0.5 else np.array([random.randrange(-1, count + 1) for _ in range(5)], np.int64)
        )
        codec = CODECS[random.choice(("none", "none", "lz4"))]
        limits = {"batch_bytes": random.choice((1, 100, 16384)), "max_message_bytes": random.choice((120, 1 << 20))}
        kind = random.randrange(2)

        def written(records=records, rows=rows, codec=codec, limits=limits, kind=kind) -> Any:
            one = encode_records(records, rows, codec=codec, level=None, timestamp_type=kind, **limits)
            return one.buffer.to_pybytes(), table(one.batches), one.tombstones

        assert_same(written, monkeypatch)


def test_partitions_are_found_alike(monkeypatch):
    for seed in range(INPUTS):
        random = Random(seed)
        keys = pa.array([None if random.random() < 0.2 else random.randbytes(random.randint(0, 9)) for _ in range(9)])
        keys = keys.cast(pa.binary()).slice(random.randint(0, 3))
        partitions = random.choice((1, 2, 7, 2**31 - 1))
        assert_same(lambda keys=keys, n=partitions: partitioner.murmur2_partitions(keys, n).tolist(), monkeypatch)
        ids = np.array([random.randint(-1, 3) if random.random() < 0.1 else random.randint(0, 2) for _ in range(8)])
        assert_same(lambda ids=ids: [one.tolist() for one in partitioner.group_rows(ids, 3)], monkeypatch)


def table_of(random: Random) -> BatchTable:
    count = random.randint(0, 12)
    numbers = BatchTable.empty(count)
    for name in batches._NAMES:
        getattr(numbers, name)[:] = 0
    sizes = [random.choice((61, 4000, 5000)) for _ in range(count)]
    numbers.size[:] = sizes
    numbers.byte_position[:] = np.cumsum([0, *sizes])[:-1]
    numbers.last_offset[:] = np.cumsum([random.choice((1, 3, 2**30)) for _ in range(count)])
    numbers.base_offset[:] = numbers.last_offset
    times = (-1, 5, 1_700_000_000_000, 2**63 - 1, -(2**63))
    numbers.max_timestamp[:] = [random.choice(times) for _ in range(count)]
    numbers.producer_id[:] = [random.randrange(3) for _ in range(count)]
    numbers.attributes[:] = 0x10
    numbers.magic[:] = 2
    return numbers


def test_indexes_rolls_and_aborted_batches_are_found_alike(monkeypatch):
    for seed in range(INPUTS):
        random = Random(seed)
        numbers = table_of(random)
        starts = sorted(random.sample(range(40), 4))
        aborted = txn_index.AbortedTransactions.of(
            (random.randrange(3), start, start + random.randint(0, 9), start) for start in starts
        )
        limits = {"index_interval_bytes": random.choice((0, 4096)), "index_bytes": random.choice((24, 1 << 20))}

        def found(numbers=numbers, aborted=aborted, limits=limits) -> Any:
            rolls = rolling.roll_points(numbers, segment_bytes=9000, roll_ms=lambda _: 1000, **limits)
            return (
                result(lambda: rebuild(numbers, 0, interval_bytes=4096, index_bytes=limits["index_bytes"])),
                (rolls.rows.tolist(), rolls.open.index_state.tolist(), rolls.open.size_bytes),
                aborted.mask(numbers).tolist(),
            )

        assert_same(found, monkeypatch)
