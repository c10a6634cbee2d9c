"""Runs the DAGs once, in a real Airflow 3 that has an environment to itself.

python examples/airflow/run.py LOG_DIR…      the upkeep of log directories, with the jobs on a local Spark, or where
                                             SEGMENTS_SPARK_CONNECTION is set and empty, on the worker
python examples/airflow/run.py --dag DAG…    other DAGs, by their names, with the variables that they take
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

from spark_segments.spark.java import java_home

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
# Airflow wants other versions of many packages than the jobs.
ENVIRONMENT = Path(os.environ.get("AIRFLOW_ENVIRONMENT", ROOT / ".venv-airflow"))


def main(arguments: list[str]) -> None:
    """Installs Airflow where it is not there yet, and runs the DAGs."""
    if not arguments:
        sys.exit(__doc__)
    install()
    dags = arguments[1:] if arguments[0] == "--dag" else ["spark_segments_upkeep"]
    uris = arguments if arguments[0] != "--dag" else []
    names = {os.path.basename(uri): uri if "://" in uri else os.path.abspath(uri) for uri in uris}
    with tempfile.TemporaryDirectory(prefix="airflow-", ignore_cleanup_errors=True) as home:
        environment = {"AIRFLOW_HOME": home} | os.environ | variables(names)
        first = [] if Path(environment["AIRFLOW_HOME"], "airflow.db").exists() else [["db", "migrate"]]
        for command in (*first, *(["dags", "test", dag] for dag in dags)):
            subprocess.run([str(ENVIRONMENT / "bin" / "airflow"), *command], env=environment, check=True)


def variables(names: dict[str, str]) -> dict[str, str]:
    """What the DAGs take: the log directories by their names, and a connection to a local Spark."""
    connection = {"conn_type": "spark", "host": "local[2]", "extra": {"deploy-mode": "client"}}
    return {
        "AIRFLOW__CORE__DAGS_FOLDER": str(HERE / "dags"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW_CONN_SPARK_SEGMENTS": json.dumps(connection),
        "SEGMENTS_SPARK_CONNECTION": os.environ.get("SEGMENTS_SPARK_CONNECTION", "spark_segments"),
        "SEGMENTS_LOG_DIRECTORIES": json.dumps(names),
    } | this_spark()


def install() -> None:
    """Makes the environment where it is not there as requirements.txt has it, with this checkout as a provider."""
    requirements, installed = HERE / "requirements.txt", ENVIRONMENT / "requirements.txt"
    if installed.exists() and installed.read_text() == requirements.read_text():
        return
    venv.create(ENVIRONMENT)
    # By the pip that is here. The requirements are whole: there is nothing to resolve.
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(ENVIRONMENT)]
    pip += ["install", "-q", "--no-compile", "--no-deps"]
    subprocess.run([*pip, "-r", str(requirements)], check=True)
    subprocess.run([*pip, "--editable", str(ROOT)], check=True)
    shutil.copy(requirements, installed)


def this_spark() -> dict[str, str]:
    """The variables by which `spark-submit` is this environment's and finds its Python and a Java."""
    java = java_home()
    path = os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath)])
    return {"PATH": path, "PYSPARK_PYTHON": sys.executable} | ({"JAVA_HOME": java} if java else {})


if __name__ == "__main__":
    main(sys.argv[1:])
