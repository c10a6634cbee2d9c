"""The APIs that are served, by their key."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from spark_segments.kafka_protocol.apis import (
    api_versions,
    describe_cluster,
    describe_configs,
    describe_groups,
    describe_topic_partitions,
    fetch,
    find_coordinator,
    heartbeat,
    join_group,
    leave_group,
    list_groups,
    list_offsets,
    metadata,
    offset_commit,
    offset_fetch,
    offset_for_leader_epoch,
    produce,
    sasl_authenticate,
    sasl_handshake,
    sync_group,
)
from spark_segments.kafka_protocol.call import Call


class Api(Protocol):
    """An API: its key, the versions that are served, and the fields of the answer to a call."""

    KEY: int
    VERSIONS: range

    def answer(self, call: Call) -> Mapping[str, Any]: ...


_ALL: list[Any] = [
    api_versions,
    describe_cluster,
    describe_configs,
    describe_groups,
    describe_topic_partitions,
    fetch,
    find_coordinator,
    heartbeat,
    join_group,
    leave_group,
    list_groups,
    list_offsets,
    metadata,
    offset_commit,
    offset_fetch,
    offset_for_leader_epoch,
    produce,
    sasl_authenticate,
    sasl_handshake,
    sync_group,
]
APIS: Mapping[int, Api] = {api.KEY: api for api in _ALL}
VERSIONS: Mapping[int, range] = {key: api.VERSIONS for key, api in APIS.items()}
BEFORE_LOGIN = frozenset({api_versions.KEY, sasl_handshake.KEY, sasl_authenticate.KEY})
"""What may be asked before a client has proved who it is, where it has to."""
