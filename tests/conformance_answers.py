"""What this package answers to the requests of the conformance kit."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from spark_segments import LogDir
from spark_segments.errors import SegmentsError
from spark_segments.maintenance import verify
from verification.specification.witness import read


def answers(request: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The lines that answer a request."""
    try:
        yield from _answered(request)
    except SegmentsError as error:
        yield {"refused": str(error)}


def _answered(request: dict[str, Any]) -> Iterator[dict[str, Any]]:
    kind, topic = request["request"], request.get("topic", "")
    if kind in ("read_kafka", "read_running"):
        yield {
            "unsupported": "tests/log/test_kafka_dir.py compares with Kafka's own tools what Kafka wrote, "
            "and tests/log/test_running_broker.py reads beside a broker"
        }
        return
    if kind == "rebuild":
        with tempfile.TemporaryDirectory() as place:
            log = LogDir.open(shutil.copytree(request["log"], Path(place) / "log").as_posix())
            verify(log, topics=[topic], repair=True)
            records = read(log, topic)
        yield from records
        yield {"end": len(records)}
        return
    log = LogDir.open(request["log"])
    if kind == "topics":
        yield {"topics": log.topics()}
    elif kind == "offsets":
        yield {"offsets": {str(number): list(bounds) for number, bounds in log.topic(topic).offsets().items()}}
    elif kind == "offset_for_time":
        found = log.topic(topic).offsets_for_times(request["timestamp"])[request["partition"]]
        yield {"offset": None if found is None else list(found)}
    else:
        records = read(log, topic, request["isolation_level"], version=request.get("version"))
        yield from records
        yield {"end": len(records)}
