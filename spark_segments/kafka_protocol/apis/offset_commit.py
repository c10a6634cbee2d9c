"""OffsetCommit, 2 to 9: positions of a group, kept in the log directory. One commit there for a request."""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from spark_segments.errors import SegmentsError, UnknownOutcomeError
from spark_segments.kafka_protocol.call import Call
from spark_segments.kafka_protocol.coordinator import RefusedError
from spark_segments.log.positions import PartitionState, Position, TopicPartition

KEY = 8
VERSIONS = range(2, 10)


def answer(call: Call) -> dict[str, Any]:
    body = call.request.body
    moved: dict[TopicPartition, Position] = {}
    codes: dict[TopicPartition, ErrorCode] = {}
    for topic in body.topics:
        for asked in topic.partitions:
            codes[topic.name, asked.partition_index] = _position(call, topic.name, asked, moved)
    failure = _commit(call, moved)
    return {
        "topics": [
            {
                "name": topic.name,
                "partitions": [
                    {
                        "partition_index": asked.partition_index,
                        "error_code": failure or codes[topic.name, asked.partition_index],
                    }
                    for asked in topic.partitions
                ],
            }
            for topic in body.topics
        ]
    }


def _position(call: Call, topic: str, asked: Any, moved: dict[TopicPartition, Position]) -> ErrorCode:
    """Adds the position of a partition to `moved`, or says why there is none."""
    view, code = call.topic(topic)
    number, offset = asked.partition_index, asked.committed_offset
    metadata = asked.committed_metadata or ""
    if view is None:
        return code
    if number not in view.partitions:
        return ErrorCode.unknown_topic_or_partition
    if len(metadata.encode()) > call.limits.metadata_bytes:
        return ErrorCode.offset_metadata_too_large
    if offset < 0:
        return ErrorCode.offset_out_of_range
    state = PartitionState.of_row(view.snapshot.topic_id, view.partitions[number])
    given = getattr(asked, "committed_leader_epoch", -1)
    epoch = given if given >= 0 else state.position(offset).leader_epoch
    moved[topic, number] = Position(offset, state.topic_id, epoch, metadata, call.now_ms())
    return ErrorCode.none


def _commit(call: Call, moved: dict[TopicPartition, Position]) -> ErrorCode | None:
    """The error that all partitions get, None where the positions were committed."""
    body = call.request.body
    instance_id = getattr(body, "group_instance_id", None)
    try:
        call.coordinator.check_commit(body.group_id, body.generation_id_or_member_epoch, body.member_id, instance_id)
    except RefusedError as error:
        return error.code
    if not moved:
        return None
    if call.views.log.is_kafka:  # nothing is ever written there
        return ErrorCode.group_authorization_failed
    try:
        call.views.log.group(body.group_id).update(lambda rows: rows | moved)
    except UnknownOutcomeError as error:
        call.warnings.append(f"group {body.group_id}: {error}")
        return ErrorCode.request_timed_out
    except SegmentsError as error:
        call.warnings.append(f"group {body.group_id}: {error}")
        return ErrorCode.coordinator_not_available
    return None
