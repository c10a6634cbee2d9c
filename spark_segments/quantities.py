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
_DAYS_AWAY = {"yesterday": -1, "today": 0, "tomorrow": 1}
_DAYS = ("thursday", "friday", "saturday", "sunday", "monday", "tuesday", "wednesday")  # 1970 began on a Thursday
_DAY_MS = 86_400_000
_LAST_MS = 253_402_300_799_999  # the end of the year 9999

Time = int | str | datetime.datetime
"""Milliseconds since 1970, what `moment_ms` reads, or a datetime, which is in UTC where it names no zone."""
Duration = int | str | datetime.timedelta
"""Milliseconds, a text such as 7d or 1h30m, or a timedelta."""


def duration_ms(text: str, unit: str = "ms") -> int:
    """Milliseconds of 7d, 30 s, 1h30m or 2 weeks; a number alone is in `unit`."""
    words = text.strip().lower()
    words = f"{words}{unit}" if re.fullmatch(_NUMBER, words) else words
    parts = re.findall(rf"({_NUMBER})\s*([a-z]+)", words) if _PARTS.fullmatch(words) else []
    if not parts or not all(name in UNIT_MS for _, name in parts):
        raise InvalidOptionError("Not a duration", expected="milliseconds, or such as 7d, 10m or 1h30m", found=text)
    return round(sum(Decimal(number) * UNIT_MS[name] for number, name in parts))


def span_ms(duration: Duration) -> int:
    """Milliseconds of a duration. In a text a number needs its unit: every tool has another one."""
    if isinstance(duration, datetime.timedelta):
        return duration // datetime.timedelta(milliseconds=1)
    if not isinstance(duration, str):
        return duration
    _check_unit("A duration", duration, "s", "m", "d")
    return duration_ms(duration)


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


def wall_ms() -> int:
    """Milliseconds since 1970 by this machine's clock."""
    return time.time_ns() // 1_000_000


def iso_ms(text: str) -> int:
    """Milliseconds since 1970 of such a number, or of an ISO date or time, which is in UTC where it names no zone."""
    if re.fullmatch("-?[0-9]{1,30}", text):
        return int(text)
    try:
        return moment_ms(datetime.datetime.fromisoformat(text))
    except ValueError as error:
        raise InvalidOptionError(
            "Not a time", expected="milliseconds since 1970, or an ISO time such as 2026-01-31T12:00:00Z", found=text
        ) from error


def moment_ms(moment: Time, now_ms: int | None = None) -> int:
    """Milliseconds since 1970 of a time: a number or a text of such milliseconds, a datetime, an ISO date or time, now,
    today, yesterday, tomorrow, friday (the next one after today), `last friday`, `2 hours ago` or `in 3 days`.

    Days begin at midnight in UTC, and a time without a zone is in UTC. `now_ms`: the time that is now, by default by
    this machine's clock.
    """
    if isinstance(moment, datetime.datetime):
        zoned = moment if moment.tzinfo is not None else moment.replace(tzinfo=datetime.UTC)
        return (zoned - _EPOCH) // datetime.timedelta(milliseconds=1)  # a float's 53 bits would be a ms off at times
    if not isinstance(moment, str):
        return moment
    now_ms = wall_ms() if now_ms is None else now_ms
    words = moment.strip().lower()
    if words == "now":
        return now_ms
    if words in _DAYS_AWAY:
        return now_ms - now_ms % _DAY_MS + _DAYS_AWAY[words] * _DAY_MS
    day = words.removeprefix("last ")
    if day in _DAYS:
        first = now_ms // _DAY_MS + (1 if day == words else -7)
        return (first + (_DAYS.index(day) - first) % 7) * _DAY_MS
    if words.startswith("in "):
        return now_ms + _said_ms(words.removeprefix("in "))
    if words.endswith(" ago"):
        return now_ms - _said_ms(words.removesuffix(" ago"))
    try:
        return iso_ms(moment)
    except InvalidOptionError as error:
        error.expected = f"{error.expected}, today, yesterday, friday, 2 hours ago, in 3 days"
        raise


def _said_ms(words: str) -> int:
    return duration_ms(re.sub(r"\ban? ", "1 ", re.sub(", | and ", " ", words)))


def moment(at_ms: int) -> str:
    """A time of ms since 1970, to the second: "2026-01-31 12:00:00Z"."""
    return "after the year 9999" if at_ms > _LAST_MS else f"{utc(at_ms):%Y-%m-%d %H:%M:%S}Z"


def iso(at_ms: int) -> str:
    """An ISO time, to the millisecond; "" for a time that ISO cannot hold."""
    return "" if at_ms > _LAST_MS else f"{utc(at_ms).isoformat(timespec='milliseconds')}Z"


def utc(at_ms: int) -> datetime.datetime:
    """A time of ms since 1970, without its zone."""
    return datetime.datetime(1970, 1, 1) + datetime.timedelta(milliseconds=at_ms)


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

    @classmethod
    def now(cls) -> Moment:
        return cls(time.monotonic(), time.time())

    @property
    def seconds_ago(self) -> float:
        """How long ago it was, at the most that any of the clocks says."""
        return max(time.monotonic() - self.monotonic, abs(time.time() - self.wall))
