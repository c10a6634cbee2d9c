"""ApiVersions, 0 to 4: which APIs are served, and in which versions. An unknown version is answered in version 0."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kio.schema.errors import ErrorCode

from spark_segments.kafka_protocol.call import Call

KEY = 18
VERSIONS = range(0, 5)


def answer(call: Call) -> dict[str, Any]:
    return listed(call.served, ErrorCode.none)


def listed(served: Mapping[int, range], error_code: ErrorCode) -> dict[str, Any]:
    """The answer with an error code: all APIs."""
    keys = [
        {"api_key": key, "min_version": versions.start, "max_version": versions.stop - 1}
        for key, versions in sorted(served.items())
    ]
    return {"error_code": error_code, "api_keys": keys}
