"""Delta's log of a topic's manifest: versions are opened and followed, and the next one is put if it is not there.

A commit is one exclusive create of a whole file, on every store. A version number is never used twice: a commit file
stays for an hour at least. So a writer that saw a version as the latest within the last half hour either creates the
next number first, or finds it taken.

schemas.py says what the rows are; committing.py decides when to commit and when to try again.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from spark_segments.errors import StorageError, UnknownOutcomeError
from spark_segments.log.manifest.files.delta.actions import (
    CommitNote,
    check_readable,
    check_writable,
    decoded,
    fence_action,
    file_actions,
    is_followed,
    note_action,
    table_actions,
    transaction_actions,
)
from spark_segments.log.manifest.files.delta.delta_rs import (
    CommitFailedError,
    CommitNotSentError,
    OpenTable,
    TableVersion,
    VersionTakenError,
    made_checkpoint,
    no_table,
    open_table,
)
from spark_segments.log.manifest.files.row_files import FileChange
from spark_segments.quantities import Moment
from spark_segments.storage import FileInfo, Storage
from spark_segments.storage.delta import Action, commit_info, encoded, paths_of, reason
from spark_segments.storage.numbered_files import NumberedFiles

MANIFEST_DIRECTORY = "_manifest"

COMMIT_LOG_MS = 60 * 60 * 1000
"""How long a commit file stays at least, by the store's clock."""

SURE_SECONDS = COMMIT_LOG_MS / 1000 / 2
"""For how long after a version was seen to be the latest, the number after it is free or its commit is there."""

TRUSTED_SECONDS = 60.0
"""For how long after that a commit does not look whether the version still exists, where a look is a request. A free
number proves nothing if somebody has deleted the log directory and made it again meanwhile."""

FENCED = 100
"""How many versions a rebuild of a table uses up, so that earlier readers of the table cannot commit them. It is
several times as many as lie between two recovery copies."""

MOST_FOLLOWED = 20
"""After so many commits, the table is opened again: a checkpoint has come meanwhile."""

_CHECKPOINT_NAME = re.compile(r"^(\d{20})\.checkpoint(\..*)?\.parquet$")
_LAST_CHECKPOINT = "_last_checkpoint"
_LISTINGS = 5
_REFUSED = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES))
"""Errors by which a file system says that it made no file: a full disk leaves no doubt about a commit."""


def manifest_directory(topic: str) -> str:
    """The directory of a topic's table, relative to the log directory."""
    return f"{MANIFEST_DIRECTORY}/{topic}"


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
        usable = (number for number, infos in self.checkpoints.items() if all(info.size for info in infos))
        start = max((number for number in usable if number <= version), default=-1)
        commits = [self.commits[number] for number in range(start, version + 1) if number in self.commits]
        return [*self.checkpoints.get(start, []), *commits]


class DeltaLog:
    """The Delta table of a topic, whether or not it exists. Holds no state: every call reads the log afresh."""

    def __init__(
        self, storage: Storage, topic: str, open_table: OpenTable = open_table, *, is_forced: bool = False
    ) -> None:
        """`open_table`: what opens versions. `is_forced`: see `durable`."""
        self._storage = storage
        self._topic = topic
        self._directory = manifest_directory(topic)
        self._commits = _commits_of(storage, self._directory)
        self._open_table = open_table
        self._is_forced = is_forced and storage.is_local

    def durable(self, is_forced: bool) -> DeltaLog:
        """The same log; where `is_forced`, what it commits has reached the disk when the call returns.

        On an object store all that was written has. A call that raises UnknownOutcomeError has made its commit, and
        nobody knows whether that reached the disk.
        """
        return DeltaLog(self._storage, self._topic, self._open_table, is_forced=is_forced)

    # Reading

    def open(self, version: int | None = None) -> TableVersion:
        """A version, by default the latest.

        Raises FileNotFoundError where there is no table, or no such version; LogDirError for a log that is damaged or
        too new; StorageError where the store fails.
        """
        moment = Moment.now()
        opened = self._open_table(self._storage, self._directory, version)
        check_readable(opened.protocol, self._storage.location(self._directory))
        self._check_no_empty_commit(opened.version)
        return dataclasses.replace(opened, latest_at=moment)

    def following(self, base: TableVersion) -> list[TableVersion]:
        """`base`, seen again, and the versions after it, by reading their commits alone. The last one is the latest.

        Raises FileNotFoundError where the table has to be opened again: `base` was cut from the log or lost, too many
        commits came, or a commit changed the table itself. LogDirError for a commit that is damaged.
        """
        states = [base]
        while len(states) <= MOST_FOLLOWED:
            moment = Moment.now()
            try:
                actions = self.actions(states[-1].version + 1)
            except FileNotFoundError:
                if not self._check_there(base):
                    break
                self._check_no_empty_commit(base.version)
                return [*states[:-1], dataclasses.replace(states[-1], latest_at=moment)]
            if not is_followed(actions):
                break
            states.append(states[-1].after(actions, moment))
        raise FileNotFoundError(errno.ENOENT, "too much has changed", self._storage.location(self._directory))

    def _check_there(self, base: TableVersion) -> bool:
        """Raises FileNotFoundError where a version is not there (any more), or is another than it was. Returns whether
        that is known: a commit that added no file does not tell it of a version that was opened.
        """
        actions = self.actions(base.version)
        added = set(paths_of(actions, "add"))  # no other file ever has the name of any
        if base.commit_info:
            is_other = commit_info(actions).get("commitId") != base.commit_info.get("commitId")
        else:
            is_other = not added.issubset(file.path for file in base.files)
        if is_other:
            path = self._storage.location(self._commits.path(base.version))
            raise FileNotFoundError(errno.ENOENT, "the version is another", path)
        return bool(base.commit_info or added)

    def _check_no_empty_commit(self, version: int) -> None:
        """Raises LogDirError where a commit that the version is opened from is an empty file: see `decoded`."""
        if not self._storage.is_local:
            return  # an object is there whole
        for number in range(min(self._last_checkpoint() + 1, version), version + 1):
            path = self._commits.path(number)
            with contextlib.suppress(FileNotFoundError):  # vacuum takes commits before a checkpoint
                if not self._storage.size(path):
                    decoded(b"", self._storage.location(path))

    def _last_checkpoint(self) -> int:
        """The version of the last checkpoint, as its pointer says; -1 where there is none, or no good one."""
        try:
            pointer = json.loads(self._storage.read(self._pointer).to_pybytes())
            return int(pointer["version"])
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return -1

    def actions(self, version: int) -> list[Action]:
        """The actions of a commit. Raises FileNotFoundError where the log does not have it (any more), LogDirError
        where it is damaged.
        """
        path = self._commits.path(version)
        return decoded(self._storage.read(path).to_pybytes(), self._storage.location(path))

    def has(self, version: int) -> bool:
        """Whether the log has the commit of a version, by a look at its file."""
        return self._storage.exists(self._commits.path(version))

    def log_files(self) -> LogFiles:
        """The files of the log, with sizes and modification times."""
        return log_files(self._storage, self._directory)

    # Writing

    def commit_on(
        self,
        base: TableVersion,
        change: FileChange,
        note: CommitNote,
        transactions: Mapping[str, int],
        *,
        data_change: bool = True,
    ) -> TableVersion:
        """Commits as the version right after `base`, for which `prepare` was called, and returns it. After
        `no_table` the commit makes the table. `transactions`: {application id: version}. `data_change` is False where
        the rows stay the same.

        Raises VersionTakenError where that version exists, which may be this very commit, its reply lost;
        CommitNotSentError where it cannot have happened; CommitFailedError for any other failure.
        """
        actions = [note_action(note), *(table_actions(self._topic) if not base.is_there else ())]
        actions += file_actions(change.added, change.removed, data_change=data_change)
        actions += transaction_actions(transactions)
        self._check_base(base)
        moment = Moment.now()
        path = self._commits.path(base.version + 1)
        try:
            self._storage.create(path, encoded(actions), is_forced=self._is_forced)
        except FileExistsError as error:
            raise VersionTakenError(f"version {base.version + 1} is there already") from error
        except StorageError as error:
            is_refused = getattr(error.__cause__, "errno", None) in _REFUSED
            raise (CommitNotSentError if is_refused else CommitFailedError)(reason(error)) from error
        self._force([path])
        self.check_kept(base)
        return self._made(base, actions, moment)

    def _check_base(self, base: TableVersion) -> None:
        """Raises CommitNotSentError where the number after `base` may have been given before, and its commit be cut."""
        if base.latest_at.seconds_ago > SURE_SECONDS:
            raise CommitNotSentError(f"the log was read too long ago, at version {base.version}")
        if self._storage.is_local and base.is_there:
            # Where a look costs nothing, a log that somebody has put back is found, too.
            try:
                self._check_there(base)
            except FileNotFoundError as error:
                raise CommitNotSentError(f"version {base.version} is not there any more") from error

    def _made(self, base: TableVersion, actions: Sequence[Action], moment: Moment) -> TableVersion:
        if base.is_there:
            return base.after(actions, moment)
        protocol = next(action["protocol"] for action in actions if "protocol" in action)
        return dataclasses.replace(base.after(actions, moment), protocol=protocol)

    def check_kept(self, base: TableVersion) -> None:
        """To be called once a commit after `base` is there, or found. Raises UnknownOutcomeError where it may have got
        a number that was given before, whose commit was cut from the log: this process stood still for too long.
        """
        if base.latest_at.seconds_ago <= SURE_SECONDS:
            return
        commits = self.log_files().commits
        if (base.is_there and base.version not in commits) or max(commits) != base.version + 1:
            built = (
                f"version {base.version}, which it builds upon, was" if base.is_there else "the topic, to be made, was"
            )
            raise UnknownOutcomeError(
                f"A commit was sent, and {built} read too long ago to tell whether it is part of the log",
                path=self._storage.location(self._directory),
                hint="Look whether it is there before it is sent again",
            )

    def prepare(self, base: TableVersion, added: Iterable[str]) -> None:
        """To be called before a commit on `base`: in a log that is forced, returns once the version, all that leads to
        it, and the files at the paths `added` have reached the disk.

        Others may have made the version, and died before they forced it: nothing may stand on it until then. Raises
        FormatVersionError for a table that this package cannot write.
        """
        if base.is_there:
            check_writable(base.protocol, base.metadata, self._storage.location(self._directory))
        if not self._is_forced:
            return
        with contextlib.suppress(FileNotFoundError):  # merged since: then a commit on top of the version fails
            self._storage.force(f"{self._directory}/{file.path}" for file in base.files)
        self._storage.force(added)
        if base.is_there:
            self.force()

    def force(self) -> None:
        """In a log that is forced, returns once all that the latest version is opened from has reached the disk."""
        if not self._is_forced:
            return
        for _ in range(_LISTINGS):
            files = self.log_files()
            pointers = [info for info in files.others if info.path.endswith(_LAST_CHECKPOINT)]
            needed = [*files.of_version(max(files.commits, default=-1)), *pointers]
            try:
                return self._storage.force(info.path for info in needed)
            except FileNotFoundError:  # vacuum took it: a newer checkpoint stands in its place
                continue
        raise StorageError(
            "Files of the log keep going while they are forced to disk", path=self._storage.location(self._directory)
        )

    def _force(self, paths: Sequence[str]) -> None:
        """In a log that is forced, returns once files that were just made have reached the disk."""
        if not self._is_forced:
            return
        try:
            self._storage.force(paths)
        except (StorageError, FileNotFoundError) as error:
            raise UnknownOutcomeError(
                f"The commit was made, and nobody knows whether it has reached the disk: {reason(error)}",
                path=self._storage.location(paths[0]),
                hint="Look whether it is there once the disk is sound",
            ) from error

    def checkpoint(self) -> None:
        """Writes a checkpoint of the latest version: the version then opens without the commits before it."""
        listed = self.log_files()
        version = max(openable(listed.commits, listed.checkpoints), default=-1)
        files = listed.of_version(version)
        if listed.checkpoints.get(version) and files[0].path == listed.checkpoints[version][0].path:
            return  # a whole one is there
        contents = self._storage.at_once(lambda info: self._storage.read(info.path).to_pybytes(), files)
        names = [info.path.rpartition("/")[2] for info in files]
        checkpoint, pointer = made_checkpoint(zip(names, contents, strict=True))
        # The pointer comes last: it never names a checkpoint that a power loss could take.
        for path, content in ((self._checkpoint_file(version), checkpoint), (self._pointer, pointer)):
            self._storage.replace(path, content)
            self._force([path])

    def make_anew(
        self, version: int, newest: int, change: FileChange, note: CommitNote, transactions: Mapping[str, int]
    ) -> None:
        """Makes the table from the files that `change` adds alone, as a version above all that the log has ever had.

        What the log has of other versions stays, and is not read again. The FENCED versions right after the last that
        the log lists are taken, and the version before `version` stays free: who read the table before it was lost
        finds the version taken that it asks for. Raises VersionTakenError where another commit takes any of these
        versions meanwhile, or where the log lists a version above `newest`, which the caller does not know of;
        CommitFailedError for any other failure.
        """
        actions = [note_action(note), *table_actions(self._topic)]
        actions += file_actions(change.added, (), data_change=True)
        actions += transaction_actions(transactions)
        commit = encoded(actions)
        # A checkpoint does not say of which version it is: that of a log with this commit alone serves.
        checkpoint, pointer = made_checkpoint([(f"{0:020d}.json", commit)])
        fences = self._fence_numbers(version, newest)
        fence = encoded([fence_action(note.commit_id)])
        try:
            self._storage.at_once(lambda number: self._commits.create(number, fence), fences)
            self.prepare(no_table(), [f"{self._directory}/{file.path}" for file in change.added])
            # Without its checkpoint the version cannot be opened: the checkpoint is what makes the table.
            self._commits.create(version, commit)
            self._storage.create(self._checkpoint_file(version), checkpoint)
        except FileExistsError as error:
            raise VersionTakenError(f"{error.filename} is there already") from error
        except StorageError as error:
            raise CommitFailedError(reason(error)) from error
        last_checkpoint = json.dumps({**json.loads(pointer), "version": version}).encode()
        self._storage.replace(self._pointer, last_checkpoint)
        self.force()

    def _fence_numbers(self, version: int, newest: int) -> list[int]:
        """The versions that are taken before a table is made as `version`, so that no commit of an older reader comes.

        A writer asks for the version after the last that it read: that of the log, or one that the log lists no more.

            listed up to 40, made as 60 + FENCED + 2     40 |41 42 …| … 60 |61 62 …| free |version|

        Raises VersionTakenError where the log lists a version above `newest`.
        """
        listed = self.log_files()
        last_version = version - FENCED - 2
        versions = [*listed.commits, *listed.checkpoints]
        last_listed = max(versions, default=last_version)
        if versions and last_listed > newest:
            raise VersionTakenError(f"version {last_listed} came meanwhile")
        return sorted({last + 1 + step for last in (last_listed, last_version) for step in range(FENCED)})

    def delete(self, files: Iterable[FileInfo]) -> None:
        """Deletes files that `log_files` gave. Missing files are no error."""
        self._storage.delete(info.path for info in files)

    def _checkpoint_file(self, version: int) -> str:
        return self._commits.path(version).replace(".json", ".checkpoint.parquet")

    @property
    def _pointer(self) -> str:
        return f"{self._commits.directory}/{_LAST_CHECKPOINT}"


OpenDeltaLog = Callable[[Storage, str], DeltaLog]
"""Opens the Delta log of a topic: (storage, topic) → DeltaLog."""


def log_files(storage: Storage, directory: str) -> LogFiles:
    """The files of the log of a table that lies in `directory`."""
    listing = _commits_of(storage, directory).listing()
    files = LogFiles(listing.numbers, {}, [])
    for info in listing.others:
        match = _CHECKPOINT_NAME.match(info.path.rpartition("/")[2])
        if match:
            files.checkpoints.setdefault(int(match.group(1)), []).append(info)
        else:
            files.others.append(info)
    return files


def _commits_of(storage: Storage, directory: str) -> NumberedFiles:
    return NumberedFiles(storage, f"{directory}/_delta_log", first=0)


def openable(commits: Collection[int], checkpoints: Collection[int]) -> list[int]:
    """The versions that can be opened, sorted: commits lead to them without a gap from version 0 or a checkpoint."""
    versions = unbroken(commits)
    if not versions or versions[0] == 0:
        return versions
    first = min((version for version in checkpoints if version >= versions[0] - 1), default=versions[-1] + 1)
    return [version for version in versions if version >= first]


def unbroken(commits: Collection[int]) -> list[int]:
    """The last versions that follow each other without a gap, sorted. A rebuild of the table leaves a gap."""
    versions = sorted(commits)
    gaps = [at for at in range(1, len(versions)) if versions[at] != versions[at - 1] + 1]
    return versions[gaps[-1] :] if gaps else versions
