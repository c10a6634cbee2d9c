"""The row of the topic itself: its id, its settings, its format version, and what it is among its followers.

The row is a single one, so that making, altering and deleting a topic are commits like any other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from spark_segments.errors import LogDirError

FORMAT_VERSION = 2
"""The newest format of manifest and files that this package knows; a topic of a newer format is refused."""

FIRST_FORMAT_VERSION = 1
"""The format that `segments topic upgrade` begins from. Topics of it are read and written as they are."""

_TEXTS = pa.map_(pa.string(), pa.string())

TOPIC_SCHEMA = pa.schema(
    [
        pa.field("topic_id", pa.string()),
        pa.field("properties", _TEXTS),
        pa.field("deleted_topics", _TEXTS),
        pa.field("states", _TEXTS),
    ]
)

OLD_TOPIC_COLUMNS = 2
"""How many of these columns every file of format version 1 has."""

_FORMAT_KEY = "format.version"
_DELETED_KEY = "deleted_ms"


class NewerFormatError(LogDirError):
    """A newer version of this package wrote a manifest or its copy: it is not damaged, and nothing older may stand in
    for it.
    """


@dataclass(frozen=True, slots=True)
class TopicRow:
    """The topic itself.

    `config`: the topic's settings without defaults. `deleted_ms`: when it was deleted, else None. `deleted_topics`:
    {topic id: its file.delete.delay.ms, "" where not set} of deleted topics of this name whose rows are still here.
    `states`: what the topic is among its followers (states.py); empty for a topic that has none.
    """

    topic_id: str
    config: Mapping[str, str]
    deleted_ms: int | None = None
    format_version: int = FORMAT_VERSION
    deleted_topics: Mapping[str, str] = field(default_factory=dict)
    states: Mapping[str, str] = field(default_factory=dict)


def topic_table(topic: TopicRow) -> pa.Table:
    """The single row, in the columns of the topic's format version.

    In version 1 `deleted_topics` is a column that only files of topics which have any hold, and not a property: older
    packages take every property that they do not know for a setting, and would refuse the topic.
    """
    properties = {**topic.config, _FORMAT_KEY: str(topic.format_version)}
    if topic.deleted_ms is not None:
        properties[_DELETED_KEY] = str(topic.deleted_ms)
    row = {"topic_id": topic.topic_id, "properties": list(properties.items())}
    schema = TOPIC_SCHEMA
    if topic.format_version > FIRST_FORMAT_VERSION:
        row |= {"deleted_topics": list(topic.deleted_topics.items()), "states": list(topic.states.items())}
    else:
        schema = pa.schema(list(TOPIC_SCHEMA)[:OLD_TOPIC_COLUMNS])
        if topic.deleted_topics:
            row["deleted_topics"] = list(topic.deleted_topics.items())
            schema = schema.append(TOPIC_SCHEMA.field("deleted_topics"))
    return pa.Table.from_pylist([row], schema)


def topic_of(table: pa.Table) -> TopicRow:
    """The inverse of `topic_table`."""
    [row] = table.to_pylist()
    config = dict(row["properties"] or ())
    if _FORMAT_KEY not in config:
        raise ValueError(f"the topic's row has no {_FORMAT_KEY}")
    format_version = int(config.pop(_FORMAT_KEY))
    deleted_ms = config.pop(_DELETED_KEY, None)
    return TopicRow(
        row["topic_id"],
        config,
        None if deleted_ms is None else int(deleted_ms),
        format_version,
        dict(row.get("deleted_topics") or ()),
        dict(row.get("states") or ()),
    )
