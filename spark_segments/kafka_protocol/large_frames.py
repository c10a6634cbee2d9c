"""Answers of many megabytes by kafka-python's connections, which read 4 KiB at a time and copy a frame six times."""

from __future__ import annotations

from functools import partial
from typing import Any

from kafka import errors
from kafka.net.connection import KafkaConnection
from kafka.net.transport import KafkaTCPTransport
from kafka.protocol.parser import KafkaProtocol

_PIECE_BYTES = 1 << 20


def take_large_frames(connection: KafkaConnection) -> None:
    """From now on the connection reads 1 MiB at a time (by TLS as before), and copies a frame as rarely as it can."""
    if type(connection.parser) is KafkaProtocol:
        connection.parser.__class__ = _Frames
    if type(connection.transport) is KafkaTCPTransport:
        connection.transport._sock_recv = partial(_received, connection.transport)


class _Frames(KafkaProtocol):  # type: ignore[misc]
    def receive_bytes(self, data: bytes) -> list[Any]:
        return list(super().receive_bytes(memoryview(data)))

    def _process_response(self, read_buffer: bytearray) -> Any:
        return super()._process_response(_Frame(read_buffer))


class _Frame:
    """A whole frame, read without a copy."""

    def __init__(self, data: bytearray) -> None:
        self._data, self._at = memoryview(data), 0

    def read(self, size: int | None = None) -> memoryview:
        begin = self._at
        self._at = len(self._data) if size is None else min(len(self._data), begin + size)
        return self._data[begin : self._at]

    def seek(self, place: int) -> None:
        self._at = place


def _received(transport: KafkaTCPTransport) -> tuple[bytes, Exception | None]:
    """What is there, and why nothing will be: as the transport's own `_sock_recv`."""
    try:
        data = transport._sock.recv(_PIECE_BYTES)
    except (BlockingIOError, InterruptedError):
        return b"", None
    except OSError as error:
        return b"", errors.KafkaConnectionError(error)
    return data, None if data else errors.KafkaConnectionError("socket disconnected")
