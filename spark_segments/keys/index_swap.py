"""A list of an index on its way: the file of the next number, created if there is none, and what becomes of it."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable
from dataclasses import replace

from spark_segments.errors import CommitConflictError, SegmentsError, StorageError, UnknownOutcomeError
from spark_segments.keys.index_list import IndexFiles, IndexList
from spark_segments.storage.numbered_swap import NoEntry, NumberedSwap, Reply, RequestOutcome, SentEntry, SwapLimits

TRIES = 30

IndexPlan = Callable[[IndexList], IndexList | None]
"""The list after the one that was read; None: nothing is to be committed. It is asked again at each try."""


def commit_list(files: IndexFiles, plan: IndexPlan) -> IndexList:
    """Commits what a plan makes of the newest list, and returns the list that is the newest then.

    Raises CommitConflictError where other jobs came first in all tries, StorageError where nothing was committed,
    UnknownOutcomeError where the list may have been committed: the job can be run again.
    """
    swap = IndexSwap(files, plan)
    state = files.newest_list()
    return swap.run(state, swap.plan(state))


class IndexSwap(NumberedSwap[IndexList, IndexList, IndexList]):
    """A list on its way: see `commit_list`."""

    def __init__(self, files: IndexFiles, plan: IndexPlan) -> None:
        super().__init__(SwapLimits(tries=TRIES, looks=TRIES, first_pause_seconds=0.04, longest_pause_seconds=0.5))
        self._files = files
        self._plan = plan
        self._commit_id = uuid.uuid4().hex
        self._least = 0

    def number_of(self, state: IndexList) -> int:
        return state.number

    def newest(self, state: IndexList) -> IndexList:
        return self._files.newest_list()

    def plan(self, state: IndexList) -> IndexList | NoEntry[IndexList] | None:
        if state.number < self._least:
            return None  # a stale listing: the number after it is taken
        self._least = state.number
        planned = self._plan(state)
        if planned is None:
            return NoEntry(state)
        return replace(planned, number=state.number + 1, commit_id=self._commit_id, after=state.commit_id)

    def send(self, state: IndexList, entry: IndexList) -> Reply[IndexList]:
        self.sent.append(SentEntry(entry.number, state, entry))
        try:
            self._files.make(entry)
            if self._stands(entry):
                return Reply(RequestOutcome.MADE, entry)
        except StorageError as error:
            return Reply(RequestOutcome.UNKNOWN, failure=error)
        return Reply(RequestOutcome.OVERTAKEN, failure=FileExistsError(f"number {entry.number} was taken before"))

    def _stands(self, entry: IndexList) -> bool:
        """Whether a file that was created is the newest list, or was: its number may be one whose file was deleted."""
        files = self._files
        listing = files.listing()
        if listing.newest > entry.number:
            try:
                return files.read(entry.number + 1).after == entry.commit_id
            except FileNotFoundError:
                return False
        before = entry.number - 1
        if before > 0 and before not in listing.numbers and not files.storage.exists(files.path(before)):
            files.storage.delete([files.path(entry.number)])
            return False
        with contextlib.suppress(SegmentsError):  # the list stands without it, and vacuum does it, too
            files.storage.delete(files.old_lists(listing))
        with contextlib.suppress(SegmentsError):  # a look-up goes without it
            files.note_newest(entry)
        return True

    def find(self, state: IndexList) -> IndexList | None:
        for number in sorted({request.number for request in self.sent}):
            try:
                index_list = self._files.read(number)
            except FileNotFoundError:
                if number > state.number:  # it may still come
                    continue
                raise self._unknown("later lists have taken the place of what would tell") from None
            if index_list.commit_id == self._commit_id and self._stands(index_list):
                return index_list
            self.sent = [request for request in self.sent if request.number != number]
        return None

    def give_up(self, tries: int, failures: int, failure: Exception | None) -> IndexList:
        if isinstance(failure, FileExistsError):
            raise CommitConflictError(
                f"Other jobs committed to the index of {self._files.topic} first, {tries} times",
                path=self._files.location,
                hint="Run it again",
            ) from failure
        raise self._unknown(failure) from failure

    def _unknown(self, why: object) -> UnknownOutcomeError:
        return UnknownOutcomeError(
            f"The index of {self._files.topic} may have been committed, or not: {why}",
            path=self._files.location,
            hint="Run it again: the log does not depend on it",
        )
