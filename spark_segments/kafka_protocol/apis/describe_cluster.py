"""DescribeCluster, 0 to 2: the one broker."""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from spark_segments.kafka_protocol.call import NODE_ID, Call

KEY = 60
VERSIONS = range(0, 3)


def answer(call: Call) -> dict[str, Any]:
    host, port = call.address
    if getattr(call.request.body, "endpoint_type", 1) != 1:
        return {
            "error_code": ErrorCode.unsupported_endpoint_type,
            "error_message": "This server has no controller endpoint",
            "cluster_id": "",
            "brokers": [],
        }
    return {
        "error_code": ErrorCode.none,
        "error_message": None,
        "cluster_id": call.views.cluster_id,
        "controller_id": NODE_ID,
        "brokers": [{"broker_id": NODE_ID, "host": host, "port": port, "rack": None, "is_fenced": False}],
    }
