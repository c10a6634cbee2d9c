"""What took files out of a topic's log: the operations of the commits that removed their rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from spark_segments.errors import LogDirError
from spark_segments.log.manifest import row_tables
from spark_segments.log.manifest.files.delta.actions import added_file
from spark_segments.log.manifest.operation import Operation
from spark_segments.log.manifest.rows import OUT_OF_LOG
from spark_segments.log.manifest.schemas import SEGMENT_KIND
from spark_segments.log.manifest.state.topic_log import TopicLog
from spark_segments.storage.delta import commit_info


def operations_out_of_log(topic_log: TopicLog, since_version: int) -> dict[str, str | None]:
    """{path without its suffix: the operation that took it out of the log}, by the commits after a version that the
    manifest still has; None where the commit does not say it.
    """
    operations: dict[str, str | None] = {}
    for version in topic_log.versions():
        if version <= since_version:
            continue
        try:
            actions = topic_log.delta.actions(version)
            files = [added_file(action["add"]) for action in actions if "add" in action]
            tables = topic_log.store.read_all([file for file in files if file.kind == SEGMENT_KIND])
        except (FileNotFoundError, LogDirError):  # vacuum took the commit, or its rows
            continue
        operation = commit_info(actions).get("change") or None
        if operation == Operation.MERGE_FILES:  # writes rows again that left the log before
            continue
        for stem in _stems_out_of_log(tables):
            operations.setdefault(stem, operation)
    return operations


def _stems_out_of_log(tables: Sequence[pa.Table]) -> Iterator[str]:
    for rows in tables:
        for path in row_tables.in_states(rows, *OUT_OF_LOG).column("path").to_pylist():
            yield path.rpartition(".")[0]
