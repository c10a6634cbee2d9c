"""A compare-and-swap on a numbered log, in every order of what a store can do to its requests and its looks."""

from __future__ import annotations

import itertools

import pytest

from spark_segments.errors import StorageError, UnknownOutcomeError
from spark_segments.storage.numbered_swap import (
    NoEntry,
    NumberedSwap,
    Reply,
    RequestOutcome,
    SentEntry,
    SwapLimits,
)

NO_PAUSE = SwapLimits(tries=3, looks=2, first_pause_seconds=0, longest_pause_seconds=0)


class Refused(Exception):
    """Every try came second, or was refused."""


class PlayedSwap(NumberedSwap[int, str, int]):
    """Adds "own" to a log in memory: entry 1 is at index 0. Each request and each look is played by a word."""

    def __init__(self, requests: list[str], looks: list[str]) -> None:
        super().__init__(NO_PAUSE)
        self.log: list[str] = []
        self.late: list[int] = []
        self.requests = requests
        self.looks = looks

    def number_of(self, state: int) -> int:
        return state

    def newest(self, state: int) -> int:
        happening = self.looks.pop(0) if self.looks else ""
        if happening == "lands before":
            self.land()
        number = len(self.log)
        if happening == "lands after":
            self.land()
        if happening == "fails":
            raise StorageError("The look failed")
        return number

    def land(self) -> None:
        """The store carries out what it has kept. A number that is taken is refused."""
        for number in self.late:
            if number == len(self.log) + 1:
                self.log.append("own")
        self.late.clear()

    def plan(self, state: int) -> str | NoEntry[int]:
        return "own"

    def send(self, state: int, entry: str) -> Reply[int]:
        number = state + 1
        happening = self.requests.pop(0)
        self.sent.append(SentEntry(number, state, entry))
        if happening == "refused":
            return Reply(RequestOutcome.NOT_SENT, failure=OSError("the disk is full"))
        if happening == "late":
            self.late.append(number)
            raise OSError("timed out")
        if happening == "overtaken":
            self.log.append("other's")
        if number <= len(self.log):
            raise FileExistsError(number)
        self.log.append(entry)
        if happening == "reply lost":
            raise OSError("the reply was lost")
        return Reply(RequestOutcome.MADE, number)

    def find(self, state: int) -> int | None:
        return self.log.index("own") + 1 if "own" in self.log else None

    def give_up(self, tries: int, failures: int, failure: Exception | None) -> int:
        error: Exception = UnknownOutcomeError("It may happen yet") if self.may_happen(len(self.log)) else Refused()
        raise error

    def settle(self, error: Exception) -> int:
        if self.may_happen(len(self.log)) or "own" in self.log:
            raise UnknownOutcomeError("It may have happened")
        raise error


REQUESTS = ("made", "late", "refused", "overtaken", "reply lost")
LOOKS = ("", "lands before", "lands after", "fails")


@pytest.mark.parametrize("looks", list(itertools.product(LOOKS, repeat=3)), ids=", ".join)
def test_an_entry_is_made_once_and_an_error_says_what_is_sure(looks):
    for requests in itertools.product(REQUESTS, repeat=3):
        swap = PlayedSwap([*requests, "made", "made", "made"], list(looks))
        number = None
        try:
            number = swap.run(0, "own")
            times = 1
        except UnknownOutcomeError:
            times = 1  # the store of this play carries out all that it has kept
        except (Refused, StorageError):
            times = 0
        swap.land()
        assert swap.log.count("own") == times, requests
        assert number is None or swap.log[number - 1] == "own", requests


def test_nothing_to_do_is_believed_once_no_request_can_happen():
    plans = iter(["own", NoEntry(0)])
    swap = PlayedSwap(["late"], ["", "lands before"])
    swap.plan = lambda state: next(plans, NoEntry(0))
    assert swap.run(0, swap.plan(0)) == 1 and swap.log == ["own"]
    swap = PlayedSwap(["overtaken"], [])
    swap.plan = lambda state: NoEntry(state)
    assert swap.run(0, "own") == 1 and swap.log == ["other's"]
