"""All that is known of a topic whose manifest cannot be read: a recovery copy, and the commits after it.

Commits are played one after the other, as long as each is proven: from Delta's log where that is left, else from their
notes. A note is proven by its mark, or by another note that begins where it leads to. Of two notes of one version one
was refused by the store, or never sent; at most one of them is proven. Only a first commit may have a rival: that of an
empty topic which was made over a manifest that had just been lost.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

import pyarrow as pa

from spark_segments.errors import FormatVersionError, LogDirError
from spark_segments.log.manifest.files.commit_notes import (
    CommitNotes,
    NoteName,
    ReadNote,
    digest_of,
    note_name,
    notes_of,
    read_note,
    recovery_directory,
)
from spark_segments.log.manifest.files.delta.actions import REBUILD, is_fence
from spark_segments.log.manifest.files.delta.delta_log import LogFiles
from spark_segments.log.manifest.files.row_files import RowFile, RowFiles, rows_of
from spark_segments.log.manifest.schemas import KIND, SEGMENT_KIND
from spark_segments.log.manifest.state.recovery_copy import UNREADABLE, RecoveryCopy, read_recovery_copy, snapshot_of
from spark_segments.log.manifest.state.snapshot import Snapshot
from spark_segments.log.manifest.state.topic_log import TopicLog
from spark_segments.log.manifest.transaction import Transaction
from spark_segments.storage.delta import commit_info


@dataclass(frozen=True, slots=True)
class Unproven:
    """A note of a commit that may have been made or not: nothing proves it. `paths`: the files that its rows name."""

    version: int
    operation: str
    committed_ms: int
    paths: frozenset[str]


@dataclass(frozen=True, slots=True)
class KnownTopic:
    """A topic at the last version that is known.

    `copy_version`: the version of the recovery copy, -1 where the notes begin with the topic. `known_ms`: when the last
    known commit was made, by the committing machine's clock. `last_version`: the largest version that anything names;
    `newest`: the largest that the log lists or that is known, without notes of commits that nothing proves.
    `is_whole`: every commit up to the last that a file names is known, and no topic with records was made over this
    one. `unproven`: the notes after it.
    `lost_versions`: how many commits up to `last_version` are not known; versions that only a rebuild used up are none.
    """

    snapshot: Snapshot
    transactions: list[Transaction]
    copy_version: int
    known_ms: int
    last_version: int
    newest: int
    is_whole: bool
    unproven: tuple[Unproven, ...]
    lost_versions: int


@dataclass(slots=True)
class _Played:
    """A state of the manifest during playback: its files, and the rows of files that are in a note.

    `is_noted`: the writer of the state writes a note of every commit. So a commit after it would have one.
    """

    log: TopicLog
    copy: RecoveryCopy | None
    version: int
    files: dict[str, RowFile]
    committed_ms: int
    is_noted: bool
    contents: dict[str, pa.Buffer] = field(default_factory=dict)

    @property
    def digest(self) -> str:
        return digest_of(self.files)

    @property
    def has_segments(self) -> bool:
        return any(file.kind == SEGMENT_KIND for file in self.files.values())

    def apply(self, note: ReadNote) -> bool:
        """Plays a note; False where it does not lead to where it says."""
        files = {path: file for path, file in self.files.items() if path not in set(note.removed)}
        files |= {file.path: file for file in note.added}
        if digest_of(files) != note.after:
            return False
        self.version = note.name.version
        self.files = files
        self.committed_ms = note.committed_ms
        self.is_noted = True
        self.contents |= note.contents
        return True

    def apply_actions(self, actions: Sequence[dict[str, Any]]) -> None:
        """Plays a commit of Delta's log. Raises any of UNREADABLE for actions, or rows, that are no commit's."""
        files = dict(self.files)
        for action in actions:
            if "remove" in action:
                del files[unquote(action["remove"]["path"])]
            if "add" in action:
                path = unquote(action["add"]["path"])
                files[path] = RowFile(path, action["add"]["partitionValues"][KIND], 0, 0, 0, {})
        for path in files.keys() - self.files.keys():
            self._rows(files[path])
        self.version = self.version + 1
        self.files = files
        self.is_noted = False
        self.committed_ms = int(commit_info(actions).get("timestamp") or self.committed_ms)

    def topic(self) -> tuple[Snapshot, list[Transaction]]:
        """The topic at this state. Raises any of UNREADABLE."""
        files = list(self.files.values())
        tables = [self._rows(file) for file in files]
        return snapshot_of(self.log.topic, self.version, self.committed_ms, files, tables)

    def _rows(self, file: RowFile) -> pa.Table:
        if file.path in self.contents:
            return rows_of(self.contents[file.path], file.kind)
        if self.copy is not None and any(copied.path == file.path for copied in self.copy.files):
            return RowFiles(self.log.storage, recovery_directory(self.log.topic)).read_all([file])[0]
        return self.log.store.read_all([file])[0]


def known_topic(log: TopicLog) -> KnownTopic:
    """What is known. Changes nothing.

    Raises LogDirError where there is neither a recovery copy nor the note of the topic's first commit;
    FormatVersionError where the copy, or a commit after it, has another format; StorageError.
    """
    listed = log.delta.log_files()
    notes = notes_of(log.storage, log.topic)
    read = {name: read_note(log.storage, log.topic, name) for names in notes.by_version.values() for name in names}
    chains = [_states_from(first, notes, read) for first in _first_states(log, notes, read)]
    states = _lost_chain(chains)
    is_alone = not any(chain[-1].has_segments for chain in chains if chain is not states)

    # What is named above the last state was not played: nothing proves it, or something before it is lost.
    newest = states[-1].version
    noted = [version for version in notes.by_version if version > newest]
    marked = [name.version for name in notes.marked]
    last_version = max([newest, *listed.commits, *listed.checkpoints, *noted, *marked])

    played, snapshot, transactions = _newest_readable(states)
    is_all = is_alone and snapshot.version == last_version
    return KnownTopic(
        snapshot,
        transactions,
        copy_version=-1 if played.copy is None else played.copy.snapshot.version,
        known_ms=played.committed_ms,
        last_version=last_version,
        newest=max([snapshot.version, *listed.commits, *listed.checkpoints]),
        is_whole=is_all and (played.is_noted or _is_whole_in_delta(log, listed, snapshot.version, states)),
        unproven=tuple(_unproven(name, read[name]) for version in noted for name in notes.by_version[version]),
        lost_versions=_lost_versions(log, listed, snapshot.version, last_version),
    )


def _lost_chain(chains: Sequence[list[_Played]]) -> list[_Played]:
    """Of several chains of states the one of the topic that was lost; the others are of topics that were made over it.

    Such a topic takes no commit. So the lost one's states lead on where it had more commits than one. Where its only
    commit brought records, as the first run of a mirror does, it is the one that has any.
    """
    return max(chains, key=lambda states: (len(states), states[-1].has_segments))


def _states_from(first: _Played, notes: CommitNotes, read: Mapping[NoteName, ReadNote | None]) -> list[_Played]:
    """The states that the notes and commits lead to, each by one commit from the one before it."""
    states = [first]
    while True:
        following = _step(states[-1], notes, read)
        if following is None:
            return states
        states.append(following)


def _newest_readable(states: Sequence[_Played]) -> tuple[_Played, Snapshot, list[Transaction]]:
    """The newest of the states whose rows can be read, and its topic. Files of rows may be lost where notes are not."""
    for played in reversed(states):
        try:
            snapshot, transactions = played.topic()
            return played, snapshot, transactions
        except FormatVersionError:
            raise
        except UNREADABLE:
            if played is states[0]:
                raise
    raise AssertionError("there is a first state")


def _first_states(log: TopicLog, notes: CommitNotes, read: Mapping[NoteName, ReadNote | None]) -> list[_Played]:
    """The newest state that needs no other: that of a copy, or of a proven note that begins with nothing. There may be
    several such notes of one version.
    """
    copied: _Played | None = None
    missing: LogDirError | None = None
    try:
        copied = _copied_state(log)
    except FormatVersionError:
        raise
    except LogDirError as error:
        missing = error

    for version in sorted(notes.by_version, reverse=True):
        if copied is not None and version <= copied.version:
            break
        roots = [note for note in _readable(notes, read, version) if note.before == digest_of(())]
        states = []
        for root in _proven(log, roots, notes, read):
            first = _Played(log, None, version - 1, {}, 0, True)
            if first.apply(root):
                states.append(first)
        if states:
            return states

    if copied is None:
        assert missing is not None, "there is a copy, or an error that says why there is none"
        raise missing
    return [copied]


def _readable(notes: CommitNotes, read: Mapping[NoteName, ReadNote | None], version: int) -> list[ReadNote]:
    """The notes of a version that can be read."""
    of_version = [read[name] for name in notes.by_version.get(version, ())]
    return [note for note in of_version if note is not None]


def _copied_state(log: TopicLog) -> _Played:
    """The state of the recovery copy. Raises LogDirError where there is none."""
    copy = read_recovery_copy(log.storage, log.topic)
    return _Played(
        log,
        copy,
        copy.snapshot.version,
        files={file.path: file for file in copy.files},
        committed_ms=copy.snapshot.committed_ms,
        is_noted=copy.has_notes,
    )


def _step(state: _Played, notes: CommitNotes, read: Mapping[NoteName, ReadNote | None]) -> _Played | None:
    """The state after the next commit. None where none is proven."""
    version = state.version + 1
    digest = state.digest
    played = dataclasses.replace(state, contents=dict(state.contents))
    candidates = [note for note in _readable(notes, read, version) if note.before == digest]
    for note in _proven(played.log, candidates, notes, read):
        if played.apply(note):
            return played
    try:  # a commit of an older version of this package has no note
        actions = played.log.delta.actions(version)
        if is_fence(actions) or commit_info(actions).get("change") == REBUILD:
            return None
        played.apply_actions(actions)
    except UNREADABLE:
        return None
    return played


def _proven(
    log: TopicLog, candidates: Sequence[ReadNote], notes: CommitNotes, read: Mapping[NoteName, ReadNote | None]
) -> list[ReadNote]:
    """The notes of one version that something proves, first the one that Delta's log has."""
    if not candidates:
        return []
    version = candidates[0].name.version
    begun = {note.before for note in _readable(notes, read, version + 1)}
    in_log = None
    with contextlib.suppress(*UNREADABLE):
        in_log = note_name(version, log.delta.actions(version))
    proven = [
        note
        for note in candidates
        if note.name in notes.marked
        or note.after in begun
        or (note.name == in_log and note.operation != REBUILD)  # whose checkpoint makes it, and not its commit
    ]
    return sorted(proven, key=lambda note: note.name != in_log)


def _unproven(name: NoteName, note: ReadNote | None) -> Unproven:
    if note is None:
        return Unproven(name.version, "damaged", 0, frozenset())
    paths: set[str] = set()
    for file in note.added:
        if file.kind == SEGMENT_KIND:
            try:
                paths |= set(rows_of(note.contents[file.path], file.kind).column("path").to_pylist())
            except UNREADABLE:
                continue
    return Unproven(name.version, note.operation, note.committed_ms, frozenset(paths))


def _is_whole_in_delta(log: TopicLog, listed: LogFiles, last_known: int, states: Sequence[_Played]) -> bool:
    """Whether Delta's log shows that the last known commit is the last: no row is as young as it and unnamed. Such rows
    come from a lost commit or from a writer that failed, which cannot be distinguished.
    """
    if last_known not in listed.commits:
        return False
    since_ms = listed.commits[last_known].mtime_ms
    prefix = f"{log.directory}/"
    named = {path for state in states for path in state.files}
    return not any(
        info.mtime_ms >= since_ms and info.path.removeprefix(prefix) not in named
        for info in log.storage.list(log.directory, recursive=True)
        if info.path.startswith(f"{prefix}{KIND}=")
    )


def _lost_versions(log: TopicLog, listed: LogFiles, last_known: int, last: int) -> int:
    """How many commits of (last_known, last] there were. A rebuild takes versions before its own that are none."""
    taken: set[int] = set()
    for version in (number for number in listed.commits if number > last_known):
        try:
            actions = log.delta.actions(version)
        except (FileNotFoundError, LogDirError):
            continue
        if is_fence(actions):
            taken.add(version)
        elif commit_info(actions).get("change") == REBUILD:
            taken.add(version - 1)  # stays free
            if version not in listed.checkpoints:
                taken.add(version)  # the rebuild was killed
    return sum(version not in taken for version in range(last_known + 1, last + 1))
