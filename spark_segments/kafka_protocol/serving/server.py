"""The server: one thread that sees which connections have something to say, and a few workers that answer them.

No worker waits for a client, for a moment to come, or for other clients. A connection whose request is not there yet,
or whose answer is not taken yet, is left to the thread that watches, and so is a request that waits. Clients are
answered in turn by their addresses. Whatever a client sends, it ends its own connection at worst, with a line in the
log.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import logging
import select
import selectors
import socket
import ssl
import threading
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from kio.schema.errors import ErrorCode

from spark_segments.errors import InvalidOptionError, SegmentsError
from spark_segments.kafka_protocol.serving.apis import APIS, VERSIONS, connecting, fetch, refused
from spark_segments.kafka_protocol.serving.call import Call, NotYet
from spark_segments.kafka_protocol.serving.connection import Connection
from spark_segments.kafka_protocol.serving.coordinator import Coordinator
from spark_segments.kafka_protocol.serving.credentials import Login, Users
from spark_segments.kafka_protocol.serving.lease import Lease
from spark_segments.kafka_protocol.serving.limits import Budget, Limits
from spark_segments.kafka_protocol.serving.messages import SIZE, BadRequestError, Request, head, read_request, response
from spark_segments.kafka_protocol.serving.read_ahead import FileRange
from spark_segments.kafka_protocol.serving.stored_groups import OWN, POLICIES, StoredGroups
from spark_segments.kafka_protocol.serving.views import Views

LOOPBACK = ("127.0.0.1", "::1", "localhost")

_logger = logging.getLogger(__name__)
_STOP_SECONDS = 10.0  # for what is being answered
_LOOK_SECONDS = 0.25  # between looks for clients that are gone, or too slow
_EXPIRE_SECONDS = 5.0  # between looks for members whose session is over
_GROUPS_SECONDS = 600.0  # between looks for groups that nobody uses (offsets.retention.check.interval.ms)
_ACCEPTED = 64  # connections that are taken before others are looked after
_REMOTE_WORKERS = 64  # where most of their time is a store's
_LOOK_AT = 100  # requests that wait, before a look at which of them do not any more
_PATIENCE_SECONDS = 0.002  # that a worker has for a client, while there is little else to do
_OURS = ""  # the owner of jobs that no client asks for


class _Work:
    """Jobs, and the threads that do them: by owner in turn, and none has more than half of the threads."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._jobs: OrderedDict[str, deque[Callable[[], None]]] = OrderedDict()
        self._running: Counter[str] = Counter()
        self._threads: list[threading.Thread] = []
        self._idle = 0
        self._has_ended = False
        self._condition = threading.Condition()

    def put(self, owner: str, job: Callable[[], None]) -> None:
        with self._condition:
            self._jobs.setdefault(owner, deque()).append(job)
            if not self._idle and len(self._threads) < self._most:
                thread = threading.Thread(target=self._run, daemon=True)
                try:
                    thread.start()
                    self._threads.append(thread)
                except RuntimeError:  # no memory for another thread: the existing threads do the work
                    if not self._threads:
                        raise
            self._condition.notify()

    @property
    def is_little(self) -> bool:
        """Whether a thread has nothing to do, and no job waits for one."""
        return self._idle > 0 and not self._jobs

    def end(self, seconds: float) -> None:
        """Waits until all jobs are done, but no longer than that; the threads end."""
        with self._condition:
            self._condition.wait_for(lambda: not self._jobs and not self._running, seconds)
            self._has_ended = True
            self._condition.notify_all()
        deadline = time.monotonic() + seconds
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _next(self) -> str | None:
        most = max(1, self._most // 2)
        return next((owner for owner in self._jobs if self._running[owner] < most), None)

    def _run(self) -> None:
        while True:
            with self._condition:
                self._idle += 1
                while (owner := self._next()) is None and not self._has_ended:
                    self._condition.wait()
                self._idle -= 1
                if owner is None:
                    return
                job = self._jobs[owner].popleft()
                self._jobs.move_to_end(owner)
                if not self._jobs[owner]:
                    del self._jobs[owner]
                self._running[owner] += 1
            try:
                job()
            except Exception:
                _logger.exception("a job of the server failed")
            with self._condition:
                self._running[owner] -= 1
                if not self._running[owner]:
                    del self._running[owner]
                self._condition.notify()
                if not self._jobs and not self._running:
                    self._condition.notify_all()


class Server:
    """Serves the topics of `views` from `listen` until `stop`. A context manager: bound when entered, gone when left.

    Any address but a loopback address needs `tls` and `users`, or `insecure`. `advertised`: the address that clients
    get in metadata, if not the one that they connected to. `groups`: one of POLICIES, which groups clients may move.
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
        is_remote = not views.log.is_kafka and not views.log.storage.is_local
        if is_remote:
            self.limits = replace(self.limits, workers=max(self.limits.workers, _REMOTE_WORKERS))
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._kept = Budget(self.limits.kept_bytes)
        self.coordinator = Coordinator(None if views.log.is_kafka else Lease(views.log.storage), self._kept)
        self.stored_groups = StoredGroups(views.log, self.coordinator, groups, self.limits)
        self._host, self._port, self._advertised = host, port, advertised
        self._tls, self._users = tls, users
        self._connections, self._memory = Budget(self.limits.connections), Budget(self.limits.memory_bytes)
        self._open: dict[int, Connection] = {}
        self._parked: list[list[Any]] = []  # a heap: [when it is over, a number, the call, None once it goes on]
        self._groups_looked_at = -_GROUPS_SECONDS
        self._stale = 0  # of these, how many go on already
        self._numbers = itertools.count()
        self._work = _Work(self.limits.workers)
        self._stopping, self._is_watched = threading.Event(), threading.Lock()
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
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        try:
            self._listener = socket.create_server((self._host, self._port), family=family, backlog=1024)
        except OSError as error:
            raise InvalidOptionError(
                "The address cannot be served", found=f"{self._host}:{self._port} ({error.strerror})", hint="Use --port"
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
        looked = expired = changed = began
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
        is_held = self.coordinator.holds()
        if is_held and time.monotonic() >= self._groups_looked_at + min(
            _GROUPS_SECONDS, self.limits.offsets_retention_minutes * 60 / 2
        ):
            self._groups_looked_at = time.monotonic()
            self.stored_groups.expire()

    def _seconds_left(self, now: float) -> float:
        """Until something is to be done though no client does anything."""
        seconds = _LOOK_SECONDS
        with self._lock:
            if self._parked:
                seconds = min(seconds, self._parked[0][0] - now)
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
                login = None if self._users is None else Login(self._users)
                connection = Connection(client, address[0], self.limits, self._memory, tls=self._tls, login=login)
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
        poll, waiting = select.poll(), {}
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
        with self._lock:
            parked, self._parked = self._parked, []
        for call in (entry[2] for entry in parked if entry[2] is not None):
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
                while (events := self._step(connection)) is not None:
                    if self._work.is_little and connection.is_ready(events, _PATIENCE_SECONDS):
                        continue
                    if connection.has_input and not connection.is_sending:
                        self._go_on(connection)
                    else:
                        self._watch(connection, events)
                    return
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
            self._advertised or connection.reached_at,
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
            slow = [(rate, one) for one in list(self._open.values()) if (rate := one.sent_a_second(now)) is not None]
            if slow:
                min(slow, key=lambda pair: pair[0])[1].deadline = now
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
        if values.get("error_code") in connecting.FAILED_LOGINS:
            self._count(failed_logins=1)
            why = values.get("error_message", "Unknown mechanism")
            _logger.warning("a login of %s failed: %s", connection.address, why)
        if request.api_version == connecting.BARE:
            if values["error_code"] is not ErrorCode.none:
                raise _EndError("a failed login")
            return self._send(connection, [SIZE.pack(len(values["auth_bytes"])), values["auth_bytes"]])
        if request.api_key == refused.PRODUCE and request.body.acks == 0:  # nobody waits for the refusal
            raise _EndError("a producer")
        most_bytes = self.limits.response_bytes
        buffers = response(request.api_key, request.api_version, request.correlation_id, values, most_bytes)
        for text in call.warnings:
            _logger.warning("%s", text)
        fetched, held = 0, 0
        for buffer in buffers:
            fetched += len(buffer)
            held += 0 if isinstance(buffer, FileRange) else len(buffer)
        if request.api_key == fetch.KEY:
            self._count(fetched_bytes=fetched)
        elif not connection.hold(held):
            raise BadRequestError("There is no memory for the answer")
        return self._send(connection, buffers)

    def _send(self, connection: Connection, buffers: list[Any]) -> int:
        return self._answered(connection) if connection.send(buffers) else selectors.EVENT_WRITE

    def _answered(self, connection: Connection) -> int:
        call, connection.call = connection.call, None
        if call is not None:
            for afterward in call.afterwards:
                afterward()
            has_failed = connection.login is not None and not connection.login.user and not connection.login.has_begun
            if call.request.api_key == connecting.SASL_AUTHENTICATE and has_failed:
                raise _EndError("a failed login")
        return selectors.EVENT_READ

    def _park(self, connection: Connection, call: Call, until_seconds: float) -> None:
        """Has a request wait until its time comes, or until it is woken."""
        with self._lock:
            is_first = not self._parked or until_seconds < self._parked[0][0]
            connection.parked = [until_seconds, next(self._numbers), call]
            heapq.heappush(self._parked, connection.parked)
        if not call.park():
            self._resume(connection)
        elif is_first:
            self._wake()
        if self._stopping.is_set():
            call.is_last = True
            call.wake()

    def _unpark(self, now: float) -> None:
        """Has requests answered whose time has come."""
        with self._lock:
            due = []
            while self._parked and self._parked[0][0] <= now:
                if (call := heapq.heappop(self._parked)[2]) is None:
                    self._stale -= 1
                else:
                    due.append(call)
        for call in due:
            call.wake()

    def _resume(self, connection: Connection) -> None:
        """A request waits no more."""
        with self._lock:
            connection.parked[2] = None
            self._stale += 1
            if 2 * self._stale > len(self._parked) + _LOOK_AT:
                self._parked = [entry for entry in self._parked if entry[2] is not None]
                heapq.heapify(self._parked)
                self._stale = 0
        self._go_on(connection)


class _EndError(Exception):
    """A connection is to end."""
