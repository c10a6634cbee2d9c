"""Where the kernels' sources and libraries lie, and whether a library is older than what it is made of.

A kernel module is a .py in Cython's words whose name or folder is "kernels", and becomes <name>.abi3.so, which Python
then imports in its place. What it takes from others it imports below `if not cython.compiled:`; the build declares the
same to Cython. The build hook runs this file by itself, before anything of this package can be imported.
"""

from __future__ import annotations

import os
import re
from functools import cache
from pathlib import Path

SUFFIX = ".abi3.so"
PACKAGE = Path(__file__).parents[1]
_USED = re.compile(
    r'^ +from (spark_segments\S*) import|^from (spark_segments\S*) cimport|"(\w+\.h)" nogil', re.MULTILINE
)


def kernel_sources() -> list[Path]:
    """The .py of every kernel module."""
    named = (*PACKAGE.rglob("*kernels.py"), *PACKAGE.rglob("kernels/*.py"))
    return sorted(path for path in set(named) if "\nimport cython\n" in path.read_text(encoding="utf-8"))


def inputs(source: Path) -> set[Path]:
    """All source files of a kernel module: its own, the files that it names, and the files that these name."""
    sources: set[Path] = set()
    waiting = [source]
    while waiting:
        path = waiting.pop()
        if path not in sources:
            sources.add(path)
            waiting += _named(path)
    return sources


@cache
def _named(path: Path) -> list[Path]:
    """The files that a kernel, or what one is made of, names."""
    named = [path.with_suffix(".pxd")] if path.with_suffix(".pxd").exists() else []
    for imported, declared, header in _USED.findall(path.read_text(encoding="utf-8")):
        module = (imported or declared).split(".")
        named.append(path.parent / header if header else PACKAGE.parent.joinpath(*module).with_suffix(".py"))
    return named


def is_stale(library: Path, files: set[Path]) -> bool:
    """Whether the library is missing, or older than one of the files."""
    try:
        library_ns = library.stat().st_mtime_ns
    except FileNotFoundError:
        return True
    return any(file.stat().st_mtime_ns > library_ns for file in files)


def check() -> None:
    """Raises KernelsNotBuiltError where the libraries are missing, or in a checkout older than their sources."""
    if not os.path.isfile(f"{PACKAGE}/format/kernels/crc32c{SUFFIX}"):
        _refuse("The package has no compiled kernels", "libraries beside its modules", f"none in {PACKAGE}")
    elif os.path.isfile(f"{PACKAGE.parent}/hatch_build.py") and not _all_are_newer():
        for source in kernel_sources():
            library = source.with_suffix(SUFFIX)
            if is_stale(library, inputs(source)):
                state = "older than its source" if library.exists() else "missing"
                _refuse("A compiled kernel does not fit its source", "a newer library", f"{library} is {state}")


def _all_are_newer() -> bool:
    """Whether every library is newer than every source of the package: then none needs a look at what it is made of."""
    library_times: list[int] = []
    source_times: list[int] = []
    missing = False
    for directory, _, names in os.walk(PACKAGE):
        for name in names:
            if name.endswith((".py", ".pxd", ".h", SUFFIX)):
                (library_times if name.endswith(SUFFIX) else source_times).append(
                    os.stat(f"{directory}/{name}").st_mtime_ns
                )
            missing |= name.endswith("kernels.py") and name.replace(".py", SUFFIX) not in names
    return not missing and min(library_times) > max(source_times)


def _refuse(message: str, expected: str, found: str) -> None:
    from spark_segments.errors import KernelsNotBuiltError

    hint = "In a checkout: make kernels. In Spark: ship the wheel in the workers' environment (--archives), not a zip"
    raise KernelsNotBuiltError(message, expected=expected, found=found, hint=hint)
