"""The offsets of a stream, as Spark keeps them in its checkpoint: a position in each partition, as canonical JSON.

Spark compares offsets as text, so keys are sorted. Beside the offsets of each topic, as in the Kafka connector, the key
"/", which is no legal topic name, holds the ids and epochs that distinguish a topic from another of the same name:

    {"/": {"topics": {"orders": {"id": "…", "leader_epochs": {"1": 4}}}, "version": 1}, "orders": {"0": 23, "1": 8}}

A missing leader epoch is 0. Offsets without the key "/", as the connector writes them, name topics alone.
The end of a query's first batch also says where the batch begins ("begin" within "/"), since Spark does not keep that.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from spark_segments.errors import InvalidOptionError
from spark_segments.log.positions import Position, TopicPartition

ABOUT = "/"
VERSION = 1


Positions = Mapping[TopicPartition, Position]


def to_json(positions: Positions, begin: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Positions as Spark keeps them. Equal positions give equal text. `begin`: offsets where the first batch begins."""
    offsets: dict[str, dict[str, int]] = {}
    topics: dict[str, dict[str, Any]] = {}
    for (topic, partition), position in sorted(positions.items(), key=lambda item: (item[0][0], str(item[0][1]))):
        offsets.setdefault(topic, {})[str(partition)] = position.offset
        if position.topic_id is None:
            continue
        entry = topics.setdefault(topic, {"id": position.topic_id})
        assert entry["id"] == position.topic_id, f"{topic} has two ids"
        if position.leader_epoch:
            entry.setdefault("leader_epochs", {})[str(partition)] = position.leader_epoch
    # "-" and "." sort before "/", so that the whole is sorted again
    about = {} if begin is None else {"begin": dict(begin)}
    return dict(sorted([(ABOUT, about | {"topics": topics, "version": VERSION}), *offsets.items()]))


def begin_of(end: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Where the batch with this end begins, if it is a query's first batch and says so."""
    begin = end.get(ABOUT, {}).get("begin")
    return begin if isinstance(begin, Mapping) else None


def from_json(offsets: Mapping[str, Any]) -> dict[TopicPartition, Position]:
    """The inverse of `to_json`. Raises InvalidOptionError for a newer version, or what are no offsets."""
    try:
        about = offsets.get(ABOUT, {"version": VERSION})
        version = about["version"]
        if version > VERSION:
            raise InvalidOptionError(
                "The checkpoint of this stream was written by a newer version of this package",
                expected=f"offsets of at most version {VERSION}",
                found=f"version {version}",
                hint="Use a newer spark-segments",
            )
        topics = about.get("topics", {})
        positions = {}
        for topic, partitions in offsets.items():
            if topic == ABOUT:
                continue
            entry = topics.get(topic, {})
            epochs = entry.get("leader_epochs", {})
            for partition, offset in partitions.items():
                position = Position(int(offset), entry.get("id"), epochs.get(partition, 0))
                positions[topic, int(partition)] = position
        return positions
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        if isinstance(error, InvalidOptionError):
            raise
        raise InvalidOptionError(
            "The offsets in the checkpoint of this stream cannot be read",
            expected='JSON such as {"orders":{"0":23}}',
            found=str(offsets)[:200],
            hint="Is the checkpoint that of another source? Give each query a checkpoint of its own",
        ) from error
