"""Compiles the kernels when a wheel is built, and in place for a checkout: python hatch_build.py (make kernels).

The compiler is $CC, else the system's, else that of the package ziglang. With SEGMENTS_TARGET (such as
aarch64-linux-musl) ziglang compiles for another platform.
"""

from __future__ import annotations

import ast
import os
import platform
import runpy
import shlex
import shutil
import subprocess
import sys
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROOT = Path(__file__).parent
BUILD = ROOT / "build" / "kernels"
_built = runpy.run_path(str(ROOT / "spark_segments" / "format" / "built.py"))
SUFFIX, kernel_sources, inputs, is_stale = (_built[name] for name in ("SUFFIX", "kernel_sources", "inputs", "is_stale"))

CYTHON = "cython>=3.3,<3.4"
ZIG = "ziglang>=0.17,<0.18"
# The oldest C library that ziglang's wheels ask for, as the tags of Python's packages say it.
GLIBC, MUSL = (2, 17), (1, 2)
LIMITED_API = "0x030B0000"  # Python 3.11
# Functions that only kernels call raise nothing.
DIRECTIVES = {
    "boundscheck": False, "wraparound": False, "initializedcheck": False, "nonecheck": False, "binding": False,
    "cdivision": True, "legacy_implicit_noexcept": True,
}  # fmt: skip
FLAGS = ["-O3", "-fwrapv", "-fno-strict-aliasing", "-fPIC", "-shared", "-DNDEBUG", "-Wno-unused-function"]


class CustomBuildHook(BuildHookInterface):
    """Compiles the kernels into each wheel. An editable install gets them in place."""

    def dependencies(self) -> list[str]:
        return [CYTHON] if system_compiler() else [CYTHON, ZIG]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            build(ROOT)
        else:
            target = os.environ.get("SEGMENTS_TARGET", "")
            folder = BUILD / (target or ("zig" if not system_compiler() else "system"))
            for library in build(folder):
                build_data["force_include"][str(library)] = str(library.relative_to(folder))
            build_data["tag"] = f"cp311-abi3-{wheel_platform()}"
        build_data["pure_python"] = False


def system_compiler() -> list[str]:
    """The command of the system's C compiler; empty where there is none, or another platform is asked for."""
    if os.environ.get("SEGMENTS_TARGET"):
        return []
    if "CC" in os.environ:
        return shlex.split(os.environ["CC"])
    return [name for name in ("cc", "gcc", "clang") if shutil.which(name)][:1]


def zig_target() -> tuple[str, str]:
    """(machine, C library: gnu or musl) that ziglang compiles for: what is asked for, else this machine's."""
    asked = os.environ.get("SEGMENTS_TARGET")
    if asked:
        machine, _, library = asked.split("-")
        return machine, library
    is_musl = "musl" in (sysconfig.get_config_var("HOST_GNU_TYPE") or "")
    return platform.machine(), "musl" if is_musl else "gnu"


def compiler() -> list[str]:
    """The command that makes a library."""
    command = system_compiler()
    if sys.platform == "darwin":
        return [*(command or ["cc"]), *FLAGS, "-arch", platform.machine(), "-undefined", "dynamic_lookup"]
    if command:
        return [*command, *FLAGS, "-s"]
    machine, library = zig_target()
    version = ".".join(map(str, GLIBC)) if library == "gnu" else ""
    target = f"{machine}-linux-{library}{'.' if version else ''}{version}"
    return [sys.executable, "-m", "ziglang", "cc", "-target", target, *FLAGS, "-s"]


def wheel_platform() -> str:
    """The platform in the wheel's tag: this machine's; with ziglang, any with so old a C library."""
    if sys.platform == "darwin":
        _, release, machine = sysconfig.get_platform().split("-")
        release = os.environ.get("MACOSX_DEPLOYMENT_TARGET", release)
        return f"macosx_{release.replace('.', '_')}_{platform.machine() if machine == 'universal2' else machine}"
    if system_compiler():
        return sysconfig.get_platform().replace("-", "_").replace(".", "_")
    machine, library = zig_target()
    kind, (major, minor) = ("manylinux", GLIBC) if library == "gnu" else ("musllinux", MUSL)
    return f"{kind}_{major}_{minor}_{machine}"


def build(folder: Path) -> list[Path]:
    """Makes the libraries that are missing in the folder or older than their sources. All libraries."""
    sources = kernel_sources()
    used = {source: inputs(source) | {Path(__file__)} for source in sources}
    libraries = {source: folder / source.relative_to(ROOT).with_suffix(SUFFIX) for source in sources}
    stale = [source for source in sources if is_stale(libraries[source], used[source])]
    if stale:
        for path in set().union(*(used[source] for source in stale)) - set(sources):
            if path.suffix == ".py" and path.is_relative_to(ROOT / "spark_segments"):
                _declare_constants(path)
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(lambda source: _compile(source, libraries[source]), stale))
    return list(libraries.values())


def _declare_constants(path: Path) -> None:
    """Writes the .pxd of a module whose whole numbers kernels use: its name = value lines, as constants of C."""
    numbers: dict[str, Any] = {}
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Assign):
            try:
                exec(compile(ast.Module([node], []), str(path), "exec"), {"__builtins__": {"range": range}}, numbers)
            except (NameError, AttributeError):
                continue
    numbers = {name: value for name, value in numbers.items() if type(value) is int and -(2**63) < value < 2**63}
    declared = BUILD / "include" / path.relative_to(ROOT).with_suffix(".pxd")
    declared.parent.mkdir(parents=True, exist_ok=True)
    for parent in declared.parents:
        if parent == BUILD / "include":
            break
        (parent / "__init__.pxd").touch()
    prefix = "_".join(path.relative_to(ROOT).with_suffix("").parts)
    lines = ["cdef extern from *:", '    """']
    lines += [f"    #define {prefix}_{name} ({value}LL)" for name, value in numbers.items()]
    lines += ['    """']
    lines += [f'    const long long {name} "{prefix}_{name}"' for name in numbers]
    declared.write_text("\n".join(lines) + "\n")


def _compile(source: Path, library: Path) -> None:
    c_file = BUILD / "c" / source.relative_to(ROOT).with_suffix(".c")
    for path in (c_file, library):
        path.parent.mkdir(parents=True, exist_ok=True)
    if is_stale(c_file, inputs(source) | {Path(__file__)}):
        directives = [part for name, value in DIRECTIVES.items() for part in ("-X", f"{name}={value}")]
        paths = ["-I", str(ROOT), "-I", str(BUILD / "include")]
        _run("cython", [sys.executable, "-m", "cython", "-3", *directives, *paths, str(source), "-o", str(c_file)])
    headers = [ROOT / "spark_segments" / "format" / "kernels", source.parent, sysconfig.get_path("include")]
    limited = ["-DCYTHON_LIMITED_API=1", f"-DPy_LIMITED_API={LIMITED_API}"]
    fresh = library.with_name(f"{library.name}.{os.getpid()}")
    _run("compiler", [*compiler(), *limited, *(f"-I{folder}" for folder in headers), str(c_file), "-o", str(fresh)])
    fresh.replace(library)  # a process that has the old library open keeps it


def _run(what: str, command: list[str]) -> None:
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        raise SystemExit(f"The {what} failed: {shlex.join(command)}\n{done.stdout[:4000]}")


if __name__ == "__main__":
    build(ROOT)
