"""Whether commits of a topic were made that its manifest does not have, and whether a rebuild can bring them back.

A mark beside the recovery copies is written once its commit is there. So a version after the newest of the manifest
that has a mark was lost: its file, or the whole manifest. Who commits on top of what is left gives its offsets again.
"""

from __future__ import annotations

from dataclasses import dataclass

from spark_segments.errors import FormatVersionError, LogDirError
from spark_segments.log.manifest.files.commit_notes import CommitNotes, read_note, recovery_directory
from spark_segments.log.manifest.recovery.playback import known_topic
from spark_segments.log.manifest.state.recovery_copy import UNREADABLE
from spark_segments.log.manifest.state.topic_log import TableState, TopicLog


@dataclass(frozen=True, slots=True)
class LostManifest:
    """What is said of a manifest that is gone though commits were made: by a creation, and by verify."""

    message: str
    hint: str

    def error(self, log: TopicLog) -> LogDirError:
        return LogDirError(self.message, path=log.location, hint=self.hint)

    @classmethod
    def of(cls, log: TopicLog) -> LostManifest:
        """What a rebuild of this topic would say. Raises FormatVersionError as a rebuild does, and StorageError."""
        free = f"to begin anew without its records, delete {recovery_directory(log.topic)}"
        gone = f"The manifest of topic {log.topic} is gone"
        try:
            remains = known_topic(log)
        except FormatVersionError:
            raise
        except UNREADABLE:
            message = f"{gone}, and nothing is left that a rebuild could begin with"
            return cls(message, f"Restore the log directory from a backup; {free}")
        if remains.snapshot.deleted_ms is not None:
            return cls(f"{gone}, and the topic was deleted", free.capitalize())
        message = f"{gone}, but commits of the topic were made"
        return cls(message, f"segments verify LOG_DIR {log.topic} --repair rebuilds it; {free}")


def lost_commits(log: TopicLog, notes: CommitNotes, latest: int) -> LogDirError | None:
    """The error where any version that was made is above the latest one of the manifest, and its commit, or one before
    it, is not in Delta's log; or where two commits have made one version.

    `notes`: listed before the manifest was read. A commit that comes between the two is in both, save where a network
    file system still believes that the commit's file is missing: a listing does not.
    """
    message = f"Commits of topic {log.topic} were made that its manifest does not have"
    hint = f"segments verify LOG_DIR {log.topic} --repair rebuilds the manifest with all that is known of them"
    version = _rival_version(log, notes)
    if version is not None:
        return LogDirError(
            message,
            path=log.location,
            expected=f"one commit of version {version} that has a mark in {recovery_directory(log.topic)}",
            found=f"{len(notes.marked_twice[version])}: the topic was made over a lost manifest",
            hint=hint,
        )
    last = max(notes.made_versions, default=-1)
    if last <= latest or log.delta.log_files().commits.keys() >= {*range(latest + 1, last + 1)}:
        return None
    return LogDirError(
        message,
        path=log.location,
        expected=f"version {last}, which has a mark in {recovery_directory(log.topic)}",
        found=f"version {latest}",
        hint=hint,
    )


def _rival_version(log: TopicLog, notes: CommitNotes) -> int | None:
    """A version that two commits have made: a store takes one commit of a number. So the manifest that had the first
    was lost, and a topic was made in its place.

    Two names of one commit are no two commits: two writers may each have written a note of another one's, which has no
    id that a name can have. Their notes lead to the same state.
    """
    for version, names in notes.marked_twice.items():
        read = [read_note(log.storage, log.topic, name) for name in names]
        if len({note.after for note in read if note is not None}) > 1:
            return version
    return None


def check_none_lost(log: TopicLog, state: TableState, notes: CommitNotes) -> None:
    """To be called before a commit on a state. Raises LogDirError where later commits were made and are lost. `notes`:
    listed after the state was read.
    """
    if max(notes.made_versions, default=-1) <= state.version and not notes.marked_twice:
        return
    latest = log.following(state.table)[-1].version  # another writer has made its commit before its mark
    error = lost_commits(log, notes, latest)
    if error is not None:
        raise error
