"""DescribeTopicPartitions, 0: topics by name, with a bound on the partitions of an answer (KIP-966)."""

from __future__ import annotations

from typing import Any

from spark_segments.kafka_protocol.apis.metadata import partitions
from spark_segments.kafka_protocol.call import Call

KEY = 75
VERSIONS = range(0, 1)

_MOST_PARTITIONS = 2000


def answer(call: Call) -> dict[str, Any]:
    body = call.request.body
    names = sorted({one.name for one in body.topics}) if body.topics else list(call.views.names())
    left = max(1, min(body.response_partition_limit, _MOST_PARTITIONS))
    begin = ("", 0) if body.cursor is None else (body.cursor.topic_name, max(body.cursor.partition_index, 0))
    topics: list[dict[str, Any]] = []
    following: dict[str, Any] | None = None
    for name in names:
        if name < begin[0]:
            continue
        if left <= 0:
            following = {"topic_name": name, "partition_index": 0}
            break
        view, error_code = call.topic(name)
        existing = [] if view is None else partitions(view)
        first = begin[1] if name == begin[0] else 0
        shown = [one for one in existing if one["partition_index"] >= first][:left]
        left -= len(shown)
        topics.append(
            {
                "error_code": error_code,
                "name": name,
                "topic_id": None if view is None else view.topic_id,
                "is_internal": False,
                "partitions": shown,
            }
        )
        if shown and shown[-1]["partition_index"] < existing[-1]["partition_index"]:
            following = {"topic_name": name, "partition_index": shown[-1]["partition_index"] + 1}
            break
    return {"topics": topics, "next_cursor": following}
