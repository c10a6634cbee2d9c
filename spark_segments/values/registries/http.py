"""A Confluent-compatible schema registry over HTTP: its documented API, with basic or bearer authentication.

Credentials come from the options, or the address's user part; no error and no text shows them.
"""

from __future__ import annotations

import base64
import json
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from typing import Any

from spark_segments.errors import InvalidOptionError
from spark_segments.values.registries.registry import LATEST, Registry, Schema, json_of_schema, schema_of_json

USER_INFO = "basic.auth.user.info"
BEARER_TOKEN = "bearer.auth.token"
OPTIONS = (USER_INFO, BEARER_TOKEN)
ATTEMPTS = 4
_TIMEOUT_SECONDS = 30
_ACCEPT = "application/vnd.schemaregistry.v1+json"
_NOT_FOUND = 404


class HttpRegistry(Registry):
    """A registry's REST API."""

    def __init__(self, address: str, options: Mapping[str, str] | None = None) -> None:
        super().__init__()
        given = {name.lower(): value for name, value in (options or {}).items()}
        if unknown := sorted(set(given) - set(OPTIONS)):
            raise InvalidOptionError("Unknown option of the registry", expected=", ".join(OPTIONS), found=unknown)
        parts = urllib.parse.urlsplit(address.rstrip("/"))
        host = parts.netloc.rpartition("@")[2]
        self.address = urllib.parse.urlunsplit((parts.scheme, host, parts.path, "", ""))
        user_info = given.get(USER_INFO) or urllib.parse.unquote(parts.netloc.rpartition("@")[0])
        self._headers = {"Accept": _ACCEPT, "Content-Type": _ACCEPT}
        if user_info:
            self._headers["Authorization"] = "Basic " + base64.b64encode(user_info.encode()).decode()
        elif given.get(BEARER_TOKEN):
            self._headers["Authorization"] = f"Bearer {given[BEARER_TOKEN]}"

    def __repr__(self) -> str:
        return f"HttpRegistry({self.address!r})"

    def subjects(self) -> dict[str, dict[int, int]]:
        found: dict[str, dict[int, int]] = {}
        for subject in sorted(self._ask("GET", "/subjects") or ()):
            versions = self._ask("GET", f"/subjects/{_quoted(subject)}/versions") or ()
            found[subject] = {
                one: self._ask("GET", f"/subjects/{_quoted(subject)}/versions/{one}")["id"] for one in versions
            }
        return found

    def version(self, subject: str, version: int = LATEST) -> Schema | None:
        name = "latest" if version == LATEST else str(version)
        found = self._ask("GET", f"/subjects/{_quoted(subject)}/versions/{name}")
        return None if found is None else schema_of_json(found, found["id"])

    def register(self, subject: str, schema: Schema) -> int:
        made = self._ask("POST", f"/subjects/{_quoted(subject)}/versions", json_of_schema(schema))
        if made is None:
            raise self.error(f"Cannot register a schema for {subject}")
        return int(made["id"])

    def _load(self, schema_id: int) -> Schema:
        found = self._ask("GET", f"/schemas/ids/{schema_id}")
        if found is None:
            raise self._missing(schema_id)
        return schema_of_json(found, schema_id)

    def _ask(self, method: str, path: str, body: Any = None) -> Any:
        """The reply's JSON, or None for 404. Tries again after failures of the network or the server."""
        data = None if body is None else json.dumps(body).encode()
        for attempt in range(1, ATTEMPTS + 1):
            request = urllib.request.Request(self.address + path, data, self._headers, method=method)
            try:
                with urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS) as reply:
                    return json.loads(reply.read())
            except urllib.error.HTTPError as error:
                if error.code == _NOT_FOUND:
                    return None
                if error.code < 500 or attempt == ATTEMPTS:
                    hint = (
                        "Set schema.registry.basic.auth.user.info=USER:PASSWORD" if error.code in (401, 403) else None
                    )
                    raise self.error(f"The schema registry refused {method} {path}", hint, _reason(error)) from None
            except (OSError, ValueError) as error:
                if attempt == ATTEMPTS:
                    reason = getattr(error, "reason", error)
                    raise self.error(
                        "The schema registry does not answer", "Check schema.registry and the network", reason
                    ) from None
            time.sleep(0.2 * 2 ** (attempt - 1))
        raise AssertionError("the last attempt returns or raises")


def _quoted(subject: str) -> str:
    return urllib.parse.quote(subject, safe="")


def _reason(error: urllib.error.HTTPError) -> str:
    """The registry's message, shortened."""
    try:
        message = json.loads(error.read()).get("message", "")
    except (ValueError, AttributeError, OSError):
        message = ""
    return f"{error.code} {message or error.reason}"[:400]
