"""The wheel by itself, in an environment of its own, outside the checkout."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from spark_segments import LogDir
from tests.conftest import ROOT

pytestmark = [pytest.mark.network, pytest.mark.slow]


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment with the wheel and what it needs, and nothing else: no pyspark."""
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run([sys.executable, "-m", "build", "--wheel", "-o", folder, ROOT], check=True, capture_output=True)
    [wheel] = folder.glob("*.whl")
    venv.create(folder / "environment", with_pip=True)
    python = folder / "environment" / "bin" / "python"
    _run(python, "-m", "pip", "install", "-q", str(wheel))
    return python


def _run(python: Path, *arguments: str, code: int = 0) -> str:
    """What a process of the environment prints, standard error included."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "SPARK"))}
    done = subprocess.run(
        [python, *arguments], cwd=python.parent, env=environment, text=True, stdout=-1, stderr=subprocess.STDOUT
    )
    assert done.returncode == code, done.stdout[-3000:]
    return done.stdout


def test_a_log_directory_works_without_pyspark(python: Path, tmp_path: Path) -> None:
    program = f"""
import sys
import pyarrow as pa
from spark_segments import LogDir, ProducerOptions, errors
from spark_segments.maintenance import compact, explain, restore, retain, roll, vacuum, verify

log = LogDir.create({str(tmp_path / "log")!r})
log.create_topic("orders", partitions=2)
log.append("orders", pa.table({{"key": [b"a", b"b"], "value": [b"1", b"2"]}}), options=ProducerOptions("lz4"))
roll(log)
assert sum(batch.num_rows for batch in log.read("orders")) == 2 and verify(log, deep=True).ok
assert "pyspark" not in sys.modules
print("done")
"""
    assert _run(python, "-c", program) == "done\n"


def test_spark_without_its_extra_is_refused_with_the_command_that_helps(python: Path, log: LogDir) -> None:
    printed = _run(python, "-c", "from spark_segments import spark_session", code=1)
    assert printed.splitlines()[-1].endswith("pip install 'spark-segments[spark]'")

    printed = _run(python, "-m", "spark_segments", "roll", log.uri, "--master", "local", code=1)
    assert printed.splitlines()[-1].endswith("pip install 'spark-segments[spark]'")


def test_jobs_configuration_and_dag_are_in_the_wheel(python: Path) -> None:
    for item in ("append", "roll", "retain", "compact", "vacuum", "maintain"):
        script = _run(python, "-m", "spark_segments", "job-path", item).strip()
        assert f"segments {item}" in _run(python, script, "--help")
    conf = Path(_run(python, "-m", "spark_segments", "job-path", "conf").strip())
    assert (conf / "spark-defaults.conf").is_file() and (conf / "segments.properties").is_file()
    dags = Path(_run(python, "-m", "spark_segments", "job-path", "airflow").strip())
    assert (dags / "spark_segments_upkeep.py").is_file()
