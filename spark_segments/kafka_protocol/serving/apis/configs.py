"""Settings of topics, and the broker settings that clients read."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence, Set
from functools import partial
from typing import Any

from kio.schema.errors import ErrorCode

from spark_segments.config import DEFAULT, FILE, KEYS, TOPIC, TopicConfig
from spark_segments.config.values import BOOLEAN, DOUBLE, INT, LIST, LONG, STRING
from spark_segments.kafka_protocol.own_settings import ERASED_OFFSETS
from spark_segments.kafka_protocol.serving.api_call import NODE_ID, Api, Call
from spark_segments.kafka_protocol.serving.messages import Each
from spark_segments.log import Erasure

_TOPIC = 2  # types of resources
_BROKER = 4
_GROUP = 32
_SOURCES = {TOPIC: 1, FILE: 4, DEFAULT: 5}  # Kafka's DYNAMIC_TOPIC_CONFIG, STATIC_BROKER_CONFIG, DEFAULT_CONFIG
_TYPES = {BOOLEAN: 1, STRING: 2, INT: 3, LONG: 5, DOUBLE: 6, LIST: 7}


def _describe_configs(call: Call) -> dict[str, Any]:
    body = call.request.body
    with_docs = getattr(body, "include_documentation", False)
    taken = {(resource.resource_type, resource.resource_name): resource for resource in body.resources}
    return {"results": Each([*taken.values()], partial(_resource, call, with_docs))}


def _resource(call: Call, with_docs: bool, resource: Any) -> dict[str, Any]:
    code = ErrorCode.none
    message = ""
    configs = []
    names = frozenset(resource.configuration_keys or ())
    with_synonyms = call.request.body.include_synonyms
    if resource.resource_type == _TOPIC:
        view, code = call.topic(resource.resource_name)
        if view is not None:
            configs = _configs(view.config, names, with_docs, with_synonyms)
            if ERASED_OFFSETS in names:
                ranges = json.dumps(Erasure.rewritten(view.snapshot))
                configs.append(_config(ERASED_OFFSETS, ranges, _SOURCES[DEFAULT], _TYPES[STRING], None))
    elif resource.resource_type == _BROKER and resource.resource_name in ("", str(NODE_ID)):
        configs = [
            _config(name, value, _SOURCES[FILE], kind, None)
            for name, (value, kind) in _broker(call).items()
            if not names or name in names
        ]
    elif resource.resource_type != _GROUP:  # a group has settings by the protocol of KIP-848 alone: none here
        code = ErrorCode.invalid_request
        message = "Only topics and the broker have settings"
    return {
        "error_code": code,
        "error_message": message,
        "resource_type": resource.resource_type,
        "resource_name": resource.resource_name,
        "configs": configs,
    }


def _broker(call: Call) -> dict[str, tuple[str, int]]:
    """{setting of the broker: (value, type)}"""
    limits = call.limits
    return {
        "auto.create.topics.enable": ("false", _TYPES[BOOLEAN]),
        "broker.id": (str(NODE_ID), _TYPES[INT]),
        "delete.topic.enable": ("false", _TYPES[BOOLEAN]),
        "connections.max.idle.ms": (str(int(limits.idle_seconds * 1000)), _TYPES[LONG]),
        "fetch.max.bytes": (str(limits.response_bytes), _TYPES[INT]),
        "max.connections": (str(limits.connections), _TYPES[INT]),
        "offset.metadata.max.bytes": (str(limits.metadata_bytes), _TYPES[INT]),
        "socket.request.max.bytes": (str(limits.request_bytes), _TYPES[INT]),
    }


def _configs(config: TopicConfig, names: Set[str], with_docs: bool, with_synonyms: bool) -> list[Mapping[str, Any]]:
    sources = config.sources()
    defaults = TopicConfig().effective()
    configs = []
    for name, value in config.effective().items():
        if names and name not in names:
            continue
        source = sources[name]
        synonyms = _synonyms(name, value, source, defaults[name]) if with_synonyms else []
        doc = KEYS[name].doc if with_docs else None
        configs.append(_config(name, value, _SOURCES[source], _TYPES[KEYS[name].type], doc, synonyms))
    return configs


def _synonyms(name: str, value: str, source: str, default: str) -> list[Mapping[str, Any]]:
    """What a setting's value comes from, the first of which counts: its own source, then Kafka's default. A value of
    the defaults file that a topic's own hides is not named.
    """
    server_name = next((synonym.name for synonym in KEYS[name].server if synonym.factor == 1), name)
    synonyms: list[Mapping[str, Any]] = [{"name": server_name, "value": default, "source": _SOURCES[DEFAULT]}]
    if source != DEFAULT:
        own_name = name if source == TOPIC else server_name
        synonyms.insert(0, {"name": own_name, "value": value, "source": _SOURCES[source]})
    return synonyms


def _config(
    name: str,
    value: str | None,
    source: int,
    kind: int,
    doc: str | None,
    synonyms: Sequence[Mapping[str, Any]] = (),
) -> Mapping[str, Any]:
    return {
        "name": name,
        "value": value,
        "read_only": True,
        "config_source": source,
        "is_sensitive": False,
        "synonyms": [*synonyms],
        "config_type": kind,
        "documentation": doc,
    }


APIS = (Api(32, range(1, 5), _describe_configs),)
