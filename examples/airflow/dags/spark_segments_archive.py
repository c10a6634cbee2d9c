"""An archive of a Kafka broker's topic, and a DAG that runs whenever the archive has grown.

The first DAG imports what the broker's log directory has got since the last run. Its topic is an asset: the second DAG
is scheduled by it, waits without a worker slot until the topic has come as far as it needs, and exports it.
"""

from __future__ import annotations

import datetime
import json
import os

from airflow.sdk import dag

from spark_segments.airflow.assets import topic_asset
from spark_segments.airflow.operators import ExportOperator, ImportOperator
from spark_segments.airflow.sensors import TopicSensor

KAFKA_DIRECTORY = os.environ.get("SEGMENTS_KAFKA_DIRECTORY", "/var/lib/kafka/data")
ARCHIVE = os.environ.get("SEGMENTS_ARCHIVE", "/data/archive")
TOPIC = os.environ.get("SEGMENTS_TOPIC", "orders")
# {partition: log end offset} that the export waits for.
WANTED = {int(number): end for number, end in json.loads(os.environ.get("SEGMENTS_END_OFFSETS", '{"0": 1}')).items()}
EXPORT = os.environ.get("SEGMENTS_EXPORT", "/data/restored/{{ run_id }}")

START = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)


@dag(schedule="@hourly", start_date=START, catchup=False, tags=["spark_segments"])
def spark_segments_import() -> None:
    """Imports what is new; `outlets` of the task is the topic's asset."""
    ImportOperator(task_id="import", kafka_dir=KAFKA_DIRECTORY, log_dir=ARCHIVE, topic=TOPIC)


@dag(schedule=topic_asset(ARCHIVE, TOPIC), start_date=START, catchup=False, tags=["spark_segments"])
def spark_segments_export() -> None:
    """Runs after each import."""
    waited = TopicSensor(
        task_id="far_enough", log_dir=ARCHIVE, topic=TOPIC, end_offsets=WANTED, deferrable=True, poke_interval=2
    )
    waited >> ExportOperator(task_id="export", log_dir=ARCHIVE, topic=TOPIC, kafka_dir=EXPORT)


spark_segments_import()
spark_segments_export()
