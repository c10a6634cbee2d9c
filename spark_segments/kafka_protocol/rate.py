"""A bound on the bytes a second that a client asks a cluster for."""

from __future__ import annotations

import time
from collections.abc import Callable

from spark_segments.errors import InvalidOptionError

_LEAST_BYTES = 64 << 10  # of a question


class RateLimit:
    """A limit in bytes a second (None: no limit), over all clients that share it. Idle time is not saved up: a client
    that took bytes waits for their time before it asks for more. So the average rate since the limit was made is never
    above the limit, but for the last answer.
    """

    def __init__(
        self,
        bytes_a_second: int | None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        if bytes_a_second is not None and bytes_a_second <= 0:
            raise InvalidOptionError("Not a rate", expected="bytes a second above 0", found=bytes_a_second)
        self._rate = bytes_a_second
        self._clock = clock
        self._sleep = sleep
        self._free_at = clock()

    def spend(self, size: int) -> None:
        """Counts bytes that have come."""
        if self._rate is not None:
            self._free_at = max(self._free_at, self._clock()) + size / self._rate

    @property
    def is_free(self) -> bool:
        """Whether more may be asked for now."""
        return self._rate is None or self._clock() >= self._free_at

    def wait(self) -> bool:
        """Waits until more may be asked for; False: at once."""
        if self.is_free:
            return False
        self._sleep(self._free_at - self._clock())
        return True

    def within(self, seconds: float, most_bytes: int) -> int:
        """The bytes of so much time, at most `most_bytes`."""
        if self._rate is None:
            return most_bytes
        return min(most_bytes, max(_LEAST_BYTES, int(self._rate * seconds)))
