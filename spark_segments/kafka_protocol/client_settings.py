"""Settings of clients by their Kafka names, and what kafka-python and librdkafka call them. No error shows a value."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from kafka import errors
from kafka.net.sasl.oauth import AbstractTokenProvider

from spark_segments.config.rules import read_properties, shown_setting
from spark_segments.errors import InvalidOptionError, SegmentsError
from spark_segments.kafka_protocol.oauth_tokens import Tokens


def _version(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(".")))


_OPTIONS: Mapping[str, tuple[str, Callable[[str], Any]]] = {
    "broker.version.fallback": ("api_version", _version),
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
_TOKENS: Mapping[str, str] = {
    "sasl.oauthbearer.client.credentials.client.id": "client_id",
    "sasl.oauthbearer.client.credentials.client.secret": "client_secret",
    "sasl.oauthbearer.client.id": "client_id",
    "sasl.oauthbearer.client.secret": "client_secret",
    "sasl.oauthbearer.scope": "scope",
    "sasl.oauthbearer.token.endpoint.url": "endpoint",
}
_OAUTHBEARER = "OAUTHBEARER"
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
    if (tokens := _tokens(settings)) is not None:
        options["sasl_oauth_token_provider"] = _TokenProvider(tokens)
    return options


class _TokenProvider(AbstractTokenProvider):  # type: ignore[misc]
    def __init__(self, tokens: Tokens) -> None:
        super().__init__()
        self._tokens = tokens

    def token(self) -> str:
        try:
            return self._tokens.token()[0]
        except SegmentsError as error:  # it ends the connection, by which it is told
            raise errors.SaslAuthenticationFailedError(str(error)) from None


def librdkafka_options(settings: Mapping[str, str]) -> dict[str, Any]:
    """librdkafka's options of settings by their Kafka names. Raises InvalidOptionError, and SegmentsError where its
    first token of OAUTHBEARER cannot be had: librdkafka would not say why.
    """
    kafka_python_options(settings)
    options: dict[str, Any] = {_LIBRDKAFKA.get(name, name): value for name, value in _checked(settings).items()}
    if options.get("ssl.endpoint.identification.algorithm") == "":
        options["ssl.endpoint.identification.algorithm"] = "none"
    if (tokens := _tokens(settings)) is not None:
        tokens.token()
        options["oauth_cb"] = lambda _: tokens.token()
    return options


def _tokens(settings: Mapping[str, str]) -> Tokens | None:
    """Where tokens of OAUTHBEARER come from; None for another mechanism."""
    if _mechanism(settings) != _OAUTHBEARER:
        return None
    arguments = {_TOKENS[name]: value for name, value in settings.items() if name in _TOKENS}
    if _JAAS in settings:
        for name, ours in (("clientId", "client_id"), ("clientSecret", "client_secret"), ("scope", "scope")):
            if (value := _of_jaas(settings[_JAAS], name)) is not None:
                arguments[ours] = value
    arguments.setdefault("endpoint", "")
    trusted = settings.get("ssl.truststore.location", settings.get("ssl.ca.location"))
    return Tokens(**arguments, trusted=trusted)


def _mechanism(settings: Mapping[str, str]) -> str | None:
    return settings.get("sasl.mechanism", settings.get("sasl.mechanisms"))


def _of_jaas(text: str, name: str) -> str | None:
    match = re.search(rf'\b{name}="((?:[^"\\]|\\.)*)"', text)
    return None if match is None else re.sub(r"\\(.)", r"\1", match[1])


def _checked(settings: Mapping[str, str]) -> dict[str, str]:
    """Settings of names in _OPTIONS; those of a JAAS text by librdkafka's names."""
    checked = {}
    for name, value in settings.items():
        if name == _JAAS:
            for ours in () if _mechanism(settings) == _OAUTHBEARER else ("username", "password"):
                said = _of_jaas(value, ours)
                if said is None:
                    raise InvalidOptionError(f"{_JAAS} has no {ours}", expected=f'{ours}="…"')
                checked[f"sasl.{ours}"] = said
        elif name in _OPTIONS:
            checked[name] = value
        elif name not in (*_LEFT, *_TOKENS):
            expected = ", ".join(sorted([*_OPTIONS, *_TOKENS, _JAAS]))
            raise InvalidOptionError("A client setting that is not known", expected=expected, found=shown_setting(name))
    if settings.get("ssl.truststore.type", "PEM").upper() != "PEM":
        raise InvalidOptionError("A trust store of this type cannot be read", expected="ssl.truststore.type=PEM")
    return checked


def settings_of_file(path: str) -> dict[str, str]:
    """The settings of a client.properties file."""
    try:
        return {name: value for name, (value, _) in read_properties(path).items()}
    except InvalidOptionError as error:
        raise InvalidOptionError("The client's settings cannot be read", path=path, expected=error.expected) from None
