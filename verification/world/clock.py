"""The store's own clock, at a moment that a test chooses; and how long a test waits."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator
from unittest import mock

from spark_segments.storage import FileInfo, Storage

PATIENCE_SECONDS = 300
"""How long a test waits for what always comes, however busy the machine is: only what never comes takes so long."""

ORPHAN_AGE_MS = 7 * 24 * 60 * 60 * 1000
"""From when on vacuum deletes a file that no row names, as docs/format/writing.md has it."""

OLDEST_CHUNK_MS = ORPHAN_AGE_MS // 2
"""How old a file may be whose rows are committed, as W14 has it."""


@contextlib.contextmanager
def store_clock(now_ms: int | Callable[[], int]) -> Iterator[None]:
    """While it lasts, the store's clock stands at `now_ms`, of files that are written meanwhile, too; or it says what
    `now_ms` returns.
    """
    begun_ms, listed = time.time_ns() // 1_000_000, Storage.list

    def said_ms() -> int:
        return now_ms() if callable(now_ms) else now_ms

    def files(storage: Storage, path: str = "", recursive: bool = False) -> list[FileInfo]:
        infos = listed(storage, path, recursive)
        if callable(now_ms):
            return infos
        return [dataclasses.replace(info, mtime_ms=now_ms) if info.mtime_ms > begun_ms else info for info in infos]

    with mock.patch.object(Storage, "now_ms", lambda _: said_ms()), mock.patch.object(Storage, "list", files):
        yield


@contextlib.contextmanager
def played_time(of: str, played: object) -> Iterator[None]:
    """While it lasts, `played` is the time of this machine for a part of the package: commits, tables or groups, which
    ask for the wall clock alone.
    """
    places = {
        "commits": "log.manifest.commit.committing.time",
        "tables": "quantities.time",
        "groups": "log.groups.group.wall_ms",
    }
    with mock.patch(f"spark_segments.{places[of]}", played):
        yield
