"""Parses times, durations and sizes as people write them."""

from __future__ import annotations

import datetime
import re
import time

from spark_segments.errors import InvalidOptionError

_EPOCH = datetime.datetime.fromtimestamp(0, datetime.UTC)
_DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h|d|w)")
_UNIT_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 7 * 86_400_000}
_DAYS_AGO = {"today": 0, "yesterday": 1}
_AGO_PART = re.compile(r"([0-9]+|an?) (seconds?|minutes?|hours?|days?|weeks?)")
_AGO = re.compile(rf"({_AGO_PART.pattern}(?:(?:, | and | ){_AGO_PART.pattern})*) ago")
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?(?:([KMGTP])(iB|B)?|B)?", re.IGNORECASE)


def timestamp_ms(text: str, now_ms: int | None = None) -> int:
    """Milliseconds since 1970 of a time: such a number, an ISO date or time, now, today, yesterday, or `2 hours ago`.

    Days begin in UTC, and an ISO time without a zone is in UTC. `now_ms`: the time that `ago` counts from, by default
    this machine's clock.
    """
    if re.fullmatch("-?[0-9]+", text):
        return int(text)
    now_ms = time.time_ns() // 1_000_000 if now_ms is None else now_ms
    words = text.strip().lower()
    if words == "now":
        return now_ms
    if words in _DAYS_AGO:
        return now_ms - now_ms % _UNIT_MS["d"] - _DAYS_AGO[words] * _UNIT_MS["d"]
    if (ago := _AGO.fullmatch(words)) is not None:
        return now_ms - sum(
            _UNIT_MS[name[0]] * (1 if number in ("a", "an") else int(number))
            for number, name in _AGO_PART.findall(ago[1])
        )
    if words.endswith(" ago"):
        return now_ms - duration_ms(words.removesuffix(" ago"))
    try:
        moment = datetime.datetime.fromisoformat(text)
    except ValueError as error:
        raise InvalidOptionError(
            "Not a time",
            expected="milliseconds since 1970, an ISO time such as 2026-01-31T12:00:00Z, today, yesterday, 2 hours ago",
            found=text,
        ) from error
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=datetime.UTC)
    return (moment - _EPOCH) // datetime.timedelta(milliseconds=1)  # a float's 53 bits would be a ms off at times


def duration_ms(text: str) -> int:
    """Milliseconds of 7d, 10m, 1h30m: numbers with the units ms, s, m, h, d, w, or of a plain number of ms."""
    if re.fullmatch("[0-9]+", text):
        return int(text)
    parts = _DURATION.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise InvalidOptionError("Not a duration", expected="milliseconds, or such as 7d, 10m or 1h30m", found=text)
    return round(sum(float(number) * _UNIT_MS[unit] for number, unit in parts))


def size_bytes(text: str) -> int:
    """Bytes of 500GiB or 1.5TB, or of a plain number. KiB, MiB, … and K, M, … are powers of 1024; kB, MB, … of 1000."""
    match = _SIZE.fullmatch(text)
    if match is None:
        raise InvalidOptionError("Not a size", expected="bytes, or such as 500GiB or 1.5TB", found=text)
    number, prefix, suffix = match.groups()
    base = 1000 if (suffix or "").lower() == "b" else 1024
    size: int = round(float(number) * base ** ("KMGTP".index(prefix.upper()) + 1 if prefix else 0))
    return size


def numbers(text: str) -> set[int]:
    """The numbers of a list such as 0,3."""
    try:
        return {int(number) for number in text.split(",")}
    except ValueError:
        raise InvalidOptionError(
            "The text is no list of partitions", expected="numbers and commas, such as 0,3", found=text
        ) from None
