"""Words that are no names: CONTRIBUTING says which noun to write in their place.

A participle says what was done to a thing, and not which thing it is. The table has the rooms that still use such
names, and how often; a number may only fall. A room that is not in the table has none.
"""

from __future__ import annotations

import ast
from collections import Counter

from tests.conftest import ROOT
from tests.test_rooms import modules

NOT_NAMES = ("given", "known", "made", "said", "there", "wanted", "whole")
"""As names of variables and parameters."""

STILL_USED = {
    "format": 6,
}
"""{room: how often}. Who sweeps a room lowers its number, or takes it out at 0."""


def names_bound(tree: ast.AST) -> list[str]:
    """The variables and parameters that a module gives names to."""
    names = [node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]
    return names + [node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)]


def room_of(module: str) -> str:
    """The room that a module is in: of `log` and `maintenance` the folder, of all others the first word."""
    parts = module.split(".")
    return "/".join(parts[:2]) if parts[0] in ("log", "maintenance") and len(parts) > 2 else parts[0]


def test_no_room_uses_more_participles_as_names():
    counts: Counter[str] = Counter()
    for module, tree in modules().items():
        counts[room_of(module)] += sum(name.strip("_") in NOT_NAMES for name in names_bound(tree))
    for room, count in counts.items():
        assert count <= STILL_USED.get(room, 0), f"{room}: name the thing, not what was done to it (CONTRIBUTING)"


def test_contributing_says_what_to_write_in_place_of_each_word():
    lines = (ROOT / "CONTRIBUTING.md").read_text().splitlines()
    for word in NOT_NAMES:
        assert any(line.startswith(f"| `{word}` | ") for line in lines), word
