"""Topics and rows of the tests of streams."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pyarrow as pa
import pytest

from spark_segments import LogDir

T0 = 1_700_000_000_000

Add = Callable[..., None]


def rows(numbers: Iterable[Any], partition: int, timestamp_ms: int = T0) -> pa.Table:
    """Records with these values, as text, in one partition."""
    values = [str(number).encode() for number in numbers]
    return pa.table(
        {
            "value": pa.array(values, pa.binary()),
            "partition": pa.array([partition] * len(values), pa.int32()),
            "timestamp": pa.array([timestamp_ms * 1000] * len(values), pa.timestamp("us", tz="UTC")),
        }
    )


def numbers(found: Iterable[dict[str, Any]] | None) -> list[int]:
    """The values of rows, sorted."""
    assert found is not None
    return sorted(int(row["value"]) for row in found)


@pytest.fixture
def t(log: LogDir) -> LogDir:
    """Topic t with three empty partitions."""
    log.create_topic("t", partitions=3)
    return log


@pytest.fixture
def add(t: LogDir) -> Add:
    """add(numbers, partition=0, timestamp_ms=T0, topic="t") appends values."""

    def append(values: Iterable[Any], partition: int = 0, timestamp_ms: int = T0, topic: str = "t") -> None:
        t.topic(topic).append(rows(values, partition, timestamp_ms))

    return append
