"""The APIs of Kafka's protocol that are served: their keys, their versions, and their answers."""

from __future__ import annotations

from collections.abc import Mapping

from spark_segments.kafka_protocol.serving.api_call import Api
from spark_segments.kafka_protocol.serving.apis import (
    configs,
    connecting,
    deletion,
    fetch,
    groups,
    members,
    offsets,
    positions,
    refused,
    topics,
)

_MODULES = (configs, connecting, deletion, fetch, groups, members, offsets, positions, refused, topics)

APIS: Mapping[int, Api] = {api.key: api for module in _MODULES for api in module.APIS}
VERSIONS: Mapping[int, range] = {key: api.versions for key, api in APIS.items()}
