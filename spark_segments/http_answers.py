"""Answers of servers over HTTP, with a bound of bytes and of time. No other host gets the credentials of a request,
also not after a redirect.
"""

from __future__ import annotations

import os
import threading
import time
import urllib.parse
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import urllib3

MOST_ANSWER_BYTES = 16 << 20
_CONNECT_SECONDS, _SILENT_SECONDS = 10.0, 30.0


class EndlessAnswerError(Exception):
    """An answer of more than MOST_ANSWER_BYTES."""


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """`address`: where it came from in the end."""

    status: int
    body: bytes
    address: str


def answer_to(
    method: str,
    address: str,
    body: bytes | None,
    headers: Mapping[str, str],
    *,
    end: float,
    redirects: int = 0,
    authorities: str | None = None,
) -> HttpAnswer:
    """A server's answer of any status. With no `redirects` left, a redirect is an answer like others.

    `end`: as of time.monotonic(). `authorities`: a PEM file of certificate authorities, None for the system's.

    Raises TimeoutError at `end`, EndlessAnswerError, urllib3's HTTPError or OSError, and ModuleNotFoundError where
    urllib3 is not installed.
    """
    # A socket's own time-outs are of one wait each: a server that sends a byte a second is in time for ever.
    future: Future[HttpAnswer] = Future()

    def run() -> None:
        try:
            future.set_result(_answer(method, address, body, headers, end, redirects, authorities))
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True, name="answer over HTTP").start()
    return future.result(max(0.0, end - time.monotonic()))


def _answer(
    method: str,
    address: str,
    data: bytes | None,
    headers: Mapping[str, str],
    end: float,
    redirects: int,
    authorities: str | None,
) -> HttpAnswer:
    from urllib3 import Retry, Timeout

    parts = urllib.parse.urlsplit(address)
    # Another host, port or scheme gets no Authorization: Retry.remove_headers_on_redirect.
    reply = _pool(os.getpid(), parts.scheme, parts.netloc, authorities).urlopen(
        method,
        address,
        body=data,
        headers=dict(headers),
        retries=Retry(connect=0, read=0, status=0, other=0, redirect=redirects or False),
        timeout=Timeout(connect=_CONNECT_SECONDS, read=_SILENT_SECONDS),
        preload_content=False,
        decode_content=False,
    )
    body = bytearray()
    try:
        while piece := reply.read1(1 << 16):
            body += piece
            if len(body) > MOST_ANSWER_BYTES:
                raise EndlessAnswerError
            if time.monotonic() > end:  # nobody waits any more
                raise TimeoutError
    except BaseException:
        reply.close()
        raise
    reply.release_conn()
    return HttpAnswer(reply.status, bytes(body), reply.geturl() or address)


@lru_cache(maxsize=16)
def _pool(process: int, scheme: str, host: str, authorities: str | None) -> urllib3.PoolManager:
    """The connections of this process to a host, by the proxy that the environment names. A fork shares none."""
    import urllib.request

    from urllib3 import PoolManager, ProxyManager, make_headers

    proxy = None if urllib.request.proxy_bypass(host) else urllib.request.getproxies().get(scheme)
    if proxy is None:
        return PoolManager(ca_certs=authorities)
    user_info = urllib.parse.unquote(urllib.parse.urlsplit(proxy).netloc.rpartition("@")[0])
    proxy_headers = make_headers(proxy_basic_auth=user_info) if user_info else None
    return ProxyManager(proxy, proxy_headers=proxy_headers, ca_certs=authorities)
