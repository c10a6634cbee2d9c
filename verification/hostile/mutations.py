"""Mutations of bytes and texts. The same random numbers give the same mutation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

_NUMBERS = [0, 1, -1, 2, 7, 127, -128, 255, 256, 32767, -32768, 65535, 2**31 - 1, -(2**31), 2**31, 2**32 - 1, 2**53,
            2**62, 2**63 - 1, -(2**63), -(2**62)]  # fmt: skip
_WORDS = [b"\0", b"\xff" * 8, b"\n", b"..", b"../", b"/", b"%2e%2e%2f", b"-", b"\r\n", b"\xe2\x80\xae", b"\xd9\xa3",
          b"1_0", b"+1", b"1e400", b"NaN", b"null", b"[]", b"{}", b'"', b"\\u0000", b" ", b"9" * 40]  # fmt: skip

NO_TEXT = [
    b"caf\xe9",
    b"\xc0\xaf",
    b"\xed\xa0\x80",
    b"\xff\xfe",
    b"\xf4\x90\x80\x80",
    b"\xe2\x82",
    b"\xf8\x88\x80\x80\x80",
]
"""Latin-1, an overlong form, a surrogate, a byte order mark of UTF-16, beyond Unicode, a cut letter, five bytes."""


def mutated(data: bytes, random: Random, others: Sequence[bytes] = (), most: int = 4) -> bytes:
    """The bytes after 1 to `most` mutations, some of which take parts of `others`."""
    changed = bytearray(data)
    for _ in range(random.randint(1, most)):
        random.choice(_MUTATIONS)(changed, random, others)
    return bytes(changed)


def mutated_text(text: str, random: Random, words: Sequence[str]) -> str:
    """The text with words put in, taken out or repeated, or another word in its place."""
    way = random.randrange(5)
    if way == 0:
        return random.choice(words)
    if way == 1:
        at = random.randint(0, len(text))
        return text[:at] + random.choice(words) + text[at:]
    if way == 2 and text:
        at = random.randrange(len(text))
        return text[:at] + text[at + random.randint(1, 4) :]
    if way == 3:
        return text * random.randint(2, 40)
    return mutated(text.encode(), random).decode("utf-8", "replace")


def _place(data: bytearray, random: Random) -> int:
    """Half of all places are in the first bytes: headers are short."""
    return random.randrange(min(len(data), 64) if random.random() < 0.5 else len(data))


def _flip(data: bytearray, random: Random, others: Sequence[bytes]) -> None:
    if data:
        data[_place(data, random)] ^= 1 << random.randrange(8)


def _set(data: bytearray, random: Random, others: Sequence[bytes]) -> None:
    if data:
        data[_place(data, random)] = random.randrange(256)


def _number(data: bytearray, random: Random, others: Sequence[bytes]) -> None:
    if data:
        width = random.choice((1, 2, 4, 8))
        number = random.choice(_NUMBERS) + random.choice((0, 0, 0, 1, -1))
        value = (number % (1 << 8 * width)).to_bytes(width, random.choice(("big", "little")))
        at = _place(data, random)
        data[at : at + width] = value[: len(data) - at]


def _put_in(data: bytearray, random: Random, others: Sequence[bytes]) -> None:
    at = random.randint(0, len(data))
    data[at:at] = random.choice(_WORDS) if random.random() < 0.3 else random.randbytes(random.randint(1, 12))


def _take_out(data: bytearray, random: Random, others: Sequence[bytes]) -> None:
    if data:
        at = random.randrange(len(data))
        del data[at : at + random.randint(1, 12)]


def _cut(data: bytearray, random: Random, others: Sequence[bytes]) -> None:
    del data[random.randint(0, len(data)) :]


def _repeat(data: bytearray, random: Random, others: Sequence[bytes]) -> None:
    if data:
        at = random.randrange(len(data))
        piece = bytes(data[at : at + random.randint(1, 200)])
        data[at:at] = piece * random.randint(1, 3)


def _splice(data: bytearray, random: Random, others: Sequence[bytes]) -> None:
    if others:
        other = random.choice(others)
        at, start = random.randint(0, len(data)), random.randint(0, len(other))
        data[at:] = other[start : start + 4096]


_MUTATIONS: list[Callable[[bytearray, Random, Sequence[bytes]], None]] = [
    _flip, _flip, _set, _set, _number, _number, _number, _put_in, _take_out, _cut, _repeat, _splice,
]  # fmt: skip
