"""A proxy in front of an object store on loopback: it delays requests, counts them, and plays a store's failures.

    with store_proxy(options) as proxy:                     # options: of the store behind
        log = LogDir.create(uri, proxy.options)
        proxy.play(lambda request: SLOW_DOWN if request.operation == "PUT" else None)
        proxy.counts()                                      # {"GET": 3, "PUT": 1, …}

`python -m verification.world.stores.store_proxy ENDPOINT --delay-ms 50 --line-mb-per-second 300` runs it in a process
of its own, for benchmarks.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from verification.world.checkout import ROOT

ENDPOINT = "AWS_ENDPOINT_URL"

SLOW_DOWN = "slow down"  # 503 SlowDown, as S3 throttles; the store does not see the request
INTERNAL_ERROR = "internal error"  # 500
LOSE_REPLY = "lose the reply"  # the store carries the request out, and the connection ends without an answer
HANG_UP = "hang up"  # the connection ends before the store sees the request
REFUSE = "refuse"  # 403 SignatureDoesNotMatch, which names the key
NO_UPLOAD = "no such upload"  # 404, as a store answers that has ended the upload before
HALF_REPLY = "half a reply"  # the connection ends in the middle of the answer's body

_ERRORS = {
    SLOW_DOWN: (503, "SlowDown", "Please reduce your request rate."),
    INTERNAL_ERROR: (500, "InternalError", "We encountered an internal error. Please try again."),
    NO_UPLOAD: (404, "NoSuchUpload", "The specified upload does not exist."),
    REFUSE: (403, "SignatureDoesNotMatch", "The signature does not match: {authorization}"),
}
_PIECE_BYTES = 1 << 20
_NOT_FORWARDED = {"connection", "keep-alive", "expect", "transfer-encoding", "proxy-connection"}


@dataclass(frozen=True, slots=True)
class Request:
    """A request as the store gets it. `path` is decoded; `range` is the header Range, "" without it."""

    method: str
    path: str
    query: Mapping[str, list[str]]
    range: str

    @property
    def operation(self) -> str:
        """GET, HEAD, PUT, DELETE, LIST; of multipart uploads START, PART, COMPLETE and ABORT."""
        query = self.query
        if "uploads" in query:
            return "START"
        if "uploadId" in query:
            return {"PUT": "PART", "POST": "COMPLETE", "DELETE": "ABORT"}.get(self.method, "LIST PARTS")
        if self.method == "POST" and "delete" in query:
            return "DELETE MANY"
        if self.method == "GET" and ("list-type" in query or "prefix" in query or self.key == ""):
            return "LIST"
        return self.method

    @property
    def key(self) -> str:
        """The object's key, "" for a request of the bucket."""
        return self.path.lstrip("/").partition("/")[2]


Play = Callable[[Request], str | None]


class StoreProxy:
    """See the module. `requests` has every request so far, those that failed by play included."""

    def __init__(
        self,
        options: Mapping[str, str],
        *,
        delay_seconds: float = 0.0,
        line_bytes_per_second: float = 0.0,
        keeps_requests: bool = True,
    ) -> None:
        """`line_bytes_per_second`: what all answers together bring at most; 0 for all that the store gives."""
        self._backend = urlsplit(options[ENDPOINT]).netloc
        self.delay_seconds = delay_seconds
        self._line_bytes_per_second, self._line_is_free = line_bytes_per_second, 0.0
        self.requests: list[Request] = []
        self.played: Counter[str] = Counter()
        self._counts: Counter[str] = Counter()
        self._keeps_requests = keeps_requests
        self._play: Play | None = None
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self.endpoint = f"http://127.0.0.1:{self._server.server_address[1]}"
        self.options = {**options, ENDPOINT: self.endpoint}
        self.meet: Callable[[Request], None] | None = None
        """Called with each request, of several requests at the same time: requests can wait for each other."""
        self.ignores_conditions = False
        """Whether `If-None-Match` is taken out of requests, as some stores do that claim S3's interface."""
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def play(self, play: Play | None) -> None:
        """From now on `play(request)` chooses a failure for each request; None lets it through."""
        with self._lock:
            self._play = play

    def counts(self) -> Counter[str]:
        """How many requests there were so far, by operation."""
        with self._lock:
            return Counter(self._counts)

    @contextlib.contextmanager
    def counted(self) -> Iterator[Counter[str]]:
        """The requests within, by operation, once the block has ended."""
        before, found = self.counts(), Counter[str]()
        yield found
        found.update(self.counts() - before)

    def _wait_for_line(self, count: int) -> None:
        """Waits until the line has carried so many bytes, after those that are on it already."""
        if not self._line_bytes_per_second:
            return
        with self._lock:
            now = time.monotonic()
            self._line_is_free = max(self._line_is_free, now) + count / self._line_bytes_per_second
            wait = self._line_is_free - now
        time.sleep(wait)

    def _note(self, request: Request) -> str | None:
        if self.meet is not None:
            self.meet(request)
        with self._lock:
            self._counts[request.operation] += 1
            if self._keeps_requests:
                self.requests.append(request)
            action = None if self._play is None else self._play(request)
            if action is not None:
                self.played[action] += 1
            return action

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            wbufsize = -1  # the head of an answer goes out with its body

            def setup(self) -> None:
                super().setup()
                self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._store: http.client.HTTPConnection | None = None

            def finish(self) -> None:
                with contextlib.suppress(OSError):
                    super().finish()
                if self._store is not None:
                    self._store.close()

            def log_message(self, *_: Any) -> None:
                pass

            def handle_expect_100(self) -> bool:
                super().handle_expect_100()
                self.wfile.flush()  # the client waits for it
                return True

            def handle_one_request(self) -> None:
                try:
                    super().handle_one_request()
                except OSError:
                    self.close_connection = True

            def _serve(self) -> None:
                parts = urlsplit(self.path)
                query = parse_qs(parts.query, keep_blank_values=True)
                request = Request(self.command, unquote(parts.path), query, self.headers.get("Range", ""))
                body = self._body()
                action = proxy._note(request)
                if proxy.delay_seconds:
                    time.sleep(proxy.delay_seconds)
                if action in _ERRORS:
                    status, code, message = _ERRORS[action]
                    self._error(status, code, message.format(authorization=self.headers.get("Authorization", "")))
                elif action == HANG_UP:
                    self.close_connection = True
                else:
                    self._forward(body, action)

            do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _serve

            def _body(self) -> bytes:
                if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
                    return self.rfile.read(int(self.headers.get("Content-Length") or 0))
                parts = []
                while size := int(self.rfile.readline().split(b";")[0], 16):
                    parts.append(self.rfile.read(size))
                    self.rfile.readline()
                while self.rfile.readline().strip():
                    pass
                return b"".join(parts)

            def _error(self, status: int, code: str, message: str) -> None:
                text = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>{message}</Message></Error>".encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/xml")
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(text)
                self.wfile.flush()

            def _answer(self, body: bytes, headers: dict[str, str]) -> http.client.HTTPResponse:
                kept, self._store = self._store, None
                if kept is not None:
                    with contextlib.suppress(OSError, http.client.HTTPException):  # the store has ended it meanwhile
                        kept.request(self.command, self.path, body=body, headers=headers)
                        answer = kept.getresponse()
                        self._store = kept
                        return answer
                self._store = http.client.HTTPConnection(proxy._backend)
                self._store.request(self.command, self.path, body=body, headers=headers)
                return self._store.getresponse()

            def _forward(self, body: bytes, action: str | None) -> None:
                headers = {name: text for name, text in self.headers.items() if name.lower() not in _NOT_FORWARDED}
                headers["Content-Length"] = str(len(body))
                if proxy.ignores_conditions:
                    headers = {name: text for name, text in headers.items() if name.lower() != "if-none-match"}
                answer = self._answer(body, headers)
                if action == LOSE_REPLY:
                    answer.read()
                    self.close_connection = True
                    return
                self.send_response_only(answer.status, answer.reason)
                for name, text in answer.getheaders():
                    if name.lower() not in _NOT_FORWARDED | {"content-length"}:
                        self.send_header(name, text)
                length = answer.getheader("Content-Length")
                if self.command == "HEAD" or answer.status in (204, 304):
                    answer.read()
                    if length is not None:
                        self.send_header("Content-Length", length)
                    self.end_headers()
                    self.wfile.flush()
                    return
                if length is None:
                    content = answer.read()
                    self.send_header("Content-Length", str(len(content)))
                    self.end_headers()
                    self.wfile.write(content)
                    self.wfile.flush()
                    return
                self.send_header("Content-Length", length)
                self.end_headers()
                self.wfile.flush()
                left = int(length) if action != HALF_REPLY else int(length) // 2
                piece = memoryview(bytearray(min(_PIECE_BYTES, max(left, 1))))
                while left and (got := answer.readinto(piece[: min(left, len(piece))])):
                    proxy._wait_for_line(got)
                    self.connection.sendall(piece[:got])
                    left -= got
                if action == HALF_REPLY:
                    self._store.close()
                    self._store = None
                    self.close_connection = True

        return Handler


@contextlib.contextmanager
def store_proxy(options: Mapping[str, str], *, delay_seconds: float = 0.0) -> Iterator[StoreProxy]:
    """A proxy before the S3 service of these storage options, in this process."""
    proxy = StoreProxy(options, delay_seconds=delay_seconds)
    try:
        yield proxy
    finally:
        proxy.close()


@contextlib.contextmanager
def proxy_process(
    options: Mapping[str, str], delay_ms: int, line_mb_per_second: float = 0.0
) -> Iterator[tuple[dict[str, str], Callable[[], Counter[str]]]]:
    """The storage options of a proxy in a process of its own, and a function that says its requests by operation."""
    command = [
        sys.executable,
        "-m",
        "verification.world.stores.store_proxy",
        options[ENDPOINT],
        "--delay-ms",
        str(delay_ms),
    ]
    command += ["--line-mb-per-second", str(line_mb_per_second)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, cwd=ROOT, text=True, **pipes) as process:  # type: ignore[call-overload]
        endpoint = process.stdout.readline().strip()
        assert endpoint, "the proxy did not start"

        def counts() -> Counter[str]:
            process.stdin.write("\n")
            process.stdin.flush()
            return Counter(json.loads(process.stdout.readline()))

        yield {**options, ENDPOINT: endpoint}, counts
        process.stdin.close()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m verification.world.stores.store_proxy")
    parser.add_argument("endpoint")
    parser.add_argument("--delay-ms", type=int, default=0)
    parser.add_argument("--line-mb-per-second", type=float, default=0.0)
    given = parser.parse_args()
    proxy = StoreProxy(
        {ENDPOINT: given.endpoint},
        delay_seconds=given.delay_ms / 1000,
        line_bytes_per_second=given.line_mb_per_second * 1e6,
        keeps_requests=False,
    )
    print(proxy.endpoint, flush=True)
    for _ in sys.stdin:
        print(json.dumps(proxy.counts()), flush=True)
    proxy.close()


if __name__ == "__main__":
    main()
