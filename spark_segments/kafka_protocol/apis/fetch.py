"""Fetch: record batches as they lie in the log. Sessions are refused, as Kafka allows: a fetch names all.

A fetch waits until `min_bytes` can be there, `max_wait` is over, or a partition has an error. Read-committed fetches
end at the last stable offset and name aborted transactions.
"""

from __future__ import annotations

import time
from functools import partial
from typing import Any

from kio.schema.errors import ErrorCode

from spark_segments.errors import SegmentsError
from spark_segments.kafka_protocol.call import Api, Call, epoch_error, error_code
from spark_segments.kafka_protocol.messages import Records
from spark_segments.kafka_protocol.views import ServedTopic

KEY = 1

_BY_ID = 13  # from this version on topics are named by their id
_LARGEST_WAIT_SECONDS = 60.0
_FULL_EPOCHS = (-1, 0)  # session epochs of a full fetch


def _fetch(call: Call) -> dict[str, Any]:
    body = call.request.body
    if getattr(body, "session_epoch", -1) not in _FULL_EPOCHS:
        return {"error_code": ErrorCode.fetch_session_id_not_found, "session_id": 0, "responses": []}
    if getattr(body, "replica_id", -1) >= 0:  # a follower would take the log for its own
        return {"error_code": ErrorCode.invalid_request, "session_id": 0, "responses": []}
    committed = getattr(body, "isolation_level", 0) == 1
    deadline = None
    while not _is_due(call, committed) and not call.stopping.is_set():
        deadline = deadline or time.monotonic() + min(max(body.max_wait.total_seconds(), 0.0), _LARGEST_WAIT_SECONDS)
        left = deadline - time.monotonic()
        if left <= 0 or call.is_gone():
            break
        call.stopping.wait(min(left, call.views.interval_seconds))
    left_bytes = min(max(body.max_bytes, 0), call.limits.response_bytes)
    has_some = False
    responses = []
    for topic in body.topics:
        name = _name(call, topic)
        partitions = []
        for asked in topic.partitions:
            done = _partition(call, name, asked, left_bytes, committed, at_least_one=not has_some)
            size = len(done["records"])
            has_some = has_some or size > 0
            left_bytes = max(0, left_bytes - size)
            partitions.append(done)
        responses.append({"topic": name or "", "topic_id": getattr(topic, "topic_id", None), "partitions": partitions})
    return {"error_code": ErrorCode.none, "session_id": 0, "responses": responses, "node_endpoints": []}


def _name(call: Call, topic: Any) -> str | None:
    if call.request.api_version < _BY_ID:
        return str(topic.topic)
    return None if topic.topic_id is None else call.views.name_of(topic.topic_id)


def _view(call: Call, name: str | None) -> tuple[ServedTopic | None, ErrorCode]:
    return (None, ErrorCode.unknown_topic_id) if name is None else call.topic(name)


def _check(view: ServedTopic | None, code: ErrorCode, asked: Any) -> ErrorCode:
    """The error of a partition that is asked for, none where it can be read."""
    if view is None:
        return code
    row = view.partitions.get(asked.partition)
    if row is None:
        return ErrorCode.unknown_topic_or_partition
    code = epoch_error(getattr(asked, "current_leader_epoch", -1), row.leader_epoch)
    if code is ErrorCode.none and not row.log_start_offset <= asked.fetch_offset <= row.log_end_offset:
        return ErrorCode.offset_out_of_range
    return code


def _is_due(call: Call, committed: bool) -> bool:
    body = call.request.body
    ready_bytes = 0
    for topic in body.topics:
        view, code = _view(call, _name(call, topic))
        for asked in topic.partitions:
            if view is None or _check(view, code, asked) is not ErrorCode.none or _parted(view, asked):
                return True
            ready_bytes += view.bytes_from(asked.partition, asked.fetch_offset, committed=committed)
            if ready_bytes and ready_bytes >= body.min_bytes:
                return True
    return body.min_bytes <= 0 or not body.topics


def _parted(view: ServedTopic, asked: Any) -> tuple[int, int] | None:
    """(epoch, end offset) where the client's log parts from this one, by the epoch of its last record (KIP-595)."""
    last = getattr(asked, "last_fetched_epoch", -1)
    if last < 0:
        return None
    epoch, end = view.end_of_epoch(asked.partition, last)
    return (epoch, end) if epoch < last or end < asked.fetch_offset else None


def _partition(
    call: Call, name: str | None, asked: Any, left_bytes: int, committed: bool, *, at_least_one: bool
) -> dict[str, Any]:
    view, code = _view(call, name)
    code = _check(view, code, asked)
    done: dict[str, Any] = {
        "partition_index": asked.partition,
        "error_code": code,
        "high_watermark": -1,
        "last_stable_offset": -1,
        "log_start_offset": -1,
        "aborted_transactions": [],
        "preferred_read_replica": -1,
        "records": Records(),
    }
    if view is None or asked.partition not in view.partitions:
        return done
    row = view.partitions[asked.partition]
    done["high_watermark"] = row.log_end_offset
    done["last_stable_offset"] = view.end_offset(asked.partition, committed=True)
    done["log_start_offset"] = row.log_start_offset
    if code is not ErrorCode.none:
        return done
    if (parted := _parted(view, asked)) is not None:
        done["diverging_epoch"] = {"epoch": parted[0], "end_offset": parted[1]}
        return done
    wanted = min(asked.partition_max_bytes, left_bytes)
    if wanted <= 0 and not at_least_one:
        return done
    try:
        pieces, behind = view.read(
            asked.partition,
            asked.fetch_offset,
            max(wanted, 0),
            committed=committed,
            at_least_one=at_least_one,
            from_files=call.sends_files,
        )
        if committed:
            aborted = view.aborted(asked.partition, asked.fetch_offset, behind)
            done["aborted_transactions"] = [{"producer_id": one, "first_offset": first} for one, first in aborted]
        else:  # null is said of these alone
            done["aborted_transactions"] = None
    except SegmentsError as error:
        call.warnings.append(f"{name}-{asked.partition}: {error}")
        done["error_code"] = error_code(error)
        return done
    done["records"] = Records(pieces)
    if 2 * len(done["records"]) > wanted:  # there is more, as a rule
        goes_on = partial(view.read_ahead, asked.partition, behind, wanted, from_files=call.sends_files)
        call.afterwards.append(goes_on)
    return done


APIS = (Api(KEY, range(4, 19), _fetch),)
