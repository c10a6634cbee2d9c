"""Metadata, 0 to 13: topics, their partitions, and the one broker that leads them all."""

from __future__ import annotations

import uuid
from typing import Any

from kio.schema.errors import ErrorCode

from spark_segments.kafka_protocol.call import NODE_ID, Call
from spark_segments.kafka_protocol.views import ServedTopic

KEY = 3
VERSIONS = range(0, 14)

_NAMELESS = 12  # from this version on a topic in an answer may have no name


def answer(call: Call) -> dict[str, Any]:
    body = call.request.body
    host, port = call.address
    asked = body.topics
    if asked is None or (call.request.api_version == 0 and not asked):
        topics = [_topic(call, name) for name in call.views.names()]
        topics = [one for one in topics if one["error_code"] is not ErrorCode.unknown_topic_or_partition]
    else:
        topics = [_asked(call, one) for one in asked]
    return {
        "brokers": [{"node_id": NODE_ID, "host": host, "port": port, "rack": None}],
        "cluster_id": call.views.cluster_id,
        "controller_id": NODE_ID,
        "topics": topics,
        "error_code": ErrorCode.none,
    }


def _asked(call: Call, asked: Any) -> dict[str, Any]:
    if asked.name is not None:
        return _topic(call, asked.name)
    topic_id: uuid.UUID | None = asked.topic_id
    name = None if topic_id is None else call.views.name_of(topic_id)
    if name is None:
        return {
            "error_code": ErrorCode.unknown_topic_id,
            "name": None if call.request.api_version >= _NAMELESS else "",
            "topic_id": topic_id,
            "is_internal": False,
            "partitions": [],
        }
    return _topic(call, name)


def _topic(call: Call, name: str) -> dict[str, Any]:
    view, error_code = call.topic(name)
    return {
        "error_code": error_code,
        "name": name,
        "topic_id": None if view is None else view.topic_id,
        "is_internal": name in ("__consumer_offsets", "__transaction_state"),
        "partitions": [] if view is None else partitions(view),
    }


def partitions(view: ServedTopic) -> list[dict[str, Any]]:
    """The partitions of a topic: each has the one broker for its leader and only replica."""
    return [
        {
            "error_code": ErrorCode.none,
            "partition_index": number,
            "leader_id": NODE_ID,
            "leader_epoch": row.leader_epoch,
            "replica_nodes": [NODE_ID],
            "isr_nodes": [NODE_ID],
            "offline_replicas": [],
            "eligible_leader_replicas": None,
            "last_known_elr": None,
        }
        for number, row in sorted(view.partitions.items())
    ]
