"""How far a streaming query is behind the topics that it reads."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from spark_segments.spark.streams.stream_offsets import ABOUT, from_json

if TYPE_CHECKING:
    from pyspark.sql.connect.streaming.query import StreamingQuery as ConnectQuery
    from pyspark.sql.streaming.query import StreamingQuery


def lag(query: StreamingQuery | ConnectQuery) -> dict[str, dict[int, int]]:
    """{topic: {partition: offsets behind}} of a streaming query, as of its last progress; {} before its first batch.

    Counts offsets from the end of the query's last batch to the end of the partition, or with read_committed to its
    last stable offset. Costs no look at the log: the source reports both with each trigger. Where several sources of
    the query read the same partition, the one that is furthest behind counts. Sources of other formats are left out.
    """
    progress = query.lastProgress
    lags: dict[str, dict[int, int]] = {}
    for source in [] if progress is None else _of(progress, "sources"):
        done, latest = (_offsets(_of(source, name)) for name in ("endOffset", "latestOffset"))
        if done is None or latest is None:
            continue
        reached = from_json(done)
        for (topic, partition), end in from_json(latest).items():
            begin = reached.get((topic, partition))
            behind = max(0, end.offset - (0 if begin is None else begin.offset))
            partitions = lags.setdefault(topic, {})
            partitions[partition] = max(behind, partitions.get(partition, 0))
    return lags


def _of(progress: Any, name: str) -> Any:
    return progress[name] if isinstance(progress, dict) else getattr(progress, name)


def _offsets(text: Any) -> dict[str, Any] | None:
    """The offsets if they are of this package's source; None for another source, or for no offsets."""
    try:
        offsets = json.loads(text) if isinstance(text, str) else text
    except ValueError:
        return None
    return offsets if isinstance(offsets, dict) and ABOUT in offsets else None
