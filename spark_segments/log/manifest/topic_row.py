"""The row of the topic itself: its id, its settings, and what it is among its followers.

The row is a single one, so that making, altering and deleting a topic are commits like any other.
"""

from __future__ import annotations

import base64
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import pyarrow as pa

FORMAT_VERSION = 2
"""The format of manifest and files that this package reads and writes; a topic of another format is refused."""

FORMAT_KEY = "format.version"
"""The property of a topic's row that says its format version."""

_TEXTS = pa.map_(pa.string(), pa.string())

TOPIC_SCHEMA = pa.schema(
    [
        pa.field("topic_id", pa.string()),
        pa.field("properties", _TEXTS),
        pa.field("deleted_topics", _TEXTS),
        pa.field("states", _TEXTS),
    ]
)

_DELETED_KEY = "deleted_ms"


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
    deleted_topics: Mapping[str, str] = field(default_factory=dict)
    states: Mapping[str, str] = field(default_factory=dict)

    REBUILT_FROM: ClassVar = "rebuilt_from"
    """The state with the ids, by commas, that the topic had before its manifest was rebuilt: in shared objects."""

    @staticmethod
    def new_id() -> str:
        """An id for a topic: a random UUID, as Kafka writes it."""
        return base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()


def topic_table(topic: TopicRow) -> pa.Table:
    """The single row."""
    properties = {**topic.config, FORMAT_KEY: str(FORMAT_VERSION)}
    if topic.deleted_ms is not None:
        properties[_DELETED_KEY] = str(topic.deleted_ms)
    maps = (properties, topic.deleted_topics, topic.states)
    values = [topic.topic_id, *(list(texts.items()) for texts in maps)]
    return pa.Table.from_pylist([dict(zip(TOPIC_SCHEMA.names, values, strict=True))], TOPIC_SCHEMA)


def topic_of(table: pa.Table) -> TopicRow:
    """The inverse of `topic_table`."""
    [row] = table.to_pylist()
    config = dict(row["properties"] or ())
    del config[FORMAT_KEY]
    deleted_ms = config.pop(_DELETED_KEY, None)
    return TopicRow(
        row["topic_id"],
        config,
        None if deleted_ms is None else int(deleted_ms),
        dict(row["deleted_topics"] or ()),
        dict(row["states"] or ()),
    )
