"""The history of a topic: what each of its commits added and took, and where the logs started and ended after it.

The figures come from the rows of neighbouring versions. So they are there for the commits of every version of this
package, as long as vacuum keeps the versions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from spark_segments.errors import InvalidOptionError, UnknownTopicError
from spark_segments.log import Manifest, Snapshot, row_tables

_FIGURES = ("records_in", "records_out", "bytes_in", "bytes_out")


def history(manifest: Manifest, limit: int | None = None) -> list[dict[str, Any]]:
    """The newest `limit` commits of a topic (None: all that the manifest still has), newest first.

    A dict each: `version`; `committed_ms`, by the clock of the machine that committed; `job`, the operation;
    `records_in` and `bytes_in` of the segments that entered the log, `records_out` and `bytes_out` of the segments that
    left it (a rewritten segment does both); `partitions`, {partition: (log start offset, log end offset)}. The figures
    are None where vacuum has deleted the rows of that version or of the version before.

    Raises UnknownTopicError where there is no topic of that name, not even a deleted one.
    """
    commits = manifest.history()
    if not commits:
        raise UnknownTopicError(f"There is no topic {manifest.topic}", path=manifest.storage.uri)
    shown = commits[-limit:] if limit else commits
    first = shown[0]["version"]
    before = _snapshot(manifest, first - 1) if first > 0 else None
    versions = []
    for commit in shown:
        after = _snapshot(manifest, commit["version"])
        figures = _figures(before, after, is_first=commit["version"] == 0)
        versions.append(
            {"version": commit["version"], "committed_ms": commit["committed_ms"], "job": commit["operation"]}
            | figures
            | {"partitions": None if after is None else after.offset_bounds()}
        )
        before = after
    return versions[::-1]


@dataclass(frozen=True, slots=True)
class Size:
    """What the log of a topic held from `committed_ms` on: records, and bytes of .log files."""

    committed_ms: int
    records: int
    log_bytes: int


def sizes(manifest: Manifest, most: int) -> list[Size]:
    """The size of a topic after at most `most` of its commits, evenly spaced from the oldest readable version to the
    newest, oldest first. Versions that vacuum has deleted are left out.
    """
    commits = manifest.history()
    last = len(commits) - 1
    chosen = sorted({last * place // max(1, most - 1) for place in range(most)}) if commits else []
    sizes_then = []
    for commit in (commits[place] for place in chosen):
        snapshot = _snapshot(manifest, commit["version"])
        if snapshot is not None:
            records, log_bytes = _totals(snapshot.live, snapshot.live.slice(0, 0))
            sizes_then.append(Size(commit["committed_ms"], records, log_bytes))
    return sizes_then


def _snapshot(manifest: Manifest, version: int) -> Snapshot | None:
    """The topic at a version, None where that version or its rows are not there any more."""
    try:
        snapshot = manifest.snapshot(version, deleted=True)
        _ = snapshot.segments
    except (InvalidOptionError, UnknownTopicError, FileNotFoundError):
        return None
    return snapshot


def _figures(before: Snapshot | None, after: Snapshot | None, *, is_first: bool) -> dict[str, int | None]:
    if after is None or (before is None and not is_first):
        return dict.fromkeys(_FIGURES)
    now = after.live
    then = now.slice(0, 0) if before is None else before.live
    records_in, bytes_in = _totals(now, then)
    records_out, bytes_out = _totals(then, now)
    return dict(zip(_FIGURES, (records_in, records_out, bytes_in, bytes_out), strict=True))


def _totals(rows: pa.Table, others: pa.Table) -> tuple[int, int]:
    """(records, bytes) of the rows whose files are not among `others`."""
    new = row_tables.without(rows, others)
    return pc.sum(new.column("records")).as_py() or 0, pc.sum(new.column("log_bytes")).as_py() or 0
