"""A client's connection: the requests that come, and what is sent. Neither waits for the client, who has until the
connection's deadline for either.
"""

from __future__ import annotations

import logging
import os
import select
import selectors
import socket
import ssl
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from spark_segments.kafka_protocol.serving.limits import FREE_BYTES, Budget, Limits
from spark_segments.kafka_protocol.serving.messages import SIZE, BadRequestError
from spark_segments.kafka_protocol.serving.read_ahead import FileRange
from spark_segments.storage.local import OpenFile

if TYPE_CHECKING:
    from spark_segments.kafka_protocol.serving.api_call import Call
    from spark_segments.kafka_protocol.serving.credentials import Login
    from spark_segments.kafka_protocol.serving.parked import ParkedCall

_BUFFERS = 1024  # that one call to the system takes
_MORE = getattr(socket, "MSG_MORE", 0)  # where the system knows it, a head waits for what follows
_SLOW_SECONDS = 2.0  # before anybody says how slow a client is
_NOT_NOW = (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
_GONE = getattr(select, "POLLRDHUP", 0) | select.POLLHUP | select.POLLERR

_logger = logging.getLogger(__name__)


class Connection:
    """A connection of a client at `owner`, encrypted or not. One thread at a time uses it.

    Its methods raise OSError where it ends, and BadRequestError for what is taken from no client. `deadline`: the time
    (time.monotonic()) at which it ends unless something comes to pass. `call`: the request that is answered.
    """

    def __init__(
        self,
        client: socket.socket,
        address: str,
        limits: Limits,
        memory: Budget,
        *,
        tls: ssl.SSLContext | None = None,
        login: Login | None = None,
    ) -> None:
        client.setblocking(False)
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.number = client.fileno()
        self.address = address
        self.owner = owner_of(address)
        host, port = client.getsockname()[:2]
        self.reached_at = (str(host), int(port))
        """This end: where the client came to."""
        self.is_encrypted = tls is not None
        if tls is not None:
            client = tls.wrap_socket(client, server_side=True, do_handshake_on_connect=False)
        self.socket = client
        self.login = login
        self.call: Call | None = None
        self.is_watched = False
        self.parked: ParkedCall | None = None  # where its request waits
        self._limits = limits
        self._memory = memory
        self._greets = self.is_encrypted
        self._held = 0
        self._input = bytearray()
        self._output: list[memoryview | tuple[OpenFile, int, int]] = []
        self._at = 0  # in it
        self._sending_since: float | None = None
        self._sent_bytes = 0
        self.deadline = time.monotonic() + limits.login_seconds

    @property
    def is_sending(self) -> bool:
        """Whether a part of an answer is still to be sent."""
        return self._sending_since is not None

    @property
    def has_input(self) -> bool:
        """Whether the next request has been received, or bytes of it that no selector reports."""
        if isinstance(self.socket, ssl.SSLSocket) and self.socket.pending():
            return True
        return len(self._input) >= SIZE.size and len(self._input) >= SIZE.size + SIZE.unpack_from(self._input)[0]

    def is_ready(self, events: int, seconds: float) -> bool:
        """Whether the client has sent something, or takes something: within this time."""
        if events == selectors.EVENT_READ and self.has_input:
            return True
        poll = select.poll()
        poll.register(self.number, select.POLLIN if events == selectors.EVENT_READ else select.POLLOUT)
        return bool(poll.poll(seconds * 1000))

    def sent_a_second(self, now: float) -> float | None:
        """The bytes of its answer that the client takes, a second; None where nobody can tell yet."""
        if self._sending_since is None or now - self._sending_since < _SLOW_SECONDS:
            return None
        return self._sent_bytes / (now - self._sending_since)

    def watch(self, poll: select.poll) -> None:
        """Adds this connection to a poll that reports the connections whose clients are gone."""
        poll.register(self.number, _GONE & ~(select.POLLHUP | select.POLLERR))

    def hold(self, size: int) -> bool:
        """Whether the connection may have so many bytes in memory, in place of what it had: then it has them."""
        more = max(0, size - FREE_BYTES) - self._held
        if more < 0:
            self._memory.give(self.owner, -more)
        elif more and not self._memory.take(self.owner, more):
            return False
        self._held += more
        return True

    def room(self, most_bytes: int) -> int:
        """How many of the `most_bytes` an answer may have: half of what is left for this client. They are held."""
        size = min(most_bytes, self._memory.free(self.owner) // 2 + FREE_BYTES)
        return size if self.hold(size) else 0

    def receive(self) -> bytes | None:
        """The next request without its size, None where more of it has to come."""
        if self._greets:
            assert isinstance(self.socket, ssl.SSLSocket)
            try:
                self.socket.do_handshake()
            except _NOT_NOW:
                return None
            self._greets = False
        request = self._request()
        while request is None:
            try:
                data = self.socket.recv(FREE_BYTES)
            except _NOT_NOW:
                return None
            if not data:
                raise ConnectionError("the client has ended the connection")
            if not self._input:
                self._ends_in(self._limits.request_seconds)
            if not self.hold(len(self._input) + len(data)):
                raise BadRequestError(
                    "Requests under way leave no memory for this one", found=f"{len(self._input)} bytes"
                )
            self._input += data
            request = self._request()
        return request

    @property
    def is_admitted(self) -> bool:
        """Whether the client has proved who it is, where it has to."""
        return self.login is None or self.login.user is not None

    @property
    def takes_bare_steps(self) -> bool:
        """Whether what comes next is a step of a login without a header."""
        return self.login is not None and self.login.is_bare and self.login.has_begun and self.login.user is None

    def _request(self) -> bytes | None:
        """The first request of the bytes that are here, if they have it whole."""
        if len(self._input) < SIZE.size:
            return None
        (size,) = SIZE.unpack_from(self._input)
        most = self._limits.request_bytes if self.is_admitted else FREE_BYTES
        if not 0 < size <= most:
            raise BadRequestError("A request is of no size that is taken", expected=f"1 to {most} bytes", found=size)
        end = SIZE.size + size
        if len(self._input) < end:
            return None
        request = bytes(memoryview(self._input)[SIZE.size : end])
        del self._input[:end]
        return request

    def send(self, buffers: Sequence[Any]) -> bool:
        """Sends buffers and ranges of files, none copied where the connection is not encrypted. As `resume`."""
        size = 0
        self._output = []
        self._at = 0
        self._sent_bytes = 0
        for buffer in buffers:
            size += len(buffer)
            if isinstance(buffer, FileRange):
                self._output += _parts(buffer)
            else:
                self._output.append(memoryview(buffer).cast("B"))
        self._sending_since = time.monotonic()
        self._ends_in(self._limits.request_seconds + size / self._limits.slow_bytes)
        return self.resume()

    def resume(self) -> bool:
        """Sends what the client takes now. Whether all is sent; else it goes on once the client takes more."""
        try:
            while self._at < len(self._output):
                part = self._output[self._at]
                if isinstance(part, memoryview):
                    self._send_memory()
                else:
                    self._send_file(*part)
        except _NOT_NOW:
            return False
        self._output = []
        self._sending_since = None
        self.hold(len(self._input))
        self._ends_in(self._limits.request_seconds if self._input else self._limits.idle_seconds)
        return True

    def _ends_in(self, seconds: float) -> None:
        """Puts the deadline off, but for who has not proved who it is: that has `login_seconds` for all of it."""
        if self.is_admitted:
            self.deadline = time.monotonic() + seconds

    def _send_memory(self) -> None:
        last = self._at + 1
        while last < min(len(self._output), self._at + _BUFFERS) and isinstance(self._output[last], memoryview):
            last += 1
        views: list[Any] = self._output[self._at : last]
        if self.is_encrypted:
            sent = self.socket.send(views[0])
        else:
            sent = self.socket.sendmsg(views, (), _MORE if last < len(self._output) else 0)
        self._sent_bytes += sent
        for view in views:
            if sent < len(view):
                self._output[self._at] = view[sent:]
                return
            sent -= len(view)
            self._at += 1

    def _send_file(self, file: OpenFile, position: int, size: int) -> None:
        """Sends a part of a file: the system takes it from the file to the connection."""
        sent = os.sendfile(self.socket.fileno(), file.descriptor, position, size)
        if not sent:
            _logger.warning("%s is shorter than it was: %d bytes are missing", file.path, size)
            raise ConnectionError("a file is cut")
        self._sent_bytes += sent
        if sent < size:
            self._output[self._at] = (file, position + sent, size - sent)
        else:
            self._at += 1

    def close(self) -> None:
        """Ends the connection, and gives back what it held."""
        self._output = []
        self._input = bytearray()
        self.hold(0)
        self.socket.close()


def owner_of(address: str) -> str:
    """Who is meant by an address: of IPv6 a network of 64 bits, which one machine may have to itself."""
    if ":" not in address:
        return address
    packed = socket.inet_pton(socket.AF_INET6, address.partition("%")[0])
    return packed[12:].hex() if packed[:12] == bytes(10) + b"\xff\xff" else packed[:8].hex()


def _parts(file_range: FileRange) -> list[memoryview | tuple[OpenFile, int, int]]:
    """What a range of a file is sent as: parts of the file, between them the heads in place of some of its bytes."""
    if not file_range.heads:
        return [(file_range.file, file_range.position, file_range.nbytes)]
    parts: list[memoryview | tuple[OpenFile, int, int]] = []
    ends = [*file_range.positions[1:], file_range.nbytes]
    for position, end, first_bytes in zip(file_range.positions, ends, file_range.heads, strict=True):
        begin = position + len(first_bytes)
        parts += [memoryview(first_bytes), (file_range.file, file_range.position + begin, end - begin)]
    return parts
