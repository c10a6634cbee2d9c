"""What a client asks first: which APIs there are, and who it is (SASL). A login that fails ends the connection.

After a SaslHandshake 0 the steps of a login are bytes without a header, and so are the answers to them.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from kio.schema.errors import ErrorCode
from kio.schema.sasl_authenticate.v0.request import SaslAuthenticateRequest

from spark_segments.kafka_protocol.serving.api_call import Api, Call, NotYet
from spark_segments.kafka_protocol.serving.credentials import LoginError
from spark_segments.kafka_protocol.serving.messages import Request

API_VERSIONS, SASL_HANDSHAKE, SASL_AUTHENTICATE = 18, 17, 36
BEFORE_LOGIN = frozenset({API_VERSIONS, SASL_HANDSHAKE, SASL_AUTHENTICATE})
"""What may be asked before a client has proved who it is, where it has to."""
FAILED_LOGINS = (ErrorCode.sasl_authentication_failed, ErrorCode.unsupported_sasl_mechanism)
BARE = -1
"""The version of a step that is no request."""


def _api_versions(call: Call) -> dict[str, Any]:
    """ApiVersions: which APIs are served, and in which versions. An unknown version is answered in version 0."""
    return listed(call.served, ErrorCode.none)


def listed(served: Mapping[int, range], error_code: ErrorCode) -> dict[str, Any]:
    """The answer with an error code: all APIs."""
    keys = [
        {"api_key": key, "min_version": versions.start, "max_version": versions.stop - 1}
        for key, versions in sorted(served.items())
    ]
    return {"error_code": error_code, "api_keys": keys}


def _sasl_handshake(call: Call) -> dict[str, Any]:
    """SaslHandshake: the mechanisms by which a client may prove who it is."""
    if call.login is None:
        return {"error_code": ErrorCode.illegal_sasl_state, "mechanisms": []}
    is_offered = call.login.begin(call.request.body.mechanism, is_bare=call.request.api_version == 0)
    code = ErrorCode.none if is_offered else ErrorCode.unsupported_sasl_mechanism
    return {"error_code": code, "mechanisms": list(call.login.mechanisms)}


def bare_step(frame: bytes) -> Request:
    """The request that a step without a header stands for."""
    return Request(SASL_AUTHENTICATE, BARE, 0, "", SaslAuthenticateRequest(auth_bytes=frame))


def _sasl_authenticate(call: Call) -> dict[str, Any] | NotYet:
    """SaslAuthenticate: the steps of a mechanism. A login that fails ends the connection, after a while."""
    if call.state is not None:
        return dict(call.state)
    if call.login is None or not call.login.has_begun:
        return {"error_code": ErrorCode.illegal_sasl_state, "error_message": "No handshake was made", "auth_bytes": b""}
    try:
        auth_bytes = call.login.step(call.request.body.auth_bytes)
        return {"error_code": ErrorCode.none, "error_message": None, "auth_bytes": auth_bytes}
    except LoginError as error:
        code = ErrorCode.sasl_authentication_failed
        call.state = {"error_code": code, "error_message": str(error), "auth_bytes": b""}
        return NotYet(time.monotonic() + call.limits.failed_login_seconds)


APIS = (
    Api(API_VERSIONS, range(0, 5), _api_versions),
    Api(SASL_HANDSHAKE, range(0, 2), _sasl_handshake),
    Api(SASL_AUTHENTICATE, range(0, 3), _sasl_authenticate),
)
