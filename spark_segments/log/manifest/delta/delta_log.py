"""The interface between a manifest and Delta's log: small, so that a test can play every lost reply and conflict.

`DeltaRsLog` (delta_rs.py) implements it by delta-rs. A simulation hands another implementation to `Manifest` or
`LogDir`. schemas.py says what the rows are; commit.py decides when to commit and when to try again.

An implementation must hold to three rules: a commit is a compare-and-swap on a version number, a version never changes
once it is there, and `actions` shows a commit from the moment that `open` does. On an object store, whose objects are
durable once they are written, a log is always forced.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from spark_segments.errors import LogDirError
from spark_segments.log.manifest.row_files import FileChange, RowFile
from spark_segments.storage import FileInfo, Storage

MANIFEST_DIRECTORY = "_manifest"

FENCED = 100
"""How many versions a table that is made anew takes away from those who read it before. It is several times as many
as lie between two recovery copies."""

REBUILD = "rebuild"
"""The operation of the commit that makes a table anew."""

REBUILD_FENCE = "fence"
"""The operation of the commits, without any other action, that take versions away before a table is made anew."""

REBUILD_HINT = "segments repair --rebuild-manifest makes the manifest anew"

# The members of actions that are used, each with its type, and whether the action must have it.
_MEMBERS: dict[str, dict[str, tuple[type, bool]]] = {
    "commitInfo": {
        "timestamp": (int, False),
        "commitId": (str, False),
        "attempt": (int, False),
        "change": (str, False),
    },
    "add": {"path": (str, True), "partitionValues": (dict, False)},
    "remove": {"path": (str, True)},
    "txn": {"appId": (str, True), "version": (int, True)},
}

_STACK = re.compile(r"\n+\s*(?:Backtrace:\s*|stack backtrace:\s*)?0: .*", re.DOTALL)
_DRAWING = re.compile(r"\x1b\[[0-9;]*m|↳")


def manifest_directory(topic: str) -> str:
    """The directory of a topic's table, relative to the log directory."""
    return f"{MANIFEST_DIRECTORY}/{topic}"


class CommitFailedError(Exception):
    """A commit was sent and got no good answer. It may have happened, or may happen yet."""


class CommitNotSentError(CommitFailedError):
    """The file system refused the commit: it has not happened and cannot happen any more."""


class VersionTakenError(CommitFailedError):
    """The version is taken: by another commit, or by this same commit where an earlier reply was lost."""


@dataclass(frozen=True, slots=True)
class CommitNote:
    """A commit's entry about itself in Delta's log: its id, the number of the try (from 0), its operation."""

    commit_id: str
    attempt: int
    operation: str


@dataclass(frozen=True, slots=True)
class LogFiles:
    """The files of Delta's log: commits by version, checkpoints by version, and all the others."""

    commits: dict[int, FileInfo]
    checkpoints: dict[int, list[FileInfo]]
    others: list[FileInfo]

    def of_version(self, version: int) -> list[FileInfo]:
        """The files that a version is opened from, and committed on: the last checkpoint, and the commits from its
        version on.
        """
        whole = (number for number, infos in self.checkpoints.items() if all(info.size for info in infos))
        start = max((number for number in whole if number <= version), default=-1)
        commits = [self.commits[number] for number in range(start, version + 1) if number in self.commits]
        return [*self.checkpoints.get(start, []), *commits]


class TableVersion(Protocol):
    """A version of a table, as it was opened. Never changes."""

    @property
    def version(self) -> int: ...

    @property
    def files(self) -> list[RowFile]:
        """The files of the version, in no particular order."""

    def last_transaction(self, application_id: str) -> int | None:
        """The version of the last transaction of an application id; None where it never committed."""

    def last_transactions(self) -> dict[str, int]:
        """{application id: the version of its last transaction} of all application ids."""


class CommittedVersion(TableVersion, Protocol):
    """A version that a commit of this process made, and all that it holds, without another look at the log."""

    def is_latest(self) -> bool:
        """Whether the version is still that commit's, and no other has come since.

        Raises LogDirError for a log that is damaged since.
        """


class DeltaLog(Protocol):
    """The Delta table of a topic, whether or not it exists. Holds no state: every call reads the log afresh."""

    def open(self, version: int | None = None) -> TableVersion:
        """A version, by default the latest.

        Raises FileNotFoundError where there is no table, or no such version; LogDirError for a log that is damaged or
        too new; StorageError where the store fails.
        """

    def create(self, change: FileChange, note: CommitNote) -> None:
        """Makes the table at version 0 with the files that `change` adds.

        Raises CommitFailedError, also where there is a table already.
        """

    def commit_on(
        self,
        base: TableVersion,
        change: FileChange,
        note: CommitNote,
        transactions: Mapping[str, int],
        *,
        data_change: bool = True,
    ) -> CommittedVersion | None:
        """Commits as the version right after `base`, which `open` or a commit gave. `transactions`: {application id:
        version}. Returns the version, where it is known without another look at the log.

        Where `change.format_version` has columns that the table lacks, the table gets them; such a change removes
        whole kinds of files. `data_change` is False where the rows stay the same.

        Raises VersionTakenError where that version is there already, CommitNotSentError where it cannot have
        happened, CommitFailedError for any other failure.
        """

    def make_anew(self, version: int, change: FileChange, note: CommitNote, transactions: Mapping[str, int]) -> None:
        """Makes the table from the files that `change` adds alone, as a version above all that the log has ever had.

        What the log has of other versions stays, and is not read again. The FENCED versions right after the last that
        the log lists are taken, and the version before `version` stays free: who read the table before it was lost
        finds the version taken that it asks for. Raises VersionTakenError where another commit takes any of these
        versions meanwhile, CommitFailedError for any other failure.
        """

    def checkpoint(self) -> None:
        """Writes a checkpoint of the latest version: the version then opens without the commits before it."""

    def log_files(self) -> LogFiles:
        """The files of the log, with sizes and modification times."""

    def actions(self, version: int) -> list[dict[str, Any]]:
        """The actions of a commit as Delta writes them. FileNotFoundError where the log does not have it (any more)."""

    def forced(self) -> DeltaLog:
        """The same log, whose commits and checkpoints have reached the disk when their call returns.

        A call that raises UnknownOutcomeError has made its commit, and nobody knows whether that reached the disk.
        """

    def force(self) -> None:
        """Returns once all that the latest version is opened from has reached the disk. Others may have written it."""

    def delete(self, files: Iterable[FileInfo]) -> None:
        """Deletes files that `log_files` gave, in the order given. Missing files are no error."""


OpenDeltaLog = Callable[[Storage, str], DeltaLog]
"""Opens the Delta log of a topic: (storage, topic) → DeltaLog."""


def openable(commits: Collection[int], checkpoints: Collection[int]) -> list[int]:
    """The versions that can be opened, sorted: commits lead to them without a gap from version 0 or a checkpoint."""
    versions = unbroken(commits)
    if not versions or versions[0] == 0:
        return versions
    first = min((version for version in checkpoints if version >= versions[0] - 1), default=versions[-1] + 1)
    return [version for version in versions if version >= first]


def unbroken(commits: Collection[int]) -> list[int]:
    """The last versions that follow each other without a gap, sorted. A gap is where a table was made anew."""
    versions = sorted(commits)
    gaps = [at for at in range(1, len(versions)) if versions[at] != versions[at - 1] + 1]
    return versions[gaps[-1] :] if gaps else versions


def reason(error: BaseException | None) -> str:
    """The error in a single line: delta-rs draws trees in colour, and adds a stack where RUST_BACKTRACE is set."""
    text = _STACK.sub("", _DRAWING.sub("", str(error)))
    return " ".join(text.split()) or type(error).__name__


def read_action(line: bytes) -> dict[str, Any]:
    """An action of a commit, from its line. Raises ValueError for what cannot be an action that this package uses."""
    action = json.loads(line)
    if not isinstance(action, dict) or not all(isinstance(value, dict) for value in action.values()):
        raise ValueError("an action is no JSON object of objects")
    for name, members in _MEMBERS.items():
        if name not in action:
            continue
        for member, (kind, is_needed) in members.items():
            value = action[name].get(member)
            if not isinstance(value, kind) and (is_needed or value is not None):
                raise ValueError(f"{name} has no {member} of type {kind.__name__}")
    return action


def damaged_commit(path: str, error: Exception) -> LogDirError:
    """The error for a commit that cannot be read."""
    return LogDirError(f"A commit of the manifest is damaged ({reason(error)})", path=path, hint=REBUILD_HINT)


def commit_info(actions: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """The commitInfo action of a commit: its timestamp, id and operation."""
    return next((action["commitInfo"] for action in actions if "commitInfo" in action), {})


def is_fence(actions: Sequence[dict[str, Any]]) -> bool:
    """Whether a commit only takes its version away: see `DeltaLog.make_anew`."""
    return len(actions) == 1 and commit_info(actions).get("change") == REBUILD_FENCE


def paths_of(actions: Iterable[dict[str, Any]], action: str) -> list[str]:
    """The paths that a commit's `add` or `remove` actions name, relative to the table."""
    return [entry[action]["path"] for entry in actions if action in entry]
