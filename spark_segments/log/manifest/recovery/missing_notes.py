"""Commits that have no note, since another writer made them: their notes are written from Delta's log.

A rebuild plays notes one after the other, so that a commit without one hides all that follow it. Delta's log says what
such a commit did for as long as it is there. Each commit on top of it, and a repair, write what is missing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from spark_segments.errors import SegmentsError
from spark_segments.log.manifest.files.commit_notes import (
    CommitNotes,
    NoteName,
    ReadNote,
    digest_of,
    mark,
    note_file,
    note_name,
)
from spark_segments.log.manifest.files.delta.actions import added_file
from spark_segments.log.manifest.files.row_files import FileChange, RowFile
from spark_segments.log.manifest.state.topic_log import TableState, TopicLog
from spark_segments.storage.delta import Action, commit_info, paths_of


@dataclass(frozen=True, slots=True)
class LoggedCommit:
    """A commit of Delta's log: what it says, and the paths of the files of the versions before and after it."""

    name: NoteName
    actions: Sequence[Action]
    before: frozenset[str]
    after: frozenset[str]

    def agrees_with(self, note: ReadNote | None) -> bool:
        """Whether a note says of the commit what Delta's log says. The note of a topic that takes the place of a
        deleted one begins with no file.
        """
        if note is None or note.after != digest_of(self.after):
            return False
        return note.before in (digest_of(self.before), digest_of(()))


def commits_down_from(log: TopicLog, state: TableState, oldest: int) -> Iterator[LoggedCommit]:
    """The commits of the versions from a state's to `oldest`, the newest first. Raises FileNotFoundError where Delta's
    log does not have one (any more).
    """
    after = frozenset(file.path for file in state.files)
    for version in range(state.version, oldest - 1, -1):
        actions = log.delta.actions(version)
        before = (after - frozenset(paths_of(actions, "add"))) | frozenset(paths_of(actions, "remove"))
        yield LoggedCommit(note_name(version, actions), actions, before, after)
        after = before


def write_missing_notes(log: TopicLog, state: TableState, notes: CommitNotes) -> list[str] | None:
    """Writes the notes of the commits right below a state that have none, up to one that has, or a recovery copy.
    `notes`: listed after the state was read.

    Returns the paths of what was written; None where a note cannot be written any more, since vacuum took its files:
    then a rebuild needs another copy.
    """
    if notes.has_proven(state.version):
        return []
    missing: list[LoggedCommit] = []
    paths: list[str] = []
    try:
        for commit in commits_down_from(log, state, notes.newest_copy + 1):
            version = commit.name.version
            if commit.name in notes.by_version.get(version, ()) or notes.has_proven(version):
                break
            missing.append(commit)
        # The oldest first: who finds the newest note takes it that those before it are there. After a kill in the midst
        # the newest is missing still.
        for commit in reversed(missing):
            paths.append(write_note(log, commit))
    except (FileNotFoundError, SegmentsError, pa.ArrowException):
        return None
    return paths


def write_note(log: TopicLog, commit: LoggedCommit) -> str:
    """Writes the note of a commit, and its mark, from Delta's log and the files of rows. Returns the note's path.

    Raises FileNotFoundError where vacuum took a file that the commit had added.
    """
    by_path = {file.path: file for file in (added_file(action["add"]) for action in commit.actions if "add" in action)}
    contents = {path: log.store.content(file) for path, file in by_path.items()}
    added = [
        RowFile(path, file.kind, pq.read_metadata(pa.BufferReader(contents[path])).num_rows, file.size, 0, {})
        for path, file in by_path.items()
    ]
    removed = [RowFile(path, "", 0, 0, 0, {}) for path in sorted(commit.before - commit.after)]
    info = commit_info(commit.actions)
    operation = str(info.get("change") or info.get("operation") or "unknown")
    committed_ms = int(info.get("timestamp") or 0)
    change = FileChange(added, removed)
    path, content = note_file(log.topic, commit.name, operation, commit.before, change, contents, committed_ms)
    log.storage.replace(path, content)  # two writers may write it at once, and both write the same
    mark(log.storage, log.topic, commit.name)
    return path
