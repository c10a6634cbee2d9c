"""The marker file, which distinguishes a log directory, even an empty directory, from any other directory."""

from __future__ import annotations

import contextlib
import json

from spark_segments.errors import LogDirError
from spark_segments.log.manifest.delta.delta_log import MANIFEST_DIRECTORY
from spark_segments.storage import Storage

MARKER = f"{MANIFEST_DIRECTORY}/log-directory.json"

FORMAT_VERSION = 1
"""The newest format of log directories that this package knows."""


def is_marked(storage: Storage) -> bool:
    """Whether the location is a log directory."""
    return storage.exists(MARKER)


def mark(storage: Storage) -> None:
    """Makes the location a log directory. Another process may do so at the same moment."""
    with contextlib.suppress(FileExistsError):
        storage.write(MARKER, json.dumps({"format.version": FORMAT_VERSION}).encode())
    storage.force([MARKER])  # no topic is worth anything in a directory that a power loss makes no log directory


def check_format(storage: Storage) -> None:
    """Raises LogDirError for a marker that is damaged or has a newer format."""
    content = storage.read(MARKER).to_pybytes()
    if not content:
        return  # the process that makes the directory has not written the marker yet, or was killed before
    try:
        version = int(json.loads(content)["format.version"])
    except (ValueError, KeyError, TypeError) as error:
        raise LogDirError("The log directory's marker file is damaged", path=MARKER, found=content[:80]) from error
    if version > FORMAT_VERSION:
        raise LogDirError(
            "The log directory has a newer format",
            path=MARKER,
            expected=f"format.version {FORMAT_VERSION}",
            found=version,
            hint="Use a newer spark-segments",
        )
