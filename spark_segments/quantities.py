"""Durations, sizes and moments as people write them: in settings, options and arguments, by one rule."""

from __future__ import annotations

import datetime
import re
import time
from dataclasses import dataclass
from decimal import Decimal

from spark_segments.errors import InvalidOptionError

UNIT_MS = {
    name: Decimal(factor)
    for names, factor in (
        ("us", "0.001"),
        ("ms", 1),
        ("s sec secs second seconds", 1000),
        ("m min mins minute minutes", 60_000),
        ("h hour hours", 3_600_000),
        ("d day days", 86_400_000),
        ("w week weeks", 604_800_000),
    )
    for name in names.split()
}
_NUMBER = r"[0-9]{1,18}(?:\.[0-9]{1,9})?"
_PARTS = re.compile(rf"(?:{_NUMBER}\s*[a-z]+\s*)+")
_SIZE = re.compile(rf"({_NUMBER})\s*(?:([kmgtp])(i?b(?:ytes?)?)?|b(?:ytes?)?)?")
_EPOCH = datetime.datetime.fromtimestamp(0, datetime.UTC)


def duration_ms(text: str, unit: str = "ms") -> int:
    """Milliseconds of 7d, 30 s, 1h30m or 2 weeks; a number alone is in `unit`."""
    words = text.strip().lower()
    words = f"{words}{unit}" if re.fullmatch(_NUMBER, words) else words
    parts = re.findall(rf"({_NUMBER})\s*([a-z]+)", words) if _PARTS.fullmatch(words) else []
    if not parts or not all(name in UNIT_MS for _, name in parts):
        raise InvalidOptionError("Not a duration", expected="milliseconds, or such as 7d, 10m or 1h30m", found=text)
    return round(sum(Decimal(number) * UNIT_MS[name] for number, name in parts))


def span_ms(text: str) -> int:
    """`duration_ms` of a text on the command line, where a number needs its unit: every tool has another one."""
    _check_unit("A duration", text, "s", "m", "d")
    return duration_ms(text)


def volume_bytes(text: str) -> int:
    """`size_bytes` of a text on the command line, where a number needs its unit."""
    _check_unit("A size", text, "B", "MiB", "GiB")
    return size_bytes(text)


def _check_unit(what: str, text: str, *units: str) -> None:
    number = text.strip()
    if re.fullmatch(_NUMBER, number) and number.strip("0."):
        expected = ", ".join(f"{number}{unit}" for unit in units)
        raise InvalidOptionError(f"{what} needs a unit", expected=f"such as {expected}", found=text)


def size_bytes(text: str, kilobyte: int = 1000) -> int:
    """Bytes of 500GiB, 1.5TB or 64k, or of a plain number. KiB, MiB, … and K, M, … are powers of 1024; kB, MB, … are
    powers of `kilobyte`, which is 1024 to Spark.
    """
    match = _SIZE.fullmatch(text.strip().lower())
    if match is None:
        raise InvalidOptionError("Not a size", expected="bytes, or such as 500GiB or 1.5TB", found=text)
    number, prefix, suffix = match.groups()
    base = kilobyte if suffix and not suffix.startswith("i") else 1024
    factor: int = base ** ("kmgtp".index(prefix) + 1 if prefix else 0)
    return round(Decimal(number) * factor)


def moment_ms(text: str) -> int:
    """Milliseconds since 1970 of such a number, or of an ISO date or time, which is in UTC where it names no zone."""
    if re.fullmatch("-?[0-9]{1,30}", text):
        return int(text)
    try:
        moment = datetime.datetime.fromisoformat(text)
    except ValueError as error:
        raise InvalidOptionError(
            "Not a time", expected="milliseconds since 1970, or an ISO time such as 2026-01-31T12:00:00Z", found=text
        ) from error
    return since_1970_ms(moment)


def since_1970_ms(moment: datetime.datetime) -> int:
    """Milliseconds of a time, of UTC where it names no zone."""
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=datetime.UTC)
    return (moment - _EPOCH) // datetime.timedelta(milliseconds=1)  # a float's 53 bits would be a ms off at times


def plural(number: int, noun: str) -> str:
    """(2, "segment") → "2 segments"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def human_bytes(size: float) -> str:
    """1536 → "1.5 KiB"."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


class Bytes(int):
    """A number of bytes in a table: "1.5 KiB" for people, a plain number in a file."""


@dataclass(frozen=True, slots=True)
class Moment:
    """A moment by the two clocks of this machine: the one that stands still with it, and the one that may jump."""

    monotonic: float
    wall: float

    @staticmethod
    def now() -> Moment:
        return Moment(time.monotonic(), time.time())

    @property
    def seconds_ago(self) -> float:
        """How long ago it was, at the most that any of the clocks says."""
        return max(time.monotonic() - self.monotonic, abs(time.time() - self.wall))
