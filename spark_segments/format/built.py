"""Where the kernels' sources and libraries lie, and whether a library is older than what it is made of.

A kernel module is a .py with a .pxd beside it, and becomes <name>.abi3.so, which Python then imports in its place. The
build hook runs this file by itself, before anything of this package can be imported.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

SUFFIX = ".abi3.so"
PACKAGE = Path(__file__).parents[1]
_USED = re.compile(r'^\s*(?:from (spark_segments\S*) cimport|cdef extern from "(\w+\.h)")', re.MULTILINE)


def kernel_sources() -> list[Path]:
    """The .py of every kernel module. A .pxd with a header of its name says what is in the header, and is no kernel."""
    declared = sorted(PACKAGE.rglob("*.pxd"))
    return [path.with_suffix(".py") for path in declared if not path.with_suffix(".h").exists()]


def inputs(source: Path) -> set[Path]:
    """All files that a kernel module is made of: its own, those that its declarations name, and theirs."""
    found: set[Path] = set()
    waiting = [source, source.with_suffix(".pxd")]
    while waiting:
        path = waiting.pop()
        if path in found:
            continue
        found.add(path)
        if path.suffix == ".pxd":
            for module, header in _USED.findall(path.read_text()):
                if header:
                    waiting.append(path.parent / header)
                else:
                    used = PACKAGE.parent.joinpath(*module.split("."))
                    declared = used.with_suffix(".pxd")
                    waiting.append(declared if declared.exists() else used.with_suffix(".py"))
    return found


def is_stale(library: Path, files: set[Path]) -> bool:
    """Whether the library is missing, or older than one of the files."""
    try:
        made = library.stat().st_mtime_ns
    except FileNotFoundError:
        return True
    return any(file.stat().st_mtime_ns > made for file in files)


def check() -> None:
    """Raises KernelsNotBuiltError where the libraries are missing, or in a checkout older than their sources."""
    if not os.path.isfile(f"{PACKAGE}/format/kernels/crc32c{SUFFIX}"):
        _refuse("The package has no compiled kernels", "libraries beside its modules", f"none in {PACKAGE}")
    elif os.path.isfile(f"{PACKAGE.parent}/hatch_build.py"):
        for source in kernel_sources():
            library = source.with_suffix(SUFFIX)
            if is_stale(library, inputs(source)):
                state = "older than its source" if library.exists() else "missing"
                _refuse("A compiled kernel does not fit its source", "a newer library", f"{library} is {state}")


def _refuse(message: str, expected: str, found: str) -> None:
    from spark_segments.errors import KernelsNotBuiltError

    hint = "In a checkout: make kernels. In Spark: ship the wheel in the workers' environment (--archives), not a zip"
    raise KernelsNotBuiltError(message, expected=expected, found=found, hint=hint)
