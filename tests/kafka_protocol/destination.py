"""A cluster that mirrors another one (KIP-1279), played: it asks as a broker of 4.5 asks a source, and appends each
batch as it comes, at the source's offset, after its own checks. It knows nothing of the package.
"""

from __future__ import annotations

import socket
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from verification.kafka_protocol.requests import answer_of, request
from verification.specification.specification_reader import Batch, batches
from verification.world.clock import PATIENCE_SECONDS

(
    FETCH, LIST_OFFSETS, METADATA, OFFSET_FETCH, FIND_COORDINATOR,
    LIST_GROUPS, API_VERSIONS, OFFSET_FOR_LEADER_EPOCH, DESCRIBE_ACLS, DESCRIBE_CONFIGS,
) = 1, 2, 3, 9, 10, 16, 18, 23, 29, 32  # fmt: skip
NEWEST = {
    FETCH: 18, LIST_OFFSETS: 10, METADATA: 13, OFFSET_FETCH: 9, FIND_COORDINATOR: 6,
    LIST_GROUPS: 5, API_VERSIONS: 4, OFFSET_FOR_LEADER_EPOCH: 4, DESCRIBE_ACLS: 3, DESCRIBE_CONFIGS: 4,
}  # fmt: skip
"""{API: version} of a source of today."""
OF_2_1 = {
    FETCH: 10, LIST_OFFSETS: 4, METADATA: 7, OFFSET_FETCH: 5, FIND_COORDINATOR: 2,
    LIST_GROUPS: 2, API_VERSIONS: 2, OFFSET_FOR_LEADER_EPOCH: 2, DESCRIBE_ACLS: 1, DESCRIBE_CONFIGS: 2,
}  # fmt: skip
"""Of Kafka 2.1, the oldest source. Its topics have no ids, and its fetches name no last epoch."""

_OUT_OF_RANGE, _FENCED, _UNKNOWN_EPOCH, _SECURITY_DISABLED = 1, 74, 75, 54
_EARLIEST = -2
_FETCH_BYTES = 100_000


@dataclass
class Copy:
    """A partition of the destination: its batches, each as it came. `epochs`: the first offset of each leader epoch."""

    log_start_offset: int = 0
    batches: list[tuple[Batch, bytes]] = field(default_factory=list)
    leader_epoch: int = 0
    """The source's, as Metadata names it."""

    @property
    def log(self) -> bytes:
        return b"".join(data for _, data in self.batches)

    @property
    def end_offset(self) -> int:
        return self.batches[-1][0].last_offset + 1 if self.batches else self.log_start_offset

    @property
    def last_epoch(self) -> int:
        return self.batches[-1][0].leader_epoch if self.batches else -1

    def append(self, data: bytes) -> None:
        """Appends as a follower does: a batch that ends below the log end, that is damaged, or that is of a later epoch
        than the leader's is none of this log.
        """
        for batch in batches(data):
            assert batch.magic == 2
            assert batch.base_offset >= self.end_offset, f"{batch.base_offset} comes after {self.end_offset}"
            assert batch.last_offset >= batch.base_offset
            assert self.last_epoch <= batch.leader_epoch <= self.leader_epoch
            self.batches.append((batch, data[batch.position : batch.position + batch.size]))

    def truncate(self, offset: int) -> None:
        """Cuts off what lies at `offset` or above it."""
        self.batches = [kept for kept in self.batches if kept[0].last_offset < offset]


@dataclass
class Destination:
    """`versions`: what it takes its source for. `is_committed`: it fetches up to the last stable offset."""

    versions: Mapping[int, int] = field(default_factory=lambda: NEWEST)
    is_committed: bool = True
    partitions: dict[tuple[str, int], Copy] = field(default_factory=dict)
    configs: dict[str, dict[str, str | None]] = field(default_factory=dict)
    positions: dict[str, dict[tuple[str, int], int]] = field(default_factory=dict)
    ids: dict[str, uuid.UUID | None] = field(default_factory=dict)

    def synchronize(self, port: int) -> None:
        """Copies all topics of the source up to where they end now, their settings, and the positions of groups."""
        with socket.create_connection(("127.0.0.1", port), PATIENCE_SECONDS) as self._connection:
            served = {one.api_key: one for one in self._ask(API_VERSIONS, {}).api_keys}
            for key, version in self.versions.items():
                assert served[key].min_version <= version <= served[key].max_version, f"API {key} version {version}"
            self._metadata()
            acls = self._ask(DESCRIBE_ACLS, {"resource_type_filter": 1, "operation": 1, "permission_type": 1})
            assert acls.error_code == _SECURITY_DISABLED, "a mirror without an authorizer goes on"
            self._groups()
            for topic, partition in sorted(self.partitions):
                self._copy(topic, partition)

    def _ask(self, key: int, values: Mapping[str, Any]) -> Any:
        self._connection.sendall(request(key, self.versions[key], values))
        return answer_of(self._connection, key, self.versions[key])

    def _metadata(self) -> None:
        for topic in self._ask(METADATA, {"topics": None}).topics:
            assert not topic.error_code
            topic_id = getattr(topic, "topic_id", None)
            assert self.ids.setdefault(topic.name, topic_id) == topic_id, "another topic of this name"
            [described] = self._ask(
                DESCRIBE_CONFIGS,
                {"resource_type": 2, "resource_name": topic.name, "configuration_keys": None},
            ).results
            assert not described.error_code
            self.configs[topic.name] = {entry.name: entry.value for entry in described.configs}
            for partition in topic.partitions:
                copy = self.partitions.setdefault((topic.name, partition.partition_index), Copy())
                assert partition.leader_epoch >= copy.leader_epoch, "a leader epoch never goes back"
                copy.leader_epoch = partition.leader_epoch

    def _groups(self) -> None:
        for group in self._ask(LIST_GROUPS, {"states_filter": (), "types_filter": ()}).groups:
            self._ask(FIND_COORDINATOR, {"key": group.group_id, "coordinator_keys": group.group_id})
            answer = self._ask(OFFSET_FETCH, {"group_id": group.group_id, "topics": None})
            [answer] = getattr(answer, "groups", [answer])
            self.positions[group.group_id] = {
                (topic.name, partition.partition_index): partition.committed_offset
                for topic in answer.topics
                for partition in topic.partitions
            }

    def _copy(self, topic: str, partition: int) -> None:
        copy = self.partitions[topic, partition]
        if self.versions[FETCH] < 12:  # such a source does not say in a fetch where the logs part
            self._part(topic, partition, copy)
        while True:
            answer = self._fetched(topic, partition, copy)
            if answer.error_code == _OUT_OF_RANGE:  # retention took what comes next, or the copy is too long
                copy.log_start_offset = self._earliest(topic, partition)
                copy.batches.clear()
                continue
            assert not answer.error_code
            parted = getattr(answer, "diverging_epoch", None)
            if parted is not None and parted.end_offset >= 0:
                copy.truncate(parted.end_offset)
                continue
            before = copy.end_offset
            copy.append(_whole(bytes(answer.records or b"")))
            end = answer.last_stable_offset if self.is_committed else answer.high_watermark
            if copy.end_offset >= end:
                return
            assert copy.end_offset > before, f"{topic}-{partition} stands at {before} of {end}"

    def _fetched(self, topic: str, partition: int, copy: Copy) -> Any:
        [answer] = self._ask(
            FETCH,
            {
                "replica_id": -1,
                "max_wait": timedelta(0),
                "max_bytes": _FETCH_BYTES,
                "isolation_level": int(self.is_committed),
                "session_epoch": -1,
                "topic": topic,
                "topic_id": self.ids[topic],
                "partition": partition,
                "current_leader_epoch": copy.leader_epoch,
                "fetch_offset": copy.end_offset,
                "last_fetched_epoch": copy.last_epoch,
                "log_start_offset": copy.log_start_offset,
                "partition_max_bytes": _FETCH_BYTES,
                "forgotten_topics_data": (),
            },
        ).responses[0].partitions  # fmt: skip
        return answer

    def _earliest(self, topic: str, partition: int) -> int:
        asked = {"name": topic, "partition_index": partition, "timestamp": _EARLIEST, "current_leader_epoch": -1}
        [answer] = self._ask(LIST_OFFSETS, {"replica_id": -1, **asked}).topics[0].partitions
        assert not answer.error_code
        return int(answer.offset)

    def _part(self, topic: str, partition: int, copy: Copy) -> None:
        if copy.last_epoch < 0:
            return
        asked = {"topic": topic, "partition": partition, "leader_epoch": copy.last_epoch, "replica_id": -1}
        [answer] = self._ask(
            OFFSET_FOR_LEADER_EPOCH, {**asked, "current_leader_epoch": copy.leader_epoch}
        ).topics[0].partitions  # fmt: skip
        assert not answer.error_code
        if 0 <= answer.end_offset < copy.end_offset:
            copy.truncate(answer.end_offset)


def _whole(data: bytes) -> bytes:
    """Without the piece of a batch that a fetch may end with."""
    end = 0
    while len(data) - end >= 12 and len(data) - end >= (size := 12 + int.from_bytes(data[end + 8 : end + 12], "big")):
        end += size
    return data[:end]
