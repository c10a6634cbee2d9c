"""How fast the page's browser answers on a large topic: `python -m verification.release.page_speed DIRECTORY --gb 10`.

The directory must not exist; it is deleted afterwards. Prints JSON: milliseconds of requests over HTTP, the first with
a cold server, then the median and the slowest of further requests at random offsets.
"""

from __future__ import annotations

import argparse
import http.client
import json
import random
import shutil
import statistics
import threading
import time

import numpy as np
import pyarrow as pa

from spark_segments import LogDir, ProducerOptions
from spark_segments.cli.page.serve import server

VALUE_BYTES = 1000
RECORDS_AN_APPEND = 250_000


def main() -> None:
    """Makes the topic, asks the server, deletes the topic."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("directory")
    arguments.add_argument("--gb", type=float, default=10)
    chosen = arguments.parse_args()
    log = LogDir.create(chosen.directory)
    try:
        log.create_topic("large", config={"retention.ms": "-1"})
        _fill(log, int(chosen.gb * 1e9))
        print(json.dumps(_measure(log)))
    finally:
        shutil.rmtree(chosen.directory)


def _fill(log: LogDir, size_bytes: int) -> None:
    """Appends records of random text until the topic has so many bytes."""
    noise = np.random.default_rng(1).integers(97, 123, RECORDS_AN_APPEND * VALUE_BYTES, dtype=np.uint8)
    offsets = pa.py_buffer(np.arange(0, len(noise) + 1, VALUE_BYTES, dtype=np.int32))
    values = pa.Array.from_buffers(pa.binary(), RECORDS_AN_APPEND, [None, offsets, pa.py_buffer(noise)])
    written = 0
    while written < size_bytes:
        keys = pa.array([b"key-%08d" % number for number in range(RECORDS_AN_APPEND)])
        log.topic("large").append(pa.table({"key": keys, "value": values}), options=ProducerOptions("none", 131072))
        written += len(noise)


def _measure(log: LogDir) -> dict[str, object]:
    made = server(log, 0)
    thread = threading.Thread(target=made.serve_forever)
    thread.start()
    try:
        [(start, end)] = log.topic("large").offsets().values()
        pick = random.Random(1)
        pages = [f"/records?topic=large&partition=0&offset={pick.randrange(start, end)}" for _ in range(30)]
        find = "/records?topic=large&partition=0&find=not-there-at-all"
        first = _ask(made.server_port, "/records?topic=large&partition=0")
        return {
            "bytes": sum(one["size_bytes"] for one in log.topic("large").describe()["partitions"]),
            "records": end - start,
            "first_page_cold_ms": first,
            "newest_ms": _ask(made.server_port, "/records?topic=large&partition=0"),
            "random_offset_ms": _figures([_ask(made.server_port, page) for page in pages]),
            "find_64_mib_ms": _figures([_ask(made.server_port, find) for _ in range(5)]),
            "front_page_ms": _ask(made.server_port, "/"),
        }
    finally:
        made.shutdown()
        thread.join()
        made.server_close()


def _ask(port: int, path: str) -> float:
    began = time.perf_counter()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    connection.request("GET", path)
    answer = connection.getresponse()
    answer.read()
    assert answer.status == 200, answer.status
    connection.close()
    return round(1000 * (time.perf_counter() - began), 1)


def _figures(found: list[float]) -> dict[str, float]:
    return {"median": statistics.median(found), "slowest": max(found)}


if __name__ == "__main__":
    main()
