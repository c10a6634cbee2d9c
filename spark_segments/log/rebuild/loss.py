"""Whether a manifest is lost or damaged: its bytes decide, not whether the store answers."""

from __future__ import annotations

import contextlib

import pyarrow as pa

from spark_segments.errors import LogDirError, SegmentsError
from spark_segments.log.manifest.manifest import Manifest
from spark_segments.log.manifest.topic_row import NewerFormatError
from spark_segments.storage import FileInfo, Storage
from spark_segments.storage.scratch import scratch_directory


def check_lost(manifest: Manifest) -> None:
    """Returns where the latest version of a manifest, or any of its rows, cannot be read from the files that are there.

    Raises LogDirError where it can be read, where the topic was deleted by force, and where a newer package wrote it;
    StorageError where the store fails: then nobody knows.
    """
    if manifest.log.deleted_by_force_ms() is not None:
        raise LogDirError(
            f"Topic {manifest.topic} was deleted by force: there is nothing to rebuild",
            path=manifest.log.location,
            hint="To have it again, take the file deleted.json away first",
        )
    failure = _failure(manifest)
    if failure is not None:
        # delta-rs has one error for a store that fails and for damaged files. Files that were read are not the store's.
        with scratch_directory() as place:
            copy = Storage(place)
            manifest.storage.at_once(
                lambda info: _copy(manifest.storage, info, copy),
                manifest.storage.list(manifest.log.directory, recursive=True),
            )
            if _failure(Manifest(copy, manifest.topic)) is not None:
                return
        if _failure(manifest) is not None:
            raise failure
    raise LogDirError(
        f"The manifest of {manifest.topic} can be read: there is nothing to rebuild",
        path=manifest.log.location,
        hint="segments verify looks for other faults, and topic restore goes back to an earlier version",
    )


def _failure(manifest: Manifest) -> Exception | None:
    """The error of reading all rows of the latest version. A newer format is no failure: it is raised."""
    try:
        manifest.snapshot(deleted=True).source.read(None)
    except NewerFormatError:
        raise
    except (SegmentsError, FileNotFoundError, KeyError, pa.ArrowException) as error:
        return error
    return None


def _copy(storage: Storage, info: FileInfo, target: Storage) -> None:
    with contextlib.suppress(FileNotFoundError):  # gone since the listing
        target.write(info.path, storage.read(info.path))
