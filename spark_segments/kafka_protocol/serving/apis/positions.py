"""Positions of groups, kept in the log directory."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from kio.schema.errors import ErrorCode

from spark_segments.errors import SegmentsError, UnknownOutcomeError
from spark_segments.kafka_protocol.serving.api_call import Api, Call, NotYet, distinct_partitions
from spark_segments.kafka_protocol.serving.group_members import MemberAt, RefusedError
from spark_segments.kafka_protocol.serving.messages import Each
from spark_segments.kafka_protocol.serving.stored_groups import CommitUnderWayError
from spark_segments.kafka_protocol.serving.views import ServedTopic
from spark_segments.log import PartitionState, Position
from spark_segments.quantities import wall_ms

_MANY_GROUPS = 8  # from this version of OffsetFetch on
_AGAIN_SECONDS = 0.02  # until a commit looks again whether the one before it has ended


def _offset_commit(call: Call) -> dict[str, Any] | NotYet:
    """OffsetCommit: positions of a group, kept in the log directory. One commit there for a request."""
    topics = [*distinct_partitions(call.request.body.topics, "name", "partitions", "partition_index")]
    answers = {
        (topic.name, partition.partition_index): answer
        for topic, partitions in topics
        for partition, answer in zip(partitions, _answers(call, topic.name, partitions), strict=True)
    }
    positions = {key: answer for key, answer in answers.items() if isinstance(answer, Position)}
    codes = {key: ErrorCode.none if key in positions else answer for key, answer in answers.items()}
    try:
        failure = _commit(call, positions)
    except CommitUnderWayError:
        return NotYet(time.monotonic() + _AGAIN_SECONDS)
    return {
        "topics": [
            {
                "name": topic.name,
                "partitions": [
                    {"partition_index": number, "error_code": failure or codes[topic.name, number]}
                    for number in (partition.partition_index for partition in partitions)
                ],
            }
            for topic, partitions in topics
        ]
    }


def _answers(call: Call, topic: str, partitions: Sequence[Any]) -> list[Position | ErrorCode]:
    """Of each partition its new position, or why it gets none."""
    view, code = call.topic(topic)
    if view is None:
        return [code] * len(partitions)
    if any(_is_beyond(view, partition) for partition in partitions):
        # Another server may have shown what was appended since.
        view = call.views.topic(topic, is_newest=True) or view
    return [_answer(call, view, partition) for partition in partitions]


def _answer(call: Call, view: ServedTopic, partition: Any) -> Position | ErrorCode:
    if partition.partition_index not in view.partitions:
        return ErrorCode.unknown_topic_or_partition
    if len((partition.committed_metadata or "").encode()) > call.limits.metadata_bytes:
        return ErrorCode.offset_metadata_too_large
    if partition.committed_offset < 0 or _is_beyond(view, partition):
        return ErrorCode.offset_out_of_range
    return _position(view, partition)


def _position(view: ServedTopic, partition: Any) -> Position:
    state = PartitionState.of_row(view.snapshot.topic_id, view.partitions[partition.partition_index])
    client_epoch = getattr(partition, "committed_leader_epoch", -1)
    # The client's own epoch, where this log can have it: it knows from which leader it has read.
    epoch = state.position(partition.committed_offset).leader_epoch
    if client_epoch >= 0 and state.leader_epochs.allows(client_epoch):
        epoch = client_epoch
    return Position(partition.committed_offset, state.topic_id, epoch, partition.committed_metadata or "", wall_ms())


def _is_beyond(view: ServedTopic, partition: Any) -> bool:
    row = view.partitions.get(partition.partition_index)
    return row is not None and partition.committed_offset > row.log_end_offset


def _commit(call: Call, positions: dict[tuple[str, int], Position]) -> ErrorCode | None:
    """The error that all partitions get, None where the positions were committed."""
    body = call.request.body
    member = MemberAt(body.generation_id_or_member_epoch, body.member_id, getattr(body, "group_instance_id", None))
    try:
        if call.stored_groups.are_read_only:
            return ErrorCode.group_authorization_failed
        call.coordinator.check_commit(body.group_id, member)
        group = call.group(body.group_id)
        if group is None:  # nothing is ever written there
            return ErrorCode.group_authorization_failed
        if positions:
            call.stored_groups.commit(group, positions, member, call.owner)
    except RefusedError as error:
        return error.code
    except UnknownOutcomeError as error:
        call.warnings.append(f"group {body.group_id}: {error}")
        return ErrorCode.request_timed_out
    except SegmentsError as error:
        call.warnings.append(f"group {body.group_id}: {error}")
        return ErrorCode.coordinator_not_available
    return None


def _offset_fetch(call: Call) -> dict[str, Any]:
    """OffsetFetch: what groups have come to. A position in a topic that was made again since is none."""
    body = call.request.body
    if call.request.api_version < _MANY_GROUPS:
        return _positions(call, body.group_id, body.topics)
    taken = {group.group_id: group.topics for group in body.groups}
    return {"groups": Each([*taken], lambda name: {"group_id": name, **_positions(call, name, taken[name])})}


def _positions(call: Call, group_id: str, topics: Any) -> dict[str, Any]:
    try:
        group = call.group(group_id)
        positions = {} if group is None else dict(group.positions())
    except RefusedError as error:
        return {"error_code": error.code, "topics": []}
    except SegmentsError as error:
        call.warnings.append(f"group {group_id}: {error}")
        return {"error_code": ErrorCode.coordinator_not_available, "topics": []}
    named: dict[str, list[int]] = {}
    if topics is None:
        for name, partition in sorted(positions):
            named.setdefault(name, []).append(partition)
    else:
        for topic, numbers in distinct_partitions(topics, "name", "partition_indexes"):
            named.setdefault(topic.name, []).extend(numbers)
    return {
        "error_code": ErrorCode.none,
        "topics": [
            {"name": name, "partitions": [_committed(call, positions, (name, number)) for number in numbers]}
            for name, numbers in named.items()
        ],
    }


def _committed(call: Call, positions: dict[tuple[str, int], Position], where: tuple[str, int]) -> dict[str, Any]:
    position = positions.get(where)
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
