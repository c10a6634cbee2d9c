"""A client's connection: the requests that come, and what is sent. Neither waits for the client for ever."""

from __future__ import annotations

import itertools
import logging
import os
import select
import socket
import ssl
import struct
from collections.abc import Iterator, Sequence
from typing import Any

from spark_segments.kafka_protocol.call import Limits
from spark_segments.kafka_protocol.messages import SIZE, BadRequestError
from spark_segments.kafka_protocol.read_ahead import FileRange
from spark_segments.storage.local import OpenFile

_BUFFERS = 1024  # that one call to the system takes
_MORE = getattr(socket, "MSG_MORE", 0)  # where the system knows it, a head waits for what follows
_PIECE_BYTES = 1 << 16  # holds most requests whole
_TIME = struct.Struct("ll")  # seconds, microseconds

_logger = logging.getLogger(__name__)


class Connection:
    """A connection, encrypted or not. Its methods raise OSError where it ends, or the client is too slow."""

    def __init__(self, client: socket.socket, limits: Limits) -> None:
        self._socket, self._limits = client, limits
        self.is_encrypted = isinstance(client, ssl.SSLSocket)
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if not self.is_encrypted:  # the system waits: with a timeout of Python's, each call to it is two
            client.settimeout(None)
            client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _time(limits.request_seconds))
        self._wait_at_most(limits.idle_seconds)

    @property
    def address(self) -> tuple[str, int]:
        """This end: where the client came to."""
        host, port = self._socket.getsockname()[:2]
        return str(host), int(port)

    def is_gone(self) -> bool:
        """Whether the client has ended the connection, or its half of it."""
        poll = select.poll()
        poll.register(self._socket, getattr(select, "POLLRDHUP", 0) | select.POLLHUP | select.POLLERR)
        return bool(poll.poll(0))

    def requests(self) -> Iterator[bytes]:
        """The requests, without their sizes. Ends with the connection. Raises BadRequestError for a size of none."""
        rest = b""
        while rest or (rest := self._socket.recv(_PIECE_BYTES)):
            rest = self._with(rest, SIZE.size)
            (size,) = SIZE.unpack_from(rest)
            if not 0 < size <= self._limits.request_bytes:
                expected = f"1 to {self._limits.request_bytes} bytes"
                raise BadRequestError("A request is of no size that is taken", expected=expected, found=size)
            end = SIZE.size + size
            rest = self._with(rest, end)
            request, rest = rest[SIZE.size : end], rest[end:]
            yield request

    def _with(self, begin: bytes, size: int) -> bytes:
        """`begin` and what follows it: so many bytes at least."""
        if len(begin) >= size:
            return begin
        self._wait_at_most(self._limits.request_seconds)
        data = bytearray(size)
        view, got = memoryview(data), len(begin)
        view[:got] = begin
        while got < size:
            if not (count := self._socket.recv_into(view[got:])):
                raise ConnectionError("the connection ended within a request")
            got += count
        self._wait_at_most(self._limits.idle_seconds)
        return bytes(data)

    def _wait_at_most(self, seconds: float) -> None:
        """How long the client may send nothing, from now on."""
        if self.is_encrypted:
            self._socket.settimeout(seconds)
        else:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _time(seconds))

    def send(self, buffers: Sequence[Any]) -> None:
        """Sends buffers and ranges of files one after the other, none copied where the connection is not encrypted."""
        if self.is_encrypted:
            self._wait_at_most(self._limits.request_seconds)
            for one in buffers:
                self._socket.sendall(one)
            self._wait_at_most(self._limits.idle_seconds)
            return
        for is_file, some in itertools.groupby(buffers, lambda one: isinstance(one, FileRange)):
            if is_file:
                for one in some:
                    self._send_range(one)
            else:
                self._send([memoryview(one).cast("B") for one in some])

    def _send(self, views: list[memoryview]) -> None:
        at = 0
        while at < len(views):
            sent = self._socket.sendmsg(views[at : at + _BUFFERS])
            while at < len(views) and sent >= len(views[at]):
                sent, at = sent - len(views[at]), at + 1
            if sent:
                views[at] = views[at][sent:]

    def _send_range(self, file_range: FileRange) -> None:
        """Sends a range of a file: the system takes it from the file to the connection."""
        if not file_range.heads:
            self._send_file(file_range.file, file_range.position, file_range.nbytes)
            return
        ends = [*file_range.positions[1:], file_range.nbytes]
        for position, end, first_bytes in zip(file_range.positions, ends, file_range.heads, strict=True):
            self._socket.sendall(first_bytes, _MORE)
            begin = position + len(first_bytes)
            self._send_file(file_range.file, file_range.position + begin, end - begin)

    def _send_file(self, file: OpenFile, position: int, size: int) -> None:
        while size:
            sent = os.sendfile(self._socket.fileno(), file.descriptor, position, size)
            if not sent:
                _logger.warning("%s is shorter than it was: %d bytes are missing", file.path, size)
                raise ConnectionError("a file is cut")
            position, size = position + sent, size - sent


def _time(seconds: float) -> bytes:
    return _TIME.pack(int(seconds), int(seconds % 1 * 1e6))
