"""A commit of a group on its way: the file of the next number, created if there is none, and what becomes of it.

A number whose file is gone is free again, and what is created there is no commit of the group. So the committer looks
at the numbers beside its own before it says that the commit stands.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from contextlib import suppress

from spark_segments.errors import CommitConflictError, LogDirError, SegmentsError, StorageError, UnknownOutcomeError
from spark_segments.log.groups.group_files import GroupCommit, GroupFiles, GroupRows, expired_files, is_damaged
from spark_segments.log.positions import Position
from spark_segments.storage.numbered_files import NumberedListing
from spark_segments.storage.numbered_swap import NoEntry, NumberedSwap, Reply, RequestOutcome, SentEntry, SwapLimits

TRIES = 30
FIRST_PAUSE_SECONDS = 0.04
LONGEST_PAUSE_SECONDS = 0.5

GroupPlan = Callable[[GroupRows], GroupRows | None]


def newest_commit(files: GroupFiles, *, skips_damage: bool = False) -> GroupCommit:
    """The newest commit of a group, that of number 0 where there is none. `skips_damage`: a damaged file has no
    positions, and one that nobody has.
    """

    def read(listing: NumberedListing) -> GroupCommit:
        newest = listing.newest
        if not newest and any(info.path.endswith(".parquet") for info in listing.others):
            raise LogDirError(
                f"The positions of group {files.group} are kept as a table, which no release has done",
                path=files.location,
                hint="Delete the directory, then begin the group anew: segments groups reset",
            )
        try:
            return files.read(newest) if newest else GroupCommit(0, "", "", {})
        except StorageError as error:
            if skips_damage and is_damaged(error):
                return GroupCommit(newest, "", "", {("", 0): Position(0)})
            raise

    return files.newest(read)


class GroupSwap(NumberedSwap[GroupCommit, GroupCommit, GroupCommit]):
    """A commit of a group on its way: see `Group.update`, which has these arguments, too. `least`: a listing that shows
    no commit of this number or a higher one is stale.
    """

    def __init__(
        self,
        files: GroupFiles,
        rows_after: GroupPlan,
        *,
        least: int,
        skips_damage: bool = False,
        check: Callable[[GroupCommit], None] | None = None,
        lease: int = 0,
        made_by: str = "",
    ) -> None:
        limits = SwapLimits(
            tries=TRIES,
            looks=TRIES,
            first_pause_seconds=FIRST_PAUSE_SECONDS,
            longest_pause_seconds=LONGEST_PAUSE_SECONDS,
        )
        super().__init__(limits)
        self._files = files
        self._rows_after = rows_after
        self._least = least
        self._skips_damage = skips_damage
        self._check = check
        self._lease = lease
        self._made_by = made_by
        self._commit_id = uuid.uuid4().hex

    def number_of(self, state: GroupCommit) -> int:
        return state.number

    def newest(self, state: GroupCommit | None = None) -> GroupCommit:
        return newest_commit(self._files, skips_damage=self._skips_damage)

    def plan(self, state: GroupCommit) -> GroupCommit | NoEntry[GroupCommit] | None:
        if state.number < self._least:
            # A stale listing. A plan on it would ask for a number that is taken; a plan that has nothing to do would be
            # believed.
            return None
        if self._check is not None:
            self._check(state)
        rows = self._rows_after(dict(state.rows))
        if rows is None:
            return NoEntry(state)
        self._least = state.number
        owner = state.made_by if state.rows else self._made_by
        # The lease never falls: by a higher number a server learns that another has taken over, and with a lower one it
        # would commit over the positions of its successor.
        return GroupCommit(
            state.number + 1,
            self._commit_id,
            after=state.commit_id,
            rows=rows,
            lease=max(state.lease, self._lease),
            made_by=owner if rows else "",
        )

    def send(self, state: GroupCommit, commit: GroupCommit) -> Reply[GroupCommit]:
        self.sent.append(SentEntry(commit.number, state, commit))
        try:
            self._files.make(commit)
            if self._stands(commit):
                return Reply(RequestOutcome.MADE, commit)
        except StorageError as error:
            if not self._may_be_there():
                raise
            return Reply(RequestOutcome.UNKNOWN, failure=error)
        return Reply(RequestOutcome.OVERTAKEN, failure=FileExistsError(f"number {commit.number} was given before"))

    def _stands(self, commit: GroupCommit) -> bool:
        """Whether a file that was created is a commit, and its number not one whose file was gone."""
        files = self._files
        listing = files.listing()
        if listing.newest > commit.number:
            try:
                return files.read(commit.number + 1).after == commit.commit_id
            except FileNotFoundError:
                return False
        before = commit.number - 1
        if before > 0 and before not in listing.numbers and not files.storage.exists(files.path(before)):
            # Vacuum has taken a group that was deleted long ago, and nobody goes on from what it was.
            files.storage.delete([files.path(commit.number)])
            return False
        if commit.number % GroupCommit.TRIM_EVERY == 0:
            with suppress(SegmentsError):  # the positions stand without it, and a later commit tries again
                files.storage.delete(info.path for info in expired_files(listing))
        return True

    def find(self, state: GroupCommit) -> GroupCommit | None:
        """The commit of this id, with the positions that it made: others may have moved them since. Requests for
        numbers that are another commit's leave `sent`.

        Raises UnknownOutcomeError where later commits have taken the place of what would tell.
        """
        for number in sorted({request.number for request in self.sent}):
            try:
                commit = self._files.read(number)
            except FileNotFoundError:
                if number > state.number:  # it may still come
                    continue
                raise self._unknown("later commits have taken the place of what would tell") from None
            if commit.commit_id == self._commit_id and self._stands(commit):
                return commit
            self.sent = [request for request in self.sent if request.number != number]
        return None

    def give_up(self, tries: int, failures: int, failure: Exception | None) -> GroupCommit:
        if isinstance(failure, FileExistsError):
            raise CommitConflictError(
                f"Other commits to group {self._files.group} came first, {tries} times",
                path=self._files.location,
                hint="Commit the positions again",
            ) from failure
        raise self._unknown(failure) from failure

    def settle(self, error: Exception) -> GroupCommit:
        if isinstance(error, StorageError) and self._may_be_there():
            raise self._unknown(error) from error
        raise error

    def _may_be_there(self) -> bool:
        """Whether a request that failed may have been carried out, or may be yet: a local disk does nothing late."""
        files = self._files
        return not files.storage.is_local or any(files.storage.exists(files.path(one.number)) for one in self.sent)

    def _unknown(self, why: object) -> UnknownOutcomeError:
        return UnknownOutcomeError(
            f"The positions of group {self._files.group} may have been committed, or not: {why}",
            path=self._files.location,
            hint="Read the group's positions before going on",
        )
