"""Requests that wait: until their time comes, or until somebody wakes them."""

from __future__ import annotations

import heapq
import itertools
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from spark_segments.kafka_protocol.serving.api_call import Call

_LOOK_AT = 100  # requests that wait, before a look at which of them do not any more


@dataclass(slots=True, order=True)
class ParkedCall:
    """A request that waits until `until_seconds` (time.monotonic()). `call`: None once it goes on."""

    until_seconds: float
    number: int
    call: Call | None = field(compare=False)


class ParkedCalls:
    """The requests of a server that wait, the one whose time comes first at the top of a heap.

    One that is woken leaves its place in the heap, which is looked for only once half of the places are left: a wake-up
    costs the same however many requests wait.
    """

    def __init__(self) -> None:
        self._heap: list[ParkedCall] = []
        self._left = 0  # of these, how many go on already
        self._numbers = itertools.count()
        self._lock = threading.Lock()

    def add(self, call: Call, until_seconds: float) -> tuple[ParkedCall, bool]:
        """Has a request wait: (its place, whether its time comes before that of all others)."""
        with self._lock:
            is_first = not self._heap or until_seconds < self._heap[0].until_seconds
            parked = ParkedCall(until_seconds, next(self._numbers), call)
            heapq.heappush(self._heap, parked)
        return parked, is_first

    def leave(self, parked: ParkedCall) -> None:
        """A request waits no more."""
        with self._lock:
            if parked.call is None:  # its time has come: it is out of the heap
                return
            parked.call = None
            self._left += 1
            if 2 * self._left > len(self._heap) + _LOOK_AT:
                self._heap = [entry for entry in self._heap if entry.call is not None]
                heapq.heapify(self._heap)
                self._left = 0

    def due(self, now: float) -> list[Call]:
        """The requests whose time has come. They leave the heap."""
        calls = []
        with self._lock:
            while self._heap and self._heap[0].until_seconds <= now:
                parked = heapq.heappop(self._heap)
                if parked.call is None:
                    self._left -= 1
                else:
                    calls.append(parked.call)
                    parked.call = None
        return calls

    def seconds_left(self, now: float, most: float) -> float:
        """Until the first of them is due, `most` at most."""
        with self._lock:
            return min(most, self._heap[0].until_seconds - now) if self._heap else most

    def take_all(self) -> list[Call]:
        """All requests that wait. None is left."""
        with self._lock:
            heap = self._heap
            self._heap = []
        return [parked.call for parked in heap if parked.call is not None]
