"""What the answer to a request may ask: the topics of the server, its groups, and the request's connection."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kio.schema.errors import ErrorCode

from spark_segments.config import is_topic_name
from spark_segments.errors import MissingFileError, SegmentsError, UnknownTopicError
from spark_segments.kafka_protocol.coordinator import Coordinator, RefusedError
from spark_segments.kafka_protocol.messages import Request
from spark_segments.kafka_protocol.views import ServedTopic, Views
from spark_segments.log.groups.group import Group

if TYPE_CHECKING:
    from spark_segments.kafka_protocol.credentials import Login

NODE_ID = 1
"""The only broker of the cluster that clients see."""

_DESCRIBES_TOPICS = (3, 32, 75)
"""Metadata, DescribeConfigs and DescribeTopicPartitions say of a name that no topic can have it. To all others a topic
of that name is an unknown one, as it is for Kafka.
"""


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of a server. Sizes in bytes, times in seconds."""

    connections: int = 1000
    request_bytes: int = 4 << 20
    response_bytes: int = 16 << 20
    responses_bytes: int = 512 << 20
    metadata_bytes: int = 4096
    idle_seconds: float = 600.0
    request_seconds: float = 30.0


@dataclass(frozen=True, slots=True)
class Api:
    """An API: its key, the versions that are served, and the fields of the answer to a call."""

    key: int
    versions: range
    answer: Callable[[Call], Mapping[str, Any]]


@dataclass(slots=True)
class Call:
    """A request on its way to its answer.

    `address`: where clients reach the server, as they see it. `stopping`: set once the server ends, so that nobody
    waits on. `is_gone`: whether the client has ended its connection meanwhile. `served`: {API key: versions}.
    `sends_files`: parts of an answer may be ranges of files. `afterwards`: what is done when the answer has been sent,
    while the client takes it.
    """

    request: Request
    views: Views
    limits: Limits
    address: tuple[str, int]
    stopping: threading.Event
    is_gone: Callable[[], bool]
    served: Mapping[int, range]
    coordinator: Coordinator
    client_host: str
    login: Login | None = None
    warnings: list[str] = field(default_factory=list)
    sends_files: bool = False
    afterwards: list[Callable[[], None]] = field(default_factory=list)

    def topic(self, name: str) -> tuple[ServedTopic | None, ErrorCode]:
        """A topic, or the error to answer with."""
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

    def group(self, name: str) -> Group | None:
        """A group of the log directory; None where it keeps no groups. Raises RefusedError for what is no id."""
        if not name:
            raise RefusedError(ErrorCode.invalid_group_id)
        return None if self.views.log.is_kafka else self.views.log.group(name)

    @staticmethod
    def now_ms() -> int:
        """The clock by which positions are committed, in ms since 1970."""
        return time.time_ns() // 1_000_000


def error_code(error: SegmentsError) -> ErrorCode:
    """Kafka's error for one of ours."""
    if isinstance(error, UnknownTopicError):
        return ErrorCode.unknown_topic_or_partition
    if isinstance(error, MissingFileError):  # vacuum took the file of a view that is old: the next view has others
        return ErrorCode.not_leader_or_follower
    return ErrorCode.kafka_storage_error


def epoch_error(asked: int, leader_epoch: int) -> ErrorCode:
    """Kafka's check of a client's leader epoch (KIP-320); -1 is not checked."""
    if asked < 0 or asked == leader_epoch:
        return ErrorCode.none
    return ErrorCode.fenced_leader_epoch if asked < leader_epoch else ErrorCode.unknown_leader_epoch
