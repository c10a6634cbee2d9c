"""The kernels of message sets as Python runs them: as the compiled ones, and with no memory that is not theirs."""

from __future__ import annotations

import random
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from spark_segments.errors import CorruptBatchError
from spark_segments.format.batches import scan_batches
from spark_segments.format.legacy import message_sets, upconvert
from spark_segments.format.legacy.upconvert import as_magic_2
from spark_segments.format.window import Window
from tests.format.legacy_messages import message, wrapper
from tests.format.uncompiled import granted, uncompiled

RUNS = 120
NAMES = ("offset", "timestamp", "timestamp_type", "crc", "valid")


@pytest.fixture
def checked(monkeypatch) -> Iterator[None]:
    kernels, copies = uncompiled("format.legacy.kernels"), uncompiled("format.kernels.copies")

    def alone(kernel: Any) -> Any:
        def run(*arguments: Any) -> Any:
            with granted():
                return kernel(*arguments)

        return run

    names = ("crcs_of", "survey", "read_columns", "write_records")
    plain = SimpleNamespace(**{name: alone(getattr(kernels, name)) for name in names})
    monkeypatch.setattr(message_sets, "kernels", plain)
    monkeypatch.setattr(message_sets, "gather", alone(copies.gather))
    monkeypatch.setattr(upconvert, "kernels", plain)


def entries(chance: random.Random) -> bytes:
    """Messages and a wrapper, some of them damaged under lengths that still fit."""
    magic = chance.randrange(2)
    inner = bytearray(b"".join(message(number, b"v" * 9, key=b"k" * number, magic=magic) for number in range(5)))
    plain = bytearray(b"".join(message(number, b"value", magic=number % 2) for number in range(chance.randrange(4))))
    for data in (inner, plain):
        for _ in range(chance.choice((0, 0, 1, 2)) if data else 0):
            data[chance.randrange(len(data))] = chance.choice((0, 1, 0x7F, 0xFF, chance.randrange(256)))
    return bytes(plain) + wrapper(chance.choice((4, 9)), bytes(inner), magic=magic)


def read(data: bytes) -> Any:
    """All that is read of entries with their CRCs unchecked, and the batches of magic 2 that they become."""
    scan = scan_batches(data)
    window = Window(data, scan.batches, path="x.log")
    window = window.take(window.batches.magic < 2)
    found: list[Any] = [str(message_sets.first_bad_crc(window))]
    try:
        for one in message_sets.read_messages(window, check_crc=False, step_bytes=20):
            columns = [
                getattr(one, name).tolist() for name in ("offset", "timestamp", "timestamp_type", "crc", "valid")
            ]
            keys, values = one.binary(one.key_start, one.key_size), one.binary(one.value_start, one.value_size)
            found.append((columns, keys.to_pylist(), values.to_pylist()))
        found.append(bytes(as_magic_2(window).data))
    except CorruptBatchError as error:
        found.append(str(error))
    return found


@pytest.mark.parametrize("number", range(RUNS))
def test_whole_and_damaged_messages_are_read_alike(request, number):
    data = entries(random.Random(number))
    expected = read(data)
    request.getfixturevalue("checked")
    assert read(data) == expected


def test_damage_is_among_them_and_so_is_none():
    refused = sum(isinstance(read(entries(random.Random(number)))[-1], str) for number in range(RUNS))
    assert RUNS // 10 < refused < RUNS - RUNS // 10
