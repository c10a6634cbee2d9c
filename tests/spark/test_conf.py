"""conf/spark-defaults.conf and conf/log4j2.properties in a Spark that SPARK_CONF_DIR points to them."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.conftest import ROOT
from verification.world.clock import PATIENCE_SECONDS

SCRIPT = """
import json
from spark_segments.spark.session import spark_session

local = {"spark.ui.enabled": "false", "spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1"}
spark = spark_session("conf", master="local[1]", config=local)
logger = spark._jvm.org.apache.logging.log4j.LogManager.getLogger("org.example.Orders")
logger.info("nothing to act on")
logger.warn("something to act on")
print(json.dumps({key: spark.conf.get(key) for key in json.loads(input())}))
spark.stop()
"""


@pytest.mark.proof
@pytest.mark.spark
def test_sparks_settings_are_in_force_and_standard_output_is_the_jobs_own(python_environment):
    lines = (ROOT / "conf" / "spark-defaults.conf").read_text().splitlines()
    settings = dict(line.split() for line in lines if line and line[0] != "#")
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        input=json.dumps([*settings]),
        env=python_environment | {"SPARK_CONF_DIR": str(ROOT / "conf")},
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout) == settings
    assert " WARN Orders: something to act on\n" in done.stderr and "nothing to act on" not in done.stderr
