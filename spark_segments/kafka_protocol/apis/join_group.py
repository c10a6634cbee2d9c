"""JoinGroup, 0 to 9: a member comes to a group, or to its next generation. The answer waits for the other members."""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from spark_segments.kafka_protocol.call import Call
from spark_segments.kafka_protocol.coordinator import RefusedError

KEY = 11
VERSIONS = range(0, 10)

_ASKS_TWICE = 4  # from this version on a new member is given its id first (KIP-394)


def answer(call: Call) -> dict[str, Any]:
    body = call.request.body
    session_seconds = body.session_timeout.total_seconds()
    rebalance = getattr(body, "rebalance_timeout", body.session_timeout).total_seconds()
    try:
        joined = call.coordinator.join(
            body.group_id,
            body.member_id,
            getattr(body, "group_instance_id", None),
            body.protocol_type,
            [(one.name, one.metadata) for one in body.protocols],
            session_seconds=session_seconds,
            rebalance_seconds=rebalance,
            client=(call.request.client_id, call.client_host),
            asks_twice=call.request.api_version >= _ASKS_TWICE,
            is_gone=call.is_gone,
        )
    except RefusedError as error:
        return {
            "error_code": error.code,
            "generation_id": -1,
            "protocol_type": None,
            "protocol_name": None if call.request.api_version >= 7 else "",
            "leader": "",
            "member_id": error.member_id or body.member_id,
            "members": [],
        }
    return {
        "error_code": ErrorCode.none,
        "generation_id": joined.generation,
        "protocol_type": joined.protocol_type,
        "protocol_name": joined.protocol,
        "leader": joined.leader,
        "member_id": joined.member_id,
        "members": [
            {"member_id": member_id, "group_instance_id": instance_id, "metadata": metadata}
            for member_id, instance_id, metadata in joined.members
        ],
    }
