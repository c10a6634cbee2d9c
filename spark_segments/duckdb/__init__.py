"""Topics as tables of DuckDB: `TopicDatabase`. Nothing else lives here. It needs the extra `duckdb`."""

from __future__ import annotations

from spark_segments.duckdb.topic_database import TopicDatabase

__all__ = ["TopicDatabase"]
