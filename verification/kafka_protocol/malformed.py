"""python -m verification.kafka_protocol.malformed --answers N [--seed S]: a capture that is given answers that make no
sense.

A proxy stands before a broker, and one answer that passes it has bytes that are others, gone, doubled or extreme. The
capture must end, whole or in one clear error, and whatever it has of a partition is what the broker has, byte for byte.
"""

from __future__ import annotations

import argparse
import random
import socket
import struct
import sys
import threading
import time
from collections import Counter
from contextlib import suppress

from spark_segments.errors import SegmentsError
from spark_segments.kafka_protocol import CaptureOptions, capture
from spark_segments.kafka_protocol.serving.views import Views
from verification.kafka_protocol.fetching import fetched_batches, kept_batches
from verification.kafka_protocol.mutated import mutated
from verification.kafka_protocol.played import playing
from verification.world.stores.memory_store import memory_log

_TOPIC, _PARTITIONS = "orders", 2
_PATIENCE_SECONDS = 0.2
_LONGEST_SECONDS = 30.0
_ANSWERS = 8  # that a capture gets, at least: one of them is another
_GROUP = "billing"


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m verification.kafka_protocol.malformed", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--answers", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    started = time.monotonic()
    source = memory_log("/source")
    source.create_topic(_TOPIC, _PARTITIONS)
    source.topic(_TOPIC).append([{"value": f"{n}" * 20, "partition": n % _PARTITIONS} for n in range(40)])
    source.group(_GROUP).reset({_TOPIC: {0: 3}})
    ended: Counter[str] = Counter()
    with playing(Views(source, interval_seconds=3600)) as address:
        whole = {number: fetched_batches(address, _TOPIC, number) for number in range(_PARTITIONS)}
        for number in range(arguments.answers):
            chance = random.Random(arguments.seed + number)
            try:
                ended[_captured(address, whole, chance)] += 1
            except Exception:
                print(f"the answer of seed {arguments.seed + number} failed", flush=True)
                raise
    seconds = time.monotonic() - started
    print(f"{arguments.answers} answers in {seconds:.0f} s: {dict(ended.most_common())}")
    return 0


def _captured(address: str, whole: dict[int, bytes], chance: random.Random) -> str:
    """How a capture ends of which one answer is another: its error's class, or whole."""
    log = memory_log("/log")
    begun = time.monotonic()
    with _Proxy(address, chance) as proxy:
        options = CaptureOptions(groups=[_GROUP], patience_seconds=_PATIENCE_SECONDS)
        try:
            failed = capture(log, proxy.address, [_TOPIC], options).failed
            end = "failed" if failed else "whole"
        except SegmentsError as error:
            end = type(error).__name__
    took = time.monotonic() - begun
    assert took < _LONGEST_SECONDS, f"it took {took:.0f} s"
    for number, data in whole.items() if log.topics() else ():
        if number < log.topic(_TOPIC).snapshot.partitions.num_rows:
            here = kept_batches(log, _TOPIC, number)
            assert data.startswith(here), f"{_TOPIC}-{number} has {len(here)} bytes that the broker has not"
    return end


class _Proxy:
    """Passes requests and answers on; of one connection after the other, one answer is another."""

    def __init__(self, address: str, chance: random.Random) -> None:
        host, _, port = address.rpartition(":")
        self._to = host, int(port)
        self._chance, self._left = chance, chance.randrange(_ANSWERS)
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = []

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._listening.getsockname()[1]}"

    def __enter__(self) -> _Proxy:
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        for one in self._open:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
        self._accepting.join(10)

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                broker = socket.create_connection(self._to)
                self._open += [client, broker]
                threading.Thread(target=self._requests, args=(client, broker), daemon=True).start()
                threading.Thread(target=self._answers, args=(broker, client), daemon=True).start()

    @staticmethod
    def _requests(client: socket.socket, broker: socket.socket) -> None:
        with suppress(OSError):
            while data := client.recv(1 << 16):
                broker.sendall(data)

    def _answers(self, broker: socket.socket, client: socket.socket) -> None:
        with suppress(OSError, struct.error):
            while True:
                size = _received(broker, 4)
                frame = size + _received(broker, *struct.unpack(">i", size))
                self._left -= 1
                client.sendall(mutated(frame, self._chance) if self._left == -1 else self._own(frame))

    def _own(self, frame: bytes) -> bytes:
        """Where an answer tells the broker's port, it tells the proxy's: the client stays here."""
        port = struct.pack(">i", self._to[1])
        return frame.replace(port, struct.pack(">i", self._listening.getsockname()[1]))


def _received(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = connection.recv(size - len(data))
        if not piece:
            raise OSError("the connection ended")
        data += piece
    return data


if __name__ == "__main__":
    sys.exit(main())
