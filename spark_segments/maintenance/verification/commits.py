"""Whether a rebuild would know each commit since the last recovery copy, and whether the table is kept up.

What a lost manifest said is in its copy and in the notes of the commits after it. A note that is missing or wrong can
be written again for as long as the manifest is there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from spark_segments.errors import SegmentsError
from spark_segments.log.findings import Findings
from spark_segments.log.manifest.files.commit_notes import CommitNotes, digest_of, notes_of, read_note
from spark_segments.log.manifest.files.delta.actions import REBUILD, added_file, is_fence
from spark_segments.log.manifest.files.delta.delta_log import manifest_directory, unbroken
from spark_segments.log.manifest.files.row_files import RowFile
from spark_segments.log.manifest.manifest import CHECKPOINT_VERSIONS
from spark_segments.log.manifest.recovery.missing_notes import LoggedCommit, commits_down_from, write_note
from spark_segments.log.manifest.schemas import KIND, SEGMENT_KIND
from spark_segments.log.manifest.state.recovery_copy import has_notes
from spark_segments.log.manifest.state.topic_log import TableState, TopicLog
from spark_segments.maintenance.verification.earlier_settings import UNREADABLE_VERSION
from spark_segments.storage.delta import commit_info, paths_of

if TYPE_CHECKING:
    from spark_segments.maintenance.verification.verify import VerifiedTopic

_PERIODS = 2
"""A process that dies right after its commit leaves the checkpoint to the next one. That is no fault."""

_WARNING = "The commit of version"


def check_commits(topic: VerifiedTopic, state: TableState) -> None:
    """Checks the notes, the checkpoints and, in a deep look, the ids of commits and what they add of shared objects. A
    repair writes notes again.
    """
    log = topic.log.manifest(topic.name).log
    _check_checkpoints(log, state, topic.findings)
    if topic.is_deep:
        _check_ids(log, state, topic)
        _check_objects(log, state, topic)
    _check_notes(topic, log, state)


def _check_checkpoints(log: TopicLog, state: TableState, findings: Findings) -> None:
    checkpoints = log.delta.log_files().checkpoints.items()
    versions = [version for version, infos in checkpoints if all(info.size for info in infos)]
    last = max((version for version in versions if version <= state.version), default=0)
    if state.version - last > _PERIODS * CHECKPOINT_VERSIONS:
        findings.add(
            "The manifest has no checkpoint of late: each reader reads all commits since, and vacuum cannot delete any",
            severity=Findings.WARNING,
            rule="W19",
            path=manifest_directory(log.topic),
            expected=f"a checkpoint of the last {CHECKPOINT_VERSIONS} versions",
            found=f"version {last}, and version {state.version} is the latest",
        )


def _warn(topic: VerifiedTopic, version: int, error: Exception) -> None:
    """Once for the commits of a topic that cannot be read, by the first: the latest version does not need them."""
    if any(warning.startswith(_WARNING) for warning in topic.warnings):
        return
    topic.warnings.append(
        f"{_WARNING} {version} of topic {topic.name} cannot be read ({error}): its id, and what it adds of shared "
        "objects, are not checked, nor of later commits that cannot be read"
    )


def _check_ids(log: TopicLog, state: TableState, topic: VerifiedTopic) -> None:
    """A commit without an id cannot be found by its writer once the reply is lost."""
    versions = unbroken([version for version in log.delta.log_files().commits if version <= state.version])
    for version in versions:
        try:
            actions = log.delta.actions(version)
        except FileNotFoundError:  # vacuum took it
            continue
        except UNREADABLE_VERSION as error:
            _warn(topic, version, error)
            continue
        info = commit_info(actions)
        if not is_fence(actions) and not (info.get("commitId") and isinstance(info.get("attempt"), int)):
            topic.findings.add(
                "A commit has no id, or no number of its try",
                rule="W24",
                path=f"{manifest_directory(log.topic)}/_delta_log/{version:020d}.json",
                expected="commitId and attempt",
                found={name: info.get(name) for name in ("commitId", "attempt")},
            )


def _check_objects(log: TopicLog, state: TableState, topic: VerifiedTopic) -> None:
    """All rows of a shared object come in one commit. Vacuum deletes the object once no row names it: a row that came
    later would name a file that is gone.
    """
    positions = state.snapshot.segments.column("index_position")
    if positions.null_count == len(positions):
        return
    commits: dict[str, list[int]] = {}
    kinds: dict[str, str] = {}
    for version in unbroken([version for version in log.delta.log_files().commits if version <= state.version]):
        try:
            paths = _objects_added(log, version, kinds)
        except FileNotFoundError:  # vacuum took it
            continue
        except UNREADABLE_VERSION as error:
            _warn(topic, version, error)
            continue
        for path in sorted(paths):
            commits.setdefault(path, []).append(version)
    for path, versions in commits.items():
        if len(versions) > 1:
            topic.findings.add(
                "Rows of a shared object came in several commits",
                rule="O4",
                path=path,
                expected="all rows of an object in one commit",
                found=f"versions {', '.join(map(str, versions))}",
            )


def _objects_added(log: TopicLog, version: int, kinds: dict[str, str]) -> set[str]:
    """The shared objects of which a commit adds rows that the version before it lacks. `kinds`: of all files of rows so
    far, by path. Raises FileNotFoundError where vacuum took what says so, any of UNREADABLE_VERSION where it is
    damaged.
    """
    actions = log.delta.actions(version)
    added = [added_file(action["add"]) for action in actions if "add" in action]
    kinds.update((file.path, file.kind) for file in added)
    if commit_info(actions).get("change") == REBUILD:  # says anew what all commits before it said
        return set()
    removed = paths_of(actions, "remove")
    if not kinds.keys() >= set(removed):  # what the oldest commits added: those are gone, and their kinds with them
        return set()
    before = [added_file({"path": path, "partitionValues": {KIND: kinds[path]}}) for path in removed]
    return {path for path, *_ in _runs(log, added) - _runs(log, before)}


def _runs(log: TopicLog, files: Sequence[RowFile]) -> set[tuple[str, int, int]]:
    """(path, partition, position) of the rows of shared objects in these files."""
    runs: set[tuple[str, int, int]] = set()
    for rows in log.store.read_all([file for file in files if file.kind == SEGMENT_KIND]):
        named = rows.filter(pc.is_valid(rows.column("index_position")))
        columns = (named.column(name).to_pylist() for name in ("path", "partition", "position"))
        runs.update(zip(*columns, strict=True))
    return runs


def _check_notes(topic: VerifiedTopic, log: TopicLog, state: TableState) -> None:
    notes = notes_of(log.storage, log.topic)
    versions = range(notes.newest_copy + 1, state.version + 1)
    if not topic.is_deep and all(notes.has_proven(version) for version in versions):
        return
    faulty = list(_without_note(log, state, notes))
    # A copy that was written meanwhile makes the notes before it needless, and they are deleted.
    copied = notes_of(log.storage, log.topic).newest_copy if faulty else -1
    faulty = [commit for commit in faulty if commit.name.version > copied]
    first_noted = -1 if has_notes(log.storage, log.topic, notes.newest_copy) else min(notes.by_version, default=None)
    early = [commit for commit in faulty if first_noted is None or commit.name.version < first_noted]
    if early:
        topic.warnings.append(
            f"{len(early)} commits of topic {log.topic}, up to version {early[0].name.version}, were made by a writer "
            "that writes no notes: a rebuild of the manifest would not know them (W23). The next commits, or "
            f"segments verify LOG_DIR {log.topic} --repair, write what is needed"
        )
    for commit in faulty[: len(faulty) - len(early)]:
        _add(topic, notes, commit)
    if topic.repairs and faulty:
        _write_again(topic, log, faulty)


def _without_note(log: TopicLog, state: TableState, notes: CommitNotes) -> Iterator[LoggedCommit]:
    """The commits since the newest copy whose note is missing or wrong, the newest first. What came before a note that
    begins with no file is not needed.
    """
    try:
        for commit in commits_down_from(log, state, notes.newest_copy + 1):
            others = [name for name in notes.by_version.get(commit.name.version, ()) if name in notes.marked]
            read = [read_note(log.storage, log.topic, name) for name in dict.fromkeys([commit.name, *others])]
            agreeing = [note for note in read if note is not None and commit.agrees_with(note)]
            if not agreeing:
                yield commit
            elif any(note.before == digest_of(()) for note in agreeing):
                return
    except FileNotFoundError:  # vacuum takes commits before a checkpoint
        return


def _add(topic: VerifiedTopic, notes: CommitNotes, commit: LoggedCommit) -> None:
    path = commit.name.path(topic.name, "note")
    is_damaged = commit.name in notes.by_version.get(commit.name.version, ())
    message = "A commit's note is damaged, or of another commit" if is_damaged else "A commit has no note"
    topic.findings.add(
        f"{message}: a rebuild of the manifest would lose what follows",
        rule="W23",
        path=path,
        expected=f"what version {commit.name.version} of Delta's log says",
        found="something else" if is_damaged else "no file",
        rebuilds=path,
    )


def _write_again(topic: VerifiedTopic, log: TopicLog, commits: list[LoggedCommit]) -> None:
    """Writes notes from Delta's log. Where vacuum took what a commit had added, a recovery copy of the latest version
    serves in their place.
    """
    try:
        for commit in reversed(commits):
            write_note(log, commit)
    except (FileNotFoundError, SegmentsError, pa.ArrowException):
        topic.log.manifest(topic.name).keep_for_rebuild()
        if notes_of(log.storage, log.topic).newest_copy < commits[0].name.version:
            return
    for commit in commits:
        path = commit.name.path(topic.name, "note")
        topic.repaired[path] = {"partition": None, "path": path, "new_path": path}
