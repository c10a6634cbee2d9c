"""Heartbeat, 0 to 4: a member is alive, and learns whether it is to join again."""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from spark_segments.kafka_protocol.call import Call
from spark_segments.kafka_protocol.coordinator import RefusedError

KEY = 12
VERSIONS = range(0, 5)


def answer(call: Call) -> dict[str, Any]:
    body = call.request.body
    instance_id = getattr(body, "group_instance_id", None)
    try:
        call.coordinator.heartbeat(body.group_id, body.generation_id, body.member_id, instance_id)
    except RefusedError as error:
        return {"error_code": error.code}
    return {"error_code": ErrorCode.none}
