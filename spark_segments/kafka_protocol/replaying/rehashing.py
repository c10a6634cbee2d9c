"""Positions of a replay whose records go to other partitions there, by their keys.

A partition here has its place in the metadata of a partition there: that of its number modulo their number.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import StrEnum
from typing import Any

from spark_segments.errors import InvalidOptionError
from spark_segments.log import Position


class Partitions(StrEnum):
    """Which partition of the cluster's topic a record goes to."""

    KEEP = "keep"
    REHASH = "rehash"


REHASHED = "rehash"
"""The word of the metadata. Before it are the topic's id and how many partitions there are; places follow."""

_LONGEST_PLACE = len(" 99999:9223372036854775807:2147483647")
_LONGEST_HEAD = len(f"{'A' * 22} {REHASHED} 99999")


def rehashed_positions(
    target: str, count: int, places_here: Mapping[int, Position], moved: Collection[int]
) -> dict[tuple[str, int], tuple[int, str]]:
    """{(topic there, partition there): (an offset that rises, metadata)}: the places of all partitions here that share
    one there with one that `moved`.
    """
    positions = {}
    for partition in sorted({number % count for number in moved}):
        here = {number: position for number, position in sorted(places_here.items()) if number % count == partition}
        [topic_id] = {position.topic_id for position in here.values()}
        places = [f"{number}:{position.offset}:{position.leader_epoch}" for number, position in here.items()]
        offset = sum(position.offset for position in here.values())
        positions[target, partition] = offset, " ".join([str(topic_id), REHASHED, str(count), *places])
    return positions


def rehashed_places(target: str, count: int, sent: Mapping[Any, Any]) -> dict[int, tuple[int, list[str]]]:
    """{partition: (next offset to be sent, [topic id, its epoch])} that positions there say. Raises InvalidOptionError
    where they are of a replay that kept partitions, or of another number of partitions.
    """
    places: dict[int, tuple[int, list[str]]] = {}
    for position in (sent[place] for place in sent if place[0] == target):
        words = str(position.metadata or "").split(" ")
        if len(words) < 3 or words[1] != REHASHED:
            raise InvalidOptionError(
                f"The positions in {target} are not of a replay by keys",
                expected="metadata that this replay has written",
                found=repr(position.metadata or ""),
                hint="It was begun with --partitions keep, or the cluster keeps no metadata of positions. "
                "Take another --name and --rename",
            )
        topic_id, _, count_before, *rest = words
        if int(count_before) != count:
            raise InvalidOptionError(
                f"Topic {target} has another number of partitions: a key would go elsewhere than before",
                expected=f"{count_before} partitions",
                found=count,
                hint="Replay into a new topic: --name and --rename",
            )
        for number, place, epoch in (word.split(":") for word in rest):
            places[int(number)] = int(place), [topic_id, epoch]
    return places


def other_way(target: str) -> InvalidOptionError:
    """The error of a replay that keeps partitions, where one by keys was begun."""
    return InvalidOptionError(
        f"The positions in {target} are of a replay by keys",
        expected="--partitions rehash",
        found="--partitions keep",
        hint="Go on with --partitions rehash, or take another --name and --rename",
    )


def largest_metadata(partitions: Collection[int], count: int) -> int:
    """The bytes that the metadata of a partition there may come to."""
    most = max(sum(number % count == partition for number in partitions) for partition in range(count))
    return _LONGEST_HEAD + most * _LONGEST_PLACE
