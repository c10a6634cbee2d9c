"""Settings of clients by their Kafka names, and what kafka-python and librdkafka call them. No error shows a value.

A file for another client can be used without changes: a setting without effect here is skipped with a line of output,
as Java's clients do. An unknown setting of TLS or logins is an error, since the connection would differ without it.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from kafka import errors
from kafka.net.sasl.oauth import AbstractTokenProvider

from spark_segments.config.rules import read_properties, shown_setting
from spark_segments.errors import InvalidOptionError, SegmentsError, nearest
from spark_segments.kafka_protocol.oauth_tokens import Tokens

_logger = logging.getLogger(__name__)


_OPTIONS: Mapping[str, tuple[str, Callable[[str], Any]]] = {
    "broker.version.fallback": ("api_version", lambda text: tuple(map(int, text.split(".")))),
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
    "ssl.keystore.key.password": ("ssl_password", str),
    "ssl.truststore.location": ("ssl_cafile", str),
}
_LIBRDKAFKA = {
    "sasl.mechanism": "sasl.mechanisms",
    "ssl.keystore.key.password": "ssl.key.password",
    "ssl.truststore.location": "ssl.ca.location",
}
_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
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
_KEYSTORE = "ssl.keystore.location"
_PEM_TYPES = ("ssl.truststore.type", "ssl.keystore.type")
_LEFT = ("bootstrap.servers", *_PEM_TYPES)
_OF_SECURITY = ("ssl.", "sasl.", "security.")
_OF_NO_EFFECT = re.compile(
    r"sasl\.login\.(refresh|connect|read|retry)\..*"
    r"|ssl\.(keymanager|trustmanager)\.algorithm"
)
"""Settings of TLS and of logins without which a connection is no other one: times, and names of Java's parts."""


def kafka_python_options(settings: Mapping[str, str]) -> dict[str, Any]:
    """kafka-python's options of settings by their Kafka names. Raises InvalidOptionError."""
    options: dict[str, Any] = {}
    for name, value in _checked(settings).items():
        key, convert = _OPTIONS[name]
        try:
            options[key] = convert(value)
        except ValueError:
            raise InvalidOptionError(f"{name} is no number") from None
    tokens = _tokens(settings)
    if tokens is not None:
        options["sasl_oauth_token_provider"] = _TokenProvider(tokens)
    return options


class _TokenProvider(AbstractTokenProvider):  # type: ignore[misc]
    def __init__(self, tokens: Tokens) -> None:
        super().__init__()
        self._tokens = tokens

    def token(self) -> str:
        try:
            return self._tokens.token()[0]
        except SegmentsError as error:  # it ends the connection, whose error shows it
            raise errors.SaslAuthenticationFailedError(str(error)) from None


def librdkafka_options(settings: Mapping[str, str]) -> dict[str, Any]:
    """librdkafka's options of settings by their Kafka names. Raises InvalidOptionError, and SegmentsError where its
    first token of OAUTHBEARER cannot be had: librdkafka would not say why.
    """
    kafka_python_options(settings)
    options: dict[str, Any] = {_LIBRDKAFKA.get(name, name): value for name, value in _checked(settings).items()}
    if options.get("ssl.endpoint.identification.algorithm") == "":
        options["ssl.endpoint.identification.algorithm"] = "none"
    tokens = _tokens(settings)
    if tokens is not None:
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
            value = _of_jaas(settings[_JAAS], name)
            if value is not None:
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
    """Settings with names in _OPTIONS. Settings out of a JAAS text have librdkafka's names."""
    _check_mechanism(settings)
    checked: dict[str, str] = {}
    passed_over: list[str] = []
    for name, value in settings.items():
        if name == _JAAS:
            checked |= _credentials(value, settings)
        elif name in _OPTIONS:
            checked[name] = value
        elif name == _KEYSTORE:
            checked |= {"ssl.certificate.location": value, "ssl.key.location": value}
        elif name not in (*_LEFT, *_TOKENS):
            passed_over.append(name)
    for name in _PEM_TYPES:
        if settings.get(name, "PEM").upper() != "PEM":
            raise InvalidOptionError(
                "A store of keys or certificates of this type cannot be read", expected=f"{name}=PEM"
            )
    for name in passed_over:
        _check_passed_over(name, settings[name])
    if passed_over:
        _tell(tuple(sorted(map(shown_setting, passed_over))))
    return checked


def _check_mechanism(settings: Mapping[str, str]) -> None:
    mechanism = _mechanism(settings)
    if mechanism is None or mechanism.upper() in _MECHANISMS:
        return
    hint = "For MSK, use SCRAM or mutual TLS, which it has, too" if mechanism == "AWS_MSK_IAM" else None
    raise InvalidOptionError(
        "A login of this mechanism is not there",
        expected=f"sasl.mechanism={', '.join(_MECHANISMS)}",
        found=mechanism if mechanism in ("AWS_MSK_IAM", "GSSAPI") else "another",  # it may be a misplaced password
        hint=hint,
    )


def _credentials(jaas: str, settings: Mapping[str, str]) -> dict[str, str]:
    """The name and the password in a JAAS text; none where tokens are the login."""
    if _mechanism(settings) == _OAUTHBEARER:
        return {}
    credentials = {}
    for name in ("username", "password"):
        value = _of_jaas(jaas, name)
        if value is None:
            raise InvalidOptionError(f"{_JAAS} has no {name}", expected=f'{name}="…"')
        credentials[f"sasl.{name}"] = value
    return credentials


def _check_passed_over(name: str, value: str) -> None:
    """Raises InvalidOptionError for a setting that must not be passed over: without one of security the connection
    would be another one, and a slip of the pen may be such a setting, or a secret in the place of a name.
    """
    meant = nearest(name, [*_OPTIONS, *_TOKENS, _JAAS])
    is_slip = shown_setting(name) != name or (meant is not None and meant.startswith(_OF_SECURITY))
    if (name.startswith(_OF_SECURITY) and not _has_no_effect(name, value)) or is_slip:
        expected = ", ".join(sorted([*_OPTIONS, *_TOKENS, _JAAS, _KEYSTORE]))
        raise InvalidOptionError("A client setting that is not known", expected=expected, found=shown_setting(name))


def _has_no_effect(name: str, value: str) -> bool:
    """Whether a setting of TLS or of logins changes nothing. Java's own class that asks for tokens stands for ours."""
    is_own = name == "sasl.login.callback.handler.class" and value.startswith("org.apache.kafka.common.security.oauth")
    return is_own or _OF_NO_EFFECT.fullmatch(name) is not None


@cache
def _tell(names: tuple[str, ...]) -> None:
    """A line on settings that are passed over, once."""
    _logger.warning("client settings without an effect here: %s", ", ".join(names))


def settings_of_file(path: str) -> dict[str, str]:
    """The settings of a client.properties file."""
    try:
        return {name: value for name, (value, _) in read_properties(path).items()}
    except InvalidOptionError as error:
        raise InvalidOptionError("The client's settings cannot be read", path=path, expected=error.expected) from None
