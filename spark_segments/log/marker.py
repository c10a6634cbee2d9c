"""The marker file, which distinguishes a log directory, even an empty directory, from any other directory.

On an object store it also says whether the store is safe to write to: of two creations of one name, the second must
fail. The marker itself is the probe. What the second creation writes says that the store let it through.
"""

from __future__ import annotations

import contextlib
import json

from spark_segments.errors import LogDirError, StorageError
from spark_segments.log.manifest.files.delta.delta_log import MANIFEST_DIRECTORY
from spark_segments.storage import Storage

MARKER = f"{MANIFEST_DIRECTORY}/log-directory.json"

FORMAT_VERSION = 1
"""The newest format of log directories that this package knows."""

OVERWRITES = (
    "This store ignores If-None-Match: two writers would overwrite each other's commits, so nothing is written there"
)

_CONDITIONS = "conditional.writes"
_IGNORED = "ignored"


def enclosing(storage: Storage) -> str | None:
    """The address of a log directory that the location lies in, None where there is none, or nobody may look there."""
    uri = storage.uri.rstrip("/").rpartition("/")[0]
    while uri and not uri.endswith("/"):  # of s3://bucket that is "s3:/"
        with contextlib.suppress(StorageError):
            if is_marked(Storage(uri, storage.storage_options)):
                return uri
        uri = uri.rpartition("/")[0]
    return None


def check_apart(storage: Storage) -> None:
    """Raises LogDirError where the location lies in a log directory: vacuum deletes what it does not know there."""
    outer = enclosing(storage)
    if outer is not None:
        raise LogDirError(
            "The location lies inside a log directory, where nothing else may lie",
            path=storage.uri,
            expected="a location of its own",
            found=f"the log directory {outer}",
        )


def mark(storage: Storage) -> None:
    """Makes the location a log directory. Another process may do so at the same moment.

    Raises LogDirError for a location inside a log directory, InvalidOptionError for one where no manifest could lie,
    StorageError where the store overwrites files that are to be created.
    """
    storage.delta_uri(MANIFEST_DIRECTORY)
    check_apart(storage)
    version = {"format.version": FORMAT_VERSION}
    with contextlib.suppress(FileExistsError):
        storage.create(MARKER, json.dumps(version).encode())
    storage.force([MARKER])  # no topic is worth anything in a directory that a power loss makes no log directory
    if not storage.is_local:
        with contextlib.suppress(FileExistsError):
            storage.create(MARKER, json.dumps({**version, _CONDITIONS: _IGNORED}).encode())
            raise StorageError(OVERWRITES, path=storage.uri)


def is_marked(storage: Storage) -> bool:
    """Whether the location is a log directory. A directory of a store that overwrites is only read from then on.

    Raises LogDirError for a marker that is damaged or has a newer format.
    """
    try:
        content = storage.read(MARKER).to_pybytes()
    except FileNotFoundError:
        return False
    if not content:
        return True  # the process that makes the directory has not written the marker yet, or was killed before
    try:
        marker = json.loads(content)
        version = int(marker["format.version"])
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
    if marker.get(_CONDITIONS) == _IGNORED:
        storage.refuse_writing(OVERWRITES)
    return True
