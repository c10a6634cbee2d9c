"""Upkeep of the manifest's table: merges its small files and drops versions that nobody needs.

Neither changes what a topic holds. Files of the log itself are vacuum's (maintenance/).
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise

from spark_segments.errors import InvalidOptionError, UnknownTopicError
from spark_segments.log.manifest import row_tables
from spark_segments.log.manifest.commit.change import ORPHAN_AGE_MS
from spark_segments.log.manifest.files.commit_notes import notes_of
from spark_segments.log.manifest.files.delta.actions import CommitNote
from spark_segments.log.manifest.files.delta.delta_log import COMMIT_LOG_MS, LogFiles, openable, unbroken
from spark_segments.log.manifest.files.delta.delta_rs import CommitFailedError, TableVersion
from spark_segments.log.manifest.files.row_files import ROWS_A_FILE, FileChange, RowFile, concat
from spark_segments.log.manifest.operation import Operation
from spark_segments.log.manifest.recovery.loss import check_none_lost
from spark_segments.log.manifest.recovery.missing_notes import write_missing_notes
from spark_segments.log.manifest.schemas import KIND, SCHEMAS, SEGMENT_KIND
from spark_segments.log.manifest.state.recovery_copy import list_copies, unneeded_copies, write_recovery_copy
from spark_segments.log.manifest.state.topic_log import TableState, TopicLog
from spark_segments.storage import FileInfo
from spark_segments.storage.delta import paths_of

_TRIES = 10


@dataclass(frozen=True, slots=True)
class DroppedVersions:
    """The files that `drop_old_versions` deleted or would delete: paths relative to the log directory, total bytes."""

    paths: list[str]
    size_bytes: int


def merge_files(log: TopicLog, state: TableState, *, all_files: bool = False) -> bool:
    """Merges small files of segment rows of the latest state, and writes a checkpoint. `all_files`: merges all, where
    large files overlap.

    Returns whether files were merged; False where there was nothing to merge or other commits always came first.
    """
    files = [file for file in state.files if file.kind == SEGMENT_KIND]
    small = [file for file in files if file.rows < ROWS_A_FILE[SEGMENT_KIND] // 2]
    if not all_files or not _overlap([file for file in files if file not in small]):
        files = small
    if len(files) < 2:
        checkpoint(log, state)
        return False
    merged = _merge(log, files)
    checkpoint(log, log.state_after(state))
    return merged


def checkpoint(log: TopicLog, state: TableState) -> None:
    """Writes a checkpoint, so that opening the table stays fast, and a recovery copy of the latest state."""
    log.durable(state.snapshot.config).checkpoint()
    write_recovery_copy(log, state)


def _merge(log: TopicLog, files: list[RowFile]) -> bool:
    rows = row_tables.in_log_order(concat(log.store.read_all(files), SEGMENT_KIND))
    encoded = log.store.encode_all(SEGMENT_KIND, rows)
    log.storage.write_all(log.store.named(encoded), unique=True)
    change = FileChange([file for file, _ in encoded], files)
    contents = {file.path: data for file, data in encoded}
    for _ in range(_TRIES):
        state = log.state()
        if not {file.path for file in files} <= {file.path for file in state.files}:
            return False
        notes = notes_of(log.storage, log.topic)
        check_none_lost(log, state, notes)
        write_missing_notes(log, state, notes)  # where they cannot be written, the copy that follows serves
        delta = log.durable(state.snapshot.config)
        note = CommitNote(uuid.uuid4().hex, 0, Operation.MERGE_FILES)
        noted = log.note_of(state.version + 1, state.files, change, note, contents)
        log.storage.write_all([noted], unique=True)
        delta.prepare(state.table, [*map(log.store.path, change.added), noted[0]])
        try:
            log.mark_made(delta.commit_on(state.table, change, note, {}, data_change=False).version, note)
            return True
        except CommitFailedError:  # where only the reply was lost, the next state no longer has the files
            continue
    return False


def _overlap(files: list[RowFile]) -> bool:
    """Whether partition ranges of files overlap."""
    ranges = sorted(file.bounds["partition"] for file in files)
    return any(greatest > least for (_, greatest), (least, _) in pairwise(ranges))


def drop_old_versions(
    log: TopicLog,
    seen: TableVersion | None,
    retention_ms: int,
    now_ms: int,
    *,
    orphan_age_ms: int = ORPHAN_AGE_MS,
    take: Callable[[], int] | None = None,
) -> DroppedVersions:
    """Keeps every version that was the latest at now_ms - retention_ms or later; deletes files that only others need.

    A file that no version ever named (of a try that lost) is deleted once it is older than `orphan_age_ms` by the
    store's clock, not by `now_ms`; so is a file that no recovery copy has. A deleted topic without rows loses
    all recovery copies. Versions before the kept versions can no longer be read afterwards. `seen`: as in
    `TopicLog.state`. `take` commits a version without a change and returns it; None is a dry run.
    """
    for _ in range(_TRIES):
        try:
            rows, log_files, copies = _unneeded(log, seen, now_ms - retention_ms, orphan_age_ms, take)
        except (FileNotFoundError, InvalidOptionError):  # another job deleted a file since it was listed
            continue
        if take is not None:
            # Rows go before the log, and the log goes from its start on: a crash leaves a table that reads as before.
            log.storage.delete(info.path for info in rows)
            log.delta.delete(log_files)
            log.storage.delete(info.path for info in copies)
        doomed = [*rows, *log_files, *copies]
        return DroppedVersions([info.path for info in doomed], sum(info.size for info in doomed))
    return DroppedVersions([], 0)  # other jobs are deleting the same files


def _unneeded(
    log: TopicLog, seen: TableVersion | None, horizon_ms: int, orphan_age_ms: int, take: Callable[[], int] | None
) -> tuple[list[FileInfo], list[FileInfo], list[FileInfo]]:
    """The files of rows, of Delta's log and of recovery copies that `drop_old_versions` deletes, in that order."""
    # List first, then read: a file that is written meanwhile is not in the list.
    listed = [info for kind in SCHEMAS for info in log.storage.list(f"{log.directory}/{KIND}={kind}")]
    listed_copies = list_copies(log)
    # The times of files are the store's. This machine's clock may be ahead: by it, a file that a running commit is
    # about to name could look like one that was left behind.
    store_now_ms = log.storage.now_ms()
    orphans_before_ms = store_now_ms - orphan_age_ms
    rows = {info.path.removeprefix(f"{log.directory}/"): info for info in listed}
    old = {path for path, info in rows.items() if info.mtime_ms < orphans_before_ms}
    files = log.delta.log_files()
    staged = [info for info in files.others if _is_staged(info.path) and info.mtime_ms < orphans_before_ms]
    try:
        state = log.state(seen=seen)
    except UnknownTopicError:
        return [rows[path] for path in sorted(old)], staged, []
    versions = [version for version in sorted(files.commits) if version <= state.version]
    kept = _first_kept(openable(versions, files.checkpoints), files.commits, horizon_ms)
    expired = _taken_out(log, versions, kept)
    expired_log = _expired_log(files, kept, store_now_ms - COMMIT_LOG_MS)
    named = {file.path for file in state.files}
    if expired_log or (expired | old) & rows.keys():  # nothing goes unless the first version that stays can be opened
        named |= {file.path for file in log.open(kept).files}
    later = [version for version in versions if version > kept]
    orphans = _orphans(log, old - expired - named, later, state.version, take)
    doomed = [rows[path] for path in sorted((expired - named | orphans) & rows.keys())]
    copies = unneeded_copies(log, listed_copies, state, orphans_before_ms)
    return doomed, [*expired_log, *staged], copies


def _taken_out(log: TopicLog, versions: list[int], kept: int) -> set[str]:
    """The files of rows that commits up to the version `kept` have taken out of the table. What a later commit takes
    out, a reader of `kept` still needs:

        versions    0 1 2 3 4 | 5      6      7
                     past       kept          latest
        taken out by 3: goes         by 6: stays
    """
    past = [version for version in unbroken(versions) if version <= kept]
    return {path for version in past for path in paths_of(log.delta.actions(version), "remove")}


def _orphans(
    log: TopicLog, paths: set[str], later: Iterable[int], latest: int, take: Callable[[], int] | None
) -> set[str]:
    """The files among `paths` that no commit has added: of tries that lost. `later`: the versions after the first kept
    one, up to the `latest`.

    A writer that stands still may have planned a commit of such a file. Once `take` has committed the next version, the
    writer has to plan again, and its files are checked. So only what was committed up to that version counts.
    """
    if not paths:
        return set()
    orphans = paths - _added(log, later)
    if orphans and take is not None:
        orphans -= _added(log, range(latest + 1, take() + 1))
    return orphans


def _added(log: TopicLog, versions: Iterable[int]) -> set[str]:
    """The files that commits added."""
    return {path for version in versions for path in paths_of(log.delta.actions(version), "add")}


def _first_kept(versions: list[int], commits: dict[int, FileInfo], horizon_ms: int) -> int:
    """The version that was the latest at the horizon. A commit was made at the modification time of its file.

        |version 1, 09:00   |version 2, 10:00   horizon, 11:00   |version 3, 12:00

    A reader that opened the topic at the horizon reads version 2: without it, files that the reader needs would go.
    """
    kept = versions[-1]
    for version, following in reversed(list(pairwise(versions))):
        if commits[following].mtime_ms < horizon_ms:
            break
        kept = version
    return kept


def _expired_log(log: LogFiles, kept: int, before_ms: int) -> list[FileInfo]:
    """The files of Delta's log that can go: those before the last checkpoint at or before both limits.

    The limits are `kept` and the first version with a file modified at or after `before_ms`. So each version whose
    commit stays can be opened.
    """
    files = {
        version: [*log.checkpoints.get(version, []), *([log.commits[version]] if version in log.commits else [])]
        for version in sorted(log.commits.keys() | log.checkpoints.keys())
    }
    young = (version for version, infos in files.items() if any(info.mtime_ms >= before_ms for info in infos))
    limit = min(kept, next(young, kept))
    start = max((version for version in log.checkpoints if version <= limit), default=0)
    return [info for version, infos in files.items() if version < start for info in infos]


def _is_staged(path: str) -> bool:
    name = path.rpartition("/")[2]
    return name.endswith(".tmp") or "#" in name
