"""SaslHandshake, 1: the mechanisms by which a client may prove who it is."""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from spark_segments.kafka_protocol.call import Call

KEY = 17
VERSIONS = range(1, 2)


def answer(call: Call) -> dict[str, Any]:
    if call.login is None:
        return {"error_code": ErrorCode.illegal_sasl_state, "mechanisms": []}
    known = call.login.begin(call.request.body.mechanism)
    code = ErrorCode.none if known else ErrorCode.unsupported_sasl_mechanism
    return {"error_code": code, "mechanisms": list(call.login.mechanisms)}
