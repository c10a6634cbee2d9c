"""What a manifest's files say, and changes of their times."""

from __future__ import annotations

import os

from verification.world.manifest_rows import Manifest

DAY_MS = 24 * 60 * 60 * 1000


def offsets(manifest: Manifest) -> dict[int, tuple[int, int]]:
    rows = manifest.snapshot().partitions.to_pylist()
    return {row["partition"]: (row["log_start_offset"], row["log_end_offset"]) for row in rows}


def segment_files(manifest: Manifest) -> set[str]:
    return {file.path for file in manifest.log.state().files if file.kind == "segment"}


def make_older(manifest: Manifest, age_ms: int, paths: list[str] | None = None) -> None:
    """Moves the modification times of files of the table, which is what the store's clock is compared with."""
    storage = manifest.storage
    for info in storage.list(manifest.log.directory, recursive=True):
        if paths is None or info.path in paths:
            seconds = (info.mtime_ms - age_ms) / 1000
            os.utime(storage.location(info.path), (seconds, seconds))
