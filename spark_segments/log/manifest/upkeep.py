"""Keeping the manifest's table small: merging its files, checkpoints, and deleting what no kept version needs.

None of this changes what a topic holds. Files of the log itself are the business of maintenance's vacuum.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from itertools import pairwise

from deltalake.exceptions import DeltaError

from spark_segments.errors import InvalidOptionError, UnknownTopicError
from spark_segments.log.manifest.delta_log import CommitNote, DeltaLog, openable, paths_of
from spark_segments.log.manifest.row_files import ROWS_A_FILE, SCHEMAS, FileChange, RowFile, concat, files_of
from spark_segments.log.manifest.rows import KIND, SEGMENT_KIND
from spark_segments.log.manifest.snapshot import in_log_order
from spark_segments.storage import FileInfo

ORPHAN_AGE_MS = 7 * 24 * 60 * 60 * 1000
"""How old, by the store's clock, a file must be that nothing names: a commit that takes longer is refused."""

COMMIT_LOG_MS = 60 * 60 * 1000
"""How long Delta's log is kept at least, by the store's clock: a commit looks in it for its own id."""

_TRIES = 10


@dataclass(frozen=True, slots=True)
class Vacuumed:
    """What a vacuum of the table deleted, or would delete: paths relative to the log directory, and their bytes."""

    paths: list[str]
    size_bytes: int


def compact(log: DeltaLog, *, all_files: bool = False) -> bool:
    """Merges small files of segment rows (`all_files`: all, where large ones overlap) and writes a checkpoint.

    Returns whether files were merged; False where there was nothing to merge or other commits always came first.
    """
    state = log.state()
    files = [file for file in state.files if file.kind == SEGMENT_KIND]
    small = [file for file in files if file.rows < ROWS_A_FILE[SEGMENT_KIND] // 2]
    if not all_files or not _overlap([file for file in files if file not in small]):
        files = small
    merged = len(files) > 1 and _merge(log, files)
    log.open().create_checkpoint()
    return merged


def _merge(log: DeltaLog, files: list[RowFile]) -> bool:
    rows = in_log_order(concat(log.store.read_all(files), SEGMENT_KIND))
    change = FileChange(log.store.write_all(SEGMENT_KIND, rows), files)
    for _ in range(_TRIES):
        state = log.state()
        if not {file.path for file in files} <= {file.path for file in state.files}:
            return False
        try:
            log.commit_at(state, change, CommitNote(uuid.uuid4().hex, 0, "compact manifest"), data_change=False)
            return True
        except (DeltaError, OSError, ValueError):  # nothing hangs on it: a lost reply shows as files that are gone
            continue
    return False


def _overlap(files: list[RowFile]) -> bool:
    """Whether partitions of one file lie between those of another."""
    ranges = sorted(file.bounds["partition"] for file in files)
    return any(greatest > least for (_, greatest), (least, _) in pairwise(ranges))


def vacuum(
    log: DeltaLog, retention_ms: int, now_ms: int, *, orphan_age_ms: int = ORPHAN_AGE_MS, dry_run: bool = False
) -> Vacuumed:
    """Deletes what no version needs that was the latest one at or after now_ms - retention_ms.

    Files that no version ever named (of tries that lost) go when they are older than `orphan_age_ms` by the store's
    clock, whatever `now_ms` says. Versions before the kept ones can no longer be read afterwards.
    """
    for _ in range(_TRIES):
        try:
            doomed = _unneeded(log, now_ms - retention_ms, orphan_age_ms)
        except (FileNotFoundError, InvalidOptionError):  # another vacuum has taken it since it was listed
            continue
        if not dry_run:
            # Rows before the log, and the log from its start on: a crash leaves a table that reads as before.
            log.storage.delete(info.path for info in doomed)
        return Vacuumed([info.path for info in doomed], sum(info.size for info in doomed))
    return Vacuumed([], 0)  # others are at it


def _unneeded(log: DeltaLog, horizon_ms: int, orphan_age_ms: int) -> list[FileInfo]:
    """What `vacuum` deletes, in that order."""
    # First list, then read: a file that is written meanwhile is not in the list.
    listed = [info for kind in SCHEMAS for info in log.storage.list(f"{log.directory}/{KIND}={kind}")]
    store_now_ms = log.storage.now_ms()
    rows = {info.path.removeprefix(f"{log.directory}/"): info for info in listed}
    old = {path for path, info in rows.items() if info.mtime_ms < store_now_ms - orphan_age_ms}
    commits, checkpoints, others = log.log_files()
    doomed: list[FileInfo] = []
    try:
        latest = log.open()
    except UnknownTopicError:
        doomed += [rows[path] for path in sorted(old)]
    else:
        versions = [version for version in sorted(commits) if version <= latest.version()]
        kept = _first_kept(openable(versions, checkpoints), commits, horizon_ms)
        named = {file.path for table in (latest, log.open(kept)) for file in files_of(table)}
        expired = {path for version in versions if version <= kept for path in paths_of(log.actions(version), "remove")}
        orphans = old - expired - named
        if orphans:
            later = [version for version in versions if version > kept]
            orphans -= {path for version in later for path in paths_of(log.actions(version), "add")}
        doomed += [rows[path] for path in sorted((expired - named | orphans) & rows.keys())]
        doomed += _expired_log(commits, checkpoints, kept, store_now_ms - COMMIT_LOG_MS)
    doomed += [info for info in others if _is_staged(info.path) and info.mtime_ms < store_now_ms - orphan_age_ms]
    return doomed


def _first_kept(versions: list[int], commits: dict[int, FileInfo], horizon_ms: int) -> int:
    """The oldest version that was still the latest one at the horizon. A commit's file tells when it was made."""
    kept = versions[-1]
    for version, following in reversed(list(pairwise(versions))):
        if commits[following].mtime_ms < horizon_ms:
            break
        kept = version
    return kept


def _expired_log(
    commits: dict[int, FileInfo], checkpoints: dict[int, list[FileInfo]], kept: int, before_ms: int
) -> list[FileInfo]:
    """The files of Delta's log that the kept versions do without: those before a checkpoint that is not after them.

    Every file before that checkpoint is old enough, so each version whose commit stays can be opened.
    """
    files = {
        version: [*checkpoints.get(version, []), *([commits[version]] if version in commits else [])]
        for version in sorted(commits.keys() | checkpoints.keys())
    }
    young = (version for version, infos in files.items() if any(info.mtime_ms >= before_ms for info in infos))
    limit = min(kept, next(young, kept))
    start = max((version for version in checkpoints if version <= limit), default=0)
    return [info for version, infos in files.items() if version < start for info in infos]


def _is_staged(path: str) -> bool:
    name = path.rpartition("/")[2]
    return name.endswith(".tmp") or "#" in name
