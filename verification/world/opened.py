"""Log directories over what a test plays: a file system of its own, or Delta logs
(`verification/world/stores/played_log.py`).

`LocalFiles` and `DeltaLog` are what such a play is made of: it answers some calls otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from spark_segments import LogDir
from spark_segments.log.manifest.files.delta.delta_log import DeltaLog, OpenDeltaLog
from spark_segments.log.marker import mark
from spark_segments.storage import FileSystem, Storage
from spark_segments.storage.local import LocalFiles

__all__ = ["DeltaLog", "LocalFiles", "OpenDeltaLog", "created", "opened"]


def opened(
    at: LogDir | Storage | Path | str,
    filesystem: FileSystem | None = None,
    *,
    open_delta_log: OpenDeltaLog = DeltaLog,
    defaults: Mapping[str, str] | None = None,
) -> LogDir:
    """The log directory at a place, as a process opens it that has just begun.

    Of a log directory that is given, its storage and its defaults are used. Nobody asks whether there is one.
    """
    if isinstance(at, LogDir):
        defaults = at.defaults if defaults is None else defaults
        at = at.storage if filesystem is None else at.uri
    storage = at if isinstance(at, Storage) else Storage(str(at), filesystem=filesystem)
    return LogDir(storage, defaults=defaults, open_delta_log=open_delta_log)


def created(
    at: Storage | Path | str, filesystem: FileSystem | None = None, *, open_delta_log: OpenDeltaLog = DeltaLog
) -> LogDir:
    """An empty log directory at a place."""
    log = opened(at, filesystem, open_delta_log=open_delta_log)
    mark(log.storage)
    return log
