"""An S3 endpoint on loopback (moto) for the tests, in a process of its own.

`s3_server()` starts it, makes a bucket and gives its storage options; it ends with the context, or with the tests.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator

from verification.world.checkout import ROOT

BUCKET = "bucket"


@contextlib.contextmanager
def s3_server() -> Iterator[dict[str, str]]:
    """Storage options for an S3 service that holds one empty bucket, `BUCKET`."""
    with counting_s3_server() as (options, _):
        yield options


@contextlib.contextmanager
def counting_s3_server() -> Iterator[tuple[dict[str, str], Callable[[], dict[str, int]]]]:
    """The same, and a function that says how many requests there were so far: {"GET": 3, "PUT": 1, …}."""
    command = [sys.executable, "-m", "verification.world.stores.s3_server"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, cwd=ROOT, text=True, **pipes) as process:  # type: ignore[call-overload]
        port = process.stdout.readline().strip()
        assert port, "the S3 server did not start"
        endpoint = f"http://127.0.0.1:{port}"
        urllib.request.urlopen(urllib.request.Request(f"{endpoint}/{BUCKET}", method="PUT")).close()

        def counts() -> dict[str, int]:
            process.stdin.write("\n")
            process.stdin.flush()
            found: dict[str, int] = json.loads(process.stdout.readline())
            return found

        yield (
            {
                "AWS_ACCESS_KEY_ID": "key",
                "AWS_SECRET_ACCESS_KEY": "secret",
                "AWS_REGION": "us-east-1",
                "AWS_ENDPOINT_URL": endpoint,
                "AWS_ALLOW_HTTP": "true",
            },
            counts,
        )
        process.stdin.close()  # the server ends when nobody holds its standard input


def _serve() -> None:
    from moto.server import ThreadedMotoServer
    from werkzeug.serving import WSGIRequestHandler

    requests: Counter[str] = Counter()

    def count(handler: WSGIRequestHandler, *_: object) -> None:
        requests[handler.command] += 1

    run, one_at_a_time = WSGIRequestHandler.run_wsgi, threading.Lock()

    def run_atomically(handler: WSGIRequestHandler) -> None:
        # A conditional put is atomic on S3; moto looks, and then puts.
        with one_at_a_time if "If-None-Match" in handler.headers else contextlib.nullcontext():
            run(handler)

    WSGIRequestHandler.log_request = count  # type: ignore[method-assign]
    WSGIRequestHandler.run_wsgi = run_atomically  # type: ignore[method-assign]
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    print(server.get_host_and_port()[1], flush=True)
    for _ in sys.stdin:
        print(json.dumps(requests), flush=True)
    server.stop()


if __name__ == "__main__":
    _serve()
