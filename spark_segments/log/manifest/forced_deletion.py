"""Deleting a topic whose manifest cannot be read: a note beside the manifest stands in for the commit.

The note holds for Delta's log as it was when the note was written. A later change of that log (a repair, or a commit)
makes the note void: the topic exists again for everybody who can read its manifest.
"""

from __future__ import annotations

import hashlib
import json

from spark_segments.storage import Storage

_NOTE = "deleted.json"


def record(storage: Storage, manifest_directory: str, now_ms: int) -> None:
    """Writes the note, unless a note that holds is there."""
    if deleted_by_force_ms(storage, manifest_directory) is not None:
        return
    path = f"{manifest_directory}/{_NOTE}"
    storage.delete(path)  # a void note
    note = {"deleted_ms": now_ms, "log_files": _digest(storage, manifest_directory)}
    storage.write(path, json.dumps(note).encode())


def deleted_by_force_ms(storage: Storage, manifest_directory: str) -> int | None:
    """When the topic was deleted by force, in ms by the store's clock; None where there is no note or it is void."""
    try:
        note = json.loads(storage.read(f"{manifest_directory}/{_NOTE}").to_pybytes())
        deleted_ms, log_files = int(note["deleted_ms"]), note["log_files"]
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None
    return deleted_ms if log_files == _digest(storage, manifest_directory) else None


def files_to_delete(storage: Storage, manifest_directory: str) -> list[str]:
    """All files of the manifest in a safe order of deletion: the note holds until Delta's log is touched."""
    log_prefix, note = f"{manifest_directory}/_delta_log/", f"{manifest_directory}/{_NOTE}"
    paths = [info.path for info in storage.list(manifest_directory, recursive=True)]
    return sorted(paths, key=lambda path: (path == note, path.startswith(log_prefix), path))


def _digest(storage: Storage, manifest_directory: str) -> str:
    files = [[info.path, info.size, info.mtime_ms] for info in storage.list(f"{manifest_directory}/_delta_log")]
    return hashlib.sha256(json.dumps(files).encode()).hexdigest()
