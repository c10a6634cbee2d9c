"""The server: one thread that sees which connections have something to say, and a few workers that answer them.

No worker waits for a client, for a moment to come, or for other clients. A connection whose request is not there yet,
or whose answer is not taken yet, is left to the thread that watches, and so is a request that waits. Clients are
answered in turn by their addresses. Whatever a client sends, it ends its own connection at worst, with a line in the
log.
"""

from __future__ import annotations

import contextlib
import logging
import select
import selectors
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from kio.schema.errors import ErrorCode

from spark_segments.errors import InvalidOptionError, SegmentsError
from spark_segments.kafka_protocol.serving.api_call import Call, NotYet
from spark_segments.kafka_protocol.serving.apis import APIS, VERSIONS, connecting, fetch, refused
from spark_segments.kafka_protocol.serving.connection import Connection
from spark_segments.kafka_protocol.serving.coordinator import Coordinator
from spark_segments.kafka_protocol.serving.credentials import Login
from spark_segments.kafka_protocol.serving.lease import Lease
from spark_segments.kafka_protocol.serving.limits import Budget, Limits
from spark_segments.kafka_protocol.serving.messages import SIZE, BadRequestError, Request, head, read_request, response
from spark_segments.kafka_protocol.serving.parked import ParkedCalls
from spark_segments.kafka_protocol.serving.read_ahead import FileRange
from spark_segments.kafka_protocol.serving.server_options import ServerOptions
from spark_segments.kafka_protocol.serving.stored_groups import StoredGroups
from spark_segments.kafka_protocol.serving.views import Views
from spark_segments.kafka_protocol.serving.work import Work

_logger = logging.getLogger(__name__)
_STOP_SECONDS = 10.0  # for what is being answered
_LOOK_SECONDS = 0.25  # between looks for clients that are gone, or too slow
_EXPIRE_SECONDS = 5.0  # between looks for members whose session is over
_GROUPS_SECONDS = 600.0  # between looks for groups that nobody uses (offsets.retention.check.interval.ms)
_ACCEPTED = 64  # connections that are taken before others are looked after
_REMOTE_WORKERS = 64  # where most of their time is a store's
_PATIENCE_SECONDS = 0.002  # that a worker has for a client, while there is little else to do
_OURS = ""  # the owner of jobs that no client asks for


class Server:
    """Serves the topics of `views` until `stop`. A context manager: bound when entered, gone when left."""

    def __init__(self, views: Views, options: ServerOptions | None = None, limits: Limits | None = None) -> None:
        self._options = options or ServerOptions()
        self._options.check()
        self.views = views
        self.limits = limits or Limits()
        is_remote = not views.log.is_kafka and not views.log.storage.is_local
        if is_remote:
            self.limits = replace(self.limits, workers=max(self.limits.workers, _REMOTE_WORKERS))
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._kept = Budget(self.limits.kept_bytes)
        self.coordinator = Coordinator(None if views.log.is_kafka else Lease(views.log.storage), self._kept)
        self.stored_groups = StoredGroups(views.log, self.coordinator, self._options.groups, self.limits)
        self._connections = Budget(self.limits.connections)
        self._memory = Budget(self.limits.memory_bytes)
        self._open: dict[int, Connection] = {}
        self._parked = ParkedCalls()
        self._groups_looked_at = -_GROUPS_SECONDS
        self._work = Work(self.limits.workers)
        self._stopping = threading.Event()
        self._is_watched = threading.Lock()
        self._selector = selectors.DefaultSelector()
        self._waker, self._woken = socket.socketpair()
        self._listener: socket.socket | None = None

    @property
    def port(self) -> int:
        """The port that the server is bound to."""
        assert self._listener is not None
        return int(self._listener.getsockname()[1])

    @property
    def state(self) -> dict[str, int]:
        """Counters since the server started (accepted and refused connections, failed logins, answered requests,
        fetched bytes), and gauges: open connections, bytes in memory of requests, of responses and of members of
        groups, active groups, and whether (1) the server holds the groups.
        """
        names = ("accepted_connections", "refused_connections", "failed_logins", "answered_requests", "fetched_bytes")
        with self._lock:
            counts = {name: self._counts[name] for name in names}
        groups = len(self.coordinator.groups()) if self.coordinator.holds() else 0
        sizes = {"open_connections": len(self._open), "active_groups": groups}
        sizes |= {"held_bytes": self._memory.taken, "kept_bytes": self._kept.taken}
        return counts | sizes | {"holds_groups": int(self.coordinator.holds())}

    def _count(self, **counts: int) -> None:
        with self._lock:
            self._counts.update(counts)

    def __enter__(self) -> Server:
        host = self._options.host
        port = self._options.port
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            self._listener = socket.create_server((host, port), family=family, backlog=1024)
        except OSError as error:
            raise InvalidOptionError(
                "The address cannot be served", found=f"{host}:{port} ({error.strerror})", hint="Use --port"
            ) from error
        self._listener.setblocking(False)
        for end in (self._waker, self._woken):
            end.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        self._selector.register(self._woken, selectors.EVENT_READ, self._drain)
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def serve(self) -> None:
        """Watches over connections until `stop`."""
        with self._is_watched:
            try:
                self._serve(time.monotonic())
            finally:
                self._stopping.set()

    def _serve(self, began: float) -> None:
        looked = began
        expired = began
        changed = began
        while not self._stopping.is_set():
            now = time.monotonic()
            if now - looked >= _LOOK_SECONDS:
                looked = now
                self._look(now)
            if now - expired >= _EXPIRE_SECONDS:
                expired = now
                self._work.put(_OURS, self._expire)
            if now - changed >= self.views.interval_seconds:
                changed = now
                for name in self.views.watched():
                    self._work.put(_OURS, lambda name=name: self._read_again(name))  # type: ignore[misc]
            self._unpark(now)
            for key, _ in self._selector.select(self._seconds_left(now)):
                if self._stopping.is_set():
                    return
                if isinstance(key.data, Connection):
                    self._selector.unregister(key.fileobj)
                    key.data.is_watched = False
                    self._go_on(key.data)
                else:
                    key.data()

    def _expire(self) -> None:
        self.coordinator.expire()
        # Twice within a retention: a group that nobody uses stays half of it longer at most.
        pause_seconds = min(_GROUPS_SECONDS, self.limits.offsets_retention_minutes * 60 / 2)
        if self.coordinator.holds() and time.monotonic() >= self._groups_looked_at + pause_seconds:
            self._groups_looked_at = time.monotonic()
            self.stored_groups.expire()

    def _seconds_left(self, now: float) -> float:
        """Until something is to be done though no client does anything."""
        seconds = self._parked.seconds_left(now, _LOOK_SECONDS)
        if self.views.is_watched:
            seconds = min(seconds, self.views.interval_seconds)
        return max(seconds, 0.0)

    def _read_again(self, name: str) -> None:
        with contextlib.suppress(SegmentsError):  # the next request for the topic gets the error
            self.views.topic(name)

    def _drain(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self._woken.recv(4096)

    def _wake(self) -> None:
        """Has the thread that watches look at what has changed."""
        with contextlib.suppress(OSError):
            self._waker.send(b"x")

    def _accept(self) -> None:
        assert self._listener is not None
        for _ in range(_ACCEPTED):
            try:
                client, address = self._listener.accept()
            except BlockingIOError:
                return
            except OSError:  # no descriptor is free: one may be, at the next look
                self._selector.unregister(self._listener)
                return
            self._count(accepted_connections=1)
            try:
                login = None if self._options.users is None else Login(self._options.users)
                connection = Connection(
                    client, address[0], self.limits, self._memory, tls=self._options.tls, login=login
                )
            except (OSError, MemoryError):  # the client has gone already, or the process gets no memory
                client.close()
                continue
            if not self._connections.take(connection.owner, 1):
                self._count(refused_connections=1)
                _logger.warning("refused a connection of %s: too many are open", connection.address)
                connection.close()
                continue
            self._open[connection.number] = connection
            self._watch(connection, selectors.EVENT_READ)

    def _look(self, now: float) -> None:
        """Ends connections whose time is over, and has those answered that are gone while their requests wait."""
        assert self._listener is not None
        if self._listener.fileno() not in self._selector.get_map():
            self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        poll = select.poll()
        waiting: dict[int, Call] = {}
        for connection in list(self._open.values()):
            if connection.is_watched:
                if now > connection.deadline:
                    with contextlib.suppress(KeyError):  # it is about to be watched
                        self._selector.unregister(connection.number)
                        self._end(connection, "its time is over")
            elif connection.call is not None and connection.call.is_parked:
                connection.watch(poll)
                waiting[connection.number] = connection.call
        for number, _ in poll.poll(0):
            waiting[number].is_gone = True
            waiting[number].wake()

    def stop(self) -> None:
        """Ends waiting requests and all connections, and the threads: the process cannot end under them."""
        self._stopping.set()
        self.coordinator.stop()
        self._wake()
        if self._is_watched.acquire(timeout=_STOP_SECONDS):
            self._is_watched.release()
        if self._listener is not None:
            self._listener.close()
        for call in self._parked.take_all():
            call.is_last = True
            call.wake()
        self._work.end(_STOP_SECONDS)
        for connection in list(self._open.values()):
            self._end(connection, "the server has ended")
        self._selector.close()
        for end in (self._waker, self._woken):
            end.close()

    def _end(self, connection: Connection, why: str) -> None:
        _logger.debug("the connection of %s ended: %s", connection.address, why)
        if self._open.get(connection.number) is connection:
            del self._open[connection.number]
            connection.close()
            self._connections.give(connection.owner, 1)

    def _watch(self, connection: Connection, events: int) -> None:
        """Leaves a connection to the thread that watches."""
        if self._stopping.is_set():
            self._end(connection, "the server ends")
        else:
            connection.is_watched = True
            self._selector.register(connection.number, events, connection)

    def _go_on(self, connection: Connection) -> None:
        self._work.put(connection.owner, lambda: self._advance(connection))

    def _advance(self, connection: Connection) -> None:
        """Does what can be done for a connection now, and leaves the rest to the thread that polls."""
        try:
            with self._faults(connection):
                events = self._step(connection)
                # While there is little else to do, a client that is quick is waited for: the way to the thread that
                # polls, and back, takes longer.
                while events is not None and self._work.is_little and connection.is_ready(events, _PATIENCE_SECONDS):
                    events = self._step(connection)
                if events is None:
                    return
                if connection.has_input and not connection.is_sending:
                    self._go_on(connection)
                else:
                    self._watch(connection, events)
        except _EndError as error:
            self._end(connection, str(error))

    def _step(self, connection: Connection) -> int | None:
        """Receives a request, answers it, or sends more of an answer. What the next step waits for; None: others see to
        it.
        """
        if connection.is_sending:
            return self._answered(connection) if connection.resume() else selectors.EVENT_WRITE
        if connection.call is not None:
            return self._answer(connection, connection.call)
        if not connection.is_admitted and time.monotonic() > connection.deadline:
            raise _EndError("its time for the login is over")  # however much it says, so that nobody watches it
        frame = connection.receive()
        return selectors.EVENT_READ if frame is None else self._take(connection, frame)

    @contextlib.contextmanager
    def _faults(self, connection: Connection) -> Iterator[None]:
        try:
            yield
        except BadRequestError as error:
            self._count(refused_connections=1)
            _logger.warning("closed the connection of %s: %s", connection.address, error)
            raise _EndError("a request that is not taken") from None
        except OSError as error:  # the client went
            raise _EndError(str(error)) from None
        except MemoryError:  # a limit of the process, below the server's limits: the client may try again
            self._count(refused_connections=1)
            _logger.warning("closed the connection of %s: the process gets no memory", connection.address)
            raise _EndError("no memory") from None
        except _EndError:
            raise
        except Exception:  # a fault of ours costs the connection that met it, and no other
            _logger.exception("closed the connection of %s", connection.address)
            raise _EndError("a fault") from None

    def _take(self, connection: Connection, frame: bytes) -> int | None:
        """Begins to answer a request."""
        self._count(answered_requests=1)
        if connection.takes_bare_steps:
            return self._begin(connection, connecting.bare_step(frame))
        key, version, correlation_id = head(frame)
        api = APIS.get(key)
        if api is None or version not in api.versions:
            if key != connecting.API_VERSIONS:
                raise BadRequestError(f"API {key} is not served in version {version}")
            values = connecting.listed(VERSIONS, ErrorCode.unsupported_version)
            return self._send(connection, response(key, 0, correlation_id, values))
        if not connection.is_admitted and key not in connecting.BEFORE_LOGIN:
            raise BadRequestError(f"A request of API {key} came before the login")
        return self._begin(connection, read_request(frame, self.limits.request_entries))

    def _begin(self, connection: Connection, request: Request) -> int | None:
        connection.hold(0)
        connection.call = Call(
            request,
            self.views,
            self.limits,
            self._options.advertised or connection.reached_at,
            VERSIONS,
            self.coordinator,
            self.stored_groups,
            connection.address,
            connection.owner,
            connection.login,
            sends_files=not connection.is_encrypted,
            hold=connection.hold,
            room=lambda most_bytes: self._room(connection, most_bytes),
            go_on=lambda: self._resume(connection),
        )
        return self._answer(connection, connection.call)

    def _room(self, connection: Connection, most_bytes: int) -> int:
        """How many bytes an answer may have. Where it gets less, the slowest client loses its answer."""
        size = connection.room(most_bytes)
        if size < min(most_bytes, fetch.LEAST_BYTES):
            now = time.monotonic()
            rates = [(other.sent_a_second(now), other) for other in list(self._open.values())]
            slow = [(rate, other) for rate, other in rates if rate is not None]
            if slow:
                _, slowest = min(slow, key=lambda pair: pair[0])
                slowest.deadline = now
        return size

    def _answer(self, connection: Connection, call: Call) -> int | None:
        request = call.request
        call.begin()
        call.is_last = call.is_last or self._stopping.is_set()
        values = APIS[request.api_key].answer(call)
        if call.is_gone:
            raise _EndError("the client has gone")
        if isinstance(values, NotYet):
            self._park(connection, call, values.until_seconds)
            return None
        self._note_login(connection, values)
        if request.api_version == connecting.BARE:
            if values["error_code"] is not ErrorCode.none:
                raise _EndError("a failed login")
            return self._send(connection, [SIZE.pack(len(values["auth_bytes"])), values["auth_bytes"]])
        if request.api_key == refused.PRODUCE and request.body.acks == 0:  # nobody waits for the refusal
            raise _EndError("a producer")
        return self._respond(connection, call, values)

    def _note_login(self, connection: Connection, values: Mapping[str, Any]) -> None:
        """Counts an answer that says that a login failed."""
        if values.get("error_code") in connecting.FAILED_LOGINS:
            self._count(failed_logins=1)
            why = values.get("error_message", "Unknown mechanism")
            _logger.warning("a login of %s failed: %s", connection.address, why)

    def _respond(self, connection: Connection, call: Call, values: Mapping[str, Any]) -> int | None:
        request = call.request
        most_bytes = self.limits.response_bytes
        buffers = response(request.api_key, request.api_version, request.correlation_id, values, most_bytes)
        for text in call.warnings:
            _logger.warning("%s", text)
        if request.api_key == fetch.KEY:  # it holds its memory since it was answered
            self._count(fetched_bytes=sum(len(buffer) for buffer in buffers))
        elif not connection.hold(sum(len(buffer) for buffer in buffers if not isinstance(buffer, FileRange))):
            raise BadRequestError("There is no memory for the answer")
        return self._send(connection, buffers)

    def _send(self, connection: Connection, buffers: list[Any]) -> int:
        return self._answered(connection) if connection.send(buffers) else selectors.EVENT_WRITE

    def _answered(self, connection: Connection) -> int:
        call = connection.call
        connection.call = None
        if call is not None:
            for afterward in call.afterwards:
                afterward()
            has_failed = connection.login is not None and not connection.login.user and not connection.login.has_begun
            if call.request.api_key == connecting.SASL_AUTHENTICATE and has_failed:
                raise _EndError("a failed login")
        return selectors.EVENT_READ

    def _park(self, connection: Connection, call: Call, until_seconds: float) -> None:
        """Has a request wait until its time comes, or until it is woken."""
        connection.parked, is_first = self._parked.add(call, until_seconds)
        if not call.park():
            self._resume(connection)
        elif is_first:
            self._wake()
        if self._stopping.is_set():
            call.is_last = True
            call.wake()

    def _unpark(self, now: float) -> None:
        """Has requests answered whose time has come."""
        for call in self._parked.due(now):
            call.wake()

    def _resume(self, connection: Connection) -> None:
        """A request waits no more."""
        if connection.parked is not None:
            self._parked.leave(connection.parked)
        self._go_on(connection)


class _EndError(Exception):
    """A connection is to end."""
