"""jobs/segments.py as a process of its own, without Spark. The example of a cluster (tests/test_examples.py) runs it by
spark-submit.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

import pytest

from spark_segments import LogDir
from tests.conftest import ROOT
from tests.maintenance.upkeep import all_records, assert_maintained, assert_vacuumed, busy_log
from verification.world.clock import PATIENCE_SECONDS

SCRIPT = str(ROOT / "jobs" / "segments.py")


@pytest.fixture
def busy(log) -> LogDir:
    return busy_log(log)


def run(command: list[str], **environment: str) -> list[dict]:
    """The reports that a process prints, a line each. Its Spark is this environment's, whatever the PATH has."""
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    variables["PYSPARK_PYTHON"] = sys.executable
    done = subprocess.run(
        command, env=variables | environment, capture_output=True, text=True, timeout=PATIENCE_SECONDS, cwd="/"
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def run_plainly(job: str, *arguments: str) -> list[dict]:
    return run([sys.executable, SCRIPT, job, *arguments, "--output", "json"], PYTHONPATH=str(ROOT))


def test_plain_python_runs_maintain(busy, tmp_path):
    before = all_records(busy)
    # A setting of topics and one of the jobs alone.
    defaults = tmp_path / "defaults.properties"
    defaults.write_text("log.segment.delete.delay.ms=0\nlog.cleaner.threads=2\n")
    assert_maintained(busy, run_plainly("maintain", busy.uri, "--defaults", str(defaults)), before)
    assert_vacuumed(busy)


@pytest.mark.proof
@pytest.mark.parametrize("job", ["roll", "retain", "vacuum"])
def test_each_job_runs_by_the_script_with_a_dry_run(busy, job):
    version = busy.topic("orders").snapshot.version
    (report,) = run_plainly(job, busy.uri, "orders", "--dry-run")
    assert (report["job"], report["dry_run"]) == (job, True)
    assert busy.topic("orders").snapshot.version == version


@pytest.mark.proof
def test_a_zip_of_the_package_ends_with_what_to_do_instead(busy, tmp_path):
    """As spark-submit --py-files has it on the path of the driver and of the executors."""
    archive = shutil.make_archive(str(tmp_path / "spark_segments"), "zip", ROOT, "spark_segments")
    script = [sys.executable, SCRIPT, "roll", busy.uri]
    done = subprocess.run(script, env=os.environ | {"PYTHONPATH": archive}, capture_output=True, text=True, cwd="/")
    (line,) = done.stderr.splitlines()
    assert done.returncode == 1 and line.startswith("error: The package has no compiled kernels")
    assert "--archives" in line
