"""Settings of clients by their Kafka names, and what kafka-python and librdkafka call them. No error shows a value."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from spark_segments.config.properties import read_properties
from spark_segments.errors import InvalidOptionError

_OPTIONS: Mapping[str, tuple[str, Callable[[str], Any]]] = {
    "client.id": ("client_id", str),
    "request.timeout.ms": ("request_timeout_ms", int),
    "sasl.mechanism": ("sasl_mechanism", str),
    "sasl.mechanisms": ("sasl_mechanism", str),
    "sasl.password": ("sasl_plain_password", str),
    "sasl.username": ("sasl_plain_username", str),
    "security.protocol": ("security_protocol", str.upper),
    "ssl.ca.location": ("ssl_cafile", str),
    "ssl.certificate.location": ("ssl_certfile", str),
    "ssl.endpoint.identification.algorithm": ("ssl_check_hostname", bool),
    "ssl.key.location": ("ssl_keyfile", str),
    "ssl.key.password": ("ssl_password", str),
    "ssl.truststore.location": ("ssl_cafile", str),
}
_LIBRDKAFKA = {"sasl.mechanism": "sasl.mechanisms", "ssl.truststore.location": "ssl.ca.location"}
_JAAS = "sasl.jaas.config"
_LEFT = ("bootstrap.servers", "ssl.truststore.type")


def kafka_python_options(settings: Mapping[str, str]) -> dict[str, Any]:
    """kafka-python's options of settings by their Kafka names. Raises InvalidOptionError."""
    options: dict[str, Any] = {}
    for name, value in _checked(settings).items():
        key, convert = _OPTIONS[name]
        try:
            options[key] = convert(value)
        except ValueError:
            raise InvalidOptionError(f"{name} is no number") from None
    return options


def librdkafka_options(settings: Mapping[str, str]) -> dict[str, str]:
    """librdkafka's options of settings by their Kafka names. Raises InvalidOptionError."""
    kafka_python_options(settings)
    options = {_LIBRDKAFKA.get(name, name): value for name, value in _checked(settings).items()}
    if options.get("ssl.endpoint.identification.algorithm") == "":
        options["ssl.endpoint.identification.algorithm"] = "none"
    return options


def _checked(settings: Mapping[str, str]) -> dict[str, str]:
    """Settings of names in _OPTIONS; those of a JAAS text by librdkafka's names."""
    found = {}
    for name, value in settings.items():
        if name == _JAAS:
            for ours in ("username", "password"):
                match = re.search(rf'\b{ours}="((?:[^"\\]|\\.)*)"', value)
                if match is None:
                    raise InvalidOptionError(f"{_JAAS} has no {ours}", expected=f'{ours}="…"')
                found[f"sasl.{ours}"] = re.sub(r"\\(.)", r"\1", match[1])
        elif name in _OPTIONS:
            found[name] = value
        elif name not in _LEFT:
            expected = ", ".join(sorted([*_OPTIONS, _JAAS]))
            raise InvalidOptionError("A client setting that is not known", expected=expected, found=name)
    if settings.get("ssl.truststore.type", "PEM").upper() != "PEM":
        raise InvalidOptionError("A trust store of this type cannot be read", expected="ssl.truststore.type=PEM")
    return found


def settings_of_file(path: str) -> dict[str, str]:
    """The settings of a client.properties file."""
    try:
        return {name: value for name, (value, _) in read_properties(path).items()}
    except InvalidOptionError as error:
        raise InvalidOptionError("The client's settings cannot be read", path=path, expected=error.expected) from None
