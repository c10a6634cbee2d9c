"""OAuth tokens for SASL's OAUTHBEARER, as Kafka's own client gets them: from a file, or by the grant
`client_credentials` of an endpoint (RFC 6749, 4.4). No error shows a secret or a token.
"""

from __future__ import annotations

import base64
import json
import time
import urllib.parse
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from urllib3.exceptions import HTTPError

from spark_segments.errors import InvalidOptionError, SegmentsError
from spark_segments.http_answers import EndlessAnswerError, answer_to

_ANSWER_SECONDS = 10.0
_SHARE_OF_LIFE = 0.8  # after which a new token is asked for: Kafka's sasl.login.refresh.window.factor
_SHORTEST_SECONDS = 60.0  # how long a token is taken to live whose endpoint does not say
_OK = 200


@dataclass(slots=True)
class Tokens:
    """Tokens of an endpoint, each used until it expires. `endpoint`: an http(s) URL, or file:// and the path of a
    token. `trusted`: a PEM file of certificate authorities, None for the system's.
    """

    endpoint: str
    client_id: str = ""
    client_secret: str = field(default="", repr=False)
    scope: str = ""
    trusted: str | None = None
    _token: str = field(default="", init=False, repr=False)
    _fresh_until: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        try:
            parts = urllib.parse.urlsplit(self.endpoint)
        except ValueError:
            raise InvalidOptionError("No endpoint of tokens", expected="a URL of https, http or file") from None
        if parts.scheme not in ("http", "https", "file"):
            raise InvalidOptionError("No endpoint of tokens", expected="a URL of https, http or file")
        if parts.scheme != "file" and not (self.client_id and self.client_secret):
            raise InvalidOptionError("An endpoint of tokens needs a client", expected="clientId and clientSecret")

    def token(self) -> tuple[str, float]:
        """A token, and when it expires, in seconds since 1970. Raises SegmentsError where there is none to get."""
        if time.time() >= self._fresh_until:
            try:
                self._token, lives_seconds = self._fetched_token()
            except (HTTPError, EndlessAnswerError, OSError, ValueError, KeyError, TypeError, RecursionError) as error:
                raise self._none(type(error).__name__) from None
            self._fresh_until = time.time() + lives_seconds * _SHARE_OF_LIFE
        return self._token, self._fresh_until

    def _none(self, found: str) -> SegmentsError:
        parts = urllib.parse.urlsplit(self.endpoint)
        return SegmentsError("The endpoint of tokens gives none", path=parts.hostname or parts.path, found=found)

    def _fetched_token(self) -> tuple[str, float]:
        parts = urllib.parse.urlsplit(self.endpoint)
        if parts.scheme == "file":
            return Path(urllib.request.url2pathname(parts.path)).read_text(encoding="utf-8").strip(), _SHORTEST_SECONDS
        form = {"grant_type": "client_credentials"} | ({"scope": self.scope} if self.scope else {})
        client = base64.b64encode(f"{self.client_id}:{self.client_secret}".encode()).decode()
        headers = {"Authorization": f"Basic {client}", "Accept": "application/json"}
        # No redirect is followed: neither the secret goes to another place, nor a token comes from one.
        answer = answer_to(
            "POST",
            self.endpoint,
            urllib.parse.urlencode(form).encode(),
            headers | {"Content-Type": "application/x-www-form-urlencoded"},
            end=time.monotonic() + _ANSWER_SECONDS,
            authorities=self.trusted,
        )
        if answer.status != _OK:
            raise self._none(f"status {answer.status}")
        fields: dict[str, Any] = json.loads(answer.body)
        token = fields["access_token"]
        if not isinstance(token, str) or not token:
            raise ValueError("no token")
        return token, float(fields.get("expires_in", _SHORTEST_SECONDS))
