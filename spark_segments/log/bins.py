"""Cutting a sequence into bins of neighbours: tasks of about the same size, waves of a commit, segments of a file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

Item = TypeVar("Item")


def in_bins(
    items: Iterable[Item], size: Callable[[Item], Any], begins: Callable[[list[Item], Any, Item], bool]
) -> Iterator[list[Item]]:
    """The items in bins, in their order. No bin is empty.

    `begins(bin, total, item)` says whether an item begins a new bin instead of joining `bin`. `total` is the sum of the
    sizes in `bin`. A size is a number, or an array of several numbers.
    """
    current: list[Item] = []
    total: Any = 0
    for item in items:
        if current and begins(current, total, item):
            yield current
            current, total = [], 0
        current.append(item)
        total = total + size(item)
    if current:
        yield current
