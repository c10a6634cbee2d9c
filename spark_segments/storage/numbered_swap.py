"""Compare-and-swap on a numbered log: an entry asks for the next number, which the store gives to one request alone.

The commits of a topic, those of a group and the files of a lease are such logs. Each has its `NumberedSwap`, which says
how its newest state is read, what the entry on top of it is, how that is sent, and how an entry of its own is found.
What becomes of a request, and what follows from that, is the same for all, and stands here.

An entry that was made on the state of number 6 asks for 7, and for nothing else. A reply says little: it may be lost
though the entry was made, and a store may carry a request out long after it has answered with an error. So after each
request that was not answered with success the log is read, and what was sent is looked for in it. Then a request is in
one of four states:

    MADE       … 5 6 [7 own]       It happened, however it was answered. This is the result; made again on top of
                                   itself, its records or positions would be there twice.
    OVERTAKEN  … 5 6 [7 other's]   Another entry has the number: the request can only be refused, now and later. The
                                   next entry is made on 7, and asks for 8.
    NOT_SENT   … 5 6 |7 free|      The request was refused for good, or never left. It is forgotten: kept, it would make
                                   a plain failure of a later step an unknown outcome.
    UNKNOWN    … 5 6 |7 free|      The store may still carry it out. The next entry asks for 7 again, so of the two one
                                   can happen at most. Until 7 is taken no error says that nothing happened, and no plan
                                   that finds nothing to do is believed.
"""

from __future__ import annotations

import math
import random
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import Enum
from typing import Generic, TypeVar

from spark_segments.errors import SegmentsError, StorageError, UnknownOutcomeError

State = TypeVar("State")
Entry = TypeVar("Entry")
Result = TypeVar("Result")


class RequestOutcome(Enum):
    """What became of a request, as far as its sender can tell: the module says what follows from each."""

    MADE = "made"
    OVERTAKEN = "overtaken"
    NOT_SENT = "not sent"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Reply(Generic[Result]):
    """What a request was answered with: the `result` of an entry that was made, else why there is none."""

    outcome: RequestOutcome
    result: Result | None = None
    failure: Exception | None = None


@dataclass(frozen=True, slots=True)
class SentEntry(Generic[State, Entry]):
    """A request for a number: the `entry` that was made on a `state`."""

    number: int
    state: State
    entry: Entry


@dataclass(frozen=True, slots=True)
class NoEntry(Generic[Result]):
    """What a plan has in place of an entry: nothing is to be made. `is_certain`: not even while an earlier request may
    still be carried out.
    """

    result: Result
    is_certain: bool = False


@dataclass(frozen=True, slots=True)
class SwapLimits:
    """How often a swap is tried, and how long. `failures`: how many tries in a row may fail while no other entry comes
    first. `looks`: how many looks in a row may fail after a try.
    """

    tries: int
    looks: int
    first_pause_seconds: float
    longest_pause_seconds: float
    failures: float = math.inf
    seconds: float = math.inf


class NumberedSwap(ABC, Generic[State, Entry, Result]):
    """An entry on its way into a numbered log. `sent`: the requests that were made, or may be, the newest one last.
    `send` adds a request right before it leaves: an error before that is sure, and says that nothing happened.
    """

    def __init__(self, limits: SwapLimits) -> None:
        self.limits = limits
        self.sent: list[SentEntry[State, Entry]] = []

    # What each log says of itself

    @abstractmethod
    def number_of(self, state: State) -> int:
        """The number of the newest entry that a state has."""

    @abstractmethod
    def newest(self, state: State) -> State:
        """The newest state of the log. `state`: the one that was read before."""

    @abstractmethod
    def plan(self, state: State) -> Entry | NoEntry[Result] | None:
        """The entry to be made on top of a state, or why none is. None: the log is to be read again first."""

    @abstractmethod
    def send(self, state: State, entry: Entry) -> Reply[Result]:
        """Asks for the number after the state's. A SegmentsError that it raises ends the swap."""

    @abstractmethod
    def find(self, state: State) -> Result | None:
        """The result, where one of the requests that were sent was carried out, as far as a state shows."""

    @abstractmethod
    def give_up(self, tries: int, failures: int, failure: Exception | None) -> Result:
        """Raises the error after the last try, or returns the result where that is none."""

    def unreadable(self, failure: Exception | None) -> Exception:
        """The error where the log cannot be read after a try."""
        return failure or StorageError("The log cannot be read")

    def settle(self, error: Exception) -> Result:
        """Called with an error after a request was sent. Raises it, or what is known of the outcome."""
        raise error

    # What is the same for all

    def run(self, state: State, planned: Entry | NoEntry[Result] | None) -> Result:
        """Tries until an entry is made, or none is to be made. `planned`: what `plan` made of the first state."""
        try:
            return self._tried(state, planned)
        except UnknownOutcomeError:
            raise
        except Exception as error:
            if not self.sent:
                raise  # nothing that was asked for can happen
            return self.settle(error)

    def _tried(self, state: State, planned: Entry | NoEntry[Result] | None) -> Result:
        deadline = time.monotonic() + self.limits.seconds
        tries = failures = 0
        failure: Exception | None = None
        while True:
            if isinstance(planned, NoEntry):
                if planned.is_certain or not self.may_happen(state):
                    return planned.result
            elif planned is not None:
                reply = self._reply(state, planned)
                failure = reply.failure
                match reply.outcome:
                    case RequestOutcome.MADE:
                        assert reply.result is not None
                        return reply.result
                    case RequestOutcome.OVERTAKEN | RequestOutcome.NOT_SENT:
                        self.sent.pop()
                    case RequestOutcome.UNKNOWN:
                        pass  # the look tells it from the other three

            # Look first, then count, then plan: an entry that was made is no failure, however many came before it, and
            # a plan that is made again beside its own entry would add the same records twice.
            tries += 1
            self.pause(tries)
            before = state
            state, result = self._look(before, failure)
            if result is not None:
                return result

            # Where others' entries come first, the store works, and this one only lost a race. Counted without a reset,
            # a busy log would look like a store that is broken.
            is_overtaken = self.number_of(state) != self.number_of(before)
            failures = 0 if is_overtaken else failures + 1
            is_last = failures >= self.limits.failures or tries >= self.limits.tries
            if is_last or time.monotonic() > deadline:
                return self.give_up(tries, failures, failure)
            planned = self.plan(state)

    def _reply(self, state: State, entry: Entry) -> Reply[Result]:
        try:
            return self.send(state, entry)
        except SegmentsError:
            raise
        except Exception as error:  # it proves nothing, not even where it says that the number is taken: by whom?
            return Reply(RequestOutcome.UNKNOWN, failure=error)

    def _look(self, state: State, failure: Exception | None) -> tuple[State, Result | None]:
        """The newest state, and the result where it has what was sent. In this order: what is carried out between the
        two is found, and never planned upon as another's entry.
        """
        for attempt in range(1, self.limits.looks + 1):
            try:
                newest = self.newest(state)
                return newest, self.find(newest)
            except StorageError as error:
                failure = error
            self.pause(attempt)
        raise self.unreadable(failure) from failure

    def may_happen(self, state: State) -> bool:
        """Whether a request may still be carried out: one for a number that a state has no entry of.

        newest 6    … 4 5 6 |7 is free|     the store may still carry the request for 7 out
        newest 7    … 4 5 6 7               7 was made by another: the request can only be refused
        """
        newest = self.number_of(state)
        return any(request.number > newest for request in self.sent)

    def pause(self, tries: int) -> None:
        """Waits before a look, at random: writers that met once would else meet at each try."""
        limits = self.limits
        longest = min(limits.longest_pause_seconds, limits.first_pause_seconds * 2 ** (tries - 1))
        time.sleep(random.uniform(0, longest))
