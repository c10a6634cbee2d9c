"""Tokens of OAUTHBEARER: both clients have them from the endpoint or the file that Kafka's settings name."""

from __future__ import annotations

import base64
import contextlib
import json
import socket
import threading
import urllib.parse
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from spark_segments.errors import InvalidOptionError, SegmentsError
from spark_segments.kafka_protocol import ReplayOptions, oauth_tokens, replay
from spark_segments.kafka_protocol.client_settings import kafka_python_options, librdkafka_options
from verification.world.stores.memory_store import memory_log

_JAAS = 'org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required clientId="anna" '
_JAAS += 'clientSecret="hidden" scope="topics";'


class Endpoint(HTTPServer):
    """Gives token 1, token 2, and so on, each for an hour, to whoever knows the secret."""

    asked: list[dict[str, list[str]]]
    lives_seconds = 3600
    elsewhere: str | None = None
    "Where it sends whoever asks."
    gets: list[str | None]
    "The credentials of those who were sent here."


class _Handler(BaseHTTPRequestHandler):
    server: Endpoint

    def do_GET(self) -> None:
        self.server.gets.append(self.headers["Authorization"])
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps({"access_token": "a stranger's"}).encode())

    def do_POST(self) -> None:
        if self.server.elsewhere is not None:
            self.send_response(302)
            self.send_header("Location", self.server.elsewhere)
            self.end_headers()
            return
        form = self.rfile.read(int(self.headers["Content-Length"])).decode()
        is_anna = self.headers["Authorization"] == f"Basic {base64.b64encode(b'anna:hidden').decode()}"
        self.server.asked.append(urllib.parse.parse_qs(form))
        answer = {"access_token": f"token {len(self.server.asked)}", "expires_in": self.server.lives_seconds}
        self.send_response(200 if is_anna else 401)
        self.end_headers()
        self.wfile.write(json.dumps(answer).encode())

    def log_message(self, *_: Any) -> None:
        """Nothing: pytest shows the rest."""


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with Endpoint(("127.0.0.1", 0), _Handler) as server:
        server.asked, server.gets = [], []
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def settings(endpoint: Endpoint, **others: str) -> dict[str, str]:
    return {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.token.endpoint.url": f"http://127.0.0.1:{endpoint.server_port}/token",
        "sasl.jaas.config": _JAAS,
    } | others


def test_both_clients_have_a_token_of_the_endpoint_as_long_as_it_lives(endpoint):
    provider = kafka_python_options(settings(endpoint))["sasl_oauth_token_provider"]
    assert [provider.token(), provider.token()] == ["token 1"] * 2
    assert endpoint.asked == [{"grant_type": ["client_credentials"], "scope": ["topics"]}]
    ask = librdkafka_options(settings(endpoint))["oauth_cb"]
    assert [ask("")[0], ask("")[0]] == ["token 2"] * 2
    endpoint.lives_seconds = 0
    short = kafka_python_options(settings(endpoint))["sasl_oauth_token_provider"]
    assert [short.token(), short.token()] == ["token 3", "token 4"]


def test_a_token_may_lie_in_a_file(tmp_path):
    (tmp_path / "token").write_text("from a file\n")
    url = {"sasl.oauthbearer.token.endpoint.url": (tmp_path / "token").as_uri(), "sasl.mechanism": "OAUTHBEARER"}
    assert kafka_python_options(url)["sasl_oauth_token_provider"].token() == "from a file"


def test_who_gets_no_token_is_told_without_a_secret(endpoint):
    wrong = settings(endpoint) | {"sasl.jaas.config": _JAAS.replace("hidden", "hidden too")}
    with pytest.raises(SegmentsError, match=r"gives none.*status 401") as raised:
        librdkafka_options(wrong)["oauth_cb"]("")
    for missing in ({"sasl.jaas.config": ""}, {"sasl.oauthbearer.token.endpoint.url": "hidden"}):
        with pytest.raises(InvalidOptionError) as other:
            kafka_python_options(settings(endpoint) | missing)
        assert "hidden" not in str(other.value)
    assert "hidden" not in str(raised.value)


def test_no_other_place_is_told_the_secret_and_none_gives_tokens(endpoint):
    endpoint.elsewhere = f"http://localhost:{endpoint.server_port}/of-a-stranger"
    with pytest.raises(SegmentsError, match=r"gives none.*status 302"):
        librdkafka_options(settings(endpoint))["oauth_cb"]("")
    assert endpoint.gets == []


def test_an_answer_without_an_end_is_none(endpoint, monkeypatch):
    monkeypatch.setattr(oauth_tokens, "_ANSWER_SECONDS", 0.5)
    endpoint.lives_seconds = 0
    with socket.create_server(("127.0.0.1", 0)) as slow:
        port = slow.getsockname()[1]
        given = settings(endpoint) | {"sasl.oauthbearer.token.endpoint.url": f"http://127.0.0.1:{port}/token"}
        stop = threading.Event()

        def answer() -> None:
            connection, _ = slow.accept()
            with connection, contextlib.suppress(OSError):
                connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
                while not stop.wait(0.05):
                    connection.sendall(b" ")

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(SegmentsError, match=r"gives none.*TimeoutError"):
            librdkafka_options(given)["oauth_cb"]("")
        stop.set()
        thread.join()


@pytest.mark.parametrize("port", [None, 1])
def test_a_replay_without_a_token_says_why_there_is_none(endpoint, monkeypatch, port):
    monkeypatch.setattr(oauth_tokens, "_ANSWER_SECONDS", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        place = f"http://127.0.0.1:{port or silent.getsockname()[1]}/token"
        given = settings(endpoint) | {"sasl.oauthbearer.token.endpoint.url": place}
        with pytest.raises(SegmentsError, match="endpoint of tokens gives none"):
            replay(memory_log("/log"), "127.0.0.1:1", options=ReplayOptions(client_config=given))


def test_what_is_no_url_is_no_endpoint(endpoint):
    given = settings(endpoint) | {"sasl.oauthbearer.token.endpoint.url": "http://[::1/token"}
    with pytest.raises(InvalidOptionError, match="No endpoint"):
        kafka_python_options(given)
