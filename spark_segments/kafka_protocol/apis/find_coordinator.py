"""FindCoordinator, 0 to 6: this server coordinates all groups while no other server has them, and no transactions, for
nobody produces to it.
"""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from spark_segments.kafka_protocol.call import NODE_ID, Call

KEY = 10
VERSIONS = range(0, 7)

_GROUP = 0
_MANY_KEYS = 4  # from this version on a request asks for many


def answer(call: Call) -> dict[str, Any]:
    body = call.request.body
    is_group = getattr(body, "key_type", _GROUP) == _GROUP
    if call.request.api_version < _MANY_KEYS:
        return _coordinator(call, is_group)
    return {"coordinators": [{"key": key, **_coordinator(call, is_group)} for key in body.coordinator_keys]}


def _coordinator(call: Call, is_group: bool) -> dict[str, Any]:
    if not is_group:
        message = "This server is read-only: it has no transactions to coordinate"
        code = ErrorCode.transactional_id_authorization_failed
        return {"error_code": code, "error_message": message, "node_id": -1, "host": "", "port": -1}
    if not call.coordinator.take():
        message = "Another server has the groups of this log directory, or the store refuses to say"
        code = ErrorCode.coordinator_not_available
        return {"error_code": code, "error_message": message, "node_id": -1, "host": "", "port": -1}
    host, port = call.address
    return {"error_code": ErrorCode.none, "error_message": None, "node_id": NODE_ID, "host": host, "port": port}
