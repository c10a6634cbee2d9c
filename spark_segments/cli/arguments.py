"""Parses times, durations and sizes as people write them."""

from __future__ import annotations

import datetime
import re

from spark_segments.errors import InvalidOptionError

_DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h|d|w)")
_UNIT_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 7 * 86_400_000}
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?(?:([KMGTP])(iB|B)?|B)?", re.IGNORECASE)


def timestamp_ms(text: str) -> int:
    """Milliseconds since 1970 of such a number or of an ISO time (UTC without a zone)."""
    if re.fullmatch("-?[0-9]+", text):
        return int(text)
    try:
        moment = datetime.datetime.fromisoformat(text)
    except ValueError as error:
        raise InvalidOptionError(
            "Not a time", expected="milliseconds since 1970, or an ISO time such as 2026-01-31T12:00:00Z", found=text
        ) from error
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=datetime.UTC)
    return int(moment.timestamp() * 1000)


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
