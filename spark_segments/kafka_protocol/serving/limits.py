"""Bounds of a server: what it takes, gives and keeps at most, and how much of that one client can have."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of a server. Sizes in bytes, times in seconds.

    `memory_bytes`: of requests and answers under way. `kept_bytes`: of what groups have in memory. Both leave out what
    is small: FREE_BYTES a connection. `groups`, `group_files_bytes`: of groups that clients made, in the log directory.
    `slow_bytes`: a client has `request_seconds`, and a second for so many bytes of an answer, to take it.
    """

    connections: int = 8192
    workers: int = 4
    request_bytes: int = 4 << 20
    request_entries: int = 20_000
    response_bytes: int = 16 << 20
    memory_bytes: int = 128 << 20
    kept_bytes: int = 32 << 20
    metadata_bytes: int = 4096
    groups: int = 10_000
    group_files_bytes: int = 128 << 20
    login_seconds: float = 10.0
    offsets_retention_minutes: float = 10_080.0
    failed_login_seconds: float = 1.0
    refused_producer_seconds: float = 1.0
    idle_seconds: float = 600.0
    request_seconds: float = 30.0
    slow_bytes: int = 64 << 10


FREE_BYTES = 64 << 10
"""What a connection has of memory without a question, and the largest request before a login."""


class Budget:
    """A limited number of connections or bytes, which owners take and give back.

    An owner has at most half of what all others leave. So a client that takes all that one address can have leaves as
    much to other addresses, and a new client always finds some.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._taken: Counter[str] = Counter()
        self._sum = 0
        self._lock = threading.Lock()

    @property
    def taken(self) -> int:
        """What all have taken together."""
        return self._sum

    def free(self, owner: str) -> int:
        """What the owner can still take."""
        with self._lock:
            return self._free(owner)

    def _free(self, owner: str) -> int:
        own = self._taken[owner]
        return max(0, (self._most - (self._sum - own)) // 2 - own)

    def take(self, owner: str, amount: int, *, is_there: bool = False) -> bool:
        """Takes an amount, all of it or nothing. `is_there`: it is taken already, and only noted."""
        with self._lock:
            if not is_there and amount > self._free(owner):
                return False
            self._taken[owner] += amount
            self._sum += amount
            return True

    def give(self, owner: str, amount: int) -> None:
        """Gives back what was taken."""
        with self._lock:
            self._sum -= amount
            self._taken[owner] -= amount
            if not self._taken[owner]:
                del self._taken[owner]
