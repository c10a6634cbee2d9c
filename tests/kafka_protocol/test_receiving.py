"""Frames that come in pieces, against kafka-python's own parser, which copies them; and what comes with the end."""

from __future__ import annotations

import random
import socket
from types import SimpleNamespace

import pytest
from kafka.errors import InvalidReceiveError, KafkaConnectionError
from kafka.net.transport import KafkaTCPTransport
from kafka.protocol.consumer import FetchRequest
from kafka.protocol.parser import KafkaProtocol
from kio.schema.errors import ErrorCode

from spark_segments.kafka_protocol.capturing.receiving import keep_last_answer, take_large_frames
from spark_segments.kafka_protocol.serving.apis import fetch
from spark_segments.kafka_protocol.serving.messages import response

_SIZES = (0, 1, 3000, 100_000, 200_000, 7)  # of records, below and above what is read before a frame's size is known


def parser_with_requests() -> KafkaProtocol:
    parser = KafkaProtocol()
    for _ in _SIZES:
        request = FetchRequest(topics=[], min_version=11, max_version=11)
        request.API_VERSION = 11
        parser.send_request(request)
    return parser


def answers_of(chance: random.Random) -> bytes:
    frames = []
    for number, size in enumerate(_SIZES, 1):
        partition = {
            "partition_index": 0,
            "error_code": ErrorCode.none,
            "high_watermark": number,
            "aborted_transactions": [],
            "records": chance.randbytes(size),
        }
        values = {"error_code": ErrorCode.none, "session_id": 0}
        responses = [{"topic": "orders", "partitions": [partition]}]
        frames += response(fetch.KEY, 11, number, values | {"responses": responses})
    return b"".join(bytes(frame) for frame in frames)


@pytest.mark.cases(5)
@pytest.mark.parametrize("seed", range(20))
def test_frames_in_pieces_of_any_size_are_those_of_the_clients_own_parser(seed):
    chance = random.Random(seed)
    data = answers_of(chance)
    wanted = parser_with_requests().receive_bytes(data)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        connection = SimpleNamespace(parser=parser_with_requests(), transport=KafkaTCPTransport(None, ours))
        take_large_frames(connection)
        answers = []
        while data:
            size = chance.choice((1, 2, 5, 100, 65_536, 100_000))
            theirs.sendall(data[:size])
            data = data[size:]
            while len(received := connection.transport._sock_recv()[0]):
                answers += connection.parser.receive_bytes(received)
        theirs.close()
        assert connection.transport._sock_recv()[1] is not None
    assert [(number, answer.to_dict()) for number, answer in answers] == [
        (number, answer.to_dict()) for number, answer in wanted
    ]


def test_a_frame_of_an_impossible_size_is_refused():
    connection = SimpleNamespace(parser=parser_with_requests(), transport=SimpleNamespace())
    take_large_frames(connection)
    with pytest.raises(InvalidReceiveError):
        connection.parser.receive_bytes(b"\xff\xff\xff\xfe")


@pytest.mark.parametrize("is_large", [False, True])
def test_what_comes_with_the_end_is_read_before_the_end(is_large):
    ours, theirs = socket.socketpair()
    with ours:
        ours.setblocking(False)
        connection = SimpleNamespace(parser=KafkaProtocol(), connection_made=lambda transport: None)
        keep_last_answer(connection)
        connection.transport = KafkaTCPTransport(None, ours)
        connection.connection_made(connection.transport)
        if is_large:
            take_large_frames(connection)
        theirs.sendall(b"wrong password")
        theirs.close()
        data, end = connection.transport._sock_recv()
        assert (bytes(data), end) == (b"wrong password", None)
        data, end = connection.transport._sock_recv()
        assert not len(data) and isinstance(end, KafkaConnectionError)
