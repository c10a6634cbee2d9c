"""Offsets of a log: log start, log end, last stable offset, offsets for times, and the end offset of a leader epoch."""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from spark_segments.errors import SegmentsError
from spark_segments.kafka_protocol.serving.api_call import Api, Call, distinct_partitions, error_code, partition_error
from spark_segments.kafka_protocol.serving.views import Found


def _list_offsets(call: Call) -> dict[str, Any]:
    """ListOffsets: the log start, the log end, the last stable offset, and offsets by time."""
    committed = getattr(call.request.body, "isolation_level", 0) == 1
    return {
        "topics": [
            {
                "name": topic.name,
                "partitions": [_offset(call, topic.name, partition, committed) for partition in partitions],
            }
            for topic, partitions in distinct_partitions(
                call.request.body.topics, "name", "partitions", "partition_index"
            )
        ]
    }


def _offset(call: Call, topic: str, partition_request: Any, committed: bool) -> dict[str, Any]:
    view, code = call.topic(topic)
    answer = Found()
    number = partition_request.partition_index
    code = partition_error(view, code, number, getattr(partition_request, "current_leader_epoch", -1))
    if view is not None and code is ErrorCode.none:
        try:
            answer = view.offset_for(number, partition_request.timestamp, committed=committed)
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


def _offset_for_leader_epoch(call: Call) -> dict[str, Any]:
    """OffsetForLeaderEpoch: where an epoch ends, by which a client finds that the log was cut (KIP-320)."""
    return {
        "topics": [
            {
                "topic": topic.topic,
                "partitions": [_end_of_epoch(call, topic.topic, partition) for partition in partitions],
            }
            for topic, partitions in distinct_partitions(call.request.body.topics, "topic", "partitions", "partition")
        ]
    }


def _end_of_epoch(call: Call, topic: str, partition_request: Any) -> dict[str, Any]:
    view, code = call.topic(topic)
    number = partition_request.partition
    epoch = -1
    end = -1
    code = partition_error(view, code, number, partition_request.current_leader_epoch)
    if view is not None and code is ErrorCode.none:
        epoch, end = view.end_of_epoch(number, partition_request.leader_epoch)
    return {"error_code": code, "partition": number, "leader_epoch": epoch, "end_offset": end}


APIS = (
    Api(2, range(1, 11), _list_offsets),
    Api(23, range(2, 5), _offset_for_leader_epoch),
)
