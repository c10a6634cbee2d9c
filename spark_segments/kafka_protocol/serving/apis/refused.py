"""What is refused: the server is read-only, has no authorizer, and groups by the classic protocol alone. Clients expect
these APIs to be there, and an error that lasts.
"""

from __future__ import annotations

import datetime
import time
from typing import Any

from kio.schema.errors import ErrorCode

from spark_segments.kafka_protocol.serving.api_call import Api, Call, NotYet, distinct_partitions

PRODUCE, INIT_PRODUCER_ID, DESCRIBE_ACLS, CONSUMER_GROUP_HEARTBEAT = 0, 22, 29, 68
_BY_ID = 13  # from this version of Produce on topics are named by their id


def _produce(call: Call) -> dict[str, Any]:
    refused = {
        "error_code": ErrorCode.topic_authorization_failed,
        "base_offset": -1,
        "record_errors": [],
        "error_message": "This server is read-only: append with spark_segments",
    }
    topics = call.request.body.topic_data
    named = "topic_id" if call.request.api_version >= _BY_ID else "name"
    return {
        "responses": [
            {
                "name": getattr(topic, "name", ""),
                "topic_id": getattr(topic, "topic_id", None),
                "partition_responses": [{"index": partition.index, **refused} for partition in partitions],
            }
            for topic, partitions in distinct_partitions(topics, named, "partition_data", "index")
        ]
    }


def _init_producer_id(call: Call) -> dict[str, Any] | NotYet:
    """InitProducerId: refused after a while. Kafka's producer asks again at once, and for ever."""
    if call.state is None:
        call.state = time.monotonic() + call.limits.refused_producer_seconds
    if time.monotonic() < call.state and not (call.is_last or call.is_gone):
        return NotYet(call.state)
    is_transactional = call.request.body.transactional_id is not None
    code = (
        ErrorCode.transactional_id_authorization_failed if is_transactional else ErrorCode.cluster_authorization_failed
    )
    return {"error_code": code, "producer_id": -1, "producer_epoch": -1}


def _describe_acls(_: Call) -> dict[str, Any]:
    """DescribeAcls: as of a broker without an authorizer. A cluster that mirrors this one (KIP-1279) goes on then."""
    return {
        "error_code": ErrorCode.security_disabled,
        "error_message": "No Authorizer is configured.",
        "resources": [],
    }


def _consumer_group_heartbeat(_: Call) -> dict[str, Any]:
    """ConsumerGroupHeartbeat (KIP-848): as of a broker that has this protocol switched off. A client whose broker lacks
    the API may wait for ever, and say nothing.
    """
    return {
        "error_code": ErrorCode.unsupported_version,
        "error_message": "This server has the classic protocol alone: set group.protocol=classic",
        "member_id": None,
        "member_epoch": 0,
        "heartbeat_interval": datetime.timedelta(0),
        "assignment": None,
    }


APIS = (
    Api(PRODUCE, range(3, 14), _produce),
    Api(INIT_PRODUCER_ID, range(0, 6), _init_producer_id),
    Api(DESCRIBE_ACLS, range(1, 4), _describe_acls),
    Api(CONSUMER_GROUP_HEARTBEAT, range(0, 2), _consumer_group_heartbeat),
)
