"""Checks of a log directory's store: it is reachable, it honours conditional writes, it shows what was last done, its
clock is right.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path

from spark_segments.cli.doctor.environment import FAILED, OK, SKIPPED, WARNING, Check
from spark_segments.errors import SegmentsError
from spark_segments.face.logdir import LogDir
from spark_segments.quantities import wall_ms
from spark_segments.storage import Storage

PROBES = "_doctor"
FAR_MS = 5_000
"""Ages of files are days, and a chunk of an append may be days old: seconds do no harm."""

_FAILURES = (SegmentsError, OSError)


def store(storage: Storage) -> Iterator[Check]:
    """All checks of a location. What they write is deleted again; a Kafka directory is only read."""
    try:
        marked = LogDir.open(storage.uri, storage.storage_options) if storage.directories() or storage.list() else None
    except SegmentsError as error:
        yield Check("storage", FAILED, str(error), None)
        return
    if marked is None:
        empty = "is not there yet" if _missing(storage) else "is reachable and empty"
        yield Check("storage", OK, f"{storage.uri} {empty}")
    else:
        # Whether a topic was deleted would take a look into each of what may be very many.
        kind = "topics" if marked.is_kafka else "topics, deleted ones included"
        count = len(marked.directories())
        yield Check("storage", OK, f"{storage.uri} is a log directory with {count:,} {kind}")
    if marked is not None and marked.is_kafka:
        yield Check("conditional writes", SKIPPED, "Kafka wrote this directory: nothing is written to it")
        return
    directory = f"{PROBES}/{uuid.uuid4().hex}"
    missing = _missing(storage)
    try:
        written = conditional_writes(storage, directory)
        yield written
        if written.status == OK:
            yield latest_state(storage, directory)
        try:
            yield clock(storage, directory)
        except _FAILURES as error:  # a store without write access, for example, which the check before has reported
            yield Check("clock", SKIPPED, f"the store stamped no file: {_line(error)}")
    finally:
        with contextlib.suppress(*_FAILURES):
            _delete(storage, directory, missing)


def conditional_writes(storage: Storage, directory: str) -> Check:
    """Whether of two creations of one name the second is refused, as every commit needs it."""
    path = f"{directory}/probe"
    try:
        storage.create(path, b"first")
    except _FAILURES as error:
        hint = "May this user write there? Names of storage options are on the page about object stores"
        return Check("conditional writes", FAILED, f"nothing can be written: {_line(error)}", hint)
    try:
        storage.create(path, b"second")
    except FileExistsError:
        return Check("conditional writes", OK, "of two creations of one name, the second was refused")
    except _FAILURES as error:
        return Check("conditional writes", FAILED, f"the second creation failed otherwise: {_line(error)}")
    hint = "Two writers would overwrite each other's commits, and records would be lost: use another store"
    return Check("conditional writes", FAILED, "the store took two creations of one name", hint)


def latest_state(storage: Storage, directory: str) -> Check:
    """Whether reads and listings show the last write and the last deletion at once: a cache before a store may not."""
    name = "reads after writes"
    path = f"{directory}/state"
    hint = "Give the address of the store itself: with a cache before it, readers and jobs go by what is gone"
    try:
        for turn, content in enumerate((b"first", b"second", b"third"), start=1):
            storage.create(path, content)
            if bytes(storage.read(path)) != content:
                return Check(name, FAILED, f"a read gave an older file than was written (turn {turn})", hint)
            if not _is_listed(storage, path):
                return Check(name, FAILED, f"a file that was written is not listed (turn {turn})", hint)
            storage.delete(path)
            if _is_listed(storage, path):
                return Check(name, FAILED, f"a file that was deleted is listed (turn {turn})", hint)
            with contextlib.suppress(FileNotFoundError):
                storage.read(path)
                return Check(name, FAILED, f"a file that was deleted is read (turn {turn})", hint)
    except FileNotFoundError:
        return Check(name, FAILED, "a file that was written is not read", hint)
    except FileExistsError:
        return Check(name, FAILED, "a file that was deleted is in the way of a new one", hint)
    except _FAILURES as error:
        return Check(name, FAILED, f"the store failed: {_line(error)}")
    return Check(
        name, OK, "each file was read and listed as soon as it was written, and gone as soon as it was deleted"
    )


def _is_listed(storage: Storage, path: str) -> bool:
    return any(info.path == path for info in storage.list(path.rpartition("/")[0]))


def clock(storage: Storage, directory: str) -> Check:
    """How far this machine's clock is from the clock that the store stamps files with."""
    path = f"{directory}/clock"
    started_ms = wall_ms()
    storage.write(path, b"?")
    ended_ms = wall_ms()
    stamped_ms = next(info.mtime_ms for info in storage.list(directory) if info.path == path)
    # A store may stamp whole seconds: a second on either side is no difference of clocks.
    off_ms = max(started_ms - 1000 - stamped_ms, stamped_ms - ended_ms - 1000, 0)
    text = f"this machine and the store differ by {off_ms / 1000:.0f} s"
    if off_ms > FAR_MS:
        return Check("clock", WARNING, text, "Set the clock by NTP: retention and timestamps go by this machine's")
    return Check("clock", OK, text)


def _missing(storage: Storage) -> list[Path]:
    """The directories of this machine that the first file would make, the innermost first."""
    root = Path(storage.uri)
    return [each for each in (root, *root.parents) if not each.exists()] if storage.is_local else []


def _delete(storage: Storage, directory: str, missing: Iterable[Path]) -> None:
    storage.delete(info.path for info in storage.list(directory, recursive=True))
    if storage.is_local:  # elsewhere directories are names alone
        shutil.rmtree(storage.location(directory))
        os.rmdir(storage.location(PROBES))
        for directory_made in missing:
            directory_made.rmdir()


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300]
