"""Which PySpark the package takes, what it does with the oldest and the newest, and what it says of others.

`python -m verification.spark.versions` runs all of Spark's tests with each.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib

import pytest

from spark_segments.errors import UnsupportedSparkError
from spark_segments.spark import NEWEST, OLDEST, supported
from tests.conftest import ROOT
from verification.spark.versions import SHORT, VERSIONS


@pytest.mark.parametrize("version", ["3.5.9", "4.4.0.dev0", "5.0.0"])
def test_a_version_that_was_not_tried_is_refused(version):
    with pytest.raises(UnsupportedSparkError, match=f"expected 4.0 to 4.3, found {version}.*pyspark>=4.0,<4.4"):
        supported(version)


def test_builds_of_platforms_have_the_number_of_their_version():
    assert supported("4.0.0+databricks.connect.17.3.1") == (4, 0)


def test_the_range_is_that_of_the_extra_and_each_minor_version_is_run():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert f"pyspark>={OLDEST[0]}.{OLDEST[1]},<{NEWEST[0]}.{NEWEST[1] + 1}" in extras["spark"]
    run = [supported(version) for version in VERSIONS]
    assert run == sorted(run)
    assert sorted(set(run)) == [(4, minor) for minor in range(OLDEST[1], NEWEST[1] + 1)]


@pytest.mark.network
@pytest.mark.proof
@pytest.mark.spark
@pytest.mark.parametrize(
    "version",
    # Groups of their own: one of them need not wait for the other, nor for this PySpark's tests.
    [pytest.param(one, marks=pytest.mark.xdist_group(f"pyspark-{one}")) for one in (VERSIONS[0], VERSIONS[-1])],
)
def test_the_oldest_and_the_newest_write_read_stream_and_maintain(version, tmp_path):
    """Where pip cannot install it, this fails with what pip says."""
    command = [sys.executable, "-m", "verification.spark.versions", "--version", version, "--short"]
    variables = os.environ | {"TMPDIR": str(tmp_path), "PYTEST_ADDOPTS": "-p no:cacheprovider"}
    done = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True)
    assert done.returncode == 0, (done.stdout + done.stderr)[-5000:]
    assert f"{len(SHORT)} passed" in done.stdout, done.stdout[-5000:]


def test_an_older_pyspark_is_one_error_of_the_import_and_of_doctor(tmp_path):
    """As one that lies first on the path: 3.5 has no data sources in Python."""
    (tmp_path / "pyspark").mkdir()
    (tmp_path / "pyspark" / "__init__.py").write_text("__version__ = '3.5.9'")
    variables = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, *arguments], env=variables, capture_output=True, text=True)

    said = run("-c", "import pyspark_segments").stderr.splitlines()[-1]
    assert "UnsupportedSparkError" in said and "found 3.5.9" in said
    doctor = run("-m", "spark_segments", "doctor", "--output", "json")
    assert doctor.returncode == 3
    [found] = [check for check in json.loads(doctor.stdout)["checks"] if check["check"] == "spark"]
    assert found["status"] == "failed" and "expected 4.0 to 4.3, found 3.5.9" in found["found"]
