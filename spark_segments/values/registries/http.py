"""A Confluent-compatible schema registry over HTTP: its documented API, with basic or bearer authentication.

Credentials come from the options, or the address's user part. No error and no text shows them, and no other host gets
them after a redirect. An answer has a bound of bytes and of time.
"""

from __future__ import annotations

import base64
import json
import time
import urllib.parse
from collections.abc import Mapping
from typing import Any

from spark_segments.errors import InvalidOptionError, MissingExtraError, RegistryError
from spark_segments.http_answers import MOST_ANSWER_BYTES, EndlessAnswerError, HttpAnswer, answer_to
from spark_segments.values.registries.registry import (
    LATEST_VERSION,
    Registry,
    Schema,
    context_of,
    json_of_schema,
    qualified_in,
    schema_number,
    schema_of_json,
)

USER_INFO = "basic.auth.user.info"
BEARER_TOKEN = "bearer.auth.token"
OPTIONS = (USER_INFO, BEARER_TOKEN)
ATTEMPTS = 4
MOST_SECONDS = 60.0
"""All attempts at one answer end within this time, however slow the server."""
FIRST_WAIT_SECONDS = 0.2
"""Before the second attempt; it doubles before each further one."""
_REDIRECTS = 5
_ACCEPT = "application/vnd.schemaregistry.v1+json"
_NOT_FOUND, _TOO_MANY, _FIRST_OF_SERVER = 404, 429, 500


class HttpRegistry(Registry):
    """A registry's REST API."""

    def __init__(self, address: str, options: Mapping[str, str] | None = None) -> None:
        super().__init__()
        settings = {name.lower(): value for name, value in (options or {}).items()}
        unknown = sorted(set(settings) - set(OPTIONS))
        if unknown:
            raise InvalidOptionError("Unknown option of the registry", expected=", ".join(OPTIONS), found=unknown)
        try:
            parts = urllib.parse.urlsplit(address.rstrip("/"))
            right = bool(parts.hostname) and parts.port != 0  # `port` raises ValueError for what is no port
        except ValueError:
            right = False
        if not right:  # its text may have a password in it
            raise InvalidOptionError("schema.registry is no address", expected="such as https://registry:8081")
        host = parts.netloc.rpartition("@")[2]
        self.address = urllib.parse.urlunsplit((parts.scheme, host, parts.path, "", ""))
        user_info = settings.get(USER_INFO) or urllib.parse.unquote(parts.netloc.rpartition("@")[0])
        token = settings.get(BEARER_TOKEN, "")
        if not (token.isascii() and token.isprintable()):  # the error of the HTTP library would show it
            raise InvalidOptionError(f"Option schema.registry.{BEARER_TOKEN} has characters that a token cannot have")
        self._headers = {"Accept": _ACCEPT, "Content-Type": _ACCEPT}
        if user_info:
            self._headers["Authorization"] = "Basic " + base64.b64encode(user_info.encode()).decode()
        elif token:
            self._headers["Authorization"] = f"Bearer {token}"

    def __repr__(self) -> str:
        return f"HttpRegistry({self.address!r})"

    def subjects(self) -> dict[str, dict[int, int]]:
        subjects: dict[str, dict[int, int]] = {}
        with self._understood("The schema registry's list of subjects"):
            for subject in sorted(_texts(self._ask("GET", "/subjects") or [])):
                path = f"/subjects/{_quoted(subject)}/versions"
                versions = [schema_number(number) for number in self._ask("GET", path) or []]
                answers = {version: self._ask("GET", f"{path}/{version}") for version in versions}
                # A subject or a version may be deleted between the requests.
                subjects[subject] = {
                    version: schema_number(answer["id"]) for version, answer in answers.items() if answer is not None
                }
        return subjects

    def version(self, subject: str, version: int = LATEST_VERSION) -> Schema | None:
        name = "latest" if version == LATEST_VERSION else str(version)
        with self._understood(f"The schema registry's answer for {subject}"):
            answer = self._ask("GET", f"/subjects/{_quoted(subject)}/versions/{name}")
            return None if answer is None else schema_of_json(answer, schema_number(answer["id"]), context_of(subject))

    def register(self, subject: str, schema: Schema) -> int:
        with self._understood(f"The schema registry's answer for {subject}"):
            answer = self._ask("POST", f"/subjects/{_quoted(subject)}/versions", json_of_schema(schema))
            if answer is None:
                raise self.error(f"Cannot register a schema for {subject}")
            return schema_number(answer["id"])

    def _load(self, context: str, schema_id: int) -> Schema:
        with self._understood(f"The schema registry's answer for the schema {schema_id}"):
            subject = f"?subject={_quoted(qualified_in(context, ''))}" if context else ""
            answer = self._ask("GET", f"/schemas/ids/{schema_id}{subject}")
            if answer is None:
                raise self._missing(context, schema_id)
            return schema_of_json(answer, schema_id, context)

    def _load_guid(self, guid: str) -> Schema:
        with self._understood(f"The schema registry's answer for the schema {guid}"):
            answer = self._ask("GET", f"/schemas/guids/{guid}")
            return super()._load_guid(guid) if answer is None else schema_of_json({**answer, "guid": guid}, None)

    def _ask(self, method: str, path: str, body: Any = None) -> Any:
        """The answer's JSON, or None for 404. Tries again after failures of the network or the server."""
        try:
            from urllib3.exceptions import HTTPError
        except ModuleNotFoundError as error:
            raise MissingExtraError("registry", "Schema registries over HTTP", "urllib3") from error

        data = None if body is None else json.dumps(body).encode()
        end = time.monotonic() + MOST_SECONDS
        for attempt in range(1, ATTEMPTS + 1):
            cause: Exception | None = None
            may_pass = True
            try:
                answer = answer_to(method, self.address + path, data, self._headers, end=end, redirects=_REDIRECTS)
                if answer.status == _NOT_FOUND:
                    return None
                if answer.status < 300:
                    return json.loads(answer.body)
                # What a registry refuses once it refuses again. An error of its own, or too many requests, may pass.
                may_pass = answer.status >= _FIRST_OF_SERVER or answer.status == _TOO_MANY
                failure = self._refused(method, path, answer)
            except TimeoutError:  # of all attempts together: no time is left for another
                raise self._late() from None
            except EndlessAnswerError:
                raise self.error(
                    "The schema registry's answer has no end", found=f"more than {MOST_ANSWER_BYTES >> 20} MiB"
                ) from None
            except (HTTPError, OSError) as error:
                failure = self._unreachable(error)
            except (ValueError, RecursionError) as error:  # cut on its way, or no registry's
                failure = self._no_registry()
                cause = error
            if attempt == ATTEMPTS or not may_pass:
                raise failure from cause
            time.sleep(max(0.0, min(FIRST_WAIT_SECONDS * 2 ** (attempt - 1), end - time.monotonic())))
        raise AssertionError("the last attempt returns or raises")

    def _late(self) -> RegistryError:
        return self.error(
            "The schema registry does not answer in time",
            "Check schema.registry and the network",
            f"no whole answer within {MOST_SECONDS:.0f} s",
        )

    def _unreachable(self, error: Exception) -> RegistryError:
        found = str(getattr(error, "reason", None) or error).rpartition(": ")[2][:200]
        return self.error("The schema registry does not answer", "Check schema.registry and the network", found)

    def _no_registry(self) -> RegistryError:
        return self.error("What answers is no schema registry", "Check schema.registry", "an answer that is no JSON")

    def _refused(self, method: str, path: str, answer: HttpAnswer) -> RegistryError:
        return self.error(f"The schema registry refused {method} {path}", self._advice(answer), _reason(answer))

    def _advice(self, answer: HttpAnswer) -> str | None:
        if answer.status not in (401, 403):
            return None
        host = urllib.parse.urlsplit(answer.address).netloc
        if host and host != urllib.parse.urlsplit(self.address).netloc:
            return f"The registry redirects to {host}, which is sent no credentials: set schema.registry to it"
        return "Set schema.registry.basic.auth.user.info=USER:PASSWORD"


def _quoted(subject: str) -> str:
    return urllib.parse.quote(subject, safe="")


def _texts(value: Any) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
        raise ValueError("no list of names")
    return value


def _reason(answer: HttpAnswer) -> str:
    """The registry's message, shortened."""
    try:
        message = str(json.loads(answer.body)["message"])
    except (ValueError, TypeError, KeyError, RecursionError):
        message = ""
    return f"{answer.status} {message}".strip()[:400]
