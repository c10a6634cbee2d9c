"""OffsetForLeaderEpoch, 2 to 4: where an epoch ends, by which a client finds that the log was cut (KIP-320)."""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from spark_segments.kafka_protocol.apis.list_offsets import epoch_error
from spark_segments.kafka_protocol.call import Call

KEY = 23
VERSIONS = range(2, 5)


def answer(call: Call) -> dict[str, Any]:
    return {
        "topics": [
            {"topic": topic.topic, "partitions": [_partition(call, topic.topic, one) for one in topic.partitions]}
            for topic in call.request.body.topics
        ]
    }


def _partition(call: Call, topic: str, asked: Any) -> dict[str, Any]:
    view, code = call.topic(topic)
    number, epoch, end = asked.partition, -1, -1
    if view is not None and number not in view.partitions:
        code = ErrorCode.unknown_topic_or_partition
    elif view is not None:
        code = epoch_error(asked.current_leader_epoch, view.partitions[number].leader_epoch)
    if view is not None and code is ErrorCode.none:
        epoch, end = view.end_of_epoch(number, asked.leader_epoch)
    return {"error_code": code, "partition": number, "leader_epoch": epoch, "end_offset": end}
