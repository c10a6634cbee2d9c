"""Where the files lie that spark-submit and Airflow run, in a wheel or a checkout, and Spark's Java."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path

import spark_segments
from spark_segments.errors import SegmentsError

_PACKAGE = Path(spark_segments.__file__).parent


class Item(StrEnum):
    """What `segments doctor --path` prints: the script for spark-submit, a directory for SPARK_CONF_DIR, the folder of
    the example DAG, or a JAVA_HOME that Spark runs with.
    """

    JOB = "job"
    CONF = "conf"
    AIRFLOW = "airflow"
    JAVA = "java"


_PLACES = {
    Item.JOB: ("jobs/segments.py", "jobs/segments.py"),
    Item.CONF: ("conf", "conf"),
    Item.AIRFLOW: ("airflow_dags", "examples/airflow/dags"),
}
"""In the package, and in a checkout."""


def path_of(item: Item) -> Path:
    """The path of the file or directory. Raises SegmentsError where this installation lacks it."""
    if item is Item.JAVA:
        from spark_segments.spark.java import lasting_java_home

        return Path(lasting_java_home())
    in_package, in_checkout = _PLACES[item]
    places = [_PACKAGE / in_package, _PACKAGE.parent / in_checkout]
    for place in places:
        if place.exists():
            return place
    raise SegmentsError(
        f"This installation has no {item.value}",
        path=str(places[0]),
        hint="Install the wheel: pip install spark-segments",
    )
