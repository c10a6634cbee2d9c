"""Compiles the kernels when a wheel is built, and in place for a checkout: python hatch_build.py (make kernels).

The compiler is $CC, else the system's, else that of the package ziglang. With SEGMENTS_TARGET (such as
aarch64-linux-musl) ziglang compiles for another platform.
"""

from __future__ import annotations

import ast
import importlib.metadata
import json
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
        if self.target_name != "wheel":  # an sdist has the sources alone
            return
        if version == "editable":
            build(ROOT)
        else:
            target = os.environ.get("SEGMENTS_TARGET", "")
            folder = BUILD / (target or ("zig" if not system_compiler() else "system"))
            for library in build(folder):
                build_data["force_include"][str(library)] = str(library.relative_to(folder))
            build_data["tag"] = f"cp311-abi3-{wheel_platform()}"
            build_data["sbom_files"].append(str(_bill_of_materials(self.metadata.version).relative_to(ROOT)))
        build_data["pure_python"] = False


def _bill_of_materials(version: str) -> Path:
    """The wheel's CycloneDX file: what lies in the wheel. What it needs beside it is its metadata's to say."""

    def part(name: str, version: str) -> dict[str, Any]:
        purl, licenses = f"pkg:pypi/{name}@{version}", [{"license": {"id": "Apache-2.0"}}]
        named = {"type": "library", "bom-ref": purl, "name": name, "version": version}
        return named | {"licenses": licenses, "purl": purl}

    # Cython writes code of its own into each extension.
    wheel, runtime = part("spark-segments", version), part("cython", importlib.metadata.version("cython"))
    bill = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": wheel},
        "components": [runtime],
        "dependencies": [{"ref": wheel["bom-ref"], "dependsOn": [runtime["bom-ref"]]}],
    }
    path = BUILD / "spark-segments.cdx.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(bill, indent=2) + "\n")
    return path


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
        for path in set().union(*(used[source] for source in stale)) - {Path(__file__)}:
            if path.suffix == ".py" and not path.with_suffix(".pxd").exists():
                _declare(path, path in sources)
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(lambda source: _compile(source, libraries[source]), stale))
    return list(libraries.values())


def _declare(path: Path, is_kernel: bool) -> None:
    """Writes the .pxd of a module: what a kernel takes from others and gives them, of any other module its numbers."""
    declared = BUILD / "include" / path.relative_to(ROOT).with_suffix(".pxd")
    declared.parent.mkdir(parents=True, exist_ok=True)
    for parent in declared.parents:
        if parent == BUILD / "include":
            break
        (parent / "__init__.pxd").touch()
    text = "".join(f"{line}\n" for line in (_kernel_lines(path) if is_kernel else _number_lines(path)))
    if not declared.exists() or declared.read_text() != text:
        declared.write_text(text)


def _number_lines(path: Path) -> list[str]:
    prefix = "_".join(path.relative_to(ROOT).with_suffix("").parts)
    numbers = _numbers(path)
    defined = [f"    #define {prefix}_{name} ({value}LL)" for name, value in numbers.items()]
    names = [f'    const long long {name} "{prefix}_{name}"' for name in numbers]
    return ["cdef extern from *:", '    """', *defined, '    """', *names]


def _numbers(path: Path) -> dict[str, int]:
    """The whole numbers of a module's name = value lines."""
    numbers: dict[str, Any] = {}
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Assign):
            try:
                exec(compile(ast.Module([node], []), str(path), "exec"), {"__builtins__": {"range": range}}, numbers)
            except (NameError, AttributeError):
                continue
    return {name: value for name, value in numbers.items() if type(value) is int and -(2**63) < value < 2**63}


def _kernel_lines(path: Path) -> list[str]:
    """cimports of the names that the module uses of those it imports whole, its structs, its public C functions."""
    tree = ast.parse(path.read_text())
    own, used = _defined(tree), {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    given: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.names[0].name == "*":
            source = ROOT.joinpath(*node.module.split(".")).with_suffix(".py")
            is_code = source.parent.name == "kernels" or "kernels" in source.stem
            names = _defined(ast.parse(source.read_text())) if is_code else _numbers(source)
            for name in used & (set(names) - own):
                if name in given and name != "i64":
                    raise SystemExit(f"{path}: {given[name]} and {node.module} both have {name}")
                given[name] = node.module
    lines = [f"from {module} cimport {name}" for name, module in sorted(given.items())]
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name[0] != "_"]
    signatures = [_signature(node) for node in functions if "cython.cfunc" in map(ast.unparse, node.decorator_list)]
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            name = ast.unparse(node.targets[0])
            if any(name in one.replace("(", " ").split() for one in signatures):
                lines.append(f"ctypedef struct {name}:")
                lines += [f"    {_c_type(field.value)} {field.arg}" for field in node.value.keywords]
    return lines + signatures


def _defined(tree: ast.Module) -> set[str]:
    """The public names that a module's own lines give it."""
    names = {node.name for node in tree.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    for node in tree.body:
        if isinstance(node, ast.Assign):
            names |= {one.id for target in node.targets for one in ast.walk(target) if isinstance(one, ast.Name)}
    return {name for name in names if name[0] != "_"}


def _signature(function: ast.FunctionDef) -> str:
    arguments = ", ".join(f"{_c_type(one.annotation)} {one.arg}" for one in function.args.args)
    return f"cdef {_c_type(function.returns)} {function.name}({arguments}) nogil"


def _c_type(node: ast.expr | None) -> str:
    """Of an annotation such as cython.ulonglong or i64."""
    name = ast.unparse(node).removeprefix("cython.") if node else "object"
    return {"longlong": "long long", "ulonglong": "unsigned long long"}.get(name, name)


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
