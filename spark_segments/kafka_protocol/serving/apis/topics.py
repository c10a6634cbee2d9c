"""Topics, their partitions, and the one broker that leads them all and has them in one directory."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from functools import partial
from typing import Any

from kio.schema.errors import ErrorCode

from spark_segments.kafka_protocol.serving.api_call import NODE_ID, Api, Call, distinct_partitions
from spark_segments.kafka_protocol.serving.messages import Each
from spark_segments.kafka_protocol.serving.views import ServedTopic

_NAMELESS = 12  # from this version on a topic in an answer may have no name
_INTERNAL = ("__consumer_offsets", "__transaction_state")
_MOST_PARTITIONS = 2000  # of an answer to DescribeTopicPartitions


def _metadata(call: Call) -> dict[str, Any]:
    """Metadata: topics, their partitions, and the one broker that leads them all."""
    body = call.request.body
    host, port = call.address
    requested = body.topics
    if requested is None or (call.request.api_version == 0 and not requested):
        views = ((name, *call.topic(name)) for name in call.views.names())
        named = [view for view in views if view[2] is not ErrorCode.unknown_topic_or_partition]
        topics = Each(named, lambda view: _topic(*view))
    else:
        taken = {(topic.name, getattr(topic, "topic_id", None)): topic for topic in requested}
        topics = Each([*taken.values()], partial(_requested, call))
    return {
        "brokers": [{"node_id": NODE_ID, "host": host, "port": port, "rack": None}],
        "cluster_id": call.views.cluster_id,
        "controller_id": NODE_ID,
        "topics": topics,
        "error_code": ErrorCode.none,
    }


def _requested(call: Call, topic: Any) -> dict[str, Any]:
    topic_id: uuid.UUID | None = getattr(topic, "topic_id", None)
    if topic_id is None and topic.name is not None:
        return _topic(topic.name, *call.topic(topic.name))
    # An id goes before a name, which Java's client leaves empty then.
    name = call.name_of(topic_id)
    if name is None:
        return {
            "error_code": ErrorCode.unknown_topic_id,
            "name": None if call.request.api_version >= _NAMELESS else "",
            "topic_id": topic_id,
            "is_internal": False,
            "partitions": [],
        }
    return _topic(name, *call.topic(name))


def _topic(name: str, view: ServedTopic | None, error_code: ErrorCode) -> dict[str, Any]:
    return {
        "error_code": error_code,
        "name": name,
        "topic_id": None if view is None else view.topic_id,
        "is_internal": name in _INTERNAL,
        "partitions": [] if view is None else _partitions(view),
    }


def _partitions(view: ServedTopic) -> list[dict[str, Any]]:
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
            "eligible_leader_replicas": [],
            "last_known_elr": [],
        }
        for number, row in sorted(view.partitions.items())
    ]


def _describe_topic_partitions(call: Call) -> dict[str, Any]:
    """DescribeTopicPartitions: topics by name, with a bound on the partitions of an answer (KIP-966)."""
    body = call.request.body
    names = sorted({topic.name for topic in body.topics}) if body.topics else list(call.views.names())
    left = max(1, min(body.response_partition_limit, _MOST_PARTITIONS))
    begin = ("", 0) if body.cursor is None else (body.cursor.topic_name, max(body.cursor.partition_index, 0))
    topics: list[dict[str, Any]] = []
    following: dict[str, Any] | None = None
    for name in names:
        if name < begin[0]:
            continue
        if left <= 0:
            following = {"topic_name": name, "partition_index": 0}
            break
        topic = _topic(name, *call.topic(name))
        existing = topic["partitions"]
        first = begin[1] if name == begin[0] else 0
        shown = [partition for partition in existing if partition["partition_index"] >= first][:left]
        left -= len(shown)
        topics.append(topic | {"partitions": shown})
        if shown and shown[-1]["partition_index"] < existing[-1]["partition_index"]:
            following = {"topic_name": name, "partition_index": shown[-1]["partition_index"] + 1}
            break
    return {"topics": topics, "next_cursor": following}


def _describe_cluster(call: Call) -> dict[str, Any]:
    """DescribeCluster: the one broker."""
    host, port = call.address
    if getattr(call.request.body, "endpoint_type", 1) != 1:
        return {
            "error_code": ErrorCode.unsupported_endpoint_type,
            "error_message": "This server has no controller endpoint",
            "cluster_id": "",
            "brokers": [],
        }
    return {
        "error_code": ErrorCode.none,
        "error_message": None,
        "cluster_id": call.views.cluster_id,
        "controller_id": NODE_ID,
        "brokers": [{"broker_id": NODE_ID, "host": host, "port": port, "rack": None, "is_fenced": False}],
    }


def _describe_log_dirs(call: Call) -> dict[str, Any]:
    """DescribeLogDirs: the log directory, with the bytes of each partition's live segments."""
    topics = call.request.body.topics
    distinct = None if topics is None else distinct_partitions(topics, "topic", "partitions")
    numbers = None if distinct is None else {topic.topic: partitions for topic, partitions in distinct}
    names = call.views.names() if numbers is None else numbers
    views = [view for view, _ in map(call.topic, names) if view is not None]
    return {
        "error_code": ErrorCode.none,
        "results": [
            {
                "error_code": ErrorCode.none,
                "log_dir": call.views.log.uri,
                "topics": Each(views, lambda view: _sizes(view, None if numbers is None else numbers[view.name])),
                "total_bytes": -1,
                "usable_bytes": -1,
                "is_cordoned": False,
            }
        ],
    }


def _sizes(view: ServedTopic, numbers: Sequence[int] | None) -> dict[str, Any]:
    log_bytes = dict.fromkeys(sorted(view.partitions), 0)
    live = view.snapshot.live
    for partition, size in zip(live.column("partition").to_pylist(), live.column("log_bytes").to_pylist(), strict=True):
        log_bytes[partition] += size
    return {
        "name": view.name,
        "partitions": [
            {"partition_index": number, "partition_size": size, "offset_lag": 0, "is_future_key": False}
            for number, size in log_bytes.items()
            if numbers is None or number in numbers
        ],
    }


APIS = (
    Api(3, range(0, 14), _metadata),
    Api(35, range(1, 6), _describe_log_dirs),
    Api(75, range(0, 1), _describe_topic_partitions),
    Api(60, range(0, 3), _describe_cluster),
)
