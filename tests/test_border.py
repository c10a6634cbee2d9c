"""The border of the core, counted: the names of `spark_segments.log`, and the members of them that are used outside.

A member counts as used where any attribute outside of the core has its name, so the count is an upper bound. The lists
are here, so that a new name or member is a decision: say in which group it is needed, and take another one out.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from spark_segments.lazy_names import names_of
from tests.border_members import MEMBERS, MOST_MEMBERS, MOST_NAMES
from tests.test_rooms import modules

HOMES = {name: home.removeprefix("spark_segments.log.") for name, home in names_of("spark_segments.log").items()}
"""{name of the border: its module below `spark_segments.log`}"""

CORE = ("errors", "extensions", "format", "storage", "config", "log", "maintenance", "spark")


def _tree(home: str) -> ast.Module:
    return modules()[f"log.{home}"]


def _public(name: str) -> bool:
    return not name.startswith("_")


def _of_class(kind: ast.ClassDef) -> Iterator[str]:
    """The names of a class's methods, fields and constants, and of what its methods assign to `self`."""
    for node in kind.body:
        if isinstance(node, ast.FunctionDef):
            yield node.name
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id
        elif isinstance(node, ast.Assign):
            yield from (target.id for target in node.targets if isinstance(target, ast.Name))
    stored = (node for node in ast.walk(kind) if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store))
    yield from (node.attr for node in stored if isinstance(node.value, ast.Name) and node.value.id == "self")


def _members(name: str, home: str) -> set[str]:
    """The public members of a name of the border: of a class its own, of a module its functions."""
    if f"log.{home}.{name}" in modules():
        tree = _tree(f"{home}.{name}")
        return {node.name for node in tree.body if isinstance(node, ast.FunctionDef) and _public(node.name)}
    members: set[str] = set()
    for node in _tree(home).body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            members |= set(filter(_public, _of_class(node)))
    return members


def _used_outside() -> set[str]:
    """The names of all attributes outside of the core. The room `difference`, which is one file, is outside."""
    outside = (tree for name, tree in modules().items() if name and name.partition(".")[0] not in CORE)
    return {node.attr for tree in outside for node in ast.walk(tree) if isinstance(node, ast.Attribute)}


def test_the_border_has_no_more_names_than_a_reader_can_learn():
    assert len(HOMES) <= MOST_NAMES


def test_each_member_of_the_border_that_is_used_outside_is_a_decision():
    members = set().union(*(_members(name, home) for name, home in HOMES.items()))
    used = members & _used_outside()
    listed = [member for _, _, names in MEMBERS for member in names.split()]
    assert len(listed) == len(set(listed)), "a member is listed once"
    assert used == set(listed), f"new: {sorted(used - set(listed))}; gone: {sorted(set(listed) - used)}"
    assert len(listed) <= MOST_MEMBERS


def test_no_room_outside_imports_an_inner_name_even_for_types():
    for name, tree in modules().items():
        if name.partition(".")[0] in CORE:
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module:
                assert not node.module.startswith("spark_segments.log."), f"{name}, line {node.lineno}: {node.module}"
