"""Kernels as Python runs them, without a compiler: each access to memory is checked against what was granted."""

from __future__ import annotations

import functools
import importlib
import importlib.machinery
import importlib.util
import sys
from types import ModuleType
from typing import Any

from spark_segments.format.built import PACKAGE, kernel_sources
from spark_segments.format.kernels.memory import granted as granted

_SOURCES = {".".join(source.relative_to(PACKAGE.parent).with_suffix("").parts): source for source in kernel_sources()}


class _Sources:
    """Finds the .py of a kernel module in place of its library."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        source = _SOURCES.get(name)
        return importlib.util.spec_from_file_location(name, source) if source else None


@functools.cache
def uncompiled(name: str) -> ModuleType:
    """The kernel module spark_segments.`name` from its source; the kernels that it uses are uncompiled too."""
    name = f"spark_segments.{name}"
    compiled = {one: importlib.import_module(one) for one in _SOURCES}
    for one in _SOURCES:
        del sys.modules[one]
    sys.meta_path.insert(0, _Sources)
    try:
        return importlib.import_module(name)
    finally:
        sys.meta_path.remove(_Sources)
        for one, module in compiled.items():
            sys.modules[one] = module
            parent, _, own = one.rpartition(".")
            setattr(sys.modules[parent], own, module)
