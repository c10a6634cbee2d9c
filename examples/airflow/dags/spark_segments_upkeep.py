"""The upkeep of log directories as an Airflow DAG: roll, then retain and compact side by side, then vacuum.

A log directory is a task group, a job a spark-submit. Every job does what is due when it runs, in commits that land
whole or not at all. So a retry has nothing to clean up, runs may overlap, and the run after a missed one does its work.
"""

from __future__ import annotations

import datetime
import json
import os
from pathlib import Path

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import chain, dag, task_group

# Task groups and their log directories: paths, or s3://, gs:// and abfs:// URIs.
LOG_DIRECTORIES = json.loads(os.environ.get("SEGMENTS_LOG_DIRECTORIES", '{"shop": "s3://bucket/shop-log"}'))

# The schedule and the delete delay, and any other default of topics: every job and `segments explain` take this file.
DEFAULTS = os.environ.get("SEGMENTS_DEFAULTS", str(Path(__file__).with_name("upkeep.properties")))

# A checkout of spark_segments on the Airflow workers, and the package as Spark's executors get it.
HOME = Path(os.environ.get("SEGMENTS_HOME", "/opt/spark_segments"))
PACKAGE = os.environ.get("SEGMENTS_PACKAGE", str(HOME / "spark_segments.zip"))

# The Airflow connection that names the Spark master, in deploy mode client.
CONNECTION = "spark_segments"


def schedule() -> datetime.timedelta:
    """log.retention.check.interval.ms of the defaults."""
    lines = (line.partition("=") for line in Path(DEFAULTS).read_text().splitlines())
    settings = {name.strip(): value.strip() for name, _, value in lines}
    return datetime.timedelta(milliseconds=int(settings["log.retention.check.interval.ms"]))


def job(name: str, log_directory: str) -> SparkSubmitOperator:
    """jobs/<name>.py on Spark; its report, as JSON, is in the task's log.

    It fails where a partition's files are damaged, with all others' work done: the next jobs need not wait for repair.
    """
    return SparkSubmitOperator(
        task_id=name,
        trigger_rule="all_done",
        conn_id=CONNECTION,
        application=str(HOME / "jobs" / f"{name}.py"),
        application_args=[log_directory, "--defaults", DEFAULTS, "--output", "json"],
        name=f"{name} {log_directory}",
        py_files=PACKAGE,
        properties_file=str(HOME / "conf" / "spark-defaults.conf"),
        conf={"spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile=file:{HOME}/conf/log4j2.properties"},
    )


@task_group
def upkeep(log_directory: str) -> None:
    """Sealed segments are what retention and compaction take; vacuum deletes what has left the log for long enough."""
    roll, retain, compact, vacuum = (job(name, log_directory) for name in ("roll", "retain", "compact", "vacuum"))
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
