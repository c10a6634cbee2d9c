"""Which of several files give each offset of a log its records: a shortest path over the offsets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

Owner = TypeVar("Owner")

_Cost = tuple[int, int, int, int, int]
"""Offsets without a file; offsets that no known row gives; offsets that a file passes over; files without offsets of
the log; files that are cut."""


@dataclass(frozen=True, slots=True)
class Piece(Generic[Owner]):
    """Offsets [start, end) that a file can give, or from any offset within on: a row may begin inside its file.

    `is_known`: a known row says so. `passed_over`: how many of the offsets have no record, as cleaning leaves them.
    `is_inferred`: the file's bytes have other offsets.
    """

    start: int
    end: int
    owner: Owner
    is_known: bool
    passed_over: int = 0
    is_inferred: bool = False


def cover(pieces: Sequence[Piece[Owner]], start: int) -> list[tuple[Piece[Owner], int]]:
    """The pieces that cover the offsets from `start` on best, in order: [(piece, the offset from which it is used)].

    Each goes on to its end. As few offsets as possible stay without a piece; then known rows go before other files,
    files that were not cleaned before those that were, files with these offsets before others, and whole files before
    parts.
    """
    waiting = sorted((one for one in pieces if one.end > start), key=lambda one: one.start, reverse=True)
    nodes = sorted({start, *(max(one.start, start) for one in waiting), *(one.end for one in waiting)})
    best: dict[int, tuple[_Cost, int, Piece[Owner] | None]] = {start: ((0, 0, 0, 0, 0), start, None)}

    def offer(node: int, cost: _Cost, before: int, piece: Piece[Owner] | None) -> None:
        if node not in best or cost < best[node][0]:
            best[node] = cost, before, piece

    active: list[Piece[Owner]] = []
    for number, node in enumerate(nodes):
        bare, foreign, passed_over, inferred, cut = best[node][0]
        while waiting and waiting[-1].start <= node:
            active.append(waiting.pop())
        active = [one for one in active if one.end > node]
        if number + 1 < len(nodes):
            following = nodes[number + 1]
            offer(following, (bare + following - node, foreign, passed_over, inferred, cut), node, None)
        for one in active:
            taken = 0 if one.is_known else one.end - node
            shares = passed_over + one.passed_over, inferred + one.is_inferred, cut + (one.start < node)
            offer(one.end, (bare, foreign + taken, *shares), node, one)
    path = []
    at = nodes[-1]
    while at > start:
        _, before, piece = best[at]
        if piece is not None:
            path.append((piece, before))
        at = before
    return path[::-1]
