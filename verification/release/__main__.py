"""python -m verification.release [STEP ...]: all that a release needs on one machine, step by step, each to its end.

A step passes, fails, or cannot be done here, with the reason: a program or a Python that this machine does not have.
The last lines name the steps that were not run, and what no single machine can do. Exit code 1: a step failed. `--list`
names the steps.
"""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import spark_segments
from verification.release.installed import PYTHONS, ROOT, runs

DIST = ROOT / "dist"
ELSEWHERE = {
    "wheels for macOS": "need a Mac: pip builds one there from the sdist",
    "wheels for musl, run": "need a machine with musl: verification.release.wheels looks at their headers alone",
    "trusted publishing, attestations": "are GitHub's: .github/workflows/release.yml, after the tag is pushed",
    "the channel of conda": "builds the recipe that is rendered here, once the sdist is published",
}
"""{what a release needs, too: why no run of this can show it}."""


class CannotBeDone(Exception):
    """A step needs what this machine does not have. Its text says what."""


def sh(*command: str | Path) -> None:
    """Runs a command in the checkout. RuntimeError with the end of what it printed where it fails."""
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(map(str, command))}: exit code {done.returncode}\n{done.stdout[-3000:]}")


def make(target: str) -> Callable[[], None]:
    """The step that makes a target of the Makefile."""
    return lambda: sh("make", f"PYTHON={sys.executable}", target)


def tool(name: str) -> str:
    """A program beside this Python or on the PATH."""
    path = shutil.which(name, path=Path(sys.executable).parent) or shutil.which(name)
    if path is None:
        raise CannotBeDone(f"{name} is not installed: pip install -e '.[release]'")
    return path


def versions() -> None:
    """The package, the changelog and the recipe have one version, which has no tag; nothing waits for a commit."""
    version = spark_segments.__version__
    changelog, recipe = (ROOT / name for name in ("CHANGELOG.md", "conda/recipe.yaml"))
    headings = re.findall(r"^## (.+)$", changelog.read_text(), re.MULTILINE)
    assert headings[:2] == ["Unreleased", version], f"CHANGELOG.md begins with {headings[:2]}, not {version}"
    assert f'version: "{version}"' in recipe.read_text(), f"conda/recipe.yaml is not of {version}"
    unreleased = changelog.read_text().partition("## Unreleased\n")[2].partition("\n## ")[0].strip()
    assert not unreleased, f"CHANGELOG.md has unreleased changes: {unreleased[:200]}"
    if not (ROOT / ".git").exists():
        raise CannotBeDone("this is no checkout of git: nobody knows which tags there are")
    tags = subprocess.run(["git", "tag"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    assert f"v{version}" not in tags, f"v{version} is tagged already"
    changed = subprocess.run(["git", "status", "--porcelain"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert not changed.stdout, f"these are not committed:\n{changed.stdout}"


def generated() -> None:
    """What docs/generate.py writes is what the repository has."""
    sh(sys.executable, "docs/generate.py", "--check")


def lock() -> None:
    """uv.lock has what pyproject.toml asks for."""
    sh(tool("uv"), "lock", "--check", "--no-config", "--python", sys.executable)


def workflows() -> None:
    """zizmor finds nothing in the workflows, by its strictest rules."""
    sh(tool("zizmor"), "--offline", "--persona", "pedantic", ".github")


def recipe() -> None:
    """The recipe of conda renders, and asks for what the package asks for."""
    if importlib.util.find_spec("rattler_build") is None:
        raise CannotBeDone("py-rattler-build is not installed: pip install -e '.[release]'")
    from rattler_build import Stage0Recipe, VariantConfig

    [rendered] = Stage0Recipe.from_file(ROOT / "conda" / "recipe.yaml").render(VariantConfig())
    needs = rendered.recipe.to_dict()["requirements"]["run"]
    named = {re.sub(r"^python-(?=zlib)", "", need.partition(" ")[0]): need.partition(" ")[2] for need in needs}
    asked = asked_for("dependencies") | asked_for("cli")
    missing = {name: bounds for name, bounds in asked.items() if named.get(name) != bounds}
    assert not missing, f"the recipe asks for {named}, the package for {missing}"


def asked_for(group: str) -> dict[str, str]:
    """{library: its bounds} of the package, or of an extra."""
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    listed = project["dependencies"] if group == "dependencies" else project["optional-dependencies"][group]
    return {name: bounds for name, bounds in (re.match(r"([\w-]+)(.*)", text).groups() for text in listed)}  # type: ignore[union-attr]


def wheels() -> None:
    """The wheels of Linux and the sdist, in dist/, with nothing of an older version beside them."""
    shutil.rmtree(DIST, ignore_errors=True)
    make("wheels")()
    sh(sys.executable, "-m", "build", "--sdist")
    names = sorted(path.name for path in DIST.iterdir())
    assert len(names) == 5 and all(f"spark_segments-{spark_segments.__version__}" in name for name in names), names


def examined() -> None:
    """Each wheel is of the machine and the C library that its name says, and runs here and under QEMU."""
    if not DIST.exists():
        raise CannotBeDone("there is no dist/: the step wheels makes it")
    if shutil.which("apt-get") is None:
        raise CannotBeDone("needs Debian, for QEMU and a Python of arm64")
    sh(sys.executable, "-m", "verification.release.wheels", DIST)


def installed() -> None:
    """The wheel in an environment of each Python that is here, with README's first example."""
    here = [name for name in PYTHONS if runs(name)]
    sh(sys.executable, "-m", "verification.release.installed", *here)
    if absent := [name for name in PYTHONS if name not in here]:
        raise CannotBeDone(f"done with {', '.join(here)}; not on this machine: {', '.join(absent)}")


STEPS: dict[str, Callable[[], None]] = {
    "versions": versions,
    "lint": make("lint"),
    "types": make("types"),
    "generated": generated,
    "docs": make("docs"),
    "workflows": workflows,
    "recipe": recipe,
    "lock": lock,
    "wheels": wheels,
    "examined": examined,
    "installed": installed,
    "test": make("test"),
    "proof": make("proof"),
}


def main(asked: list[str]) -> int:
    """Runs the steps, and prints a line of each. The exit code."""
    if asked == ["--list"]:
        for name, step in STEPS.items():
            print(f"{name}: {step.__doc__ or f'make {name}'}")
        return 0
    failed, left = [], {name: "not asked for" for name in STEPS if asked and name not in asked} | ELSEWHERE
    for name in asked or STEPS:
        begun = time.monotonic()
        try:
            STEPS[name]()
            said = "passed"
        except CannotBeDone as error:
            left[name] = str(error)
            said = f"could not: {error}"
        except (AssertionError, RuntimeError) as error:
            failed.append(name)
            said = f"FAILED: {error}"
        print(f"{name}: {said} ({time.monotonic() - begun:.0f} s)", flush=True)
    print(f"\n{spark_segments.__version__}: {', '.join(failed) or 'no step'} failed. Not done:")
    for name, why in left.items():
        print(f"* {name}: {why}")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
