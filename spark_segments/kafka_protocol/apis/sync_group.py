"""SyncGroup, 0 to 5: the leader gives each member its partitions; the answer of the others waits for that."""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from spark_segments.kafka_protocol.call import Call
from spark_segments.kafka_protocol.coordinator import RefusedError

KEY = 14
VERSIONS = range(0, 6)


def answer(call: Call) -> dict[str, Any]:
    body = call.request.body
    given = {one.member_id: one.assignment for one in body.assignments}
    instance_id = getattr(body, "group_instance_id", None)
    try:
        kind, protocol, assignment = call.coordinator.sync(
            body.group_id, body.generation_id, body.member_id, instance_id, given, is_gone=call.is_gone
        )
    except RefusedError as error:
        return {"error_code": error.code, "protocol_type": None, "protocol_name": None, "assignment": b""}
    return {
        "error_code": ErrorCode.none,
        "protocol_type": kind,
        "protocol_name": protocol,
        "assignment": assignment,
    }
