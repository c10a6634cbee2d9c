"""LeaveGroup, 0 to 5: members go, and the others share what they had."""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from spark_segments.kafka_protocol.call import Call
from spark_segments.kafka_protocol.coordinator import RefusedError

KEY = 13
VERSIONS = range(0, 6)

_MANY_MEMBERS = 3  # from this version on


def answer(call: Call) -> dict[str, Any]:
    body = call.request.body
    if call.request.api_version < _MANY_MEMBERS:
        return {"error_code": _left(call, body.member_id, None)}
    return {
        "error_code": ErrorCode.none,
        "members": [
            {
                "member_id": one.member_id,
                "group_instance_id": one.group_instance_id,
                "error_code": _left(call, one.member_id, one.group_instance_id),
            }
            for one in body.members
        ],
    }


def _left(call: Call, member_id: str, instance_id: str | None) -> ErrorCode:
    try:
        call.coordinator.leave(call.request.body.group_id, member_id, instance_id)
    except RefusedError as error:
        return error.code
    return ErrorCode.none
