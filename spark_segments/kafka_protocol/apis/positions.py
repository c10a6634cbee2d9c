"""Positions of groups, kept in the log directory."""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from spark_segments.errors import SegmentsError, UnknownOutcomeError
from spark_segments.kafka_protocol.call import Api, Call
from spark_segments.kafka_protocol.coordinator import RefusedError
from spark_segments.log.positions import PartitionState, Position, TopicPartition


def _offset_commit(call: Call) -> dict[str, Any]:
    """OffsetCommit: positions of a group, kept in the log directory. One commit there for a request."""
    body = call.request.body
    moved: dict[TopicPartition, Position] = {}
    codes: dict[TopicPartition, ErrorCode] = {}
    for topic in body.topics:
        for asked in topic.partitions:
            codes[topic.name, asked.partition_index] = _moved(call, topic.name, asked, moved)
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


def _moved(call: Call, topic: str, asked: Any, moved: dict[TopicPartition, Position]) -> ErrorCode:
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
    if offset > view.partitions[number].log_end_offset:  # another server may have seen what was appended since
        view = call.views.topic(topic, is_newest=True) or view
    if not 0 <= offset <= view.partitions[number].log_end_offset:
        return ErrorCode.offset_out_of_range
    state = PartitionState.of_row(view.snapshot.topic_id, view.partitions[number])
    given = getattr(asked, "committed_leader_epoch", -1)
    epoch = given if given >= 0 and state.leader_epochs.know(given) else state.position(offset).leader_epoch
    moved[topic, number] = Position(offset, state.topic_id, epoch, metadata, call.now_ms())
    return ErrorCode.none


def _commit(call: Call, moved: dict[TopicPartition, Position]) -> ErrorCode | None:
    """The error that all partitions get, None where the positions were committed."""
    body = call.request.body
    instance_id = getattr(body, "group_instance_id", None)
    member = body.generation_id_or_member_epoch, body.member_id, instance_id
    try:
        call.coordinator.check_commit(body.group_id, *member)
        group = call.group(body.group_id)
        if group is None:  # nothing is ever written there
            return ErrorCode.group_authorization_failed
        if moved:
            call.coordinator.commit(group, moved, *member)
    except RefusedError as error:
        return error.code
    except UnknownOutcomeError as error:
        call.warnings.append(f"group {body.group_id}: {error}")
        return ErrorCode.request_timed_out
    except SegmentsError as error:
        call.warnings.append(f"group {body.group_id}: {error}")
        return ErrorCode.coordinator_not_available
    return None


_MANY_GROUPS = 8  # from this version on


def _offset_fetch(call: Call) -> dict[str, Any]:
    """OffsetFetch: what groups have come to. A position in a topic that was made again since is none."""
    body = call.request.body
    if call.request.api_version < _MANY_GROUPS:
        return _positions(call, body.group_id, body.topics)
    return {"groups": [{"group_id": one.group_id, **_positions(call, one.group_id, one.topics)} for one in body.groups]}


def _positions(call: Call, group_id: str, topics: Any) -> dict[str, Any]:
    try:
        group = call.group(group_id)
        known = {} if group is None else dict(group.positions())
    except RefusedError as error:
        return {"error_code": error.code, "topics": []}
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
            {"name": topic, "partitions": [_committed(call, known, (topic, number)) for number in numbers]}
            for topic, numbers in named.items()
        ],
    }


def _committed(call: Call, known: dict[TopicPartition, Position], where: TopicPartition) -> dict[str, Any]:
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


APIS = (
    Api(8, range(2, 10), _offset_commit),
    Api(9, range(1, 10), _offset_fetch),
)
