"""Requests of each API about a topic, and the fields of an answer that are null."""

from __future__ import annotations

import base64
import dataclasses
import datetime
import uuid
from collections.abc import Iterator, Mapping
from typing import Any

from spark_segments import LogDir

SECOND = datetime.timedelta(seconds=1)
NAMES = ("topic", "name", "resource_name", "topics", "groups", "group_id", "key", "coordinator_keys")
FACTS: Mapping[str, Any] = {
    "resource_type": 2,
    "configuration_keys": None,
    "max_bytes": 1 << 20,
    "partition_max_bytes": 1 << 20,
    "response_partition_limit": 1,
    "endpoint_type": 1,
    "cursor": None,
    "acks": 1,
    "session_timeout": 10 * SECOND,
    "rebalance_timeout": SECOND,
    "protocol_type": "consumer",
    "session_epoch": -1,
    "replica_id": -1,
    "current_leader_epoch": -1,
    "last_fetched_epoch": -1,
    "timestamp": -1,
}


def nulls(message: Any, path: str = "") -> Iterator[str]:
    """The fields of an answer that are null. kio has none, too, for an id of zeros and for a time of -1."""
    for field in dataclasses.fields(message):
        value, name = getattr(message, field.name), f"{path}{field.name}"
        if value is None:
            yield name
        for nested in value if isinstance(value, tuple) else (value,):
            if dataclasses.is_dataclass(nested):
                yield from nulls(nested, f"{name}.")


def values_of(log: LogDir, name: str, isolation_level: int) -> Mapping[str, Any]:
    """What a request asks for about a topic, or about one that is not there."""
    topic_id = uuid.UUID(int=5)
    if name in log.topics():
        topic_id = uuid.UUID(bytes=base64.urlsafe_b64decode(f"{log.topic(name).snapshot.topic_id}=="))
    return {**FACTS, **dict.fromkeys(NAMES, name), "topic_id": topic_id, "isolation_level": isolation_level}
