"""The server: connections, each with a thread of its own, that take requests one after the other and send answers.

Whatever a client sends, it ends its own connection at worst, with a line in the log.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import select
import socket
import ssl
import threading
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import Any

from kio.schema.errors import ErrorCode

from spark_segments.errors import InvalidOptionError
from spark_segments.kafka_protocol.apis import api_versions, fetch, produce, sasl_authenticate
from spark_segments.kafka_protocol.call import Call, Limits
from spark_segments.kafka_protocol.coordinator import Coordinator
from spark_segments.kafka_protocol.credentials import Login, Users
from spark_segments.kafka_protocol.lease import Lease
from spark_segments.kafka_protocol.messages import SIZE, BadRequestError, Request, head, read_request, response
from spark_segments.kafka_protocol.read_ahead import FileRange
from spark_segments.kafka_protocol.served import APIS, BEFORE_LOGIN, VERSIONS
from spark_segments.kafka_protocol.views import Views
from spark_segments.storage.local import OpenFile

LOOPBACK = ("127.0.0.1", "::1", "localhost")

_logger = logging.getLogger(__name__)
_BUFFERS = 64  # that one call to the system takes
_MORE = getattr(socket, "MSG_MORE", 0)  # where the system knows it, a head waits for what follows
_STOP_SECONDS = 10.0  # for what is being answered


class Server:
    """Serves the topics of `views` from `listen` until `stop`. A context manager: bound when entered, gone when left.

    Any address but this machine's own asks for `tls` and `users`, or for `insecure`. `advertised`: the address that
    clients are told, where it is not the one by which they came.
    """

    def __init__(
        self,
        views: Views,
        *,
        host: str = "127.0.0.1",
        port: int = 9092,
        advertised: tuple[str, int] | None = None,
        tls: ssl.SSLContext | None = None,
        users: Users | None = None,
        insecure: bool = False,
        limits: Limits | None = None,
    ) -> None:
        if host not in LOOPBACK and not insecure and (tls is None or users is None):
            raise InvalidOptionError(
                "Other machines may reach this address",
                expected="TLS and users, or --insecure",
                found=f"{host} without {'TLS' if tls is None else 'users'}",
                hint="Give a certificate, its key and a users file; or say --insecure where the network is trusted",
            )
        self.views, self.limits = views, limits or Limits()
        self._counts: Counter[str] = Counter()
        self._counts_lock = threading.Lock()
        self.coordinator = Coordinator(None if views.log.is_kafka else Lease(views.log.storage))
        self._host, self._port, self._advertised = host, port, advertised
        self._tls, self._users = tls, users
        self._stopping = threading.Event()
        self._open: dict[int, socket.socket] = {}
        self._threads: set[threading.Thread] = set()
        self._lock = threading.Lock()
        self._memory = threading.Semaphore(max(1, self.limits.responses_bytes // self.limits.response_bytes))
        self._listener: socket.socket | None = None

    @property
    def port(self) -> int:
        """The port that the server is bound to."""
        assert self._listener is not None
        return int(self._listener.getsockname()[1])

    @property
    def state(self) -> dict[str, int]:
        """Counts since the server began (accepted and refused connections, answered requests, fetched bytes), and what
        is there now: open connections, active groups, and whether (1) the server holds the groups.
        """
        names = ("accepted_connections", "refused_connections", "answered_requests", "fetched_bytes")
        with self._counts_lock:
            counts = {name: self._counts[name] for name in names}
        groups = len(self.coordinator.groups()) if self.coordinator.holds() else 0
        there = {"open_connections": len(self._open), "active_groups": groups}
        return counts | there | {"holds_groups": int(self.coordinator.holds())}

    def _count(self, **counts: int) -> None:
        with self._counts_lock:
            self._counts.update(counts)

    def __enter__(self) -> Server:
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        try:
            self._listener = socket.create_server((self._host, self._port), family=family, backlog=128)
        except OSError as error:
            raise InvalidOptionError(
                "The address cannot be served", found=f"{self._host}:{self._port} ({error.strerror})", hint="Use --port"
            ) from error
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def serve(self) -> None:
        """Takes connections until `stop`. Each has a thread."""
        assert self._listener is not None
        while not self._stopping.is_set():
            try:
                connection, address = self._listener.accept()
            except OSError:
                if self._stopping.is_set():
                    return
                time.sleep(0.1)  # no descriptor is free: one may be soon
                continue
            if len(self._open) >= self.limits.connections:
                self._count(refused_connections=1)
                _logger.warning("refused a connection of %s: %d are open", address[0], len(self._open))
                connection.close()
                continue
            thread = threading.Thread(target=self._connection, args=(connection, address[0]), daemon=True)
            with self._lock:
                self._threads.add(thread)
            thread.start()

    def stop(self) -> None:
        """Ends waiting fetches and all connections, and waits for their threads: the process cannot end under them."""
        self._stopping.set()
        self.coordinator.stop()
        if self._listener is not None:
            with contextlib.suppress(OSError):  # closing alone does not end an `accept` that waits
                self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
        with self._lock:
            for connection in self._open.values():
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
            threads = [*self._threads]
        deadline = time.monotonic() + _STOP_SECONDS
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _connection(self, connection: socket.socket, client: str) -> None:
        self._count(accepted_connections=1)
        number = id(connection)
        try:
            connection.settimeout(self.limits.request_seconds)
            if self._tls is not None:
                connection = self._tls.wrap_socket(connection, server_side=True)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._lock:
                self._open[number] = connection
            login = None if self._users is None else Login(self._users)
            for frame in self._frames(connection):
                if not self._answer(connection, frame, client, login):
                    return
        except BadRequestError as error:
            self._count(refused_connections=1)
            _logger.warning("closed the connection of %s: %s", client, error)
        except OSError as error:  # the client went, or is too slow
            _logger.debug("the connection of %s ended: %s", client, error)
        except Exception:  # a fault of ours costs the connection that met it, and no other
            _logger.exception("closed the connection of %s", client)
        finally:
            with self._lock:
                self._open.pop(number, None)
                self._threads.discard(threading.current_thread())
            connection.close()

    def _frames(self, connection: socket.socket) -> Iterator[bytes]:
        """The requests of a connection. Ends with the connection, or when it was idle for too long."""
        while not self._stopping.is_set():
            connection.settimeout(self.limits.idle_seconds)
            first = connection.recv(SIZE.size)
            if not first:
                return
            connection.settimeout(self.limits.request_seconds)
            size = SIZE.unpack(first + _exactly(connection, SIZE.size - len(first)))[0]
            if not 0 < size <= self.limits.request_bytes:
                expected = f"1 to {self.limits.request_bytes} bytes"
                raise BadRequestError("A request is of no size that is taken", expected=expected, found=size)
            yield _exactly(connection, size)

    def _answer(self, connection: socket.socket, frame: bytes, client: str, login: Login | None) -> bool:
        """Answers a request. False: the connection ends."""
        self._count(answered_requests=1)
        key, version, correlation_id = head(frame)
        api = APIS.get(key)
        if api is None or version not in api.VERSIONS:
            if key != api_versions.KEY:
                raise BadRequestError(f"API {key} is not served in version {version}")
            values = api_versions.listed(VERSIONS, ErrorCode.unsupported_version)
            _send(connection, response(key, 0, correlation_id, values))
            return True
        if login is not None and login.user is None and key not in BEFORE_LOGIN:
            raise BadRequestError(f"A request of API {key} came before the login")
        request = read_request(frame)
        call = Call(
            request,
            self.views,
            self.limits,
            self._address(connection),
            self._stopping,
            partial(_is_gone, connection),
            VERSIONS,
            self.coordinator,
            client,
            login,
            sends_files=not isinstance(connection, ssl.SSLSocket),
        )
        if key == fetch.KEY:
            with self._memory:
                buffers = self._response(call)
                self._count(fetched_bytes=sum(len(one) for one in buffers))
                _send(connection, buffers)
            for one in call.afterwards:
                one()
            return True
        if key == produce.KEY and request.body.acks == 0:  # nobody waits for the refusal
            return False
        _send(connection, self._response(call))
        return key != sasl_authenticate.KEY or (login is not None and (login.user is not None or login.has_begun))

    def _response(self, call: Call) -> list[Any]:
        request: Request = call.request
        values = APIS[request.api_key].answer(call)
        for text in call.warnings:
            _logger.warning("%s", text)
        return response(request.api_key, request.api_version, request.correlation_id, values)

    def _address(self, connection: socket.socket) -> tuple[str, int]:
        if self._advertised is not None:
            return self._advertised
        host, port = connection.getsockname()[:2]
        return str(host), int(port)


def _is_gone(connection: socket.socket) -> bool:
    """Whether the client has ended the connection, or its half of it."""
    poll = select.poll()
    poll.register(connection, getattr(select, "POLLRDHUP", 0) | select.POLLHUP | select.POLLERR)
    return bool(poll.poll(0))


def _exactly(connection: socket.socket, size: int) -> bytes:
    """So many bytes. Raises OSError where the connection ends before."""
    data = bytearray(size)
    view = memoryview(data)
    got = 0
    while got < size:
        count = connection.recv_into(view[got:])
        if not count:
            raise ConnectionError("the connection ended within a request")
        got += count
    return bytes(data)


def _send(connection: socket.socket, buffers: list[Any]) -> None:
    """Sends buffers and ranges of files one after the other, none copied where the connection is not encrypted."""
    if isinstance(connection, ssl.SSLSocket):
        for one in buffers:
            connection.sendall(one)
        return
    for is_file, some in itertools.groupby(buffers, lambda one: isinstance(one, FileRange)):
        if is_file:
            for one in some:
                _send_range(connection, one)
            continue
        views = [memoryview(one).cast("B") for one in some if len(one)]
        while views:
            sent = connection.sendmsg(views[:_BUFFERS])
            while views and sent >= len(views[0]):
                sent -= len(views.pop(0))
            if sent:
                views[0] = views[0][sent:]


def _send_range(connection: socket.socket, one: FileRange) -> None:
    """Sends a range of a file: the system takes it from the file to the connection."""
    if not one.heads:
        _send_file(connection, one.file, one.position, one.nbytes)
        return
    ends = [*one.positions[1:], one.nbytes]
    for position, end, first_bytes in zip(one.positions, ends, one.heads, strict=True):
        connection.sendall(first_bytes, _MORE)
        begin = position + len(first_bytes)
        _send_file(connection, one.file, one.position + begin, end - begin)


def _send_file(connection: socket.socket, file: OpenFile, position: int, size: int) -> None:
    while size:
        try:
            sent = os.sendfile(connection.fileno(), file.descriptor, position, size)
        except BlockingIOError:
            poll = select.poll()
            poll.register(connection, select.POLLOUT)
            if not poll.poll((connection.gettimeout() or 0) * 1000):
                raise TimeoutError("the client takes no bytes") from None
            continue
        if not sent:
            _logger.warning("%s is shorter than it was: %d bytes are missing", file.path, size)
            raise ConnectionError("a file is cut")
        position, size = position + sent, size - sent
