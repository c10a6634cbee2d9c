"""Members of groups: they join, get their partitions, say that they are alive, and leave."""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from spark_segments.errors import SegmentsError
from spark_segments.kafka_protocol.serving.api_call import Api, Call, NotYet
from spark_segments.kafka_protocol.serving.group_members import JoinRequest, MemberAt, RefusedError

_ASKS_TWICE = 4  # from this version on a new member is given its id first (KIP-394)
_MANY_MEMBERS = 3  # from this version of LeaveGroup on


def _join_group(call: Call) -> dict[str, Any] | NotYet:
    """JoinGroup: a member comes to a group, or to its next generation. The answer waits for the other members."""
    body = call.request.body
    try:
        if call.state is None:
            call.stored_groups.check_may_move(call.group(body.group_id))
            call.state = call.coordinator.join(
                body.group_id,
                JoinRequest(
                    body.member_id,
                    getattr(body, "group_instance_id", None),
                    body.protocol_type,
                    [(protocol.name, protocol.metadata) for protocol in body.protocols],
                    session_seconds=body.session_timeout.total_seconds(),
                    rebalance_seconds=getattr(body, "rebalance_timeout", body.session_timeout).total_seconds(),
                    client_id=call.request.client_id,
                    client_host=call.client_host,
                    asks_twice=call.request.api_version >= _ASKS_TWICE,
                ),
                call,
            )
        joined = call.state()
    except (RefusedError, SegmentsError) as error:
        code = ErrorCode.coordinator_not_available
        member_id = ""
        if isinstance(error, RefusedError):
            code = error.code
            member_id = error.member_id
        else:
            call.warnings.append(f"group {body.group_id}: {error}")
        return {
            "error_code": code,
            "generation_id": -1,
            "protocol_type": None,
            "protocol_name": None if call.request.api_version >= 7 else "",
            "leader": "",
            "member_id": member_id or body.member_id,
            "members": [],
        }
    if isinstance(joined, float):
        return NotYet(joined)
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


def _sync_group(call: Call) -> dict[str, Any] | NotYet:
    """SyncGroup: the leader gives each member its partitions; the answer of the others waits for that."""
    body = call.request.body
    assignments = {member.member_id: member.assignment for member in body.assignments}
    instance_id = getattr(body, "group_instance_id", None)
    try:
        if call.state is None:
            asker = MemberAt(body.generation_id, body.member_id, instance_id)
            call.state = call.coordinator.sync(body.group_id, asker, assignments, call=call)
        synced = call.state()
    except RefusedError as error:
        return {"error_code": error.code, "protocol_type": None, "protocol_name": None, "assignment": b""}
    if isinstance(synced, float):
        return NotYet(synced)
    kind, protocol, assignment = synced
    return {
        "error_code": ErrorCode.none,
        "protocol_type": kind,
        "protocol_name": protocol,
        "assignment": assignment,
    }


def _heartbeat(call: Call) -> dict[str, Any]:
    """Heartbeat: a member is alive, and learns whether it is to join again."""
    body = call.request.body
    instance_id = getattr(body, "group_instance_id", None)
    try:
        call.coordinator.heartbeat(body.group_id, MemberAt(body.generation_id, body.member_id, instance_id))
    except RefusedError as error:
        return {"error_code": error.code}
    return {"error_code": ErrorCode.none}


def _leave_group(call: Call) -> dict[str, Any]:
    """LeaveGroup: members go, and the others share what they had."""
    body = call.request.body
    if call.request.api_version < _MANY_MEMBERS:
        return {"error_code": _left(call, body.member_id, None)}
    members = dict.fromkeys((member.member_id, member.group_instance_id) for member in body.members)
    return {
        "error_code": ErrorCode.none,
        "members": [
            {
                "member_id": member_id,
                "group_instance_id": instance_id,
                "error_code": _left(call, member_id, instance_id),
            }
            for member_id, instance_id in members
        ],
    }


def _left(call: Call, member_id: str, instance_id: str | None) -> ErrorCode:
    try:
        call.coordinator.leave(call.request.body.group_id, member_id, instance_id)
    except RefusedError as error:
        return error.code
    return ErrorCode.none


APIS = (
    Api(11, range(0, 10), _join_group),
    Api(14, range(0, 6), _sync_group),
    Api(12, range(0, 5), _heartbeat),
    Api(13, range(0, 6), _leave_group),
)
