"""Fetch: record batches as they lie in the log. Sessions are refused, as Kafka allows: a fetch names all.

A fetch waits until `min_bytes` can be there, `max_wait` is over, or a partition has an error. Read-committed fetches
end at the last stable offset and name aborted transactions.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from kio.schema.errors import ErrorCode

from spark_segments.errors import SegmentsError
from spark_segments.kafka_protocol.serving.api_call import (
    Api,
    Call,
    NotYet,
    distinct_partitions,
    error_code,
    partition_error,
)
from spark_segments.kafka_protocol.serving.messages import Records
from spark_segments.kafka_protocol.serving.views import ServedTopic

KEY = 1
LEAST_BYTES = 64 << 10
"""For so many bytes an answer is made where there are more: for fewer it waits."""

_BY_ID = 13  # from this version on topics are named by their id
_LARGEST_WAIT_SECONDS = 60.0
_MEMORY_SECONDS = 0.05  # until memory for an answer is looked for again, at least
_MEMORY_PORTION = 0.25  # and this part of the time that the request has waited: a hundred of them cost next to nothing
_FULL_EPOCHS = (-1, 0)  # session epochs of a full fetch
_NO_EPOCH = (-1, -1)  # where a log ends an epoch that it does not know


@dataclass(slots=True)
class _FetchTopic:
    """The current state of a requested topic, and the partitions that the request names for the first time."""

    topic: Any
    name: str | None
    view: ServedTopic | None
    code: ErrorCode
    partitions: Sequence[Any]


def _fetch(call: Call) -> dict[str, Any] | NotYet:
    body = call.request.body
    if getattr(body, "session_epoch", -1) not in _FULL_EPOCHS:
        return {"error_code": ErrorCode.fetch_session_id_not_found, "session_id": 0, "responses": []}
    if getattr(body, "replica_id", -1) >= 0:  # a follower would take the log for its own
        return {"error_code": ErrorCode.invalid_request, "session_id": 0, "responses": []}
    now = time.monotonic()
    if call.state is None:
        call.state = now
    deadline = call.state + min(max(body.max_wait.total_seconds(), 0.0), _LARGEST_WAIT_SECONDS)
    topics = _fetch_topics(call)
    if not (call.is_last or now >= deadline or _is_due(call, topics)):
        return _wait(call, topics, now, deadline)
    return _records(call, topics, now)


def _wait(call: Call, topics: Sequence[_FetchTopic], now: float, deadline: float) -> NotYet:
    """Until the deadline, or until one of the topics changes. One that has changed since it was looked at wakes nobody:
    it is looked at again soon.
    """
    views = [topic.view for topic in topics if topic.view is not None]
    is_told = all(call.views.watch(view, call) for view in views)
    return NotYet(deadline if is_told else min(deadline, now + call.views.interval_seconds))


def _records(call: Call, topics: Sequence[_FetchTopic], now: float) -> dict[str, Any] | NotYet:
    """The answer with records, as many as memory is left for: at last without any, so that the client asks again."""
    most_bytes = min(max(call.request.body.max_bytes, 0), call.limits.response_bytes)
    left_bytes = call.room(most_bytes)
    is_short = left_bytes < min(most_bytes, LEAST_BYTES)
    responses: list[dict[str, Any]] = []
    size = 0
    if not is_short:
        responses, size = _responses(call, topics, left_bytes)
    if is_short or not call.hold(size):  # others have the memory. They take their answers, or lose them
        if not call.is_last and now < call.state + call.limits.request_seconds:
            return NotYet(now + max(_MEMORY_SECONDS, (now - call.state) * _MEMORY_PORTION))
        responses, _ = _responses(call, topics, None)
    return {"error_code": ErrorCode.none, "session_id": 0, "responses": responses, "node_endpoints": []}


def _fetch_topics(call: Call) -> list[_FetchTopic]:
    topics = []
    by_id = call.request.api_version >= _BY_ID
    for topic, partitions in distinct_partitions(
        call.request.body.topics, "topic_id" if by_id else "topic", "partitions", "partition"
    ):
        name = call.name_of(topic.topic_id) if by_id else topic.topic
        view, code = (None, ErrorCode.unknown_topic_id) if name is None else call.topic(name)
        topics.append(_FetchTopic(topic, name, view, code, partitions))
    return topics


def _responses(call: Call, topics: Sequence[_FetchTopic], left_bytes: int | None) -> tuple[list[dict[str, Any]], int]:
    """(what is said of each topic, the bytes of records that it holds in memory); None: without records."""
    responses = []
    held_bytes = 0
    has_some = left_bytes is None
    left_bytes = left_bytes or 0
    for topic in topics:
        partitions = []
        for request in topic.partitions:
            done = _partition(call, topic, request, left_bytes, at_least_one=not has_some)
            records = done["records"]
            has_some = has_some or len(records) > 0
            left_bytes = max(0, left_bytes - len(records))
            held_bytes += records.held_bytes
            partitions.append(done)
        topic_id = getattr(topic.topic, "topic_id", None)
        responses.append({"topic": topic.name or "", "topic_id": topic_id, "partitions": partitions})
    return responses, held_bytes


def _check(view: ServedTopic | None, code: ErrorCode, request: Any) -> ErrorCode:
    """The error of a partition that is asked for, none where it can be read."""
    code = partition_error(view, code, request.partition, getattr(request, "current_leader_epoch", -1))
    if view is not None and code is ErrorCode.none:
        row = view.partitions[request.partition]
        if not row.log_start_offset <= request.fetch_offset <= row.log_end_offset:
            return ErrorCode.offset_out_of_range
        # As Partition.fetchRecords of a broker: nobody knows where the logs part.
        if _parted(view, request) == _NO_EPOCH:
            return ErrorCode.offset_out_of_range
    return code


def _is_due(call: Call, topics: Sequence[_FetchTopic]) -> bool:
    body = call.request.body
    ready_bytes = 0
    for topic in topics:
        for partition in topic.partitions:
            view = topic.view
            if view is None or _check(view, topic.code, partition) is not ErrorCode.none or _parted(view, partition):
                return True
            ready_bytes += view.bytes_from(partition.partition, partition.fetch_offset, committed=_is_committed(call))
            if ready_bytes and ready_bytes >= body.min_bytes:
                return True
    return body.min_bytes <= 0 or not body.topics


def _is_committed(call: Call) -> bool:
    return getattr(call.request.body, "isolation_level", 0) == 1


def _parted(view: ServedTopic, request: Any) -> tuple[int, int] | None:
    """(epoch, end offset) where the client's log parts from this one, by the epoch of its last record (KIP-595)."""
    last = getattr(request, "last_fetched_epoch", -1)
    if last < 0:
        return None
    epoch, end = view.end_of_epoch(request.partition, last)
    return (epoch, end) if epoch < last or end < request.fetch_offset else None


def _partition(call: Call, topic: _FetchTopic, request: Any, left_bytes: int, *, at_least_one: bool) -> dict[str, Any]:
    view = topic.view
    committed = _is_committed(call)
    code = _check(view, topic.code, request)
    done: dict[str, Any] = {
        "partition_index": request.partition,
        "error_code": code,
        "high_watermark": -1,
        "last_stable_offset": -1,
        "log_start_offset": -1,
        "aborted_transactions": [],
        "preferred_read_replica": -1,
        "records": Records(),
    }
    if view is None or request.partition not in view.partitions:
        return done
    row = view.partitions[request.partition]
    done["high_watermark"] = row.log_end_offset
    done["last_stable_offset"] = view.end_offset(request.partition, committed=True)
    done["log_start_offset"] = row.log_start_offset
    if code is not ErrorCode.none:
        return done
    parted = _parted(view, request)
    if parted is not None:
        done["diverging_epoch"] = {"epoch": parted[0], "end_offset": parted[1]}
        return done
    most_bytes = min(request.partition_max_bytes, left_bytes)
    if most_bytes <= 0 and not at_least_one:
        return done
    try:
        pieces, behind = view.read(
            request.partition,
            request.fetch_offset,
            max(most_bytes, 0),
            committed=committed,
            at_least_one=at_least_one,
            from_files=call.sends_files,
        )
        if committed:
            aborted = view.aborted(request.partition, request.fetch_offset, behind)
            done["aborted_transactions"] = [{"producer_id": number, "first_offset": first} for number, first in aborted]
        else:  # null is said of these alone
            done["aborted_transactions"] = None
    except SegmentsError as error:
        call.warnings.append(f"{topic.name}-{request.partition}: {error}")
        done["error_code"] = error_code(error)
        return done
    done["records"] = Records(pieces)
    if 2 * len(done["records"]) > most_bytes:  # there is more, as a rule
        goes_on = partial(view.read_ahead, request.partition, behind, most_bytes, from_files=call.sends_files)
        call.afterwards.append(goes_on)
    return done


APIS = (Api(KEY, range(4, 19), _fetch),)
