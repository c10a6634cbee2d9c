"""What the answer to a request may ask: the topics of the server, its groups, and the request's connection."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kio.schema.errors import ErrorCode

from spark_segments.config import is_topic_name
from spark_segments.errors import MissingFileError, SegmentsError, UnknownTopicError
from spark_segments.kafka_protocol.serving.coordinator import Coordinator
from spark_segments.kafka_protocol.serving.group_members import RefusedError
from spark_segments.kafka_protocol.serving.limits import Limits
from spark_segments.kafka_protocol.serving.messages import BadRequestError, Request
from spark_segments.kafka_protocol.serving.stored_groups import StoredGroups
from spark_segments.kafka_protocol.serving.views import ServedTopic, Views
from spark_segments.log import Group

if TYPE_CHECKING:
    from spark_segments.kafka_protocol.serving.credentials import Login

NODE_ID = 1
"""The only broker of the cluster that clients see."""

_DESCRIBES_TOPICS = (3, 32, 75)
"""Metadata, DescribeConfigs and DescribeTopicPartitions answer that a name is invalid. All other APIs answer that the
topic is unknown, as Kafka does.
"""


@dataclass(frozen=True, slots=True)
class NotYet:
    """In place of an answer: there is none yet. It is asked for again when somebody wakes the call, and at
    `until_seconds` (time.monotonic()) at the latest.
    """

    until_seconds: float


@dataclass(frozen=True, slots=True)
class Api:
    """An API: its key, the versions that are served, and the fields of the answer to a call."""

    key: int
    versions: range
    answer: Callable[[Call], Mapping[str, Any] | NotYet]


@dataclass(slots=True, weakref_slot=True, eq=False)
class Call:
    """A request that waits for its response. Its handler is called again and again until it returns one.

    `address`: the address of the server as clients see it. `served`: {API key: versions}. `sends_files`: parts of a
    response may be ranges of files. `hold`: whether the response may have so many bytes in memory; `room`: how many of
    the bytes that it asks for it may have. `go_on`: has the handler called again. `state`: what the handler keeps for
    that call. `is_gone`: the client has ended its connection. `is_last`: the request waits no longer. `late_seconds`:
    when (time.monotonic()) its look-ups end. `afterwards`: work for the time after the response has been sent.
    """

    request: Request
    views: Views
    limits: Limits
    address: tuple[str, int]
    served: Mapping[int, range]
    coordinator: Coordinator
    stored_groups: StoredGroups
    client_host: str
    owner: str
    login: Login | None
    sends_files: bool
    hold: Callable[[int], bool]
    room: Callable[[int], int]
    go_on: Callable[[], None]
    state: Any = None
    is_gone: bool = False
    is_last: bool = False
    late_seconds: float = 0.0
    warnings: list[str] = field(default_factory=list)
    afterwards: list[Callable[[], None]] = field(default_factory=list)
    is_parked: bool = False
    _was_woken: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def begin(self) -> None:
        """Marks the call of the handler as begun: a wake-up from now on has the handler called again."""
        self.late_seconds = time.monotonic() + self.limits.request_seconds
        self.warnings.clear()
        self.afterwards.clear()
        with self._lock:
            self.is_parked = False
            self._was_woken = False

    def park(self) -> bool:
        """Waits to be woken; False: it was, since it began."""
        with self._lock:
            self.is_parked = not self._was_woken
            return self.is_parked

    def wake(self) -> None:
        """Has the answer asked for again, if it waits. Any thread may, any number of times."""
        with self._lock:
            was_parked = self.is_parked
            self.is_parked = False
            self._was_woken = True
        if was_parked:
            self.go_on()

    def topic(self, name: str) -> tuple[ServedTopic | None, ErrorCode]:
        """A topic, or the error to answer with."""
        self.check_time()
        try:
            view = self.views.topic(name)
        except SegmentsError as error:
            self.warnings.append(f"topic {name}: {error}")
            return None, error_code(error)
        if view is not None:
            return view, ErrorCode.none
        if self.request.api_key in _DESCRIBES_TOPICS and not is_topic_name(name):
            return None, ErrorCode.invalid_topic_exception
        return None, ErrorCode.unknown_topic_or_partition

    def name_of(self, topic_id: uuid.UUID | None) -> str | None:
        """The topic that has this id, None where there is none."""
        self.check_time()
        try:
            return None if topic_id is None else self.views.name_of(topic_id)
        except SegmentsError as error:
            self.warnings.append(f"topic {topic_id}: {error}")
            return None

    def group(self, name: str) -> Group | None:
        """A group of the log directory; None where it keeps no groups. Raises RefusedError for what is no id."""
        self.check_time()
        if not name:
            raise RefusedError(ErrorCode.invalid_group_id)
        return None if self.views.log.is_kafka else Group(self.views.log, name)

    def check_time(self) -> None:
        """Raises BadRequestError where the answer takes too long."""
        if time.monotonic() > self.late_seconds:
            raise BadRequestError(f"An answer takes more than {self.limits.request_seconds:.0f} seconds")


def error_code(error: SegmentsError) -> ErrorCode:
    """Kafka's error for one of ours."""
    if isinstance(error, UnknownTopicError):
        return ErrorCode.unknown_topic_or_partition
    if isinstance(error, MissingFileError):  # vacuum took the file of a view that is old: the next view has others
        return ErrorCode.not_leader_or_follower
    return ErrorCode.kafka_storage_error


def partition_error(view: ServedTopic | None, code: ErrorCode, partition: int, epoch: int) -> ErrorCode:
    """Kafka's error for a partition of a topic as `Call.topic` gave it; none where the client may have an answer.

    `epoch`: the leader epoch that the client knows (KIP-320); -1 is not checked.
    """
    if view is None:
        return code
    row = view.partitions.get(partition)
    if row is None:
        return ErrorCode.unknown_topic_or_partition
    if epoch < 0 or epoch == row.leader_epoch:
        return ErrorCode.none
    return ErrorCode.fenced_leader_epoch if epoch < row.leader_epoch else ErrorCode.unknown_leader_epoch


def distinct_partitions(
    topics: Iterable[Any], name: str, partitions: str, number: str = ""
) -> Iterator[tuple[Any, list[Any]]]:
    """(topic, its partitions) of a request, each partition where it is named first. The other arguments: the fields
    with a topic's name or id, its partitions, and a partition's number, if it is more than that.
    """
    seen: set[tuple[Any, int]] = set()
    for topic in topics:
        new = []
        for partition in getattr(topic, partitions):
            place = (getattr(topic, name), getattr(partition, number) if number else partition)
            if place not in seen:
                seen.add(place)
                new.append(partition)
        if new or not getattr(topic, partitions):
            yield topic, new
