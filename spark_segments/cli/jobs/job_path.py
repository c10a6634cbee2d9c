"""`segments job-path`: the paths of the scripts that spark-submit and Airflow run, in a wheel or a checkout."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

import spark_segments
from spark_segments.errors import SegmentsError

_PACKAGE = Path(spark_segments.__file__).parent


class Item(StrEnum):
    """The paths that `job-path` prints: the script of a job, or a directory beside the jobs."""

    APPEND = "append"
    ROLL = "roll"
    RETAIN = "retain"
    COMPACT = "compact"
    VACUUM = "vacuum"
    MAINTAIN = "maintain"
    IMPORT = "import"
    EXPORT = "export"
    MIRROR = "mirror"
    CONF = "conf"
    AIRFLOW = "airflow"


def job_path(
    item: Annotated[
        Item,
        typer.Argument(
            metavar="JOB",
            help="A job (append, roll, retain, …, import, export, mirror) or a directory (conf, airflow).",
        ),
    ],
) -> None:
    """Prints the path of a job's script, for spark-submit.

    `conf` is a directory for SPARK_CONF_DIR, `airflow` the folder of the example DAG.

    Example: segments job-path compact
    """
    print(path_of(item))


def path_of(item: Item) -> Path:
    """The path of the file or directory. Raises SegmentsError where this installation lacks it."""
    if item is Item.CONF:
        places = [_PACKAGE / "conf", _PACKAGE.parent / "conf"]
    elif item is Item.AIRFLOW:
        places = [_PACKAGE / "airflow_dags", _PACKAGE.parent / "examples" / "airflow" / "dags"]
    else:
        places = [directory / "jobs" / f"{item.value}.py" for directory in (_PACKAGE, _PACKAGE.parent)]
    for place in places:
        if place.exists():
            return place
    raise SegmentsError(
        f"This installation has no {item.value}",
        path=str(places[0]),
        hint="Install the wheel: pip install spark-segments",
    )
