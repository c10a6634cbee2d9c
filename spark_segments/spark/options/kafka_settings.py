"""The names of the settings of Kafka's clients, which options have under `kafka.`. Any other is a misspelling."""

from __future__ import annotations

from collections.abc import Iterable

from spark_segments.errors import nearest

COMMON_SETTINGS = frozenset(
    (
        "bootstrap.controllers",
        "bootstrap.resolve.timeout.ms",
        "bootstrap.servers",
        "client.dns.lookup",
        "client.id",
        "client.rack",
        "connections.max.idle.ms",
        "default.api.timeout.ms",
        "enable.metrics.push",
        "interceptor.classes",
        "metadata.max.age.ms",
        "metadata.recovery.rebootstrap.trigger.ms",
        "metadata.recovery.strategy",
        "metric.reporters",
        "metrics.num.samples",
        "metrics.recording.level",
        "metrics.sample.window.ms",
        "receive.buffer.bytes",
        "reconnect.backoff.max.ms",
        "reconnect.backoff.ms",
        "request.timeout.ms",
        "retries",
        "retry.backoff.max.ms",
        "retry.backoff.ms",
        "security.protocol",
        "security.providers",
        "send.buffer.bytes",
        "socket.connection.setup.timeout.max.ms",
        "socket.connection.setup.timeout.ms",
    )
)
CONSUMER_SETTINGS = frozenset(
    (
        "allow.auto.create.topics",
        "auto.commit.interval.ms",
        "auto.offset.reset",
        "check.crcs",
        "enable.auto.commit",
        "exclude.internal.topics",
        "fetch.max.bytes",
        "fetch.max.wait.ms",
        "fetch.min.bytes",
        "group.id",
        "group.instance.id",
        "group.protocol",
        "group.remote.assignor",
        "heartbeat.interval.ms",
        "isolation.level",
        "key.deserializer",
        "max.partition.fetch.bytes",
        "max.poll.interval.ms",
        "max.poll.records",
        "partition.assignment.strategy",
        "session.timeout.ms",
        "share.acknowledgement.mode",
        "share.acquire.mode",
        "value.deserializer",
    )
)
PRODUCER_SETTINGS = frozenset(
    (
        "acks",
        "batch.size",
        "buffer.memory",
        "compression.gzip.level",
        "compression.lz4.level",
        "compression.type",
        "compression.zstd.level",
        "delivery.timeout.ms",
        "enable.idempotence",
        "key.serializer",
        "linger.ms",
        "max.block.ms",
        "max.in.flight.requests.per.connection",
        "max.request.size",
        "metadata.max.idle.ms",
        "partitioner.adaptive.partitioning.enable",
        "partitioner.availability.timeout.ms",
        "partitioner.class",
        "partitioner.ignore.keys",
        "transaction.timeout.ms",
        "transaction.two.phase.commit.enable",
        "transactional.id",
        "value.serializer",
    )
)
_SETTINGS = COMMON_SETTINGS | CONSUMER_SETTINGS | PRODUCER_SETTINGS

# Open families: login modules, key stores and reporters read names of their own.
_PREFIXES = ("internal.", "metrics.context.", "sasl.", "ssl.")


def is_setting(name: str) -> bool:
    """Whether Kafka's clients, or what is plugged into them, know a setting of this name."""
    return name in _SETTINGS or name.startswith(_PREFIXES)


def nearest_setting(name: str, others: Iterable[str] = ()) -> str | None:
    """The setting, or one of the `others`, that is most likely meant; None where none is similar."""
    return nearest(name, _SETTINGS.union(others))
