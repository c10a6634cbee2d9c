"""DescribeConfigs, 1 to 4: the settings of topics. The broker has none that a client could want."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kio.schema.errors import ErrorCode

from spark_segments.config import DEFAULT, FILE, KEYS, TOPIC, TopicConfig
from spark_segments.config.values import BOOLEAN, DOUBLE, INT, LIST, LONG, STRING
from spark_segments.kafka_protocol.call import NODE_ID, Call

KEY = 32
VERSIONS = range(1, 5)

_TOPIC, _BROKER = 2, 4  # types of resources
_SOURCES = {TOPIC: 1, FILE: 4, DEFAULT: 5}  # Kafka's DYNAMIC_TOPIC_CONFIG, STATIC_BROKER_CONFIG, DEFAULT_CONFIG
_TYPES = {BOOLEAN: 1, STRING: 2, INT: 3, LONG: 5, DOUBLE: 6, LIST: 7}


def answer(call: Call) -> dict[str, Any]:
    body = call.request.body
    with_docs = getattr(body, "include_documentation", False)
    return {"results": [_resource(call, one, with_docs) for one in body.resources]}


def _resource(call: Call, asked: Any, with_docs: bool) -> dict[str, Any]:
    code, message, configs = ErrorCode.none, None, []
    if asked.resource_type == _TOPIC:
        view, code = call.topic(asked.resource_name)
        if view is not None:
            configs = _configs(view.config, asked.configuration_keys, with_docs)
    elif asked.resource_type != _BROKER or asked.resource_name not in ("", str(NODE_ID)):
        code, message = ErrorCode.invalid_request, "Only topics and the broker have settings"
    return {
        "error_code": code,
        "error_message": message,
        "resource_type": asked.resource_type,
        "resource_name": asked.resource_name,
        "configs": configs,
    }


def _configs(config: TopicConfig, wanted: Sequence[str] | None, with_docs: bool) -> list[Mapping[str, Any]]:
    sources = config.sources()
    return [
        {
            "name": name,
            "value": value,
            "read_only": True,
            "config_source": _SOURCES[sources[name]],
            "is_sensitive": False,
            "synonyms": [],
            "config_type": _TYPES[KEYS[name].type],
            "documentation": KEYS[name].doc if with_docs else None,
        }
        for name, value in config.effective().items()
        if wanted is None or name in wanted
    ]
