"""How topics are replayed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from spark_segments.errors import InvalidOptionError
from spark_segments.kafka_protocol.replaying.rehashing import Partitions
from spark_segments.kafka_protocol.replaying.schema_ids import Framed
from spark_segments.quantities import Time, moment_ms

NAME = "segments-replay"
"""The name of a replay that is given none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayOptions:
    """How topics are replayed.

    `name`: the replay's transactional id in the cluster, and the group there that has the replay's positions; one
    process at a time uses it. `client_config`: settings by the names of Kafka's clients. `rename`: {topic: its name
    there}; a name with one `*` is a pattern, and what the `*` stands for takes the place of the `*` in the name there.
    `partitions`: KEEP sends each record to the partition that it has here, REHASH to the one that Kafka's producer
    would choose there by its key, and a record without a key to its partition here modulo their number there.
    `from_time_ms`, `to_time_ms`: the first replay of a partition begins at the first record of that time or later, each
    replay ends before the first record of that time or later. `groups`: names or patterns of groups here. A group of
    such a name that has no positions in the cluster gets the positions here, translated to the new offsets; after a
    REHASH the first record of each partition there that the group has not read.
    `source_registry`, `target_registry`: addresses in the form of the option schema.registry. Schemas are registered in
    the target, and the ids of schemas in the columns `framed` become the target's ids.
    `idempotent`: no transactions, and no gaps in the offsets there. Records are there exactly once only if this replay
    alone writes the topics there, and if a killed replay's requests have arrived before it goes on.
    `max_bytes_per_second`: of keys and values. `patience_seconds`: how long the replay may make no progress.
    """

    name: str = NAME
    client_config: Mapping[str, str] = field(default_factory=dict, repr=False)  # it has secrets
    rename: Mapping[str, str] = field(default_factory=dict)
    partitions: Partitions = Partitions.KEEP
    from_time_ms: Time | None = None
    to_time_ms: Time | None = None
    groups: Sequence[str] = ()
    source_registry: str | None = field(default=None, repr=False)  # both may have secrets
    target_registry: str | None = field(default=None, repr=False)
    framed: Framed = Framed.BOTH
    idempotent: bool = False
    max_bytes_per_second: int | None = None
    patience_seconds: float = 60.0

    def __post_init__(self) -> None:
        for name in ("from_time_ms", "to_time_ms"):  # `2 hours ago` is one time for all topics and rounds
            time = getattr(self, name)
            if time is not None:
                object.__setattr__(self, name, moment_ms(time))


def check_options(options: ReplayOptions) -> None:
    """Raises InvalidOptionError for options that contradict each other."""
    if bool(options.source_registry) != bool(options.target_registry):
        raise InvalidOptionError(
            "Ids of schemas are translated from one registry to another",
            expected="--source-registry and --target-registry",
            found="one of them",
        )
    if options.partitions is Partitions.REHASH and options.idempotent:
        raise InvalidOptionError(
            "Without transactions records keep their partitions",
            expected="--partitions keep, or transactions",
            found="--idempotent --partitions rehash",
        )
