"""Faces that import a name when it is used. The imports under TYPE_CHECKING are their one list of names, for readers,
type checkers and Python.
"""

from __future__ import annotations

import ast
import sys
from functools import cache
from importlib import import_module
from typing import Any


def imported_name(face: str, name: str) -> Any:
    """What a face imports as `name` under TYPE_CHECKING. Raises AttributeError where it imports no such name."""
    home = names_of(face).get(name)
    if home is None:
        raise AttributeError(f"module {face!r} has no attribute {name!r}")
    if home == face:  # a module beside the face
        return import_module(f"{face}.{name}")
    module = import_module(home)
    return getattr(module, name) if hasattr(module, name) else import_module(f"{home}.{name}")


@cache
def names_of(face: str) -> dict[str, str]:
    """{name: the module that it is imported from}"""
    spec: Any = sys.modules[face].__spec__
    homes = {}
    for statement in ast.parse(spec.loader.get_source(face)).body:
        if not (isinstance(statement, ast.If) and ast.unparse(statement.test) == "TYPE_CHECKING"):
            continue
        for node in statement.body:
            if isinstance(node, ast.ImportFrom) and node.module is not None:
                homes.update(dict.fromkeys((alias.name for alias in node.names), node.module))
    return homes
