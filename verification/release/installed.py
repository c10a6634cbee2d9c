"""python -m verification.release.installed [PYTHON ...]: the wheel with its extra `spark` in an environment of each of
these Pythons, as people install it, and README's first example there, outside a checkout. Then what the package alone
takes: bytes installed, and the time of its import.

PYTHON is a command; by default python3.11 to 3.14, as far as they are there.
"""

from __future__ import annotations

import json
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
PYTHONS = ("python3.11", "python3.12", "python3.13", "python3.14")
IMPORTS = ("import spark_segments", "from spark_segments import LogDir", "import spark_segments.cli")
REPEATS = 7


def built(folder: Path) -> Path:
    """The wheel, built from this checkout."""
    subprocess.run([sys.executable, "-m", "build", "--wheel", "-o", folder, ROOT], check=True, capture_output=True)
    [wheel] = folder.glob("*.whl")
    return wheel


def check_metadata(wheel: Path) -> None:
    """Raises AssertionError where the wheel does not say what people and indexes read."""
    with zipfile.ZipFile(wheel) as archive:
        [name] = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        text = archive.read(name).decode()
        [bill] = [name for name in archive.namelist() if ".dist-info/sboms/" in name]
        parts = json.loads(archive.read(bill))
    version = re.findall(r"^Version: (.+)$", text, re.MULTILINE)[0]
    assert parts["metadata"]["component"]["purl"] == f"pkg:pypi/spark-segments@{version}", parts
    for line in ("Name: spark-segments", "License-Expression: Apache-2.0", "Requires-Python: >=3.11"):
        assert line in text, line
    assert "\nDescription-Content-Type: text/markdown" in text and 'format("segments")' in text


def environment(python: str, folder: Path, requirement: str) -> Path:
    """The Python of a new environment with the requirement."""
    subprocess.run([python, "-m", "venv", folder], check=True)
    made = folder / "bin" / "python"
    with (folder / "pip.txt").open("w") as said:
        subprocess.run([made, "-m", "pip", "install", requirement], check=True, stdout=said, stderr=subprocess.STDOUT)
    return made


def runs(name: str) -> bool:
    """Whether this Python is here: a shim of pyenv is found for versions that are not installed, too."""
    return shutil.which(name) is not None and subprocess.run([name, "-c", "pass"], capture_output=True).returncode == 0


def run(python: Path, *arguments: str) -> str:
    """What a process prints that knows no checkout."""
    variables = {"PATH": f"{python.parent}:/usr/bin:/bin", "HOME": str(python.parents[1])}
    if home := shutil.which("java"):
        variables["JAVA_HOME"] = str(Path(home).resolve().parents[1])
    done = subprocess.run([python, *arguments], env=variables, cwd=python.parents[1], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout


def example(python: Path) -> None:
    """Runs README's first example and compares the table that it prints."""
    [code, *_] = re.findall(r"^```python\n(.*?)^```$", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    script = python.parents[1] / "example.py"
    script.write_text(code.replace("/data/log", str(python.parents[1] / "log")))
    printed = [line for line in run(python, str(script)).splitlines() if line[:1] in "+|" and line]
    assert printed == re.findall(r"^# ([+|].*)$", code, re.MULTILINE), printed


def size_mb(folder: Path) -> float:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 1e6


def import_ms(python: Path, statement: str) -> float:
    """The median time of a process that imports, less that of one that does not."""

    def median(program: str) -> float:
        times = []
        for _ in range(REPEATS):
            begun = time.perf_counter()
            run(python, "-c", program)
            times.append(time.perf_counter() - begun)
        return statistics.median(times)

    return 1000 * (median(statement) - median("pass"))


def main(pythons: list[str]) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        wheel = built(folder)
        check_metadata(wheel)
        print(f"{wheel.name}: {wheel.stat().st_size / 1e6:.1f} MB", flush=True)
        for python in pythons or [name for name in PYTHONS if runs(name)]:
            begun = time.monotonic()
            example(environment(python, folder / Path(python).name, f"{wheel}[spark]"))
            print(f"{python}: README's example runs, {time.monotonic() - begun:.0f} s", flush=True)
        for extra in ("", "[cli]"):
            made = environment(sys.executable, folder / f"alone{extra}", f"{wheel}{extra}")
            own = size_mb(made.parents[1]) - sum(map(size_mb, made.parents[1].glob("lib/python*/site-packages/pip*")))
            print(f"spark-segments{extra}: {own:.0f} MB")
            for statement in IMPORTS[: None if extra else -1]:
                print(f"  {statement}: {import_ms(made, statement):.0f} ms", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
