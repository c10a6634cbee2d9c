"""Parses offsets and lists as people write them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_segments.errors import InvalidOptionError

if TYPE_CHECKING:
    from spark_segments.face.topic import Topic


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
    answers = topic.offsets_for_times(time)
    return {number: None if answer is None else answer[0] for number, answer in answers.items()}
