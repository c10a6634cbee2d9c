"""OffsetFetch, 1 to 9: what groups have come to. A position in a topic that was made again since is none."""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from spark_segments.errors import SegmentsError
from spark_segments.kafka_protocol.call import Call
from spark_segments.log.positions import Position, TopicPartition

KEY = 9
VERSIONS = range(1, 10)

_MANY_GROUPS = 8  # from this version on


def answer(call: Call) -> dict[str, Any]:
    body = call.request.body
    if call.request.api_version < _MANY_GROUPS:
        return _group(call, body.group_id, body.topics)
    return {"groups": [{"group_id": one.group_id, **_group(call, one.group_id, one.topics)} for one in body.groups]}


def _group(call: Call, group_id: str, topics: Any) -> dict[str, Any]:
    try:
        known = {} if call.views.log.is_kafka else dict(call.views.log.group(group_id).positions())
    except SegmentsError as error:
        call.warnings.append(f"group {group_id}: {error}")
        return {"error_code": ErrorCode.coordinator_not_available, "topics": []}
    if topics is None:
        named: dict[str, list[int]] = {}
        for topic, partition in sorted(known):
            named.setdefault(topic, []).append(partition)
    else:
        named = {one.name: list(one.partition_indexes) for one in topics}
    return {
        "error_code": ErrorCode.none,
        "topics": [
            {"name": topic, "partitions": [_position(call, known, (topic, number)) for number in numbers]}
            for topic, numbers in named.items()
        ],
    }


def _position(call: Call, known: dict[TopicPartition, Position], where: TopicPartition) -> dict[str, Any]:
    position = known.get(where)
    if position is not None and position.topic_id is not None:
        view, _ = call.topic(where[0])
        if view is None or view.snapshot.topic_id != position.topic_id:
            position = None
    return {
        "partition_index": where[1],
        "committed_offset": -1 if position is None else position.offset,
        "committed_leader_epoch": -1 if position is None else position.leader_epoch,
        "metadata": "" if position is None else position.metadata,
        "error_code": ErrorCode.none,
    }
