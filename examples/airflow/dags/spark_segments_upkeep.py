"""The upkeep of log directories as an Airflow DAG: roll, then retain and compact side by side, then vacuum.

A log directory is a task group. Every job does what is due when it runs, in commits that land whole or not at all. So a
retry has nothing to clean up, runs may overlap, and the run after a missed one does its work.
"""

from __future__ import annotations

import datetime
import json
import os
from pathlib import Path
from typing import Any

from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import chain, dag, task_group

from spark_segments.airflow.operators import CompactOperator, RetainOperator, RollOperator, VacuumOperator

# Task groups and their log directories: paths, or s3://, gs:// and abfs:// URIs.
LOG_DIRECTORIES = json.loads(os.environ.get("SEGMENTS_LOG_DIRECTORIES", '{"shop": "s3://bucket/shop-log"}'))

# The schedule and the delete delay, and any other default of topics: every job and `segments explain` take this file.
DEFAULTS = os.environ.get("SEGMENTS_DEFAULTS", str(Path(__file__).with_name("upkeep.properties")))

# Where the jobs run. The Airflow connection that names the Spark master, in deploy mode client, and the packed
# environment with the package for Spark's executors; without one they have the package. Without a connection each job
# runs on the Airflow worker, without Spark.
CONNECTION = os.environ.get("SEGMENTS_SPARK_CONNECTION") or None
ENVIRONMENT = os.environ.get("SEGMENTS_ENVIRONMENT")
SENT = {"archives": f"{ENVIRONMENT}#environment", "conf": {"spark.pyspark.python": "./environment/bin/python"}}
SPARK: dict[str, Any] = {"spark_conn_id": CONNECTION, "spark_submit": SENT if ENVIRONMENT else {}} if CONNECTION else {}


def schedule() -> datetime.timedelta:
    """log.retention.check.interval.ms of the defaults."""
    lines = (line.partition("=") for line in Path(DEFAULTS).read_text().splitlines())
    settings = {name.strip(): value.strip() for name, _, value in lines}
    return datetime.timedelta(milliseconds=int(settings["log.retention.check.interval.ms"]))


@task_group
def upkeep(log_directory: str) -> None:
    """Sealed segments are what retention and compaction take; vacuum deletes what has left the log for long enough.

    A job fails where a partition's files are damaged, with all others' work done: the next jobs need not wait for
    repair.
    """
    settings = {"log_dir": log_directory, "defaults": DEFAULTS, "trigger_rule": "all_done", **SPARK}
    roll = RollOperator(task_id="roll", **settings)
    retain = RetainOperator(task_id="retain", **settings)
    compact = CompactOperator(task_id="compact", **settings)
    vacuum = VacuumOperator(task_id="vacuum", **settings)
    chain(roll, [retain, compact], vacuum)
    [roll, retain, compact, vacuum] >> EmptyOperator(task_id="succeeded")  # else a run would be what its vacuum is


@dag(
    schedule=schedule(),
    start_date=datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC),
    catchup=False,  # a job does all that is due: there is nothing to run for the past
    max_active_runs=1,  # two would do no harm, and the work of one
    default_args={
        "retries": 3,
        "retry_delay": datetime.timedelta(minutes=1),
        "retry_exponential_backoff": 2,
        "max_retry_delay": datetime.timedelta(minutes=15),
        "execution_timeout": datetime.timedelta(hours=2),
    },
    tags=["spark_segments"],
)
def spark_segments_upkeep() -> None:
    """Keeps log directories of spark_segments."""
    for name, log_directory in LOG_DIRECTORIES.items():
        upkeep.override(group_id=name)(log_directory)


spark_segments_upkeep()
