"""The cleaner over every small log: no state of a few records is left to chance, as it is in test_clean_model.py.

A log has up to four records of three keys, values or tombstones, without a producer or in transactions of two, which
are committed or aborted. It is cleaned by a map with room for all keys or for one, with producers that are active or
not; then again just before and at the delete horizon of its tombstones, and at that of its markers.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from tests.format.test_clean_model import RETENTION_MS, check_rounds
from verification.world.kafka_bytes.twin_encode import ABORT, COMMIT, Record

KEYS = (b"a", b"b", b"c")
PRODUCERS = (7, 8)


def in_order_of_names(length: int, names: int) -> Iterator[tuple[int, ...]]:
    """All sequences of names but for renaming: a name comes first after all lower ones."""
    for numbers in itertools.product(range(names), repeat=length):
        if all(number <= max(numbers[:at], default=-1) + 1 for at, number in enumerate(numbers)):
            yield numbers


def logs(length: int) -> Iterator[list[tuple]]:
    """The steps of every log of so many records, each a batch, but for renamed keys and producers."""
    for keys, values, producers in itertools.product(
        in_order_of_names(length, len(KEYS)),
        itertools.product((b"v", None), repeat=length),
        in_order_of_names(length + 1, 1 + len(PRODUCERS)),  # the first name, of no record, is no producer
    ):
        owners = [(-1, *PRODUCERS)[number] for number in producers[1:]]
        records = [
            ("data", owner, [Record(value, KEYS[key], 0)], 0, "none", False)
            for key, value, owner in zip(keys, values, owners, strict=True)
        ]
        under_way = sorted(set(owners) - {-1})
        for kinds in itertools.product((COMMIT, ABORT), repeat=len(under_way)):
            yield [*records, *(("end", owner, kind, False) for owner, kind in zip(under_way, kinds, strict=True))]


def with_first_end_early(steps: list[tuple]) -> Iterator[list[tuple]]:
    """The log, and the same with the first transaction's end at each earlier place behind its last record."""
    yield steps
    at = next((at for at, step in enumerate(steps) if step[0] == "end"), None)
    if at is None:
        return
    first = 1 + max(number for number, step in enumerate(steps[:at]) if step[1] == steps[at][1])
    rest = steps[:at] + steps[at + 1 :]
    for place in range(first, at):
        yield [*rest[:place], steps[at], *rest[place:]]


def cleanings(log: list[tuple]) -> Iterator[tuple[int, bool]]:
    """(keys that the map has room for, whether producers are active): all that make a difference to the log."""
    keys = {step[2][0].key for step in log if step[0] == "data"}
    has_producer = any(step[1] != -1 for step in log)
    yield from itertools.product((1, 3) if len(keys) > 1 else (3,), (False, True) if has_producer else (False,))


def proofs(length: int, shares: int) -> list:
    return [pytest.param(length, share, shares, marks=pytest.mark.proof) for share in range(shares)]


@pytest.mark.parametrize(("length", "share", "shares"), [(1, 0, 1), (2, 0, 1), *proofs(3, 1), *proofs(4, 12)])
def test_every_small_log_keeps_what_the_rules_say(length, share, shares):
    for log in itertools.islice(logs(length), share, None, shares):
        for steps in with_first_end_early(log):
            for max_keys, live in cleanings(log):
                rounds = [(steps, 0), ([], RETENTION_MS - 1), ([], 1), ([], RETENTION_MS - 1)]
                try:
                    check_rounds(rounds, max_keys=max_keys, batches_a_call=1000, live=live, codec=None)
                except AssertionError as error:
                    raise AssertionError(f"{rounds}, a map of {max_keys} keys, producers live: {live}") from error
