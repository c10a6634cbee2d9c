"""Starts Spark for the command line, jobs and examples. An existing session is used unchanged.

Finds a Java that Spark can use (JAVA_HOME, `java` on the PATH, the JDK of the extra `jdk`) and lets Spark's Python
processes find this package where it runs from a checkout.
"""

from __future__ import annotations

import os
import site
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from spark_segments.spark.java import java_home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_HIDDEN_OPTIONS = "spark.sql.redaction.options.regex"
CREDENTIALS = "(?i)user[.]info|account_key|access_key|master_key|sas_|credential|://[^/@]*@"
"""A pattern of names of options with credentials, and of addresses with a user part."""


def spark_session(
    app_name: str = "spark_segments", *, master: str | None = None, config: Mapping[str, str] | None = None
) -> SparkSession:
    """The active session, or a new session: on `master`, else on that of spark-submit or spark-defaults, else local.

    Raises SegmentsError where no Java can be found that Spark runs on.
    """
    from pyspark.sql import SparkSession

    active = SparkSession.getActiveSession()
    if active is not None:
        return active
    if not _is_started_elsewhere(master):
        prepare_environment(local=master is None or master.startswith("local"))
    builder = SparkSession.builder.appName(app_name)
    if master is not None:
        builder = builder.remote(master) if master.startswith("sc://") else builder.master(master)
    for key, value in (config or {}).items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    hide_credentials(session)
    if master is not None and master.startswith("sc://"):
        register(session)
    return session


def hide_credentials(session: SparkSession) -> None:
    """Has Spark leave credentials of options out of what `explain` and its pages show of a stream.

    Spark hides options whose names or values match spark.redaction.regex (secret, password, token, access.key) or
    spark.sql.redaction.options.regex, which gets the other names of storages and registries.
    """
    hidden = str(session.conf.get(_HIDDEN_OPTIONS, "(?i)url"))
    if CREDENTIALS not in hidden:
        session.conf.set(_HIDDEN_OPTIONS, f"{hidden}|{CREDENTIALS}")


def register(session: SparkSession) -> None:
    """Registers the data source with a server that does not find it by itself, as Spark does. Sail needs that."""
    from pyspark_segments import DefaultSource

    server_version = str(session.sql("SELECT version()").head()[0])  # type: ignore[index]
    if not server_version.startswith(session.version):  # Spark's is the client's; Sail has other numbers
        session.dataSource.register(DefaultSource)


def prepare_environment(*, local: bool = True) -> None:
    """Sets the environment for the JVM to be started: Java, this package and, on a `local` master, the settings of the
    Python workers.
    """
    home = java_home()
    if home is not None:
        os.environ["JAVA_HOME"] = home
    if local:
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        # A worker that waits for the JVM would return Arrow's memory to the system and get it back page by page. That
        # takes a tenth of a read's time.
        os.environ.setdefault("MIMALLOC_PURGE_DELAY", "-1")
    root = str(Path(__file__).resolve().parents[2])
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if root not in [*paths, *site.getsitepackages(), site.getusersitepackages()] and os.path.isdir(root):
        os.environ["PYTHONPATH"] = os.pathsep.join([root, *filter(None, paths)])


def _is_started_elsewhere(master: str | None) -> bool:
    """Whether this process starts no JVM: spark-submit has started it, or the session is a Spark Connect client."""
    remote = master is not None and master.startswith("sc://")
    return remote or "PYSPARK_GATEWAY_PORT" in os.environ or "SPARK_REMOTE" in os.environ
