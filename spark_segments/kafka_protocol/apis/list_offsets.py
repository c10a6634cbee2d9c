"""ListOffsets, 1 to 10: the log start, the log end, the last stable offset, and offsets by time."""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from spark_segments.errors import SegmentsError
from spark_segments.kafka_protocol.call import Call, error_code
from spark_segments.kafka_protocol.views import Found

KEY = 2
VERSIONS = range(1, 11)


def answer(call: Call) -> dict[str, Any]:
    committed = getattr(call.request.body, "isolation_level", 0) == 1
    topics = call.request.body.topics
    return {
        "topics": [
            {"name": one.name, "partitions": [_partition(call, one.name, asked, committed) for asked in one.partitions]}
            for one in topics
        ]
    }


def _partition(call: Call, topic: str, asked: Any, committed: bool) -> dict[str, Any]:
    view, code = call.topic(topic)
    answer = Found()
    number = asked.partition_index
    if view is not None and number not in view.partitions:
        code = ErrorCode.unknown_topic_or_partition
    elif view is not None:
        code = epoch_error(getattr(asked, "current_leader_epoch", -1), view.partitions[number].leader_epoch)
    if view is not None and code is ErrorCode.none:
        try:
            answer = view.offset_for(number, asked.timestamp, committed=committed)
        except SegmentsError as error:
            call.warnings.append(f"{topic}-{number}: {error}")
            code = error_code(error)
    return {
        "partition_index": number,
        "error_code": code,
        "timestamp": answer.timestamp_ms,
        "offset": answer.offset,
        "leader_epoch": answer.leader_epoch,
    }


def epoch_error(asked: int, leader_epoch: int) -> ErrorCode:
    """Kafka's check of a client's leader epoch (KIP-320); -1 is not checked."""
    if asked < 0 or asked == leader_epoch:
        return ErrorCode.none
    return ErrorCode.fenced_leader_epoch if asked < leader_epoch else ErrorCode.unknown_leader_epoch
