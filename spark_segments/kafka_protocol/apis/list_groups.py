"""ListGroups, 0 to 5: groups with members here, and groups that have positions in the log directory."""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from spark_segments.errors import SegmentsError
from spark_segments.kafka_protocol.call import Call
from spark_segments.kafka_protocol.coordinator import EMPTY

KEY = 16
VERSIONS = range(0, 6)

_CLASSIC = "classic"


def answer(call: Call) -> dict[str, Any]:
    body = call.request.body
    code = ErrorCode.none
    groups = dict(call.coordinator.groups())
    try:
        groups = {**{name: ("consumer", EMPTY) for name in call.views.log.groups()}, **groups}
    except SegmentsError as error:
        call.warnings.append(f"groups: {error}")
        code = ErrorCode.coordinator_not_available
    states = {one.lower() for one in getattr(body, "states_filter", ())}
    kinds = {one.lower() for one in getattr(body, "types_filter", ())}
    return {
        "error_code": code,
        "groups": [
            {"group_id": name, "protocol_type": kind, "group_state": state, "group_type": _CLASSIC}
            for name, (kind, state) in sorted(groups.items())
            if (not states or state.lower() in states) and (not kinds or _CLASSIC in kinds)
        ],
    }
