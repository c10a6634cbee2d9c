"""DescribeGroups, 0 to 6: the members of groups and what each was given."""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from spark_segments.errors import SegmentsError
from spark_segments.kafka_protocol.call import Call
from spark_segments.kafka_protocol.coordinator import DEAD, EMPTY

KEY = 15
VERSIONS = range(0, 7)

_NOT_FOUND = 6  # from this version on a group that is not there is an error


def answer(call: Call) -> dict[str, Any]:
    return {"groups": [_group(call, name) for name in call.request.body.groups]}


def _group(call: Call, name: str) -> dict[str, Any]:
    state, kind, protocol, members = call.coordinator.describe(name)
    code, message = ErrorCode.none, None
    if state in (DEAD, EMPTY):
        try:
            has_positions = not call.views.log.is_kafka and bool(call.views.log.group(name).positions())
            state = EMPTY if has_positions or state == EMPTY else DEAD
        except SegmentsError as error:
            call.warnings.append(f"group {name}: {error}")
            code = ErrorCode.coordinator_not_available
    if state == DEAD and code is ErrorCode.none and call.request.api_version >= _NOT_FOUND:
        code, message = ErrorCode.group_id_not_found, f"Group {name} is not there"
    return {
        "error_code": code,
        "error_message": message,
        "group_id": name,
        "group_state": state,
        "protocol_type": kind or ("consumer" if state == EMPTY else ""),
        "protocol_data": protocol,
        "members": [
            {
                "member_id": one.id,
                "group_instance_id": one.instance_id,
                "client_id": one.client_id,
                "client_host": one.client_host,
                "member_metadata": one.metadata(protocol),
                "member_assignment": one.assignment,
            }
            for one in members
        ],
    }
