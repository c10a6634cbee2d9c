"""Parses times, offsets and lists as people write them."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING

from spark_segments.errors import InvalidOptionError
from spark_segments.quantities import duration_ms, moment_ms

if TYPE_CHECKING:
    from spark_segments.face.topic import Topic

_DAYS_AGO = {"today": 0, "yesterday": 1}
_DAY_MS = 86_400_000


def timestamp_ms(text: str, now_ms: int | None = None) -> int:
    """Milliseconds since 1970 of a time: such a number, an ISO date or time, now, today, yesterday, tomorrow,
    `2 hours ago` or `in 3 days`.

    Days begin in UTC, and an ISO time without a zone is in UTC. `now_ms`: the time that `ago` and `in` count from, by
    default this machine's clock.
    """
    now_ms = time.time_ns() // 1_000_000 if now_ms is None else now_ms
    words = text.strip().lower()
    if words == "now":
        return now_ms
    if words in _DAYS_AGO:
        return now_ms - now_ms % _DAY_MS - _DAYS_AGO[words] * _DAY_MS
    if words == "tomorrow":
        return now_ms - now_ms % _DAY_MS + _DAY_MS
    if words.startswith("in "):
        return now_ms + _span_ms(words.removeprefix("in "))
    if words.endswith(" ago"):
        return now_ms - _span_ms(words.removesuffix(" ago"))
    try:
        return moment_ms(text)
    except InvalidOptionError as error:
        error.expected = f"{error.expected}, today, yesterday, 2 hours ago, in 3 days"
        raise


def _span_ms(words: str) -> int:
    return duration_ms(re.sub(r"\ban? ", "1 ", re.sub(", | and ", " ", words)))


def numbers(text: str) -> set[int]:
    """The numbers of a list such as 0,3."""
    try:
        return {int(number) for number in text.split(",")}
    except ValueError:
        raise InvalidOptionError(
            "The text is no list of partitions", expected="numbers and commas, such as 0,3", found=text
        ) from None


def named_offset(text: str, log_start: int, log_end: int) -> int | None:
    """The log start or the log end, by one of their names; None for any other text."""
    if text in ("earliest", "beginning"):
        return log_start
    return log_end if text in ("latest", "end") else None


def offsets_at(topic: Topic, time: str) -> dict[int, int | None]:
    """{partition: the first offset of a time or later}, None where no record is so late."""
    answers = topic.offsets_for_times(timestamp_ms(time))
    return {number: None if answer is None else answer[0] for number, answer in answers.items()}
