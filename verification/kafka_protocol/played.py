"""A broker that does not do as it should: the server of a log directory, of which some answers are others."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from spark_segments import LogDir
from spark_segments.errors import MissingFileError
from spark_segments.kafka_protocol.serving.server import Server
from spark_segments.kafka_protocol.serving.server_options import ServerOptions
from spark_segments.kafka_protocol.serving.views import ServedTopic, Views
from spark_segments.log.reading.verbatim import FetchedBatches

Fault = Callable[[FetchedBatches], FetchedBatches]


def cut(read: FetchedBatches) -> FetchedBatches:
    """Half a batch at the end."""
    data = np.concatenate([*read.data, np.zeros(0, np.uint8)])
    return FetchedBatches([data[: max(1, len(data) - 20)].copy()], read.next_offset)


def bad_crc(read: FetchedBatches) -> FetchedBatches:
    """A byte of the last batch is another."""
    data = np.concatenate([*read.data, np.zeros(1, np.uint8)])[:-1].copy()
    if len(data):
        data[-1] ^= 0x40
    return FetchedBatches([data], read.next_offset)


def moved(read: FetchedBatches) -> FetchedBatches:
    """NOT_LEADER_OR_FOLLOWER."""
    raise MissingFileError("played: another broker leads")


def empty(read: FetchedBatches) -> FetchedBatches:
    return FetchedBatches([], read.next_offset)


FAULTS: tuple[Fault, ...] = (cut, bad_crc, moved, empty)


class PlayedTopic(ServedTopic):
    """A topic whose answers pass `fault` as long as it says so; `parts_at`: where its last epoch ends."""

    fault: Callable[[], Fault | None]
    parts_at: int | None = None

    def read(
        self,
        partition: int,
        offset: int,
        max_bytes: int,
        *,
        committed: bool,
        at_least_one: bool,
        from_files: bool = False,
    ) -> tuple[list[Any], int]:
        data, behind = super().read(partition, offset, max_bytes, committed=committed, at_least_one=at_least_one)
        fault = self.fault()
        if fault is None:
            return data, behind
        read = fault(FetchedBatches(data, behind))
        return [*read.data], read.next_offset

    def end_of_epoch(self, partition: int, epoch: int) -> tuple[int, int]:
        found = super().end_of_epoch(partition, epoch)
        return found if self.parts_at is None else (found[0], min(found[1], self.parts_at))


class PlayedViews(Views):
    """`fault()`: what happens to the next answer, None for nothing."""

    def __init__(self, log: LogDir, fault: Callable[[], Fault | None], parts_at: int | None = None) -> None:
        super().__init__(log, interval_seconds=0.0)
        self._fault, self._parts_at = fault, parts_at

    def topic(self, name: str) -> ServedTopic | None:
        view = super().topic(name)
        if view is None:
            return None
        played = PlayedTopic(self.log, view.snapshot, self.read_ahead)
        played.fault, played.parts_at = self._fault, self._parts_at
        return played


@contextmanager
def playing(views: Views) -> Iterator[str]:
    """The address of a server of these views."""
    with Server(views, ServerOptions(port=0)) as server:
        thread = threading.Thread(target=server.serve, daemon=True)
        thread.start()
        yield f"127.0.0.1:{server.port}"
    thread.join(10)
