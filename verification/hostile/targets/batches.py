"""Record batches, codecs, message sets of the old magics, and the cleaner, all behind guard pages."""

from __future__ import annotations

import contextlib
import itertools
import struct
import zlib
from random import Random

import crc32c
import numpy as np

from spark_segments.errors import CorruptBatchError
from spark_segments.format.batches import scan_batches
from spark_segments.format.cleaner.active_producers import ActiveProducers
from spark_segments.format.cleaner.clean import RecordFilter, clean_batches
from spark_segments.format.cleaner.offset_map import OffsetMap
from spark_segments.format.cleaner.transactions import CleanedTransactions
from spark_segments.format.compression import compress, decompress
from spark_segments.format.control import read_markers
from spark_segments.format.decoding.decode import decode_batches
from spark_segments.format.layout import CODECS, RECORD_SCHEMA
from spark_segments.format.legacy import first_bad_crc, messages, opened
from spark_segments.format.window import Window
from verification.hostile.mutations import mutated
from verification.hostile.targets import Run
from verification.world.kafka_bytes.guarded import Guarded
from verification.world.kafka_bytes.legacy_messages import message, wrapper
from verification.world.kafka_bytes.twin_encode import ABORT, COMMIT, Record, batch_bytes, empty_batch, marker_batch

_MOST_BYTES = 1 << 18


def batches_of_all_kinds() -> list[bytes]:
    """One to three batches each: all codecs, headers, nulls, transactions, markers, delete horizons, no records."""
    records = [
        Record(b"value %d" % number, None if number % 3 else b"key %d" % (number % 5), 1_700_000_000_000 + number)
        for number in range(12)
    ]
    records += [Record(None, b"tombstone"), Record(b"v" * 300, b"k" * 70, headers=[("name", b"x"), ("größe", None)])]
    found = [batch_bytes(records, codec=codec) for codec in CODECS]
    found += [
        batch_bytes(records[:1]),
        batch_bytes(records, log_append_time=True),
        batch_bytes(records, delete_horizon_ms=1_700_000_500_000),
        batch_bytes(records, producer_id=7, producer_epoch=1, base_sequence=3, transactional=True)
        + marker_batch(ABORT, base_offset=len(records), producer_id=7)
        + marker_batch(COMMIT, base_offset=len(records) + 1, producer_id=8),
        empty_batch(0, 40) + batch_bytes(records[:3], base_offset=41),
        batch_bytes([Record(b"a", b"k", offset=3), Record(b"b", b"k", offset=90)], last_offset=100),
    ]
    return found


def sealed(data: bytes, random: Random) -> bytes:
    """The batches with right lengths and CRCs, as far as they can be walked; now and then as they are."""
    if random.random() < 0.2:
        return data
    out = bytearray(data)
    position = 0
    while position + 61 <= len(out):
        size = int.from_bytes(out[position + 8 : position + 12], "big", signed=True) + 12
        if not 61 <= size <= len(out) - position:
            size = len(out) - position
            out[position + 8 : position + 12] = struct.pack(">i", size - 12)
        if random.random() < 0.8:
            out[position + 16] = 2
        end = position + size
        out[position + 17 : position + 21] = struct.pack(">I", crc32c.crc32c(bytes(out[position + 21 : end])))
        position = end
    return bytes(out)


def _window(memory: Guarded, data: bytes, random: Random) -> tuple[Window, Exception | None]:
    view = memory.hold(data[: memory.size], at_start=random.random() < 0.3)
    scan = scan_batches(view, path="hostile.log")
    return Window(view, scan.batches, path="hostile.log", offset_shift=random.choice((0, 0, 5))), scan.error


def _read(window: Window, random: Random) -> None:
    names = RECORD_SCHEMA.names
    columns = names if random.random() < 0.6 else random.sample(names, random.randint(1, len(names)))
    start = random.choice((None, None, 0, 3, 2**62))
    for part in decode_batches(
        window, topic="t", partition=0, columns=columns, start_offset=start, include_control=random.random() < 0.5,
        view_values=random.random() < 0.3, target_bytes=random.choice((1, 1000, 4 << 20)),
    ):  # fmt: skip
        part.validate(full=True)
        assert part.num_rows > 0


def decoder() -> Run:
    corpus, memory = batches_of_all_kinds(), Guarded(_MOST_BYTES)

    def run(random: Random) -> None:
        data = sealed(mutated(random.choice(corpus), random, corpus), random)
        window, error = _window(memory, data, random)
        window = window.take(window.batches.magic == 2)
        _read(window, random)
        read_markers(window.take(window.batches.is_control & (window.batches.magic == 2)))
        if error is not None:
            raise error

    return run


def codecs() -> Run:
    words = b" ".join(b"%x" % (number * number % 977) for number in range(900))
    texts = [b"", b"a", words, bytes(5000), bytes(range(256)) * 20]
    corpus = [
        (codec, compress(codec, text).to_pybytes()) for codec in CODECS.values() if codec for text in texts if text
    ]
    others = [data for _, data in corpus]
    memory = Guarded(_MOST_BYTES)

    def run(random: Random) -> None:
        codec, data = random.choice(corpus)
        if random.random() < 0.05:
            codec = random.randrange(8)
        view = memory.hold(mutated(data, random, others)[: memory.size], at_start=random.random() < 0.3)
        opened = decompress(codec, view, path="hostile.log", byte_position=0)
        assert opened.size <= 256 << 20

    return run


def message_sets() -> Run:
    plain = [
        message(number, b"value %d" % number, key=b"key" if number % 2 else None, magic=magic, timestamp=1_700_000_000)
        for number, magic in itertools.product(range(4), (0, 1))
    ]
    inner = [b"".join(message(number, b"v" * 20, magic=magic) for number in range(5)) for magic in (0, 1)]
    wrapped = [wrapper(offset, data, magic=magic) for magic, data in enumerate(inner) for offset in (4, 100)]
    corpus = [b"".join(plain[:3]), *plain, *wrapped, b"".join(wrapped), message(9, None) + wrapped[1]]
    memory = Guarded(_MOST_BYTES)

    def run(random: Random) -> None:
        if random.random() < 0.4:  # damage within the wrapper, under right checksums
            data = mutated(random.choice(inner), random, inner)
            data = wrapper(random.randrange(12), _right_crcs(data), magic=random.randrange(2))
        else:
            data = mutated(random.choice(corpus), random, corpus)
        if random.random() < 0.8:
            data = _right_crcs(data)
        window, error = _window(memory, data, random)
        first_bad_crc(window)
        with contextlib.suppress(CorruptBatchError):  # as `segments dump` reads each
            for row in np.flatnonzero(window.batches.magic < 2).tolist():
                list(messages(window, row, check_crc=False))
        for part in opened(window):
            assert part.is_as_written or scan_batches(part.data).error is None
            _read(part, random)
        if error is not None:
            raise error

    return run


def _right_crcs(data: bytes) -> bytes:
    out = bytearray(data)
    position = 0
    while position + 26 <= len(out):
        end = position + 12 + int.from_bytes(out[position + 8 : position + 12], "big", signed=True)
        if not position + 26 <= end <= len(out):
            end = len(out)
            out[position + 8 : position + 12] = struct.pack(">i", end - position - 12)
        out[position + 12 : position + 16] = struct.pack(">I", zlib.crc32(bytes(out[position + 16 : end])))
        position = end
    return bytes(out)


def cleaner() -> Run:
    corpus, memory = batches_of_all_kinds(), Guarded(_MOST_BYTES)

    def run(random: Random) -> None:
        data = sealed(mutated(random.choice(corpus), random, corpus), random)
        window, error = _window(memory, data, random)
        if (window.batches.magic < 2).any():
            window = window.take(window.batches.magic == 2)
        offset_map = OffsetMap(1 << 8)
        plain = np.zeros(len(window.batches), np.bool_)
        offset_map.put_batches(window, plain=plain)
        cleaning = RecordFilter(offset_map, 1_700_000_100_000, 600_000, 1 << 40, ActiveProducers.of([]), None)
        for cleaned in clean_batches(window, cleaning, CleanedTransactions()):
            assert scan_batches(cleaned.data).error is None
        if error is not None:
            raise error

    return run
