"""A Sail server in a process, and a session on it."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from verification.world.clock import PATIENCE_SECONDS

if TYPE_CHECKING:
    from pyspark.sql.connect.session import SparkSession

ROOT = Path(__file__).parents[2]
TIME_ZONE = "America/St_Johns"  # as Spark's in the tests: a timestamp that is taken for local time somewhere shows


@contextlib.contextmanager
def sail_session(directory: Path, **environment: str) -> Iterator[SparkSession]:
    """A session with the data source registered. `directory`: where the server runs, and its tables lie."""
    from pyspark.sql.connect.session import SparkSession

    from spark_segments.spark.session import register

    with sail_server(directory, **environment) as address:
        session = SparkSession.builder.remote(address).create()
        try:
            session.conf.set("spark.sql.session.timeZone", TIME_ZONE)
            register(session)  # type: ignore[arg-type]
            yield session
        finally:
            session.stop()


@contextlib.contextmanager
def sail_server(directory: Path, **environment: str) -> Iterator[str]:
    """The address of a server that lives as long as the context."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    process = subprocess.Popen(
        [sys.executable, "-m", "pysail", "spark", "server", "--ip", "127.0.0.1", "--port", str(port)],
        env=os.environ | {"PYTHONPATH": path, "RUST_LOG": "error"} | environment,
        cwd=directory,
    )
    try:
        _wait(process, port)
        yield f"sc://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()


def _wait(process: subprocess.Popen[bytes], port: int) -> None:
    until = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < until and process.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.05)
    raise RuntimeError(f"Sail did not start: exit code {process.poll()}")
