"""A Kafka cluster as a reader of whole batches sees it, by kafka-python's connections and messages."""

from __future__ import annotations

import base64
import contextlib
import functools
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

from kafka import errors
from kafka.net.compat import KafkaNetClient
from kafka.protocol.admin import DescribeConfigsRequest, ListGroupsRequest
from kafka.protocol.consumer import FetchRequest, ListOffsetsRequest, OffsetFetchRequest, OffsetForLeaderEpochRequest
from kafka.protocol.metadata import MetadataRequest

from spark_segments.errors import SegmentsError
from spark_segments.kafka_protocol.capturing.receiving import keep_last_answer, take_large_frames
from spark_segments.kafka_protocol.client_settings import kafka_python_options

EARLIEST = -2
LATEST = -1
"""In place of a time, of ListOffsets."""

RESPONSE_BYTES = 16 << 20
"""Of all brokers that are asked at once."""

FIRST_PAUSE_SECONDS = 0.05
LONGEST_PAUSE_SECONDS = 2.0
OFFSET_OUT_OF_RANGE = 1

_WAIT_MS = 500
_POLL_MS = 5
_PARTITION_BYTES = 8 << 20
_FRAME_BYTES = (1 << 31) - 1  # a batch larger than what was asked for comes whole
_TOPIC_SETTING = 1  # Kafka's DYNAMIC_TOPIC_CONFIG
_BY_ID = 13  # from this version on a fetch names topics by id
_SHARE = "share"  # groups of this type have no positions of a reader
_NO_ID = uuid.UUID(int=0)
_REFUSALS = (errors.SaslAuthenticationFailedError, errors.UnsupportedSaslMechanismError, errors.AuthorizationError)


P = ParamSpec("P")
T = TypeVar("T")

Wanted = Mapping[int, tuple[int, int]]
"""{partition: (offset, epoch of the record before it, -1 for none)}."""


class SourceError(SegmentsError):
    """The cluster did not answer as it should. `is_passing`: asked again, it may."""

    def __init__(self, message: str, *, is_passing: bool = True) -> None:
        super().__init__(message)
        self.is_passing = is_passing


@dataclass(frozen=True, slots=True)
class SourceTopic:
    """A topic of the cluster. `topic_id`: as here, None from brokers that know none, as is `cluster_id`. `leaders`:
    {partition: (node, its epoch)}.
    """

    name: str
    topic_id: str | None
    cluster_id: str | None
    leaders: Mapping[int, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Fetched:
    """What a broker gave of a partition, by a `version` of Fetch. `parted`: (epoch, end offset) where its log parts
    from the one here.
    """

    error: int
    high_watermark: int
    log_start_offset: int
    records: Any  # bytes-like
    parted: tuple[int, int] | None
    version: int


def _sensible(ask: Callable[P, T]) -> Callable[P, T]:
    """What `ask` returns; SourceError where an answer could be read, but makes no sense."""

    @functools.wraps(ask)
    def checked(*arguments: P.args, **options: P.kwargs) -> T:
        try:
            return ask(*arguments, **options)
        except SegmentsError:
            raise
        except (AttributeError, LookupError, OverflowError, TypeError, ValueError) as error:
            raise SourceError(
                f"A broker's answer about {ask.__name__.strip('_')} makes no sense ({type(error).__name__})"
            ) from error

    return checked


class SourceCluster:
    """A cluster. Raises SourceError for any request that it does not answer. A context manager; not for many threads.

    One thread has the connections, so that responses are received while the caller does something else.
    """

    def __init__(self, servers: str, settings: Mapping[str, str] | None = None, timeout_seconds: float = 30.0) -> None:
        """`settings`: by the names of Kafka's or librdkafka's clients. `timeout_seconds`: of one answer."""
        own = {"reconnect_backoff_max_ms": 1000, "receive_message_max_bytes": _FRAME_BYTES}
        own["request_timeout_ms"] = max(1, int(timeout_seconds * 1000))
        options = own | kafka_python_options(settings or {})
        self._answer_ms = timeout_seconds * 1000
        self._reach_by: float | None = None
        self._client = KafkaNetClient(bootstrap_servers=servers.split(","), **options)
        self._problem: Exception | None = None  # what the last connection ended with
        self._connect = self._client._manager.get_connection
        self._client._manager.get_connection = self._connection
        self.servers = servers
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="source-cluster")
        self._to_send: deque[Callable[[], None]] = deque()

    def __enter__(self) -> SourceCluster:
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.shutdown(cancel_futures=True)
        self._client.close()

    @property
    def _timeout_ms(self) -> float:
        """How long an answer may take now."""
        if self._reach_by is None:
            return self._answer_ms
        return min(self._answer_ms, max(1.0, (self._reach_by - time.monotonic()) * 1000))

    def reached(self, within_seconds: float) -> dict[str, SourceTopic]:
        """`topics`, where nobody has been asked before: SourceError where no broker answers within that time."""
        self._reach_by = time.monotonic() + within_seconds
        try:
            return patient(self.topics, within_seconds)
        finally:
            self._reach_by = None

    @_sensible
    def topics(self) -> dict[str, SourceTopic]:
        """The topics that this user may see, by name. Internal ones are left out."""
        request = MetadataRequest(topics=None, allow_auto_topic_creation=False)
        answer = self._ask(None, request)
        self._client.cluster.update_metadata(answer)
        cluster_id = getattr(answer, "cluster_id", None) or None
        source_topics = {}
        for topic in answer.topics:
            if topic.error_code or getattr(topic, "is_internal", False) or topic.name.startswith("__"):
                continue
            topic_id: Any = getattr(topic, "topic_id", None)
            leaders = {
                partition.partition_index: (partition.leader_id, getattr(partition, "leader_epoch", -1))
                for partition in topic.partitions
            }
            has_id = topic_id is not None and topic_id != _NO_ID
            text = base64.urlsafe_b64encode(topic_id.bytes).rstrip(b"=").decode() if has_id else None
            source_topics[topic.name] = SourceTopic(topic.name, text, cluster_id, leaders)
        return source_topics

    def ask(self, topic: SourceTopic, starts: Wanted, most_bytes: int = RESPONSE_BYTES) -> Future[dict[int, Fetched]]:
        """Asks for batches of partitions, of about `most_bytes` at most. Several such questions may be under way; a
        broker answers them in order.
        """
        requests = self._requests(topic, starts, most_bytes)
        sent = list[tuple[Any, Any] | SourceError]()

        def send() -> None:
            for node, request in requests:
                try:
                    sent.append(self._sent(node, request))
                except SourceError as error:
                    sent.append(error)

        self._to_send.append(send)
        return self._thread.submit(self._fetched, starts, sent)

    def _requests(self, topic: SourceTopic, starts: Wanted, most_bytes: int) -> list[tuple[int, FetchRequest]]:
        topic_id = (
            _NO_ID if topic.topic_id is None else uuid.UUID(bytes=base64.urlsafe_b64decode(topic.topic_id + "=="))
        )
        kind = FetchRequest.FetchTopic
        part = FetchRequest.FetchTopic.FetchPartition
        by_leader: dict[int, list[Any]] = {}
        for number, (offset, epoch) in starts.items():
            leader, leader_epoch = topic.leaders[number]
            request = part(
                partition=number,
                current_leader_epoch=leader_epoch,
                fetch_offset=offset,
                last_fetched_epoch=epoch,
                log_start_offset=-1,
                partition_max_bytes=min(_PARTITION_BYTES, most_bytes),
            )
            by_leader.setdefault(leader, []).append(request)
        return [
            (
                leader,
                FetchRequest(
                    replica_id=-1,
                    max_wait_ms=_WAIT_MS,
                    min_bytes=0,  # within max_wait_ms a broker looks, but it does not wait for more
                    max_bytes=most_bytes // len(by_leader),
                    isolation_level=0,
                    session_id=0,
                    session_epoch=-1,
                    topics=[kind(topic=topic.name, topic_id=topic_id, partitions=partitions)],
                    forgotten_topics_data=[],
                    rack_id="",
                    min_version=4,
                    max_version=18 if topic.topic_id is not None else _BY_ID - 1,
                ),
            )
            for leader, partitions in by_leader.items()
        ]

    @_sensible
    def _fetched(self, starts: Wanted, sent: Sequence[tuple[Any, Any] | SourceError]) -> dict[int, Fetched]:
        self._send_waiting()
        fetched = {}
        for answer in self._answers(sent):
            _check(getattr(answer, "error_code", 0))
            for partition in (partition for topic in answer.responses for partition in topic.partitions):
                if partition.partition_index not in starts:
                    raise ValueError("a partition that was not asked for")
                parting = getattr(partition, "diverging_epoch", None)
                parted = None if parting is None or parting.end_offset < 0 else (parting.epoch, parting.end_offset)
                start = getattr(partition, "log_start_offset", -1)
                records = partition.records or b""
                fetched[partition.partition_index] = Fetched(
                    partition.error_code, partition.high_watermark, start, records, parted, answer.API_VERSION
                )
        return fetched

    @_sensible
    def offset(self, topic: SourceTopic, partition: int, time: int, *, is_committed: bool = False) -> int:
        """The log start (EARLIEST) or high watermark (LATEST; `is_committed`: last stable offset) of a partition."""
        kind = ListOffsetsRequest.ListOffsetsTopic
        entry = kind.ListOffsetsPartition(partition_index=partition, current_leader_epoch=-1, timestamp=time)
        request = ListOffsetsRequest(
            replica_id=-1,
            isolation_level=int(is_committed),
            topics=[kind(name=topic.name, partitions=[entry])],
            max_version=7,
        )
        [[answer]] = [each.partitions for each in self._ask(topic.leaders[partition][0], request).topics]
        _check(answer.error_code)
        return int(answer.offset)

    @_sensible
    def end_of_epoch(self, topic: SourceTopic, partition: int, epoch: int) -> tuple[int, int]:
        """(largest epoch up to `epoch`, its end offset) of the leader's log; (-1, -1) where it has none."""
        kind = OffsetForLeaderEpochRequest.OffsetForLeaderTopic
        entry = kind.OffsetForLeaderPartition(partition=partition, current_leader_epoch=-1, leader_epoch=epoch)
        request = OffsetForLeaderEpochRequest(replica_id=-1, topics=[kind(topic=topic.name, partitions=[entry])])
        [[answer]] = [each.partitions for each in self._ask(topic.leaders[partition][0], request).topics]
        _check(answer.error_code)
        return int(answer.leader_epoch), int(answer.end_offset)

    @_sensible
    def settings(
        self, topic: SourceTopic, *, with_defaults: bool = False, names: Sequence[str] | None = None
    ) -> dict[str, str] | None:
        """The topic's own settings (DYNAMIC_TOPIC_CONFIG), or all; None where the cluster does not give them. `names`:
        these alone.
        """
        resource = DescribeConfigsRequest.DescribeConfigsResource(
            resource_type=2, resource_name=topic.name, configuration_keys=names
        )
        request = DescribeConfigsRequest(resources=[resource], include_synonyms=False, include_documentation=False)
        [answer] = self._ask(None, request).results
        if answer.error_code:
            return None
        return {
            each.name: each.value for each in answer.configs if with_defaults or each.config_source == _TOPIC_SETTING
        }

    @_sensible
    def groups(self) -> dict[str, int]:
        """{group: the broker that coordinates it} of the groups that this user may see, share groups left out."""
        self.topics()  # its answer names the brokers
        coordinators: dict[str, int] = {}
        for broker in self._client.cluster.brokers():
            answer = self._ask(broker.node_id, ListGroupsRequest(states_filter=[], types_filter=[]))
            _check(answer.error_code)
            coordinators |= {
                group.group_id: broker.node_id
                for group in answer.groups
                if getattr(group, "group_type", "").lower() != _SHARE
            }
        return coordinators

    @_sensible
    def positions(
        self, group: str, coordinator: int, topics: Iterable[SourceTopic]
    ) -> dict[tuple[str, int], tuple[int, str]]:
        """{(topic, partition): (offset, metadata)} of a group, where it has positions in these topics.

        Transactions that commit offsets have ended.
        """
        kind = OffsetFetchRequest.OffsetFetchRequestTopic
        entries = [kind(name=topic.name, partition_indexes=sorted(topic.leaders)) for topic in topics]
        request = OffsetFetchRequest(group_id=group, topics=entries, require_stable=True, min_version=2, max_version=7)
        answer = self._ask(coordinator, request)
        _check(answer.error_code)
        committed = {}
        for topic in answer.topics:
            for partition in topic.partitions:
                _check(partition.error_code)
                if partition.committed_offset >= 0:
                    position = int(partition.committed_offset), partition.metadata or ""
                    committed[topic.name, partition.partition_index] = position
        return committed

    def _ask(self, node: int | None, request: Any) -> Any:
        return self._thread.submit(lambda: self._answered(self._sent(node, request))).result()

    def _answers(self, sent: Sequence[tuple[Any, Any] | SourceError]) -> list[Any]:
        """What brokers answer that were asked at once. Of brokers that do not, SourceError where none does."""
        answers = []
        errors_of_brokers = []
        for question in sent:
            try:
                if isinstance(question, SourceError):
                    raise question
                answers.append(self._answered(question))
            except SourceError as error:
                errors_of_brokers.append(error)
        if errors_of_brokers and (not answers or not errors_of_brokers[0].is_passing):
            raise errors_of_brokers[0]
        return answers

    def _send_waiting(self) -> None:
        while self._to_send:
            self._to_send.popleft()()

    def _sent(self, node: int | None, request: Any) -> tuple[Any, Any]:
        """A request and its answer to come."""
        with self._as_source_errors(request):
            if node is None:
                self._client.get_broker_version(self._timeout_ms)
                node = self._client.least_loaded_node(bootstrap_fallback=True)
            self._client.await_ready(node, timeout_ms=self._timeout_ms)
            connection = self._client._manager._conns.get(node)
            if isinstance(request, FetchRequest) and connection is not None:
                take_large_frames(connection)
            return request, self._client.send(node, request)

    def _answered(self, sent: tuple[Any, Any]) -> Any:
        request, answer = sent
        with self._as_source_errors(request):
            end = time.monotonic() + self._timeout_ms / 1000
            while not answer.is_done:
                if time.monotonic() > end:
                    raise errors.KafkaTimeoutError("Request timed out")
                self._client.poll(timeout_ms=_POLL_MS, future=answer)
                self._send_waiting()  # before this answer is there
            if answer.failed():
                raise answer.exception
            return answer.value

    def _connection(self, *arguments: Any, **options: Any) -> Any:
        """A connection. What it ends with is kept: kafka-python logs it, tries again, and says in the end that nobody
        answers. A broker that refuses who asks is not asked again and again: it may lock a user out.
        """

        def note(problem: Exception) -> None:
            self._problem = problem
            # Their frames hold the socket.
            problem.__traceback__ = None
            problem.__context__ = None

        problem = self._problem
        if isinstance(problem, _REFUSALS):
            self._problem = None
            raise problem
        connection = self._connect(*arguments, **options)
        if not hasattr(connection, "is_noted"):
            connection.is_noted = True
            connection.init_future.add_errback(note)
            keep_last_answer(connection)
        return connection

    @contextlib.contextmanager
    def _as_source_errors(self, request: Any) -> Iterator[None]:
        try:
            yield
        except (errors.KafkaError, OSError, ValueError) as error:
            # Kafka's errors contain no secrets. Of other errors only the type is shown.
            text = str(error) if isinstance(error, errors.KafkaError) else type(error).__name__
            if isinstance(error, errors.KafkaTimeoutError) and isinstance(self._problem, errors.KafkaError):
                text += f" ({self._problem})"
            is_final = isinstance(error, (*_REFUSALS, errors.UnsupportedVersionError))
            raise SourceError(
                f"{self.servers} does not answer {request.name}: {text}", is_passing=not is_final
            ) from None


def _check(code: int) -> None:
    if code:
        raise error_of(code)


def error_of(code: int) -> SourceError:
    """The error of a broker's error code."""
    kind = errors.for_code(code)
    return SourceError(f"The broker answers {kind.__name__}", is_passing=issubclass(kind, errors.RetriableError))


def patient(ask: Callable[[], T], patience_seconds: float) -> T:
    """What `ask` gives, asked again while the cluster does not answer."""
    begun = time.monotonic()
    pause = FIRST_PAUSE_SECONDS
    while True:
        try:
            return ask()
        except SourceError as error:
            if not error.is_passing or time.monotonic() - begun > patience_seconds:
                raise
        time.sleep(pause)
        pause = min(pause * 2, LONGEST_PAUSE_SECONDS)
