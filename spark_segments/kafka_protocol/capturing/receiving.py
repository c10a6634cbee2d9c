"""What kafka-python's connections receive: answers of many megabytes, of which they read 4 KiB at a time and copy a
frame six times, and the last answer before an end, which they drop.
"""

from __future__ import annotations

import ssl
from functools import partial
from typing import Any

import pyarrow as pa
from kafka import errors
from kafka.net.connection import KafkaConnection
from kafka.net.transport import KafkaTCPTransport
from kafka.protocol.parser import KafkaProtocol

_BEGIN_BYTES = 1 << 16  # of a frame, read before its size is known
_RECORD_BYTES = 1 << 14  # a TLS record has at most. Where one is read in part, no selector reports the rest
_NOTHING_YET = (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


def keep_last_answer(connection: KafkaConnection) -> None:
    """From now on the connection reads what a broker said before it hung up: why it refuses a login, say. kafka-python
    drops what it receives together with the end.
    """
    original = connection.connection_made

    def connection_made(transport: KafkaTCPTransport) -> None:
        receive = transport._sock_recv
        ends: list[Exception] = []

        def received() -> tuple[bytes, Exception | None]:
            data, end = (b"", ends.pop()) if ends else receive()
            if data and end is not None:
                ends.append(end)
                end = None
            return data, end

        transport._sock_recv = received
        original(transport)

    connection.connection_made = connection_made


def take_large_frames(connection: KafkaConnection) -> None:
    """From now on the connection reads a frame into the memory where it stays."""
    if type(connection.parser) is KafkaProtocol:
        connection.parser.__class__ = _Frames
        begin = memoryview(bytearray(_BEGIN_BYTES))
        connection.transport._sock_recv = partial(_received, connection.transport, connection.parser, begin)


class _Frame:
    """A frame of an answer of `size` bytes, `got` of which are here. It is read without a copy.

    `data`: where they are, with room for what a TLS record has behind them.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.got = 0
        self._at = 0
        self.data = memoryview(pa.allocate_buffer(size + _RECORD_BYTES)).cast("B")  # Arrow's pool keeps its pages

    def read(self, size: int | None = None) -> memoryview:
        begin = self._at
        self._at = self.size if size is None else min(self.size, begin + size)
        return self.data[begin : self._at]

    def seek(self, place: int) -> None:
        self._at = place


class _Frames(KafkaProtocol):  # type: ignore[misc]
    _rbuffer: _Frame | None
    """The frame under way. None while its size is."""

    def receive_bytes(self, data: Any) -> list[Any]:
        """The answers that end here. `data`: what came; it may lie where the frame's next bytes go."""
        rest = memoryview(data)
        answers = []
        while len(rest):
            frame = self._rbuffer
            if frame is None:
                count = min(len(rest), 4 - self._header.tell())
                self._header.write(rest[:count])
                if self._header.tell() == 4:
                    size = int.from_bytes(self._header, "big", signed=True)
                    self._validate_frame_size(size)
                    frame = _Frame(size)
                    self._rbuffer = frame
            else:
                count = min(len(rest), frame.size - frame.got)
                if rest.obj is not frame.data.obj:
                    frame.data[frame.got : frame.got + count] = rest[:count]
                frame.got += count
            rest = rest[count:]
            if frame is not None and frame.got == frame.size:
                self._reset_buffer()
                answers.append(self._process_response(frame))
        return answers


def _received(transport: KafkaTCPTransport, parser: KafkaProtocol, begin: memoryview) -> tuple[Any, Exception | None]:
    """What is there, and why nothing will be: as the transport's own `_sock_recv`."""
    frame = parser._rbuffer
    room = begin if frame is None else frame.data[frame.got :]
    got = 0
    end = None
    try:
        while end is None and len(room) - got >= _RECORD_BYTES:
            count = transport._sock.recv_into(room[got:])
            got += count
            end = None if count else errors.KafkaConnectionError("socket disconnected")
    except _NOTHING_YET:
        pass
    except OSError as error:
        end = errors.KafkaConnectionError(error)
    return room[:got], None if got else end  # an end that comes with data is there at the next call, too
