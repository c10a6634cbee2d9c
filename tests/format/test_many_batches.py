"""A producer's batches are small: no Python runs for each of them, and what is written is what each alone becomes."""

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from spark_segments.format.batches import rebase, scan_batches
from spark_segments.format.cleaner import packing_kernels
from spark_segments.format.cleaner.active_producers import ActiveProducers
from spark_segments.format.cleaner.clean import RecordFilter, clean_batches
from spark_segments.format.cleaner.offset_map import OffsetMap
from spark_segments.format.cleaner.transactions import CleanedTransactions
from spark_segments.format.compression import compress, compress_blocks
from spark_segments.format.decoding.decode import decode_batches
from spark_segments.format.decoding.section_opener import OPENED_BYTES
from spark_segments.format.kernels.memory import address_of, granted
from spark_segments.format.layout import CODECS, RECORDS_POSITION
from spark_segments.format.window import Window
from tests.format.uncompiled import uncompiled
from verification.world.kafka_bytes.segment_bytes import encode_records

COMPRESSING = [name for name in CODECS if name != "none"]


def log_of(codec: str, batch_bytes: int, count: int = 40_000) -> bytes:
    """Records of which many are superseded, some in every batch, in batches of that size before compression."""
    numbers = np.random.default_rng(1).integers(0, 20_000, count)
    records = pa.record_batch(
        {
            "key": pa.array([b"%08d" % number for number in numbers], pa.binary()),
            "value": pa.array([b"value %d of many" % number * 3 for number in numbers], pa.binary()),
            "timestamp": pa.array(numbers + 1_700_000_000_000, pa.timestamp("ms")),
        }
    )
    encoded = encode_records(
        records, None, codec=CODECS[codec], level=None, batch_bytes=batch_bytes, max_message_bytes=1 << 20
    )
    return encoded.buffer.to_pybytes()


def calls_of(run: Callable[[], Any]) -> int:
    """How many functions of Python a call takes."""
    calls = 0

    def count(_frame: Any, event: str, _argument: Any) -> None:
        nonlocal calls
        calls += event == "call"

    run()  # what is made once, such as a codec's context
    sys.setprofile(count)
    try:
        run()
    finally:
        sys.setprofile(None)
    return calls


def used(data: bytes) -> dict[str, Callable[[], Any]]:
    window = Window(data, scan_batches(data).batches)
    offset_map = OffsetMap(8 << 20)
    offset_map.put_batches(window)
    cleaning = RecordFilter(offset_map, 0, 0, 1 << 40, ActiveProducers.of(), None)
    copy = bytearray(data)

    def mapped() -> None:
        assert OffsetMap(8 << 20).put_batches(window)

    return {
        "check": lambda: scan_batches(data),
        "decode": lambda: list(decode_batches(window, topic="t", partition=0)),
        "map": mapped,
        "clean": lambda: list(clean_batches(window, cleaning, CleanedTransactions())),
        "copy": lambda: rebase(copy, window.batches, 5, 1),
    }


@pytest.mark.parametrize("codec", CODECS)
def test_calls_of_python_do_not_grow_with_batches(codec):
    small, large = log_of(codec, 4 << 10), log_of(codec, 16 << 10)
    more = len(scan_batches(small).batches) - len(scan_batches(large).batches)
    assert more > 400
    of_large = used(large)
    for name, run in used(small).items():
        # Of the same bytes: a part more or less, by where batches end.
        assert calls_of(run) < calls_of(of_large[name]) + more / 4, name


@pytest.mark.parametrize("codec", COMPRESSING)
def test_what_is_decompressed_at_a_time_takes_few_calls_of_python(codec):
    """Tables, figures and rules are made once for many of such parts."""
    small, large = used(log_of(codec, 16 << 10)), used(log_of(codec, 16 << 10, 120_000))
    parts = (len(log_of("none", 16 << 10, 120_000)) - len(log_of("none", 16 << 10))) / OPENED_BYTES
    assert parts > 8
    for name in ("map", "clean", "decode"):
        assert calls_of(large[name]) - calls_of(small[name]) < 32 * parts, name


@pytest.mark.parametrize("codec", COMPRESSING)
def test_batches_packed_together_are_what_each_alone_becomes(codec):
    random = np.random.default_rng(1)
    headers = [random.bytes(RECORDS_POSITION) for _ in range(6)]
    sections = [b"abc" * 9, random.bytes(70_000), b"x" * 200_000, random.bytes(65_536), b"y" * 32_768, random.bytes(1)]
    rebuilt = np.frombuffer(b"".join(map(b"".join, zip(headers, sections, strict=True))), np.uint8).copy()
    sizes = np.array([RECORDS_POSITION + len(section) for section in sections])
    starts = np.cumsum(sizes) - sizes
    rows = np.arange(len(sections))
    packed = []
    for kernels in (packing_kernels, uncompiled("format.cleaner.packing_kernels")):
        framed = compress_blocks(CODECS[codec], rebuilt.data, starts + RECORDS_POSITION, starts + sizes, None)
        places = np.empty((len(framed.blocks), 2), np.int64)
        with granted():
            kernels.find_blocks(framed.blocks, places)
            room = framed.most_bytes(int(places[:, 1].sum()), len(rows)) + len(rows) * RECORDS_POSITION
            out = np.zeros(room, np.uint8)
            spans = np.stack([starts + address_of(rebuilt), sizes, rows], axis=1)
            written = kernels.pack_batches(
                spans, rows, CODECS[codec], framed.block_bytes, framed.frame_header, places, out
            )
            packed.append((out[:written].tobytes(), (spans[:, 0] - address_of(out)).tolist(), spans[:, 1].tolist()))
    assert packed[0] == packed[1]
    data, places, lengths = packed[0]
    for place, length, section in zip(places, lengths, sections, strict=True):
        assert data[place + RECORDS_POSITION : place + length] == compress(CODECS[codec], section).to_pybytes()
