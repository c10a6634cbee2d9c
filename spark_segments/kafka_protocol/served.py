"""The APIs that are served, by their key: a module of `apis` each."""

from __future__ import annotations

import pkgutil
from collections.abc import Mapping
from importlib import import_module
from typing import Any, Protocol

from spark_segments.kafka_protocol import apis
from spark_segments.kafka_protocol.apis import api_versions, sasl_authenticate, sasl_handshake
from spark_segments.kafka_protocol.call import Call


class Api(Protocol):
    """An API: its key, the versions that are served, and the fields of the answer to a call."""

    KEY: int
    VERSIONS: range

    def answer(self, call: Call) -> Mapping[str, Any]: ...


_ALL: list[Any] = [import_module(f"{apis.__name__}.{module.name}") for module in pkgutil.iter_modules(apis.__path__)]
APIS: Mapping[int, Api] = {api.KEY: api for api in _ALL}
VERSIONS: Mapping[int, range] = {key: api.VERSIONS for key, api in APIS.items()}
BEFORE_LOGIN = frozenset({api_versions.KEY, sasl_handshake.KEY, sasl_authenticate.KEY})
"""What may be asked before a client has proved who it is, where it has to."""
