"""SaslAuthenticate, 0 to 2: the steps of a mechanism. A login that fails ends the connection."""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from spark_segments.kafka_protocol.call import Call
from spark_segments.kafka_protocol.credentials import LoginError

KEY = 36
VERSIONS = range(0, 3)


def answer(call: Call) -> dict[str, Any]:
    if call.login is None or not call.login.has_begun:
        return {"error_code": ErrorCode.illegal_sasl_state, "error_message": "No handshake was made", "auth_bytes": b""}
    try:
        auth_bytes = call.login.step(call.request.body.auth_bytes)
        return {"error_code": ErrorCode.none, "error_message": None, "auth_bytes": auth_bytes}
    except LoginError as error:
        return {"error_code": ErrorCode.sasl_authentication_failed, "error_message": str(error), "auth_bytes": b""}
