"""A Kafka cluster as a replay writes it, by librdkafka: topics, positions of groups, and transactions of records."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka import admin as _admin

from spark_segments.errors import InvalidOptionError, SegmentsError
from spark_segments.kafka_protocol.capturing.capture_options import REACH_SECONDS
from spark_segments.kafka_protocol.client_settings import librdkafka_options

T = TypeVar("T")

admin: Any = _admin  # its stubs leave out names that it documents

TRANSACTION_RECORDS = 50_000
"""The most records of a transaction. It is in memory until the cluster has it."""

_TRIES = 5  # of what librdkafka says may be tried again
_PASSING = (KafkaError._MSG_TIMED_OUT, KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT, KafkaError._TIMED_OUT)
_MOST_BYTES = 1_000_000_000
_QUIET = {"log_level": 2}
_WITHOUT_GAPS = {"enable.idempotence": True, "enable.gapless.guarantee": True}


class TargetError(SegmentsError):
    """The cluster did not take what it was sent. `is_passing`: sent again, it may."""

    def __init__(self, message: str, *, is_passing: bool = False, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.is_passing = is_passing


@dataclass(frozen=True, slots=True)
class TargetTopic:
    """A topic of the cluster. `ends`: {partition: log end offset}; `config`: the settings that the cluster gives."""

    ends: Mapping[int, int]
    config: Mapping[str, str]


class TargetCluster:
    """A cluster. Raises TargetError for what it refuses. It is closed at last; not for many threads.

    `name`: of the transactions and of the group whose offsets are the positions.
    """

    def __init__(
        self, servers: str, settings: Mapping[str, str], name: str, timeout_seconds: float, *, idempotent: bool = False
    ) -> None:
        """`idempotent`: without transactions; the positions are committed by themselves."""
        self._servers = servers
        self._name = name
        self._timeout = timeout_seconds
        self._idempotent = idempotent
        self._options: dict[str, Any] = {**librdkafka_options(settings), "bootstrap.servers": servers, **_QUIET}
        self._admin = self._client(_admin.AdminClient, self._options)
        self._group = self._consumer(name)
        self._producer: Producer | None = None
        self._is_reached = False

    def close(self) -> None:
        """Takes back a transaction that is open, and leaves."""
        self._group.close()
        if self._producer is not None:
            with suppress(KafkaException):  # where nothing is to be taken back; else readers there would wait for it
                self._producer.purge()
                if not self._idempotent:
                    self._producer.abort_transaction(self._timeout)
            self._producer = None

    def _consumer(self, group: str) -> Consumer:
        if not group:  # by which librdkafka ends the process
            raise InvalidOptionError("A group, or a replay, has no name", expected="--name NAME", found="''")
        return self._client(Consumer, {**self._options, "group.id": group, "enable.auto.commit": False})

    def _client(self, kind: Callable[[dict[str, Any]], T], options: dict[str, Any]) -> T:
        """A client of librdkafka. Raises InvalidOptionError for settings that it refuses."""
        try:
            return kind(options)
        except KafkaException as error:
            refused: KafkaError = error.args[0]
            if refused.code() != KafkaError._INVALID_ARG:
                raise self._error("no client can be made", error) from None
            found = " ".join(refused.str().split())
            raise InvalidOptionError("librdkafka refuses the client's settings", found=found) from None

    @contextmanager
    def _asking(self, what: str) -> Iterator[None]:
        try:
            yield
        except KafkaException as error:
            raise self._error(what, error) from None

    def _error(self, what: str, raised: KafkaException) -> TargetError:
        error: KafkaError = raised.args[0]
        hint = None
        if error.code() in (KafkaError._FENCED, KafkaError.INVALID_PRODUCER_EPOCH, KafkaError.PRODUCER_FENCED):
            hint = f"Another replay of the name {self._name} is at work, or began later: one at a time"
        passing = error.retriable() or error.txn_requires_abort() or error.code() in _PASSING
        text = f"{self._servers}: {what}: {error.str()} ({error.name()})"
        return TargetError(text, is_passing=passing and not error.fatal(), hint=hint)

    # Topics

    def topics(self, names: list[str]) -> dict[str, TargetTopic]:
        """The existing topics of these names."""
        with self._asking("its topics cannot be read"):
            # Who nobody has reached yet is given less time: a wrong address is to be an error soon.
            reach_seconds = self._timeout if self._is_reached else min(self._timeout, REACH_SECONDS)
            cluster_topics = self._admin.list_topics(timeout=reach_seconds).topics
            self._is_reached = True
            partitions = {name: sorted(cluster_topics[name].partitions) for name in names if name in cluster_topics}
            if not any(partitions.values()):
                return {}
            ends = self._log_ends(partitions)
            configs = self._configs(partitions)
        return {
            name: TargetTopic({number: ends[name, number] for number in numbers}, configs[name])
            for name, numbers in partitions.items()
        }

    def _log_ends(self, partitions: Mapping[str, Sequence[int]]) -> dict[tuple[str, int], int]:
        """{(topic, partition): its log end}, open transactions included: other records there must be seen."""
        specs = {
            TopicPartition(name, number): admin.OffsetSpec.latest()
            for name, numbers in partitions.items()
            for number in numbers
        }
        level = IsolationLevel.READ_UNCOMMITTED
        answers = self._admin.list_offsets(specs, isolation_level=level, request_timeout=self._timeout)
        return {(at.topic, at.partition): answer.result().offset for at, answer in answers.items()}

    def _configs(self, names: Iterable[str]) -> dict[str, dict[str, str]]:
        resources = [admin.ConfigResource(admin.ResourceType.TOPIC, name) for name in names]
        answers = self._admin.describe_configs(resources, request_timeout=self._timeout)
        return {
            topic.name: {setting.name: setting.value for setting in answer.result().values()}
            for topic, answer in answers.items()
        }

    def create_topic(self, name: str, partitions: int, config: Mapping[str, str]) -> None:
        """Makes a topic, with as many replicas as the cluster has by default."""
        with self._asking(f"topic {name} cannot be created"):
            topic = admin.NewTopic(name, partitions, -1, config=dict(config))
            [answer] = self._admin.create_topics([topic], request_timeout=self._timeout).values()
            answer.result()

    # Positions

    def positions(self, partitions: Mapping[str, int], group: str | None = None) -> dict[tuple[str, int], Any]:
        """{(topic, partition): TopicPartition} with the offsets of a group, by default the replay's, where it has some.

        `partitions`: how many a topic has. Offsets of a transaction that has not ended are waited for.
        """
        consumer = self._group if group is None else self._consumer(group)
        keys = [TopicPartition(name, number) for name, count in partitions.items() for number in range(count)]
        try:
            with self._asking(f"the offsets of group {group or self._name} cannot be read"):
                positions = consumer.committed(keys, timeout=self._timeout)
        finally:
            if group is not None:
                consumer.close()
        return {(position.topic, position.partition): position for position in positions if position.offset >= 0}

    def commit_group(self, group: str, offsets: Mapping[tuple[str, int], tuple[int, str]]) -> None:
        """Gives a group without members {(topic, partition): (offset, metadata)}."""
        consumer = self._consumer(group)
        try:
            self._move(consumer, group, offsets)
        finally:
            consumer.close()

    def _move(self, consumer: Consumer, group: str, offsets: Mapping[tuple[str, int], tuple[int, str]]) -> None:
        with self._asking(f"group {group} cannot be moved"):
            for position in consumer.commit(offsets=_partitions(offsets), asynchronous=False) or ():
                if position.error is not None:
                    raise KafkaException(position.error)

    # Transactions

    def begin(self, largest_record_bytes: int | None = None) -> None:
        """Takes over the transactional id: it fences the producer that had it before, and ends its transactions."""
        options = {
            **self._options,
            **(_WITHOUT_GAPS if self._idempotent else {"transactional.id": self._name}),
            "message.max.bytes": min(largest_record_bytes or _MOST_BYTES, _MOST_BYTES),
            "queue.buffering.max.messages": 2 * TRANSACTION_RECORDS,
            "linger.ms": 20,
        }
        self._producer = self._client(Producer, options)
        if self._idempotent:
            return
        with self._asking("no transactions can be made"):
            _again(lambda: self.producer.init_transactions(self._timeout))

    @property
    def producer(self) -> Producer:
        """The producer of the transactions. `begin` makes it."""
        assert self._producer is not None
        return self._producer

    def begin_transaction(self) -> None:
        """Begins a transaction."""
        if self._idempotent:
            return
        with self._asking("a transaction cannot be begun"):
            self.producer.begin_transaction()

    def flush(self) -> None:
        """Waits for the cluster's answer to each record."""
        if self.producer.flush(self._timeout):
            raise TargetError(f"{self._servers} takes no records", is_passing=True)

    def commit(self, positions: Mapping[tuple[str, int], tuple[int, str]]) -> None:
        """Commits the records of the transaction, with the group's offsets {(topic, partition): (offset, metadata)}."""
        if self._idempotent:
            self._move(self._group, self._name, positions)
            return
        offsets = _partitions(positions)
        with self._asking("a transaction cannot be committed"):
            group = self._group.consumer_group_metadata()
            _again(lambda: self.producer.send_offsets_to_transaction(offsets, group, self._timeout))
            _again(lambda: self.producer.commit_transaction(self._timeout))


def _again(ask: Callable[[], Any]) -> None:
    """Asks again what librdkafka says may be asked again, as often as it takes, up to _TRIES. What it does not say so
    of may have happened: asked again, a transaction would be sent twice.
    """
    for tries_left in reversed(range(_TRIES)):
        try:
            ask()
            return
        except KafkaException as error:
            if not tries_left or not error.args[0].retriable():
                raise


def _partitions(offsets: Mapping[tuple[str, int], tuple[int, str]]) -> list[TopicPartition]:
    return [TopicPartition(*key, offset, metadata) for key, (offset, metadata) in offsets.items()]


def delivery_problem(error: KafkaError, what: str) -> TargetError:
    """The error of a record that the cluster did not take."""
    passing = error.retriable() or error.code() in _PASSING
    return TargetError(f"{what} is refused: {error.str()} ({error.name()})", is_passing=passing)
