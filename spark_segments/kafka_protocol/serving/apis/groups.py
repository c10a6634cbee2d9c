"""Groups: who coordinates them, which there are, and their members."""

from __future__ import annotations

from functools import partial
from typing import Any

from kio.schema.errors import ErrorCode

from spark_segments.errors import SegmentsError
from spark_segments.kafka_protocol.serving.api_call import NODE_ID, Api, Call
from spark_segments.kafka_protocol.serving.group_members import DEAD, EMPTY, Member, RefusedError
from spark_segments.kafka_protocol.serving.messages import Each

_GROUP = 0
_MANY_KEYS = 4  # from this version on a request of FindCoordinator asks for many
_NOT_FOUND = 6  # from this version of DescribeGroups on a group that is not there is an error
_CLASSIC = "classic"


def _find_coordinator(call: Call) -> dict[str, Any]:
    """FindCoordinator: this server coordinates all groups while no other server has them, and no transactions, for
    nobody produces to it.
    """
    body = call.request.body
    is_group = getattr(body, "key_type", _GROUP) == _GROUP
    coordinator = _coordinator(call, is_group)
    if call.request.api_version < _MANY_KEYS:
        return coordinator
    return {"coordinators": [{"key": key, **coordinator} for key in dict.fromkeys(body.coordinator_keys)]}


def _coordinator(call: Call, is_group: bool) -> dict[str, Any]:
    if not is_group:
        message = "This server is read-only: it has no transactions to coordinate"
        code = ErrorCode.transactional_id_authorization_failed
        return {"error_code": code, "error_message": message, "node_id": -1, "host": "", "port": -1}
    if not call.stored_groups.are_read_only and not call.coordinator.take():
        message = "Another server has the groups of this log directory, or the store refuses to say"
        code = ErrorCode.coordinator_not_available
        return {"error_code": code, "error_message": message, "node_id": -1, "host": "", "port": -1}
    host, port = call.address
    return {"error_code": ErrorCode.none, "error_message": "", "node_id": NODE_ID, "host": host, "port": port}


def _list_groups(call: Call) -> dict[str, Any]:
    """ListGroups: groups with members here, and groups that have positions in the log directory."""
    body = call.request.body
    code = ErrorCode.none
    groups = dict(call.coordinator.groups())
    try:
        groups = {**{name: ("consumer", EMPTY) for name in call.views.groups()}, **groups}
    except SegmentsError as error:
        call.warnings.append(f"groups: {error}")
        code = ErrorCode.coordinator_not_available
    states = {state.lower() for state in getattr(body, "states_filter", ())}
    kinds = {kind.lower() for kind in getattr(body, "types_filter", ())}
    return {
        "error_code": code,
        "groups": [
            {"group_id": name, "protocol_type": kind, "group_state": state, "group_type": _CLASSIC}
            for name, (kind, state) in sorted(groups.items())
            if (not states or state.lower() in states) and (not kinds or _CLASSIC in kinds)
        ],
    }


def _describe_groups(call: Call) -> dict[str, Any]:
    """DescribeGroups: the members of groups and what each was given."""
    return {"groups": Each([*dict.fromkeys(call.request.body.groups)], partial(_described, call))}


def _described(call: Call, name: str) -> dict[str, Any]:
    state, kind, protocol, members = call.coordinator.describe(name)
    code = ErrorCode.none
    if state in (DEAD, EMPTY):
        state, code = _stored_state(call, name, state)
    is_not_found = state == DEAD and code is ErrorCode.none and call.request.api_version >= _NOT_FOUND
    return {
        "error_code": ErrorCode.group_id_not_found if is_not_found else code,
        "error_message": f"Group {name} is not there" if is_not_found else None,
        "group_id": name,
        "group_state": state,
        "protocol_type": kind or ("consumer" if state == EMPTY else ""),
        "protocol_data": protocol,
        "members": [_member_fields(member, protocol) for member in members],
    }


def _stored_state(call: Call, name: str, state: str) -> tuple[str, ErrorCode]:
    """(the state of a group without members here, why it cannot be read): a group with positions is empty, not dead."""
    try:
        group = call.group(name)
        has_positions = group is not None and bool(group.positions())
    except RefusedError as error:
        return state, error.code
    except SegmentsError as error:
        call.warnings.append(f"group {name}: {error}")
        return state, ErrorCode.coordinator_not_available
    return EMPTY if has_positions or state == EMPTY else DEAD, ErrorCode.none


def _member_fields(member: Member, protocol: str) -> dict[str, Any]:
    return {
        "member_id": member.id,
        "group_instance_id": member.instance_id,
        "client_id": member.client_id,
        "client_host": member.client_host,
        "member_metadata": member.metadata(protocol),
        "member_assignment": member.assignment,
    }


APIS = (
    Api(10, range(0, 7), _find_coordinator),
    Api(16, range(0, 6), _list_groups),
    Api(15, range(0, 7), _describe_groups),
)
