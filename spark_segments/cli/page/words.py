"""Numbers as people read them: sizes, durations, distances in time."""

from __future__ import annotations

from spark_segments.quantities import moment

UNITS = (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1000), ("ms", 1))


def count(number: int) -> str:
    """1234567 → "1,234,567"."""
    return f"{number:,}"


def ratio(value: float) -> str:
    """Two digits; a value close to 0 or 1 is never shown as 0 or 1."""
    if 0 < value < 0.005:
        return "< 0.01"
    return "> 0.99" if 0.995 <= value < 1 else f"{value:.2f}"


def duration(length_ms: int) -> str:
    """Milliseconds in their two largest units, or in the largest alone from seconds on: 97200000 → "1 d 3 h"."""
    length_ms = abs(length_ms)
    for place, (name, unit_ms) in enumerate(UNITS):
        if length_ms >= unit_ms:
            number, rest = divmod(length_ms, unit_ms)
            if name in ("s", "ms"):
                return f"{number:,} {name}"
            next_name, next_ms = UNITS[place + 1]
            return f"{number:,} {name} {rest // next_ms} {next_name}" if rest // next_ms else f"{number:,} {name}"
    return "0 ms"


def relative(at_ms: int, now_ms: int) -> str:
    """The distance of a time from now: "in 2 h", "3 d ago"."""
    if at_ms == now_ms:
        return "now"
    far = duration(at_ms - now_ms)
    return f"in {far}" if at_ms > now_ms else f"{far} ago"


def when(at_ms: int, now_ms: int) -> str:
    """The time and its distance from now: "2026-01-31 12:00:00Z (in 2 h)"."""
    return f"{moment(at_ms)} ({relative(at_ms, now_ms)})"
