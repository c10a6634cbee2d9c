"""The server: connections, each with a thread of its own, that take requests one after the other and send answers.

Whatever a client sends, it ends its own connection at worst, with a line in the log.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import ssl
import threading
import time
from collections import Counter
from typing import Any

from kio.schema.errors import ErrorCode

from spark_segments.errors import InvalidOptionError
from spark_segments.kafka_protocol.apis import APIS, VERSIONS, connecting, fetch, refused
from spark_segments.kafka_protocol.call import Call, Limits
from spark_segments.kafka_protocol.connection import Connection
from spark_segments.kafka_protocol.coordinator import OWN, POLICIES, Coordinator
from spark_segments.kafka_protocol.credentials import Login, Users
from spark_segments.kafka_protocol.lease import Lease
from spark_segments.kafka_protocol.messages import BadRequestError, Request, head, read_request, response
from spark_segments.kafka_protocol.views import Views

LOOPBACK = ("127.0.0.1", "::1", "localhost")

_logger = logging.getLogger(__name__)
_STOP_SECONDS = 10.0  # for what is being answered


class Server:
    """Serves the topics of `views` from `listen` until `stop`. A context manager: bound when entered, gone when left.

    Any address but this machine's own asks for `tls` and `users`, or for `insecure`. `advertised`: the address that
    clients are told, where it is not the one by which they came. `groups`: one of POLICIES, which groups they may move.
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
        groups: str = OWN,
        limits: Limits | None = None,
    ) -> None:
        if host not in LOOPBACK and not insecure and (tls is None or users is None):
            raise InvalidOptionError(
                "Other machines may reach this address",
                expected="TLS and users, or --insecure",
                found=f"{host} without {'TLS' if tls is None else 'users'}",
                hint="Give a certificate, its key and a users file; or say --insecure where the network is trusted",
            )
        if groups not in POLICIES:
            raise InvalidOptionError("Not a choice of groups", expected=" or ".join(POLICIES), found=groups)
        self.views, self.limits = views, limits or Limits()
        self._counts: Counter[str] = Counter()
        self._counts_lock = threading.Lock()
        self.coordinator = Coordinator(None if views.log.is_kafka else Lease(views.log.storage), groups)
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

    def _connection(self, end: socket.socket, client: str) -> None:
        self._count(accepted_connections=1)
        number = id(end)
        try:
            end.settimeout(self.limits.request_seconds)
            if self._tls is not None:
                end = self._tls.wrap_socket(end, server_side=True)
            with self._lock:
                self._open[number] = end
            login = None if self._users is None else Login(self._users)
            connection = Connection(end, self.limits)
            for frame in connection.requests():
                if self._stopping.is_set() or not self._answer(connection, frame, client, login):
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
            end.close()

    def _answer(self, connection: Connection, frame: bytes, client: str, login: Login | None) -> bool:
        """Answers a request. False: the connection ends."""
        self._count(answered_requests=1)
        key, version, correlation_id = head(frame)
        api = APIS.get(key)
        if api is None or version not in api.versions:
            if key != connecting.API_VERSIONS:
                raise BadRequestError(f"API {key} is not served in version {version}")
            values = connecting.listed(VERSIONS, ErrorCode.unsupported_version)
            connection.send(response(key, 0, correlation_id, values))
            return True
        if login is not None and login.user is None and key not in connecting.BEFORE_LOGIN:
            raise BadRequestError(f"A request of API {key} came before the login")
        request = read_request(frame)
        call = Call(
            request,
            self.views,
            self.limits,
            self._advertised or connection.address,
            self._stopping,
            connection.is_gone,
            VERSIONS,
            self.coordinator,
            client,
            login,
            sends_files=not connection.is_encrypted,
        )
        if key == fetch.KEY:
            with self._memory:
                buffers = self._response(call)
                self._count(fetched_bytes=sum(len(one) for one in buffers))
                connection.send(buffers)
            for one in call.afterwards:
                one()
            return True
        if key == refused.PRODUCE and request.body.acks == 0:  # nobody waits for the refusal
            return False
        connection.send(self._response(call))
        return key != connecting.SASL_AUTHENTICATE or (
            login is not None and (login.user is not None or login.has_begun)
        )

    def _response(self, call: Call) -> list[Any]:
        request: Request = call.request
        values = APIS[request.api_key].answer(call)
        for text in call.warnings:
            _logger.warning("%s", text)
        return response(request.api_key, request.api_version, request.correlation_id, values)
