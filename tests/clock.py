"""The store's own clock, at a moment that a test chooses."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from unittest import mock

from spark_segments.storage import Storage


@contextlib.contextmanager
def store_clock(now_ms: int) -> Iterator[None]:
    """While it lasts, the store's clock stands at `now_ms`."""
    with mock.patch.object(Storage, "now_ms", lambda _: now_ms):
        yield
