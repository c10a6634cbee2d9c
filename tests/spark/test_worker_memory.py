"""How much memory the Python workers of tasks take, as the kernel counts it."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.conftest import ROOT
from verification.world.clock import PATIENCE_SECONDS

MOST_MIB = 256
RECORDS, RECORD_BYTES = 150, 1_000_000  # Kafka's max.message.bytes is 1,048,588

SCRIPT = """
import json, sys
from pathlib import Path
import numpy as np, pyarrow as pa, pyarrow.parquet as pq
from spark_segments import LogDir
from spark_segments.spark.session import spark_session

directory, records, record_bytes = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
values = [np.random.default_rng(number).bytes(record_bytes) for number in range(records)]
pq.write_table(pa.table({"value": values}), f"{directory}/rows.parquet", use_dictionary=False, row_group_size=8)
del values
LogDir.create(f"{directory}/log").create_topic("large", 2)
local = {"spark.ui.enabled": "false", "spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1"}
local |= {"spark.sql.parquet.columnarReaderBatchSize": "8"}
spark = spark_session("memory", master="local[1]", config=local | {"spark.driver.memory": "2g"})


def workers(process):
    children = Path(f"/proc/{process}/task").glob("*/children")
    return [int(child) for file in children for child in file.read_text().split()]


def peaks():
    jvm = spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid()
    found = [worker for daemon in workers(jvm) for worker in workers(daemon)]
    lines = [line.split() for worker in found for line in Path(f"/proc/{worker}/status").read_text().splitlines()]
    return [int(line[1]) >> 10 for line in lines if line[0] == "VmHWM:"]


spark.read.parquet(f"{directory}/rows.parquet").write.format("segments").mode("append").option(
    "topic", "large"
).save(f"{directory}/log")
written = peaks()
topic = spark.read.format("segments").option("subscribe", "large").load(f"{directory}/log")
topic.write.format("noop").mode("overwrite").save()
print(json.dumps({"written": written, "read": peaks(), "records": topic.count()}))
spark.stop()
"""


@pytest.mark.spark
@pytest.mark.proof
def test_records_of_a_megabyte_fit_into_256_mib_with_the_settings_of_conf(python_environment, tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path), str(RECORDS), str(RECORD_BYTES)],
        env=python_environment | {"SPARK_CONF_DIR": str(ROOT / "conf")},
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout)
    assert found["records"] == RECORDS
    assert 0 < max(found["written"]) <= MOST_MIB and max(found["read"]) <= MOST_MIB, found
