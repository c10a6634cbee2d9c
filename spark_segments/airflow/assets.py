"""Topics as Airflow assets: what appends update, and what schedules and sensors wait for."""

from __future__ import annotations

from pathlib import Path

from airflow.sdk import Asset


def topic_asset(log_dir: str, topic: str) -> Asset:
    """The asset of a topic: its URI is that of the log directory and the topic's name.

    A log directory given as a path becomes a file:// URI, so that all DAGs name the same topic alike.
    """
    uri = log_dir if "://" in log_dir else Path(log_dir).absolute().as_uri()
    return Asset(name=f"{uri.rstrip('/')}/{topic}", uri=f"{uri.rstrip('/')}/{topic}", group="spark_segments")
