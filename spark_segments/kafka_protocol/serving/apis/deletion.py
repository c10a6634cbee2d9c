"""Deletes groups, and positions of groups: those that clients may move, while no member reads by them."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from kio.schema.errors import ErrorCode

from spark_segments.errors import SegmentsError
from spark_segments.kafka_protocol.serving.api_call import Api, Call, distinct_partitions
from spark_segments.kafka_protocol.serving.group_members import RefusedError

_DELETE_GROUPS, _OFFSET_DELETE = 42, 47


def _delete_groups(call: Call) -> dict[str, Any]:
    """DeleteGroups: all positions of groups without members."""
    names = dict.fromkeys(call.request.body.groups_names)
    return {"results": [{"group_id": name, "error_code": _deleted(call, name, None)} for name in names]}


def _offset_delete(call: Call) -> dict[str, Any]:
    """OffsetDelete: some positions of a group. A group with members counts as one that has subscribed to each topic:
    Kafka looks at the subscriptions, and lets the others go.
    """
    body = call.request.body
    topics = [*distinct_partitions(body.topics, "name", "partitions", "partition_index")]
    chosen = {(topic.name, one.partition_index) for topic, partitions in topics for one in partitions}
    code = _deleted(call, body.group_id, chosen)
    partition_code = ErrorCode.none
    if code is ErrorCode.non_empty_group:
        code, partition_code = ErrorCode.none, ErrorCode.group_subscribed_to_topic
    if code is not ErrorCode.none:
        return {"error_code": code, "topics": []}
    return {
        "error_code": code,
        "topics": [
            {
                "name": topic.name,
                "partitions": [
                    {"partition_index": one.partition_index, "error_code": partition_code} for one in partitions
                ],
            }
            for topic, partitions in topics
        ],
    }


def _deleted(call: Call, name: str, chosen: Collection[tuple[str, int]] | None) -> ErrorCode:
    """Deletes the chosen positions of a group, None: all of them. Returns why nothing was deleted, or none."""
    try:
        group = call.group(name)
        if group is None:  # a directory of Kafka's, where nothing is written
            return ErrorCode.group_authorization_failed
        call.stored_groups.delete(group, chosen)
        call.views.look_for_groups()
    except RefusedError as error:
        return error.code
    except SegmentsError as error:
        call.warnings.append(f"group {name}: {error}")
        return ErrorCode.coordinator_not_available
    return ErrorCode.none


APIS = (
    Api(_DELETE_GROUPS, range(0, 3), _delete_groups),
    Api(_OFFSET_DELETE, range(0, 1), _offset_delete),
)
